"""What every product is held against: guarded buffers, float64 references, element-wise bounds.

A `Strided` says where an array lies in a flat buffer; a `Lib` puts that buffer into a library. So
one case runs on NumPy, PyTorch, CuPy and what else there is, on the host and on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import unigemm
from unigemm.problem.dtypes import (
    FLOAT8,
    DType,
    accumulator,
    numpy_dtype,
    output_dtypes,
    unit_roundoff,
)
from unigemm.tuning.measure import error_factor

GUARD = 64  # elements before and after every array that must stay as they were
POISON = {8: 0x7FF4DEAD_BEEF1234, 4: 0x7FA5BEEF, 2: 0x7FB5, 1: 0x7F}  # NaNs, mostly with a payload
#: What every backend multiplies.
EVERYWHERE = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True)
class Strided:
    """An array in a flat buffer: extents, strides and offset, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    length: int


def lay_out(shape, order, pads, step, shift, negative=()):
    """Place an array: dimensions fastest first in `order`, with `pads` between their lines."""
    strides = [0] * len(shape)
    reach = step
    for dimension, pad in zip(order, pads, strict=True):
        strides[dimension] = reach
        reach = reach * max(shape[dimension], 1) + pad
    offset = GUARD + shift
    for dimension in negative:
        offset += strides[dimension] * max(shape[dimension] - 1, 0)
        strides[dimension] = -strides[dimension]
    return Strided(tuple(shape), tuple(strides), offset, reach + 2 * GUARD + shift)


def compact(shape):
    order = tuple(reversed(range(len(shape))))
    return lay_out(shape, order, (0,) * len(shape), 1, 0)


@st.composite
def layouts(draw, shape, *, negative=False, repeats=False):
    """Any strides that a library can express: transposes, slices, steps, offsets, broadcasts."""
    dims = len(shape)
    order = list(range(dims - 1, -1, -1))
    if dims > 1 and draw(st.booleans()):
        order[0], order[1] = order[1], order[0]
    if dims > 2 and draw(st.booleans()):
        order[2:] = draw(st.permutations(order[2:]))
    if draw(st.booleans()):
        pads = [0] * dims  # dense
        step = 1
        shift = 0
    else:
        pads = [draw(st.sampled_from([0, 1, 2, 3, 4, 8, 16])) for _ in order]
        step = draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
        shift = draw(st.integers(0, 9))
    backwards = [d for d in range(dims) if negative and draw(st.integers(0, 3)) == 0]
    placed = lay_out(shape, order, pads, step, shift, backwards)
    if repeats and draw(st.integers(0, 5)) == 0:
        still = draw(st.sampled_from(range(dims)))  # a broadcast dimension
        strides = tuple(0 if d == still else s for d, s in enumerate(placed.strides))
        placed = replace(placed, strides=strides)
    return placed


@dataclass(frozen=True)
class Case:
    """One product: layouts of A, B and (with `out=`) of D, and its dtypes.

    B has A's dtype unless `b_dtype` says otherwise.
    """

    a: Strided
    b: Strided
    d: Strided | None
    shape: tuple[int, ...]
    dtype: DType
    out_dtype: DType
    exact: bool
    seed: int
    b_dtype: DType | None = None

    @property
    def k(self):
        return self.a.shape[-1]

    @property
    def dtypes(self):
        return {"a": self.dtype, "b": self.b_dtype or self.dtype}


def result_shape(a, b):
    return np.matmul(np.empty(a, np.int8), np.empty(b, np.int8)).shape


