"""Device code for a strip: the rows that M has more than whole tiles, by a launch of their own.

A tile of one row takes as long as one of 128: 2049 rows are 17 tiles high where 16 and a strip
would do. The strip's kernel is one of those for few rows. It is launched first, and has read some
of the operands when the tiles' kernel begins. Columns that N has more are rows of the transposed
product.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from dataclasses import replace

import cuda.bindings.driver as cuda
from cutlass import Int32, Int64

from unigemm.dtypes import DType

from ..cute.device import Spec


def start_stripped(
    launch: Callable, launch_few: Callable, spec: Spec, addresses: tuple, sizes: tuple,
    a_steps: tuple, b_steps: tuple, d_steps: tuple, knobs: tuple, stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch the strip by `launch_few`, and by `launch` what the tiles compute.

    Rows are left over, and others are not: see `geometry.misfit`.
    """
    strip = spec.config.strip
    assert strip is not None, "there is something to launch first"
    a, b, d, workspace = addresses
    m, n, *others = sizes
    operands, (rows, columns), steps = (a, b), (m, n), (a_steps, b_steps, d_steps)
    if strip.swap_ab:
        operands, (rows, columns) = (b, a), (n, m)
        steps = (turned(b_steps), turned(a_steps), turned(d_steps))
    left = rows % spec.config.tile[strip.swap_ab]
    whole = rows - left
    few = replace(spec, problem=strip.oriented(spec.problem), config=strip)
    first = behind(operands[0], whole, steps[0], few.problem.a.dtype)
    into = behind(d, whole, steps[2], few.problem.d.dtype)
    launch_few(
        few, (first, operands[1], into, workspace), (left, columns, *others), *steps,
        (Int32(1), *knobs[1:]), stream,
    )  # fmt: skip
    m, n = (m, whole) if strip.swap_ab else (whole, n)
    launch(spec, addresses, (m, n, *others), a_steps, b_steps, d_steps, knobs, stream)


def turned(steps: tuple) -> tuple:
    """Return the steps of a matrix as the transposed product has them."""
    return steps[1], steps[0], *steps[2:]


def behind(address: Int64, rows: Int32, steps: tuple, dtype: DType) -> Int64:
    """Return where a matrix goes on behind some rows."""
    return address + Int64(rows) * steps[0] * dtype.itemsize
