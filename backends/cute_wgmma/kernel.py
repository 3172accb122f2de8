"""Device code of the Hopper GEMM: TMA, wgmma, persistent and warp-specialised.

The story of one CTA
--------------------
    producer   one warp. For each work unit and slab of K: wait until every CTA that receives the
               slab has left the stage (`empty`), announce the bytes (`full`), start the TMA loads
               of A and B, multicast along the cluster.
    consumers  warpgroups of 128 threads. Wait `full`, multiply the slab with wgmma out of shared
               memory, keep one slab in flight, hand the stage before it back (`empty`, one arrival
               of each warpgroup at each CTA whose producer wrote it).
    epilogue   by the consumers: accumulators through swizzled shared memory to TMA stores, or
               straight from registers where D is no TMA target.

Cooperative: all consumers share a tile. Ping-pong: two groups take turns at the tensor cores; a
pair of named barriers passes the turn, so that one group's epilogue hides under the other's maths.
Sliced-K: the consumers share a tile's slabs and add up at the end.

A work unit is a tile of D, one part of K and one batch. Units are dealt to clusters round robin.
Where a cluster lies along K its CTAs share a unit's slabs and add up in their shared memories.
Coordinates are 32-bit, addresses and strides 64-bit.

Operands that cannot be read where they lie are repacked into the workspace by a kernel before.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from math import prod
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from ..cute import persistent
from ..cute.boxes import box_atom
from ..cute.device import (
    pinned,
    read,
    select,
)
from ..cute.persistent import (
    Work,
    advance,
    batched,
    bring,
    example_arguments,
    operands,
    skip,
    slab_source,
    unit_order,
    work_unit,
)
from ..cute.reduction import reduce_parts, target_of_sums
from ..cute.repack import depth
from ..cute.scaling import scale_of, scale_sums
from ..workspace import PANEL_ROWS
from .epilogue import (
    add_cluster,
    add_slices,
    store_by_tma,
    store_direct,
    store_down,
    store_rows,
)
from .geometry import (
    MMA_M,
    STORE_ROWS,
    SWIZZLE_BYTES,
    TMA_BYTES,
    WARPGROUP,
)
from .places import Load, last_places, place_of, sources
from .spec import Spec

__all__ = ["Spec", "example_arguments", "make_host"]

ATOM_BYTES = 8 * SWIZZLE_BYTES  # what a swizzle mixes
# Slabs that are brought into the L2 while the kernel before still runs, where operands have so many
# bytes at most: 256 cubed 2.0 to 1.65 us, 512 3.1 to 2.65; but 1024 5.6 to 5.9.
SLABS_AHEAD, MOST_AHEAD = 4, 2 << 20
TURN_BARRIER = 1  # and the next: named barriers that pass the turn between ping-pong groups


class Tf32Op(warpgroup.MmaF16BF16Op):
    """wgmma of TF32 operands, both K-major; the DSL has a class for every other type."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def _verify(self) -> None:
        """Accept what the base class does not: TF32 with 8 elements of K."""


# -- layouts and descriptors (host) ----------------------------------------------------------------


def operand_layout(
    spec: Spec, dtype: type, extent: int, k_major: bool, swizzle: int
) -> cute.ComposedLayout:
    """Shared-memory layout (extent, K, stages), swizzled as wgmma reads it."""
    kinds = warpgroup.SmemLayoutAtomKind
    wide = {128: kinds.MN_SW128, 64: kinds.MN_SW64, 32: kinds.MN_SW32, 16: kinds.MN_INTER}[swizzle]
    atom = warpgroup.make_smem_layout_atom(kinds.K_SW128 if k_major else wide, dtype)
    shape = (extent, spec.config.tile[2], spec.config.stages)
    return cute.tile_to_shape(atom, shape, order=(0, 1, 2) if k_major else (1, 0, 2))


def loads_of_b(spec: Spec) -> tuple[int, ...]:
    """Shape of what one load of B brings: (columns, K), or of panels (eight rows, K, columns)."""
    _, n, k = spec.config.tile
    if not spec.panels:
        return n, k
    unit = TMA_BYTES * 8 // spec.operands[1].width
    return unit * PANEL_ROWS, k // PANEL_ROWS, n // unit


def panels_layout(spec: Spec) -> cute.Layout:
    """Shared-memory layout of the stages of B as panels are loaded: one after another."""
    shape = (*loads_of_b(spec), spec.config.stages)
    return cute.make_layout(shape, stride=tuple(prod(shape[:i]) for i in range(len(shape))))


