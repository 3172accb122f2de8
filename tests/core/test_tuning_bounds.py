"""The bounds by which tuning judges results with epilogues: right ones pass, wrong ones do not."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import call_path
import numpy as np
import pytest
from call_path import scales_of_words

sys.path.insert(0, str(Path(__file__).parents[2]))

import unigemm
from bench.host import HostDevice
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.tuning import expected
from unigemm.tuning.intervals import Interval, interval_operations, nearest
from unigemm.tuning.measure import Workload
from unigemm.tuning.operands import call_of
from unigemm.tuning.sweep import operands_of, starts

M, N, K = 24, 16, 300
F32, BF16 = DType.FLOAT32, DType.BFLOAT16


def spec(shape, dtype="float32", **options):
    return unigemm.ArraySpec(shape, dtype, **options)


def clamped(acc, v, s):
    return np.where(acc > v, np.minimum(acc, np.maximum(s, v)), np.floor(v)), acc - v


ROW, COLUMN, FULL = spec((N,)), spec((M, 1)), spec((M, N))
EPILOGUES = {
    "bias, gelu_tanh": {"bias": ROW, "activation": "gelu_tanh"},
    "column, gelu": {"bias": COLUMN, "activation": "gelu"},
    "all": {"alpha": 2.0, "beta": 0.5, "c": FULL, "bias": ROW, "activation": "silu",
            "preact_out": FULL, "scale_d": 0.5, "amax_out": spec((1,))},
    "on the device": {"c": spec((M, N), order="F"), "alpha": spec((1,)), "beta": spec(())},
    "gradient": {"activation": "dgelu_tanh", "preact": FULL},
    "swiglu": {"activation": "swiglu", "gate_layout": "interleaved", "bias": ROW},
    "halves": {"activation": "geglu", "gate_layout": "halves", "preact_out": FULL},
    "columns' gradients": {"activation": "dsilu", "preact": FULL, "bias_grad_out": ROW},
    "rows' gradients": {"bias": ROW, "activation": "relu", "bias_grad_out": COLUMN},
    "a function": {"epilogue": clamped, "epilogue_args": {"v": COLUMN, "s": 3.0}},
    "NaN": {"epilogue": lambda acc: np.log(acc) / acc},
}  # fmt: skip
TYPES = [
    (F32, None),
    (BF16, None),
    (DType.FLOAT16, F32),
    (DType.FLOAT64, None),
    (F32, DType.INT8),
    (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2),
    (DType.INT8, DType.INT8),
]


def computed(name, dtype=F32, into=None, **more):
    """Return operands, a set of them that the CPU backend has multiplied, and its plan."""
    epilogue = {**EPILOGUES.get(name, {}), **more}
    work = Workload(M, N, K, dtype, "nt", into=into, arguments=tuple(epilogue.items()))
    (plan,), _ = starts(work, ("numpy",), "cpu")
    device = HostDevice()
    device.l2_bytes = 1
    found = operands_of(work, [plan], device)
    arrays = found.fresh()
    assert not found.ratio(arrays) <= 1  # nothing is computed yet
    arrays.call(plan)()
    return found, arrays, plan


@pytest.mark.parametrize(("dtype", "into"), TYPES, ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_what_is_right_lies_within_its_bounds(name, dtype, into):
    found, arrays, _ = computed(name, dtype, into)
    assert found.ratio(arrays) <= 1


@pytest.mark.parametrize("name", sorted(EPILOGUES.keys() - {"NaN"}))
def test_one_element_that_is_wrong_lies_outside(name):
    found, arrays, _ = computed(name)
    for each in arrays.results.values():
        at = (-1,) * each.ndim
        before = each[at].copy()
        for wrong in (before + 0.02 + 0.002 * abs(before), np.nan, np.inf):
            each[at] = wrong
            assert found.ratio(arrays) > 1
        each[at] = before
    assert found.ratio(arrays) <= 1


OTHERS = {
    "another formula of GELU": ("bias, gelu_tanh", {"activation": "gelu"}),
    "no bias": ("bias, gelu_tanh", {"bias": 0.0}),
    "another slope": ("gradient", {"activation": "dsilu"}),
    "neighbours for halves": ("halves", {"gate_layout": "interleaved"}),
    "beta forgotten": ("all", {"beta": 1.0}),
    "alpha forgotten": ("all", {"alpha": 1.0}),
    "scale_d forgotten": ("all", {"scale_d": 1.0}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_computation_lies_outside(name):
    one, change = OTHERS[name]
    found, arrays, _ = computed(one)
    other = replace(arrays, arguments={**arrays.arguments, **change})
    assert found.ratio(arrays) <= 1
    unigemm.matmul(other.a, other.b, other.out, **other.arguments)
    assert found.ratio(other) > 1


def test_scales_are_in_the_bounds_of_a_product_without_an_epilogue():
    found, arrays, plan = computed("", DType.FLOAT8_E4M3FN, BF16, scale_a=3.0, scale_b=spec((1,)))
    assert found.ratio(arrays) <= 1
    replace(arrays, scaling={"scale_a": 2.0, **arrays.scaling, "scale_b": 1.0}).call(plan)()
    assert found.ratio(arrays) > 1


FINE = list(product(("1x128", "128x128"), ("1x128", "128x128"), ("", ":float8_e8m0fnu")))


@pytest.mark.parametrize("name", ["", "bias, gelu_tanh"])
@pytest.mark.parametrize(("of_a", "of_b", "kind"), FINE)
def test_scales_of_blocks_are_in_the_bounds_each_for_its_elements(name, of_a, of_b, kind):
    operands = spec((M, K), "float8_e4m3fn"), spec((K, N), "float8_e4m3fn")
    given = scales_of_words(of_a + kind, of_b + kind, *operands)
    found, arrays, plan = computed(name, DType.FLOAT8_E4M3FN, BF16, **given)
    assert found.ratio(arrays) <= 1
    for which in ("scale_a", "scale_b"):
        turned = arrays.scaling[which].copy()
        along = -1 if which == "scale_a" else -2
        turned[...] = np.roll(turned, 1, along)  # those of the next 128 elements of K
        replace(arrays, scaling={**arrays.scaling, which: turned}).call(plan)()
        assert found.ratio(arrays) > 1


@pytest.mark.parametrize("kind", [DType.FLOAT8_E4M3FN, DType.INT8], ids=str)
def test_scales_of_lines_are_in_the_bounds(kind):
    operands = spec((M, K), kind), spec((K, N), kind)
    found, arrays, plan = computed("", kind, **scales_of_words("row", "column", *operands))
    assert found.ratio(arrays) <= 1
    assert arrays.out.dtype == ("float32" if kind is DType.INT8 else numpy_dtype(BF16))
    arrays.arguments["scale_a"][...] *= 2
    assert found.ratio(arrays) <= 1  # they are known by now
    arrays.call(plan)()
    assert found.ratio(arrays) > 1


def test_c_that_is_out_is_drawn_anew_for_each_check_and_accumulated_once():
    a, b, out = spec((M, K)), spec((K, N)), spec((M, N), order="F")
    plan = unigemm.plan(a, b, out, c=out, target="cpu")
    device = HostDevice()
    device.l2_bytes = 1
    found = call_of(plan, call_path.request(a, b, out, c=out)).operands(device)
    for _ in range(2):
        arrays = found.fresh()
        assert arrays.arguments["c"] is arrays.out
        arrays.call(plan)()
        assert found.ratio(arrays) <= 1
        arrays.call(plan)()  # a second time
        assert found.ratio(arrays) > 1
    assert len({id(each.out) for each in found.sets}) == len(found.sets)


def test_a_large_result_is_checked_in_rows_of_each_stretch():
    rows = expected._rows((3, 5000, 4096))
    assert (rows[0], rows[-1]) == (0, 4999)
    assert 3 * len(rows) * 4096 <= expected._ELEMENTS
    assert list(rows) == sorted({*rows})
    assert max(b - a for a, b in pairwise(rows)) < 2 * 5000 / len(rows) + 2
    assert expected._rows((2, 1 << 22)) == (0, 1)
    assert expected._rows((1, 1 << 22)) == (0,)


def test_the_largest_of_some_rows_bounds_the_largest_of_all_from_below(monkeypatch):
    monkeypatch.setattr(expected, "_ELEMENTS", 4 * N)
    found, arrays, _ = computed("all")
    largest = arrays.arguments["amax_out"]
    assert found.ratio(arrays) <= 1
    largest *= 2  # another row may have it
    assert found.ratio(arrays) <= 1
    largest[...] = 0
    assert found.ratio(arrays) > 1


def test_gradients_of_some_rows_are_checked_and_those_over_rows_only_of_all(monkeypatch):
    monkeypatch.setattr(expected, "_ELEMENTS", 4 * N)
    for name, is_checked in (("rows' gradients", True), ("columns' gradients", False)):
        found, arrays, _ = computed(name)
        assert found.ratio(arrays) <= 1
        arrays.arguments["bias_grad_out"][...] += 1
        assert (found.ratio(arrays) > 1) == is_checked


def ends(low, high):
    return Interval(np.float64(low), np.float64(high))


def test_intervals_hold_what_overflows_on_the_way_and_what_cannot_be_told():
    of = interval_operations(F32, quick=False, halves=False)
    high = of["exp"](ends(100, 101))  # infinite in float32
    assert high.high == np.inf
    logistic = of["div"](ends(1, 1), of["add"](ends(1, 1), high))
    assert 0 <= logistic.low <= logistic.high < 1e-37
    unknown = of["sub"](high, high)
    assert np.isnan(unknown.low)
    with np.errstate(invalid="ignore"):
        assert np.isnan(of["log"](ends(-1, 2)).low)
    assert np.isnan(of["div"](ends(1, 2), ends(-1, 1)).low)
    floor = of["floor"](ends(0.9, 1.1))
    assert (floor.low, floor.high) == (0, 1)


def test_a_condition_that_is_not_certain_takes_both_ways():
    of = interval_operations(F32, quick=False, halves=False)
    yes, no = ends(5, 6), ends(1, 2)
    for x, wanted in ((ends(1, 2), (1, 2)), (ends(4, 5), (5, 6)), (ends(2, 4), (1, 6))):
        found = of["where"](of["lt"](ends(3, 3), x), yes, no)
        assert (found.low, found.high) == wanted
        other = of["where"](of["not"](of["le"](x, ends(3, 3))), yes, no)
        assert (other.low, other.high) == wanted


def test_only_results_of_16_bits_may_have_the_error_of_a_quick_tanh():
    widths = {}
    for quick in (False, True):
        found = interval_operations(F32, quick, halves=False)["tanh"](ends(1, 1))
        widths[quick] = float(found.high - found.low)
    assert widths[False] < 1e-5 < 1e-3 < widths[True] < 3e-3


@pytest.mark.parametrize(
    ("dtype", "value", "wanted"),
    [
        ("float8_e4m3fn", 1e9, 448),
        ("float8_e5m2", -1e9, -57344),
        ("int8", 2.5, 2),
        ("int8", 300, 127),
        ("int32", -1e12, -(2**31)),
        ("float16", 1e6, np.inf),
        ("bfloat16", 1.004, 1.0078125),
    ],
)
def test_bounds_are_rounded_as_results_are(dtype, value, wanted):
    assert nearest([value], DType(dtype))[0] == wanted
