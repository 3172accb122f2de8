"""What the roles of a wgmma kernel, and their parts, hand to each other."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Float32, Int32

__all__ = [
    "Accumulators", "FactorAddresses", "Factors", "FragmentSource", "GroupEnds", "Operands",
    "Ranks", "Ring",
]  # fmt: skip


class Ranks(NamedTuple):
    """Of a CTA in its cluster: along M, along N, and along K."""

    m: Int32
    n: Int32
    k: Int32


class Ring(NamedTuple):
    """The ring of stages in shared memory, for a thread of a warpgroup that multiplies.

    Attributes
    ----------
    full, empty
        The stages' barriers.
    ranks
        Of its CTA: they say whose producers write to it.
    in_wg
        The thread, in its warpgroup.
    """

    full: cute.Pointer
    empty: cute.Pointer
    ranks: Ranks
    in_wg: Int32


class FragmentSource(NamedTuple):
    """An A that threads load to registers.

    Attributes
    ----------
    address
        Of its first stage in shared memory.
    offsets
        Where in a stage a thread's part lies, of the first k_block.
    selectors
        What puts pairs of 8-bit elements in order; empty for others.
    """

    address: Int32
    offsets: tuple[Int32, ...]
    selectors: tuple[Int32, ...]


class Operands(NamedTuple):
    """What is multiplied.

    Attributes
    ----------
    mma
        wgmma, which adds to what the accumulators hold.
    a, b
        The stages as wgmma reads them; an A from registers as threads load it.
    """

    mma: cute.TiledMma
    a: cute.Tensor | FragmentSource
    b: cute.Tensor


class Accumulators(NamedTuple):
    """The accumulators of a thread.

    Attributes
    ----------
    sums
        wgmma adds to these.
    total
        Those of the unit: the same tensor, unless partial sums are promoted to it.
    """

    sums: cute.Tensor
    total: cute.Tensor


class GroupEnds(NamedTuple):
    """Where the K of a unit's group begins and ends, for those who clear what is not its own.

    Attributes
    ----------
    head, depth
        The first of the unit's K, and what is behind the last.
    shared
        The stages of A and of B.
    thread
        This one, among those who clear.
    barrier
        Of all of them.
    """

    head: Int32
    depth: Int32
    shared: tuple[cute.Tensor, cute.Tensor]
    thread: Int32
    barrier: Int32


class FactorAddresses(NamedTuple):
    """Where the scales of a thread's sums lie, for one unit.

    Attributes
    ----------
    rows, columns
        The addresses, in the first stage, of that of its first row, and of those of the first block
        of columns or of its first column.
    first
        The first column of its warpgroup, counted from the block of 128 on that the tile begins in.
    barrier
        A named barrier of its warpgroup.
    """

    rows: Int32
    columns: Int32
    first: Int32
    barrier: Int32


class Factors(NamedTuple):
    """The scales of a k_tile's sums, of one thread.

    Attributes
    ----------
    rows
        Of each of its rows.
    columns
        Of each block of columns; or, where each column has its own, the address of the first one.
    first
        See `FactorAddresses`.
    """

    rows: tuple[Float32, ...]
    columns: tuple[Float32, ...] | tuple[Int32]
    first: Int32
