"""What a kernel is specialised on, and its pipeline stages."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import ClassVar, Literal

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from unigemm.problem.problem import Problem

from ...cute import device
from ...cute.device import CUTE_TYPES
from ..geometry import Geometry, geometry, seen
from ..schedules import in_parts, is_specialised

__all__ = ["CONSUMERS_BARRIER", "NO_UNIT", "Spec", "stage_at", "stages_of", "sync_consumers"]


#: K left of a unit that is none: its slabs are not copied. Those of a unit behind its K are zeros.
NO_UNIT = -(1 << 24)

CONSUMERS_BARRIER = 1  # a named one: of the warps that multiply, where others only copy


class Spec(device.Spec):
    """What is compiled in, with the numbers derived from it."""

    #: Whether a slab is copied while another is multiplied; bench/ladder.py switches that off.
    pipelined: ClassVar[bool] = True

    @property
    def split(self) -> bool:
        """Whether partial sums of all of D go to the workspace; those of a tail are its own."""
        return in_parts(self.config)

    @property
    def geometry(self) -> Geometry:
        """The derived numbers."""
        return geometry(self.problem, self.config)

    @property
    def seen(self) -> Problem:
        """The problem with copies of operands that are copied first."""
        return seen(self.problem, self.config)

    @property
    def pairs(self) -> Literal["m", "n"] | None:
        """Along which index two sums are added to at once: one whose values lie side by side.

        None where there is no such instruction, or none such index: to bring pairs together costs
        more than they save.
        """
        geo = self.geometry
        if not self.packed or self.sums is not Float32:
            return None
        if not geo.b.k_major and geo.b.rows % 2 == 0:
            return "n"
        return "m" if not geo.a.k_major and geo.a.rows % 2 == 0 else None


def stages_of(spec: Spec) -> tuple[cute.Pointer, tuple[cute.Pointer, cute.Pointer]]:
    """Return a CTA's shared memory, and where in it the stages of A and of B begin."""
    geo = spec.geometry
    smem = cutlass.memory.SmemAllocator().allocate(geo.smem_bytes, 1024 if geo.a.swizzled else 128)
    second = smem + spec.config.stages * geo.a.bytes
    of_a = cute.recast_ptr(smem, dtype=CUTE_TYPES[geo.a.dtype])
    return smem, (of_a, cute.recast_ptr(second, dtype=CUTE_TYPES[geo.b.dtype]))


def stage_at(spec: Spec, shared: tuple, stage: Int32) -> tuple:
    """Return where a stage of A and of B begins."""
    geo = spec.geometry
    return shared[0] + stage * geo.a.elements, shared[1] + stage * geo.b.elements


def sync_consumers(spec: Spec) -> None:
    """Wait for all threads that multiply."""
    if is_specialised(spec.config):
        cute.arch.barrier(barrier_id=CONSUMERS_BARRIER, number_of_threads=spec.geometry.threads)
    else:
        cute.arch.sync_threads()
