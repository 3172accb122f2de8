"""Architectures and devices by name: each compiles with each backend, or is refused in words."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest
from made import made

import unigemm
from unigemm.backends.cute import toolchain
from unigemm.backends.cutile.legality import CAPABILITIES
from unigemm.errors import UnsupportedProblem
from unigemm.planning.device_table import CARDS
from unigemm.planning.registry import BUILTIN
from unigemm.planning.target import ARCHITECTURES, name_of, named_target

COMPILING = [name for name in BUILTIN if name != "numpy"]
WGMMA, TCGEN05 = {"sm_90a"}, {"sm_100a", "sm_103a", "sm_110a"}
SPEC = unigemm.ArraySpec((64, 64), "float16")


def numbers(text):
    return {int(x) for x in re.findall(r"sm_([0-9]+)", text)}


def takes(backend, arch):
    special = {"cute_wgmma": WGMMA, "cute_tcgen05": TCGEN05}
    return arch in special.get(backend, ARCHITECTURES)


def plan(backend, target):
    return unigemm.plan(SPEC, SPEC, target=target, backend=backend, keep=0)


def test_products_are_planned_for_the_architectures_of_the_issue():
    known = {80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121}
    assert numbers(" ".join(ARCHITECTURES)) == known
    assert known == set(toolchain.CAPABILITIES)
    assert known < set(CAPABILITIES)


@pytest.mark.compile
def test_cute_dsl_takes_what_we_say_it_takes():
    names = pytest.importorskip("cutlass.base_dsl.enums", reason="no nvidia-cutlass-dsl").Arch
    assert {arch.name for arch in names} >= set(ARCHITECTURES)
    assert numbers(" ".join(arch.name for arch in names)) == set(toolchain.CAPABILITIES)


@pytest.mark.compile
def test_tileiras_takes_what_we_say_it_takes():
    path = pytest.importorskip("cuda.tile._compile", reason="no cuda-tile")
    binary = path._find_compiler_bin().path
    told = subprocess.run([binary, "--help"], capture_output=True, text=True, check=False)
    assert numbers(told.stdout + told.stderr) == set(CAPABILITIES)


@pytest.mark.parametrize("backend", COMPILING)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_is_planned_or_refused_with_a_sentence_that_names_it(arch, backend):
    if takes(backend, arch):
        assert plan(backend, arch).target.arch == arch
    else:
        with pytest.raises(UnsupportedProblem, match=rf"not of {arch}; use "):
            plan(backend, arch)


@pytest.mark.compile
@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("backend", "arch"),
    [(name, arch) for arch in ARCHITECTURES for name in COMPILING if takes(name, arch)],
)
def test_what_is_planned_compiles(backend, arch):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    pytest.importorskip("cuda.tile", reason="cuda-tile is not installed")
    artifact = made(plan(backend, arch))
    assert artifact.info.registers > 0
    if "kernel.ptx" in artifact.files:
        assert f".target {arch}" in artifact.files["kernel.ptx"].decode()


def test_an_architecture_that_a_compiler_does_not_know_is_refused_by_it_alone():
    target = replace(named_target("sm_86"), arch="sm_88", name="a device of 8.8")
    with pytest.raises(UnsupportedProblem, match=r"CuTe DSL compiles for .*, not for sm_88; use"):
        plan("cute_simt", target)
    assert plan("auto", target).backend == "cutile"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_architecture_has_several_spellings(arch):
    number = re.sub("[^0-9]", "", arch)
    for text in (arch, f"sm_{number}", f"sm{number}", number, arch.upper(), f" {arch} "):
        assert named_target(text).arch == arch


_LISTED = "name one that `unigemm targets` lists"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sm_100f", "not for its family; name sm_100a"),
        ("sm_120f", "not for its family; name sm_120a"),
        ("sm_80a", "for sm_80 itself; name sm_80"),
        ("sm_90f", "name sm_90a"),
        *((text, _LISTED) for text in ("sm_75", "sm_88", "sm_1000", "sm_90aa", "")),
        *((text, _LISTED) for text in ("sm_9²", "sm_٩٠", "9", "h1000", "x" * 999)),
    ],
)
def test_what_is_no_target_is_refused_with_what_would_be(text, why):
    with pytest.raises(UnsupportedProblem, match=re.escape(why)) as caught:
        named_target(text)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("value", [None, 90, 9.0, b"sm_90", ("sm_90a",)])
def test_a_target_is_named_by_a_string(value):
    with pytest.raises(UnsupportedProblem, match="by a string"):
        named_target(value)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_device_is_found_by_each_of_its_names(card):
    short = card.name.replace("NVIDIA ", "").replace("GeForce ", "")
    squeezed = short.replace(" ", "").replace("-", "").lower()
    for name in (card.name, short, squeezed, card.name.upper(), *card.other_names):
        found = named_target(name)
        assert (found.name, found.sm_count, found.arch) == (card.name, card.sm_count, card.arch)
    assert found.smem_per_block < found.smem_per_sm
    assert min(found.l2_bytes, found.clock_mhz, found.dram_gbs, found.tensor_flops) > 0


@pytest.mark.parametrize(
    ("name", "arch"),
    [("h100", "sm_90a"), ("NVIDIA H100 PCIe", "sm_90a"), ("rtx4090", "sm_89"), ("b200", "sm_100a")],
)
def test_devices_are_planned_for_by_their_own_figures(name, arch):
    large = unigemm.ArraySpec((8192, 8192), "float32")
    planned = unigemm.plan(large, large, target=name, keep=0)
    assert planned.target.arch == arch
    if name == "NVIDIA H100 PCIe":
        assert planned.predicted_us > unigemm.plan(large, large, target="h100", keep=0).predicted_us


@pytest.mark.parametrize("text", ["sm_90a", "h100", "RTX 4090", "cpu"])
def test_a_target_has_a_name_that_leads_back_to_it(text):
    target = named_target(text)
    assert named_target(name_of(target)) == target
    assert name_of(replace(target, sm_count=7)) == target.arch  # numbers of its own


def test_a_device_that_stands_for_its_architecture_is_that_architecture():
    for arch in ARCHITECTURES:
        target = named_target(arch)
        assert named_target(target.name) == target


INPUTS_OF_ADVICE = [
    ("float64", "ieee"), ("float32", "ieee"), ("float32", "tf32"), ("float32", "3xtf32"),
    ("bfloat16", "ieee"), ("float8_e4m3fn", "ieee"), ("int8", "ieee"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "precision"), INPUTS_OF_ADVICE)
def test_a_backend_that_a_reason_advises_takes_the_product(dtype, precision):
    a, b = unigemm.ArraySpec((256, 512), dtype), unigemm.ArraySpec((512, 384), dtype, "F")
    for arch in ARCHITECTURES:
        why = {}
        for name in COMPILING:
            try:
                unigemm.plan(a, b, target=arch, precision=precision, backend=name, keep=0)
            except unigemm.UnsupportedProblem as error:
                why[name] = str(error)
        for name, reason in why.items():
            advised = {*re.findall(r"use (?:backend=')?(\w+)", reason)} & {*COMPILING}
            assert not advised & why.keys(), f"{name} on {arch}: {reason}"
