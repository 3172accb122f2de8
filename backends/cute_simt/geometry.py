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

from unigemm.forks import cached_property
from unigemm.planning.config import Config
from unigemm.planning.target import Target, named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents, MatrixType, Problem

from ..common.workspace import aligned, whole, workspace_bytes
from .schedules import (
    DMMA_K,
    DMMA_SLAB,
    FRAGMENT_K,
    FRAGMENT_ROWS,
    WARP,
    has_roles,
    in_cluster,
    in_parts,
    is_big,
    is_biggest,
    is_deep,
    is_dmma,
    is_specialised,
    is_stream,
    is_tail,
    patches_apart,
)
from .shares import stream_bytes
from .work_split import of_tiles

__all__ = [
    "BASE_REGISTERS",
    "Copy",
    "Geometry",
    "Needs",
    "OperandTile",
    "copied_bytes",
    "copy_schedule",
    "copy_step",
    "geometry",
    "is_copied",
    "launched_smem",
    "lies_well",
    "longer",
    "may_turn",
    "needs_of",
    "operand_tile",
    "part_bytes",
    "resident_warps",
    "scratch_bytes",
    "seen",
    "smem_of",
    "stream_ctas",
    "tiles_of",
    "whole_tiles",
]

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


def longer(problem: Problem, config: Config) -> MatrixType:
    """Return the operand of which a tile has more rows."""
    m, n, _ = config.tile
    return problem.a if m > n else problem.b


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


def launched_smem(geo: Geometry, config: Config, smem_per_sm: int) -> int:
    """Return the shared memory to ask for: so much that no more CTAs fit than are to be there."""
    if config.occupancy == 0:
        return geo.smem_bytes
    return max(geo.smem_bytes, smem_per_sm // (config.occupancy + 1))
