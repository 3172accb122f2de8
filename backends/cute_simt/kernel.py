"""Device code of the CUDA-core GEMM.

The story of one CTA
--------------------
Every thread is producer and consumer. A tile of D is computed in slabs of K:

    prologue   copy slabs 0 .. stages-2 into their stages (cp.async, one group a slab)
    main loop  wait for slab t; one barrier; multiply slab t out of shared memory, and in between
               start copying slab t+stages-1 into the stage that slab t-1 has just left
    epilogue   each lane stores its accumulators in runs of 16 bytes, where it has such and the
               tile lies inside D; else warp by warp, one row of accumulators of every lane at a
               time: through a patch of shared memory that only this warp uses, out along N

Persistent CTAs take several tiles: while the last slabs of one are multiplied, the first of the
next are copied. That is for few slabs, where CTAs that begin and end together leave either the FMAs
or the memory idle.

A slab that lies inside its operand is copied as it is. What lies outside is filled with zeros by
the copies themselves (cp.async copies `src-size` bytes and zeroes the rest), in K as well, so that
the main loop has no tail; a tile that would stick out of D moves back where it can (`placed`). Big
tiles of float32 have K-major operands turned by copies of single elements: the loop then reads
neighbours along M and N, whatever the layout. With split-K each CTA writes its partial sums to a
workspace, and `reduce_kernel` adds them in a fixed order; where only the tiles of the last round
have parts, see `tail`; where all CTAs have equally many slabs, `stream`; where the CTAs of a
cluster have a part each and add up among themselves, `cluster`. Where tensor cores multiply, in
float64, the loop is that of `dmma`. Operands may be copied first, so
that they lie well: see `copies`. Rows beyond whole tiles may have a kernel of their own: see
`strip`.

Sizes are 32-bit; strides (elements) and addresses are 64-bit. `T*` in comments are tile extents.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable, Iterator
from copy import copy as copy_of
from functools import partial
from itertools import chain, islice
from typing import ClassVar, Literal

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int16, Int32, Int64, const_expr, range_constexpr

from unigemm.problem import MatrixType, Problem

from ..cute import device
from ..cute.device import (
    CUTE_TYPES,
    Divisor,
    global_vector,
    raster,
    read,
    read_parts,
    select,
    shared_vector,
    store_vector,
    wait_with,
    write,
)
from ..cute.reduction import reduce_parts, target_of_sums
from . import axpy, dot
from .cluster import store_cluster
from .copies import start_copied
from .geometry import (
    AXPY,
    DOT,
    WARP,
    Copy,
    Geometry,
    OperandTile,
    copy_schedule,
    copy_step,
    geometry,
    in_cluster,
    in_parts,
    is_big,
    is_biggest,
    is_dmma,
    is_persistent,
    is_specialised,
    is_stream,
    is_tail,
    launched_smem,
    patches_apart,
    seen,
    whole_tiles,
)
from .places import first_rows, lane_column, lane_row, placed_tile
from .strip import start_stripped
from .tail import add_tail, sums_of_tail, unit_of_tail

#: K left of a unit that is none: its slabs are not copied. Those of a unit behind its K are zeros.
NO_UNIT = -(1 << 24)
CONSUMERS_BARRIER = 1  # a named one: of the warps that multiply, where others only copy


class Spec(device.Spec):
    """What is compiled in, with the numbers derived from it."""

    #: Whether a slab is copied while another is multiplied; bench/ladder.py switches that off.
    pipelined: ClassVar[bool] = True

    @property
    def split(self) -> bool:
        """Whether partial sums of all of D go to the workspace; those of a tail are its own."""
        return in_parts(self.config)

    @property
    def geometry(self) -> Geometry:
        """The derived numbers."""
        return geometry(self.problem, self.config)

    @property
    def seen(self) -> Problem:
        """The problem with copies of operands that are copied first."""
        return seen(self.problem, self.config)

    @property
    def pairs(self) -> Literal["m", "n"] | None:
        """Along which index two sums are added to at once: one whose values lie side by side.

        None where there is no such instruction, or none such index: to bring pairs together costs
        more than they save.
        """
        geo = self.geometry
        if not self.packed or self.sums is not Float32:
            return None
        if not geo.b.k_major and geo.b.rows % 2 == 0:
            return "n"
        return "m" if not geo.a.k_major and geo.a.rows % 2 == 0 else None


# -- producer: device memory to shared memory ------------------------------------------------------


class Source:
    """Where a thread's copies of one operand come from, and how much of them exists."""

    def __init__(
        self,
        tile: OperandTile,
        kind: MatrixType,
        base: Int64,
        strides: tuple[Int64, Int64],
        first_row: Int32,
        rows: Int32,
        thread: Int32,
        threads: int,
    ) -> None:
        """`strides` are (row, K); `first_row` is the tile's, of `rows` in all."""
        self.tile = tile
        self.dtype = CUTE_TYPES[tile.dtype]
        self.size = tile.dtype.itemsize
        self.schedule = copy_schedule(tile, threads)
        self.thread, self.threads = thread, threads
        per_line = tile.line // tile.copy
        if tile.turned:
            self.line, self.position = thread % tile.slab, thread // tile.slab
        elif tile.by_warps:
            self.line, self.position = thread // WARP, thread % WARP * tile.copy
        elif per_line <= threads:
            self.line, self.position = thread // per_line, (thread % per_line) * tile.copy
        else:
            self.line, self.position = Int32(0), thread * tile.copy
        row, k = (self.line, self.position) if tile.k_major else (self.position, self.line)
        k_step = Int64(1) if kind.major == "k" else strides[1]
        row_step = Int64(1) if kind.major in ("m", "n") else strides[0]
        self.line_bytes = (row_step if tile.k_major else k_step) * self.size
        self.position_bytes = (k_step if tile.k_major else row_step) * self.size
        self.slab_bytes = k_step * (tile.slab * self.size)
        offset = Int64(first_row + row) * row_step + Int64(k) * k_step
        self.address = base + offset * self.size
        self.first_place = self.line * tile.pitch + (self.position ^ tile.twist(self.line))
        self.row = row
        self.first = first_row + row
        self.rows = rows

    @property
    def worked_out(self) -> tuple:
        """What copies begin with."""
        return self.address, self.first_place, self.line_bytes, self.slab_bytes

    def existing(self, line: Int32, position: Int32, remaining: Int32) -> Int32:
        """Bytes of a copy that lie inside the operand and inside `remaining` K.

        `line` and `position` are steps from the thread's first copy.
        """
        limit = Int32(self.tile.copy * self.size)
        zero = Int32(0)
        if self.tile.k_major:
            inside = (remaining - (self.position + position)) * self.size
            inside = cutlass.min(cutlass.max(inside, zero), limit)
            return select(self.first + line < self.rows, inside, zero)
        inside = (self.rows - (self.first + position)) * self.size
        inside = cutlass.min(cutlass.max(inside, zero), limit)
        return select(self.line + line < remaining, inside, zero)

    def until(self, line: int, position: int, remaining: Int32) -> Int32:
        """Bytes of a copy of one element: none where it lies behind the `remaining` K."""
        k = self.position + position if self.tile.k_major else self.line + line
        return select(k < remaining, Int32(self.size), Int32(0))

    def place(self, line: Int32, position: Int32) -> Int32:
        """Element offset of a copy in a stage."""
        return self.first_place + line * self.tile.pitch + position

    def step(self, line: Int32, position: Int32) -> Int64:
        """Bytes in device memory of steps in lines and along them."""
        return Int64(line) * self.line_bytes + Int64(position) * self.position_bytes

    def owns(self, copy: Copy) -> cutlass.Boolean | None:
        """Whether this thread takes part in a copy that not all threads are needed for."""
        index = self.schedule.index(copy)
        return self.thread < self.tile.copies - index * self.threads if copy.partial else None


