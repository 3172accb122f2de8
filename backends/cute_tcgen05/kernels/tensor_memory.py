"""Tensor memory: fences, buffers that are handed back, and how threads read accumulators."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr
from cutlass.cute.nvgpu import tcgen05

from ...cute.kernels.records import Ranks
from ..geometry import ROWS
from .spec import Spec

__all__ = [
    "acc_parts", "after_sync", "before_sync", "fragment_of", "leave", "load_of", "pair_rank",
]  # fmt: skip


def after_sync() -> None:
    """Order tcgen05 instructions that follow behind the barrier that was waited for (PTX ISA)."""
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")


def before_sync() -> None:
    """Order tcgen05 instructions so far before the barrier that is arrived at next (PTX ISA)."""
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")


def pair_rank(spec: Spec, ranks: Ranks) -> Int32:
    """Return the rank in its cluster of the CTA that multiplies for this one."""
    rank_m, rank_n, _ = ranks
    return rank_m - rank_m % spec.geometry.ctas + spec.config.cluster[0] * rank_n


@cute.jit
def leave(acc_empty: cute.Pointer, pair: Int32, ctas: cutlass.Constexpr) -> None:
    """Tell the CTA that multiplies, the one of this rank, that this warp has read a buffer."""
    before_sync()
    with cute.arch.elect_one():
        if const_expr(ctas == 2):
            cute.arch.mbarrier_arrive(acc_empty, pair)
        else:
            cute.arch.mbarrier_arrive(acc_empty)


def acc_parts(acc: cute.Tensor, buffer: Int32, columns: int) -> cute.Tensor:
    """View a buffer of accumulators by parts of columns."""
    return cute.flat_divide(acc[(None, None), 0, 0, buffer], (ROWS, columns))


def load_of(spec: Spec, parts: cute.Tensor, thread: Int32) -> cute.ThrCopy:
    """Return how a thread reads its row of a part of `acc_parts`."""
    first = parts[None, None, 0, 0]
    repeated = tcgen05.Repetition(cute.size(first, mode=[1]))
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(repeated, tcgen05.Pack.NONE), spec.acc)
    return tcgen05.make_tmem_copy(atom, first).get_slice(thread)


def fragment_of(spec: Spec, load: cute.ThrCopy, columns: int) -> cute.Tensor:
    """Return registers for a part of the columns of a thread's row."""
    identity = cute.make_identity_tensor((ROWS, columns))
    return cute.make_rmem_tensor(load.partition_D(identity).shape, spec.acc)
