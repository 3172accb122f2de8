"""Device code that copies operands first: into the workspace, in aligned rows along M or N.

What does not lie so would be copied to shared memory one element at a time, again for each tile. A
copy's rows are padded to whole tiles, so that none sticks out of it (see `places.placed`): what the
padding holds goes into sums that nobody stores. The product waits for the copies as for any kernel
before it; all that it does until then overlaps them.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from typing import Literal

import cuda.bindings.driver as cuda
from cutlass import Int64

from unigemm.problem.problem import MatrixType

from ...common.workspace import aligned, whole
from ...cute.device import Spec
from ...cute.repack import Repack, depth, launch_repack
from ..geometry import is_copied
from .tail_split_k import either


def start_copied(
    launch: Callable, spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple,
    d_steps: tuple, knobs: tuple, stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch the copies, and then by `launch` the product of these."""
    a, b, d, workspace = addresses
    m, n, k, l0, l1 = sizes
    of_a = (a_steps[1], a_steps[0], *a_steps[2:])  # along K first, as B's
    operands = ((spec.problem.a, a, of_a, m), (spec.problem.b, b, b_steps, n))
    kinds, jobs, seen = [], [], []
    for mode, (matrix, address, steps, rows) in enumerate(operands):
        if is_copied(matrix, spec.config):
            deep = (depth(steps[2], l0), depth(steps[3], l1))
            pitch = Int64(whole(rows, spec.config.tile[mode]))
            apart = pitch * k
            size = apart * deep[0] * deep[1] * matrix.dtype.itemsize
            kinds.append(_repack_of(matrix))
            jobs.append(((k, rows, *deep), address, steps, workspace, pitch, size))
            # Matrices that repeat are copied once, and their copies repeat.
            between = (apart, apart * deep[0])
            repeated = [
                either(step != 0, far, Int64(0))
                for step, far in zip(steps[2:], between, strict=True)
            ]
            address, steps = workspace, (pitch, Int64(1), *repeated)
            workspace += aligned(size)
        seen.append((address, steps))
    launch_repack(tuple(kinds), tuple(jobs), stream)
    (a, of_a), (b, b_steps) = seen
    a_steps = (of_a[1], of_a[0], *of_a[2:])
    launch(spec, (a, b, d, workspace), sizes, a_steps, b_steps, d_steps, knobs, stream)


def _repack_of(matrix: MatrixType) -> Repack:
    """Say how an operand is copied: a K-major one is turned."""
    way: Literal["gather", "transpose"] = "transpose" if matrix.major == "k" else "gather"
    return Repack(
        itemsize=matrix.dtype.itemsize,
        way=way,
        contiguous=matrix.major in ("m", "n"),
        vector=1 if matrix.major == "strided" else matrix.vector,
        split=False,
        early=False,
    )
