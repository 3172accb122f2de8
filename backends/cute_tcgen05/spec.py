"""What is compiled into a tcgen05 kernel."""

from __future__ import annotations

import cutlass

from unigemm.dtypes import DType

from ..cute import device
from .geometry import Geometry, geometry, is_repacked, shared_major

__all__ = ["Spec"]

_OPERANDS = {**device.CUTE_TYPES, DType.FLOAT32: cutlass.TFloat32}


class Spec(device.Spec):
    """What is compiled in, with the numbers derived from it."""

    @property
    def geometry(self) -> Geometry:
        """The derived numbers."""
        return geometry(self.problem, self.config)

    @property
    def operands(self) -> tuple[type, type]:
        """Types of A and B in shared memory; of one width."""
        return _OPERANDS[self.problem.a.dtype], _OPERANDS[self.problem.b.dtype]

    @property
    def products(self) -> int:
        """Passes over K."""
        return 1

    @property
    def k_major(self) -> tuple[bool, bool]:
        """Whether A and B are K-major in shared memory."""
        return shared_major(self.problem, "a") == "k", shared_major(self.problem, "b") == "k"

    @property
    def repacked(self) -> tuple[bool, bool]:
        """Whether A and B are copied into the workspace first."""
        return is_repacked(self.problem, "a"), is_repacked(self.problem, "b")

    @property
    def down(self) -> bool:
        """Whether columns of D, not rows, are contiguous."""
        return self.problem.d.major == "m"
