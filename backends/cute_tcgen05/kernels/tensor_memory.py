"""Who has read or written tensor memory, and who may: fences, and buffers that are handed back."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from .spec import Spec

__all__ = ["after_sync", "before_sync", "leave", "pair_rank"]


def after_sync() -> None:
    """Order tcgen05 instructions that follow behind the barrier that was waited for (PTX ISA)."""
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")


def before_sync() -> None:
    """Order tcgen05 instructions so far before the barrier that is arrived at next (PTX ISA)."""
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")


def pair_rank(spec: Spec, ranks: tuple[Int32, Int32, Int32]) -> Int32:
    """Return the rank in its cluster of the CTA that multiplies for this one."""
    rank_m, rank_n, _ = ranks
    return rank_m - rank_m % spec.geometry.ctas + spec.config.cluster[0] * rank_n


@cute.jit
def leave(drained: cute.Pointer, pair: Int32, ctas: cutlass.Constexpr) -> None:
    """Tell the CTA that multiplies, the one of this rank, that this warp has read a buffer."""
    before_sync()
    with cute.arch.elect_one():
        if const_expr(ctas == 2):
            cute.arch.mbarrier_arrive(drained, pair)
        else:
            cute.arch.mbarrier_arrive(drained)
