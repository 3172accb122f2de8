"""The command that compiles a plan's kernel elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from ..arrays.array_spec import ArraySpec
from ..errors import UnigemmError
from ..problem.canonical import Gemm, canonical, result_shape
from ..problem.dtypes import output_dtypes
from .plan import Plan
from .target import Target, name_of, named_target

__all__ = ["compile_command"]


def compile_command(plan: Plan, pick: Callable[[Gemm, Target], Plan]) -> str | None:
    """Return a command of unigemm that compiles the same kernel; None where none does.

    Parameters
    ----------
    plan
        Whose kernel it is.
    pick
        Plans a product for the plan's backend, as the command will.
    """
    problem, extents, target = plan.problem, plan.extents, name_of(plan.target)
    wanted = replace(problem, deterministic=False), extents
    found = (x for x in _compact_products(plan) if (x[1].problem, x[1].extents) == wanted)
    layout, gemm = next(found, ("", None))
    if gemm is None:
        return None
    try:
        if pick(gemm, named_target(target)).config != plan.config:
            return None
    except UnigemmError:  # the target's name stands for another device
        return None
    words = ["unigemm compile", str(extents.m), str(extents.n), str(extents.k)]
    words += ["--dtype", str(problem.a.dtype)]
    if problem.d.dtype is not output_dtypes(problem.a.dtype)[0]:
        words += ["--out-dtype", str(problem.d.dtype)]
    words += ["--layout", layout] if layout != "nn" else []
    words += ["--batch", str(extents.batch)] if extents.batch > 1 else []
    words += ["--precision", problem.precision] if problem.precision != "ieee" else []
    words += ["--batch-invariant"] if problem.batch_invariant else []
    words += ["--target", f"'{target}'" if " " in target else target, "--backend", plan.backend]
    return " ".join(words)


def _compact_products(plan: Plan) -> Iterator[tuple[str, Gemm]]:
    """Yield products of compact arrays of a plan's sizes, by the letters of their layouts."""
    problem, extents = plan.problem, plan.extents
    if problem.a.dtype is not problem.b.dtype:
        return
    lead = (extents.batch,) if extents.batch > 1 else ()
    shapes = (*lead, extents.m, extents.k), (*lead, extents.k, extents.n)
    d = ArraySpec(result_shape(*shapes), problem.d.dtype).layout
    for letters in itertools.product("nt", repeat=2):
        a, b = (
            ArraySpec(shape, problem.a.dtype, "F" if letter == "t" else "C").layout
            for shape, letter in zip(shapes, letters, strict=True)
        )
        with suppress(UnigemmError):  # rows that are not batch-invariant, say
            yield (
                "".join(letters),
                canonical(
                    a, b, d, precision=problem.precision, batch_invariant=problem.batch_invariant
                ),
            )
