"""Device code of sums that threads leave for each other in shared memory, of a CTA or a cluster.

Vectors of 16 bytes throughout: lanes that leave or read neighbours have no bank conflicts.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from functools import reduce
from operator import add

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .device import once_worked_out

__all__ = ["VECTOR_BYTES", "added", "arrive_with", "fetch", "vector_at"]

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


def arrive_with(address: Int64, *sums: cutlass.Numeric) -> None:
    """Arrive at the cluster's barrier with sums worked out: nothing that they are of is read then.

    Afterwards the CTAs that they were fetched from may have ended. Nobody waits to see what this
    thread has written, so that there is no fence.
    """
    once_worked_out("barrier.cluster.arrive.relaxed.aligned", address, *sums)


def vector_at(dtype: type[cutlass.Numeric], area: Int32, index: Int32) -> cute.Tensor:
    """View the vector of shared memory that is so many behind an address."""
    where = area + index * VECTOR_BYTES
    pointer = cute.make_ptr(dtype, where, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES)
    return cute.make_tensor(pointer, cute.make_layout(VECTOR_BYTES * 8 // dtype.width))


def added(parts: list[list]) -> list:
    """Add up vectors, in their order."""
    return [reduce(add, values) for values in zip(*parts, strict=True)]
