"""Repacking operands before the product: into the workspace, in aligned rows along M or N.

Other operands would be copied to shared memory by single elements, again for each tile. The rows of
a copy are padded to whole tiles, so that none sticks out of it (`tile_coords.tile_origin`); what
the padding holds goes into accumulators that nobody stores. The product waits for the copies as
for any kernel before it, and its address arithmetic overlaps them.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from typing import Literal

from cutlass import Int64

from unigemm.problem.problem import MatrixType

from ...common.workspace import aligned, whole
from ...cute.kernels.device import Spec
from ...cute.kernels.host_arguments import Addresses, Steps, transposed
from ...cute.kernels.records import Arguments
from ...cute.kernels.repack import Repack, depth, launch_repack
from ...cute.kernels.repack_jobs import Job, Lines
from ..geometry_operands import is_repacked
from .tail_split_k import either

__all__ = ["start_repacked"]


def start_repacked(launch: Callable, spec: Spec, of: Arguments) -> None:
    """Launch the copies, and then by `launch` the product of these."""
    a, b, d, workspace = of.addresses
    m, n, k, l0, l1 = of.sizes
    along_k = transposed(of.a_steps)  # K first, as B's
    operands = ((spec.problem.a, a, along_k, m), (spec.problem.b, b, of.b_steps, n))
    kinds, jobs, multiplied = [], [], []
    for mode, (matrix, address, steps, rows) in enumerate(operands):
        if is_repacked(matrix, spec.config):
            batches = (depth(steps.l0, l0), depth(steps.l1, l1))
            pitch = Int64(whole(rows, spec.config.tile[mode]))
            matrix_elements = pitch * k
            size = matrix_elements * batches[0] * batches[1] * matrix.dtype.itemsize
            kinds.append(_repack_of(matrix))
            sizes_of = Lines(k, rows, *batches)
            jobs.append(Job(sizes_of, address, steps, workspace, pitch, size))
            # Matrices that repeat are copied once, and their copies repeat.
            of_l0 = either(steps.l0 != 0, matrix_elements, Int64(0))
            of_l1 = either(steps.l1 != 0, matrix_elements * batches[0], Int64(0))
            address, steps = workspace, Steps(pitch, Int64(1), of_l0, of_l1)
            workspace += aligned(size)
        multiplied.append((address, steps))
    launch_repack(tuple(kinds), tuple(jobs), of.stream)
    (a, along_k), (b, b_steps) = multiplied
    addresses = Addresses(a, b, d, workspace)
    launch(spec, of._replace(addresses=addresses, a_steps=transposed(along_k), b_steps=b_steps))


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
