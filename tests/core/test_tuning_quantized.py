"""Tuning of products whose results are quantised: values and scales are checked together."""

from __future__ import annotations

import call_path
import numpy as np
import pytest
from fake_gpu import host
from stopwatch import TILES, arrays, timed_calls

import unigemm
from bench.host import HostDevice
from unigemm.planning import tuned_plans
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.tuning.operands import call_of

BLOCKS = ("row", (1, 128))
RESULTS = ("float8_e4m3fn", "float8_e5m2", "int8")
M, N, K = 21, 300, 64


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path))
    tuned_plans.forget()
    yield
    tuned_plans.forget()


def spec(shape, dtype="float32"):
    return unigemm.ArraySpec(shape, dtype)


def made(a, b, **given):
    plan = unigemm.plan(a, b, **given, target="cpu")
    request = call_path.request(
        a, b, operation="grouped" if "offsets" in given else "matmul", **given
    )
    return plan, call_of(plan, request).operands(HostDevice())


def check(plan, checked):
    """Hold a right call to be right, and one of each spoilt result to be wrong."""
    x = checked.fresh()
    assert not checked.ratio(x) <= 1  # nothing was written
    x.call(plan)()
    assert checked.ratio(x) <= 1
    d, scales = x.out, x.more_out[0]
    kept = scales[0].copy()
    scales[0] *= 1.25
    assert checked.ratio(x) > 1
    scales[0] = kept
    d[0, -1] = 0 if abs(float(d[0, -1])) > 30 else 100
    assert checked.ratio(x) > 1


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_right_results_pass_and_others_do_not(kind, result, block):
    more = {"scale_a": 0.5} if kind == "int8" else {}
    more |= {"bias": spec((N,)), "activation": "gelu"} if result == "int8" else {}
    given = {"quantize_out": block, "dtype": result, **more}
    check(*made(spec((M, K), kind), spec((K, N), kind), **given))


@pytest.mark.parametrize("block", BLOCKS)
def test_those_of_groups_are_checked_group_by_group(block):
    given = {"offsets": spec((3,), "int64"), "quantize_out": block}
    check(*made(spec((M, K)), spec((3, K, N)), **given))


@pytest.mark.parametrize("block", BLOCKS)
def test_what_was_measured_is_taken_for_calls_like_it_and_no_others(block):
    a, b = spec((M, K)), spec((K, N))
    plan = unigemm.autotune(a, b, quantize_out=block, budget=1e-3, device=HostDevice())
    assert plan.measured_us > 0
    assert unigemm.plan(a, b, quantize_out=block) == plan
    assert not unigemm.plan(a, b, dtype="float8_e4m3fn", alpha=1.0).measured_us
    other = {"row": (1, 128), (1, 128): "row"}[block]
    assert not unigemm.plan(a, b, quantize_out=other).measured_us


def test_scales_of_rows_that_several_groups_share_are_left_to_the_model():
    given = {"offsets": spec((2,), "int64"), "quantize_out": "row", "device": HostDevice()}
    with pytest.raises(unigemm.UnsupportedProblem, match=r"columns are divided.*the transpose"):
        unigemm.autotune(spec((2, M, K)), spec((K, N)), **given)


@pytest.fixture
def stopwatch(monkeypatch, tmp_path):
    pytest.importorskip("cupy")
    call_path.round_on_host(monkeypatch)
    yield from timed_calls(monkeypatch, tmp_path)


@pytest.mark.parametrize("bring", [False, True])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_first_call_measures(stopwatch, block, bring):
    a, b = arrays(stopwatch.driver)
    kind = numpy_dtype(DType.INT8)
    out = (stopwatch.driver.ones((32, 8), kind), stopwatch.driver.ones((32, 1))) if bring else None

    def call():
        stopwatch.launched.clear()
        d, scales = unigemm.matmul(a, b, out, quantize_out=block, dtype="int8")
        np.testing.assert_allclose(host(d) * host(scales), 16, rtol=1e-6)
        return stopwatch.launched

    with unigemm.autotuning():
        assert {*call()} == {*TILES.values()}
        assert call() == [TILES["third"]]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_fast_kernel_that_writes_nothing_loses(stopwatch, block):
    stopwatch.wrong = (TILES["third"],)
    a, b = arrays(stopwatch.driver)
    given = {"quantize_out": block, "dtype": "int8", "device": stopwatch, "budget": 1e-3}
    with pytest.warns(unigemm.TuningWarning, match="its result is wrong"):
        assert unigemm.autotune(a, b, **given).config.tile == TILES["pick"]
