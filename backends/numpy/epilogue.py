"""Epilogues in NumPy: those of the CPU backend, and the reference of the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from unigemm.arrays.numpy_arrays import viewer
from unigemm.problem.canonical import Gemm
from unigemm.problem.dtypes import EXACT, FLOAT8, DType, numpy_dtype
from unigemm.problem.epilogue import BLOCK, Auxiliary, Epilogue, evaluate
from unigemm.problem.quantization import LARGEST, quantized

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BlockEpilogue", "aux_views", "bind_epilogue", "compute", "operations", "rounded"]

_Block = tuple[slice, slice, slice, slice]  # L1, L0, rows, columns
_PIECE = 1 << 15  # accumulators of which an epilogue is computed at a time
#: Takes the accumulators of a block, where it lies among all of them, and D's block.
BlockEpilogue = Callable[["np.ndarray", _Block, "np.ndarray"], None]


def operations(axis: int, halves: bool) -> dict[str, Callable[..., Any]]:
    """Return the operations on arrays; a gate takes its two elements along an axis."""
    import numpy as np

    from unigemm.epilogue import erf, ndtr

    def half(x: Any, which: int) -> Any:
        if x.ndim < -axis or x.shape[axis] == 1:  # one element for all columns, or for all rows
            return x
        along = np.moveaxis(x, axis, -1)
        part = slice(which, None, 2)
        if halves:
            middle = along.shape[-1] // 2
            part = slice(middle * which, middle * (which + 1))
        return np.moveaxis(along[..., part], -1, axis)

    return {
        **{name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "sqrt", "tanh")},
        **{name: getattr(np, name) for name in ("floor", "ceil", "rint", "where")},
        **{"neg": np.negative, "abs": np.abs, "add": np.add, "sub": np.subtract},
        **{"mul": np.multiply, "div": np.divide, "floordiv": np.floor_divide},
        **{"max": np.maximum, "min": np.minimum},
        **{"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal},
        **{"and": np.logical_and, "or": np.logical_or, "not": np.logical_not},
        **{"erf": erf, "ndtr": ndtr, "even": lambda x: half(x, 0), "odd": lambda x: half(x, 1)},
    }


def compute(
    epilogue: Epilogue, kind: DType, acc: Any, arrays: Sequence[Any], numbers: Sequence[float]
) -> list[Any]:
    """Return the values of all steps, in the type of the arithmetic.

    Parameters
    ----------
    epilogue
        What to compute.
    kind
        That type (see `Problem.arithmetic`).
    acc, arrays
        Of any type; the arrays broadcast to the accumulators.
    numbers
        Those of the call.
    """
    import numpy as np

    native = numpy_dtype(kind)
    whole = np.dtype(np.int64) if native.kind in "iu" else native  # of which low bits are kept
    axis = -2 if epilogue.gate == "m" else -1

    def array(i: int) -> Any:
        return np.asarray(arrays[i]).astype(native)

    with np.errstate(all="ignore"):
        return evaluate(
            epilogue,
            operations(axis, epilogue.halves),
            np.asarray(acc).astype(native, copy=False),
            array,
            lambda i: np.asarray(numbers[i]).astype(whole).astype(native)[()],
            native.type,
        )


def rounded(values: Any, dtype: DType) -> Any:
    """Round to the nearest numbers of a type; eight bits, and integers, hold the nearest of theirs.

    NaN becomes 0 in integers.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        if dtype in FLOAT8:
            values = np.clip(values, -LARGEST[dtype], LARGEST[dtype])
        if dtype in (DType.INT8, DType.INT32):
            info = np.iinfo(numpy_dtype(dtype))
            values = np.clip(np.rint(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)),
                             info.min, info.max)  # fmt: skip
        return np.asarray(values).astype(numpy_dtype(dtype))


