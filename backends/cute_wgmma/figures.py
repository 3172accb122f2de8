"""What launches of `cute_wgmma` cost: the figures of its prices, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from unigemm.dtypes import FLOAT8
from unigemm.problem import Problem

from .geometry import TMA_BYTES

__all__ = ["H200", "H200_COPIED", "H200_FLOAT8", "H200_TF32", "Figures", "figures_of"]


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
    split_sectors, split_lines, split_slabs
        Times an operand's part of it, where every other line of it begins within a sector; where
        lines begin on sectors (32 bytes), but not on the L2's lines (128 bytes); and how many slabs
        more come to that, as the first ones take longer.
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
        Adding up slices of K.
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
    split_sectors: float
    split_lines: float
    split_slabs: float
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


#: Fitted to 4406 launches of 173 problems on an H200 (bench/fit.py, bench/NOTES.md). By hand
#: afterwards: `thin_us`, `short_lines`, `sliced_pairs` and `efficiency` of 256 to few, and to the
#: launches in bench/data `three` and what a launch, a copy and the sum of parts cost since they are
#: faster (`fixed_us`, `near_us`, `repack_us`, `near_copy_us`, `reduce_us`, `part_us`,
#: `reduce_gbs`); to 2774 launches of 256 problems `four_draw` and the multicast of larger clusters
#: than pairs; to those of the 48 in bench/data that have such clusters in 16-bit types `gather_us`
#: and `side_by_side`; to those of 75 drawn sizes there `split_lines`, `split_slabs` and
#: `split_sectors`. "rows" and `store_tall_rows` are those of `H200_COPIED`.
H200 = Figures(
    fixed_us=1.4,
    near_us=0.5,
    gather_us=0.3,
    round_us=0.1121,
    tensor_tflops=885.9,
    efficiency={
        **{8: 0.1427, 16: 0.3167, 32: 0.5921, 64: 0.9777},
        **{96: 1.014, 128: 1.02, 192: 0.9212, 256: 0.945},
    },
    efficiency_held={},
    single=1,
    three=0.965,
    promoted_turns=1,
    promoted_pair=1,
    hot=0,
    hot_us=1,
    slab_us={1: 0.07109, 2: 0.2182, 3: 0.1665},
    sliced_slab_us=0.03634,
    zero_row_us=0.003813,
    narrow_us=0.0005565,
    thin_us=0.04,
    l2_gbs=13450,
    sm_gbs=210,
    multicast={
        **{(1, 1): 1, (2, 1): 1.096, (1, 2): 1.135},
        **{(4, 1): 1, (2, 2): 1, (1, 4): 1, (4, 2): 1, (2, 4): 1},
    },
    sliced_pairs=0.92,
    sliced_streams=1,
    common=0.8,
    in_step=0.7,
    split_sectors=1.4,
    split_lines=1.1,
    split_slabs=6,
    dram_efficiency=0.95,
    pair_draw=1.1,
    four_draw=1.2,
    near_copies=0,
    short_lines=0.15,
    side_by_side=0.025,
    shared_read=0.1797,
    overlap=2.587,
    store_us={"tma": 1.18, "direct": 5.498, "rows": 5.08, "words": 13.5},
    store_wide=0.9084,
    store_long=1.3,
    store_down=1.965,
    store_tall_rows=1.49,
    store_broad=0,
    store_quads=1,
    store_sliced=1,
    store_exposed=0.4786,
    store_rows_gbs=240500,
    store_ends=54.45,
    store_direct_gbs=12330,
    exchange_us=0.3031,
    exchange_rows_us=0.3,
    peer_us=0.1,
    exchange_gbs=1647,
    slices_us=0.1048,
    reduce_us=1.65,
    part_us=0.06,
    reduce_gbs=14000,
    repack_us=1.4,
    near_copy_us=0.5,
    repack_gbs=3212,
    crowded_us=0,
    cluster_us=0,
    panels_us=0,
)

#: Of 16-bit types where B is copied, since TMA cannot read it where it lies: the L2 has the copy.
#: Fitted to 1381 launches of 22 problems of odd sizes, all four layouts; `panels_us` by hand.
H200_COPIED = replace(
    H200,
    fixed_us=1.694,
    near_us=0.8866,
    round_us=0.001735,
    three=0.7298,
    slab_us={1: 0.08938, 2: 0.2241, 3: 0.3719},
    sliced_slab_us=0.002378,
    zero_row_us=4.505e-05,
    narrow_us=0.0002385,
    l2_gbs=9850,
    sm_gbs=306.8,
    multicast={(1, 1): 1, (2, 1): 1.075, (1, 2): 1.264},
    sliced_pairs=0.2054,
    short_lines=0.09724,
    overlap=8.95,
    store_us={"tma": 1.18, "direct": 5.601, "rows": 4.956, "words": 13.5},
    store_tall_rows=1.565,
    store_exposed=0.5772,
    store_rows_gbs=8640,
    store_ends=438.6,
    exchange_us=0.007178,
    exchange_rows_us=0,
    peer_us=0.001064,
    exchange_gbs=2600,
    slices_us=0.4399,
    reduce_us=0.6409,
    part_us=0.001122,
    repack_us=1.431,
    near_copy_us=0.5265,
    repack_gbs=3536,
    cluster_us=0.4485,
    panels_us=0.3,
)

#: Of float8, whose sums move to other registers; fitted to 24 problems of its own, and to bfloat16.
H200_FLOAT8 = replace(
    H200,
    sliced_pairs=1,
    fixed_us=1.584,
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
    l2_gbs=11900,
    multicast={(1, 1): 1, (2, 1): 1.047, (1, 2): 1.093},
    pair_draw=1.042,
    shared_read=0.1757,
    overlap=2.813,
    store_us={"tma": 1.403, "direct": 4.472, "rows": 14.6, "words": 12.93},
    store_wide=0.8112,
    store_down=2.477,
    store_tall_rows=3.344,
    store_exposed=0.3332,
    store_rows_gbs=478400,
    store_ends=44.23,
    store_direct_gbs=47610,
    exchange_us=0.4261,
    exchange_rows_us=0,
    exchange_gbs=1568,
    slices_us=0.1181,
    reduce_us=1.879,
    reduce_gbs=6613,
    repack_us=1.438,
    repack_gbs=3792,
    crowded_us=1.651,
)

#: Of TF32, whose A may come from registers: to launches of 78 problems, then two thirds of the way
#: (in logarithms) to a fit of 87 others; `store_broad` and `store_quads` by hand. `near_copies`: at
#: 128x128x16384 132 CTAs take 9.2 us for 8.5 of 64 without a copy, 12.7 for 14.0 behind one.
H200_TF32 = replace(
    H200,
    fixed_us=1.15,
    near_us=0,
    gather_us=0.4,
    round_us=0.1914,
    tensor_tflops=1043,
    efficiency={
        8: 0.1243,
        16: 0.3316,
        32: 0.4281,
        64: 0.85,
        96: 0.92,
        128: 0.88,
        192: 0.9212,
        256: 0.8976,
    },
    efficiency_held={
        8: 0.1243,
        16: 0.3316,
        32: 0.4281,
        64: 0.7587,
        96: 0.8564,
        128: 0.77,
        192: 0.9212,
        256: 0.8976,
    },
    three=0.8516,
    hot=0.069,
    hot_us=1818,
    slab_us={1: 0.1076, 2: 0.1724, 3: 0.1978},
    sliced_slab_us=0.0523,
    zero_row_us=0.003295,
    narrow_us=0.0005055,
    l2_gbs=11370,
    multicast={
        **{(1, 1): 1, (2, 1): 1.078, (1, 2): 1.093},
        **{(4, 1): 1, (2, 2): 1, (1, 4): 1, (4, 2): 1, (2, 4): 1},
    },
    sliced_pairs=0.9805,
    sliced_streams=0.9805,
    common=0.75,
    in_step=1,
    split_sectors=1.25,
    split_lines=1.0,
    split_slabs=0,
    near_copies=1,
    pair_draw=1.094,
    shared_read=0.1091,
    overlap=3.152,
    store_us={"tma": 1.272, "direct": 4.251, "rows": 13.87, "words": 14.69},
    store_wide=0.8386,
    store_down=1.739,
    store_tall_rows=0.5,
    store_broad=1,
    store_quads=0.63,
    store_sliced=9,
    store_exposed=0.8396,
    store_rows_gbs=20000,
    store_ends=120,
    store_direct_gbs=137800,
    exchange_us=0.2659,
    exchange_rows_us=0,
    exchange_gbs=774.3,
    slices_us=0.1899,
    reduce_us=0.9247,
    reduce_gbs=6329,
    repack_us=1.84,
    near_copy_us=0.9,
    repack_gbs=4431,
    crowded_us=1.081,
)


def figures_of(problem: Problem) -> Figures:
    """Return the figures of a class's launches."""
    if problem.a.dtype in FLOAT8:
        return H200_FLOAT8
    if problem.a.dtype.itemsize == 4:
        return H200 if problem.precision == "3xtf32" else H200_TF32
    copied = problem.a.dtype.itemsize == 2 and problem.b.alignment < TMA_BYTES
    return H200_COPIED if copied else H200