def moved(source: Source, address: Int64, first_row: Int32) -> Source:
    """Return the copies of a tile that begins elsewhere."""
    other = copy_of(source)
    other.address, other.first = address, first_row + source.row
    return other


def corner(
    spec: Spec, index: Int32, extents: tuple, slabs: Int32, order: tuple, split_k: Divisor,
    l0: Divisor, part: Int32 | None = None,
) -> tuple:  # fmt: skip
    """Return where a unit of work begins along M and N (see `placed`), its K, its batch and part.

    Its K is (first, end, how much), the batch and part (L0, L1, part). Without a part given, the
    index counts the parts of all tiles.
    """
    tile_k = spec.config.tile[2]
    m, n, k = extents
    rows, columns, batch = placed_tile(spec.geometry, index, (m, n), order)
    if part is None:
        batch, part = divmod(batch, split_k)
    i1, i0 = divmod(batch, l0)
    first_k = part * slabs * tile_k
    end_k = cutlass.min(k, first_k + slabs * tile_k)
    depth = cutlass.max(end_k - first_k, Int32(0))
    return rows, columns, (first_k, end_k, depth), (i0, i1, part)


def batch_offset(
    strides: tuple, i0: Int32, i1: Int32, first_k: Int32, k_stride: Int64, size: int
) -> Int64:
    """Bytes from an operand's start to its batch and its part of K."""
    return (Int64(i0) * strides[2] + Int64(i1) * strides[3] + Int64(first_k) * k_stride) * size


def stages_of(spec: Spec) -> tuple[cute.Pointer, tuple[cute.Pointer, cute.Pointer]]:
    """Return a CTA's shared memory, and where in it the stages of A and of B begin."""
    geo = spec.geometry
    smem = cutlass.memory.SmemAllocator().allocate(geo.smem_bytes, 1024 if geo.a.swizzled else 128)
    second = smem + spec.config.stages * geo.a.bytes
    of_a = cute.recast_ptr(smem, dtype=CUTE_TYPES[geo.a.dtype])
    return smem, (of_a, cute.recast_ptr(second, dtype=CUTE_TYPES[geo.b.dtype]))


def stage_at(spec: Spec, shared: tuple, stage: Int32) -> tuple:
    """Return where a stage of A and of B begins."""
    geo = spec.geometry
    return shared[0] + stage * geo.a.elements, shared[1] + stage * geo.b.elements


def sources_of(
    spec: Spec, bases: tuple, strides: tuple, firsts: tuple, sizes: tuple, where: tuple,
    thread: Int32,
) -> tuple[Source, Source]:  # fmt: skip
    """Return a thread's copies of A and of B, of a tile that begins at `firsts` of M and N.

    `where` is (L0, L1, first K).
    """
    geo = spec.geometry
    (a, b), (a_strides, b_strides), (m, n) = bases, strides, sizes
    source_a = Source(
        geo.a, spec.seen.a,
        a + batch_offset(a_strides, *where, a_strides[1], geo.a.dtype.itemsize),
        (a_strides[0], a_strides[1]), firsts[0], m, thread, geo.copiers,
    )  # fmt: skip
    source_b = Source(
        geo.b, spec.seen.b,
        b + batch_offset(b_strides, *where, b_strides[0], geo.b.dtype.itemsize),
        (b_strides[1], b_strides[0]), firsts[1], n, thread, geo.copiers,
    )  # fmt: skip
    return source_a, source_b


