"""The arithmetic of one configuration: computed once, for the planner, the kernel and the tests.

A CTA of `warps` (M, N) warps computes a `tile` (M, N) of D in slabs of `tile` K. In each warp 32
lanes lie in a grid (M, N); each lane owns `thread` (M, N) accumulators. Operands stay in shared
memory in the majorness that they have in device memory, so that every copy is a plain vector and
nothing is transposed on the way; lanes read 16-byte vectors along whichever index is contiguous.

With `cluster_k` the CTAs of a cluster share a tile, each with a part of K; each leaves its sums
where its stages were, and adds up its share of all (cluster.py).

The schedule "persistent" keeps `occupancy` CTAs on each SM, which take tiles in turn; "tail" cuts
only the tiles of the last round into parts of K, of which an SM holds `occupancy`. "stream"
shares the slabs of all tiles out equally among `occupancy` CTAs on each SM.

With `producers`, warps of their own copy the slabs, and the other warps only multiply
(specialised.py). A `repacked` configuration has operands that do not lie in aligned rows along M or
N copied into the workspace, so that they do: `seen` is the problem that its tiles are of.

What M or N has more than whole tiles may be a strip of its own, which one of the next two computes.

The schedule "dmma" is for float64 where tensor cores have it: the tiles, copies and stores are the
same, but warps multiply eight or sixteen rows and columns at a time (dmma.py), and who owns which
sum is the instruction's choice. Eight lanes share one index, four the other. "dmma-tail" and
"dmma-stream" are such tiles by the schedules "tail" and "stream".

Two others are kernels of their own, for few rows of A: "dot" (dot.py) has `tile` M rows of A, warps
along N only, lanes along K; "axpy" (axpy.py), for an N-major B, one row of A and `thread` N columns
of B in each lane, lanes along N, and `stages` rows of B on their way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from unigemm.dtypes import DType
from unigemm.forks import cached_property
from unigemm.plans import Config
from unigemm.problem import Extents, MatrixType, Problem
from unigemm.target import Target, named_target

from ..clusters import MAX_CLUSTER
from ..workspace import LINE_BYTES, aligned, whole, workspace_bytes
from .leftover import of_tiles, shared_out
from .shares import stream_bytes

__all__ = [
    "AXPY",
    "BASE_REGISTERS",
    "DMMA",
    "DMMA_K",
    "DMMA_STREAM",
    "DMMA_TAIL",
    "DOT",
    "DOT_ROWS",
    "FED_STAGES",
    "FEW_ROWS",
    "FRAGMENT_K",
    "FRAGMENT_ROWS",
    "LONE_PRODUCER",
    "PRODUCERS",
    "SWIZZLE_ROWS",
    "WARP",
    "Copy",
    "Geometry",
    "Needs",
    "OperandTile",
    "axpy_lanes",
    "axpy_parts",
    "brings_two",
    "copied_bytes",
    "copy_schedule",
    "copy_step",
    "few_rows_blocks",
    "few_rows_carveout",
    "few_rows_smem_bytes",
    "few_rows_step",
    "few_rows_threads",
    "few_rows_turn",
    "few_rows_vector",
    "few_rows_wide",
    "geometry",
    "has_roles",
    "illegal",
    "in_boxes",
    "in_cluster",
    "in_parts",
    "is_big",
    "is_biggest",
    "is_copied",
    "is_deep",
    "is_dmma",
    "is_persistent",
    "is_specialised",
    "is_stream",
    "is_tail",
    "launched_smem",
    "lies_well",
    "longer",
    "may_turn",
    "misfit",
    "needs_of",
    "never_fed",
    "operand_tile",
    "part_bytes",
    "patches_apart",
    "producers_of",
    "resident_warps",
    "scratch_bytes",
    "seen",
    "smem_of",
    "stream_ctas",
    "tiles_of",
    "whole_tiles",
    "without_boxes",
    "without_cluster",
    "without_copies",
    "without_dmma",
    "without_producers",
    "without_stream",
    "without_strips",
    "without_tail",
]

WARP = 32
SCHEDULERS = 4  # of an SM
BANK_VECTOR = 16  # bytes: the widest shared-memory access of a lane
SM_REGISTERS = 65536
BARRIER_BYTES = 8  # of an mbarrier (PTX ISA)
RESERVED_SMEM = 1024  # bytes of each CTA, by the driver, from sm_80 on
MIN_COPY = 4  # bytes: the narrowest cp.async (PTX ISA, cp.async: cp-size is 4, 8 or 16)
# Seen beyond accumulators and fragments (sm_90a): about 40, and some for each copy's address.
BASE_REGISTERS, COPY_REGISTERS, COPIES_HELD = 40, 4, 6
# The steps of both indices beside fragments: 64x64 tiles with 168 registers spilled two of them.
STRIDE_REGISTERS = 16
DOT, AXPY = "dot", "axpy"
FEW_ROWS = (DOT, AXPY)  # schedules with loads straight to registers
# Schedules whose warps multiply float64 on tensor cores: one as "" does, and as the next two do.
DMMA, DMMA_TAIL, DMMA_STREAM = "dmma", "dmma-tail", "dmma-stream"
DMMA_SLAB = LINE_BYTES // 8  # K of a slab that has a line of each row, in float64
SWIZZLE_ROWS = LINE_BYTES // 8  # M or N of a box that lie side by side, in float64
DMMA_K = 8  # of its instruction, mma.sync.m16n8k8 (PTX ISA: from sm_90 on)
FRAGMENT_ROWS, FRAGMENT_K = 8, 4  # of which a lane has one element
DOT_ROWS = (1, 2, 4, 8)  # of A
DOT_THREADS = 512  # of an SM, at least: 128 registers each
AXPY_THREADS = 1024  # the same: 64 registers each, with eight rows of B on their way
_DOT_REGISTERS = 32
_AXPY_ROWS = (4, 8, 16)
_PAIRED = 5  # stages: see `brings_two`
PRODUCERS = 4  # warps that only copy: a warpgroup, whose registers change (PTX ISA, setmaxnreg)
LONE_PRODUCER = 1  # the same where TMA brings all, in float64: one lane of it starts the boxes
_CONSUMERS, FED_STAGES = 8, 5  # of CTAs with such warps: the others, and stages
MAX_ACCUMULATOR_REGISTERS = 128  # of 255 a thread may have; operands and addresses need the rest


@dataclass(frozen=True)
class OperandTile:
    """One operand's tile in shared memory, `extent` (M or N) by `slab` (K).

    Attributes
    ----------
    dtype
        Element type.
    k_major
        Stored (extent, K) with K contiguous; else (K, extent).
    turned
        Turned by the copies: K-major in device memory, stored (K, extent).
    parted
        Parts of a line that are exchanged, in each line in another way: four of each 128 bytes
        that tensor cores read. Else 0.
    extent, slab
        Sizes along M (or N) and K.
    pitch
        Elements between stored lines, padding included.
    copy
        Elements of one copy from device memory.
    lanes, run, rows
        `lanes` lanes of a warp share the extent; each owns `rows` of it, in runs of `run`
        neighbours.
    vector
        Elements of one shared-memory read along the contiguous index.
    full
        The threads have as many accumulators as they may.
    boxed
        Brought by TMA, a box a slab, and not by copies of threads.
    swizzled
        Such boxes have rows of 128 bytes, whose 16-byte units are exchanged by the row's number:
        of float64. An operand that is not K-major comes in several, of 16 M or N each.
    by_warps
        Each line is copied by one warp: where copies are of single elements, most of what they
        issue is addresses, and a thread has those of four lines, not of all. In stream-K alone
        (2047 cubed in tn 347 to 327 us): other launches take longer (1024 cubed 51 to 52 us).
    padded
        Behind the last row of the operand, a copy, there are others up to a whole tile: whatever
        they hold goes into sums that nobody stores.
    """

    dtype: DType
    k_major: bool
    turned: bool
    parted: int
    extent: int
    slab: int
    pitch: int
    copy: int
    lanes: int
    rows: int
    run: int
    vector: int
    full: bool
    boxed: bool
    swizzled: bool
    by_warps: bool
    padded: bool

    @property
    def asynchronous(self) -> bool:
        """Whether the copies are cp.async; single 2-byte elements go through registers."""
        return self.copy * self.dtype.itemsize >= MIN_COPY

    @property
    def checked(self) -> bool:
        """Whether the slab that K ends within is copied with checks.

        Copies of one element need none. But to say of many which of them lie behind K takes
        registers, where lines of a slab are copied one by one: full threads would spill.
        """
        return self.copy > 1 or (self.full and not self.turned)

    @property
    def single(self) -> bool:
        """Whether it is copied by single elements, and not because it is turned."""
        return self.copy == 1 and not self.turned

    @property
    def lines(self) -> int:
        """Stored lines of the tile."""
        return self.extent if self.k_major else self.slab

    @property
    def line(self) -> int:
        """Elements of one line, padding left out."""
        return self.slab if self.k_major else self.extent

    @cached_property  # as the next: tiles are kept, and planning asks often
    def copies(self) -> int:
        """Return how many copies fill the tile."""
        return self.lines * self.line // self.copy

    @property
    def elements(self) -> int:
        """Elements of the tile in shared memory, padding included, a multiple of 16 bytes."""
        unit = BANK_VECTOR // self.dtype.itemsize
        return -(-self.lines * self.pitch // unit) * unit

    @cached_property
    def bytes(self) -> int:
        """Shared memory of one stage of this operand."""
        return self.elements * self.dtype.itemsize

    def twist(self, line: int) -> int:
        """Return what to combine (exclusive or) with a place in a line for where it is stored.

        Of a turned tile, with the pitch, this spreads over the banks what the copies of a warp
        write at once. Never by an odd number: the compiler has FMAs read one even and one odd
        register, for all K alike. Of a parted one it does so for what tensor cores read.
        """
        if self.parted:
            return line % self.parted * FRAGMENT_K
        return (line >> 3 & 1) * 2 if self.turned else 0

    def row(self, index: int) -> int:
        """Return the offset along the extent, within a warp, of accumulator `index` of lane 0."""
        return (index // self.run) * self.lanes * self.run + index % self.run


class Needs(NamedTuple):
    """What a CTA needs of an SM: see `Geometry`."""

    threads: int
    smem_bytes: int
    registers: int


@dataclass(frozen=True)
class Geometry:
    """All derived numbers of a configuration.

    Attributes
    ----------
    a, b
        The operands' tiles.
    threads
        Threads of one CTA that multiply.
    copiers
        Threads that copy slabs.
    block
        Threads of one CTA.
    lanes
        Lanes (M, N) of a warp.
    lanes_down
        Neighbouring lanes lie along M, not N.
    warp_tile
        (M, N) of D that one warp computes.
    step
        K that one round of register fragments covers.
    stage_pitch
        Accumulators between rows of a warp's patch of shared memory in the epilogue.
    run_out
        Neighbouring accumulators of a lane that go to the patch as one vector.
    left, shares
        Accumulators of a row that go as one vector to where a cluster along K adds them up, or
        another CTA does in stream-K; such vectors that a thread of a cluster adds up, at most.
    in_lines
        These go on to D through a patch of the warp, element by element: D has no such vectors.
    store
        Elements of one store to D (or to the workspace).
    direct
        Whether a run of a lane is one store, and needs no patch where the tile lies inside D.
    column
        Tiles begin at multiples of so many columns, and through a patch so many are stored at once.
    smem_bytes
        Shared memory of one CTA.
    registers
        What a thread is expected to need.
    roles
        With warps that only copy, the registers of their threads and of the others.
    turns
        With warps that only copy, of the loop over a slab's K: two where both operands are turned
        (2048 cubed in nt 336 us in one, 330 in two; in tn, where none is, 317 and 321), but for
        stream-K, whose FMAs would read three registers more often.
    min_blocks
        CTAs that an SM must be able to hold: bounds the registers the compiler may use.
    """

    a: OperandTile
    b: OperandTile
    threads: int
    copiers: int
    block: int
    lanes: tuple[int, int]
    lanes_down: bool
    warp_tile: tuple[int, int]
    step: int
    stage_pitch: int
    run_out: int
    left: int
    shares: int
    in_lines: bool
    store: int
    direct: bool
    column: int
    smem_bytes: int
    registers: int
    roles: tuple[int, int]
    turns: int
    min_blocks: int


@dataclass(frozen=True)
class Copy:
    """One copy of a thread, relative to its first.

    Attributes
    ----------
    line, position
        Steps, in lines and in elements along them.
    partial
        Not every thread takes part.
    """

    line: int
    position: int
    partial: bool


def copy_schedule(tile: OperandTile, threads: int) -> list[Copy]:
    """Spread the copies of a tile over the threads, neighbours along the contiguous index."""
    rounds = -(-tile.copies // threads)
    return [
        Copy(*copy_step(tile, threads, i), (i + 1) * threads > tile.copies) for i in range(rounds)
    ]


def copy_step(tile: OperandTile, threads: int, index: int) -> tuple[int, int]:
    """Return a thread's steps, in lines and along them, to its copy `index`."""
    per_line = tile.line // tile.copy
    if tile.turned:  # neighbours along K
        return 0, index * (threads // tile.slab)
    if tile.by_warps:
        of_line = per_line // WARP
        return index // of_line * (threads // WARP), index % of_line * WARP * tile.copy
    if per_line <= threads:
        return index * (threads // per_line), 0
    wide = per_line // threads
    return index // wide, (index % wide) * threads * tile.copy


def _lanes(config: Config) -> tuple[int, int]:
    m, n, _ = config.tile
    return (
        m // (config.warps[0] * config.thread[0]),
        n // (config.warps[1] * config.thread[1]),
    )


def lies_well(kind: MatrixType) -> bool:
    """Whether an operand has aligned rows along M or N, which are copied by whole vectors."""
    return kind.major in ("m", "n") and kind.alignment == BANK_VECTOR


def may_turn(kind: MatrixType) -> bool:
    """Whether big tiles turn an operand as they copy it."""
    return kind.major == "k" and kind.dtype is DType.FLOAT32


def is_copied(kind: MatrixType, config: Config) -> bool:
    """Whether an operand is copied into the workspace before it is multiplied."""
    return config.repacked and not lies_well(kind)


def seen(problem: Problem, config: Config) -> Problem:
    """Return the problem that the product's kernel sees: with the copies of operands that have one.

    The problem is the kernel's, as with `swap_ab`.
    """
    return _with_copies(problem) if config.repacked else problem


@lru_cache(maxsize=256)
def _with_copies(problem: Problem) -> Problem:
    return replace(problem, a=_laid_well(problem.a, 0), b=_laid_well(problem.b, 1))


def _seen_matrix(kind: MatrixType, config: Config, mode: int) -> MatrixType:
    return _laid_well(kind, mode) if config.repacked else kind


def _laid_well(kind: MatrixType, mode: int) -> MatrixType:
    if lies_well(kind):
        return kind
    return MatrixType(kind.dtype, "m" if mode == 0 else "n", BANK_VECTOR)


def copied_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the bytes of the operands' copies, at most: a repeated batch is copied once."""
    total = 0
    for mode, (kind, rows) in enumerate(((problem.a, extents.m), (problem.b, extents.n))):
        if is_copied(kind, config):
            line = whole(rows, config.tile[mode]) * kind.dtype.itemsize
            total += aligned(extents.batch * extents.k * line)
    return total


@lru_cache(maxsize=8192)
def operand_tile(kind: MatrixType, config: Config, mode: int) -> OperandTile:
    """Return the tile of A (mode 0) or B (mode 1); of a copy, where the operand has one."""
    padded, kind = is_copied(kind, config), _seen_matrix(kind, config, mode)
    extent, slab, rows = config.tile[mode], config.tile[2], config.thread[mode]
    size = kind.dtype.itemsize
    widest = BANK_VECTOR // size
    turned = may_turn(kind) and is_big(config)
    k_major = kind.major == "k" and not turned
    # A pitch of an odd number of 16-byte units puts eight neighbouring lines in distinct banks.
    pitch = slab + widest if k_major else extent + widest if turned else extent
    swizzled = is_dmma(config) and is_specialised(config)
    run = 1 if k_major else min(rows, widest)
    # 8-byte reads of 16-bit elements: 16 bytes would hold eight K steps of a row in registers.
    vector = min(slab, widest, 4) if k_major else run
    parted = 0
    if is_dmma(config):
        eight = _lanes(config)[mode] == FRAGMENT_ROWS
        run, vector = (1, 1) if eight and k_major else (2, 1 + eight)
        parted = DMMA_SLAB // FRAGMENT_K if k_major and not swizzled else 0
        pitch = slab if k_major else extent if swizzled else extent + FRAGMENT_K
    along = slab if k_major else extent
    copy = 1 if turned or kind.major == "strided" else min(kind.vector, along)
    return OperandTile(
        dtype=kind.dtype,
        k_major=k_major,
        turned=turned,
        parted=parted,
        extent=extent,
        slab=slab,
        pitch=pitch,
        copy=copy,
        lanes=_lanes(config)[mode],
        rows=rows,
        run=run,
        vector=vector,
        full=is_biggest(config),
        boxed=swizzled or (is_specialised(config) and lies_well(kind)),
        swizzled=swizzled,
        by_warps=is_specialised(config) and is_stream(config) and copy == 1 and not turned,
        padded=padded,
    )


def is_deep(config: Config) -> bool:
    """Whether slabs of the dmma schedule have two lines of each row, and not one."""
    return is_dmma(config) and config.tile[2] > DMMA_SLAB


def longer(problem: Problem, config: Config) -> MatrixType:
    """Return the operand of which a tile has more rows."""
    m, n, _ = config.tile
    return problem.a if m > n else problem.b


def is_dmma(config: Config) -> bool:
    """Whether warps multiply on tensor cores, in float64."""
    return config.schedule in (DMMA, DMMA_TAIL, DMMA_STREAM)


def is_persistent(config: Config) -> bool:
    """Whether a CTA computes several tiles, one after the other."""
    return config.schedule == "persistent"


def is_specialised(config: Config) -> bool:
    """Whether some warps only copy, and the others only multiply."""
    return config.producers > 0


def has_roles(config: Config) -> bool:
    """Whether warps that only copy leave registers to the others: where they are a warpgroup."""
    return config.producers == PRODUCERS


def patches_apart(config: Config) -> bool:
    """Whether the epilogue's patches lie beside the stages: the next tile is copied to these.

    A CTA of a cluster along K has one tile.
    """
    return is_persistent(config) or (is_specialised(config) and not in_cluster(config))


def brings_two(config: Config) -> bool:
    """Whether two slabs are brought at a time, by TMA.

    A K-major operand's rows are read 256 bytes at a time then (32x28672x8192 in nt 3 percent faster
    on an H200). Of few stages too many would be empty (four: 1 to 8 percent slower).
    """
    return is_dmma(config) and is_specialised(config) and config.stages >= _PAIRED


def is_tail(config: Config) -> bool:
    """Whether only those tiles have parts of K that are not enough for a round of CTAs."""
    return config.schedule in ("tail", DMMA_TAIL)


def is_stream(config: Config) -> bool:
    """Whether CTAs have equally many slabs, wherever in a tile these begin and end."""
    return config.schedule in ("stream", DMMA_STREAM)


def in_parts(config: Config) -> bool:
    """Whether every tile has parts of K."""
    return config.split_k > 1 and not is_tail(config)


def in_cluster(config: Config) -> bool:
    """Whether the CTAs of a cluster share a tile, each with a part of K."""
    return config.cluster_k > 1


def whole_tiles(tiles: Any, places: int) -> Any:
    """Return the tiles before the last round, where so many CTAs find a place at once.

    Of numbers, or of those in a kernel.
    """
    return (tiles - 1) // places * places


def scratch_bytes(problem: Problem, extents: Extents, config: Config, target: Target) -> int:
    """Return the bytes of a launch's workspace: copies of operands, then partial sums.

    Problem and extents are as the caller sees them.
    """
    turned, sizes = config.oriented(problem), of_tiles(config.oriented(extents), config)
    return copied_bytes(turned, sizes, config) + _sums_bytes(turned, sizes, config, target)


def _sums_bytes(problem: Problem, extents: Extents, config: Config, target: Target) -> int:
    if is_stream(config):
        return stream_bytes(stream_ctas(config, extents, target), part_bytes(problem, config))
    if not is_tail(config):
        return workspace_bytes(problem, extents, config.split_k)
    tiles = tiles_of(config, extents)
    parts = config.split_k * (tiles - whole_tiles(tiles, target.sm_count * config.occupancy))
    return parts * part_bytes(problem, config)


def part_bytes(problem: Problem, config: Config) -> int:
    """Return the bytes of the partial sums of a tile."""
    m, n, _ = config.tile
    return m * n * problem.accumulator.itemsize


def stream_ctas(config: Config, extents: Extents, target: Target) -> int:
    """Return the CTAs that share the slabs of all tiles, as `stream.start` does on the host.

    Each has one at least; a tile is a slab where there is no K.
    """
    slabs = tiles_of(config, extents) * max(1, ceil(extents.k / config.tile[2]))
    return min(slabs, target.sm_count * config.occupancy)


def tiles_of(config: Config, extents: Extents) -> int:
    """Return the tiles of all batches."""
    m, n, _ = config.tile
    return ceil(extents.m / m) * ceil(extents.n / n) * extents.batch


def is_big(config: Config) -> bool:
    """Whether a thread has so many FMAs that they hide four times the copies: a turned tile's."""
    return config.thread[0] * config.thread[1] >= 64


def is_biggest(config: Config) -> bool:
    """Whether a thread has as many accumulators as it may."""
    return config.thread[0] * config.thread[1] == MAX_ACCUMULATOR_REGISTERS


@lru_cache(maxsize=8192)
def geometry(problem: Problem, config: Config) -> Geometry:
    """Return the derived numbers of a legal configuration."""
    m, n, _ = config.tile
    a, b = operand_tile(problem.a, config, 0), operand_tile(problem.b, config, 1)
    needs = needs_of(problem, config, a, b)
    sums = problem.accumulator.itemsize
    warps = config.warps[0] * config.warps[1]
    partial = in_parts(config)
    widest = BANK_VECTOR // sums if partial else problem.d.vector
    store = min(widest, config.thread[1])
    run_out = min(b.run, BANK_VECTOR // sums)
    direct = run_out == store > 1
    # Where D's rows are odd, a tile of partial sums may begin anywhere too: by elements then.
    column = 1 if direct and partial and problem.d.vector == 1 else store
    return Geometry(
        a=a,
        b=b,
        threads=warps * WARP,
        copiers=(config.producers or warps) * WARP,
        block=needs.threads,
        lanes=_lanes(config),
        lanes_down=is_dmma(config) and _lanes(config)[1] == FRAGMENT_ROWS,
        warp_tile=(m // config.warps[0], n // config.warps[1]),
        step=_step(config, a, b),
        stage_pitch=_stage_pitch(problem, config),
        run_out=run_out,
        left=BANK_VECTOR // sums,
        shares=_shares(problem, config),
        in_lines=_in_lines(problem, config, b),
        store=store,
        direct=direct,
        column=column,
        smem_bytes=needs.smem_bytes,
        registers=needs.registers,
        roles=_roles(config, a, b, direct),
        turns=2 if a.turned and b.turned and not is_stream(config) else 1,
        min_blocks=_min_blocks(config, needs, a, b),
    )


def _min_blocks(config: Config, needs: Needs, a: OperandTile, b: OperandTile) -> int:
    """Return for how many CTAs of an SM a kernel is to leave registers."""
    blocks = max(1, min(4, resident_warps(needs.registers) // (needs.threads // WARP)))
    # Pairs of both operands' rows: 64x64 tiles spilled two of 168 registers, for a third CTA that
    # had no shared memory where there are six stages. So did 8x128 in slabs of two lines that are
    # copied by single elements, two to four of 128, for a third and a fourth.
    pairs = is_dmma(config) and not (a.k_major or b.k_major)
    many = pairs and config.stages > 4 and config.thread[0] * config.thread[1] >= 32
    many |= a.swizzled  # and these for a fourth: 16x128 two to eight of 96
    if many or (is_deep(config) and (a.single or b.single)):
        smem_per_sm = named_target("sm_90a").smem_per_sm  # such tiles are for no other
        return min(blocks, smem_per_sm // (needs.smem_bytes + RESERVED_SMEM))
    return blocks


def needs_of(problem: Problem, config: Config, a: OperandTile, b: OperandTile) -> Needs:
    """Return what a CTA with such tiles needs of an SM."""
    warps, smem_bytes = config.warps[0] * config.warps[1], smem_of(problem, config, a, b)
    threads = (warps + config.producers) * WARP
    if has_roles(config):
        return Needs(threads, smem_bytes, _launched_registers(config))
    step = _step(config, a, b)
    return Needs(threads, smem_bytes, _registers(problem, config, a, b, step))


def smem_of(problem: Problem, config: Config, a: OperandTile, b: OperandTile) -> int:
    """Return the bytes of shared memory of a CTA with such tiles."""
    warps = config.warps[0] * config.warps[1]
    pipeline = config.stages * (a.bytes + b.bytes)
    if in_cluster(config):
        patches = part_bytes(problem, config)
        if _in_lines(problem, config, b):
            patches += _shares(problem, config) * warps * WARP * BANK_VECTOR
    else:
        row_bytes = _stage_pitch(problem, config) * problem.accumulator.itemsize
        patches = warps * _lanes(config)[0] * row_bytes
    smem_bytes = pipeline + patches if patches_apart(config) else max(pipeline, patches)
    smem_bytes += 2 * config.stages * BARRIER_BYTES * is_specialised(config)
    if in_cluster(config) and is_specialised(config):  # as many of an SM as without: prices agree
        return max(smem_bytes, smem_of(problem, replace(config, cluster_k=1), a, b))
    return smem_bytes


def _shares(problem: Problem, config: Config) -> int:
    """Return the vectors that a thread of a cluster adds up, at most."""
    vectors = config.thread[0] * config.thread[1] * problem.accumulator.itemsize // BANK_VECTOR
    return -(-vectors // config.cluster_k)


def _in_lines(problem: Problem, config: Config, b: OperandTile) -> bool:
    """Whether stores of a thread's vectors as they are would reach four times as many sectors."""
    wide = BANK_VECTOR // problem.accumulator.itemsize
    return in_cluster(config) and b.run >= wide > problem.d.vector


def _roles(config: Config, a: OperandTile, b: OperandTile, direct: bool) -> tuple[int, int]:
    """Return the registers of a thread that copies, and of one that multiplies.

    They share what a CTA is launched with: for more than that its warps would wait for ever. One
    that copies waits for its own copies where it has too few for their addresses (40 for 56:
    128x8192x8192 in nn 395 us, 327). And ptxas does well or badly by what it is told that the
    others have: see `_producer_registers`.
    """
    if not has_roles(config):
        return 0, 0
    own = _producer_registers(config, a, b, direct)
    consumers = config.warps[0] * config.warps[1]
    every = (consumers + config.producers) * _launched_registers(config)
    return own, (every - own * config.producers) // consumers // 8 * 8


def _producer_registers(config: Config, a: OperandTile, b: OperandTile, direct: bool) -> int:
    """Return what a thread that copies has, for the others' loop to be a good one.

    No rule is known, these are by what `bench.issue_slots` counts: with others half of the products
    read two registers of one parity, or a quarter of the reads of shared memory is waited for
    (257x4096x4096 tt with 56 for 64: 234 us, where stream-K takes 203; 2048 cubed in nn, D off
    alignment, with 80 for 56: 403 us for 333, though fewer registers of one parity are read).
    """
    if a.boxed and b.boxed:
        return 40 if direct else 48
    if is_stream(config) or not direct or a.turned:
        return 56
    if a.boxed:
        return 56 if b.turned else 64
    if b.turned:
        return 64
    return 80 if config.tile[1] > config.tile[0] else 56


def _launched_registers(config: Config) -> int:
    """Return the registers of a thread of a CTA that has an SM to itself, before its roles."""
    warps = config.warps[0] * config.warps[1] + config.producers
    return SM_REGISTERS // (warps * WARP) // 8 * 8


def _step(config: Config, a: OperandTile, b: OperandTile) -> int:
    if is_dmma(config):
        return DMMA_K
    return max(a.vector if a.k_major else 1, b.vector if b.k_major else 1)


def _stage_pitch(problem: Problem, config: Config) -> int:
    # One spare 16-byte unit a row keeps the lanes of different rows in different banks.
    return config.tile[1] // config.warps[1] + BANK_VECTOR // problem.accumulator.itemsize


def _registers(problem: Problem, config: Config, a: OperandTile, b: OperandTile, step: int) -> int:
    """Estimate the registers of a thread: accumulators, one round of fragments, addresses."""
    words = problem.accumulator.itemsize // 4
    threads = config.warps[0] * config.warps[1] * WARP
    fragments = copies = held = 0
    for tile, warps in zip((a, b), config.warps, strict=True):
        count = -(-tile.copies // threads)
        if is_dmma(config):  # each eighth row, each fourth K
            fragments += DMMA_K // FRAGMENT_K * tile.extent // warps // FRAGMENT_ROWS
        else:
            fragments += tile.rows * (step if tile.k_major else 1)
        copies += 0 if tile.boxed else count
        held += 0 if tile.asynchronous else 2 * count
    addresses = BASE_REGISTERS + COPY_REGISTERS * min(copies, COPIES_HELD)
    if is_dmma(config) and "strided" in (problem.a.major, problem.b.major):
        addresses += STRIDE_REGISTERS
    sums = config.thread[0] * config.thread[1]
    return min(words * (sums + fragments) + addresses + held, 255)


def resident_warps(registers: int) -> int:
    """Return how many warps fit on an SM: its schedulers have equal parts of the registers.

    64 threads of 134 registers: six CTAs, where the sum of all registers would do for seven.
    """
    return SCHEDULERS * (SM_REGISTERS // SCHEDULERS // (WARP * -(-registers // 8) * 8))


def _is_power_of_two(*numbers: int) -> bool:
    return all(n > 0 and n & (n - 1) == 0 for n in numbers)


def launched_smem(geo: Geometry, config: Config, smem_per_sm: int) -> int:
    """Return the shared memory to ask for: so much that no more CTAs fit than are to be there."""
    if config.occupancy == 0:
        return geo.smem_bytes
    return max(geo.smem_bytes, smem_per_sm // (config.occupancy + 1))


def dot_unroll(config: Config) -> int:
    """Return how many steps along K have their loads in flight: about fifteen loads of a lane.

    With twelve, one row takes 80 registers, and three CTAs fit on an SM where two for each would
    do: some SMs get more than others (1x4096x14336: 72 against 55 us).
    """
    return max(1, min(8, 15 // (config.tile[0] + config.tile[1] // config.warps[1])))


def axpy_lanes(config: Config) -> int:
    """Return how many lanes of a warp lie along N; the others have other rows of B."""
    return config.tile[1] // (config.warps[1] * max(1, config.thread[1]))


def axpy_parts(config: Config) -> int:
    """Return how many lanes of a CTA share a column, each with rows of B of its own."""
    return config.slice_k * WARP // axpy_lanes(config)


def few_rows_step(problem: Problem, config: Config) -> int:
    """Return the elements along K that a CTA reads in one turn."""
    return few_rows_turn(few_rows_vector(problem), config)


def few_rows_vector(problem: Problem) -> int:
    """Return the elements along K of one load in the dot schedule."""
    if problem.a.major == "m":
        return problem.b.vector
    return min(problem.a.vector, problem.b.vector)


def few_rows_wide(problem: Problem, rows: int) -> int:
    """Return how many of a tile's rows of A one load of the dot schedule has: several if M-major.

    M is a multiple of it.
    """
    return min(problem.a.vector, rows) if problem.a.major == "m" else 1


def few_rows_turn(vector: int, config: Config) -> int:
    """Return the elements along K that a CTA reads in one turn: a load, or rows, of each lane."""
    if config.schedule == AXPY:
        return axpy_parts(config) * config.stages
    return WARP * vector * config.slice_k


def few_rows_threads(config: Config) -> int:
    """Return the threads of a CTA."""
    return WARP * config.warps[1] * config.slice_k


def few_rows_blocks(config: Config) -> int:
    """Return how many CTAs an SM must be able to hold: bounds the registers of a thread."""
    return max(1, _most_threads(config) // few_rows_threads(config))


def _most_threads(config: Config) -> int:
    """Return how many threads an SM holds without spills."""
    return AXPY_THREADS if config.schedule == AXPY and config.stages <= 8 else DOT_THREADS


def few_rows_carveout(problem: Problem, config: Config, smem_per_sm: int) -> int:
    """Return the percentage of an SM's memory to ask for as shared: as little as will do."""
    if config.schedule == DOT:
        return 0
    blocks = few_rows_blocks(config)
    return -(-100 * blocks * (few_rows_smem_bytes(problem, config) + RESERVED_SMEM) // smem_per_sm)


def few_rows_smem_bytes(problem: Problem, config: Config) -> int:
    """Return the shared memory where the groups of warps leave their sums."""
    if config.schedule == DOT and config.slice_k == 1:
        return 0
    return config.slice_k * config.tile[0] * config.tile[1] * problem.accumulator.itemsize


def _illegal_dot(problem: Problem, config: Config, target: Target) -> str | None:
    m, n, _ = config.tile
    if problem.b.major != "k" or problem.a.major == "strided":
        return "the dot schedule reads a K-major B, and an A with contiguous rows or columns"
    if problem.a.major == "m" and problem.a.dtype is not DType.FLOAT32:
        return "the dot schedule reads an M-major A in float32 only: others were not measured"
    if m not in DOT_ROWS or n % config.warps[1] or config.warps[0] != 1:
        return f"the dot schedule has no tile of {m}x{n} for warps {config.warps}"
    each = m * n // config.warps[1] * problem.accumulator.itemsize // 4
    if each > _DOT_REGISTERS:
        return f"{each} accumulator registers of a thread are too many for the dot schedule"
    if few_rows_threads(config) > DOT_THREADS:
        return f"more than {DOT_THREADS} threads of a CTA would spill"
    if config.cluster != (1, 1) or config.thread != (0, 0):
        return "the dot schedule has neither clusters nor thread tiles"
    return None


def _illegal_axpy(problem: Problem, config: Config, target: Target) -> str | None:
    m, n, _ = config.tile
    if problem.b.major != "n":
        return "the axpy schedule reads an N-major B"
    if problem.b.dtype.itemsize < 4:  # eight columns a thread, in single elements at odd addresses
        return "rows of 16-bit elements spill in the axpy schedule"
    lanes, of_thread = axpy_lanes(config), config.thread[1] * problem.b.dtype.itemsize
    if (m, config.warps[0], config.thread[0]) != (1, 1, 1) or of_thread != BANK_VECTOR:
        return f"the axpy schedule has no thread of {config.thread} in a tile of {m}x{n}"
    if n != config.warps[1] * lanes * config.thread[1] or lanes not in (8, 16, WARP):
        return f"the axpy schedule has no tile of {m}x{n} for warps {config.warps}"
    if config.stages not in _AXPY_ROWS:
        return f"the axpy schedule has {_AXPY_ROWS} rows of B on their way, not {config.stages}"
    if few_rows_threads(config) > _most_threads(config):
        return f"more than {_most_threads(config)} threads of a CTA would spill"
    if config.cluster != (1, 1):
        return "the axpy schedule has no clusters"
    return None


def _illegal_persistent(problem: Problem, config: Config, target: Target) -> str | None:
    m, n, _ = config.tile
    threads = WARP * config.warps[0] * config.warps[1]
    if config.occupancy < 1:
        return "persistent CTAs must be told how many of them an SM is to hold"
    # Seen with M-major and N-major operands at odd addresses, and with flat tiles.
    if min(m, n) < 64 or is_biggest(config) == (threads < 256):
        return f"the {threads} threads of a persistent {m}x{n} tile spill"
    # Seen in tt on sm_100a, where sums are added to in pairs.
    if is_biggest(config) and target.capability >= (10, 0):
        return f"a persistent {m}x{n} tile leaves too few registers for pairs of sums"
    if "strided" in (problem.a.major, problem.b.major):
        return "persistent CTAs keep no registers for the strides of both indices"
    return None


def _illegal_tail(problem: Problem, config: Config) -> str | None:
    if config.occupancy < 1:
        return "a tail must be told how many CTAs an SM is to hold"
    return without_tail(problem, config)


def without_tail(problem: Problem, config: Config) -> str | None:
    """Say why a tile has no tail, however many there are; None where it may."""
    if not is_dmma(config) and (problem.a.dtype is not DType.FLOAT32 or not is_big(config)):
        return "tails were measured in float32 only, in big tiles"
    if problem.batch_invariant:
        return "which tiles have parts depends on M"
    return None


def _illegal_stream(problem: Problem, config: Config) -> str | None:
    if config.occupancy < 1:
        return "stream-K must be told how many CTAs an SM is to hold"
    if config.split_k != 1:
        return "stream-K cuts K where a CTA's share ends, not in parts of one size"
    return without_stream(problem, config)


def without_stream(problem: Problem, config: Config) -> str | None:
    """Say why a tile's slabs are not shared out, however many there are; None where they may be."""
    if not is_dmma(config) and (problem.a.dtype is not DType.FLOAT32 or not is_biggest(config)):
        return "stream-K is for float32 and for tiles with as many sums a thread as there may be"
    registers = config.thread[0] * config.thread[1] * problem.accumulator.itemsize // 4
    if is_dmma(config) and is_specialised(config):
        return "what tensor cores multiply in stream-K is copied by all warps"
    if is_dmma(config) and registers == MAX_ACCUMULATOR_REGISTERS:
        return "what lives across shares leaves too few registers for the products of such a tile"
    problem = seen(problem, config)
    if "strided" in (problem.a.major, problem.b.major):
        return "stream-K keeps no registers for the strides of both indices"
    if problem.batch_invariant:
        return "where K is cut depends on M"
    return None


def without_dmma(problem: Problem, target: Target) -> str | None:
    """Say why no tiles of a class are multiplied on tensor cores; None where they may be."""
    if problem.a.dtype is not DType.FLOAT64:
        return "the dmma schedule multiplies float64"
    if target.capability != (9, 0):
        return f"the dmma schedule was measured on sm_90 only, not on {target.arch}"
    return None


def _illegal_dmma(problem: Problem, config: Config, target: Target) -> str | None:
    reason = without_dmma(problem, target)
    if reason is not None:
        return reason
    lanes = _lanes(config)
    if lanes not in ((8, 4), (4, 8)) or min(config.thread) < 2:
        return f"{config.thread} sums of a lane are not those of products of 16x8"
    if config.tile[2] not in (DMMA_SLAB, 2 * DMMA_SLAB):
        return f"a slab of {config.tile[2]} has not one or two lines of {LINE_BYTES} bytes"
    return None


def never_fed(dtype: DType, config: Config) -> str | None:
    """Say why no warps of a tile only copy whatever the target; None where some may."""
    if is_dmma(config):
        return _never_fed_dmma(config)
    if dtype is not DType.FLOAT32 or not is_biggest(config):
        return "warps that only copy are for float32 and tiles of as many sums a thread as may be"
    if config.warps[0] * config.warps[1] != _CONSUMERS:
        return "warps that only copy are for CTAs that have an SM to themselves"
    return None


def _never_fed_dmma(config: Config) -> str | None:
    if config.thread[0] * config.thread[1] * 2 == MAX_ACCUMULATOR_REGISTERS:
        return "a warp more leaves too few registers for as many sums of float64 as there may be"
    if config.tile[2] != DMMA_SLAB:
        return f"TMA brings slabs of {DMMA_SLAB} in float64: one row of the widest swizzle"
    return None


def producers_of(config: Config) -> int:
    """Return how many warps only copy, where some do."""
    return LONE_PRODUCER if is_dmma(config) else PRODUCERS


def without_producers(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why no warps of a tile only copy; None where some may."""
    if target.capability[0] != 9:
        return "warps that only copy were measured on Hopper only"
    reason = never_fed(problem.a.dtype, config)
    if reason is not None:
        return reason
    problem = seen(problem, config)
    if "strided" in (problem.a.major, problem.b.major):
        return "copies by warps of their own keep no registers for the strides of both indices"
    if is_dmma(config):
        return without_boxes(problem, config)
    return None


def in_boxes(problem: Problem) -> bool:
    """Whether TMA may bring both operands of a class, to some tiles: see `without_boxes`."""
    kinds = (problem.a, problem.b)
    return all(kind.alignment == BANK_VECTOR and kind.major != "strided" for kind in kinds)


def without_boxes(problem: Problem, config: Config) -> str | None:
    """Say why TMA does not bring float64 operands of a class to a tile; None where it does."""
    for name, kind, extent in (
        ("A", problem.a, config.tile[0]), ("B", problem.b, config.tile[1])
    ):  # fmt: skip
        if kind.alignment != BANK_VECTOR:
            return f"rows of {name} that begin anywhere are not brought by TMA"
        if kind.major != "k" and extent % SWIZZLE_ROWS:
            return (
                f"{extent} rows of {name} that lie side by side are no boxes of {LINE_BYTES} bytes"
            )
    return None


def _illegal_repacked(problem: Problem, config: Config, target: Target) -> str | None:
    if config.schedule in FEW_ROWS:
        return f"the {config.schedule} schedule reads operands where they lie"
    if is_persistent(config):
        return "persistent CTAs have too few slabs for copies of operands to pay"
    return without_copies(problem, config, target)


def without_copies(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why a tile has no operands copied for it, whatever their sizes; None where it may."""
    if problem.a.dtype is not DType.FLOAT32 or not is_big(config):
        return "operands are copied first in float32 only, for tiles of 64 sums a thread or more"
    if lies_well(problem.a) and lies_well(problem.b):
        return "A and B lie in aligned rows along M and N: there is nothing to copy first"
    if target.capability[0] != 9:
        return f"operands that are copied first were measured on Hopper only, not on {target.arch}"
    return None


def _illegal_strips(problem: Problem, config: Config, target: Target) -> str | None:
    if config.schedule in FEW_ROWS:
        return f"the {config.schedule} schedule leaves no rows over"
    if not is_big(config):
        return "strips are for tiles of 64 sums a thread or more: others waste little"
    if len({strip.swap_ab for strip in config.strips}) < len(config.strips):
        return "there is one strip of rows at most, and one of columns"
    for strip in config.strips:
        if strip.schedule not in FEW_ROWS:
            return f"a strip is computed by a schedule for few rows: {' or '.join(FEW_ROWS)}"
        if strip.split_k != 1 or strip.strips:
            return "a strip has K whole, and no strips of its own"
        reason = illegal(strip.oriented(problem), strip, target)
        if reason is not None:
            return reason
    return without_strips(problem, target)


def without_strips(problem: Problem, target: Target) -> str | None:
    """Say why no tile has strips beside it, whatever the sizes are; None where some may."""
    if problem.a.dtype is not DType.FLOAT32:
        return "strips are for float32 only: others were not priced"
    if problem.batch_invariant:
        return "which rows are a strip depends on M"
    if target.capability[0] != 9:
        return f"strips were priced on Hopper only, not on {target.arch}"
    return None


def misfit(problem: Problem, extents: Extents, config: Config) -> str | None:
    """Say why a legal configuration is not for such extents; None where it is.

    Problem and extents are as the kernel sees them.
    """
    if not config.strips:
        return None
    found, tiles = shared_out(extents, config)
    for strip, rows in zip(config.strips, (each.m for each in found), strict=True):
        index, tile = "MN"[strip.swap_ab], config.tile[strip.swap_ab]
        if not 0 < rows <= strip.tile[0] or min(tiles.m, tiles.n) == 0:
            return (
                f"a strip is for 1 to {strip.tile[0]} more in {index} than whole tiles of {tile}, "
                f"and {extents} is not that"
            )
        wide = few_rows_wide(strip.oriented(problem), strip.tile[0])
        if rows % wide:
            return f"a strip reads {wide} rows at once, and {rows} are left over"
    return None


def without_cluster(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why no CTAs of a cluster share a tile along K, however many; None where they may."""
    if target.capability[0] != 9:
        return "clusters along K were measured on Hopper only"
    if config.schedule not in ("", DMMA):
        return "a cluster along K has CTAs of one tile each"
    if is_specialised(config) and not is_dmma(config):
        return "clusters along K with warps that only copy are for tensor cores"
    if config.thread[1] * problem.accumulator.itemsize % BANK_VECTOR:
        return f"a row of a thread of {config.thread} makes no whole vectors for a cluster's sums"
    return None


def _illegal_cluster(problem: Problem, config: Config, target: Target) -> str | None:
    if not 1 <= config.cluster_k <= MAX_CLUSTER:
        return f"clusters of {config.cluster_k} CTAs are not portable, {MAX_CLUSTER} are the most"
    if not in_cluster(config):
        return None
    if config.split_k != 1:
        return "a cluster along K adds up all parts of a tile: split-K would be others"
    return without_cluster(problem, config, target)


def illegal(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why a configuration cannot run on the target; None when it can."""
    if config.strips:
        reason = _illegal_strips(problem, config, target)
        if reason is not None:
            return reason
    reason = _illegal_cluster(problem, config, target)
    if reason is not None:
        return reason
    if config.repacked:
        reason = _illegal_repacked(problem, config, target)
        if reason is not None:
            return reason
    if config.schedule == DOT:
        return _illegal_dot(problem, config, target)
    if config.schedule == AXPY:
        return _illegal_axpy(problem, config, target)
    m, n, k = config.tile
    # What TMA brings to tensor cores any number of warps multiplies, each its rows or columns.
    own = is_dmma(config) and is_specialised(config) and min(config.warps) > 0
    of_warps = (m // config.warps[0], n // config.warps[1]) if own else (m, n, *config.warps)
    if not _is_power_of_two(k, *of_warps, *config.thread):
        return "tile, warps and thread must be powers of two"
    if config.cluster != (1, 1):
        return "cute_simt forms clusters along K only"
    lanes = _lanes(config)
    if lanes[0] * lanes[1] != WARP or m * n != (
        config.warps[0] * config.warps[1] * WARP * config.thread[0] * config.thread[1]
    ):
        return f"tile {m}x{n} is not warps {config.warps} x 32 lanes x thread {config.thread}"
    threads = WARP * config.warps[0] * config.warps[1]
    if threads > 1024:
        return f"{threads} threads are more than the 1024 of a CTA"
    registers = config.thread[0] * config.thread[1] * problem.accumulator.itemsize // 4
    if registers > MAX_ACCUMULATOR_REGISTERS:
        return f"{registers} accumulator registers a thread leave too few of 255 for the rest"
    if registers > MAX_ACCUMULATOR_REGISTERS // 2 and problem.a.dtype.itemsize == 2:
        return f"{registers} accumulators leave no registers to widen 16-bit operands in"
    reason = _illegal_persistent(problem, config, target) if is_persistent(config) else None
    reason = _illegal_tail(problem, config) if is_tail(config) else reason
    reason = _illegal_stream(problem, config) if is_stream(config) else reason
    if is_dmma(config):
        reason = _illegal_dmma(problem, config, target) or reason
    if is_specialised(config):
        reason = without_producers(problem, config, target) or reason
        if config.producers != producers_of(config):
            reason = reason or f"{producers_of(config)} warps copy, not {config.producers}"
    if reason is not None:
        return reason
    if config.stages < 2:
        return "the pipeline needs at least 2 stages"
    a, b = operand_tile(problem.a, config, 0), operand_tile(problem.b, config, 1)
    for name, tile in (("A", a), ("B", b)):
        copiers = config.producers * WARP or threads
        if tile.turned and (k > WARP or copiers // k % 4):
            return f"{copiers} threads cannot turn a slab of {k} of {name} on its way"
        if k * tile.dtype.itemsize < BANK_VECTOR:
            return f"a slab of {k} is less than one 16-byte vector of {name}"
    smem_bytes = smem_of(problem, config, a, b)
    if smem_bytes > target.smem_per_block:
        return (
            f"{smem_bytes} bytes of shared memory exceed the "
            f"{target.smem_per_block} of a CTA on {target.arch}"
        )
    return None
