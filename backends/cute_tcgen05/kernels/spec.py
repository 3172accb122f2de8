"""What is compiled into a tcgen05 kernel."""

from __future__ import annotations

from ...cute.kernels.tile_scheduler import TileSpec
from ..geometry import Geometry, geometry, is_repacked, shared_major

__all__ = ["Spec"]


class Spec(TileSpec):
    """What is compiled in, with the numbers derived from it."""

    @property
    def geometry(self) -> Geometry:
        """The derived numbers."""
        return geometry(self.problem, self.config)

    @property
    def k_major(self) -> tuple[bool, bool]:
        """Whether A and B are K-major in shared memory."""
        return shared_major(self.problem, "a") == "k", shared_major(self.problem, "b") == "k"

    @property
    def repacked(self) -> tuple[bool, bool]:
        """Whether A and B are copied into the workspace first."""
        return is_repacked(self.problem, "a"), is_repacked(self.problem, "b")
