"""What launches of `cutile` cost: the figures of its prices, by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

__all__ = ["FIGURES", "FLOAT64_FIGURES", "H200", "Figures"]


@dataclass(frozen=True, eq=False)  # compared by identity: a part of keys of caches
class Figures:
    """Figures of the model, in microseconds and GB/s unless said.

    Attributes
    ----------
    share
        Part of the tensor cores' peak rate (`Target.tensor_flops`) that large tiles reach.
    intensity
        Times that, by the multiply-adds of a tile for each element of A and B that it reads,
        m n / (m + n); with two CTAs over the root of two. Between them it is interpolated.
    cluster_share, cluster_spans, cluster_major
        Times that, of tiles that two CTAs share; of those that are made of several spans; and of
        several spans of rows where neither operand is K-major.
    crowd
        Tiles on the fullest SM where an SM may hold two and all tiles would fit beside each other:
        it now and then gets two, as the SMs still hold the launch before. None: tiles are taken to
        be shared evenly, and the last round to last as long as the others.
    transposed
        What the rate is divided by where an operand of 8 bits or TF32 is not K-major: it is turned
        in shared memory or registers (seen in the code). 1 where the next figures count its bytes.
    turned_a_bytes, turned_b_bytes, turned_apart
        TF32 that one SM turns per clock: A on its way to registers, B from shared memory to shared
        memory; the part of B's time that is left with two tiles on an SM, as one of them multiplies
        meanwhile.
    fixed_us
        Launch and descriptors of one kernel.
    fill_bytes
        Of one SM per clock, of the first slab of a tile, which nothing hides.
    round_us
        Of each further round of tiles, by the schedule.
    slab_us, depth, crowding
        Least time of a slab of 128 bytes: its barriers and its first instructions; the exponents of
        a slab's bytes over 128 and of the tiles on an SM, which it is multiplied by.
    beyond
        More time of a slab, with each part of a tile's rows that lie beyond the matrix: to fill
        them with zeros takes the loads longer than to read.
    shared_bytes, l2_bytes
        From shared memory and from the L2, of one SM per clock.
    split_sector, split_line
        Times the bytes that are read, where lines do not begin on sectors of the L2 (32 bytes), or
        do, but not on its lines (128 bytes): a row of a slab then lies in one more of them.
    dram_efficiency
        Part of the memory's bandwidth that is reached.
    pair_draw
        What a pair of SMs can draw of the memory's bandwidth, against an even share.
    shared_read
        More time for the bytes of an operand that many tiles read.
    overlap
        Exponent of the norm that joins times which overlap.
    store_us, turned
        Of a 128x256 tile by one CTA: by TMA, or by each thread with its own stores; times that
        where D is stored column by column.
    persistent_store
        Part of the store of each further tile that nothing hides, where the next is summed
        meanwhile.
    reduce_us, part_us, reduce_gbs
        A dependent kernel that sums the parts; each part; its traffic.
    tail_us
        The same and a kernel that multiplies them, behind one of whole rounds.
    repack_us, repack_to_dram
        A kernel before that copies an operand; the part of the memory's bandwidth that it reaches,
        in what it reads and writes.
    """

    share: float
    intensity: Mapping[int, float]
    cluster_share: float
    cluster_spans: float
    cluster_major: float
    crowd: float | None
    transposed: float
    turned_a_bytes: float
    turned_b_bytes: float
    turned_apart: float
    fixed_us: float
    fill_bytes: float
    round_us: Mapping[str, float]
    slab_us: float
    depth: float
    crowding: float
    beyond: float
    shared_bytes: float
    l2_bytes: float
    split_sector: float
    split_line: float
    dram_efficiency: float
    pair_draw: float
    shared_read: float
    overlap: float
    store_us: Mapping[str, float]
    turned: float
    persistent_store: float
    reduce_us: float
    part_us: float
    reduce_gbs: float
    tail_us: float
    repack_us: float
    repack_to_dram: float


# Nothing was measured there. The share: 52 to 79 percent of cuBLAS on a B200 and an RTX PRO 6000,
# over 90 on an RTX 5080 (arXiv 2604.23466 and issue 6); 0.79 is taken, and 0.8 of the peak for
# cuBLAS. The fixed time is cute_simt's rough 1.4 + 0.7, so that the two compare. The intensities
# are those of NVIDIA's Hopper operators on an H200 (toolchain notes); the rest is cute_wgmma's fit,
# and what only cutile's launches on an H200 have shown is left out.
_ASSUMED = Figures(
    share=0.63,
    intensity={
        **{0: 0.0, 7: 0.13, 14: 0.24, 26: 0.42, 32: 0.45},
        **{43: 0.70, 51: 0.92, 64: 0.93, 85: 1.0},
    },
    cluster_share=0.97,
    cluster_spans=1.0,
    cluster_major=1.0,
    crowd=None,
    transposed=2.0,
    turned_a_bytes=inf,
    turned_b_bytes=inf,
    turned_apart=1.0,
    fixed_us=2.1,
    fill_bytes=inf,
    round_us={"plain": 0.0, "persistent": 0.05, "tail": 0.05},
    slab_us=0.12,
    depth=0.0,
    crowding=0.0,
    beyond=0.0,
    shared_bytes=128.0,  # CUDA C++ Programming Guide
    l2_bytes=52.0,
    split_sector=1.0,
    split_line=1.0,
    dram_efficiency=0.92,
    pair_draw=inf,
    shared_read=0.2,
    overlap=2.8,
    store_us={"tma": 1.2, "direct": 6.9},
    turned=1.8,
    persistent_store=0.3,
    reduce_us=1.8,
    part_us=0.05,
    reduce_gbs=4800.0,
    tail_us=5.0,
    # Not measured yet. cute_simt's kernel took 14.7 to 17.3 us in a graph for 16.8 MB read and
    # written on an H200, and has a thread turn what here a tile does.
    repack_us=2.2,
    repack_to_dram=0.65,
)

#: Fitted to 4165 launches of 959 problems in 16 bits and TF32 on H200s (bench/fit.py), all of them
#: in bench/data, but for what a comment gives another source. Of an earlier fit to 5411, with
#: float16, are those of narrow tiles, which wait for memory, of reductions, stores and operands
#: that are turned or copied. `slab_us`, `depth` and `fill_bytes` are of one before: with others
#: narrow tiles of long slabs were picked that took up to 1.3 times as long as split-K. No fit has
#: been made since narrow tiles have latencies of their own: one to these lost in known picks.
H200 = Figures(
    share=0.823,
    intensity={
        **{0: 0.0, 7: 0.218, 14: 1.0, 26: 1.0, 32: 0.5616},
        **{43: 0.9912, 51: 1.0, 64: 1.0, 68: 0.93, 77: 0.97, 82: 0.95, 85: 0.9207},
    },
    cluster_share=1.03,
    cluster_spans=0.93,
    cluster_major=0.92,  # 384x192 in tn: 0.89 to 0.97 of its price in 28 launches of 8 sizes
    crowd=1.584,
    transposed=1.099,
    turned_a_bytes=29.86,
    turned_b_bytes=74.78,
    turned_apart=0.5247,
    fixed_us=1.233,
    fill_bytes=22.02,
    round_us={"plain": 1.691, "persistent": 0.0, "tail": 0.0},
    slab_us=0.1057,
    depth=0.5402,
    crowding=0.0,
    beyond=0.4357,
    shared_bytes=128.0,  # CUDA C++ Programming Guide
    l2_bytes=66.81,
    split_sector=1.4,
    split_line=1.25,  # 3000 cubed in TF32
    dram_efficiency=0.95,
    pair_draw=0.9631,
    shared_read=0.0,
    overlap=3.105,
    store_us={"tma": 1.056, "direct": 6.9},  # the second is cute_wgmma's
    turned=1.0,  # no launch tells: narrow tiles alone are swapped
    persistent_store=1.0,
    reduce_us=2.318,
    part_us=0.139,
    reduce_gbs=6954.0,
    tail_us=4.391,
    repack_us=1.715,
    repack_to_dram=0.9177,
)

# Of 16x16, 32x32, 32x64, 64x64 and 128x64 tiles at 4096 cubed on an H200; the rest was fitted to
# 836 launches of an earlier sweep, of all types.
_FLOAT64_INTENSITY = {0: 0.3, 8: 0.39, 16: 0.49, 21: 0.65, 32: 0.77, 42: 1.0}
_H200_FLOAT64 = replace(
    _ASSUMED,
    share=0.95,
    intensity=_FLOAT64_INTENSITY,
    fixed_us=1.46,
    round_us={"plain": 1.04, "persistent": 0.0, "tail": 0.0},
    slab_us=0.198,
    crowding=0.556,
    l2_bytes=70.8,
    dram_efficiency=0.831,
    shared_read=0.0,
    overlap=3.34,
    store_us={"tma": 1.74, "direct": 6.9},
    persistent_store=1.0,
    reduce_us=1.62,
    part_us=0.249,
    reduce_gbs=5400.0,
)

#: By the major compute capability.
FIGURES = {8: _ASSUMED, 9: H200, 10: _ASSUMED, 11: _ASSUMED, 12: _ASSUMED}
FLOAT64_FIGURES = {
    8: replace(_ASSUMED, intensity=_FLOAT64_INTENSITY),
    9: _H200_FLOAT64,
    10: replace(_ASSUMED, intensity=_FLOAT64_INTENSITY),
}
