"""`unigemm.grouped_matmul` on an emulated device: the host's side of it, from call to launch."""

from __future__ import annotations

import numpy as np
import pytest
from grouped_cases import FORMS, Sizes, ends, operands, reference, shapes

import unigemm
from unigemm import emulator
from unigemm.arrays.library import KNOWN
from unigemm.problem.dtypes import DType, numpy_dtype

pytest.importorskip("cutlass", reason="CuTe DSL is not installed")
UNEVEN = Sizes((3, 0, 5, 1), rest=2, other=6, inner=6)


@pytest.fixture
def device():
    with emulator.device("sm_80") as found:
        yield found


def multiply(form, a, b, found, *more, **options):
    if form == "rows":
        return unigemm.grouped_matmul(a, b, None, *more, rows=found, **options)
    return unigemm.grouped_matmul(a, b, found, *more, **options)


@pytest.mark.sample(8)
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("rest", ["zeros", "untouched"])
@pytest.mark.parametrize("integer", ["int32", "int64"])
@pytest.mark.parametrize("form", FORMS)
def test_a_bias_of_each_group_is_added_and_nothing_behind_them(
    device, form, integer, rest, order, layout
):
    a, b = operands(form, UNEVEN, np.float32, (layout, "rows"))
    found, shape = ends(form, UNEVEN).astype(integer), shapes(form, UNEVEN)[2]
    bias = np.arange(24, dtype="f4").reshape(4, 6) - 9
    rows = bias[:, :, None] if form == "n" else bias  # (G, M, 1)
    out = np.empty(shape, "f4")
    if order == "columns":
        out = np.empty((*shape[:-2], shape[-1], shape[-2]), "f4").swapaxes(-1, -2)
    kept = np.full(shape, 7.0) if rest == "untouched" else None

    def epilogue(acc, g, at):
        return np.maximum(acc + rows[g], 0)

    out[...] = 7
    multiply(form, a, b, found, out, bias=rows, activation="relu", rest=rest)
    np.testing.assert_array_equal(out, reference(form, a, b, found, epilogue, kept))


@pytest.mark.parametrize("form", ["m", "k"])
def test_one_call_is_known_for_all_that_offsets_may_say(device, form):
    table = KNOWN[np.ndarray].table
    a, b = (x.copy() for x in operands(form, Sizes((3, 0, 5, 1), other=6), np.float32))
    before = len(table)
    for sizes in ((3, 0, 5, 1), (0, 9, 0, 0), (0, 0, 0, 9), (2, 2, 2, 3)):
        offsets = np.cumsum(sizes).astype(np.int32)
        np.testing.assert_array_equal(multiply(form, a, b, offsets), reference(form, a, b, offsets))
    assert len(table) == before + 1
    multiply(form, a, b, np.array([7, 3, 99, -4], np.int32))  # not for the host to see
    assert len(table) == before + 1


@pytest.mark.parametrize("form", ["m", "k"])
def test_float8_has_a_scale_for_each_group(form):
    a, b = operands(form, UNEVEN, numpy_dtype(DType.FLOAT8_E4M3FN))
    scales = np.array([0.5, 8, 2, 4], "f4")
    offsets = ends(form, UNEVEN).astype(np.int32)
    expected = reference(form, a, b, offsets, lambda acc, g, at: acc * 2 * scales[g])
    with emulator.device("sm_90a"):
        for scale_a, scale_b in ((scales, np.full(1, 2, "f4")), (2.0, scales)):
            found = multiply(form, a, b, offsets, scale_a=scale_a, scale_b=scale_b)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(4, 6), (6,)])
def test_sums_of_results_are_of_each_group_or_of_all(device, shape):
    a, b = operands("m", UNEVEN, np.float32)
    total, sums = np.full(shape, np.nan, "f4"), np.zeros((4, 6))

    def epilogue(part, g, at):
        sums[g] = 2 * part.sum(0)
        return 2 * part

    expected = reference("m", a, b, UNEVEN.offsets, epilogue)
    offsets = UNEVEN.offsets.astype(np.int32)
    found = unigemm.grouped_matmul(a, b, offsets, bias_grad_out=total, alpha=2.0)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(total, sums if shape == (4, 6) else sums.sum(0))


@pytest.mark.parametrize("rest", ["zeros", "untouched"])
def test_k_of_nothing_is_a_sum_of_zeros_on_a_device_too(device, rest):
    s = Sizes((3, 1), rest=1, inner=0)
    a, b = operands("m", s, np.float32)
    out, bias = np.full((5, 5), 7, "f4"), np.arange(10, dtype="f4").reshape(2, 5)
    kept = out.copy() if rest == "untouched" else None
    multiply("m", a, b, s.offsets, out, rest=rest, bias=bias)
    expected = reference("m", a, b, s.offsets, lambda acc, g, at: acc + bias[g], kept)
    np.testing.assert_array_equal(out, expected)


def test_no_groups_need_no_kernel(device):
    none = np.zeros(0, np.int32)
    amax, out = np.full(1, 7, "f4"), np.full((4, 2), 7, "f4")
    a, b = np.ones((4, 3), "f4"), np.ones((0, 3, 2), "f4")
    unigemm.grouped_matmul(a, b, none, out, rest="untouched", alpha=2.0, amax_out=amax)
    assert (out == 7).all()
    assert amax[0] == 0
    assert not unigemm.grouped_matmul(a, b, none, out).any()


def test_what_no_kernel_takes_is_refused_with_every_backends_reason(device):
    a, b = operands("m", UNEVEN, np.float32)
    with pytest.raises(unigemm.UnsupportedProblem, match="cute_tcgen05"):
        unigemm.grouped_matmul(a, b, UNEVEN.offsets, backend="cute_tcgen05")
    with pytest.raises(unigemm.UnsupportedProblem, match="batch_invariant"):
        unigemm.grouped_matmul(a, b, UNEVEN.offsets, batch_invariant=True)
