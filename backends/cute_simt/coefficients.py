"""What launches of `cute_simt` cost: the figures of its prices, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field

from unigemm.problem.dtypes import DType

__all__ = ["H200", "DmmaFigures", "DotFigures", "Figures"]


@dataclass(frozen=True)
class DotFigures:
    """Figures of the dot schedule, in microseconds unless said.

    Attributes
    ----------
    fixed_us
        Launch and first loads.
    cta_us, turn_us, sum_us
        A CTA; its loads in flight, each time; a sum of the lanes.
    short_us
        A CTA whose K is less than one load of each lane.
    near_us
        Of a CTA, what operands spare that the L2 has from the call before (as of tiles; not
        measured).
    resident
        Threads of an SM at once.
    dram_efficiency, apart
        Part of the memory's bandwidth that is reached; what more of its time it takes where one
        warp reads a row alone, and the less the more warps read it side by side.
    issue, convert
        FMA slots of one product; of a 16-bit operand's conversion.
    narrow
        Times all of it for 16-bit types, whose prices are too low in the mean.
    overlap
        Exponent of the norm that joins times which overlap.
    reduce_us, part_us
        A dependent second kernel; each part of K that it adds.
    """

    fixed_us: float = 0.312
    cta_us: float = 1.33
    turn_us: float = 0.45
    sum_us: float = 0.0326
    short_us: float = 0.5
    near_us: float = 0.8
    resident: float = 536
    dram_efficiency: float = 0.95
    apart: float = 0.0
    issue: float = 0.715
    convert: float = 3.16
    narrow: float = 1.12
    overlap: float = 1.65
    reduce_us: float = 1.51
    part_us: float = 0.000884


@dataclass(frozen=True)
class DmmaFigures:
    """Figures of the dmma schedule, beside those of all tiles.

    Attributes
    ----------
    rate
        Multiply-adds of an SM in a clock, in float64 (H100's and H200's data sheets: 67 TFLOP/s).
    slab_clocks, single_clocks, wait_clocks
        Of a warp's scheduler for a slab, beside its products, and for each of its copies of single
        elements; what a warp waits for in each slab.
    lone_warps
        Resident warps of an SM with which half of the time is lost.
    cta_clocks, store_clocks
        Of a warp's scheduler for its beginning, and for each sum that it stores.
    latency_us, round_us, l2_to_dram, dram_efficiency, rest
        As of all tiles, but for the first slab: `latency_us` is what those that follow take.
    alone
        Part of the time of D's stores that no products hide where an SM holds one CTA.
    gathered
        More time for the memory where clusters leave places of CTAs free: not as evenly as others.
    crowded, in_flight
        More time for the memory where an SM has more than so many bytes on their way, in multiples.
        Of tiles with a warp that only copies in proportion to the places of CTAs that are free, to
        those that are taken: 112 CTAs of 8x128 in eight stages took 10 percent longer than in four
        (1x14336x4096), 128 CTAs of 8x224 in six as long.
    apart
        More time for the memory with each further CTA of an SM, where the operand that has more
        rows is K-major.
    deep
        Times the memory's time where slabs have two lines of each row of such an operand.
    refill_us
        Of each further round of such tiles, of which an SM holds one: nothing is on its way then.
        This and the last by hand, for 1753 launches of few rows.
    reach
        Part of the memory's bandwidth that an SM draws, in equal shares of all SMs.
    lines
        Times the memory's time where the operand that has more rows is K-major.
    clear_us, left_gbs
        As of all tiles in stream-K.
    """

    rate: float = 128
    slab_clocks: float = 12.1
    single_clocks: float = 18
    wait_clocks: float = 103
    lone_warps: float = 0.579
    cta_clocks: float = 632
    store_clocks: float = 27.1
    latency_us: float = 1.08
    round_us: float = 0.488
    l2_to_dram: float = 1.46
    dram_efficiency: float = 1.0
    rest: float = 0.0873
    alone: float = 0.516
    gathered: float = 0.116
    crowded: float = 0.094
    in_flight: float = 87800
    apart: float = 0.0229
    deep: float = 0.945
    refill_us: float = 3.5
    reach: float = 1.0
    lines: float = 1.0
    clear_us: float = 2.25
    left_gbs: float = 53.4


@dataclass(frozen=True)
class Figures:
    """Figures of all schedules, in microseconds unless said; rates are a target's.

    Attributes
    ----------
    launch_us
        One kernel in a graph, begin to end, with nothing to do.
    latency_us
        Device memory to shared memory, an empty machine.
    reduce_us, reduce64_us, part_us
        A dependent second kernel, and that of float64, not less; each part of K that a thread of it
        adds.
    cluster_us, exchange_gbs
        Adding up in a cluster along K; the rate of all that is read from other CTAs.
    clear_us, fed_clear_us, left_gbs
        Of stream-K: the kernel that lowers the flags, and what shares take longer, without warps
        that only copy and with such; the rate at which an SM writes its sums for another one, or
        reads those of another.
    dram_efficiency
        Part of the memory's bandwidth that is reached.
    halves
        More time for the bytes of a K-major operand of which a slab has halves of lines.
    l2_to_dram
        Bandwidth ratio for tiles that other CTAs have brought into the L2.
    scratch_to_dram
        Bandwidth ratio for the parts of K.
    odd_scratch
        Times longer for these where rows of D begin anywhere.
    repack_us, repack_to_dram
        A kernel before that copies operands; the bandwidth ratio for what it reads and writes.
    lone_warps
        Resident warps of an SM with which half of the issue slots are lost.
    issued
        Part of the issue slots counted that is taken.
    read_clocks, copy_clocks, single_clocks, slab_clocks
        Issue slots that a read of shared memory costs a warp beside its FMAs; a copy from device
        memory, and one of single elements where nothing is turned; a slab.
    fed_read_clocks, fed_copy_clocks, fed_single_clocks, fed_slab_clocks
        The same where warps of their own copy: those that multiply share their issue slots with
        these, and what TMA brings costs none.
    stream_single_clocks
        Of such a copy of single elements in stream-K, whose loop reads its registers better.
    fed_tall
        What tall tiles take, times what wide ones do, where TMA brings both operands: there is no
        difference but in which operand has the rows of 1 kB.
    single_us
        Of a slab, what a thread waits for each of the latter: only warps of other CTAs hide it.
    near_us
        Of launch and latency, what operands spare that the L2 has from the call before.
    edge_us, edge_held_us
        Of a thread's copy in the last slab, where K ends within it; of one through registers.
    cta_clocks, store_clocks, round_us
        Issue slots of a warp's beginning, and of each sum that it stores; each further round of
        CTAs.
    persistent, fed_persistent
        Part of a CTA's clocks that is not hidden where CTAs are persistent, and where such have
        warps that only copy; these hide as much of the pieces of stream-K.
    uneven
        Part of the L2's bandwidth lost with the places of CTAs that the last round leaves free.
    overlap
        Exponent of the norm that joins the time of the SMs and that of the memory.
    same_bytes
        Part of the shorter of the memory's and the L2's times, which move the same bytes, that is
        not hidden.
    widen_clocks
        Issue slots of a 16-bit value's conversion (one instruction; not fitted).
    rest
        Part of the times of what is not the longest that is seen.
    dot, dot64, dmma, fed_dmma
        Those of the dot schedule in all types but float64, in that, and of the dmma schedule, where
        all warps copy and where one does.
    """

    launch_us: float = 0.741
    latency_us: float = 0.335
    reduce_us: float = 0.77
    reduce64_us: float = 1.4
    part_us: float = 0.003
    cluster_us: float = 0.5
    exchange_gbs: float = 2100
    clear_us: float = 2.0
    fed_clear_us: float = 0.5
    left_gbs: float = 60
    dram_efficiency: float = 0.886
    halves: float = 0.5
    l2_to_dram: float = 0.9
    scratch_to_dram: float = 1.1
    odd_scratch: float = 1.3
    repack_us: float = 1.4
    repack_to_dram: float = 0.73
    lone_warps: float = 2.0
    issued: float = 0.9
    read_clocks: float = 1.8
    copy_clocks: float = 2.55
    single_clocks: float = 8
    slab_clocks: float = 127
    fed_read_clocks: float = 1
    fed_copy_clocks: float = 4.5
    fed_single_clocks: float = 6.5
    fed_slab_clocks: float = 57
    stream_single_clocks: float = 3.2
    fed_tall: float = 0.99
    single_us: float = 0.015
    near_us: float = 0.95
    edge_us: float = 0.12
    edge_held_us: float = 0.0341
    cta_clocks: float = 717
    store_clocks: float = 14
    round_us: float = 0.0865
    persistent: float = 0.4
    fed_persistent: float = 1.0
    uneven: float = 0.103
    overlap: float = 32
    same_bytes: float = 0.09
    widen_clocks: float = 1
    rest: float = 0.1
    dot: DotFigures = field(default_factory=DotFigures)
    dot64: DotFigures = field(
        default_factory=lambda: DotFigures(resident=800, apart=0.1, overlap=2.0)
    )
    dmma: DmmaFigures = field(default_factory=DmmaFigures)
    fed_dmma: DmmaFigures = field(
        default_factory=lambda: DmmaFigures(
            rate=128,
            slab_clocks=29.5,
            wait_clocks=66.4,
            lone_warps=2.15,
            cta_clocks=546,
            store_clocks=19.5,
            latency_us=0.962,
            round_us=0.753,
            l2_to_dram=1.46,
            dram_efficiency=0.965,
            rest=0.008,
            alone=0.0,
            gathered=0.0,
            crowded=0.11,
            in_flight=23700,
            apart=0.0,
            reach=12,
            lines=1.06,
        )
    )

    def of_dmma(self, fed: bool) -> DmmaFigures:
        """Return those of the dmma schedule, with warps that only copy or without."""
        return self.fed_dmma if fed else self.dmma

    def of_rows(self, dtype: DType) -> DotFigures:
        """Return those of the schedules for few rows."""
        return self.dot64 if dtype is DType.FLOAT64 else self.dot


#: For every architecture. Fitted on an H200 (bench/fit.py, bench/NOTES.md): the dot schedule's to
#: 762 launches of 55 problems, the others to 3776 launches of 153 problems, most of them in
#: float32; then what a launch and the sum of parts cost to 1495 of 81 problems. By hand to the
#: launches in bench/data: edges, `near_us`, `part_us` and `single_us`; to launches of the kernels
#: that store from registers (bench/NOTES.md): `store_clocks` and `persistent`; to those of
#: one sweep: `lone_warps`; to 23600 of 438 problems: `halves`, `read_clocks` and `issued`; to 358
#: of 106: `clear_us` and `left_gbs`; to 3256 of 266: those of warps that only copy. What copies of
#: operands cost are cute_wgmma's figures for the same kernel (1.4 us and 3500 GB/s, fitted there to
#: launches of odd problems). What clusters along K cost, and `odd_scratch`, are from 54 pairs of
#: launches that add up one way and the other. `overlap` and `same_bytes` are by hand, to the 22966
#: launches of 477 problems of float32 in bench/data; those of the dmma schedule and `reduce64_us`
#: are fitted to the 22425 launches of float64 there, of several H200s, and what `dot64` has of its
#: own is by hand to these. `fed_dmma` is fitted to 2640 launches of 376 problems of which a
#: warp only copies, beside 9764 others, and to what is picked of all these; its `l2_to_dram` is
#: that of the others. Its `dram_efficiency`, `crowded` and `lines` are then by hand, to picks among
#: 15305 launches of 709 problems.
H200 = Figures()
