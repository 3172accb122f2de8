"""Scales of 128 elements of K in cute_wgmma, in the emulator, against float64."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from block_factors import drawn
from grouped_scales import drawn_groups

import unigemm
from unigemm import emulator
from unigemm.backends.cute_wgmma.geometry import geometry
from unigemm.planning.config import Config

COOP = "cooperative"
#: Hopper's tensor cores keep 14 bits in their accumulators (docs/guide/precision.md).
NEAR = {"float32": 2.0**-11, "bfloat16": 2.0**-7}


def check(sizes, lines, plan=None, out="float32", **more):
    x = drawn(sizes, lines, **more)
    options = {"scale_a": x.scale_a, "scale_b": x.scale_b, "dtype": out}
    got = unigemm.matmul(x.a, x.b, **options, plan=plan)
    assert x.error(got) < NEAR[out], (sizes, lines, more)


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_scales_and_of_sizes(seed):
    rng = random.Random(seed)
    with emulator.device("sm_90a"):
        for lines in itertools.product((1, 128), repeat=2):
            stack = rng.choice([(), (2,)])
            most = 70 if stack else 150
            sizes = rng.randint(1, most), rng.randint(1, most), rng.choice([130, 256, 385])
            check(
                sizes, lines, out=rng.choice([*NEAR]), stack=stack, seed=seed,
                exponents=rng.random() < 0.5, apart=rng.random() < 0.5, major=rng.choice("kn"),
            )  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("lines", [(1, 128), (128, 1), (1, 1)])
@pytest.mark.parametrize("number", range(4))
def test_tiles_that_nobody_picked(lines, number):
    x = drawn((150, 264, 400), lines)
    scales = {"scale_a": x.scale_a, "scale_b": x.scale_b}
    with emulator.device("sm_90a"):
        plan = unigemm.plan(x.a, x.b, **scales, backend="cute_wgmma", keep=400)
        others = sorted(plan.alternatives, key=lambda each: repr(each.config))
        rng = random.Random(f"{lines} {number}")
        one = plan.taking(rng.choice(others))
        got = unigemm.matmul(x.a, x.b, **scales, plan=one)
        assert x.error(got) < NEAR["float32"], one.config


@pytest.mark.parametrize("lines", [(1, 128), (1, 1)])
@pytest.mark.parametrize("way", ["split_k", "cluster_k", "slice_k"])
def test_k_is_cut_with_scales_of_its_blocks(way, lines):
    x = drawn((23, 136, 1300), lines, exponents=way == "split_k", apart=True)
    scales = {"scale_a": x.scale_a, "scale_b": x.scale_b}
    with emulator.device("sm_90a"):
        plan = unigemm.plan(x.a, x.b, **scales, backend="cute_wgmma", keep=400)
        others = sorted(plan.alternatives, key=lambda each: repr(each.config))
        cut = [each for each in others if getattr(each.config, way) > 1]
        one = plan.taking(
            random.Random(way).choice(sorted(cut, key=lambda each: repr(each.config)))
        )
        got = unigemm.matmul(x.a, x.b, **scales, plan=one)
        assert x.error(got) < NEAR["float32"], one.config


@pytest.mark.parametrize("lines", [(1, 128), (128, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_an_operand_that_lies_across_k_is_multiplied_from_registers(lines, turned):
    """A along M, or B along N in the transposed product; TMA takes multiples of 16 bytes."""
    x = drawn((144, 272, 400), lines, **({"major": "n"} if turned else {"major_a": "m"}))
    scales = {"scale_a": x.scale_a, "scale_b": x.scale_b}
    with emulator.device("sm_90a"):
        plan = unigemm.plan(x.a, x.b, **scales, backend="cute_wgmma", keep=400)
        direct = [
            each
            for each in sorted(plan.alternatives, key=lambda each: repr(each.config))
            if geometry(each.config.oriented(plan.problem), each.config).fragments
        ]
        one = plan.taking(random.Random(f"{lines}").choice(direct))
        got = unigemm.matmul(x.a, x.b, **scales, plan=one)
        assert x.error(got) < NEAR["float32"], one.config


@pytest.mark.parametrize(("offset", "pad"), [(0, 0), (0, 4), (1, 0), (0, 3)])
def test_scales_of_four_blocks_are_read_at_once_wherever_they_begin(offset, pad):
    """They are where they are 16 aligned bytes; what lies between rows is not read."""
    x = drawn((70, 136, 1000), (1, 128))
    rows, blocks = x.scale_a.shape
    held = np.full(rows * (blocks + pad) + offset + 4, np.nan, np.float32)
    held = held[held.ctypes.data % 16 // 4 and 4 - held.ctypes.data % 16 // 4 :][offset:]
    scale = held[: rows * (blocks + pad)].reshape(rows, -1)[:, :blocks]
    scale[...] = x.scale_a
    with emulator.device("sm_90a"):
        given = {"scale_a": scale, "scale_b": x.scale_b, "dtype": "float32"}
        plan = unigemm.plan(x.a, x.b, **given, backend="cute_wgmma")
        short = replace(plan, config=Config((64, 136, 128), (1, 1), 4, (4, 1), schedule=COOP))
        got = unigemm.matmul(x.a, x.b, **given, plan=short)
    assert x.error(got) < NEAR["float32"]


def test_nan_of_one_block_does_not_reach_others():
    x = drawn((130, 136, 256), (128, 128))
    scale = x.scale_a.copy()
    scale[1, 1] = float("nan")
    with emulator.device("sm_90a"):
        got = unigemm.matmul(x.a, x.b, scale_a=scale, scale_b=x.scale_b)
    assert (got[128:] != got[128:]).all()
    assert abs(got[:128] - x.expected[:128]).max() < 2.0**-11 * x.magnitude.max()


@pytest.mark.parametrize("lines", [(1, 1), (1, 128)])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_pairs_of_a_gate_have_scales_of_their_own_columns(layout, lines):
    """In halves, neighbours of a tile are half of B apart."""
    x = drawn((70, 264, 300), lines, seed=2)
    given = {"scale_a": x.scale_a, "scale_b": x.scale_b, "dtype": "float32"}
    given |= {"activation": "swiglu", "gate_layout": layout}
    with emulator.device("sm_90a"):
        got = unigemm.matmul(x.a, x.b, **given, backend="cute_wgmma")
    expected = unigemm.matmul(x.a, x.b, **given)
    assert abs(got - expected).max() < 2.0**-10 * abs(expected).max()


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("form", "lines"),
    [("m", (1, 128)), ("n", (128, 1)), ("rows", (128, 128)), ("rows", (1, 128)), ("m", (1, 1))],
)
@pytest.mark.parametrize("number", range(3))
def test_groups_have_scales_of_blocks(form, lines, number):
    rng = random.Random(f"{form} {lines} {number}")
    sizes = [rng.randint(0, 40) for _ in range(4)]
    total = sum(sizes) + 9 if form != "rows" else max(sizes) + 3
    n, k = rng.choice([136, 203]), rng.choice([130, 300])
    x = drawn_groups(form, sizes, total, n, k, lines, number, exponents=number == 1)
    offsets, more = x.ends.get("offsets"), {"scale_a": x.scale_a, "scale_b": x.scale_b}
    more["rows"] = x.ends.get("rows")
    with emulator.device("sm_90a"):
        plan = unigemm.plan(
            x.a, x.b, **more, offsets=offsets, backend="cute_wgmma", keep=200, dtype="float32"
        )
        others = sorted(plan.alternatives, key=lambda each: repr(each.config))
        one = plan.taking(rng.choice(others)) if number else plan
        got = unigemm.grouped_matmul(x.a, x.b, offsets, dtype="float32", plan=one, **more)
    assert x.error(got) < NEAR["float32"], one.config


@pytest.mark.parametrize("lines", [(1, 1), (1, 128)])
@pytest.mark.parametrize("sizes", [(256, 0, 128, 60), (100, 0, 300, 44), (3, 512, 1)], ids=str)
def test_groups_of_k_have_scales_of_its_blocks(lines, sizes):
    """Counted from the first of all: a group may begin within a block, and share its scales."""
    x = drawn_groups("k", sizes, sum(sizes) + 9, 136, 70, lines, 1, exponents=sizes[0] == 3)
    a = x.a.copy()
    a[:, sum(sizes) :] = float("nan")  # behind the last group
    with emulator.device("sm_90a"):
        got = unigemm.grouped_matmul(
            a, x.b, x.ends["offsets"], dtype="float32", scale_a=x.scale_a, scale_b=x.scale_b
        )
    assert x.error(got) < NEAR["float32"]
