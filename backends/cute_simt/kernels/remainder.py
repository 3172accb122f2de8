"""Device code for strips: what M or N has more than whole tiles, by launches of their own.

A tile of one row takes as long as one of 128: 2049 rows are 17 tiles high where 16 and a strip
would do. A strip's kernel is one of those for few rows; columns are rows of the transposed product.
Strips are launched first, and have read an operand when the tiles' kernel begins.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable, Mapping
from dataclasses import replace

import cuda.bindings.driver as cuda
from cutlass import Int32, Int64

from unigemm.planning.config import Config
from unigemm.problem.dtypes import DType

from ...cute.device import Spec


def start_stripped(
    launch: Callable, launch_few: Mapping[str, Callable], spec: Spec, addresses: tuple,
    sizes: tuple, a_steps: tuple, b_steps: tuple, d_steps: tuple, knobs: tuple,
    stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch the strips, and by `launch` what is left to the tiles.

    `launch_few` launches, by its name, a schedule for few rows. There are such rows and others: see
    `geometry.misfit`.
    """
    of_strips = (Int32(1), *knobs[1:])  # K is whole
    for strip in spec.config.remainder:
        sizes = start_strip(
            launch_few[strip.schedule], spec, strip, addresses, sizes,
            (a_steps, b_steps, d_steps), of_strips, stream,
        )  # fmt: skip
    launch(spec, addresses, sizes, a_steps, b_steps, d_steps, knobs, stream)


def start_strip(
    launch: Callable, spec: Spec, strip: Config, addresses: tuple, sizes: tuple, steps: tuple,
    knobs: tuple, stream: cuda.CUstream,
) -> tuple:  # fmt: skip
    """Launch a strip, and return the sizes of what is left."""
    a, b, d, workspace = addresses
    m, n, *others = sizes
    a_steps, b_steps, d_steps = steps
    if strip.swap_ab:
        a, b, m, n = b, a, n, m
        a_steps, b_steps, d_steps = turned(b_steps), turned(a_steps), turned(d_steps)
    left = m % spec.config.tile[strip.swap_ab]
    whole = m - left
    few = replace(spec, problem=strip.oriented(spec.problem), config=strip)
    a = behind(a, whole, a_steps, few.problem.a.dtype)
    d = behind(d, whole, d_steps, few.problem.d.dtype)
    launch(
        few, (a, b, d, workspace), (left, n, *others), a_steps, b_steps, d_steps, knobs, stream
    )  # fmt: skip
    return (n, whole, *others) if strip.swap_ab else (whole, n, *others)


def turned(steps: tuple) -> tuple:
    """Return the steps of a matrix as the transposed product has them."""
    return steps[1], steps[0], *steps[2:]


def behind(address: Int64, rows: Int32, steps: tuple, dtype: DType) -> Int64:
    """Return where a matrix goes on behind some rows."""
    return address + Int64(rows) * steps[0] * dtype.itemsize