def whole_copies(
    source: Source, stage: cute.Pointer, slab: Int64, remaining: Int32, whole: cutlass.Boolean
) -> Iterator[None]:
    """Start, one at a time, the cp.async copies of a slab where it lies inside its operand.

    Copies of one element each may lie behind K: no other way is so cheap for a slab that K ends in.
    """
    begin, first = source.address + slab, source.schedule[0]
    for copy in source.schedule:
        where = begin
        if source.tile.by_warps and copy.line == first.line:
            where = begin + source.step(0, copy.position - first.position)
        elif copy != first:
            step = source.step(copy.line - first.line, copy.position - first.position)
            begin, first = advanced(begin, step), copy
            where = begin
        owns = source.owns(copy)
        target = stage + source.place(copy.line, copy.position)
        size = None
        if not source.tile.checked:
            size = source.until(copy.line, copy.position, remaining)
        copy_async(source, target, where, size, whole if owns is None else whole & owns)
        yield


def advanced(where: Int64, step: Int64) -> Int64:
    """Add to an address, in a way that LLVM does not turn into products with the first one."""
    return cute.arch.inline_ptx(
        "add.s64 {$w0}, {$r0}, {$r1};", write_only_types=[Int64], read_only_args=[where, step]
    )


def start_checked(
    source: Source, stage: cute.Pointer, slab: Int64, remaining: Int32, index: Int32
) -> None:
    """Start copy `index` of one slab; zeros stand for what is not there."""
    line, position = copy_step(source.tile, source.threads, index)
    line, position = Int32(line), Int32(position)
    copy_async(
        source,
        stage + source.place(line, position),
        source.address + slab + source.step(line, position),
        source.existing(line, position, remaining),
        source.thread < source.tile.copies - index * source.threads,
    )


def copy_async(
    source: Source,
    target: cute.Pointer,
    where: Int64,
    size: Int32 | None,
    takes_part: cutlass.Boolean | None,
) -> None:
    """Start one copy of `size` bytes, or of all that it has; the rest becomes zeros."""
    width = source.tile.copy * source.size
    cache = "cg" if width == 16 else "ca"
    some = "" if size is None else ", {$r2}"
    sizes = [] if size is None else [size]
    cute.arch.inline_ptx(
        f"cp.async.{cache}.shared.global [{{$r0}}], [{{$r1}}], {width}{some};",
        read_only_args=[target.toint(), where, *sizes],
        predicate=takes_part,
    )


@cute.jit
def load_element(address: Int64, exists: cutlass.Boolean) -> Int16:
    """Load a 2-byte element as bits, or zero."""
    bits = Int16(0)
    if exists:
        bits = global_vector(address, Int16, 1)[0]
    return bits


@cute.jit
def store_element(
    pointer: cute.Pointer, offset: Int32, bits: Int16, takes_part: cutlass.Boolean
) -> None:
    """Store a 2-byte element's bits to shared memory."""
    if takes_part:
        cute.recast_tensor(shared_vector(pointer, offset, 1), Int16)[0] = bits


def load_plain(source: Source, slab: Int64, remaining: Int32, held: cute.Tensor) -> None:
    """Load one slab of a 2-byte operand at odd addresses into registers, as bits."""
    for i, copy in enumerate(source.schedule):
        exists = source.existing(copy.line, copy.position, remaining) > 0
        if copy.partial:
            exists = exists & source.owns(copy)
        where = source.address + slab + source.step(copy.line, copy.position)
        held[i] = load_element(where, exists)


def store_plain(source: Source, stage: cute.Pointer, held: cute.Tensor) -> None:
    """Store what `load_plain` brought."""
    for i, copy in enumerate(source.schedule):
        owns = source.owns(copy) if copy.partial else cutlass.Boolean(True)
        store_element(stage, source.place(copy.line, copy.position), held[i], owns)


@cute.jit
def start_checked_slab(
    source: cutlass.Constexpr,
    stage: cute.Pointer,
    slab: Int64,
    remaining: Int32,
    whole: cutlass.Boolean,
    least: cutlass.Constexpr,
) -> None:
    """Start the copies of one slab of one operand that is not whole, with more than `least` left.

    That is rare: a loop keeps it out of the way of the others' registers.
    """
    if (remaining > least) & (not whole):
        for index in cutlass.range(len(source.schedule), unroll=1):
            start_checked(source, stage, slab, remaining, index)


def start_slab(
    source: Source,
    stage: cute.Pointer,
    slab: Int64,
    remaining: Int32,
    within: Int32,
    held: cute.Tensor,
    least: int = 0,
) -> Iterator[None]:
    """Start bringing one slab of one operand; return what starts the rest of it, bit by bit.

    With less K left than `within` it is checked, and with no more than `least` not copied.
    """
    if not source.tile.asynchronous:
        load_plain(source, slab, remaining, held)
        return iter(())
    whole = remaining >= within
    start_checked_slab(source, stage, slab, remaining, whole, least)
    return whole_copies(source, stage, slab, remaining, whole)


def start_now(copies: Iterator[None]) -> None:
    """Start all of some copies."""
    for _ in copies:
        pass


def finish_slab(source: Source, stage: cute.Pointer, held: cute.Tensor) -> None:
    """Complete what `start_slab` could not leave to the hardware."""
    if not source.tile.asynchronous:
        store_plain(source, stage, held)


# -- consumer: shared memory to accumulators -------------------------------------------------------