@st.composite
def cases(draw, *, largest=70, dtypes=EVERYWHERE, negative=False, batches=True):
    """Draw a product with awkward sizes, strides, offsets and batches."""
    sizes = st.one_of(
        st.integers(1, largest),
        st.sampled_from([0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, largest]),
    )
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    exact = draw(st.booleans())
    if exact:
        k = min(k, 60)  # results stay below 256, which bfloat16 holds exactly
    a_batch, b_batch = (), ()
    if batches:
        batch = draw(st.lists(st.integers(1, 3), max_size=3))
        cut_a, cut_b = draw(st.integers(0, len(batch))), draw(st.integers(0, len(batch)))
        if batch and cut_a and cut_b:
            cut_a = 0
        a_batch = tuple(1 if draw(st.integers(0, 3)) == 0 else e for e in batch[cut_a:])
        b_batch = tuple(1 if draw(st.integers(0, 3)) == 0 else e for e in batch[cut_b:])
    a_shape, b_shape = (*a_batch, m, k), (*b_batch, k, n)
    if draw(st.integers(0, 5)) == 0:
        a_shape = (k,)
    if draw(st.integers(0, 5)) == 0:
        b_shape = (k,)
    shape = result_shape(a_shape, b_shape)
    dtype = draw(st.sampled_from(dtypes))
    with_out = draw(st.booleans()) and bool(shape)
    return Case(
        a=draw(layouts(a_shape, negative=negative, repeats=True)),
        b=draw(layouts(b_shape, negative=negative, repeats=True)),
        d=draw(layouts(shape, negative=negative)) if with_out else None,
        shape=shape,
        dtype=dtype,
        out_dtype=draw(st.sampled_from(output_dtypes(dtype))),
        exact=exact,
        seed=draw(st.integers(0, 2**32 - 1)),
        b_dtype=draw(st.sampled_from(FLOAT8)) if dtype in FLOAT8 else None,
    )


def flat_poison(length, dtype):
    native = numpy_dtype(dtype)
    return np.full(length, POISON[native.itemsize], f"u{native.itemsize}").view(native)


def strided_view(flat, where):
    """Return a NumPy view; it may have negative strides, and it keeps the buffer."""
    return np.ndarray(
        where.shape,
        flat.dtype,
        flat.view(f"u{flat.itemsize}").data,  # ml_dtypes have no buffer of their own
        where.offset * flat.itemsize if math.prod(where.shape) else 0,
        tuple(s * flat.itemsize for s in where.strides),
    )


def fill(flat, where, rng, exact):
    """Put random numbers where the array lies; everything between stays poison."""
    view = strided_view(flat, where)
    if exact:
        view[...] = rng.integers(-1, 3, where.shape).astype(flat.dtype)
    else:
        whole = flat.dtype == np.int8
        values = rng.integers(-128, 128, where.shape) if whole else rng.standard_normal(where.shape)
        view[...] = values.astype(flat.dtype)
    return view


