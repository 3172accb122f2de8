"""What a kernel is compiled for, its stages in shared memory, and the barrier of its consumers."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import ClassVar, Literal

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Problem

from ...cute.kernels import device
from ...cute.kernels.device import CUTE_TYPES
from ..geometry import Geometry, geometry
from ..geometry_operands import effective_problem, widens_integers
from ..schedules import WARP, is_split_k, is_warp_specialized
from .records import Stages

__all__ = [
    "CONSUMERS_BARRIER",
    "Spec",
    "is_consumer",
    "stage_at",
    "stages_of",
    "sync_consumers",
]


CONSUMERS_BARRIER = 1  # a named barrier of the warps that multiply, where others only copy


class Spec(device.Spec):
    """What a kernel is compiled for, with the numbers derived from it."""

    #: Whether copies are issued between the products; bench/ladder.py switches that off.
    pipelined: ClassVar[bool] = True

    @property
    def split(self) -> bool:
        """Whether all tiles leave partial sums in the workspace; a tail has its own."""
        return is_split_k(self.config)

    @property
    def geometry(self) -> Geometry:
        """The derived numbers."""
        return geometry(self.problem, self.config)

    @property
    def effective(self) -> Problem:
        """The problem that is multiplied: repacked operands are their copies."""
        return effective_problem(self.problem, self.config)

    @property
    def result(self) -> type | None:
        """The type that integers are converted to before D's; None where that is D's.

        The low bits of an accumulator are the product in the type its operands were converted to.
        """
        kind = self.problem.converted
        return CUTE_TYPES[kind] if widens_integers(self.problem) and kind else None

    @property
    def read_as(self) -> tuple[type, ...]:
        """The types that elements are converted to, one after the other, to be multiplied.

        A narrower one comes before that of the accumulators, which operands are rounded to so.
        """
        first = self.problem.converted
        if first in (DType.FLOAT16, DType.BFLOAT16):
            return Float32, CUTE_TYPES[first], self.acc
        return (self.acc,)

    @property
    def pairs(self) -> Literal["m", "n"] | None:
        """Along which index one instruction adds to two accumulators, whose values are neighbours.

        None where there is no such instruction or index: bringing pairs together costs more than
        they save.
        """
        geo = self.geometry
        if not self.packed or self.acc is not Float32:
            return None
        if not geo.b.k_major and geo.b.rows % 2 == 0:
            return "n"
        return "m" if not geo.a.k_major and geo.a.rows % 2 == 0 else None


def stages_of(spec: Spec) -> tuple[cute.Pointer, Stages]:
    """Return a CTA's shared memory, and where in it the stages of A and of B begin."""
    geo = spec.geometry
    smem = cutlass.memory.SmemAllocator().allocate(
        geo.smem_bytes, 1024 if geo.a.tma_swizzled else 128
    )
    second = smem + spec.config.stages * geo.a.bytes
    of_a = cute.recast_ptr(smem, dtype=CUTE_TYPES[geo.a.dtype])
    return smem, Stages(of_a, cute.recast_ptr(second, dtype=CUTE_TYPES[geo.b.dtype]))


def stage_at(spec: Spec, shared: Stages, stage: Int32) -> Stages:
    """Return where a stage of A and of B begins."""
    geo = spec.geometry
    return Stages(shared.a + stage * geo.a.elements, shared.b + stage * geo.b.elements)


def is_consumer(spec: Spec, warp: Int32) -> cutlass.Boolean:
    """Whether a warp multiplies."""
    return warp < spec.geometry.threads // WARP


def sync_consumers(spec: Spec) -> None:
    """Wait for all threads that multiply: a CTA barrier where there are no others."""
    if is_warp_specialized(spec.config):
        cute.arch.barrier(barrier_id=CONSUMERS_BARRIER, number_of_threads=spec.geometry.threads)
    else:
        cute.arch.sync_threads()
