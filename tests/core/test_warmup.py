"""`unigemm.record` and `unigemm.warmup`: kernels are there before they are needed."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import call_path
import numpy as np
import pytest
from call_path import WORDS, plans_for
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import unigemm
from unigemm import cache
from unigemm.cli.main import app
from unigemm.errors import (
    BackendUnavailable,
    CacheError,
    CompilationError,
    UnigemmError,
    UnsupportedProblem,
)
from unigemm.planning.registry import backend_named
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.support import env

LAYER = {"m": [1, 64], "n": 256, "k": 128, "dtype": "bfloat16", "layout": "nt"}


def key_of(plan):
    return backend_named(plan.backend).key(plan).digest


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from fake_gpu import install

    driver, fake = install(monkeypatch, tmp_path / "kernels")
    yield driver, fake
    call_path.forget_kernels()


def test_each_kernel_that_is_needed_is_noted_once_and_also_one_that_was_known(gpu, tmp_path):
    driver, _ = gpu
    a, b, row = driver.ones((3, 4)), driver.ones((4, 5)), driver.ones((5,))
    unigemm.matmul(a, b)
    file = tmp_path / "products.jsonl"
    file.write_text("of before\n")
    with unigemm.record(file) as plans:
        unigemm.matmul(a, b)
        assert len(file.read_text().splitlines()) == 1
        for _ in range(2):
            unigemm.matmul(a, b)
            unigemm.matmul(a, b, bias=row)
            unigemm.matmul(driver.ones((6, 4)), b)  # of the same kernel
        np.matmul(np.eye(2), np.eye(2))
        unigemm.matmul(np.eye(2), np.eye(2))
    unigemm.matmul(a, b, alpha=2.0)
    assert [plan.problem.epilogue is None for plan in plans] == [True, False]
    lines = file.read_text().splitlines()
    assert [unigemm.Plan.from_json(line) for line in lines] == plans
    assert not call_path.is_recording()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_products_go_on_where_their_lines_cannot_be_written(gpu, tmp_path):
    driver, _ = gpu
    a, b, row = driver.ones((3, 4)), driver.ones((4, 5)), driver.ones((5,))
    full = pytest.warns(unigemm.CacheWarning, match=r"/dev/full lacks .*No space left")
    with full, unigemm.record("/dev/full") as plans:
        unigemm.matmul(a, b)
        unigemm.matmul(a, b, bias=row)
    assert len(plans) == 2
    file = tmp_path / "moved" / "products.jsonl"
    file.parent.mkdir()
    with unigemm.record(file) as plans:  # a folder that comes back gets all lines
        unigemm.matmul(a, b)
        file.parent.rename(tmp_path / "away")
        unigemm.matmul(a, b, bias=row)
        (tmp_path / "away").rename(file.parent)
    assert [unigemm.Plan.from_json(line) for line in file.read_text().splitlines()] == plans
    for wrong in (tmp_path / "none" / "products.jsonl", tmp_path):
        refused = pytest.raises(CacheError, match="name a file in a folder that is there")
        with refused, unigemm.record(wrong):
            pass
    assert not call_path.is_recording()


def test_what_was_recorded_is_compiled_again_and_nothing_else(gpu, tmp_path, monkeypatch):
    driver, fake = gpu
    a, b, row = driver.ones((3, 4)), driver.ones((4, 5)), driver.ones((5,))
    file = tmp_path / "products.jsonl"
    with unigemm.record(file):
        unigemm.matmul(a, b)
        unigemm.matmul(a, b, bias=row)
    assert [made.cached for made in unigemm.warmup(file)] == [True, True]
    call_path.forget_kernels()
    empty = cache.Cache(tmp_path / "others", [])
    monkeypatch.setattr(cache, "default_cache", lambda: empty)
    fake.compiled.clear()
    said = []
    made = unigemm.warmup(file, report=lambda done, of: said.append((done, of)))
    assert [each.cached for each in made] == [False, False]
    assert said == [(0, 2), (1, 2), (2, 2)]
    monkeypatch.setenv("UNIGEMM_COMPILE", "never")
    unigemm.matmul(a, b)
    unigemm.matmul(a, b, bias=row)
    assert len(fake.compiled) == 2
    with pytest.raises(BackendUnavailable):
        unigemm.matmul(a, b, alpha=2.0)


def test_a_bundle_of_a_recorded_layer_of_experts_compiles_nothing(gpu, tmp_path, monkeypatch):
    from fake_gpu import host

    driver, fake = gpu
    up, down = driver.ones((3, 4, 8)), driver.ones((3, 8, 4))

    def layer(sizes):
        offsets = driver.ones((3,), "int32")
        host(offsets)[...] = np.cumsum(sizes)
        rows = driver.ones((10, 4))
        inner = unigemm.grouped_matmul(rows, up, offsets, activation="relu")
        outer = unigemm.grouped_matmul(inner, down, offsets)
        unigemm.grouped_matmul(outer, down.swapaxes(1, 2), offsets)  # backward
        unigemm.grouped_matmul(inner.T, outer, offsets)
        return host(outer)

    file, bundle = tmp_path / "products.jsonl", tmp_path / "bundle"
    with unigemm.record(file) as plans:
        layer((3, 0, 5))
    assert [plan.problem.groups.along for plan in plans] == ["m", "m", "m", "k"]
    monkeypatch.setattr("unigemm.cli.cache.default_cache", cache.default_cache)
    done = CliRunner().invoke(app, ["cache", "export", str(bundle), "--from", str(file)])
    assert done.exit_code == 0
    call_path.forget_kernels()
    bundled = cache.Cache(tmp_path / "others", [bundle])
    monkeypatch.setattr(cache, "default_cache", lambda: bundled)
    monkeypatch.setenv("UNIGEMM_COMPILE", "never")
    compiled = len(fake.compiled)
    for sizes in ((3, 0, 5), (1, 1, 8)):
        assert (layer(sizes)[: sum(sizes)] == 32).all()
    assert len(fake.compiled) == compiled


def test_an_error_of_one_kernel_is_raised_when_the_others_are_made(gpu, tmp_path):
    driver, fake = gpu
    a, b, row = driver.ones((3, 4)), driver.ones((4, 5)), driver.ones((5,))
    plans = [unigemm.plan(a, b, bias=row), unigemm.plan(a, b)]
    compile = fake.compile

    def fails(plan):
        if plan.problem.epilogue:
            raise CompilationError("planted")
        return compile(plan)

    fake.compile = fails
    with pytest.raises(CompilationError, match="planted"):
        unigemm.warmup(plans)
    assert len(fake.compiled) == 1


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_every_m_of_a_range_has_its_kernel(layout):
    last = 700
    spec = {"m": [1, last], "n": 4096, "k": 1024, "dtype": "bfloat16", "layout": layout}
    kernels = {key_of(plan) for plan in plans_for([spec], "h100", ["", "bias,gelu"])}
    dice = random.Random(5)
    for m in (1, 2, 64, 65, last, *(dice.randint(1, last) for _ in range(60))):
        for epilogue in ("", "bias,gelu"):
            words = {"layout": layout, "epilogue": epilogue, "tuned": True}
            plan = call_path.plan_of_words("h100", m, 4096, 1024, "bfloat16", **words)
            assert key_of(plan) in kernels, (m, epilogue)
    assert len(kernels) > 4


def test_products_are_planned_for_the_targets_that_are_named():
    a = unigemm.ArraySpec((64, 64), "float16")
    plan = unigemm.plan(a, a, target="h100", bias=unigemm.ArraySpec((64,), "float16"))
    specs = [plan, json.loads(plan.to_json()), {**LAYER, "m": 8, "epilogue": "bias"}]
    assert plans_for(specs[:2], None, None) == [plan]
    found = plans_for(specs, ["h100", "sm_100a", "RTX 4090"], ["silu"])
    assert {x.target.arch for x in found} == {"sm_90a", "sm_100a", "sm_89"}
    assert len(found) == 6
    assert all(x.problem.epilogue is not None for x in found)
    assert found[0] == plan


SCALED = {"m": [1, 200], "n": 1536, "k": 7168, "dtype": "float8_e4m3fn", "layout": "nt"}
SCALES = {"a": ("tensor", "row", "1x128", "128x128"), "b": ("tensor", "column", "1x128", "128x128")}


def test_products_in_words_have_scales_and_so_has_what_is_recorded(gpu, tmp_path):
    for of_a, of_b in (("row", "column"), ("1x128", "128x128"), ("128x128", "1x128")):
        (plan,) = plans_for([{**SCALED, "m": 200, "scale_a": of_a, "scale_b": of_b}], "h100", None)
        shapes = {"row": (200, 1), "1x128": (200, 56), "128x128": (2, 56)}
        turned = {"column": (1, 1536), "1x128": (56, 1536), "128x128": (56, 12)}
        scales = {"scale_a": shapes[of_a], "scale_b": turned[of_b]}
        assert (
            plan.problem
            == unigemm.plan(
                unigemm.ArraySpec((200, 7168), "float8_e4m3fn"),
                unigemm.ArraySpec((7168, 1536), "float8_e4m3fn", "F"),
                **{name: unigemm.ArraySpec(shape, "float32") for name, shape in scales.items()},
                target="h100",
            ).problem
        )
    driver, _ = gpu
    kind = np.dtype(np.float32)
    a, b = (driver.ones(s, numpy_dtype(DType.FLOAT8_E4M3FN)) for s in ((32, 256), (256, 8)))
    file = tmp_path / "products.jsonl"
    with unigemm.record(file):
        unigemm.matmul(a, b, scale_a=driver.ones((32, 2), kind), scale_b=driver.ones((2, 1), kind))
        unigemm.matmul(a, b, scale_a=driver.ones((32, 1), kind), scale_b=2.0)
    blocks, lines = plans_for(file, None, None)
    assert str(blocks.problem.scales) == "A scaled per 1x128, B per 128x128"
    assert lines.problem.epilogue is not None


def test_words_of_scales_reach_every_command_that_plans():
    for command in ("plan", "compile"):
        for of_a, of_b in zip(SCALES["a"], SCALES["b"], strict=True):
            words = ["--scale-a", of_a, "--scale-b", of_b, "--target", "cpu", "--json"]
            sizes = [command, "40", "30", "300", "--dtype", "float8_e4m3fn"]
            assert CliRunner().invoke(app, [*sizes, *words]).exit_code == 0
    words = ["plan", "40", "30", "300", "--dtype", "int8", "--target", "cpu", "--json"]
    found = CliRunner().invoke(app, [*words, "--scale-a", "row", "--scale-b", "column"])
    assert json.loads(found.stdout)["problem"]["d"]["dtype"] == "float32"
    twice = CliRunner().invoke(app, [*words, "--scale-a", "row", "--epilogue", "scale_a"])
    assert "leave out one of them" in str(twice.exception)


def test_words_of_quantised_results_reach_every_command_that_plans():
    sizes = ["40", "300", "64", "--dtype", "int8", "--scale-a", "row", "--target", "cpu", "--json"]
    for word, block in (("row", "row"), ("1x128", (1, 128))):
        a, b = unigemm.ArraySpec((40, 64), "int8"), unigemm.ArraySpec((64, 300), "int8")
        rows = unigemm.ArraySpec((40, 1), "float32")
        expected = unigemm.plan(a, b, scale_a=rows, quantize_out=block, target="cpu").to_dict()
        for command in ("plan", "compile"):
            found = CliRunner().invoke(app, [command, *sizes, "--quantize-out", word])
            assert found.exit_code == 0, found.output
        found = CliRunner().invoke(app, ["plan", *sizes, "--quantize-out", word])
        assert json.loads(found.stdout)["problem"] == json.loads(json.dumps(expected["problem"]))
        spec = {"m": 40, "n": 300, "k": 64, "dtype": "int8", "scale_a": "row"}
        (plan,) = plans_for([{**spec, "quantize_out": word}], "cpu", None)
        assert plan.to_dict()["problem"] == expected["problem"]


WRONG = {
    "quantised": ({**LAYER, "quantize_out": "128x128"}, "use one of 1x128, row"),
    "scale": ({**SCALED, "scale_a": "rows"}, "scale_a 'rows' is not known"),
    "no scale": ({**SCALED, "scale_b": [1]}, "use one of tensor, column"),
    "one side": ({**SCALED, "scale_b": "1x128"}, "both operands"),
    "nothing": ({}, "it has no dtype, k, m, n"),
    "word": ({**LAYER, "shape": 3}, "it has 'shape'"),
    "dtype": ({**LAYER, "dtype": "float31"}, "float31"),
    "layout": ({**LAYER, "layout": "xy"}, "layout 'xy'"),
    "epilogue": ({**LAYER, "epilogue": "swish"}, "'swish' is not known"),
    "number": ({**LAYER, "n": 0.5}, "n is 0.5"),
    "range": ({**LAYER, "m": [9, 3]}, "the first and the last M"),
    "ranges": ({**LAYER, "m": [1, 2, 3]}, "the first and the last"),
    "endless": ({**LAYER, "m": [1, 1 << 40]}, "at most"),
    "plan": ({"problem": {}}, "not a plan|plan"),
    "text": ("64 64 64", "is no product"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_product_is_refused_by_its_line(name, tmp_path):
    spec, said = WRONG[name]
    good = {**LAYER, "m": 8}
    with pytest.raises(UnsupportedProblem, match=rf"^specs\[1\]: .*({said})"):
        plans_for([good, spec], "h100", None)
    file = tmp_path / "products.jsonl"
    file.write_text(f"{json.dumps(good)}\n\n{json.dumps(spec)}\n")
    with pytest.raises(UnsupportedProblem, match=rf"^line 3 of .*jsonl: .*({said})"):
        plans_for(file, "h100", None)


def test_other_mistakes_are_sentences(tmp_path):
    file = tmp_path / "products.jsonl"
    file.write_text("{\n")
    with pytest.raises(UnsupportedProblem, match=r"line 1 of .* is no JSON"):
        unigemm.warmup(file, target="h100")
    with pytest.raises(UnsupportedProblem, match="pass a list"):
        unigemm.warmup(LAYER, target="h100")
    with pytest.raises(UnsupportedProblem, match=r"no architecture or device|not known"):
        unigemm.warmup([LAYER], target="h42")
    with pytest.raises(UnsupportedProblem, match="file is"), unigemm.record(3):
        pass
    assert not call_path.is_recording()


@pytest.mark.compile
def test_a_list_becomes_kernels_and_a_bundle_of_exactly_these(tmp_path, monkeypatch):
    backend = backend_named("cute_simt")
    if backend.compiler_missing() is not None:
        pytest.skip(backend.compiler_missing())
    kept = cache.Cache(tmp_path / "kernels", [])
    for module in (cache, __import__("unigemm.cli.cache", fromlist=["cache"])):
        monkeypatch.setattr(module, "default_cache", lambda: kept)
    file, bundle = tmp_path / "products.jsonl", tmp_path / "bundle"
    line = {"m": 24, "n": 64, "k": 32, "dtype": "float32", "backend": "cute_simt"}
    file.write_text(json.dumps(line))
    run = CliRunner().invoke
    words = [str(file), "--target", "sm_80"]
    early = run(app, ["cache", "export", str(bundle), "--from", *words])
    assert isinstance(early.exception, CacheError)
    assert f"run unigemm warmup {file} first" in str(early.exception)
    done = run(app, ["warmup", *words, "--json"])
    assert (done.exit_code, json.loads(done.output)["compiled"]) == (0, 1)
    other = unigemm.ArraySpec((64, 64), "float64")
    unigemm.compile(unigemm.plan(other, other, target="sm_80", backend="cute_simt"), kept)
    done = run(app, ["cache", "export", str(bundle), "--from", *words, "--json"])
    assert json.loads(done.output)["entries"] == 1
    (plan,) = plans_for(file, "sm_80", None)
    assert cache.Cache(tmp_path / "none", [bundle]).get(backend.key(plan)) is not None
    with pytest.raises(CacheError, match="--key and --from"):
        run(app, ["cache", "export", str(bundle), "--key", "12", "--from", *words],
            catch_exceptions=False)  # fmt: skip
    assert env.compiling() == "auto"


GOOD = {
    "words": {**LAYER, "m": 8},
    "grouped": {**LAYER, "m": 64, "groups": 4, "along": "m"},
    "range": {**LAYER, "m": [1, 3]},
}
ODD = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 2**70), st.floats(), st.text(max_size=4)),
    *(st.just(each) for each in ([], {}, [1, 2], ["bias"], {"a": 0}, "m", "f16", "1x128")),
)


@pytest.mark.parametrize("kind", GOOD)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_products_are_typed_errors_that_name_the_line(kind, data):
    """Any word of a product may hold anything: it is planned, or refused by its line."""
    spec = dict(GOOD[kind])
    for word in data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=2)):
        spec[word] = data.draw(ODD)
    try:
        plans_for([spec], "h100", None)
    except UnigemmError as error:
        said = str(error)
    else:
        said = "specs[0]: "
    assert said.startswith("specs[0]: ")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_files_are_typed_errors_that_name_the_line(tmp_path_factory, data):
    text = bytearray(b"\n".join(json.dumps({**LAYER, "m": m}).encode() for m in (8, 9)))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("lists") / "products.jsonl"
    file.write_bytes(text[: data.draw(st.integers(0, len(text)))])
    try:
        plans_for(file, "h100", None)
    except UnigemmError as error:
        said = str(error)
    else:
        said = "line 1 of "
    assert re.match(r"line [123] of |.* holds no product", said)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device")
def test_a_file_without_an_end_is_refused_by_its_line():
    with pytest.raises(UnsupportedProblem, match=r"^line 1 of /dev/zero is no JSON .*longer"):
        plans_for("/dev/zero", "h100", None)


def test_a_list_of_too_many_products_and_an_empty_one_are_refused(tmp_path, monkeypatch):
    file = tmp_path / "products.jsonl"
    file.write_text("\n \n")
    with pytest.raises(UnsupportedProblem, match=r"holds no product; record some"):
        plans_for(file, "h100", None)
    call_path.take_products(monkeypatch, 2)
    file.write_text((json.dumps({**LAYER, "m": 8}) + "\n") * 3)
    with pytest.raises(UnsupportedProblem, match=r"^line 3 of .* is one too many: .*ranges of m"):
        plans_for(file, "h100", None)
