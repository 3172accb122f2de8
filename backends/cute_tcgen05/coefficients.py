"""What launches of `cute_tcgen05` are expected to cost: nothing was measured yet."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["B200", "LADDER", "Figures"]


@dataclass(frozen=True, eq=False)
class Figures:
    """Figures of the model, in microseconds and GB/s unless said.

    Attributes
    ----------
    clusters
        CTAs of a cluster, and how many such run at once on a B200, each CTA alone on its SM.
    share
        Part of the tensor cores' peak rate (`Target.tensor_flops`) that the largest tiles reach.
    fixed_us
        Launch, descriptors, tensor memory, first slab and the end of one kernel.
    round_us
        Of each further tile of a CTA.
    slab_us
        Least time of a slab: its barriers and its first instruction.
    shared_bytes, l2_bytes
        Read by the tensor cores from shared memory, and brought from the L2, of one SM per clock.
    dram_efficiency
        Part of the memory's bandwidth that is reached.
    shared_read
        More time for the bytes of an operand that many tiles read.
    overlap
        Exponent of the norm that joins times which overlap.
    store_us
        Of a 128x256 tile of 16-bit elements by TMA, by rows of 128 bytes, and by columns.
    reduce_us, part_us, reduce_gbs
        A dependent kernel that sums the parts; each part; its traffic.
    repack_us, repack_gbs
        A kernel before.
    """

    clusters: tuple[tuple[int, int], ...]
    share: float
    fixed_us: float
    round_us: float
    slab_us: float
    shared_bytes: float
    l2_bytes: float
    dram_efficiency: float
    shared_read: float
    overlap: float
    store_us: tuple[float, float, float]
    reduce_us: float
    part_us: float
    reduce_gbs: float
    repack_us: float
    repack_gbs: float


#: TFLOP/s of fp16 at 8192 cubed on a B200 (issue 8): a kernel that does nothing special, one with
#: prefetch, one with vectorised stores besides, and the range of the best published ones.
LADDER = {"naive": 450, "prefetch": 880, "vectorised stores": 1400, "best": (1600, 1770)}

#: Assumed. The share brings the best prediction at 8192 cubed to the top of that ladder. Shared
#: memory: 128 bytes a clock (CUDA C++ Programming Guide). The rest is cute_wgmma's fit on an H200
#: and an L2 of the same bytes a clock; a store by TMA takes twice what its bytes take on their way
#: to that L2, one by threads what such took on the H200. Clusters lie within a GPC: of 18 or 20 SMs
#: each, some are left over by those of four and eight.
B200 = Figures(
    clusters=((1, 148), (2, 74), (4, 34), (8, 16)),
    share=0.88,
    fixed_us=3.0,
    round_us=0.2,
    slab_us=0.06,
    shared_bytes=128.0,
    l2_bytes=58.0,
    dram_efficiency=0.90,
    shared_read=0.2,
    overlap=3.0,
    store_us=(1.2, 8.0, 3.5),
    reduce_us=1.65,
    part_us=0.04,
    reduce_gbs=9680.0,
    repack_us=1.61,
    repack_gbs=2366.0,
)
