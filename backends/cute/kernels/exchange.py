"""Accumulators that threads exchange through the shared memory of a CTA or of a cluster.

All of it moves as vectors of 16 bytes: lanes that write or read neighbours have no bank conflicts.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from functools import reduce
from operator import add

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .device import once_worked_out

__all__ = ["VECTOR_BYTES", "added", "added_in_pairs", "arrive_with", "fetch", "vector_at"]

VECTOR_BYTES = 16  # the widest access of a lane


def fetch(address: Int32, rank: Int32, dtype: type[cutlass.Numeric]) -> list:
    """Read 16 bytes of the shared memory of a CTA of the cluster."""
    count, bits = VECTOR_BYTES * 8 // dtype.width, f"b{dtype.width}"
    outs = ", ".join(f"{{$w{i}}}" for i in range(count))
    words = cute.arch.inline_ptx(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, {$r0}, {$r1}; "
        f"ld.shared::cluster.v{count}.{bits} {{{outs}}}, [there]; }}",
        write_only_types=[dtype] * count,
        read_only_args=[address, rank],
    )
    return list(words)


def arrive_with(address: Int64, *totals: cutlass.Numeric) -> None:
    """Arrive at the cluster's barrier when totals are computed, so that their parts have been read.

    Afterwards the CTAs that the parts were fetched from may end. Nobody waits to see what this
    thread has written, so there is no fence.
    """
    once_worked_out("barrier.cluster.arrive.relaxed.aligned", address, *totals)


def vector_at(dtype: type[cutlass.Numeric], area: Int32, index: Int32) -> cute.Tensor:
    """View a vector of shared memory, counted from an address."""
    where = area + index * VECTOR_BYTES
    pointer = cute.make_ptr(dtype, where, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES)
    return cute.make_tensor(pointer, cute.make_layout(VECTOR_BYTES * 8 // dtype.width))


def added(parts: list[list]) -> list:
    """Add up vectors, in their order."""
    return [reduce(add, values) for values in zip(*parts, strict=True)]


def added_in_pairs(parts: list[list]) -> list:
    """Add up vectors: each two neighbours, then the neighbours of what is left, and so on."""
    while len(parts) > 1:
        parts = [added(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]
