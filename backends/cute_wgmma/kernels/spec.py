"""What is compiled into a wgmma kernel: the class of its problem, and its configuration."""

from __future__ import annotations

from ...cute.kernels.epilogue import line_arrays, whole_arrays
from ...cute.kernels.tile_scheduler import TileSpec
from ..geometry import BARRIER_BYTES, Geometry, geometry, scale_warps
from ..geometry_operands import MMA_M, in_panels, is_repacked, products, shared_major

__all__ = ["Spec"]


class Spec(TileSpec):
    """What is compiled in, with the numbers derived from it."""

    @property
    def geometry(self) -> Geometry:
        """The derived numbers."""
        return geometry(self.problem, self.config)

    @property
    def halves(self) -> range:
        """The halves of a warp's 16 rows that a tile has: one of eight rows has the first alone."""
        return range(1 if self.config.tile[0] == 8 else 2)

    @property
    def products(self) -> int:
        """Products that make one: see `geometry.products`."""
        return products(self.problem)

    @property
    def scale_warps(self) -> int:
        """Warps that bring the scales of blocks of K."""
        return scale_warps(self.problem, self.config)

    @property
    def k_major(self) -> tuple[bool, bool]:
        """Whether A and B are K-major in shared memory."""
        rows = self.config.tile[0]
        a, b = (shared_major(self.problem, "a", rows), shared_major(self.problem, "b", rows))
        return a == "k", b == "k"

    @property
    def repacked(self) -> tuple[bool, bool]:
        """Whether A and B are copied into the workspace first."""
        rows = self.config.tile[0]
        return is_repacked(self.problem, "a", rows), is_repacked(self.problem, "b", rows)

    @property
    def has_hints(self) -> bool:
        """Whether the L2 is told which operands are read once; not of copies, which it holds."""
        return self.problem.groups is None and not any(self.repacked)

    @property
    def panels(self) -> bool:
        """Whether the copy of B is in panels, and so in shared memory."""
        return in_panels(self.problem, self.config.tile[1])

    @property
    def brings_arrays(self) -> bool:
        """Whether arrays of D's size are brought into the L2 before the epilogue reads them."""
        return not self.split and self.config.tile[0] >= MMA_M and bool(whole_arrays(self.problem))

    @property
    def cached_lines(self) -> int:
        """Copies that bring elements of rows and columns into the L1 before the epilogue, at most.

        Of 128 bytes each, which are free behind the barriers.
        """
        room = (BARRIER_BYTES - 16 * self.config.stages) // 128
        return max(0, room) if line_arrays(self.problem) and not self.split else 0

    @property
    def early(self) -> bool:
        """Whether copies and products are launched as soon as there is room, and wait then.

        Not tiles of few rows: memory bounds those, and it matters on which SMs they lie. Only
        16-bit types gain (docs/lab-notes/2026-11-26-tensor-core-code-choices.md).
        """
        return self.config.tile[0] >= MMA_M and self.problem.a.dtype.itemsize == 2
