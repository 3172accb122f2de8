"""What kernels take for the epilogue of a call: arrays, numbers, and a program of constants."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
from typing import Any

import cuda.tile as ct
import numpy as np
from cuda.tile.compilation import ArrayConstraint, ScalarConstraint, TupleConstraint

from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import Auxiliary, Epilogue, Step, arithmetic
from unigemm.problem.problem import Problem

from ...common.lowering import lowered
from ..geometry import Part, parts_of, physical_lines
from .dtypes import TYPES
from .operations import ACC, ARRAY, CODES, CONSTANT, EVEN, NUMBER, ODD, SECOND_ACC
from .records import Axes, Program, TileEpilogue, packed

__all__ = ["IN_PLACE", "array_constraint", "epilogue_constraint", "numbers_at", "program_of"]

IN_PLACE = "d"  # the alias group of D and of an array that is D itself
_OTHERS = {"sums": ACC, "array": ARRAY, "number": NUMBER, "even": EVEN, "odd": ODD}


def program_of(problem: Problem, *, by_lines: bool) -> Program:
    """Return what an epilogue does.

    Parameters
    ----------
    problem
        As the kernel sees it, with an epilogue.
    by_lines
        The axes of the kernel's tiles are those of D's lines, and not M and N.
    """
    assert problem.epilogue is not None
    epilogue = lowered(problem.epilogue, problem.d.dtype)
    flipped = by_lines and problem.d.major == "m"
    wide = arithmetic(problem.accumulator, problem.d.dtype) is DType.FLOAT64
    axes = tuple(_axes(epilogue.aux[part.array], flipped) for part in parts_of(epilogue))
    if epilogue.halves:
        return _program_of_halves(epilogue, axes, wide)
    return Program(
        steps=tuple(_coded(step, step.of) for step in epilogue.steps),
        result=epilogue.result,
        largest=-1 if epilogue.largest is None else epilogue.largest,
        stores=epilogue.stores,
        axes=axes,
        gate={"": -1, "m": int(flipped), "n": int(not flipped)}[epilogue.gate],
        wide=wide,
    )


def _coded(step: Step, of: tuple[int, ...]) -> tuple[Any, ...]:
    if step.op == "constant":
        value = float.fromhex(step.value)  # cuTile rounds a float to float32, so its bits follow
        return CONSTANT, value, int(np.float64(value).view(np.int64))
    return (_OTHERS[step.op] if step.op in _OTHERS else CODES[step.op], *of)


def _program_of_halves(epilogue: Epilogue, axes: tuple[Axes, ...], wide: bool) -> Program:
    """Return the program where each of two accumulators has its own steps up to the gate."""
    parts = parts_of(epilogue)
    at: dict[tuple[Any, ...], int] = {}
    numbers: list[tuple[int, int]] = []  # of a step for the first accumulator, and for the second

    def add(step: Step, half: int) -> int:
        of = step.of
        if step.op == "array":
            whole = Part(*of)
            of = (parts.index(whole if whole in parts else Part(*of, half)),)
        elif step.op not in _OTHERS:
            of = tuple(numbers[i][half] for i in of)
        code = _coded(step, of)
        if step.op == "sums" and half:
            code = (SECOND_ACC,)
        return at.setdefault(code, len(at))

    for step in epilogue.steps:
        if step.op in ("even", "odd"):
            one = numbers[step.of[0]][step.op == "odd"]
            numbers.append((one, one))
        else:
            numbers.append((add(step, 0), add(step, 1)))
    return Program(
        steps=tuple(at),
        result=numbers[epilogue.result][0],
        largest=-1 if epilogue.largest is None else numbers[epilogue.largest][0],
        stores=tuple(end for i in epilogue.stores for end in numbers[i]),
        axes=axes,
        gate=-1,
        wide=wide,
    )


def _axes(x: Auxiliary, flipped: bool) -> Axes:
    rows, columns, turned = "m" in x.along, "n" in x.along, physical_lines(x.matrix) == "n"
    return Axes(columns, rows, not turned) if flipped else Axes(rows, columns, turned)


def numbers_at(dtype: Any, size: int = 4) -> ArrayConstraint:
    """Return an array of one or more numbers of `size` bytes, wherever it lies."""
    return ArrayConstraint(
        dtype,
        1,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(1,),
        base_addr_divisible_by=size,
    )


def epilogue_constraint(
    problem: Problem, b: ArrayConstraint, *, by_lines: bool = False
) -> TupleConstraint:
    """Return what a kernel takes that carries out a problem's epilogue; nothing without one.

    `b` is what is promised of B, of which there may be two.
    """
    epilogue = problem.epilogue
    if epilogue is None:
        return TupleConstraint(())
    arrays = tuple(
        array_constraint(
            epilogue.aux[part.array],
            in_place=part.array == epilogue.in_place,
            half=part.half is not None,
        )
        for part in parts_of(epilogue)
    )
    taken = TileEpilogue(
        arrays=arrays,
        numbers=(ScalarConstraint(ct.float64),) * epilogue.numbers,
        largest=() if epilogue.largest is None else (numbers_at(ct.int32),),
        second=(b,) if epilogue.halves else (),
        program=program_of(problem, by_lines=by_lines),
    )
    return TupleConstraint(packed(taken))


def array_constraint(
    x: Auxiliary, *, in_place: bool = False, half: bool = False
) -> ArrayConstraint:
    """Return what is promised of an auxiliary array; the second half of N begins anywhere."""
    contiguous = x.matrix.major != "strided"
    return ArrayConstraint(
        TYPES[x.matrix.dtype],
        4,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(IN_PLACE,) if in_place else (),
        may_alias_internally=False,
        stride_constant=(None, None, None, 1 if contiguous else None),
        stride_divisible_by=(x.matrix.vector,) * 3 + (1,) if contiguous else 1,
        base_addr_divisible_by=x.matrix.dtype.itemsize if half else x.matrix.alignment,
    )