def whole_rows(spec: Spec, layout: cute.ComposedLayout) -> cute.ComposedLayout:
    """Return the layout of A as wgmma reads it: 64 rows, however few of them a stage holds."""
    rows, columns, stages = spec.config.tile[0], spec.config.tile[2], spec.config.stages
    if rows >= MMA_M:
        return layout
    if spec.k_major[0]:
        atom = cute.make_layout((8, columns), stride=(columns, 1))
        whole = cute.tile_to_shape(atom, (MMA_M, columns, 1), order=(0, 1, 2))
    else:
        atom = cute.make_layout((rows, 8), stride=(1, rows))
        whole = cute.tile_to_shape(atom, (MMA_M, columns, 1), order=(1, 0, 2))
    outer = cute.make_layout((*whole.shape[:2], stages), stride=(*whole.stride[:2], rows * columns))
    return cute.make_composed_layout(layout.inner, 0, outer)


def tiled_mma(spec: Spec) -> cute.TiledMma:
    """Return the wgmma of one group of warpgroups."""
    geo, (dtype, other) = spec.geometry, spec.operands
    shape = (MMA_M, geo.mma_n, 256 // dtype.width)  # 32 bytes of K
    sources = warpgroup.OperandSource
    source = sources.RMEM if geo.fragments else sources.SMEM
    in_order = (spec.k_major[0] or geo.fragments > 0, spec.k_major[1])
    majors = [OperandMajorMode.K if k else OperandMajorMode.MN for k in in_order]
    if dtype.width == 8:
        kind = warpgroup.MmaI8Op if spec.sums is Int32 else warpgroup.MmaF8Op
        op = kind(dtype, other, spec.sums, shape, source, *majors)
    else:
        kind = Tf32Op if dtype is cutlass.TFloat32 else warpgroup.MmaF16BF16Op
        op = kind(dtype, spec.sums, shape, source, *majors)
    return cute.make_tiled_mma(cute.make_mma_atom(op), (geo.wg_m, geo.wg_n, 1))


def load_atom(
    tensor: cute.Tensor, layout: Any, tile: tuple[int, ...], sharers: int
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """TMA load of one stage, multicast to `sharers` CTAs that each bring a part."""
    op = (
        cpasync.CopyBulkTensorTileG2SMulticastOp()
        if sharers > 1
        else cpasync.CopyBulkTensorTileG2SOp()
    )
    one = cute.select(layout, mode=list(range(len(tile))))
    return cpasync.make_tiled_tma_atom(op, tensor, one, tile, num_multicast=sharers)


# -- pipeline --------------------------------------------------------------------------------------


@cute.jit
def release(empty: cute.Pointer, ranks: tuple, lane: Int32, spec: cutlass.Constexpr) -> None:
    """Tell every CTA whose producer writes here that this warpgroup has left a stage."""
    cm, cn = spec.config.cluster
    rank_m, rank_n, rank_k = ranks
    plane = rank_k * (cm * cn)  # rank of the first CTA with this part of K
    if const_expr(cm * cn == 1):
        if lane == 0:
            cute.arch.mbarrier_arrive(empty)
    else:
        # Lanes 0 .. cn-1: CTAs of this row; lanes cn .. cn+cm-1: of this column, without itself.
        if lane < cn:
            cute.arch.mbarrier_arrive(empty, plane + rank_m + lane * cm)
        elif lane < cn + cm:
            if lane - cn != rank_m:
                cute.arch.mbarrier_arrive(empty, plane + (lane - cn) + rank_n * cm)


# -- roles -----------------------------------------------------------------------------------------


@cute.jit
def produce(
    spec: cutlass.Constexpr, lasts: tuple, order: tuple, loads: cutlass.Constexpr, barriers: tuple,
    flags: tuple, first_unit: Int32, first: tuple, units: Int32, step: Int32, ranks: tuple,
) -> None:  # fmt: skip
    """Bring every slab of every unit of this CTA; one warp. `lasts` are as in `place_of`."""
    config, geo = spec.config, spec.geometry
    cm, cn = config.cluster
    of_a, of_b, mask_a, mask_b = loads
    into_a, _ = of_a.partition((0, 0, 0, 0))
    into_b, _ = of_b.partition((0,) * cute.rank(of_b.tensor))
    full, empty = barriers
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    early = const_expr(spec.early and any(spec.repacked))
    unit, fields = first_unit, first
    while unit < units:
        work = Work(*fields)
        a0, b0 = pinned(work.i0 * flags[0]), pinned(work.i0 * flags[2])
        a_part, b_part = pinned(work.i1 * flags[1]), pinned(work.i1 * flags[3])
        end = pinned(work.first + work.slabs * work.step)
        at = work.first + work.turned * work.step
        row, column = place_of(spec, work, lasts)
        slabs_a, slabs_b = sources(spec, (of_a, of_b), (pinned(row), pinned(column)))
        if unit == first_unit:  # all before this may overlap the kernel before this one
            # The next call's copies may begin at once: they find room beside half of the registers.
            if const_expr(early):
                cute.arch.griddepcontrol_launch_dependents()
            both = ((of_a.atom, slabs_a), (of_b.atom, slabs_b))
            fetch_ahead(spec, both, flags[6], work, (a0, a_part, b0, b_part), at, end)
            cute.arch.griddepcontrol_wait()
            if const_expr(not early):
                cute.arch.griddepcontrol_launch_dependents()
        for _ in cutlass.range(work.slabs, unroll=1):
            k, low_a, low_b = slab_source(spec, at)
            a1, b1 = a_part + low_a * flags[4], b_part + low_b * flags[5]
            cute.arch.mbarrier_wait(empty + stage, phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, geo.a_bytes + geo.b_bytes)
            slab_a = slabs_a[None, 0, k, a0, a1]
            bring(of_a.atom, slab_a, into_a[None, stage], full + stage, mask_a, cn)
            slab_b = slabs_b[slab_of_b(spec, k, b0, b1)]
            bring(of_b.atom, slab_b, into_b[None, stage], full + stage, mask_b, cm)
            stage, phase = advance(stage, phase, config.stages)
            at += work.step
            at = select(at >= end, work.first, at)
        unit += step
        if unit < units:
            fields = work_unit(spec, unit, order, ranks)
    # No CTA of a cluster may leave while another still signals or writes into it.
    if const_expr(cm * cn > 1):
        for _ in range_constexpr(config.stages):
            cute.arch.mbarrier_wait(empty + stage, phase)
            stage, phase = advance(stage, phase, config.stages)


@cute.jit
def fetch_ahead(
    spec: cutlass.Constexpr, loads: cutlass.Constexpr, most: Int32, work: cutlass.Constexpr,
    batch: tuple, at: Int32, end: Int32,
) -> None:  # fmt: skip
    """Bring the first slabs of what lies in place into the L2, while a kernel before may run.

    `loads` are of A and B: by what, and from where. What that kernel still writes is seen all the
    same: it is written to the L2.
    """
    (atom_a, from_a), (atom_b, from_b) = loads
    a0, a1, b0, b1 = batch
    in_place = const_expr(tuple(not copied for copied in spec.repacked))
    for _ in cutlass.range(cutlass.min(work.slabs, most), unroll=1):
        k, _, _ = slab_source(spec, at)
        if const_expr(in_place[0]):
            cute.prefetch(atom_a, from_a[None, 0, k, a0, a1])
        if const_expr(in_place[1]):
            cute.prefetch(atom_b, from_b[slab_of_b(spec, k, b0, b1)])
        at += work.step
        at = select(at >= end, work.first, at)


def slab_of_b(spec: Spec, k: Int32, b0: Int32, b1: Int32) -> tuple:
    """Return the coordinates of a slab of B: of its bytes first, then of tiles: the first one."""
    return (None, 0, k, 0, b0, b1) if spec.panels else (None, 0, k, b0, b1)


@cute.jit
def multiply(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, total: cute.Tensor,
    a: cute.Tensor, b: cute.Tensor, barriers: tuple, slabs: Int32, stage: Int32, phase: Int32,
    ranks: tuple, in_wg: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply the slabs of one unit into the accumulators; returns the stage after them.

    `sums` are those that wgmma adds to, `total` the unit's: the same tensor unless partial sums
    are promoted.
    """
    mma.set(warpgroup.Field.ACCUMULATE, True)
    promote = spec.geometry.promote
    if const_expr(promote == 1):
        at = run_promoted(
            spec, mma, sums, total, a, b, barriers, slabs, (stage, phase), ranks, in_wg
        )
    elif const_expr(promote):
        total.fill(0)
        at = (stage, phase)
        for _ in cutlass.range(slabs // promote, unroll=1):
            at = run(spec, mma, sums, a, b, barriers, promote, at, ranks, in_wg)
            total.store(total.load() + sums.load())
        if slabs % promote > 0:
            at = run(spec, mma, sums, a, b, barriers, slabs % promote, at, ranks, in_wg)
            total.store(total.load() + sums.load())
    elif const_expr(spec.geometry.fragments > 0):
        at = run_from_registers(
            spec, mma, sums, a, b, barriers, slabs, (stage, phase), ranks, in_wg
        )
    else:
        at = run(spec, mma, sums, a, b, barriers, slabs, (stage, phase), ranks, in_wg)
    return at


@cute.jit
def run(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor,
    barriers: tuple, slabs: Int32, at: tuple, ranks: tuple, in_wg: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply so many slabs into fresh accumulators, one of them in flight behind the next."""
    full, empty = barriers
    stage, phase = at
    previous = stage
    sums.fill(0)
    for slab in cutlass.range(slabs, unroll=1):
        cute.arch.mbarrier_wait(full + stage, phase)
        warpgroup.fence()
        for k in range_constexpr(cute.size(a, mode=[2])):
            cute.gemm(mma, sums, a[None, None, k, stage], b[None, None, k, stage], sums)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
        if slab > 0:
            if in_wg < 32:  # the warpgroup's first warp signals for all of it
                release(empty + previous, ranks, in_wg, spec)
        previous = stage
        stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
    warpgroup.wait_group(0)
    if slabs > 0:
        if in_wg < 32:
            release(empty + previous, ranks, in_wg, spec)
    return stage, phase


@cute.jit
def run_promoted(
    spec: cutlass.Constexpr, mma: cute.TiledMma, even: cute.Tensor, total: cute.Tensor,
    a: cute.Tensor, b: cute.Tensor, barriers: tuple, slabs: Int32, at: tuple, ranks: tuple,
    in_wg: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply slabs by twos, each with sums of its own: the first's move under the second.

    No wgmma is in flight at the end of a turn: ptxas would wait for every one of them (C7514).
    """
    full, empty = barriers
    stage, phase = at
    odd = cute.make_rmem_tensor(even.layout, even.element_type)
    fresh = tiled_mma(spec)
    fresh.set(warpgroup.Field.ACCUMULATE, False)
    total.fill(0)
    for _ in cutlass.range(slabs // 2, unroll=1):
        before = stage
        cute.arch.mbarrier_wait(full + stage, phase)
        multiply_slab((fresh, mma), even, a, b, stage)
        stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
        cute.arch.mbarrier_wait(full + stage, phase)
        multiply_slab((fresh, mma), odd, a, b, stage)
        warpgroup.wait_group(1)
        total.store(total.load() + even.load())
        if in_wg < 32:  # the warpgroup's first warp signals for all of it
            release(empty + before, ranks, in_wg, spec)
        warpgroup.wait_group(0)
        if in_wg < 32:
            release(empty + stage, ranks, in_wg, spec)
        total.store(total.load() + odd.load())
        stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
    if slabs % 2 == 1:
        cute.arch.mbarrier_wait(full + stage, phase)
        multiply_slab((fresh, mma), even, a, b, stage)
        warpgroup.wait_group(0)
        if in_wg < 32:
            release(empty + stage, ranks, in_wg, spec)
        total.store(total.load() + even.load())
        stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
    return stage, phase


@cute.jit
def multiply_slab(
    both: tuple, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor, stage: Int32
) -> None:
    """Start the wgmma of one slab; `both` begin fresh sums, and add to them."""
    warpgroup.fence()
    for k in range_constexpr(cute.size(a, mode=[2])):
        cute.gemm(both[min(k, 1)], sums, a[None, None, k, stage], b[None, None, k, stage], sums)
    warpgroup.commit_group()


def fragment_places(spec: Spec, wg_m: Int32, in_wg: Int32) -> tuple:
    """Return where a thread's part of A lies in a stage, for the lower and the upper four of K.

    A is M-major: atoms of 8 (K) x 32 (M) elements in which 16-byte units are swizzled by K, four
    along K then those along M. A thread loads neighbours along M: which of them make its rows is
    free, so a warp takes units that lie on different banks. Those of 128 rows: 4 rows of a unit;
    of 64: 2 rows of half a unit.
    """
    lane, warp = in_wg % 32, in_wg // 32
    g, t = lane // 4, lane % 4
    if spec.geometry.repeats_m == 2:
        atom, unit, half = wg_m * 4 + warp, g // 2 + g % 2 * 4, 0
    else:
        atom, unit, half = wg_m * 2 + g // 4, warp + g // 2 % 2 * 4, g % 2
    base = atom * ATOM_BYTES * 4 + half * 8
    return tuple(base + k * SWIZZLE_BYTES + (unit ^ k) * 16 for k in (t, t + 4))


def fragment_row(spec: Spec, wg_m: Int32, in_wg: Int32) -> Int32:
    """Return the first row of a thread's part of A, in its tile."""
    lane, warp = in_wg % 32, in_wg // 32
    g = lane // 4
    if spec.geometry.repeats_m == 2:
        return wg_m * 128 + warp * 32 + (g // 2 + g % 2 * 4) * 4
    return wg_m * 64 + g // 4 * 32 + (warp + g // 2 % 2 * 4) * 4 + g % 2 * 2


@cute.jit
def load_fragment(
    spec: cutlass.Constexpr, fragment: cute.Tensor, stage: Int32, places: tuple
) -> None:
    """Load a thread's part of a slab of A from shared memory to registers."""
    repeats = spec.geometry.repeats_m
    words = cute.recast_tensor(fragment, cutlass.Float32)
    for k in range_constexpr(SWIZZLE_BYTES // 32):
        for upper in range_constexpr(2):
            where = stage + places[upper] + k * ATOM_BYTES
            pointer = cute.make_ptr(
                cutlass.Float32, where, cute.AddressSpace.smem, assumed_align=8 * repeats
            )
            loaded = read(cute.make_tensor(pointer, cute.make_layout(2 * repeats)), 2 * repeats)
            for i in range_constexpr(repeats):
                for half in range_constexpr(2):
                    words[half + 2 * upper + 4 * i + 4 * repeats * k] = loaded[2 * i + half]


@cute.jit
def run_from_registers(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, a: tuple, b: cute.Tensor,
    barriers: tuple, slabs: Int32, at: tuple, ranks: tuple, in_wg: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """`run` with A from registers: a slab's is loaded while the slab before it is multiplied."""
    full, _ = barriers
    rows, _, columns = spec.config.tile
    shape = mma.partition_shape_A((rows, columns))
    even = cute.make_rmem_tensor(shape, spec.operands[0])
    odd = cute.make_rmem_tensor(shape, spec.operands[0])
    sums.fill(0)
    state = (*at, at[0])  # stage, phase, the stage before
    if slabs > 0:
        cute.arch.mbarrier_wait(full + at[0], at[1])
        load_fragment(spec, even, a[0] + at[0] * spec.geometry.a_bytes, a[1])
    for pair in cutlass.range(slabs // 2, unroll=1):
        first = 2 * pair
        state = slab_from_registers(
            spec, mma, sums, (even, odd), a, b, barriers, first, slabs, state, ranks, in_wg
        )
        state = slab_from_registers(
            spec, mma, sums, (odd, even), a, b, barriers, first + 1, slabs, state, ranks, in_wg
        )
    if slabs % 2 == 1:
        state = slab_from_registers(
            spec, mma, sums, (even, odd), a, b, barriers, slabs - 1, slabs, state, ranks, in_wg
        )
    warpgroup.wait_group(0)
    if slabs > 0:
        if in_wg < 32:
            release(barriers[1] + state[2], ranks, in_wg, spec)
    return state[0], state[1]


@cute.jit
def slab_from_registers(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, fragments: tuple, a: tuple,
    b: cute.Tensor, barriers: tuple, index: Int32, slabs: Int32, state: tuple, ranks: tuple,
    in_wg: Int32,
) -> tuple[Int32, Int32, Int32]:  # fmt: skip
    """Multiply one slab; load the next one's part of A as soon as its registers are free."""
    now, coming = fragments
    full, empty = barriers
    stage, phase, previous = state
    warpgroup.fence()
    for k in range_constexpr(cute.size(now, mode=[2])):
        cute.gemm(mma, sums, now[None, None, k], b[None, None, k, stage], sums)
    warpgroup.commit_group()
    warpgroup.wait_group(1)
    if index > 0:
        if in_wg < 32:
            release(empty + previous, ranks, in_wg, spec)
    previous = stage
    stage, phase = advance(stage, phase, spec.config.stages, spec.geometry.slices)
    if index + 1 < slabs:
        cute.arch.mbarrier_wait(full + stage, phase)
        load_fragment(spec, coming, a[0] + stage * spec.geometry.a_bytes, a[1])
    return stage, phase, previous


@cute.jit
def consume(
    spec: cutlass.Constexpr, extents: tuple, order: tuple, mma: cute.TiledMma, shared: tuple,
    barriers: tuple, store: tuple, out: Int64, d_strides: tuple, consumer: Int32, thread: Int32,
    first_unit: Int32, first: tuple, units: Int32, step: Int32, ranks: tuple, scales: tuple,
) -> None:  # fmt: skip
    """Multiply and store the units of one group of warpgroups.

    `extents` are (M, N), and where the last tiles begin along them.
    """
    config, geo = spec.config, spec.geometry
    sizes, lasts = extents
    tile_m, tile_n, _ = config.tile
    per_group = geo.wg_m * geo.wg_n  # of ping-pong, or of a slice of K
    group, member = consumer // per_group, consumer % per_group
    wg_m, wg_n = member % geo.wg_m, member // geo.wg_m
    in_group = thread % (WARPGROUP * per_group)
    in_wg = thread % WARPGROUP
    partition = mma.get_slice(in_group)
    if const_expr(geo.fragments > 0):
        a = (shared[0].iterator.toint(), fragment_places(spec, wg_m, in_wg))
    else:
        a = mma.make_fragment_A(partition.partition_A(shared[0]))
    b = mma.make_fragment_B(partition.partition_B(shared[1]))
    of_thread = mma.partition_shape_C((max(tile_m, MMA_M), tile_n))
    sums = cute.make_rmem_tensor(of_thread, spec.sums)
    total = sums
    if const_expr(geo.promote):
        total = cute.make_rmem_tensor(of_thread, spec.sums)
    atom, target, boxes = store
    size = spec.output.width // 8
    boxes = boxes + consumer * (geo.store_buffers * STORE_ROWS * geo.box_pitch // size)
    stage, phase, used = Int32(0), Int32(0), Int32(0)
    unit, fields = first_unit, first
    cute.arch.griddepcontrol_wait()
    scale = scale_of(scales)
    if const_expr(geo.groups == 2):
        if group == 1:  # the first unit of the CTA is the other group's
            stage, phase = skip(stage, phase, Work(*first).slabs, config.stages)
            unit += step
            fields = work_unit(spec, unit, order, ranks)
            cute.arch.barrier_arrive(
                barrier_id=TURN_BARRIER, number_of_threads=2 * WARPGROUP * per_group
            )
    while unit < units:
        work = Work(*fields)
        slabs = work.slabs
        if const_expr(geo.slices > 1):  # a CTA has one unit: the ring is at its start
            slabs = (slabs - group + geo.slices - 1) // geo.slices
            stage = group
        if const_expr(geo.groups == 2):
            cute.arch.barrier(
                barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARPGROUP * per_group
            )
        stage, phase = multiply(
            spec, mma, sums, total, a, b, barriers, slabs, stage, phase, ranks, in_wg
        )
        if const_expr(geo.groups == 2):
            cute.arch.barrier_arrive(
                barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARPGROUP * per_group
            )
        top, left = place_of(spec, work, lasts)
        row, column = top + wg_m * MMA_M, left + wg_n * geo.mma_n
        if const_expr(geo.store == "tma"):
            scale_sums(total, scale)
            used = store_by_tma(
                spec, total, atom, target, boxes, consumer, in_wg, row, column, work.i0, work.i1,
                used,
            )  # fmt: skip
        else:
            base = out + (Int64(work.i0) * d_strides[2] + Int64(work.i1) * d_strides[3]) * size
            if const_expr(spec.split):
                base += Int64(work.part) * d_strides[4] * size
            below = sizes[0]
            if const_expr(tile_m < MMA_M):
                below = cutlass.min(below, row + tile_m)
            if const_expr(geo.store == "rows"):
                scale_sums(total, scale)
                line = base + (Int64(row) * d_strides[0] + column) * size
                there = (below - row, sizes[1] - column)
                store_rows(spec, total, boxes, line, d_strides[0], there, in_wg)
            else:
                lane, warp = in_wg % 32, in_wg // 32
                at = (row + warp * 16 + lane // 4, column + (lane % 4) * 2)
                if const_expr(geo.fragments > 0):
                    at = (top + fragment_row(spec, wg_m, in_wg), at[1])
                steps = (d_strides[0], d_strides[1])
                own, blocks, begin = total, const_expr(geo.mma_n // 8), Int32(0)
                last = Int32(blocks)  # behind this warpgroup's share of the columns, in eights
                area = shared[0].iterator.toint()
                if const_expr(geo.slices > 1):
                    own, blocks, begin = add_slices(spec, own, area, group, thread)
                    area += geo.consumers * WARPGROUP * geo.accumulators * 4
                    last = cutlass.min(last, begin + blocks)
                if const_expr(config.cluster_k > 1):
                    own, blocks, more = add_cluster(spec, own, blocks, area, ranks, thread)
                    begin += more
                scale_sums(own, scale)
                least = None
                if const_expr(config.cluster_k > 2):
                    # A neighbour adds up the parts of these columns in another order.
                    least = work.tile_n * tile_n
                at = (at[0], at[1] + begin * 8)
                end = cutlass.min(sizes[1], column + last * 8)
                if const_expr(spec.down):
                    store_down(spec, own, blocks, base, steps[1], at, (below, end), least)
                else:
                    store_direct(spec, own, blocks, base, steps, at, lane, (below, end), least)
        unit += step
        if const_expr(geo.groups == 2):
            if unit < units:
                other = Work(*work_unit(spec, unit, order, ranks))
                stage, phase = skip(stage, phase, other.slabs, config.stages)
            unit += step
        if unit < units:
            fields = work_unit(spec, unit, order, ranks)
    if const_expr(config.cluster_k > 1):
        cute.arch.cluster_wait()  # for those that read this CTA's sums
    if const_expr(geo.store == "tma"):
        if in_wg // 32 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def init_barriers(spec: cutlass.Constexpr, full: cute.Pointer, warp: Int32) -> None:
    """Initialise the stages' barriers, `full` and behind them `empty`: each warp some of them."""
    stages, (cm, cn) = spec.config.stages, spec.config.cluster
    leaving = spec.geometry.takers * (cm + cn - 1)
    warps = const_expr(spec.geometry.threads // 32)
    with cute.arch.elect_one():
        for i in range_constexpr((2 * stages + warps - 1) // warps):
            index = warp + i * warps
            if index < 2 * stages:
                arrivals = select(index < stages, Int32(1), Int32(leaving))
                cute.arch.mbarrier_init(full + index, arrivals)
        cute.arch.mbarrier_init_fence()


# -- kernel ----------------------------------------------------------------------------------------


@cute.kernel
def gemm_kernel(
    spec: cutlass.Constexpr,
    mma: cute.TiledMma,
    atom_a: cute.CopyAtom,
    tensor_a: cute.Tensor,
    atom_b: cute.CopyAtom,
    tensor_b: cute.Tensor,
    atom_d: cute.CopyAtom,
    tensor_d: cute.Tensor,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    out: Int64,
    d_strides: tuple,
    flags: tuple,
    sizes: tuple,
    lasts: tuple,
    order: tuple,
    units: Int32,
    scales: tuple,
) -> None:
    """Multiply the units that fall to this CTA."""
    config, geo = spec.config, spec.geometry
    cm, cn = config.cluster
    tile_m, _, tile_k = config.tile
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    across, along, deep = cute.arch.block_idx()
    wide, _, _ = cute.arch.grid_dim()
    cluster_index, clusters = across // cm, wide // cm
    ranks = (  # constants where the cluster has one CTA that way
        across - cluster_index * cm if const_expr(cm > 1) else Int32(0),
        along if const_expr(cn > 1) else Int32(0),
        deep if const_expr(config.cluster_k > 1) else Int32(0),
    )
    rank_m, rank_n, rank_k = ranks

    # -- shared memory: barriers, stages of A, stages of B, boxes of D
    smem = cutlass.memory.SmemAllocator()
    full = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    empty = full + config.stages
    shared_a = smem.allocate_tensor(spec.operands[0], layout_a.outer, 1024, swizzle=layout_a.inner)
    whole_a = cute.make_tensor(shared_a.iterator, whole_rows(spec, layout_a).outer)
    shared_b = smem.allocate_tensor(spec.operands[1], layout_b.outer, 1024, swizzle=layout_b.inner)
    if const_expr(tile_m < MMA_M):
        smem.allocate((MMA_M - tile_m) * tile_k * spec.operands[0].width // 8, 1024)
    box_bytes = geo.consumers * geo.store_buffers * STORE_ROWS * geo.box_pitch
    boxes = cute.recast_ptr(full, dtype=spec.output)  # of no use where D is stored directly
    if const_expr(box_bytes > 0):
        boxes = cute.recast_ptr(smem.allocate(box_bytes, 1024), dtype=spec.output)

    init_barriers(spec, full, warp)
    if warp == 0:
        cpasync.prefetch_descriptor(atom_a)
        cpasync.prefetch_descriptor(atom_b)
    first = work_unit(spec, cluster_index, order, ranks)
    if const_expr(cm * cn * config.cluster_k > 1):
        cute.arch.cluster_arrive_relaxed()  # the fence has published the barriers
        cute.arch.cluster_wait()
    else:
        cute.arch.sync_threads()
    loaded_b = shared_b
    if const_expr(spec.panels):
        loaded_b = cute.make_tensor(shared_b.iterator, panels_layout(spec))
    of_a = Load(atom_a, tensor_a, shared_a, (tile_m, tile_k), rank_n, cn)
    of_b = Load(atom_b, tensor_b, loaded_b, loads_of_b(spec), rank_m, cm)
    # A goes to the CTAs of this cluster row (all n), B to those of this column (all m).
    mask_a, mask_b = Int32(0), Int32(0)
    plane = rank_k * (cm * cn)
    for i in range_constexpr(cn):
        mask_a |= Int32(1) << (plane + rank_m + i * cm)
    for i in range_constexpr(cm):
        mask_b |= Int32(1) << (plane + i + rank_n * cm)
    barriers = (full, empty)
    if warp < 4:
        cute.arch.setmaxregister_decrease(geo.registers[0])
        if warp == 0:
            produce(
                spec, lasts, order,
                (of_a, of_b, cutlass.Int16(pinned(mask_a)), cutlass.Int16(pinned(mask_b))),
                barriers, flags, cluster_index, first, units, clusters, ranks,
            )  # fmt: skip
    else:
        cute.arch.setmaxregister_increase(geo.registers[1])
        consume(
            spec, (sizes, lasts), order, mma, (whole_a, shared_b), barriers,
            (atom_d, tensor_d, boxes), out, d_strides,
            cute.arch.make_warp_uniform((warp - 4) // 4), thread - WARPGROUP,
            cluster_index, first, units, clusters, ranks, scales,
        )  # fmt: skip


# -- host ------------------------------------------------------------------------------------------


def start(
    spec: Spec, addresses: tuple, sizes: tuple, a_steps: tuple, b_steps: tuple, d_steps: tuple,
    knobs: tuple, scales: tuple, stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch the copies that are needed, the product, and the reduction of its parts."""
    a, b, d, workspace = addresses
    m, n, k, l0, l1 = sizes
    a_m, a_k, a_l0, a_l1 = a_steps
    b_k, b_n, b_l0, b_l1 = b_steps
    d_m, d_n, d_l0, d_l1 = d_steps
    split_k, along_n, group, multiprocessors, turn_m, turn_n = knobs
    geo, config = spec.geometry, spec.config
    tile_m, tile_n, tile_k = config.tile
    cm, cn = config.cluster
    batch = (l0, l1)
    view_a, view_b, parts = operands(
        spec, (a, b, workspace), (m, n, k), batch,
        (a_m, a_k, a_l0, a_l1), (b_n, b_k, b_l0, b_l1), stream,
    )  # fmt: skip
    layout_a = operand_layout(spec, spec.operands[0], tile_m, spec.k_major[0], geo.a_swizzle)
    layout_b = operand_layout(spec, spec.operands[1], tile_n, spec.k_major[1], geo.b_swizzle)
    atom_a, tensor_a = load_atom(view_a, layout_a, (tile_m, tile_k), cn)
    loaded_b = panels_layout(spec) if spec.panels else layout_b
    atom_b, tensor_b = load_atom(view_b, loaded_b, loads_of_b(spec), cm)
    out, out_strides = target_of_sums(spec, parts, d, (m, n, l0, l1), d_steps)
    atom_d, tensor_d = atom_a, tensor_a
    if const_expr(geo.store == "tma"):
        deep = (depth(d_l0, l0), depth(d_l1, l1))
        view_d = batched(d, spec.output, m, n, (d_m, d_n, d_l0, d_l1), deep, True)
        atom_d, tensor_d = box_atom(view_d, (STORE_ROWS, geo.store_columns))
    lasts = last_places(spec, (m, n), (turn_m, turn_n))
    order = unit_order(spec, (m, n, k), l0, (split_k, along_n, group, turn_m, turn_n))
    units = order[0][2].divisor * split_k * l0 * l1
    clusters = units
    if const_expr(config.cluster_k * config.slice_k == 1):  # else a cluster has one unit
        clusters = cutlass.min(units, cutlass.max(multiprocessors // (cm * cn), Int32(1)))
    flags = [select(step != 0, Int32(1), Int32(0)) for step in (a_l0, a_l1, b_l0, b_l1)]
    flags += [depth(a_l1, l1), depth(b_l1, l1)]
    few = Int64(m + n) * k * l0 * l1 * spec.problem.a.dtype.itemsize <= MOST_AHEAD
    flags += [select(few, Int32(SLABS_AHEAD), Int32(0))]
    gemm_kernel(
        spec, tiled_mma(spec), atom_a, tensor_a, atom_b, tensor_b, atom_d, tensor_d,
        layout_a, layout_b, out, out_strides, tuple(flags), (m, n), lasts,
        order, units, () if spec.split else scales,
    ).launch(
        grid=(clusters * cm, cn, config.cluster_k), block=(geo.threads, 1, 1),
        cluster=(cm, cn, config.cluster_k),
        stream=stream, min_blocks_per_mp=geo.residents, preferred_smem_carveout=100, use_pdl=True,
    )  # fmt: skip
    reduce_parts(spec, parts, d, (m, n, l0, l1), d_steps, split_k, scales, stream)


def make_host(spec: Spec) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream."""
    return persistent.make_host(spec, start)


gemm_kernel.set_name_prefix("wgmma_gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
