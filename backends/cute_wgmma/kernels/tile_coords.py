"""Device code that says where tiles lie, and what TMA brings for them.

The last tiles along M and N would stick out of the operands, and rows that TMA fills with zeros
take some four times as long as others (2.5 to 3 ns each, on an H200: 2048x320x320 nn in 64x96 5.3
us, 2048x384x320 4.0). So they move back, and compute again, bit for bit, what their neighbours do.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync

from ...common.epilogue import in_place
from ...cute.device import select
from ...cute.tile_scheduler import Work
from ..geometry import TMA_BYTES
from .spec import Spec

STORED_AT = 8  # rows and columns of D begin at multiples of so many, in a warpgroup's stores
NEVER = 2**31 - 1  # behind any tile


def last_origins(spec: Spec, sizes: tuple, rotations: tuple) -> tuple[Int32, Int32]:
    """Return on the host where the last tiles begin that do not stick out, along M and along N.

    Operands that lie along M or N are read from whole lines of shared memory on, and so the last
    tiles stick out by less than one. Where neighbours begin at different k_tiles none moves: other
    sums would come out. Nor does one where C is D: a neighbour would read what has been written.
    """
    swizzles = (spec.geometry.a_swizzle, spec.geometry.b_swizzle)
    found = []
    for mode, swizzle in enumerate(swizzles):
        line = swizzle // spec.problem.a.dtype.itemsize
        unit = STORED_AT if spec.k_major[mode] else max(STORED_AT, line)
        last = sizes[mode] - spec.config.tile[mode]
        moves = (last >= 0) & (rotations[mode] == 0)
        if in_place(spec.problem):
            moves = moves & (rotations[mode] != 0)
        found.append(select(moves, (last + (unit - 1)) & -unit, Int32(NEVER)))
    return found[0], found[1]


def tile_origin(spec: Spec, work: Work, lasts: tuple) -> tuple[Int32, Int32]:
    """Return where a tile begins along M and N, not behind the `lasts`."""
    row, column = work.tile_m * spec.config.tile[0], work.tile_n * spec.config.tile[1]
    # `min` is no instruction of the uniform registers that TMA reads.
    return select(row < lasts[0], row, lasts[0]), select(column < lasts[1], column, lasts[1])


@dataclass(frozen=True)
class Load:
    """What TMA brings of an operand, by boxes of so many rows and K, of which CTAs share each."""

    atom: cute.CopyAtom
    tensor: cute.Tensor
    stages: cute.Tensor
    box: tuple[int, ...]
    rank: Int32
    sharers: int

    def partition(self, first: tuple) -> tuple[cute.Tensor, cute.Tensor]:
        """Return what is filled, and from what: tiles from the first one on."""
        modes = len(self.box)
        moved = cute.domain_offset(first, self.tensor)
        tiles = cute.local_tile(moved, self.box, (None,) * cute.rank(moved))
        return cpasync.tma_partition(
            self.atom, self.rank, cute.make_layout(self.sharers),
            cute.group_modes(self.stages, 0, modes), cute.group_modes(tiles, 0, modes),
        )  # fmt: skip


def sources(spec: Spec, loads: tuple[Load, Load], place: tuple) -> tuple[cute.Tensor, cute.Tensor]:
    """Return what A and B are filled from, of the tile that begins at a place."""
    of_a, of_b = loads
    row, column = place
    per_panel = TMA_BYTES // spec.problem.b.dtype.itemsize
    along_n = (0, 0, column // per_panel, 0, 0) if spec.panels else (column, 0, 0, 0)
    return of_a.partition((row, 0, 0, 0))[1], of_b.partition(along_n)[1]
