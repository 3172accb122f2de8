"""`problem.canonical`: every product becomes one canonical form, proven by executing that form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import GUARD, Strided, cases, layouts

from unigemm.errors import OverlapError, ShapeMismatch
from unigemm.problem.canonical import Layout, broadcast_shape, canonical
from unigemm.problem.classes import classify_aux
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents


def layout_of(where: Strided, dtype, base=0):
    address = base + where.offset * dtype.itemsize
    return Layout(where.shape, where.strides, dtype, min(16, address & -address or 16))


def dense(shape, order="C"):
    flat = np.empty(shape, order=order)
    return tuple(s // 8 for s in flat.strides)


@settings(max_examples=400)
@given(case=cases(largest=9, negative=True), data=st.data())
def test_the_canonical_form_computes_the_product(case, data):
    if 0 in case.shape or case.k == 0:
        return
    d = case.d or data.draw(layouts(case.shape, negative=True))
    rng = np.random.default_rng(case.seed)
    a = rng.integers(-3, 4, case.a.length)
    b = rng.integers(-3, 4, case.b.length)
    out = np.full(d.length, 99)
    gemm = canonical(*(layout_of(x, case.dtype) for x in (case.a, case.b, d)))
    first, second = (b, a) if gemm.swapped else (a, b)
    starts = (case.b.offset, case.a.offset) if gemm.swapped else (case.a.offset, case.b.offset)
    e, (l0, l1) = gemm.extents, gemm.batch
    assert e.batch == l0 * l1
    grid = np.ogrid[:l1, :l0, : max(e.m, 1), : max(e.n, 1), : max(e.k, 1)]
    i1, i0, m, n, k = grid

    def at(strides, rows, columns):
        return strides[0] * rows + strides[1] * columns + strides[2] * i0 + strides[3] * i1

    for to_a, to_b, to_d in gemm.offsets:
        x = first[starts[0] + to_a + at(gemm.a_strides, m, k)]
        y = second[starts[1] + to_b + at(gemm.b_strides, k, n)]
        where = d.offset + to_d + at(gemm.d_strides, m, n)[..., 0]
        out[where] = (x * y).sum(-1)
    views = [
        np.lib.stride_tricks.as_strided(
            flat[where.offset :], where.shape, [s * 8 for s in where.strides]
        )
        for flat, where in ((a, case.a), (b, case.b), (out, d))
    ]
    np.testing.assert_array_equal(views[2], np.matmul(views[0], views[1]))
    assert (out[:GUARD] == 99).all()


@settings(max_examples=300)
@given(case=cases(largest=20, negative=True), base=st.sampled_from([0, 256, 8, 24]))
def test_alignment_and_majorness_are_what_they_claim(case, base):
    if 0 in case.shape or case.k == 0:
        return
    shape = case.d or Strided(case.shape, dense(case.shape), GUARD, 0)
    layouts_ = [layout_of(x, case.dtype, base) for x in (case.a, case.b, shape)]
    gemm = canonical(*layouts_)
    e = gemm.extents
    size = case.dtype.itemsize
    if gemm.swapped:
        layouts_[:2] = layouts_[1::-1]
    kinds = (gemm.problem.a, gemm.problem.b, gemm.problem.d)
    strides = (gemm.a_strides, gemm.b_strides, gemm.d_strides)
    extents = ((e.m, e.k), (e.k, e.n), (e.m, e.n))
    names = (("m", "k"), ("k", "n"), ("m", "n"))
    for index, (kind, steps) in enumerate(zip(kinds, strides, strict=True)):
        assert size <= kind.alignment <= 16
        if kind.major == "strided":
            assert kind.alignment == size
            continue
        unit = names[index].index(kind.major)
        assert steps[unit] == 1
        outer = [steps[1 - unit]] * (extents[index][1 - unit] > 1)
        outer += [s for s, extent in zip(steps[2:], gemm.batch, strict=True) if extent > 1]
        outer += [offset[index] for offset in gemm.offsets]
        assert layouts_[index].alignment % kind.alignment == 0
        assert all(s * size % kind.alignment == 0 for s in outer)
        if kind.alignment == 16:
            assert all(s >= 0 for s in steps)
    assert gemm.problem.d.major != "m"
    if gemm.problem.d.major == "n" and e.n > 1:
        assert e.n * size % gemm.problem.d.alignment == 0


@settings(max_examples=300)
@given(
    down=st.integers(-5, 5).map(lambda step: 8 * step) | st.integers(-40, 40),
    along=st.sampled_from([1, 1, 1, 0, -1, 7]),
    turned=st.booleans(),
    batch=st.lists(st.integers(0, 40), max_size=2),
    dtype=st.sampled_from([DType.INT8, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64]),
    base=st.sampled_from([16, 8, 4, 2, 1]),
)
def test_vectors_of_an_auxiliary_array_are_aligned_in_every_line_and_product(
    down, along, turned, batch, dtype, base
):
    strides = (along, down) if turned else (down, along)
    base = max(base, dtype.itemsize)
    found = classify_aux(Layout((7, 5), strides, dtype, base), (7, 5), strides, batch)
    assert found.along == "".join(name for name, step in zip("mn", strides, strict=True) if step)
    if found.matrix.major == "strided":
        assert found.matrix.alignment == dtype.itemsize
        return
    unit = "mn".index(found.matrix.major)
    assert strides[unit] == 1
    assert strides[1 - unit] >= 0, "lines that run backwards are strided"
    starts = [strides[1 - unit], *batch]
    assert all(start * dtype.itemsize % found.matrix.alignment == 0 for start in starts)
    assert base % found.matrix.alignment == 0


F32 = DType.FLOAT32


def spec(shape, strides=None, alignment=16):
    return Layout(shape, strides or dense(shape), F32, alignment)


def test_a_stack_times_one_matrix_is_one_product():
    gemm = canonical(spec((3, 8, 16)), spec((16, 4)), spec((3, 8, 4)))
    assert gemm.extents == Extents(24, 4, 16)


def test_stacks_with_matching_strides_fold_into_one_batch():
    gemm = canonical(spec((2, 3, 8, 16)), spec((2, 3, 16, 4)), spec((2, 3, 8, 4)))
    assert gemm.extents == Extents(8, 4, 16, 6)
    assert gemm.batch == (6, 1)
    assert len(gemm.offsets) == 1


def test_more_than_two_batch_dimensions_become_several_launches():
    a, b = spec((2, 1, 3, 1, 4, 8)), spec((1, 5, 1, 2, 8, 4))
    gemm = canonical(a, b, spec((2, 5, 3, 2, 4, 4)))
    assert len(gemm.offsets) * gemm.extents.batch == 60


def test_a_column_major_result_is_computed_as_its_transpose():
    gemm = canonical(spec((8, 16)), spec((16, 4)), spec((8, 4), (1, 8)))
    assert gemm.swapped
    assert gemm.extents == Extents(4, 8, 16)
    assert gemm.problem.d.major == "n"


def test_matrix_times_vector_writes_along_the_vector():
    gemm = canonical(spec((8, 16)), spec((16,)), spec((8,)))
    assert gemm.swapped
    assert gemm.extents == Extents(1, 8, 16)


@pytest.mark.parametrize(
    ("a", "b", "layout"),
    [
        ((16, 1), (4, 1), "nn"),
        ((1, 8), (4, 1), "tn"),
        ((16, 1), (1, 16), "nt"),
        ((1, 8), (1, 16), "tt"),
    ],
)
def test_layout_letters_are_those_of_blas(a, b, layout):
    gemm = canonical(spec((8, 16), a), spec((16, 4), b), spec((8, 4)))
    assert gemm.problem.layout == layout


def test_rows_of_d_that_end_within_16_bytes_are_no_tma_target():
    # Seen on an H200: a TMA store writes whole 16-byte units.
    gemm = canonical(spec((8, 16)), spec((16, 6)), spec((8, 6), (8, 1)))
    assert gemm.problem.d.alignment == 8


@pytest.mark.parametrize("stride", [-16, 0])
def test_rows_that_go_back_or_repeat_are_no_tma_source(stride):
    gemm = canonical(spec((8, 16), (stride, 1)), spec((16, 4)), spec((8, 4)))
    assert gemm.problem.a.alignment == 8


def test_an_operand_shared_by_a_stack_stays_a_tma_source():
    gemm = canonical(spec((3, 8, 16), (0, 16, 1)), spec((3, 16, 4)), spec((3, 8, 4)))
    assert gemm.problem.a.alignment == 16


@pytest.mark.parametrize("strides", [(0, 1), (1, 1), (3, 1), (4, 0)])
def test_an_output_that_overlaps_itself_is_refused(strides):
    with pytest.raises(OverlapError):
        canonical(spec((8, 16)), spec((16, 4)), spec((8, 4), strides))


def test_interleaved_outputs_without_overlap_are_taken():
    canonical(spec((2, 16)), spec((16, 3)), spec((2, 3), (3, 2)))


def test_batch_shapes_broadcast_as_numpy_says():
    assert broadcast_shape((3, 1), (1, 4)) == (3, 4)
    with pytest.raises(ShapeMismatch, match="3 against 4"):
        broadcast_shape((3,), (4,))


def test_an_output_whose_lines_run_backwards_has_no_majorness():
    a, b = spec((8, 16)), spec((16, 4))
    assert canonical(a, b, spec((8, 4))).problem.d.major == "n"
    for steps in ((-4, 1), (1, -8)):
        gemm = canonical(a, b, spec((8, 4), steps))
        assert gemm.problem.d.major == "strided"
        assert gemm.problem.d.alignment == 4
