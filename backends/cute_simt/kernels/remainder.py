"""Remainder launches: what M or N has beyond whole tiles, by the kernels for few rows.

A tile of one row takes as long as one of 128: 2049 rows are 17 tiles high where 16 and a remainder
would do. Columns are rows of the transposed product. Remainders are launched first, and have read
an operand into the L2 when the tiles' kernel begins.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable, Mapping
from dataclasses import replace

import cuda.bindings.driver as cuda
from cutlass import Int32, Int64

from unigemm.planning.config import Config
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Problem

from ...cute.kernels.device import Spec

__all__ = ["start_with_remainders"]


def start_with_remainders(
    launch: Callable, launch_few: Mapping[str, Callable], spec: Spec, addresses: tuple,
    sizes: tuple, a_steps: tuple, b_steps: tuple, d_steps: tuple, parameters: tuple,
    stream: cuda.CUstream, taken: tuple = (),
) -> None:  # fmt: skip
    """Launch the remainders, and by `launch` what is left to the tiles.

    `launch_few` has the launches of the schedules for few rows, by name. The caller has made sure
    that there are such rows: see `legality.unsupported_launch`.
    """
    whole_k = (Int32(1), *parameters[1:])
    for config in spec.config.remainder:
        sizes = start_remainder(
            launch_few[config.schedule], spec, config, addresses, sizes,
            (a_steps, b_steps, d_steps), whole_k, stream, taken,
        )  # fmt: skip
    launch(
        spec,
        addresses,
        sizes,
        a_steps,
        b_steps,
        d_steps,
        parameters,
        stream,
        *([taken] if taken else []),
    )


def start_remainder(
    launch: Callable, spec: Spec, config: Config, addresses: tuple, sizes: tuple, steps: tuple,
    parameters: tuple, stream: cuda.CUstream, taken: tuple = (),
) -> tuple:  # fmt: skip
    """Launch one remainder, by its own configuration, and return the sizes of what is left."""
    a, b, d, workspace = addresses
    m, n, *others = sizes
    a_steps, b_steps, d_steps = steps
    if config.swap_ab:
        a, b, m, n = b, a, n, m
        a_steps, b_steps, d_steps = (transposed_steps(each) for each in (b_steps, a_steps, d_steps))
    left = m % spec.config.tile[config.swap_ab]
    whole = m - left
    few = replace(spec, problem=config.oriented(spec.problem), config=config)
    a = behind(a, whole, a_steps, few.problem.a.dtype)
    d = behind(d, whole, d_steps, few.problem.d.dtype)
    if few.problem.epilogue is not None:
        taken = taken_behind(few.problem, taken, whole, config.swap_ab)
    launch(
        few, (a, b, d, workspace), (left, n, *others), a_steps, b_steps, d_steps, parameters,
        stream, taken,
    )  # fmt: skip
    return (n, whole, *others) if config.swap_ab else (whole, n, *others)


def transposed_steps(steps: tuple) -> tuple:
    """Return the steps of a matrix in the transposed product."""
    return steps[1], steps[0], *steps[2:]


def taken_behind(problem: Problem, taken: tuple, rows: Int32, swapped: bool) -> tuple:
    """Return what an epilogue takes whose arrays go on behind some rows; `problem` is that of it.

    With `swapped` it was that of the transposed product.
    """
    places, steps, *others = taken
    steps = tuple(transposed_steps(each) if swapped else each for each in steps)
    moved = tuple(
        behind(place, rows, own, x.matrix.dtype)
        for place, own, x in zip(places, steps, problem.epilogue.beside, strict=True)
    )
    return moved, steps, *others


def behind(address: Int64, rows: Int32, steps: tuple, dtype: DType) -> Int64:
    """Return where a matrix goes on behind some rows."""
    return address + Int64(rows) * steps[0] * dtype.itemsize
