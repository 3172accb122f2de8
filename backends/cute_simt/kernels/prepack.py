"""Repacking operands before the product: into the workspace, in aligned rows along M or N.

Other operands would be copied to shared memory by single elements, again for each tile. The rows of
a copy are padded to whole tiles, so that none sticks out of it (`tile_coords.tile_origin`); what
the padding holds goes into sums that nobody stores. The product waits for the copies as for any
kernel before it, and its address arithmetic overlaps them.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from typing import Literal

import cuda.bindings.driver as cuda
from cutlass import Int64

from unigemm.problem.problem import MatrixType

from ...common.workspace import aligned, whole
from ...cute.kernels.device import Spec
from ...cute.kernels.repack import Repack, depth, launch_repack
from ...cute.kernels.repack_jobs import Job, Lines, Steps
from ..geometry_operands import is_repacked
from .tail_split_k import either

__all__ = ["start_repacked"]


def start_repacked(
    launch: Callable, spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple,
    d_steps: tuple, parameters: tuple, stream: cuda.CUstream, taken: tuple = (),
) -> None:  # fmt: skip
    """Launch the copies, and then by `launch` the product of these."""
    a, b, d, workspace = addresses
    m, n, k, l0, l1 = sizes
    of_a = (a_steps[1], a_steps[0], *a_steps[2:])  # along K first, as B's
    operands = ((spec.problem.a, a, of_a, m), (spec.problem.b, b, b_steps, n))
    kinds, jobs, multiplied = [], [], []
    for mode, (matrix, address, steps, rows) in enumerate(operands):
        if is_repacked(matrix, spec.config):
            batches = (depth(steps[2], l0), depth(steps[3], l1))
            pitch = Int64(whole(rows, spec.config.tile[mode]))
            matrix_elements = pitch * k
            size = matrix_elements * batches[0] * batches[1] * matrix.dtype.itemsize
            kinds.append(_repack_of(matrix))
            sizes_of = Lines(k, rows, *batches)
            jobs.append(Job(sizes_of, address, Steps(*steps), workspace, pitch, size))
            # Matrices that repeat are copied once, and their copies repeat.
            apart = (matrix_elements, matrix_elements * batches[0])
            repeated = [
                either(step != 0, far, Int64(0)) for step, far in zip(steps[2:], apart, strict=True)
            ]
            address, steps = workspace, (pitch, Int64(1), *repeated)
            workspace += aligned(size)
        multiplied.append((address, steps))
    launch_repack(tuple(kinds), tuple(jobs), stream)
    (a, of_a), (b, b_steps) = multiplied
    a_steps = (of_a[1], of_a[0], *of_a[2:])
    launch(
        spec, (a, b, d, workspace), sizes, a_steps, b_steps, d_steps, parameters, stream, taken
    )  # fmt: skip


def _repack_of(matrix: MatrixType) -> Repack:
    """Return how an operand is copied: a K-major one is transposed."""
    way: Literal["gather", "transpose_shared"] = (
        "transpose_shared" if matrix.major == "k" else "gather"
    )
    return Repack(
        itemsize=matrix.dtype.itemsize,
        way=way,
        contiguous=matrix.major in ("m", "n"),
        vector=1 if matrix.major == "strided" else matrix.vector,
        split=False,
        early=False,
    )
