"""What launches of `cute_simt`'s tiles are expected to cost.

Prices are made on bare numbers (`Times`): what does not depend on the extents is in a `Base`, made
once. A new term belongs into one of the two, into the total, and into the `Breakdown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import NamedTuple

from unigemm.forks import cached_property
from unigemm.planning.config import Config
from unigemm.planning.prediction import Breakdown, Prediction
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType, accumulator
from unigemm.problem.problem import Extents, MatrixType, Problem

from ..common.device_limits import clusters_at_once
from ..common.l2_residency import is_l2_resident
from ..common.top_k import changed
from ..common.workspace import LINE_BYTES, workspace_bytes
from .coefficients import H200, DmmaFigures, Figures
from .geometry_operands import (
    BANK_VECTOR,
    OperandTile,
    effective_problem,
    has_aligned_rows,
    longer_operand,
    operand_tile,
)
from .geometry_resources import (
    BASE_REGISTERS,
    COPIES_HELD,
    COPY_REGISTERS,
    RESERVED_SMEM,
    SCHEDULERS,
    Needs,
    needs_of,
    resident_warps,
    smem_of,
)
from .launch_costs import BELOW, Times, lanes, traffic_us
from .legality import unsupported_cluster, unsupported_reason, unsupported_tile_producers
from .schedules import (
    PRODUCER_WARPS,
    WARP,
    WARP_SPECIALIZED_STAGES,
    has_double_k_tiles,
    is_big,
    is_biggest,
    is_dmma,
    is_persistent,
    is_stream_k,
    is_tail,
    is_warp_specialized,
)
from .work_split import part_bytes, stream_ctas, tiles_before_tail, tiles_of

__all__ = [
    "ALONE",
    "FED_FEW",
    "FEW",
    "FEWEST_PARTS",
    "IN_STEP",
    "SHARED_ROUNDS",
    "Base",
    "Floor",
    "Work",
    "at_once",
    "dmma_floor_of",
    "exchange_us",
    "floor_of",
    "floors_us",
    "is_shared",
    "least_us",
    "measured",
    "parts_us",
    "prediction",
    "scratch_us",
    "times_of",
    "work_of",
]

FEWEST_PARTS = 2  # of K, where it is split
MOST_RESIDENT = 16  # CTAs of an SM that prices tell apart
ALONE = 256  # threads of a CTA that takes all registers of an SM
FEW = 16  # rows of a tile of tensor cores that memory bounds (16x14336x4096 in nt 116 us for 111)
_HIDING = 18  # sums of a lane whose products hide nothing yet: see `_lone_warps`
_MOST_FREE = 0.25  # places of CTAs, to those taken: where most are free others bound
FED_FEW = 32  # of one with a warp that only copies (32x14336x4096 in tn 118 us for 111)
IN_STEP = 2  # CTAs of an SM that are done at about the same time, at most
SHARED_ROUNDS = 4  # of tiles of tensor cores, at most, whose slabs are shared out


@dataclass(frozen=True, eq=False)
class Base:
    """A configuration without split-K, on a target.

    Attributes
    ----------
    problem, target, figures, config
        What it is, and what its launches cost; the problem before operands are copied.
    operands
        The tiles of A and B.
    threads
        Of a CTA, those that multiply.
    resident
        CTAs that fit on one SM at once.
    clocks, cta_clocks
        An SM's clocks for one slab of a CTA, and for its beginning and its stores, where enough
        warps are there.
    least_clocks
        Both, where as many CTAs run as an SM holds.
    edges
        Of A and B: time of a thread's copies of a slab that K ends within, where the tile lies
        inside the operand's rows, and where there are fewer.
    least_us
        Of one CTA for a slab, however little else its SM does.
    halves
        Whether slabs have halves of the lines of A, and of B.
    may_meet
        Whether the SMs' time and the memory's are joined by a norm where they are nearly the same.
    dram
        Times what memory takes for tiles of CUDA cores.
    latency_us, round_us, l2_to_dram, rest, alone, gathered, crowded, in_flight, apart,
    refill_us, reach
        The figures of its schedule.
    """

    problem: Problem
    target: Target
    figures: Figures
    config: Config
    operands: tuple[OperandTile, OperandTile]
    threads: int
    resident: int
    clocks: float
    cta_clocks: float
    least_clocks: tuple[float, float]
    edges: tuple[tuple[float, float], ...]
    least_us: float
    halves: tuple[bool, bool]
    dram: float
    latency_us: float
    round_us: float
    l2_to_dram: float
    rest: float
    alone: float
    gathered: float
    crowded: float
    in_flight: float
    apart: float
    refill_us: float
    reach: float
    may_meet: bool

    @cached_property
    def reason(self) -> str | None:
        """Why it cannot run, or None: asked of the cheap ones only."""
        return unsupported_reason(self.problem, self.config, self.target)

    @cached_property
    def tile_bytes(self) -> int:
        """Bytes of the sums of a tile."""
        return part_bytes(self.problem, self.config)

    @cached_property
    def in_clusters(self) -> int:
        """CTAs that fit on one SM at once in clusters along K; 0 where there are none."""
        own = self.config
        if own.repacked or not _pays_in_clusters(self.problem.a.dtype, own):
            return 0
        config = changed(own, cluster_k=FEWEST_PARTS)
        if unsupported_cluster(self.problem, config, self.target) is not None:
            return 0
        size = smem_of(self.problem, config, *self.operands)  # more than without; all else is alike
        if size > self.target.smem_per_block:
            return 0
        return min(self.resident, max(1, _resident_by_smem(size, self.target.smem_per_sm)))

    def by(self, config: Config) -> Base:
        """Return the same by another schedule or occupancy, with which it computes alike."""
        own = {name: value for name, value in vars(self).items() if name not in _ASKED}
        return Base(**{**own, "config": config})


# What is computed when it is asked for: of another schedule it may be something else.
_ASKED = {name for name, of in vars(Base).items() if isinstance(of, cached_property)}


class Floor(NamedTuple):
    """A tile without split-K, before it is measured for a class: what its prices are not under.

    Attributes
    ----------
    config
        What it is.
    warp_clocks, cta_clocks
        What a warp issues for a slab, without copies, at most; and as in `Base`.
    slots
        An SM's clocks for one that each warp issues.
    wait_clocks, waits_us
        What a slab takes a warp besides, and what one that is waited for takes.
    copy_clocks, boxed_clocks
        What a warp issues besides for a copy; and where whole vectors lie along M or N.
    single_clocks, single_us
        The same for an element that is copied alone, and what a slab takes besides.
    lone_warps, round_us, l2_to_dram, rest, reduce_us
        The figures of its type and schedule.
    resident
        CTAs that fit on an SM at once, at most.
    tails, shares
        There are tails with more tiles for each SM than that, and shares of slabs with fewer.
    in_clusters
        Whether there may be clusters along K.
    edges
        Whether the copies of a slab that K ends within are checked.
    reach, dram
        As in `Base`.
    """

    config: Config
    warp_clocks: float
    cta_clocks: float
    slots: float
    wait_clocks: float
    waits_us: float
    copy_clocks: float
    boxed_clocks: float
    single_clocks: float
    single_us: float
    lone_warps: float
    round_us: float
    l2_to_dram: float
    rest: float
    reduce_us: float
    resident: int
    tails: float
    shares: int
    in_clusters: bool
    edges: bool = True
    reach: float = 1.0
    dram: float = 1.0

    @property
    def warps(self) -> int:
        """Those of a CTA that multiply."""
        return self.config.warps[0] * self.config.warps[1]


class Work(NamedTuple):
    """What a price owes to the problem alone.

    Attributes
    ----------
    problem, target, extents
        What it is.
    begin_us
        Until the first slab is there; strips are launched before that.
    dram_us
        Of the device memory's traffic.
    operand_us
        Of that, of A and of B.
    part_bytes, part_us
        Of the partial sums of one part of K: their size, and the time of adding them to others.
    copied, repack_us
        Bytes of the operands that do not lie well, and the time of copying them, where a
        configuration has that.
    strips, strips_us
        The configurations of strips that the extents are without, and the time of their launches.
    """

    problem: Problem
    target: Target
    extents: Extents
    begin_us: float
    dram_us: float
    operand_us: tuple[float, float]
    part_bytes: int
    part_us: float
    copied: int
    repack_us: float
    strips: tuple[Config, ...] = ()
    strips_us: float = 0.0

    def behind(self, strips: tuple[Config, ...], us: float) -> Work:
        """Return the same behind the launches of strips."""
        return self._replace(begin_us=self.begin_us + us, strips=strips, strips_us=us)


def work_of(problem: Problem, extents: Extents, target: Target, f: Figures) -> Work:
    """Return what a product's prices owe to its extents."""
    moved = extents.bytes_moved(problem)
    rate, each = target.dram_gbs * f.dram_efficiency, extents.batch * extents.k
    rows = (not has_aligned_rows(problem.a)) * extents.m + (
        not has_aligned_rows(problem.b)
    ) * extents.n
    copied = rows * each * problem.a.dtype.itemsize
    copies_gbs = target.dram_gbs * f.repack_to_dram
    of_part = workspace_bytes(problem, extents, 2) // 2
    odd = f.odd_scratch if extents.n % (BANK_VECTOR // problem.accumulator.itemsize) else 1.0
    return Work(
        problem,
        target,
        extents,
        begin_us=f.launch_us + f.latency_us - (f.near_us if is_l2_resident(moved) else 0.0),
        dram_us=traffic_us(moved, rate),
        operand_us=(
            traffic_us(extents.m * each * problem.a.dtype.itemsize, rate),
            traffic_us(extents.n * each * problem.b.dtype.itemsize, rate),
        ),
        part_bytes=of_part,
        part_us=f.part_us + odd * scratch_us(of_part, target, f),
        copied=copied,
        repack_us=f.repack_us + traffic_us(2 * copied, copies_gbs),  # read and written
    )


def _resident(needs: Needs, smem_per_sm: int) -> int:
    """Return how many CTAs fit on one SM at once."""
    by_smem = _resident_by_smem(needs.smem_bytes, smem_per_sm)
    by_registers = resident_warps(needs.registers) // (needs.threads // WARP)
    return max(1, min(by_smem, by_registers, 2048 // needs.threads, MOST_RESIDENT))


def _resident_by_smem(size: int, smem_per_sm: int) -> int:
    return smem_per_sm // (size + RESERVED_SMEM)


def scratch_us(size: int, target: Target, f: Figures) -> float:
    """Return the time of writing and reading so many bytes of parts of K."""
    return traffic_us(2 * size, target.dram_gbs * f.scratch_to_dram)


def _pays_in_clusters(dtype: DType, config: Config) -> bool:
    """Say whether a tile is offered in clusters along K.

    Others were not measured, or win nothing that their prices would tell (0.1 us at 256 cubed).
    """
    return is_dmma(config) or (dtype is DType.FLOAT32 and is_big(config))


def measured(problem: Problem, target: Target, config: Config, f: Figures) -> Base:
    """Return what does not depend on the extents of a configuration, by some figures."""
    a, b = operand_tile(problem.a, config, 0), operand_tile(problem.b, config, 1)
    needs = needs_of(problem, config, a, b)
    if is_dmma(config):
        return _of_dmma(problem, target, config, f, _resident(needs, target.smem_per_sm), (a, b))
    threads = needs.threads - config.producers * WARP
    # What a warp issues for a slab: FMAs, vector reads of shared memory, and its copies.
    reads = a.rows / a.vector + b.rows / b.vector
    of_warp = _read_clocks(config, lanes(problem, target), reads, f)
    singles = 0
    for tile in (a, b):
        singles += tile.by_elements * tile.copies * (not is_warp_specialized(config))
        of_warp += _copy_clocks(tile, config, f) * tile.copies / threads
    of_warp += _widen_clocks(config, problem.a.dtype, f)
    if a.tma_fed and b.tma_fed:
        of_warp *= _tall(config, f)
    product = effective_problem(problem, config)
    resident = _resident(needs, target.smem_per_sm)
    clocks, cta_clocks = of_warp * _shared(config, f), _cta_clocks(config, f)
    visible = _visible(config, f) if is_persistent(config) else 1.0
    together = 1 + f.lone_warps / (resident * threads // WARP)
    return Base(
        problem,
        target,
        f,
        config,
        (a, b),
        threads=threads,
        resident=resident,
        clocks=clocks,
        cta_clocks=cta_clocks,
        least_clocks=(clocks * together, visible * cta_clocks * together),
        edges=(_edge_us(a, threads, f), _edge_us(b, threads, f)),
        least_us=of_warp / target.clock_mhz + f.single_us * singles / threads,
        halves=(_in_halves(product.a, config), _in_halves(product.b, config)),
        dram=1.0,
        latency_us=f.latency_us,
        round_us=f.round_us,
        l2_to_dram=f.l2_to_dram,
        rest=f.rest,
        alone=0.0,
        gathered=0.0,
        crowded=0.0,
        in_flight=1.0,
        apart=0.0,
        refill_us=0.0,
        reach=1.0,
        may_meet=problem.a.dtype is DType.FLOAT32 and not (a.by_elements or b.by_elements),
    )


def _of_dmma(
    problem: Problem, target: Target, config: Config, f: Figures, resident: int,
    tiles: tuple[OperandTile, OperandTile],
) -> Base:  # fmt: skip
    """Return the same of a tile that tensor cores multiply."""
    own, warps = f.of_dmma(is_warp_specialized(config)), config.warps[0] * config.warps[1]
    of_warp, cta_clocks = _dmma_clocks(config, own)
    of_warp += own.single_clocks * sum(x.copies for x in tiles if x.by_elements) / (WARP * warps)
    clocks = of_warp * warps / SCHEDULERS
    together = 1 + _lone_warps(config, own) / (resident * warps)
    in_lines = longer_operand(problem, config).major == "k"
    deep = has_double_k_tiles(config) and in_lines
    of_memory = (own.deep if deep else 1.0) * (own.lines if in_lines else 1.0)
    return Base(
        problem,
        target,
        f,
        config,
        tiles,
        threads=warps * WARP,
        resident=resident,
        clocks=clocks,
        cta_clocks=cta_clocks,
        least_clocks=(clocks * together, cta_clocks * together),
        edges=(_edge_us(tiles[0], warps * WARP, f), _edge_us(tiles[1], warps * WARP, f)),
        least_us=(of_warp + own.wait_clocks) / target.clock_mhz,
        halves=(False, False),
        dram=f.dram_efficiency / own.dram_efficiency * of_memory,
        latency_us=own.latency_us,
        round_us=own.round_us,
        l2_to_dram=own.l2_to_dram,
        rest=own.rest,
        alone=own.alone if resident == 1 else 0.0,
        gathered=own.gathered,
        crowded=own.crowded,
        in_flight=own.in_flight,
        apart=own.apart if in_lines else 0.0,
        refill_us=own.refill_us if deep and resident == 1 else 0.0,
        reach=own.reach,
        may_meet=False,
    )


def _lone_warps(config: Config, own: DmmaFigures) -> float:
    """Return with how many warps half of the time is lost: with fewer where each has many sums.

    Of what is fed: products of other sums hide a warp's waits (64x112 with 32 sums a lane is 17
    percent faster than this was priced without it).
    """
    sums = config.thread[0] * config.thread[1]
    return own.lone_warps * (min(1.0, _HIDING / sums) if is_warp_specialized(config) else 1.0)


def _dmma_clocks(config: Config, own: DmmaFigures) -> tuple[float, float]:
    """Return a warp's clocks for a slab, without copies of single elements, and a CTA's others."""
    m, n, k = config.tile
    warps = config.warps[0] * config.warps[1]
    # What a warp's scheduler is busy with: products, and all else of a slab.
    of_warp = m * n * k * SCHEDULERS / (warps * own.rate) + own.slab_clocks
    stores = own.store_clocks * config.thread[0] * config.thread[1]
    return of_warp, (own.cta_clocks + stores) * warps / SCHEDULERS


def dmma_floor_of(config: Config, smem_per_sm: int) -> Floor:
    """Return what the prices of a tile that tensor cores multiply are not under, in any class."""
    fed = is_warp_specialized(config)
    f, own = H200, H200.of_dmma(fed)
    warps = config.warps[0] * config.warps[1]
    of_warp, cta_clocks = _dmma_clocks(config, own)
    registers = BASE_REGISTERS + 2 * config.thread[0] * config.thread[1]
    shared = is_shared(config)
    return Floor(
        config,
        warp_clocks=of_warp,
        cta_clocks=cta_clocks,
        slots=warps / SCHEDULERS,
        wait_clocks=own.wait_clocks,
        waits_us=own.latency_us / (config.stages - 1),
        copy_clocks=0.0,
        boxed_clocks=0.0,
        single_clocks=own.single_clocks / (WARP * warps),
        single_us=0.0,
        lone_warps=_lone_warps(config, own),
        round_us=own.round_us,
        l2_to_dram=own.l2_to_dram,
        rest=own.rest,
        reduce_us=f.reduce64_us,
        resident=_residents(config, registers, _stages_bytes(config, 8, 8), smem_per_sm),
        tails=1.0 if shared else inf,
        shares=SHARED_ROUNDS if shared else 0,
        in_clusters=True,
        edges=not fed,
        reach=own.reach,
        dram=f.dram_efficiency
        / own.dram_efficiency
        * (own.deep if has_double_k_tiles(config) else 1.0)
        * min(1.0, own.lines),
    )


def floor_of(config: Config, a: DType, b: DType, fma_lanes: int, smem_per_sm: int) -> Floor:
    """Return what a tile's prices are not under for inputs of some types: the widest reads."""
    f, (m, n) = H200, config.thread
    least, of_single = config, f.single_clocks
    fed = unsupported_tile_producers(a, config) is None
    if fed:  # less than without
        least = replace(
            config, producers=PRODUCER_WARPS, stages=max(config.stages, WARP_SPECIALIZED_STAGES)
        )
        of_single = min(of_single, f.fed_single_clocks, f.stream_single_clocks)
    reads = (m * a.itemsize + n * b.itemsize) / BANK_VECTOR
    of_warp = _read_clocks(least, fma_lanes, reads, f) + _widen_clocks(config, a, f)
    warps = config.warps[0] * config.warps[1]
    registers, smem_bytes = _least_needs(config, a, b)
    return Floor(
        config,
        warp_clocks=of_warp * _tall(least, f),
        cta_clocks=_cta_clocks(config, f),
        slots=_shared(config, f),
        wait_clocks=0.0,
        waits_us=f.latency_us / (least.stages - 1),
        copy_clocks=(min(f.copy_clocks, f.fed_copy_clocks) if fed else f.copy_clocks)
        / (WARP * warps),
        boxed_clocks=0.0 if fed else f.copy_clocks / (WARP * warps),
        single_clocks=of_single / (WARP * warps),
        single_us=0.0 if fed else f.single_us / (WARP * warps),
        lone_warps=f.lone_warps,
        round_us=f.round_us,
        l2_to_dram=f.l2_to_dram,
        rest=f.rest,
        reduce_us=f.reduce64_us if a is DType.FLOAT64 else f.reduce_us,
        resident=_residents(config, registers, smem_bytes, smem_per_sm),
        tails=_tails(least, a, smem_per_sm),
        shares=int(a is DType.FLOAT32 and is_biggest(config) and warps * WARP >= ALONE),
        in_clusters=_pays_in_clusters(a, config),
    )


def is_shared(config: Config) -> bool:
    """Say whether a tile of tensor cores has a tail, or shares its slabs out, in some classes.

    One that TMA feeds has neither.
    """
    alone = config.warps[0] * config.warps[1] * WARP >= ALONE
    return alone and min(config.tile[:2]) > FEW and not is_warp_specialized(config)


def _tails(config: Config, dtype: DType, smem_per_sm: int) -> float:
    """Return with how many tiles for each SM there is no tail yet: see `configs._has_tail`."""
    if dtype is not DType.FLOAT32 or not is_big(config):
        return inf
    if is_warp_specialized(config):
        return 1.0
    registers = _registers_of(config, 4, COPIES_HELD)
    m, n, k = config.tile
    pipeline = config.stages * k * 4 * (m + n + 2 * BANK_VECTOR // 4)  # of turned operands
    patches = m // config.thread[0] * (n + config.warps[1] * BANK_VECTOR // 4) * 4
    resident = _residents(config, registers, max(pipeline, patches), smem_per_sm)
    return float(resident * (2 if resident > IN_STEP else 1))


def _least_needs(config: Config, a: DType, b: DType) -> tuple[int, int]:
    """Return the registers of a thread and the shared memory of a CTA, at least."""
    m, n, k = config.tile
    threads = config.warps[0] * config.warps[1] * WARP
    copies = sum(
        ceil(side * k * kind.itemsize / BANK_VECTOR / threads) for side, kind in ((m, a), (n, b))
    )
    registers = _registers_of(config, accumulator(a).itemsize, min(copies, COPIES_HELD))
    return registers, _stages_bytes(config, a.itemsize, b.itemsize)


def _registers_of(config: Config, sum_bytes: int, copies: int) -> int:
    """Return the registers of a thread that has one step of fragments, and so many copies."""
    m, n = config.thread
    return BASE_REGISTERS + COPY_REGISTERS * copies + (m * n + m + n) * sum_bytes // 4


def _residents(config: Config, registers: int, smem_bytes: int, smem_per_sm: int) -> int:
    """Return how many CTAs with such needs fit on an SM at once."""
    threads = config.warps[0] * config.warps[1] * WARP
    return _resident(Needs(threads, smem_bytes, min(255, registers)), smem_per_sm)


def _stages_bytes(config: Config, a_bytes: int, b_bytes: int) -> int:
    """Return the bytes of all stages of a tile, without padding."""
    m, n, k = config.tile
    return config.stages * k * (m * a_bytes + n * b_bytes)


def _in_halves(kind: MatrixType, config: Config) -> bool:
    """Say whether a slab has halves of an operand's lines, in the type in which it was measured."""
    line = config.tile[2] * kind.dtype.itemsize
    return kind.dtype is DType.FLOAT32 and kind.major == "k" and line < LINE_BYTES


def _read_clocks(config: Config, fma_lanes: int, reads: float, f: Figures) -> float:
    """Return what a warp issues for a slab, once it is there as it is multiplied."""
    fma_clocks = config.thread[0] * config.thread[1] * 128 / fma_lanes
    of_read, of_slab = f.read_clocks, f.slab_clocks
    if is_warp_specialized(config):
        of_read, of_slab = f.fed_read_clocks, f.fed_slab_clocks
    return config.tile[2] * (fma_clocks + of_read * reads) + of_slab


def _tall(config: Config, f: Figures) -> float:
    """Return the part of a slab's clocks that a tall tile takes where TMA brings both operands.

    All of them where there is a tail: 64 pairs of launches with one took the same time.
    """
    m, n, _ = config.tile
    return f.fed_tall if is_warp_specialized(config) and m > n and not is_tail(config) else 1.0


def _copy_clocks(tile: OperandTile, config: Config, f: Figures) -> float:
    """Return the issue slots of a copy."""
    if tile.tma_fed:
        return 0.0
    if is_warp_specialized(config):
        of_single = f.stream_single_clocks if is_stream_k(config) else f.fed_single_clocks
        return of_single if tile.by_elements else f.fed_copy_clocks
    return f.single_clocks if tile.by_elements else f.copy_clocks


def _widen_clocks(config: Config, dtype: DType, f: Figures) -> float:
    return config.tile[2] * f.widen_clocks * sum(config.thread) if dtype.itemsize == 2 else 0.0


def _cta_clocks(config: Config, f: Figures) -> float:
    stores = f.store_clocks * config.thread[0] * config.thread[1]
    return (f.cta_clocks + stores) * _shared(config, f)


def _visible(config: Config, f: Figures) -> float:
    """Return the part of a persistent CTA's clocks that is not hidden."""
    return f.fed_persistent if is_warp_specialized(config) else f.persistent


def _shared(config: Config, f: Figures) -> float:
    """Return the issue slots of an SM that one of each warp of a CTA takes."""
    return f.issued * (config.warps[0] * config.warps[1]) / SCHEDULERS


def _edge_us(tile: OperandTile, threads: int, f: Figures) -> tuple[float, float]:
    if tile.tma_fed:
        return 0.0, 0.0
    each = f.edge_us if tile.asynchronous else f.edge_held_us
    checked = each * -(-tile.copies // threads)
    return checked if tile.checks_k_end or not tile.asynchronous else 0.0, checked


def least_us(base: Base, work: Work) -> float:
    """Return a time that no launch of a tile is under, however K is split."""
    slabs = ceil(work.extents.k / base.config.tile[2])
    of_slab, of_cta = base.least_clocks
    clocks = tiles_of(base.config, work.extents) * (slabs * of_slab + of_cta)
    begin = work.begin_us + (work.repack_us if base.config.repacked else 0.0)
    sms = base.target.sm_count * base.target.clock_mhz
    return BELOW * (begin + max(clocks / sms, base.dram * work.dram_us))


def floors_us(floors: Iterable[Floor], work: Work) -> Iterator[float]:
    """Yield times that no launch of each tile is under, in whatever schedule and class."""
    target, extents = work.target, work.extents
    m, n, k, batch = extents.m, extents.n, extents.k, extents.batch
    sms, mhz, begin_us = target.sm_count, target.clock_mhz, work.begin_us
    pairs = clusters_at_once(target, FEWEST_PARTS) if target.capability[0] == 9 else 0
    kernel_us = H200.part_us * FEWEST_PARTS
    for floor in floors:
        rows, columns, depth = floor.config.tile
        dram_us, slabs = floor.dram * work.dram_us, ceil(k / depth)
        ctas = ceil(m / rows) * ceil(n / columns) * batch
        clocks, cta_clocks = floor.warp_clocks * floor.slots, floor.cta_clocks
        lone = floor.lone_warps / floor.warps  # once for as many CTAs as an SM holds, at least
        each, level = ctas / sms, 1 + lone / floor.resident
        shared = each > floor.tails or each < floor.shares
        alone, busiest = 1 + lone, level * (each if shared else ceil(each))
        of_k = clocks * slabs
        least = max(max(alone, busiest) * (of_k + cta_clocks) / mhz, dram_us)
        if slabs >= 2 * FEWEST_PARTS:  # in two parts at least, of two slabs at least
            parts = max(alone * (2 * clocks + cta_clocks), level * each * (of_k + 2 * cta_clocks))
            reduction = floor.reduce_us + kernel_us
            if floor.in_clusters and ctas <= floor.resident * pairs:
                reduction = min(reduction, H200.cluster_us)
            least = min(least, max(parts / mhz, dram_us) + reduction)
        yield BELOW * (begin_us + least)


class Rounds(NamedTuple):
    """What CTAs with equally many slabs take, as many at a time as fit.

    Attributes
    ----------
    us
        Of the busiest SM.
    fma, latency
        What bounds it, each alone.
    rounds, places
        How many, and the CTAs that they have room for.
    busiest
        CTAs of the busiest SM.
    """

    us: float
    fma: float
    latency: float
    rounds: int
    places: int
    busiest: int


def _rounds(base: Base, ctas: int, slabs: int, together: int = 1) -> Rounds:
    target, f = base.target, base.figures
    # Of its CTAs the busiest SM has `per_sm` at once, but for the last of them.
    busiest = ceil(ctas / target.sm_count)
    if together > 1:  # clusters leave some SMs without any
        busiest = ceil(ctas // together / clusters_at_once(target, together))
    per_sm, round_us, cta_clocks = min(busiest, base.resident), base.round_us, base.cta_clocks
    if is_persistent(base.config):
        per_sm = min(busiest, base.config.occupancy)
        busiest = per_sm * ceil(ctas / (per_sm * target.sm_count))
        round_us, cta_clocks = 0.0, _visible(base.config, f) * cta_clocks
    rounds = ceil(busiest / per_sm)
    last = busiest % per_sm
    clocks = busiest // per_sm * at_once(base, per_sm, f) + at_once(base, last, f)
    fma = clocks * (base.clocks * slabs + cta_clocks) / target.clock_mhz
    waits = base.latency_us / max(1, (base.config.stages - 1) * per_sm)
    latency = rounds * slabs * max(waits, base.least_us)
    us = max(fma, latency) + round_us * (rounds - 1)
    return Rounds(us, fma, latency, rounds, rounds * per_sm * target.sm_count, busiest)


def times_of(base: Base, work: Work, split_k: int, bar: float, together: int = 1) -> Times | None:
    """Price waves of CTAs against arithmetic, shared memory, L2 and DRAM.

    With parts of K added up by a kernel, or in clusters of so many CTAs together. None where the
    price is above the bar.
    """
    extents, begin = work.extents, work.begin_us
    repack = work.repack_us if base.config.repacked else 0.0
    problem, target, f = base.problem, base.target, base.figures
    m, n, k = base.config.tile
    dram = base.dram * work.dram_us + f.halves * (
        base.halves[0] * work.operand_us[0] + base.halves[1] * work.operand_us[1]
    )
    all_slabs, tiles, whole = ceil(extents.k / k), tiles_of(base.config, extents), 0
    if is_tail(base.config):
        whole = tiles_before_tail(tiles, target.sm_count * base.config.occupancy)
    parts = split_k * together
    slabs, ctas = ceil(all_slabs / parts), parts * (tiles - whole)
    streamed = is_stream_k(base.config)
    if streamed:
        ctas = stream_ctas(base.config, extents, target)
        slabs = ceil(tiles * all_slabs / ctas)
    sm_us, fma, latency, rounds, places, busiest = _rounds(base, ctas, slabs, together)
    even = sm_us * ctas / (busiest * target.sm_count)
    if whole:  # the CTAs of parts begin as those of whole tiles end
        before = _rounds(base, whole, all_slabs)
        sm_us, fma, latency = sm_us + before.us, fma + before.fma, latency + before.latency
        rounds += before.rounds
        even += before.us * whole / (before.busiest * target.sm_count)
    if extents.k % k:  # the last slab is copied with checks, one copy after the other
        edge = base.edges[0][extents.m < m] + base.edges[1][extents.n < n]
        edge *= min(1.0, extents.k / k)
        spare = 0 if streamed else slabs * parts - all_slabs  # what the last part has fewer
        sm_us += rounds * max(0.0, edge - spare * base.clocks / target.clock_mhz)
    # Few CTAs cannot draw the whole bandwidth, be it those of the last round.
    busy = min(1.0, base.reach * (whole + ctas) / target.sm_count)
    if streamed:
        adding = _shared_us(base, ctas / tiles, ceil(slabs / all_slabs))
    elif together > 1:
        adding = exchange_us(base, tiles, together)
    else:
        adding = parts_us(base, work, split_k, ctas)
    if repack + begin + max(sm_us, dram / busy) + adding > bar:
        return None

    of_slab = k * (m * problem.a.dtype.itemsize + n * problem.b.dtype.itemsize)
    fetched = (ctas * slabs + whole * all_slabs) * of_slab
    l2 = traffic_us(fetched, target.dram_gbs * base.l2_to_dram)
    if not whole:
        l2 *= 1 + f.uneven * (places / max(ctas, target.sm_count) - 1)
    if base.crowded:
        per_sm = places // (rounds * target.sm_count)
        held = per_sm * (base.config.stages - 1) * of_slab
        # Of those that are fed only where some places are free (see `DmmaFigures`).
        free = min(_MOST_FREE, places / ctas - 1) if is_warp_specialized(base.config) else 1.0
        dram *= 1 + base.crowded * free * max(0.0, held / base.in_flight - 1)
        dram *= 1 + base.apart * (per_sm - 1)
    if together > 1:  # clusters fill some SMs before others have any
        dram *= 1 + base.gathered * (busiest * target.sm_count / ctas - 1)
    exposed = base.alone * max(0.0, work.dram_us - sum(work.operand_us))
    exposed += base.refill_us * (rounds - 1)
    loop = _joined(base, sm_us, dram / busy, l2 / busy) + exposed
    total = repack + begin + loop + adding
    if total > bar:
        return None
    return Times(
        total,
        launch=begin - work.strips_us,
        loop=loop,
        reduction=adding,
        full=_joined(base, even, dram, l2) + exposed,
        fma=0.0 if is_dmma(base.config) else fma,
        tensor=fma if is_dmma(base.config) else 0.0,
        latency=latency,
        l2=l2 / busy,
        dram=dram / busy,
        repack=repack,
        strips=work.strips_us,
    )


def parts_us(base: Base, work: Work, split_k: int, ctas: int) -> float:
    """Return what it takes to add parts of K, of so many CTAs: a kernel, and its traffic."""
    if split_k == 1:
        return 0.0
    f = base.figures
    reduce_us = f.reduce64_us if base.problem.a.dtype is DType.FLOAT64 else f.reduce_us
    if not is_tail(base.config):
        return reduce_us + split_k * work.part_us
    copied = scratch_us(ctas * base.tile_bytes, base.target, f)
    return reduce_us + f.part_us * split_k + copied


def exchange_us(base: Base, tiles: int, count: int) -> float:
    """Return what it takes to add up in clusters of so many CTAs, and the traffic."""
    f = base.figures
    sent = tiles * base.tile_bytes * (count - 1)  # each CTA a share of all others' sums
    return f.cluster_us + sent / f.exchange_gbs / 1e3


def _shared_us(base: Base, pieces: float, more: int) -> float:
    """Return what stream-K takes beside its slabs: kernels and begins of tiles, and the traffic.

    Of so many pieces a tile, and as many `more` tiles that a CTA begins or goes on with.
    """
    f = base.figures
    again = at_once(base, base.config.occupancy, f) * base.cta_clocks / base.target.clock_mhz
    own = f.dmma if is_dmma(base.config) else f
    of_part = traffic_us(part_bytes(base.problem, base.config), own.left_gbs)
    begins, clear_us = again + f.latency_us, own.clear_us
    if is_warp_specialized(base.config):  # its slabs are there already
        begins, clear_us = f.fed_persistent * again, f.fed_clear_us
    # One left, and those of others added at the end.
    return clear_us + more * begins + (1 + pieces) * of_part


def at_once(base: Base, ctas: int, f: Figures) -> float:
    """Return in how many CTAs' issue slots some CTAs of an SM are done, all at once.

    Six warps take as long as eight: two of the four schedulers have two of them.
    """
    if not ctas:
        return 0.0
    warps = base.threads // WARP
    level = -(-ctas * warps // SCHEDULERS) * SCHEDULERS
    lone = f.lone_warps
    if is_dmma(base.config):
        lone = _lone_warps(base.config, f.of_dmma(is_warp_specialized(base.config)))
    return level / warps * (1 + lone / level)


def _joined(base: Base, sm_us: float, dram: float, l2: float) -> float:
    """Return what times take that overlap: the longest, and some of the others.

    More where the SMs are busy for nearly as long as the memory: each waits for the other at times.
    Fitted to float32 in vectors; others are priced without, as they were measured.
    """
    longest = max(sm_us, dram, l2)
    if not base.may_meet:
        return longest + base.rest * (sm_us + dram + l2 - longest)
    f, memory = base.figures, max(dram, l2)
    shorter = min(sm_us, memory)
    norm = (1 + (shorter / longest) ** f.overlap) ** (1 / f.overlap)
    return longest * norm + f.rest * shorter + f.same_bytes * min(dram, l2)


def prediction(times: Times) -> Prediction:
    """Say what a price is made of."""
    parts = Breakdown(
        launch=times.launch,
        mainloop=times.full,
        waves=times.loop - times.full,
        reduction=times.reduction,
        repack=times.repack,
        remainder=times.strips,
        fma=times.fma,
        tensor=times.tensor,
        latency=times.latency,
        l2=times.l2,
        dram=times.dram,
    )
    return Prediction(times.total, parts.limiter, parts)
