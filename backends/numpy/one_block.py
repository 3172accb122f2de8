"""A product with an epilogue that is one block: nothing is cut, so that little is done a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unigemm.arrays.numpy_arrays import viewer
from unigemm.planning.backend import Launcher
from unigemm.problem.canonical import Gemm
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.problem.epilogue import Epilogue

from .epilogue import aux_views, operations

__all__ = ["is_one_block", "one_block"]

_FLOATS = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def is_one_block(gemm: Gemm, elements: int) -> bool:
    """Whether a product is small, of floating point, and its epilogue writes D alone.

    Parameters
    ----------
    gemm
        The product.
    elements
        The most elements of its operands and result together.
    """
    problem, epilogue, e = gemm.problem, gemm.problem.epilogue, gemm.extents
    if epilogue is None or epilogue.aux != epilogue.arrays or epilogue.largest is not None:
        return False
    if epilogue.gate or problem.scaled or problem.blocks or problem.d.dtype not in _FLOATS:
        return False
    l0, l1 = gemm.batch
    count = l0 * l1 * (e.m * e.k + e.k * e.n + e.m * e.n)
    return count <= elements and problem.a.dtype in _FLOATS and problem.b.dtype in _FLOATS


def one_block(gemm: Gemm) -> Launcher:
    """Return what computes such a product from the addresses of its arrays."""
    import numpy as np

    problem, e, (l0, l1) = gemm.problem, gemm.extents, gemm.batch
    epilogue = problem.epilogue
    assert epilogue is not None
    native = numpy_dtype(problem.accumulator)

    def viewed(which: str, rows: int, columns: int) -> Callable[[int], Any]:
        down, along, step0, step1 = getattr(gemm, f"{which}_strides")
        # One matrix where all of a stack are the same.
        shape = (l1 if step1 else 1, l0 if step0 else 1, rows, columns)
        return viewer(shape, (step1, step0, down, along), getattr(problem, which).dtype)

    view_a, view_b = viewed("a", e.m, e.k), viewed("b", e.k, e.n)
    view_d = viewed("d", e.m, e.n)
    views = aux_views(gemm)
    count = len(views)
    evaluated = _evaluator(epilogue, native)
    reads_acc = epilogue.reads_acc

    def launch(a: int, b: int, d: int, workspace: int, stream: int, *more: Any) -> None:
        acc = None
        if reads_acc:
            x, y = view_a(a), view_b(b)
            if x.dtype != native:  # widening: exact, and in the order of memory
                x = x.astype(native)
            if y.dtype != native:
                y = y.astype(native)
            acc = np.matmul(x, y)
        target = view_d(d)
        with np.errstate(all="ignore"):
            arrays = [view(at) for view, at in zip(views, more, strict=False)]
            np.copyto(target, evaluated(acc, arrays, more[count:]), casting="unsafe")

    return launch


def _evaluator(epilogue: Epilogue, native: Any) -> Callable[[Any, Any, Any], Any]:
    """Return what computes D of accumulators, arrays and numbers."""
    table = operations(-1, halves=False)
    steps: list[tuple[str, Any, tuple[int, ...]]] = []
    for step in epilogue.steps[1:]:
        if step.op in ("array", "number"):
            steps.append((step.op, None, step.of))
        elif step.op == "constant":
            steps.append(("constant", native.type(float.fromhex(step.value)), ()))
        else:
            steps.append(("", table[step.op], step.of))
    result, kind = epilogue.result, native.type

    def evaluated(acc: Any, arrays: Any, numbers: Any) -> Any:
        values = [acc]
        for op, what, of in steps:
            if not op:
                value = what(*[values[i] for i in of])
            elif op == "array":
                value = arrays[of[0]]
                if value.dtype != native:
                    value = value.astype(native)
            elif op == "number":
                value = kind(numbers[of[0]])
            else:
                value = what
            values.append(value)
        return values[result]

    return evaluated
