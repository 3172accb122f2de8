"""The kernels of `unigemm.quantize` in the emulator: the same bits as the rule."""

from __future__ import annotations

import random

import numpy as np
import pytest
from quantize_cases import BLOCKS, RESULTS, assert_same, drawn, written_out

import unigemm
from unigemm import emulator

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
    from unigemm.runtime import rounding

    kept = cache.Cache(tmp_path, [])
    monkeypatch.setattr(cache, "default_cache", lambda: kept)
    monkeypatch.setattr(rounding, "_loaded", {})
    monkeypatch.setenv("UNIGEMM_COMPILE", "never")
    with (
        emulator.device("sm_90a"),
        pytest.raises(unigemm.BackendUnavailable, match="UNIGEMM_COMPILE is never"),
    ):
        unigemm.quantize(np.ones((3, 140), np.float32), "int8", block=(128, 128))