def aux_views(gemm: Gemm) -> list[Callable[[int], Any]]:
    """Return what views each auxiliary array at its address, for the shape of the accumulators."""
    epilogue, e, (l0, l1) = gemm.problem.epilogue, gemm.extents, gemm.batch
    assert epilogue is not None
    shape = (l1, l0, e.m, e.n)

    def view(
        x: Auxiliary, steps: tuple[int, int, int, int], *, of_scales: bool
    ) -> Callable[[int], Any]:
        down, along, step0, step1 = steps
        strides = (step1, step0, down, along)
        own = tuple(1 if step == 0 else extent for step, extent in zip(strides, shape, strict=True))
        if of_scales:
            columns = e.n // 2 if epilogue.gate else e.n
            own = (*shape[:3], -(-columns // BLOCK))
        return viewer(own, strides, x.matrix.dtype)

    first = len(epilogue.aux) - len(epilogue.scaled)
    pairs = zip(epilogue.aux, gemm.aux_strides, strict=True)
    return [view(x, steps, of_scales=i >= first) for i, (x, steps) in enumerate(pairs)]


def bind_epilogue(gemm: Gemm) -> Callable[[Sequence[Any]], BlockEpilogue]:
    """Return what makes, of the numbers that a launch brings, the epilogue of a block.

    A launch brings the addresses of the arrays read, of those written, of bias gradients, of the
    largest magnitude if that is requested, and the numbers. Bias gradients and that magnitude go
    on from what is there: a stack may take several launches.
    """
    import numpy as np

    problem, epilogue = gemm.problem, gemm.problem.epilogue
    assert epilogue is not None
    kind = problem.arithmetic
    exact = numpy_dtype(problem.converted) if problem.converted in EXACT else None
    views = aux_views(gemm)
    counts = len(epilogue.arrays), len(epilogue.arrays) + len(epilogue.stored)
    last = counts[1] + len(epilogue.totalled)

    split = not (epilogue.halves and epilogue.gate == "m")
    pair = 2 if epilogue.gate == "m" else 1

    def prepared(brought: Sequence[Any]) -> BlockEpilogue:
        held = [make(int(at)) for make, at in zip(views, brought, strict=False)]
        read, stored = held[: counts[0]], held[counts[0] : counts[1]]
        bias_grads, scales = held[counts[1] : last], held[last:]
        rest = list(brought[len(views) :])
        largest = None
        if epilogue.largest is not None:
            largest = viewer((), (), DType.FLOAT32)(int(rest.pop(0)))
        wide = [x.astype(np.float64) for x in bias_grads]

        def apply(acc: np.ndarray, at: _Block, target: np.ndarray) -> None:
            if problem.converted is DType.BOOL:
                acc = acc != 0
            values = compute(epilogue, kind, acc, [_cut(x, at) for x in read], rest)
            for x, step in zip(stored, epilogue.stores, strict=True):
                x[at] = rounded(_filled(values[step], acc.shape), x_dtype(x))
            for x, total, step in zip(bias_grads, wide, epilogue.totals, strict=True):
                _add_up(total, _filled(values[step], acc.shape), at)
                x[...] = rounded(total.astype(numpy_dtype(kind)), x_dtype(x))
            if largest is not None and values[epilogue.largest].size:  # type: ignore[index]
                most = np.max(np.abs(values[epilogue.largest]))  # type: ignore[index]
                largest[...] = np.maximum(largest, most.astype(np.float32))
            result = values[epilogue.result]
            if scales:
                blocks = _blocks_of(at, 2 if epilogue.gate else 1)
                whole = _filled(result, target.shape).astype(np.float32)
                target[...], scales[0][blocks] = quantized(whole, problem.d.dtype, "1x128")
            elif exact is not None:  # the type that is multiplied, which D's may be wider than
                own = np.asarray(result).astype(exact)
                target[...] = own.astype(target.dtype)
            else:
                target[...] = rounded(result, problem.d.dtype)

        return by_pieces(apply, pair) if split else apply

    kinds = {numpy_dtype(x.matrix.dtype): x.matrix.dtype for x in epilogue.aux}

    def x_dtype(x: np.ndarray) -> DType:
        return kinds[x.dtype]

    return prepared


def by_pieces(apply: BlockEpilogue, pair: int) -> BlockEpilogue:
    """Return the epilogue of a block piece by piece: what is computed of each stays in a cache.

    Parameters
    ----------
    apply
        Takes a block at once.
    pair
        How many rows of accumulators make one of D; a piece has all of them.
    """

    def apply_to_pieces(acc: np.ndarray, at: _Block, target: np.ndarray) -> None:
        if acc.size <= _PIECE:
            apply(acc, at, target)
            return
        l1, l0, rows, columns = acc.shape
        whole = rows * columns
        step = max(1, _PIECE // whole)  # matrices
        down = rows if step > 1 else max(pair, _PIECE // columns // pair * pair)
        for i1, i0, i in product(range(l1), range(0, l0, step), range(0, rows, down)):
            part = slice(i1, i1 + 1), slice(i0, min(i0 + step, l0)), slice(i, min(i + down, rows))
            of_d = slice(part[2].start // pair, part[2].stop // pair)
            where = [
                slice(x.start + y.start, x.start + y.stop)
                for x, y in zip(at[:3], part, strict=True)
            ]
            apply(acc[part], (*where, at[3]), target[part[0], part[1], of_d])  # type: ignore[arg-type]

    return apply_to_pieces


def _blocks_of(at: _Block, gate: int) -> _Block:
    """Return where the scales of a block of D lie among all scales."""
    columns, unit = at[3], BLOCK * gate
    return (*at[:3], slice(columns.start // unit, -(-columns.stop // unit)))


def _cut(x: np.ndarray, at: _Block) -> np.ndarray:
    """Return the part of an array that a block needs; an extent of one is for all of it."""
    return x[tuple(slice(1) if extent == 1 else part for extent, part in zip(x.shape, at))]  # noqa: B905


def _filled(values: Any, shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.broadcast_to(values, shape)


def _add_up(total: np.ndarray, values: Any, at: _Block) -> None:
    """Add a block to a bias gradient, over the indices that it does not have."""
    import numpy as np

    axes = tuple(i for i, extent in enumerate(total.shape) if extent == 1)
    with np.errstate(all="ignore"):
        part = np.sum(values, axis=axes, keepdims=True, dtype=np.float64)
        _cut(total, at)[...] += part
