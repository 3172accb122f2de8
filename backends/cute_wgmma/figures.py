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
    pair_draw
        What a pair of SMs can draw of the memory's bandwidth, against an even share.
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
    store_direct_gbs
        D from registers, element by element.
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
    pair_draw: float
    shared_read: float
    overlap: float
    store_us: Mapping[str, float]
    store_wide: float
    store_down: float
    store_tall_rows: float
    store_exposed: float
    store_rows_gbs: float
    store_ends: float
    store_direct_gbs: float
    exchange_us: float
    peer_us: float
    exchange_gbs: float
    slices_us: float
    reduce_us: float
    part_us: float
    reduce_gbs: float
    repack_us: float
    repack_gbs: float


#: Fitted to 4406 launches of 173 problems on an H200 (bench/fit.py, bench/NOTES.md).
H200 = Figures(
    fixed_us=1.832,
    round_us=0.1121,
    tensor_tflops=885.9,
    efficiency={
        **{8: 0.1427, 16: 0.3167, 32: 0.5921, 64: 0.9777},
        **{96: 1.014, 128: 1.02, 192: 0.9212, 256: 0.9403},
    },
    single=1,
    slab_us={1: 0.07109, 2: 0.2182, 3: 0.1665},
    sliced_slab_us=0.03634,
    zero_row_us=0.003813,
    narrow_us=0.0005565,
    l2_gbs=13450,
    multicast={(1, 1): 1, (2, 1): 1.096, (1, 2): 1.135},
    dram_efficiency=0.95,
    pair_draw=1.1,
    shared_read=0.1797,
    overlap=2.587,
    store_us={"tma": 1.18, "direct": 5.498, "rows": 18.12},
    store_wide=0.9084,
    store_down=1.965,
    store_tall_rows=2.204,
    store_exposed=0.4786,
    store_rows_gbs=240500,
    store_ends=54.45,
    store_direct_gbs=12330,
    exchange_us=0.3031,
    peer_us=0.4175,
    exchange_gbs=1647,
    slices_us=0.1048,
    reduce_us=1.558,
    part_us=0.02445,
    reduce_gbs=10750,
    repack_us=2.416,
    repack_gbs=6424,
)