def reference(a, b):
    """Return A B and |A| |B| in float64."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.asarray(x @ y), np.asarray(np.abs(x) @ np.abs(y))


def error_bound(expected, magnitude, k, dtype, out_dtype, precision="ieee"):
    """Bound each element: `error_factor` of |A| |B|, and one rounding of D."""
    bound = error_factor(k, dtype, precision) * magnitude
    if out_dtype is not accumulator(dtype):
        tiny = {DType.FLOAT16: 2.0**-25, DType.BFLOAT16: 2.0**-134}.get(out_dtype, 0.0)
        bound = bound + 1.01 * unit_roundoff(out_dtype) * np.abs(expected) + tiny
    return bound


def assert_product(got, a, b, dtype, out_dtype, exact, precision="ieee", factor=1.0):
    """Compare with `factor`, a power of two, times the product."""
    expected, magnitude = (factor * x for x in reference(a, b))
    got = np.asarray(got, np.float64)
    assert got.shape == expected.shape
    if dtype is DType.INT8:
        expected = (expected + 2.0**31) % 2.0**32 - 2.0**31  # int32 wraps around
    if exact or dtype is DType.INT8:
        # The accumulators are exact; what is left is one rounding to D's type.
        rounded = expected.astype(numpy_dtype(out_dtype)).astype(np.float64)
        np.testing.assert_array_equal(got, rounded)
        return
    k = np.asarray(a).shape[-1]
    bound = error_bound(expected, magnitude, k, dtype, out_dtype, precision)
    wrong = ~(np.abs(got - expected) <= bound)  # a NaN is wrong
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} elements are wrong, first at {np.argwhere(wrong)[0]}: "
        f"{got[wrong][0]} for {expected[wrong][0]} within {np.asarray(bound)[wrong][0]}"
    )


def bits(flat):
    return np.asarray(flat).view(f"u{flat.dtype.itemsize}")


@dataclass(frozen=True)
class Lib:
    """How a library takes a flat NumPy buffer, views it, and gives it back."""

    name: str
    to: Callable[[np.ndarray], Any]
    view: Callable[[Any, Strided], Any]
    back: Callable[[Any], np.ndarray]
    negative: bool = False


def _numpy_view(flat, where):
    return strided_view(flat, where)


NUMPY = Lib("numpy", lambda x: x.copy(), _numpy_view, lambda x: np.array(x), negative=True)


def torch_lib(device):
    import torch

    torch_native = ("float64", "float32", "float16", "int8", "int32")

    def to(x):
        if x.dtype.name not in torch_native:
            bits = torch.from_numpy(x.view(f"i{x.itemsize}").copy())
            return bits.view(getattr(torch, x.dtype.name)).to(device)
        return torch.from_numpy(x.copy()).to(device)

    def view(flat, where):
        return torch.as_strided(flat, where.shape, where.strides, where.offset)

    def back(x):
        x = x.detach().cpu()
        name = str(x.dtype).removeprefix("torch.")
        if name not in torch_native:
            bits = x.contiguous().view(torch.int8 if x.itemsize == 1 else torch.int16)
            return bits.numpy().view(numpy_dtype(DType(name)))
        return x.numpy()

    return Lib(f"torch-{device}", to, view, back)


def cupy_lib():
    import cupy

    def to(x):
        native = x.dtype
        return cupy.asarray(x.view(f"u{native.itemsize}")).view(native)

    def view(flat, where):
        size = flat.dtype.itemsize
        memory = flat.data + (where.offset * size if math.prod(where.shape) else 0)
        return cupy.ndarray(where.shape, flat.dtype, memory, tuple(s * size for s in where.strides))

    def back(x):
        native = x.dtype  # of which CuPy may have no kernels
        return cupy.asnumpy(cupy.ascontiguousarray(x.view(f"u{native.itemsize}"))).view(native)

    return Lib("cupy", to, view, back, negative=True)


def check_case(lib, case, **options):
    """Multiply a case in a library; the result must be right and nothing else may have changed."""
    rng = np.random.default_rng(case.seed)
    flats, arrays = {}, {}
    for name, where in (("a", case.a), ("b", case.b)):
        flat = flat_poison(where.length, case.dtypes[name])
        fill(flat, where, rng, case.exact)
        flats[name] = (flat, lib.to(flat))
        arrays[name] = lib.view(flats[name][1], where)
    plain = {name: strided_view(flats[name][0], getattr(case, name)) for name in ("a", "b")}
    if case.d is None:
        got = unigemm.matmul(arrays["a"], arrays["b"], dtype=case.out_dtype.value, **options)
        assert type(got) is type(arrays["a"]) or case.shape == ()
        assert tuple(got.shape) == case.shape
        assert str(got.dtype).removeprefix("torch.") == case.out_dtype.value
        result = lib.back(got).reshape(case.shape)
    else:
        flat = flat_poison(case.d.length, case.out_dtype)
        device = lib.to(flat)
        out = lib.view(device, case.d)
        got = unigemm.matmul(arrays["a"], arrays["b"], out, **options)
        assert got is out
        after = lib.back(device).copy()
        result = strided_view(after, case.d).copy()
        # Outside the elements of `out`, every bit is as it was.
        strided_view(after, case.d)[...] = 0
        strided_view(flat, case.d)[...] = 0
        np.testing.assert_array_equal(bits(after), bits(flat))
    factor = float(options.get("scale_a", 1)) * float(options.get("scale_b", 1))
    assert_product(
        result, plain["a"], plain["b"], case.dtype, case.out_dtype, case.exact,
        options.get("precision", "ieee"), factor,
    )  # fmt: skip
    for before, after in flats.values():
        np.testing.assert_array_equal(bits(lib.back(after)), bits(before))
