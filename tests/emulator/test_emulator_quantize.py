"""The kernels of `unigemm.quantize` in the emulator: the same bits as the rule."""

from __future__ import annotations

import json
import random

import call_path
import numpy as np
import pytest
from call_path import compile_many, plans_for, second_passes_of
from quantize_cases import BLOCKS, RESULTS, assert_same, drawn, written_out
from typer.testing import CliRunner

import unigemm
from unigemm import cache, emulator
from unigemm.cli.main import app

SHAPES = ((1, 1), (3, 130), (133, 129), (2, 5, 260), (2, 3, 2, 9))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("seed", range(3))
def test_kernels_give_the_bits_of_the_rule(block, seed):
    rng, draw = np.random.default_rng(seed), random.Random(f"{block} {seed}")
    source, order = draw.choice(["float32", "bfloat16", "float16"]), draw.choice("CCT")
    result = RESULTS[seed]
    with emulator.device("sm_90a"):
        for shape in draw.sample(SHAPES, 3):
            x = drawn(shape, source, rng, order=order)
            got = unigemm.quantize(x, result, block=block)
            assert_same(got, written_out(x, result, block))


@pytest.mark.parametrize(("shape", "block"), [((7, 0), None), ((7, 0), "row"), ((0, 7), None)])
def test_empty_arrays_have_scales_too(shape, block):
    with emulator.device("sm_90a"):
        q, scales = unigemm.quantize(np.ones(shape, np.float32), "int8", block=block)
    assert q.shape == shape
    assert (scales == 2.0**-126).all()


def test_any_strides_and_stacks_do():
    rng = np.random.default_rng(4)
    with emulator.device("sm_90a"):
        for order, block in (("apart", (1, 128)), ("T", (128, 128)), ("apart", None)):
            x = drawn((4, 3, 140), "float64", rng, order=order, special=block is not None)
            x = x[::2].transpose(1, 0, 2)
            assert_same(unigemm.quantize(x, "int8", block=block), written_out(x, "int8", block))


def test_one_launch_rounds_an_array_but_for_one_scale():
    x = np.ones((5, 300), np.float32)
    with emulator.device("sm_90a") as gpu:
        for block, launches in (("row", 1), ((1, 128), 1), ((128, 128), 1), (None, 4)):
            gpu.launches.clear()
            unigemm.quantize(x, "int8", block=block)
            assert len(gpu.launches) == launches


def test_a_gpu_without_the_instructions_says_so():
    with (
        emulator.device("sm_80"),
        pytest.raises(unigemm.UnsupportedProblem, match=r"sm_80 has no instructions.*use int8"),
    ):
        unigemm.quantize(np.ones((2, 3), np.float32), "e4m3")


def test_nothing_is_compiled_where_that_is_forbidden(monkeypatch, tmp_path):
    from unigemm import cache

    kept = cache.Cache(tmp_path, [])
    monkeypatch.setattr(cache, "default_cache", lambda: kept)
    call_path.forget_kernels()
    monkeypatch.setenv("UNIGEMM_COMPILE", "never")
    with (
        emulator.device("sm_90a"),
        pytest.raises(unigemm.BackendUnavailable, match="UNIGEMM_COMPILE is never"),
    ):
        unigemm.quantize(np.ones((3, 140), np.float32), "int8", block=(128, 128))


def test_a_bundle_of_what_was_recorded_has_what_rounds_arrays(tmp_path, monkeypatch):
    rng = np.random.default_rng(6)
    x, w = (rng.normal(size=size).astype("f4") for size in ((5, 24), (24, 16)))

    def layer():
        found = unigemm.matmul(x, w, quantize_out="row", dtype="int8", backend="cute_simt")
        return *found, *unigemm.quantize(x, "int8", block=(1, 128))

    file, bundle = tmp_path / "needed.jsonl", tmp_path / "bundle"
    with emulator.device("sm_80"):
        with unigemm.record(file) as needed:
            expected = layer()
        product, second_pass, rounding = unigemm.warmup(file)
        assert product.cached
        assert second_pass.cached
        assert rounding.cached
        kept = cache.default_cache()
        monkeypatch.setattr("unigemm.cli.cache.default_cache", lambda: kept)
        done = CliRunner().invoke(app, ["cache", "export", str(bundle), "--from", str(file)])
        assert done.exit_code == 0, done.output
        bundled = cache.Cache(tmp_path / "none", [bundle])
        monkeypatch.setattr(cache, "default_cache", lambda: bundled)
        monkeypatch.setenv("UNIGEMM_COMPILE", "never")
        call_path.forget_all()
        for got, wanted in zip(layer(), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    roundings = [each for each in needed if not isinstance(each, unigemm.Plan)]
    assert [str(each) for each in roundings] == [
        "float32 to int8, a scale per row",
        "float32 to int8, a scale per 1x128",
    ]
    text = roundings[0].to_json()
    assert plans_for([json.loads(text)], None, None) == roundings[:1]
    (other,) = plans_for(roundings[:1], "sm_90a", None)
    assert (other.kind, other.target.arch) == (roundings[0].kind, "sm_90a")


def test_a_second_pass_is_compiled_where_only_its_product_is_there(tmp_path, monkeypatch):
    x, w = (unigemm.ArraySpec(size, "float32") for size in ((5, 24), (24, 16)))
    plan = unigemm.plan(x, w, quantize_out="row", dtype="int8", backend="cute_simt", target="sm_80")
    bundle, product = tmp_path / "bundle", unigemm.compile(plan).entry
    cache.default_cache().export_bundle(bundle, digests=[product.digest])
    other = cache.Cache(tmp_path / "other", [bundle])
    monkeypatch.setattr(cache, "default_cache", lambda: other)
    assert len(list(compile_many([plan]))) == 1
    (second_pass,) = second_passes_of(plan)
    assert other.get(second_pass.key) is not None


def test_what_a_product_in_words_needs_beside_its_kernel_is_named():
    words = {"m": 40, "n": 16, "k": 32, "dtype": "float16", "quantize_out": "row"}
    product, second = plans_for([words], "h100", None)
    assert product.problem.quantized_rows is not None
    assert str(second) == "float32 to float8_e4m3fn, a scale per row"
    assert second.target.arch == "sm_90a"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantize": {"source": "float32"}}, "missing required field"),
        ({"quantize": {"source": "float31"}}, "float31"),
        ({"quantize": 3}, "no object"),
        ({"target": "h42"}, "not known"),
        ({"target": 3}, "no object"),
        ({"more": 1}, "'more'"),
    ],
)
def test_what_is_no_kernel_that_rounds_is_refused_by_its_index(change, said):
    words = {"m": 40, "n": 16, "k": 32, "dtype": "float16", "quantize_out": "row"}
    sound = plans_for([words], "h100", None)[1].to_dict()
    with pytest.raises(unigemm.UnsupportedProblem, match=r"specs\[0\]: .*" + said):
        plans_for([{**sound, **change}], None, None)
