"""What launches of `cute_wgmma` cost: the figures of its prices, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["H200", "Figures"]


@dataclass(frozen=True, eq=False)  # compared by identity: a part of keys of caches
class Figures:
    """Figures of the model, in microseconds and GB/s unless said.

    Those of the SMs are for an H200, and scale with the count and the clock of a target's; those of
    the device memory are parts of a target's bandwidth.

    Attributes
    ----------
    fixed_us
        Launch, descriptors, first slab of one kernel.
    round_us
        Of each further tile of a CTA.
    tensor_tflops
        Rate of 16-bit types by the best tiles.
    efficiency
        Part of that rate, by the columns of one wgmma; between them it is interpolated.
    single
        Of that, where one warpgroup multiplies alone.
    slab_us, sliced_slab_us
        Least time of a slab by the warpgroups of a tile (each of its wgmma reads A from shared
        memory), and with slices of K.
    zero_row_us
        Of a row of a slab that TMA fills with zeros.
    narrow_us
        Of a column of a slab of an N-major B in narrower swizzles than the widest.
    l2_gbs, multicast
        Rate of the L2, a multicast counted once; times what is left of the traffic, by the cluster.
    dram_efficiency
        Part of the memory's bandwidth that is reached.
    shared_read
        More time for the bytes of an operand that several clusters read.
    overlap
        Exponent of the norm that joins times which overlap.
    store_us
        Of a 128x256 tile by one warpgroup, by how it is stored.
    store_wide, store_down, store_tall_rows
        Times that, where D has 32 bits; where the columns of D are contiguous; two row blocks of a
        ping-pong group written row by row.
    store_exposed
        Part of a ping-pong group's store that nothing hides, at the end.
    store_rows_gbs, store_ends
        D row by row; the ends of a box's row, in columns.
    exchange_us, peer_us, exchange_gbs
        Adding up in a cluster along K; each CTA beyond two; its traffic.
    slices_us
        Adding up slices of K.
    reduce_us, part_us, reduce_gbs
        A dependent kernel that sums the parts; each part; its traffic.
    repack_us, repack_gbs
        A kernel before.
    """

    fixed_us: float
    round_us: float
    tensor_tflops: float
    efficiency: Mapping[int, float]
    single: float
    slab_us: Mapping[int, float]
    sliced_slab_us: float
    zero_row_us: float
    narrow_us: float
    l2_gbs: float
    multicast: Mapping[tuple[int, int], float]
    dram_efficiency: float
    shared_read: float
    overlap: float
    store_us: Mapping[str, float]
    store_wide: float
    store_down: float
    store_tall_rows: float
    store_exposed: float
    store_rows_gbs: float
    store_ends: float
    exchange_us: float
    peer_us: float
    exchange_gbs: float
    slices_us: float
    reduce_us: float
    part_us: float
    reduce_gbs: float
    repack_us: float
    repack_gbs: float


#: Fitted to 3349 launches of 128 problems on an H200 (bench/fit.py, bench/NOTES.md).
H200 = Figures(
    fixed_us=1.889,
    round_us=0.1156,
    tensor_tflops=906.6,
    efficiency={
        **{8: 0.1395, 16: 0.7309, 32: 0.5675, 64: 1.003},
        **{96: 0.9999, 128: 1.02, 192: 0.9016, 256: 0.97},
    },
    single=0.9361,
    slab_us={1: 0.07224, 2: 0.1635, 3: 0.1879},
    sliced_slab_us=0.02864,
    zero_row_us=0.003283,
    narrow_us=0.0004837,
    l2_gbs=13230,
    multicast={(1, 1): 1, (2, 1): 0.9901, (1, 2): 1.109},
    dram_efficiency=0.9405,
    shared_read=0.08992,
    overlap=2.638,
    store_us={"tma": 1.183, "direct": 4.449, "rows": 13.63},
    store_wide=1.061,
    store_down=0.519,
    store_tall_rows=1.141,
    store_exposed=0.6708,
    store_rows_gbs=109500,
    store_ends=53.27,
    exchange_us=0.357,
    peer_us=0.7511,
    exchange_gbs=1440,
    slices_us=0.1657,
    reduce_us=1.568,
    part_us=0.05518,
    reduce_gbs=9196,
    repack_us=1.022,
    repack_gbs=2981,
)
