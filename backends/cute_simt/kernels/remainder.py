"""Remainder launches: what M or N has beyond whole tiles, by the kernels for few rows.

A tile of one row takes as long as one of 128: 2049 rows are 17 tiles high where 16 and a remainder
would do. Columns are rows of the transposed product. Remainders are launched first, and have read
an operand into the L2 when the tiles' kernel begins.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cutlass import Int32, Int64

from unigemm.planning.config import Config
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Problem

from ...cute.kernels.device import Spec
from ...cute.kernels.epilogue import Taken
from ...cute.kernels.host_arguments import Sizes, transposed
from ...cute.kernels.records import Arguments

__all__ = ["start_with_remainders"]


def start_with_remainders(
    launch: Callable, launch_few: Mapping[str, Callable], spec: Spec, of: Arguments
) -> None:
    """Launch the remainders, and by `launch` what is left to the tiles.

    `launch_few` has the launches of the schedules for few rows, by name. The caller has made sure
    that there are such rows: see `legality.unsupported_launch`.
    """
    whole_k = of.parameters._replace(split_k=Int32(1))
    for config in spec.config.remainder:
        few = of._replace(parameters=whole_k)
        sizes = start_remainder(launch_few[config.schedule], spec, config, few)
        of = of._replace(sizes=sizes)
    launch(spec, of)


def start_remainder(launch: Callable, spec: Spec, config: Config, of: Arguments) -> Sizes:
    """Launch one remainder, by its own configuration, and return the sizes of what is left."""
    a, b, d, _ = of.addresses
    m, n, *_ = of.sizes
    a_steps, b_steps, d_steps = of.a_steps, of.b_steps, of.d_steps
    if config.swap_ab:
        a, b, m, n = b, a, n, m
        a_steps, b_steps, d_steps = (transposed(each) for each in (b_steps, a_steps, d_steps))
    left = m % spec.config.tile[config.swap_ab]
    whole = m - left
    few = replace(spec, problem=config.oriented(spec.problem), config=config)
    a = behind(a, whole, a_steps, few.problem.a.dtype)
    d = behind(d, whole, d_steps, few.problem.d.dtype)
    taken = of.taken
    if few.problem.epilogue is not None:
        taken = taken_behind(few.problem, taken, whole, config.swap_ab)
    own = of._replace(
        addresses=of.addresses._replace(a=a, b=b, d=d), sizes=of.sizes._replace(m=left, n=n),
        a_steps=a_steps, b_steps=b_steps, d_steps=d_steps, taken=taken,
    )  # fmt: skip
    launch(few, own)
    return of.sizes._replace(n=whole) if config.swap_ab else of.sizes._replace(m=whole)


def taken_behind(problem: Problem, taken: Taken, rows: Int32, swapped: bool) -> Taken:
    """Return what an epilogue takes whose arrays go on behind some rows; `problem` is that of it.

    With `swapped` it was that of the transposed product.
    """
    addresses, steps, *others = taken
    steps = tuple(transposed(each) if swapped else each for each in steps)
    moved = tuple(
        behind(address, rows, own, x.matrix.dtype)
        for address, own, x in zip(addresses, steps, problem.epilogue.aux, strict=True)
    )
    return Taken(moved, steps, *others)


def behind(address: Int64, rows: Int32, steps: Sequence[Int64], dtype: DType) -> Int64:
    """Return where a matrix goes on behind some rows."""
    return address + Int64(rows) * steps[0] * dtype.itemsize
