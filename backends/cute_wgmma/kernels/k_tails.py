"""Where groups divide K: what a k_tile has of its group's neighbours becomes zeros.

TMA brings whole k_tiles, and along K only from whole 16 bytes on. What it brings of the next
group, or of the one before, may be NaN. So it is cleared in shared memory, of A and of B, before
the k_tile is multiplied.
"""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from ...cute.kernels.tile_scheduler import Work
from ..geometry import WARPGROUP
from ..geometry_operands import SWIZZLE_BYTES
from .records import GroupEnds
from .spec import Spec

__all__ = ["clear_others", "ends_of"]

_BARRIER = 7  # and the next: named barriers of the warpgroups that clear a stage together
_UNIT = 16  # bytes that swizzles keep together


def has_k_tails(spec: Spec) -> bool:
    """Whether a k_tile may hold another group's elements."""
    groups = spec.problem.groups
    return groups is not None and groups.along == "k"


def ends_of(
    spec: Spec, work: Work, shared: tuple[cute.Tensor, cute.Tensor], thread: Int32, group: Int32
) -> GroupEnds | None:
    """Return what `clear_others` needs for a unit, where a k_tile may hold others' elements."""
    if not has_k_tails(spec):
        return None
    return GroupEnds(work.head, work.end - work.begin, shared, thread, _BARRIER + group)


@cute.jit
def clear_others(
    spec: cutlass.Constexpr, ends: GroupEnds | None, k_tile: Int32 | int, stage: Int32
) -> None:  # fmt: skip
    """Clear what a k_tile has of other groups, if it may have some; all that multiply it."""
    if const_expr(has_k_tails(spec)):
        threads = const_expr(WARPGROUP * spec.geometry.takers)
        first = (k_tile // spec.products) * spec.config.tile[2]
        before, left = ends.head - first, ends.depth - first
        if (before > 0) | (left < spec.config.tile[2]):
            for i in (0, 1):
                held, thread = ends.shared[i], ends.thread
                clear(spec, i, held, stage, Int32(0), before, thread, threads)
                clear(spec, i, held, stage, left, Int32(spec.config.tile[2]), thread, threads)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ends.barrier, number_of_threads=threads)


@cute.jit
def clear(
    spec: cutlass.Constexpr, which: cutlass.Constexpr, held: cute.Tensor, stage: Int32,
    begin: Int32, end: Int32, thread: Int32, threads: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Clear an operand's elements of some K, in a stage, by some threads."""
    geo, tile = spec.geometry, spec.config.tile
    rows, depth, dtype = tile[which], tile[2], spec.operands[which]
    size = const_expr(dtype.width // 8)
    base = Int32(held.iterator.toint()) + stage * (rows * depth * size)
    if const_expr(spec.k_major[which]):
        # A row is of 128 bytes, its 16-byte units swizzled by the row.
        for row in cutlass.range(thread, rows, threads, unroll=1):
            for k in cutlass.range(begin, end, unroll=1):
                unit = (k * size // _UNIT) ^ (row % 8)
                clear_bytes(base + row * SWIZZLE_BYTES + unit * _UNIT + k * size % _UNIT, size)
    else:
        swizzle = const_expr((geo.a_swizzle, geo.b_swizzle)[which])
        across = const_expr(swizzle // _UNIT)  # units of a line
        units = const_expr(rows * size // _UNIT)
        shift = const_expr({8: 0, 4: 1, 2: 2, 1: 3}[across])
        for index in cutlass.range(thread, (end - begin) * units, threads, unroll=1):
            k = begin + index // units
            unit = index % units
            line = unit // across * (depth * swizzle) + k * swizzle
            swizzled = unit % across ^ (k >> shift) % across
            clear_bytes(base + line + swizzled * _UNIT, _UNIT)


def clear_bytes(address: Int32, count: int) -> None:
    """Write zeros to bytes of shared memory."""
    if count == _UNIT:
        cute.arch.inline_ptx(
            "{ .reg .b32 zero; mov.b32 zero, 0; "
            "st.shared.v4.b32 [{$r0}], {zero, zero, zero, zero}; }",
            read_only_args=[address],
        )
    else:
        bits, kind = 8 * count, "b32" if count == 4 else "b16"
        cute.arch.inline_ptx(
            f"{{ .reg .{kind} zero; mov.{kind} zero, 0; st.shared.b{bits} [{{$r0}}], zero; }}",
            read_only_args=[address],
        )
