"""What kernels take for the epilogue of a call: arrays, numbers, and a program of constants."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
from typing import Any

import cuda.tile as ct
from cuda.tile.compilation import ArrayConstraint, ScalarConstraint, TupleConstraint

from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import Beside, arithmetic
from unigemm.problem.problem import Problem

from ...common.lowering import lowered
from ..geometry import physical_lines
from .dtypes import TYPES
from .operations import ARRAY, CODES, CONSTANT, EVEN, NUMBER, ODD, SUMS

__all__ = ["IN_PLACE", "fused_constraint", "program_of"]

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
    steps = tuple(
        (CONSTANT, float.fromhex(step.value))
        if step.op == "constant"
        else (_OTHERS[step.op] if step.op in _OTHERS else CODES[step.op], *step.of)
        for step in epilogue.steps
    )
    largest = -1 if epilogue.largest is None else epilogue.largest
    seen = tuple(_seen(x, flipped) for x in epilogue.beside)
    gate = {"": -1, "m": int(flipped), "n": int(not flipped)}[epilogue.gate]
    wide = arithmetic(problem.accumulator, problem.d.dtype) is DType.FLOAT64
    return steps, (epilogue.result, largest, *epilogue.stores), seen, gate, wide


def _seen(x: Beside, flipped: bool) -> tuple[bool, bool, bool]:
    first, second, turned = "m" in x.along, "n" in x.along, physical_lines(x.matrix) == "n"
    return (second, first, not turned) if flipped else (first, second, turned)


def fused_constraint(problem: Problem, *, by_lines: bool = False) -> TupleConstraint:
    """Return what a kernel takes that carries out a problem's epilogue; nothing without one."""
    epilogue = problem.epilogue
    if epilogue is None:
        return TupleConstraint(())
    arrays = tuple(
        _array(x, in_place=i == epilogue.in_place) for i, x in enumerate(epilogue.beside)
    )
    numbers = (ScalarConstraint(ct.float64),) * epilogue.numbers
    largest = ArrayConstraint(
        ct.int32,
        1,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(1,),
        base_addr_divisible_by=4,
    )
    place = () if epilogue.largest is None else (largest,)
    return TupleConstraint((arrays, numbers, place, program_of(problem, by_lines=by_lines)))


def _array(x: Beside, *, in_place: bool) -> ArrayConstraint:
    """Return what is promised of an array beside D."""
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
        base_addr_divisible_by=x.matrix.alignment,
    )
