"""Where tiles begin in D, and what TMA loads for them.

The last tiles along M and N would stick out of the operands, and rows that TMA fills with zeros
take some four times as long as others (docs/lab-notes/2026-11-26-tensor-core-code-choices.md). So
the last tiles move back, and compute again, bit for bit, what their neighbours do.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass.cute as cute
from cutlass import Int16, Int32
from cutlass.cute.nvgpu import cpasync

from ...common.epilogue import in_halves, in_place
from ...cute.kernels.device import select
from ...cute.kernels.tile_scheduler import Work, first_row, is_walked
from ..geometry import column_step
from ..geometry_operands import TMA_BYTES
from .spec import Spec

STORED_AT = 8  # a warpgroup stores from rows and columns on that are multiples of this
NEVER = 2**31 - 1  # the origin of no tile


def last_origins(
    spec: Spec, sizes: tuple[Int32, Int32], rotations: tuple[Int32, Int32]
) -> tuple[Int32, Int32]:
    """Return the largest origins that tiles may have along M and along N; on the host.

    An operand that lies along M or N is read in whole lines of shared memory, so its last tile may
    still stick out by less than a line. No tile moves where neighbours begin at different k_tiles:
    their results would differ. Nor where C is D: a neighbour would read what has been written. With
    scales of blocks of columns, tiles begin where all others may: see `column_step`.
    """
    swizzles = (spec.geometry.a_swizzle, spec.geometry.b_swizzle)
    found = []
    for mode, swizzle in enumerate(swizzles):
        line = swizzle // spec.problem.a.dtype.itemsize
        unit = STORED_AT if spec.k_major[mode] else max(STORED_AT, line)
        if mode == 1 and spec.scale_warps:
            unit = max(unit, int(column_step(spec.config.tile[1])))
        last = sizes[mode] - spec.config.tile[mode]
        moves = (last >= 0) & (rotations[mode] == 0)
        if in_place(spec.problem):
            moves = moves & (rotations[mode] != 0)
        found.append(select(moves, (last + (unit - 1)) & -unit, Int32(NEVER)))
    if spec.problem.epilogue is not None and spec.problem.epilogue.quantized:
        found[1] = Int32(NEVER)  # tiles have whole blocks that share a scale
    if is_walked(spec):  # the rows of a last tile that are another group's are not stored
        found[0] = Int32(NEVER)
    return found[0], found[1]


def tile_origin(spec: Spec, work: Work, lasts: tuple[Int32, Int32]) -> tuple[Int32, Int32]:
    """Return where a tile begins along M and N: `lasts` are the largest origins."""
    row, column = work.tile_m * spec.config.tile[0], work.tile_n * spec.config.tile[1]
    if is_walked(spec):
        row += first_row(spec, work)
    # `min` is no instruction of the uniform registers that TMA reads.
    return select(row < lasts[0], row, lasts[0]), select(column < lasts[1], column, lasts[1])


@dataclass(frozen=True)
class Load:
    """The TMA load of an operand.

    Attributes
    ----------
    stages
        The operand's shared memory.
    box
        Rows and K of one load, over all CTAs that share it.
    rank, sharers
        This CTA among those, and how many they are.
    """

    atom: cute.CopyAtom
    tensor: cute.Tensor
    stages: cute.Tensor
    box: tuple[int, ...]
    rank: Int32
    sharers: int

    def partition(self, first: tuple[Any, ...]) -> tuple[cute.Tensor, cute.Tensor]:
        """Return the stages and the tiles that fill them, counted from an element on."""
        modes = len(self.box)
        moved = cute.domain_offset(first, self.tensor)
        tiles = cute.local_tile(moved, self.box, (None,) * cute.rank(moved))
        return cpasync.tma_partition(
            self.atom, self.rank, cute.make_layout(self.sharers),
            cute.group_modes(self.stages, 0, modes), cute.group_modes(tiles, 0, modes),
        )  # fmt: skip


class Loads(NamedTuple):
    """The TMA loads of both operands, and masks of the CTAs that get what this one loads of each.

    A goes to the CTAs of its row of the cluster, B to those of its column.
    """

    a: Load
    b: Load
    mask_a: Int16
    mask_b: Int16


def sources(
    spec: Spec, loads: tuple[Load, Load], origin: tuple[Int32, Int32], first_k: Int32 | int = 0
) -> tuple[cute.Tensor, cute.Tensor]:
    """Return the tiles of A and of B for the tile of D with this origin, from some K on."""
    of_a, of_b = loads
    row, column = origin
    per_panel = TMA_BYTES // spec.problem.b.dtype.itemsize
    along_n = (0, 0, column // per_panel, 0, 0) if spec.panels else (column, first_k, 0, 0)
    if in_halves(spec.problem):
        along_n = ((0, column // 2), first_k, 0, 0)
    return of_a.partition((row, first_k, 0, 0))[1], of_b.partition(along_n)[1]


def first_k_of(spec: Spec, work: Work) -> Int32 | int:
    """Return where a unit's K begins."""
    groups = spec.problem.groups
    return work.begin if groups is not None and groups.along == "k" else 0