def load_fragment(
    tile: OperandTile, stage: cute.Pointer, first: Int32, k: int, step: int, sums: type
) -> list[list]:
    """Read a lane's rows for K k .. k+step-1; returns values[kk][row] in the accumulator type."""
    values = [[None] * tile.rows for _ in range(step)]
    width = tile.vector
    if tile.k_major:
        for row in range(tile.rows):
            for kk in range(0, step, width):
                offset = (first + tile.row(row)) * tile.pitch + (k + kk)
                fragment = read(shared_vector(stage, offset, width), width)
                for i in range(width):
                    values[kk + i][row] = fragment[i].to(sums)
    else:
        for kk in range(step):
            for row in range(0, tile.rows, width):
                offset = (k + kk) * tile.pitch + first + tile.row(row)
                fragment = read(shared_vector(stage, offset, width), width)
                for i in range(width):
                    values[kk][row + (i ^ tile.twist(k + kk))] = fragment[i].to(sums)
    return values


def multiply(
    spec: Spec,
    stage_a: cute.Pointer,
    stage_b: cute.Pointer,
    first_a: Int32,
    first_b: Int32,
    sums: cute.Tensor,
    *copies: Iterator[None],
) -> None:
    """Add one slab's products to the accumulators (rows of A, rows of B).

    In between the copies of a later slab are started: all at once they would wait for each other.
    Few products do not hide that, and have them started first.
    """
    geo = spec.geometry
    steps = spec.config.tile[2] // geo.step
    starting = sum(len(copy_schedule(tile, geo.threads)) for tile in (geo.a, geo.b))
    each, rest = -(-starting // steps) if spec.pipelined else 0, chain(*copies)
    # ptxas puts three reads of nothing before copies that follow reads. Where B is turned half as
    # many such places are better (4096 cubed in nt and tt: 1 percent), elsewhere not.
    turns = 2 if geo.b.turned and is_biggest(spec.config) and each <= 2 else 1
    if not is_big(spec.config):
        start_now(rest)
    for k in range(0, spec.config.tile[2], geo.step):
        left = load_fragment(geo.a, stage_a, first_a, k, geo.step, spec.sums)
        right = load_fragment(geo.b, stage_b, first_b, k, geo.step, spec.sums)
        for kk in range(geo.step):
            add_product(spec, sums, left[kk], right[kk])
        if (k // geo.step + 1) % turns == 0:
            start_now(islice(rest, turns * each))
    start_now(rest)


def add_product(spec: Spec, sums: cute.Tensor, left: list, right: list) -> None:
    """Add the products of a column of A and a row of B."""
    if spec.pairs == "n":
        add_pairs(sums, left, right, 0)
    elif spec.pairs == "m":
        add_pairs(sums, right, left, 1)
    else:
        for i, j in product_order(spec.geometry.a.rows, spec.geometry.b.rows):
            sums[i, j] = cute.math.fma(left[i], right[j], sums[i, j])


def product_order(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return in which order to make the products of a column of A and a row of B.

    There and back along the shorter side, so that each product has an operand of the one before:
    an FMA that reads three registers takes two issue slots on an H200 (bench/NOTES.md).
    """
    if rows > columns:
        return [(i, j) for j, i in product_order(columns, rows)]
    return [(i if j % 2 == 0 else rows - 1 - i, j) for j in range(columns) for i in range(rows)]


def add_pairs(sums: cute.Tensor, single: list, paired: list, first: int) -> None:
    """Add the products of a column of A and a row of B two at a time, each rounded as ever.

    `first` is the index of the sums that runs along `single`.
    """
    for i, x in enumerate(single):
        for j in range(0, len(paired), 2):
            at = [(i, j + y) if first == 0 else (j + y, i) for y in range(2)]
            sums[at[0]], sums[at[1]] = cute.arch.fma_packed_f32x2(
                (x, x), (paired[j], paired[j + 1]), (sums[at[0]], sums[at[1]])
            )


def start_first(
    spec: Spec, sources: tuple, shared: tuple, remaining: Int32, within: tuple, held: tuple
) -> tuple:
    """Bring the first slabs, all but one of the stages: where the next are, and what K is left."""
    source_a, source_b = sources
    slab_a, slab_b = Int64(0), Int64(0)
    for stage in range(spec.config.stages - 1):
        to_a = shared[0] + stage * spec.geometry.a.elements
        to_b = shared[1] + stage * spec.geometry.b.elements
        start_now(start_slab(source_a, to_a, slab_a, remaining, within[0], held[0]))
        start_now(start_slab(source_b, to_b, slab_b, remaining, within[1], held[1]))
        finish_slab(source_a, to_a, held[0])
        finish_slab(source_b, to_b, held[1])
        cute.arch.cp_async_commit_group()
        slab_a += source_a.slab_bytes
        slab_b += source_b.slab_bytes
        remaining -= spec.config.tile[2]
    return slab_a, slab_b, remaining


@cute.jit
def sum_slabs(
    spec: cutlass.Constexpr, sources: cutlass.Constexpr, shared: tuple, thread: tuple,
    ends: tuple, remaining: Int32, within: tuple, meanwhile: cutlass.Constexpr = None,
) -> cute.Tensor:  # fmt: skip
    """Return the sums of the products between two `ends` of K: the prologue and the main loop.

    `sources`, `shared` and `within` are of A and of B: where copies come from and go to, and the K
    that must be left for a slab not to be checked. `thread` is (warp, lane). `meanwhile` is called
    while the first slabs are on their way.
    """
    geo, config = spec.geometry, spec.config
    tile_k = config.tile[2]
    source_a, source_b = sources
    shared_a, shared_b = shared
    within_a, within_b = within
    held_a = cute.make_rmem_tensor(len(source_a.schedule), Int16)
    held_b = cute.make_rmem_tensor(len(source_b.schedule), Int16)

    slab_a, slab_b, remaining = start_first(
        spec, sources, shared, remaining, within, (held_a, held_b)
    )
    if const_expr(meanwhile is not None):
        meanwhile()

    # -- main loop
    first_a, first_b = first_rows(geo, config, *thread)
    row_major = cute.make_layout((geo.a.rows, geo.b.rows), stride=(geo.b.rows, 1))
    sums = cute.make_rmem_tensor(row_major, spec.sums)
    sums.fill(0.0)
    reading, writing = Int32(0), Int32(config.stages - 1)
    for _ in cutlass.range((ends[1] - ends[0] + tile_k - 1) // tile_k, unroll=1):
        cute.arch.cp_async_wait_group(config.stages - 2)
        cute.arch.sync_threads()
        into_a = shared_a + writing * geo.a.elements
        into_b = shared_b + writing * geo.b.elements
        multiply(
            spec, shared_a + reading * geo.a.elements, shared_b + reading * geo.b.elements,
            first_a, first_b, sums,
            start_slab(source_a, into_a, slab_a, remaining, within_a, held_a),
            start_slab(source_b, into_b, slab_b, remaining, within_b, held_b),
        )  # fmt: skip
        cute.arch.cp_async_commit_group()
        finish_slab(source_a, into_a, held_a)
        finish_slab(source_b, into_b, held_b)
        slab_a += source_a.slab_bytes
        slab_b += source_b.slab_bytes
        remaining -= tile_k
        reading = select(reading == config.stages - 1, Int32(0), reading + 1)
        writing = select(writing == config.stages - 1, Int32(0), writing + 1)
    cute.arch.cp_async_wait_group(0)
    return sums


def loop_of(spec: Spec) -> Callable:
    """Return what sums slabs: on CUDA cores, or on tensor cores."""
    from . import dmma  # which is made of what is here

    return dmma.sum_slabs if is_dmma(spec.config) else sum_slabs


# -- epilogue: accumulators to device memory -------------------------------------------------------


def own_registers(sums: cute.Tensor, zero: Int32) -> cute.Tensor:
    """Return the sums in registers of their own; `zero` is 0, and the compiler must not know.

    A store wants four neighbours. ptxas gives the accumulators such registers in the main loop as
    well if it can, and then many FMAs there read two of the same parity (bench/NOTES.md).
    """
    if sums.element_type is not Float32:
        return sums
    own = cute.make_rmem_tensor(sums.layout, Float32)
    for i in range(cute.size(sums)):
        own[i] = cute.arch.inline_ptx(
            "{ .reg .b32 bits; mov.b32 bits, {$r0}; or.b32 bits, bits, {$r1}; "
            "mov.b32 {$w0}, bits; }",
            write_only_types=[Float32],
            read_only_args=[sums[i], zero],
        )
    return own


def sync_consumers(spec: Spec) -> None:
    """Wait for all threads that multiply."""
    if is_specialised(spec.config):
        cute.arch.barrier(barrier_id=CONSUMERS_BARRIER, number_of_threads=spec.geometry.threads)
    else:
        cute.arch.sync_threads()


@cute.jit
def store_sums(
    spec: cutlass.Constexpr, sums: cute.Tensor, patch: cute.Pointer, out: Int64,
    steps: tuple, tile: tuple, extents: tuple, warp: Int32, lane: Int32,
    begin: cutlass.Constexpr = None,
) -> None:  # fmt: skip
    """Write a CTA's accumulators; `tile` is its first element of D, `patch` this warp's.

    With a `begin` (M, N) those before it are left out: they are another CTA's.
    """
    geo = spec.geometry
    first_m, first_n = tile
    m, n = extents
    corner_m = first_m + warp // spec.config.warps[1] * geo.warp_tile[0]
    corner_n = first_n + warp % spec.config.warps[1] * geo.warp_tile[1]
    sums = own_registers(sums, m >> 31)
    if const_expr(geo.direct):
        inside = (first_m + spec.config.tile[0] <= m) & (first_n + spec.config.tile[1] <= n)
        if const_expr(begin is not None):
            inside = inside & (first_m >= begin[0]) & (first_n >= begin[1])
        if inside & (first_n % geo.store == 0):
            store_runs(spec, sums, out, steps[0], corner_m, corner_n, lane)
        else:
            store_tile(spec, sums, patch, out, *steps, corner_m, corner_n, m, n, lane, begin)
    else:
        store_tile(spec, sums, patch, out, *steps, corner_m, corner_n, m, n, lane, begin)


@cute.jit
def store_runs(
    spec: cutlass.Constexpr, sums: cute.Tensor, out: Int64, row_step: Int64, corner_m: Int32,
    corner_n: Int32, lane: Int32,
) -> None:  # fmt: skip
    """Write a warp's accumulators from where they are, a run at a time; all lie inside D."""
    geo = spec.geometry
    size = spec.output.width // 8
    row = corner_m + lane_row(geo, lane) * geo.a.run
    column = corner_n + lane_column(geo, lane) * geo.b.run
    first = out + (Int64(row) * row_step + Int64(column)) * size
    for i in range_constexpr(geo.a.rows):
        line = first + Int64(geo.a.row(i)) * row_step * size
        for j in range_constexpr(0, geo.b.rows, geo.store):
            values = [sums[i, j + x] for x in range(geo.store)]
            write(values, global_vector(line + geo.b.row(j) * size, spec.output, geo.store))


@cute.jit
def store_tile(
    spec: cutlass.Constexpr,
    sums: cute.Tensor,
    patch: cute.Pointer,
    out: Int64,
    row_step: Int64,
    column_step: Int64,
    corner_m: Int32,
    corner_n: Int32,
    m: Int32,
    n: Int32,
    lane: Int32,
    begin: cutlass.Constexpr,
) -> None:
    """Write a warp's accumulators; `corner` is its first element of D. For `begin` see above."""
    geo = spec.geometry
    if const_expr(not patches_apart(spec.config)):  # patches lie where the stages were
        cute.arch.sync_threads()
    dtype = spec.output
    size = dtype.width // 8
    lane_m, lane_n = lane_row(geo, lane), lane_column(geo, lane)
    per_row = geo.warp_tile[1] // geo.column
    for i in range_constexpr(geo.a.rows):
        # Registers to the patch, (LanesM, WarpN): one row of every lane.
        for j in range_constexpr(0, geo.b.rows, geo.run_out):
            column = lane_n * geo.b.run + geo.b.row(j)
            write(
                [sums[i, j + x] for x in range(geo.run_out)],
                shared_vector(patch, lane_m * geo.stage_pitch + column, geo.run_out),
            )
        cute.arch.sync_warp()
        # The patch to device memory, neighbouring lanes along N.
        for step in range_constexpr(geo.lanes[0] * per_row // WARP):
            index = step * WARP + lane
            line = index // per_row
            column = (index - line * per_row) * geo.column
            row = corner_m + geo.a.row(i) + line * geo.a.run
            fragment = read_parts(patch, line * geo.stage_pitch + column, geo.column)
            address = out + (Int64(row) * row_step + Int64(corner_n + column) * column_step) * size
            there = row < m
            if const_expr(begin is not None):  # tiles begin where vectors do
                there = there & (row >= begin[0]) & (corner_n + column >= begin[1])
            if there:
                store_vector(fragment, address, n - (corner_n + column), dtype)
        cute.arch.sync_warp()


# -- kernels ---------------------------------------------------------------------------------------


@cute.kernel
def gemm_kernel(
    spec: cutlass.Constexpr,
    a: Int64,
    b: Int64,
    d: Int64,
    m: Int32,
    n: Int32,
    k: Int32,
    a_strides: tuple,
    b_strides: tuple,
    d_strides: tuple,
    slabs: Int32,
    order: tuple,
    split_k: Divisor,
    l0: Divisor,
    workspace: Int64,
    tail: tuple,
) -> None:
    """One tile of D (of one K part, of one batch) a CTA. Strides are (row, column, L0, L1).

    In a cluster along K the CTA's rank is its part. A part has up to `slabs` slabs; `order` is the
    raster of the tiles. For `tail` see `unit_of_tail`; the parts of other schedules are what `d`
    is.
    """
    geo, config = spec.geometry, spec.config
    tile_k = config.tile[2]
    thread, _, _ = cute.arch.thread_idx()
    block, _, rank = cute.arch.block_idx()
    warp, lane = thread // WARP, thread % WARP

    # -- where this CTA works
    index, part = Int32(block), Int32(rank) if const_expr(in_cluster(config)) else None
    if const_expr(is_tail(config)):
        index, part, slabs = unit_of_tail(block, tail, slabs, (k + tile_k - 1) // tile_k)
    (first_m, within_a), (first_n, within_b), (first_k, end_k, remaining), (i0, i1, part) = corner(
        spec, index, (m, n, k), slabs, order, split_k, l0, part
    )

    # -- shared memory: (stages) of A, then (stages) of B; the epilogue's patches reuse all of it
    smem, shared = stages_of(spec)
    source_a, source_b = sources_of(
        spec, (a, b), (a_strides, b_strides), (first_m, first_n), (m, n), (i0, i1, first_k), thread
    )

    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(*source_a.worked_out, *source_b.worked_out, remaining, within_a, within_b)
        cute.arch.griddepcontrol_launch_dependents()

    sums = loop_of(spec)(
        spec, (source_a, source_b), shared, (warp, lane), (first_k, end_k), remaining,
        (within_a, within_b),
    )  # fmt: skip

    # -- epilogue
    patch = cute.recast_ptr(smem, dtype=spec.sums) + warp * (geo.lanes[0] * geo.stage_pitch)
    size = spec.output.width // 8
    out = d + (Int64(i0) * d_strides[2] + Int64(i1) * d_strides[3]) * size
    into = (out, (d_strides[0], d_strides[1]), (first_m, first_n), (m, n))
    if const_expr(is_tail(config)):
        into = sums_of_tail(spec, workspace, block, tail[0], into)
    elif const_expr(spec.split):
        into = (out + Int64(part) * d_strides[4] * size, *into[1:])
    if const_expr(in_cluster(config)):
        own = own_registers(sums, m >> 31)
        sync_consumers(spec)
        store_cluster(spec, own, Int32(smem.toint()), part, *into, (warp, lane))
    else:
        store_sums(spec, sums, patch, *into, warp, lane)


@cute.jit
def unit_of(
    spec: cutlass.Constexpr, index: Int32, extents: tuple, a_strides: tuple, b_strides: tuple,
    slabs: Int32, order: tuple, split_k: Divisor, l0: Divisor,
) -> tuple:  # fmt: skip
    """Say where a unit of work (a tile, a part of K, a batch) lies.

    Returns (offset of A in bytes, row of A, K within which it need not be checked), the same of B,
    the K that it has, and its batch (L0, L1) and part.
    """
    geo = spec.geometry
    (first_m, within_a), (first_n, within_b), (first_k, _, depth), (i0, i1, part) = corner(
        spec, index, extents, slabs, order, split_k, l0
    )
    a_size, b_size = geo.a.dtype.itemsize, geo.b.dtype.itemsize
    a_row = Int64(1) if spec.seen.a.major == "m" else a_strides[0]
    b_row = Int64(1) if spec.seen.b.major == "n" else b_strides[1]
    of_a = batch_offset(a_strides, i0, i1, first_k, a_strides[1], a_size)
    of_b = batch_offset(b_strides, i0, i1, first_k, b_strides[0], b_size)
    of_a += Int64(first_m) * a_row * a_size
    of_b += Int64(first_n) * b_row * b_size
    return of_a, first_m, within_a, of_b, first_n, within_b, depth, i0, i1, part


@cute.kernel
def persistent_kernel(
    spec: cutlass.Constexpr,
    a: Int64,
    b: Int64,
    d: Int64,
    extents: tuple,
    a_strides: tuple,
    b_strides: tuple,
    d_strides: tuple,
    slabs: Int32,
    order: tuple,
    split_k: Divisor,
    l0: Divisor,
    units: Int32,
    ctas: Int32,
) -> None:
    """Every `ctas`-th unit of work, of `units`; otherwise as `gemm_kernel`."""
    geo, config = spec.geometry, spec.config
    m, n, _ = extents
    tile_k, ahead = config.tile[2], config.stages - 1
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = thread // WARP, thread % WARP
    where = (extents, a_strides, b_strides, slabs, order, split_k, l0)
    of_a, row_a, within_a, of_b, row_b, within_b, remaining, _, _, _ = unit_of(spec, block, *where)

    # -- shared memory: (stages) of A, then (stages) of B, then the epilogue's patches
    smem, (shared_a, shared_b) = stages_of(spec)
    patches = cute.recast_ptr(smem + config.stages * (geo.a.bytes + geo.b.bytes), dtype=spec.sums)
    patch = patches + warp * (geo.lanes[0] * geo.stage_pitch)
    source_a = Source(
        geo.a, spec.seen.a, a, (a_strides[0], a_strides[1]), Int32(0), m, thread, geo.threads
    )
    source_b = Source(
        geo.b, spec.seen.b, b, (b_strides[1], b_strides[0]), Int32(0), n, thread, geo.threads
    )
    held_a = cute.make_rmem_tensor(len(source_a.schedule), Int16)
    held_b = cute.make_rmem_tensor(len(source_b.schedule), Int16)
    at_a, at_b = source_a.address + of_a, source_b.address + of_b

    if const_expr(spec.overlap):  # all before this may overlap the kernel before this one
        wait_with(at_a, at_b, *source_a.worked_out, *source_b.worked_out, remaining)
        cute.arch.griddepcontrol_launch_dependents()

    # -- prologue
    for stage in range_constexpr(ahead):
        first_to_a = shared_a + stage * geo.a.elements
        first_to_b = shared_b + stage * geo.b.elements
        start_unit(source_a, at_a, row_a, first_to_a, remaining, within_a, held_a)
        start_unit(source_b, at_b, row_b, first_to_b, remaining, within_b, held_b)
        cute.arch.cp_async_commit_group()
        at_a += source_a.slab_bytes
        at_b += source_b.slab_bytes
        remaining -= tile_k

    # -- main loop
    first_a, first_b = first_rows(geo, config, warp, lane)
    row_major = cute.make_layout((geo.a.rows, geo.b.rows), stride=(geo.b.rows, 1))
    sums = cute.make_rmem_tensor(row_major, spec.sums)
    reading, writing = Int32(0), Int32(ahead)
    turns = cutlass.max(slabs, Int32(ahead))  # of each unit; what lies behind its K are zeros
    copied, done = Int32(block), Int32(block)
    for _ in cutlass.range((units - block + ctas - 1) // ctas, unroll=1):
        sums.fill(0.0)
        # Its own slabs are copied ahead, then the next unit's.
        for of_next in cutlass.range(2, unroll=1):
            for _ in cutlass.range(select(of_next == 0, turns - ahead, Int32(ahead)), unroll=1):
                cute.arch.cp_async_wait_group(config.stages - 2)
                cute.arch.sync_threads()
                to_a = shared_a + writing * geo.a.elements
                to_b = shared_b + writing * geo.b.elements
                multiply(
                    spec, shared_a + reading * geo.a.elements, shared_b + reading * geo.b.elements,
                    first_a, first_b, sums,
                    start_slab(
                        moved(source_a, at_a, row_a), to_a, Int64(0), remaining, within_a, held_a,
                        NO_UNIT,
                    ),
                    start_slab(
                        moved(source_b, at_b, row_b), to_b, Int64(0), remaining, within_b, held_b,
                        NO_UNIT,
                    ),
                )  # fmt: skip
                cute.arch.cp_async_commit_group()
                finish_slab(source_a, to_a, held_a)
                finish_slab(source_b, to_b, held_b)
                at_a += source_a.slab_bytes
                at_b += source_b.slab_bytes
                remaining -= tile_k
                reading = select(reading == ahead, Int32(0), reading + 1)
                writing = select(writing == ahead, Int32(0), writing + 1)
            if of_next == 0:
                copied += ctas
                remaining = Int32(2 * NO_UNIT)
                if copied < units:
                    of_a, row_a, within_a, of_b, row_b, within_b, remaining, _, _, _ = unit_of(
                        spec, copied, *where
                    )
                    at_a, at_b = source_a.address + of_a, source_b.address + of_b

        # -- epilogue
        _, first_m, _, _, first_n, _, _, i0, i1, part = unit_of(spec, done, *where)
        size = spec.output.width // 8
        out = d + (Int64(i0) * d_strides[2] + Int64(i1) * d_strides[3]) * size
        if const_expr(spec.split):
            out += Int64(part) * d_strides[4] * size
        steps = (d_strides[0], d_strides[1])
        store_sums(spec, sums, patch, out, steps, (first_m, first_n), (m, n), warp, lane)
        done += ctas
    cute.arch.cp_async_wait_group(0)


def start_unit(
    source: Source, at: Int64, row: Int32, stage: cute.Pointer, remaining: Int32, within: Int32,
    held: cute.Tensor,
) -> None:  # fmt: skip
    """Bring one slab of the operand of a unit that begins at a row, all of it at once."""
    source = moved(source, at, row)
    start_now(start_slab(source, stage, Int64(0), remaining, within, held, NO_UNIT))
    finish_slab(source, stage, held)


# -- host ------------------------------------------------------------------------------------------


def start(
    spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple, d_steps: tuple,
    knobs: tuple, stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch the product, and the reduction of its parts."""
    a, b, d, workspace = addresses
    m, n, k, l0, l1 = sizes
    split_k, along_n, group, sm_count = knobs
    geo = spec.geometry
    tile_m, tile_n, tile_k = spec.config.tile
    tiles_m, tiles_n = (m + tile_m - 1) // tile_m, (n + tile_n - 1) // tile_n
    parts, together = split_k * spec.config.cluster_k, spec.config.cluster_k
    slabs = ((k + tile_k - 1) // tile_k + parts - 1) // parts
    out, out_steps = target_of_sums(spec, workspace, d, (m, n, l0, l1), d_steps)
    order = raster(tiles_m, tiles_n, along_n, group)
    tiles = tiles_m * tiles_n * l0 * l1
    units, whole = tiles * split_k, Int32(0)
    if const_expr(is_tail(spec.config)):
        whole = whole_tiles(tiles, sm_count * spec.config.occupancy)
        units = whole + (tiles - whole) * split_k
    tail = (whole, Divisor(tiles - whole))
    ctas = units
    if const_expr(is_persistent(spec.config)):
        ctas = cutlass.min(units, sm_count * spec.config.occupancy)
    if const_expr(is_specialised(spec.config)):
        from . import specialised  # which is made of what is here

        specialised.launch(
            spec, (a, b, out, workspace), sizes, (a_steps, b_steps), out_steps,
            (slabs, order, split_k, units, ctas, tail), stream,
        )  # fmt: skip
    elif const_expr(is_persistent(spec.config)):
        persistent_kernel(
            spec, a, b, out, (m, n, k), a_steps, b_steps, out_steps, slabs, order,
            Divisor(split_k), Divisor(l0), units, ctas,
        ).launch(
            grid=(ctas, 1, 1), block=(geo.threads, 1, 1),
            smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=stream,
            min_blocks_per_mp=min(geo.min_blocks, spec.config.occupancy),
            preferred_smem_carveout=100, use_pdl=spec.overlap,
        )  # fmt: skip
    else:
        gemm_kernel(
            spec, a, b, out, m, n, k, a_steps, b_steps, out_steps, slabs, order,
            Divisor(split_k), Divisor(l0), workspace, tail,
        ).launch(
            grid=(units, 1, together), block=(geo.threads, 1, 1),
            cluster=(1, 1, together) if const_expr(in_cluster(spec.config)) else None,
            smem=launched_smem(geo, spec.config, spec.smem_per_sm), stream=stream,
            min_blocks_per_mp=geo.min_blocks, preferred_smem_carveout=100, use_pdl=spec.overlap,
        )  # fmt: skip
    if const_expr(is_tail(spec.config)):
        add_tail(spec, (workspace, d), (m, n), d_steps, order, Divisor(l0), tail, split_k, stream)
    reduce_parts(spec, workspace, d, (m, n, l0, l1), d_steps, split_k, (), stream)


def make_host(spec: Spec, launch: Callable | None = None) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream.

    `launch` launches other kernels than those of the schedule.
    """
    from . import stream  # which is made of what is here

    few = {DOT: dot.start, AXPY: axpy.start}
    if launch is None:
        shared_out = stream.start if is_stream(spec.config) else start
        launch = few.get(spec.config.schedule, shared_out)
    if spec.config.repacked:
        launch = partial(start_copied, launch)
    if spec.config.strips:
        launch = partial(start_stripped, launch, few)

    @cute.jit
    def gemm(
        a: Int64, b: Int64, d: Int64, workspace: Int64,
        m: Int32, n: Int32, k: Int32, l0: Int32, l1: Int32,
        a_m: Int64, a_k: Int64, a_l0: Int64, a_l1: Int64,
        b_k: Int64, b_n: Int64, b_l0: Int64, b_l1: Int64,
        d_m: Int64, d_n: Int64, d_l0: Int64, d_l1: Int64,
        split_k: Int32, along_n: Int32, group: Int32, sm_count: Int32,
        stream: cuda.CUstream,
    ) -> None:  # fmt: skip
        launch(
            spec, (a, b, d, workspace), (m, n, k, l0, l1), (a_m, a_k, a_l0, a_l1),
            (b_k, b_n, b_l0, b_l1), (d_m, d_n, d_l0, d_l1),
            (split_k, along_n, group, sm_count), stream,
        )  # fmt: skip

    return gemm


def example_arguments(problem: Problem) -> list:
    """Return arguments of the host function's types, for compiling."""
    return device.example_arguments(extra=1)


gemm_kernel.set_name_prefix("simt_gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
persistent_kernel.set_name_prefix(
    "simt_persistent", remove_cutlass_symbol=True, keep_mangled_name=False
)
