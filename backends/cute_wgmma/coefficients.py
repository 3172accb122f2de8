"""What launches of `cute_wgmma` cost: the figures of its prices, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unigemm.problem.dtypes import FLOAT8
from unigemm.problem.problem import Problem

from .geometry import TMA_BYTES

__all__ = [
    "H200",
    "H200_3XTF32",
    "H200_COPIED",
    "H200_FLOAT8",
    "H200_TF32",
    "Figures",
    "figures_of",
]


@dataclass(frozen=True, eq=False)  # compared by identity: a part of keys of caches
class Figures:
    """Figures of the model, in microseconds and GB/s unless said.

    Those of the SMs are for an H200, and scale with the count and the clock of a target's; those of
    the device memory are parts of a target's bandwidth.

    Attributes
    ----------
    fixed_us, near_us
        Launch, descriptors, first slab of one kernel; what operands spare of it that the L2 has
        from the call before.
    empty_us
        The least of it, of a product of single elements.
    ctas_us
        Of it, more where all SMs get CTAs; of fewer a part.
    warpgroup_us
        Of it, until each warpgroup of a CTA beyond the first has begun.
    gather_us
        Of it, until clusters of four CTAs and more that share loads have their SMs.
    round_us
        Of each further tile of a CTA.
    tensor_tflops
        Rate of 16-bit types by the best tiles.
    efficiency, efficiency_held
        Part of that rate, by the columns of one wgmma; between them it is interpolated. The latter
        where A comes from registers: filling them takes as long however few the columns.
    single, three
        Of that, where one warpgroup multiplies alone, and where three do.
    promoted_turns, promoted_pair
        Times the tensor cores' time where sums move to other registers: of ping-pong, in a cluster.
    hot, hot_us
        More time of long loops, at whose power the clocks fall; half of it at this length.
    slab_us, sliced_slab_us
        Least time of a slab by the warpgroups of a tile (each of its wgmma reads A from shared
        memory), and with slices of K.
    zero_row_us
        Of a row of a slab that TMA fills with zeros.
    narrow_us
        Of a column of a slab of an N-major B in narrower swizzles than the widest.
    thin_us
        Of a slab of an M-major A of few rows beside an N-major B: TMA brings its lines one by one.
    l2_gbs, sm_gbs, multicast
        Rate of the L2, a multicast counted once; the most of it that one SM gets; times what is
        left of the traffic, by the cluster.
    sliced_pairs, sliced_streams
        Of that, in slices of K whose pairs share B of 64 columns at most; of a K-major B that is
        larger than the L2.
    common
        Of an operand's part of it, where many CTAs read the same lines at once, each for itself.
    in_step
        Of it, where tiles of 64 rows, each alone, keep step in one round over a long K: they are
        served as well as pairs that share (512x2048x7168 in 64x128: 25.3 us, 25.7).
    line_row_us, sector_row_us, odd_row_us
        Of a row of a slab (128 bytes) that one SM asks for, where lines of an operand begin on the
        L2's lines (128 bytes); on sectors (32 bytes), but not on these; where every other one
        begins within a sector.
    shared_row, first_rows
        Part of that for a row that another CTA asks for; more of it for each of the first slabs,
        which nothing hides.
    dram_efficiency
        Part of the memory's bandwidth that is reached.
    pair_draw, four_draw
        What a pair of SMs can draw of the memory's bandwidth, against an even share; in clusters
        of four CTAs and more that share loads, all of which have what each pair draws.
    near_copies
        Part of the copies of operands that launches find in the L2, where half of it holds all
        that they move.
    short_lines
        More time for the bytes of an N-major B whose lines in a tile are below 128 bytes.
    side_by_side
        Less time for the bytes of an N-major B that four CTAs of a cluster read side by side, where
        lines in a tile have 128 bytes; half of it where they have twice as many.
    shared_read
        More time for the bytes of an operand that several clusters read.
    overlap
        Exponent of the norm that joins times which overlap.
    store_us
        Of a 128x256 tile by one warpgroup, by how it is stored ("words" are rows of 32 bits).
    store_wide, store_long, store_down, store_tall_rows, store_broad, store_quads,
    store_sliced
        Times that, where D has 32 bits; in boxes of whole rows of a tile; where the columns of D
        are contiguous; two row blocks of a ping-pong group written row by row; of that from
        registers, for each 128 columns beyond 128, or 64 sums of a thread beyond 64 where no other
        group multiplies; of columns where A came from registers, and a thread has 16 bytes of one;
        of a part of 32-bit rows that are not aligned, where slices of K share a tile.
    store_exposed
        Part of a ping-pong group's store that nothing hides, at the end.
    store_rows_gbs, store_ends
        D row by row; the ends of a box's row, in columns.
    store_direct_gbs
        D from registers, element by element.
    exchange_us, exchange_rows_us, peer_us, exchange_gbs
        Adding up in a cluster along K; more of that where rows of D are not aligned; each CTA
        beyond two (all loads are in flight before the first sum); its traffic.
    slices_us
        Adding up slices of K of a tile of 64x64.
    reduce_us, part_us, reduce_gbs
        A dependent kernel that sums the parts; each part that a thread adds in turn; its traffic.
    repack_us, near_copy_us, repack_gbs
        A kernel before; what it is spared of that by operands which the L2 has; its traffic.
    crowded_us
        Of that, where the launch takes most SMs and so keeps the next one's copies waiting.
    cluster_us, panels_us
        More, beside a copy, of CTAs in clusters: launched early, they wait for SMs together; of a
        copy in panels.
    """

    fixed_us: float
    near_us: float
    empty_us: float
    ctas_us: float
    warpgroup_us: float
    gather_us: float
    round_us: float
    tensor_tflops: float
    efficiency: Mapping[int, float]
    efficiency_held: Mapping[int, float]
    single: float
    three: float
    promoted_turns: float
    promoted_pair: float
    hot: float
    hot_us: float
    slab_us: Mapping[int, float]
    sliced_slab_us: float
    zero_row_us: float
    narrow_us: float
    thin_us: float
    l2_gbs: float
    sm_gbs: float
    multicast: Mapping[tuple[int, int], float]
    sliced_pairs: float
    sliced_streams: float
    common: float
    in_step: float
    line_row_us: float
    sector_row_us: float
    odd_row_us: float
    shared_row: float
    first_rows: float
    dram_efficiency: float
    pair_draw: float
    four_draw: float
    near_copies: float
    short_lines: float
    side_by_side: float
    shared_read: float
    overlap: float
    store_us: Mapping[str, float]
    store_wide: float
    store_long: float
    store_down: float
    store_tall_rows: float
    store_broad: float
    store_quads: float
    store_sliced: float
    store_exposed: float
    store_rows_gbs: float
    store_ends: float
    store_direct_gbs: float
    exchange_us: float
    exchange_rows_us: float
    peer_us: float
    exchange_gbs: float
    slices_us: float
    reduce_us: float
    part_us: float
    reduce_gbs: float
    repack_us: float
    near_copy_us: float
    repack_gbs: float
    crowded_us: float
    cluster_us: float
    panels_us: float


#: Of 16-bit types and int8: fitted to 13651 launches of 1264 problems on H200s, of them 4108 of 198
#: drawn sizes and 4149 of large products and few rows, all near the best of their problems
#: (bench/fit.py, docs/lab-notes/2026-11-24-large-products.md); the geometric mean of two fits.
H200 = Figures(
    fixed_us=0.7175,
    near_us=0.3243,
    empty_us=1.156,
    ctas_us=1.203,
    warpgroup_us=0.1713,
    gather_us=0.02353,
    round_us=0.0696,
    tensor_tflops=909.3,
    efficiency={
        8: 0.1656,
        16: 0.2074,
        32: 0.5137,
        64: 0.9087,
        96: 1.02,
        128: 1.02,
        192: 0.9797,
        256: 0.936,
    },
    efficiency_held={},
    single=0.999,
    three=0.901,
    promoted_turns=1,
    promoted_pair=1,
    hot=0.2184,
    hot_us=1438,
    slab_us={1: 0.07463, 2: 0.187, 3: 0.0134},
    sliced_slab_us=0.01032,
    zero_row_us=0.002848,
    narrow_us=0.0004161,
    thin_us=0.04423,
    l2_gbs=22390,
    sm_gbs=139.5,
    multicast={
        (1, 1): 1,
        (2, 1): 1.162,
        (1, 2): 1.103,
        (4, 1): 1.327,
        (2, 2): 0.505,
        (1, 4): 0.5165,
        (4, 2): 0.5249,
        (2, 4): 0.5076,
    },
    sliced_pairs=0.6579,
    sliced_streams=1.769,
    common=0.5146,
    in_step=0.8554,
    line_row_us=0.000791,
    sector_row_us=0.00133,
    odd_row_us=0.001883,
    shared_row=0.2161,
    first_rows=0.1139,
    dram_efficiency=0.95,
    pair_draw=1.058,
    four_draw=1.343,
    near_copies=0,
    short_lines=0.2911,
    side_by_side=0.07638,
    shared_read=0.1309,
    overlap=2.736,
    store_us={"tma": 1.357, "direct": 1.872, "rows": 18.66, "words": 13.5},
    store_wide=2.009,
    store_long=1.397,
    store_down=1.965,
    store_tall_rows=0.5511,
    store_broad=0,
    store_quads=1,
    store_sliced=1,
    store_exposed=0.4803,
    store_rows_gbs=139500,
    store_ends=182.8,
    store_direct_gbs=7591,
    exchange_us=0.4307,
    exchange_rows_us=0.6791,
    peer_us=0.006202,
    exchange_gbs=1849,
    slices_us=0.544,
    reduce_us=1.563,
    part_us=0.001925,
    reduce_gbs=10750,
    repack_us=0.3846,
    near_copy_us=0.3091,
    repack_gbs=1120,
    crowded_us=0,
    cluster_us=0,
    panels_us=0,
)

#: Of 16-bit types where B is copied, since TMA cannot read it where it lies: the L2 has the copy.
#: Fitted to 1591 launches of 21 problems of odd sizes, all four layouts; what a launch and a copy
#: begin with are by hand.
H200_COPIED = Figures(
    fixed_us=1.55,
    near_us=0.8866,
    empty_us=0,
    ctas_us=0.0533,
    warpgroup_us=0.03096,
    gather_us=0.1,
    round_us=0.0002935,
    tensor_tflops=807.3,
    efficiency={
        8: 0.1427,
        16: 0.3167,
        32: 0.5921,
        64: 0.9777,
        96: 1.014,
        128: 1.02,
        192: 0.9212,
        256: 0.945,
    },
    efficiency_held={},
    single=1,
    three=0.7298,
    promoted_turns=1,
    promoted_pair=1,
    hot=0,
    hot_us=1,
    slab_us={1: 0.004703, 2: 0.2084, 3: 0.2567},
    sliced_slab_us=0.002715,
    zero_row_us=7.59e-06,
    narrow_us=0.001714,
    thin_us=0.04,
    l2_gbs=9957,
    sm_gbs=166,
    multicast={(1, 1): 1, (2, 1): 1.428, (1, 2): 1.282},
    sliced_pairs=0.07472,
    sliced_streams=1,
    common=0.8,
    in_step=0.7,
    line_row_us=1.039e-05,
    sector_row_us=0.0015,
    odd_row_us=0.001186,
    shared_row=0.063,
    first_rows=0.465,
    dram_efficiency=0.95,
    pair_draw=1.261,
    four_draw=1.2,
    near_copies=0,
    short_lines=0.03958,
    side_by_side=0.025,
    shared_read=0.02183,
    overlap=5,
    store_us={"tma": 1.18, "direct": 6.258, "rows": 3.302, "words": 13.5},
    store_wide=0.9084,
    store_long=1.3,
    store_down=1.965,
    store_tall_rows=1.621,
    store_broad=0,
    store_quads=1,
    store_sliced=1,
    store_exposed=0.02355,
    store_rows_gbs=9336,
    store_ends=590.5,
    store_direct_gbs=72870,
    exchange_us=0.06619,
    exchange_rows_us=0,
    peer_us=7.249e-05,
    exchange_gbs=5111,
    slices_us=0.4948,
    reduce_us=0.009709,
    part_us=0.0001493,
    reduce_gbs=3942,
    repack_us=1.431,
    near_copy_us=0.5265,
    repack_gbs=5860,
    crowded_us=0.007873,
    cluster_us=0.4685,
    panels_us=0.3647,
)

#: Of float8, whose sums move to other registers; fitted to 24 problems of its own, and to bfloat16,
#: before launches were priced by their CTAs and all rows by the time to ask for them.
H200_FLOAT8 = Figures(
    fixed_us=1.584,
    near_us=0.5,
    empty_us=1,
    ctas_us=0,
    warpgroup_us=0,
    gather_us=0.3,
    round_us=0.1311,
    tensor_tflops=979.5,
    efficiency={
        8: 0.1296,
        16: 0.2943,
        32: 0.5247,
        64: 0.9201,
        96: 1.02,
        128: 1.02,
        192: 0.9183,
        256: 0.9783,
    },
    efficiency_held={},
    single=0.9899,
    three=1,
    promoted_turns=1.979,
    promoted_pair=1.394,
    hot=0.1186,
    hot_us=840.5,
    slab_us={1: 0.07109, 2: 0.1742, 3: 0.1309},
    sliced_slab_us=0.02264,
    zero_row_us=0.004556,
    narrow_us=0.0004839,
    thin_us=0.04,
    l2_gbs=11900,
    sm_gbs=210,
    multicast={(1, 1): 1, (2, 1): 1.047, (1, 2): 1.093},
    sliced_pairs=1,
    sliced_streams=1,
    common=0.8,
    in_step=0.7,
    line_row_us=0,
    sector_row_us=0.0015,
    odd_row_us=0.0021,
    shared_row=0.3,
    first_rows=0.3,
    dram_efficiency=0.95,
    pair_draw=1.042,
    four_draw=1.2,
    near_copies=0,
    short_lines=0.15,
    side_by_side=0.025,
    shared_read=0.1757,
    overlap=2.813,
    store_us={"tma": 1.403, "direct": 4.472, "rows": 14.6, "words": 12.93},
    store_wide=0.8112,
    store_long=1.3,
    store_down=2.477,
    store_tall_rows=3.344,
    store_broad=0,
    store_quads=1,
    store_sliced=1,
    store_exposed=0.3332,
    store_rows_gbs=478400,
    store_ends=44.23,
    store_direct_gbs=47610,
    exchange_us=0.4261,
    exchange_rows_us=0,
    peer_us=0.1,
    exchange_gbs=1568,
    slices_us=0.1181,
    reduce_us=1.879,
    part_us=0.06,
    reduce_gbs=6613,
    repack_us=1.438,
    near_copy_us=0.5,
    repack_gbs=3792,
    crowded_us=1.651,
    cluster_us=0,
    panels_us=0,
)

#: Of TF32, whose A may come from registers: to 6007 launches of 775 problems, of them 1670 of 97
#: drawn sizes. `empty_us`, `near_copy_us` and `dram_efficiency` by hand.
H200_TF32 = Figures(
    fixed_us=0.5007,
    near_us=0,
    empty_us=1.1,
    ctas_us=1.141,
    warpgroup_us=0.09425,
    gather_us=0.2482,
    round_us=0.02077,
    tensor_tflops=1191,
    efficiency={
        8: 0.1102,
        16: 0.1977,
        32: 0.3549,
        64: 0.9557,
        96: 0.8362,
        128: 0.7811,
        192: 0.8128,
        256: 0.7261,
    },
    efficiency_held={
        8: 0.1475,
        16: 0.2614,
        32: 0.5104,
        64: 0.6299,
        96: 0.7321,
        128: 0.7964,
        192: 0.8677,
        256: 0.8364,
    },
    single=1,
    three=0.8165,
    promoted_turns=1,
    promoted_pair=1,
    hot=0.1204,
    hot_us=1557,
    slab_us={1: 0.07059, 2: 0.1209, 3: 0.1147},
    sliced_slab_us=0.02039,
    zero_row_us=0.002604,
    narrow_us=0.0005055,
    thin_us=0.04,
    l2_gbs=16920,
    sm_gbs=162.5,
    multicast={
        (1, 1): 1,
        (2, 1): 1.412,
        (1, 2): 1.103,
        (4, 1): 0.8531,
        (2, 2): 1.546,
        (1, 4): 0.4463,
        (4, 2): 0.6083,
        (2, 4): 2.87,
    },
    sliced_pairs=1.058,
    sliced_streams=0.9805,
    common=0.5174,
    in_step=0.7199,
    line_row_us=0.0005673,
    sector_row_us=0.001052,
    odd_row_us=0.0007181,
    shared_row=0.5588,
    first_rows=1.104,
    dram_efficiency=0.94,
    pair_draw=1.202,
    four_draw=2.189,
    near_copies=0.5196,
    short_lines=0.15,
    side_by_side=0.025,
    shared_read=0.2505,
    overlap=2.716,
    store_us={"tma": 1.272, "direct": 3.402, "rows": 13.87, "words": 5.78},
    store_wide=0.7814,
    store_long=1.3,
    store_down=2.311,
    store_tall_rows=0.7022,
    store_broad=0.3659,
    store_quads=0.494,
    store_sliced=5.352,
    store_exposed=0.9165,
    store_rows_gbs=19390,
    store_ends=237.6,
    store_direct_gbs=145600,
    exchange_us=0.5557,
    exchange_rows_us=0,
    peer_us=0.03114,
    exchange_gbs=3543,
    slices_us=0.2404,
    reduce_us=1.078,
    part_us=0.01663,
    reduce_gbs=14710,
    repack_us=1.327,
    near_copy_us=0.32,
    repack_gbs=3667,
    crowded_us=0.1413,
    cluster_us=0.2051,
    panels_us=0.05,
)

#: Of three products of TF32 for each. What a launch and a copy begin with, the rates of the tensor
#: cores, slabs and slices: to 54 launches of 44 problems of the suites; all others are what a fit
#: before has found for 16 bits.
H200_3XTF32 = Figures(
    fixed_us=1.66,
    near_us=0.3243,
    empty_us=1.1,
    ctas_us=2.107,
    warpgroup_us=0.157,
    gather_us=0.0638,
    round_us=0.06209,
    tensor_tflops=812.6,
    efficiency={
        8: 0.1353,
        16: 0.2305,
        32: 0.5916,
        64: 0.7038,
        96: 0.9874,
        128: 1.02,
        192: 1.011,
        256: 0.9029,
    },
    efficiency_held={},
    single=1,
    three=1.079,
    promoted_turns=1,
    promoted_pair=1,
    hot=0,
    hot_us=1,
    slab_us={1: 0.07355, 2: 0.1728, 3: 0.06978},
    sliced_slab_us=0.05057,
    zero_row_us=0.002499,
    narrow_us=0.0006909,
    thin_us=0.009028,
    l2_gbs=22390,
    sm_gbs=128.9,
    multicast={
        (1, 1): 1,
        (2, 1): 1.222,
        (1, 2): 1.246,
        (4, 1): 0.9801,
        (2, 2): 0.6911,
        (1, 4): 0.7165,
        (4, 2): 0.5249,
        (2, 4): 0.5076,
    },
    sliced_pairs=0.6359,
    sliced_streams=1,
    common=0.6075,
    in_step=0.8662,
    line_row_us=0.0004264,
    sector_row_us=0.001242,
    odd_row_us=0.001836,
    shared_row=0.2124,
    first_rows=0.3591,
    dram_efficiency=0.95,
    pair_draw=1.025,
    four_draw=1.464,
    near_copies=0,
    short_lines=0.2562,
    side_by_side=0.02034,
    shared_read=0.06814,
    overlap=2.84,
    store_us={"tma": 1.457, "direct": 2.089, "rows": 8.147, "words": 13.5},
    store_wide=0.7758,
    store_long=1.32,
    store_down=1.965,
    store_tall_rows=0.5511,
    store_broad=0,
    store_quads=1,
    store_sliced=1,
    store_exposed=0.5386,
    store_rows_gbs=159400,
    store_ends=88.78,
    store_direct_gbs=7089,
    exchange_us=0.5581,
    exchange_rows_us=0.225,
    peer_us=0.01888,
    exchange_gbs=3762,
    slices_us=0.3574,
    reduce_us=1.457,
    part_us=0.02013,
    reduce_gbs=12440,
    repack_us=0.8711,
    near_copy_us=0.3091,
    repack_gbs=4239,
    crowded_us=0,
    cluster_us=0,
    panels_us=0,
)


def figures_of(problem: Problem) -> Figures:
    """Return the figures of a class's launches."""
    if problem.a.dtype in FLOAT8:
        return H200_FLOAT8
    if problem.a.dtype.itemsize == 4:
        return H200_3XTF32 if problem.precision == "3xtf32" else H200_TF32
    copied = problem.a.dtype.itemsize == 2 and problem.b.alignment < TMA_BYTES
    return H200_COPIED if copied else H200
