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
from .operations import ARRAY, CODES, CONSTANT, EVEN, NUMBER, ODD, OTHER_SUMS, SUMS

__all__ = ["IN_PLACE", "array_constraint", "fused_constraint", "numbers_at", "program_of"]

IN_PLACE = "d"  # the alias group of D and of an array that is D itself
_OTHERS = {"sums": SUMS, "array": ARRAY, "number": NUMBER, "even": EVEN, "odd": ODD}


def program_of(problem: Problem, *, by_lines: bool) -> tuple[Any, ...]:
    """Return what an epilogue does, as constants of a kernel.

    Parameters
    ----------
    problem
        As the kernel sees it, with an epilogue.
    by_lines
        The axes of the kernel's tiles are those of D's lines, and not M and N.

    Returns
    -------
    tuple
        The steps: codes (see `operations`) and what they work on; the steps that D is, that whose
        largest magnitude is noted (or -1), and those stored; of each array whether it has either
        axis, and whether its lines run along the first; the axis of the gate or -1; whether the
        arithmetic is in float64.
    """
    assert problem.epilogue is not None
    epilogue = lowered(problem.epilogue, problem.d.dtype)
    flipped = by_lines and problem.d.major == "m"
    wide = arithmetic(problem.accumulator, problem.d.dtype) is DType.FLOAT64
    seen = tuple(_seen(epilogue.aux[part.array], flipped) for part in parts_of(epilogue))
    if epilogue.halves:
        steps, ends = _of_both(epilogue)
        return steps, ends, seen, -1, wide
    steps = tuple(_coded(step, step.of) for step in epilogue.steps)
    largest = -1 if epilogue.largest is None else epilogue.largest
    gate = {"": -1, "m": int(flipped), "n": int(not flipped)}[epilogue.gate]
    return steps, (epilogue.result, largest, *epilogue.stores), seen, gate, wide


def _coded(step: Step, of: tuple[int, ...]) -> tuple[Any, ...]:
    if step.op == "constant":
        value = float.fromhex(step.value)  # cuTile rounds a float to float32, so beside it its bits
        return CONSTANT, value, int(np.float64(value).view(np.int64))
    return (_OTHERS[step.op] if step.op in _OTHERS else CODES[step.op], *of)


def _of_both(epilogue: Epilogue) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return steps and ends where each of two sums has its own steps up to the gate."""
    parts = parts_of(epilogue)
    at: dict[tuple[Any, ...], int] = {}
    places: list[tuple[int, int]] = []  # of a step for the first sums, and for the second

    def add(step: Step, half: int) -> int:
        of = step.of
        if step.op == "array":
            whole = Part(*of)
            of = (parts.index(whole if whole in parts else Part(*of, half)),)
        elif step.op not in _OTHERS:
            of = tuple(places[i][half] for i in of)
        code = _coded(step, of)
        if step.op == "sums" and half:
            code = (OTHER_SUMS,)
        return at.setdefault(code, len(at))

    for step in epilogue.steps:
        if step.op in ("even", "odd"):
            one = places[step.of[0]][step.op == "odd"]
            places.append((one, one))
        else:
            places.append((add(step, 0), add(step, 1)))
    stores = [end for i in epilogue.stores for end in places[i]]
    largest = -1 if epilogue.largest is None else places[epilogue.largest][0]
    return tuple(at), (places[epilogue.result][0], largest, *stores)


def _seen(x: Auxiliary, flipped: bool) -> tuple[bool, bool, bool]:
    first, second, turned = "m" in x.along, "n" in x.along, physical_lines(x.matrix) == "n"
    return (second, first, not turned) if flipped else (first, second, turned)


def numbers_at(dtype: Any, size: int = 4) -> ArrayConstraint:
    """Return an array of numbers of so many bytes, one or more, wherever it lies."""
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


def fused_constraint(
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
    numbers = (ScalarConstraint(ct.float64),) * epilogue.numbers
    place = () if epilogue.largest is None else (numbers_at(ct.int32),)
    program = program_of(problem, by_lines=by_lines)
    return TupleConstraint((arrays, numbers, place, program, (b,) if epilogue.halves else ()))


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
