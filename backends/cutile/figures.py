"""What launches of `cutile` cost: the figures of its prices, by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FIGURES", "Figures"]


@dataclass(frozen=True, eq=False)  # compared by identity: a part of keys of caches
class Figures:
    """Figures of the model, in microseconds and GB/s unless said.

    Attributes
    ----------
    share
        Part of the tensor cores' peak rate (`Target.tensor_flops`) that the best tiles reach.
    intensity
        Part of that, by the multiply-adds of a tile for each element of A and B that it reads,
        m n / (m + n); with two CTAs over the root of two.
    float64_share, float64_intensity
        The same for float64.
    cluster_share, crowd_share
        Times that, of tiles that two CTAs share, and of two tiles on an SM.
    transposed
        What the rate is divided by where an operand of 8 bits or TF32 is not K-major: it is turned
        in shared memory or registers (seen in the code).
    fixed_us
        Launch, descriptors, first slab of one kernel.
    round_us
        Of each further round of tiles, by the schedule.
    slab_us, crowding
        Least time of a slab: its barriers and its first instructions; the exponent of the tiles on
        an SM that it is multiplied by.
    shared_bytes, l2_bytes
        From shared memory and from the L2, of one SM per clock.
    dram_efficiency
        Part of the memory's bandwidth that is reached.
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
    """

    share: float
    intensity: tuple[tuple[float, float], ...]
    float64_share: float
    float64_intensity: tuple[tuple[float, float], ...]
    cluster_share: float
    crowd_share: float
    transposed: float
    fixed_us: float
    round_us: Mapping[str, float]
    slab_us: float
    crowding: float
    shared_bytes: float
    l2_bytes: float
    dram_efficiency: float
    shared_read: float
    overlap: float
    store_us: Mapping[str, float]
    turned: float
    persistent_store: float
    reduce_us: float
    part_us: float
    reduce_gbs: float


# Of 16x16, 32x32, 32x64, 64x64 and 128x64 tiles at 4096 cubed on an H200.
_FLOAT64 = ((0.0, 0.3), (8.0, 0.39), (16.0, 0.49), (21.0, 0.65), (32.0, 0.77), (42.0, 1.0))

# Nothing was measured there. The share: 52 to 79 percent of cuBLAS on a B200 and an RTX PRO 6000,
# over 90 on an RTX 5080 (arXiv 2604.23466 and issue 6); 0.79 is taken, and 0.8 of the peak for
# cuBLAS. The fixed time is cute_simt's rough 1.4 + 0.7, so that the two compare. The intensities
# are those of NVIDIA's Hopper operators on an H200 (toolchain notes); the rest is cute_wgmma's fit.
_ASSUMED = Figures(
    share=0.63,
    intensity=(
        (0.0, 0.0), (7.0, 0.13), (14.0, 0.24), (26.0, 0.42), (32.0, 0.45), (43.0, 0.70),
        (51.0, 0.92), (64.0, 0.93), (85.0, 1.0),
    ),
    float64_share=0.63,
    float64_intensity=_FLOAT64,
    cluster_share=0.97,
    crowd_share=1.0,
    transposed=2.0,
    fixed_us=2.1,
    round_us={"plain": 0.0, "persistent": 0.05},
    slab_us=0.12,
    crowding=0.0,
    shared_bytes=128.0,  # CUDA C++ Programming Guide
    l2_bytes=52.0,
    dram_efficiency=0.92,
    shared_read=0.2,
    overlap=2.8,
    store_us={"tma": 1.2, "direct": 6.9},
    turned=1.8,
    persistent_store=0.3,
    reduce_us=1.8,
    part_us=0.05,
    reduce_gbs=4800.0,
)  # fmt: skip

# Fitted to 836 launches of 62 problems on an H200 (bench/NOTES.md): mean error 11 percent, picks at
# 0.98 of the best measured. Narrow tiles wait for memory: the first intensities decide little.
_H200 = Figures(
    share=0.746,
    intensity=(
        (0.0, 0.0), (7.0, 0.13), (14.0, 0.35), (26.0, 0.6), (32.0, 0.66), (43.0, 0.72), (51.0, 1.0),
        (64.0, 1.0), (85.0, 0.95),
    ),
    float64_share=0.95,
    float64_intensity=_FLOAT64,
    cluster_share=0.987,
    crowd_share=0.99,
    transposed=1.42,
    fixed_us=1.46,
    round_us={"plain": 1.04, "persistent": 0.0},
    slab_us=0.198,
    crowding=0.556,
    shared_bytes=128.0,
    l2_bytes=70.8,
    dram_efficiency=0.831,
    shared_read=0.0,
    overlap=3.34,
    store_us={"tma": 1.74, "direct": 6.9},  # the second is cute_wgmma's
    turned=1.8,  # cute_wgmma's
    persistent_store=1.0,
    reduce_us=1.62,
    part_us=0.249,
    reduce_gbs=5400.0,
)  # fmt: skip

#: By the major compute capability.
FIGURES = {8: _ASSUMED, 9: _H200, 10: _ASSUMED, 11: _ASSUMED, 12: _ASSUMED}
