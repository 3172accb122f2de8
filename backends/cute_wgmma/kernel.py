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

A work unit is a tile of D, one part of K and one batch. Units are dealt to clusters round robin.
Coordinates are 32-bit, addresses and strides 64-bit.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, const_expr, range_constexpr
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from ..cute import device
from ..cute.device import (
    CUTE_TYPES,
    GMEM,
    global_vector,
    launch_reduction,
    select,
    tile_coordinates,
    workspace_pitches,
    write,
)
from .geometry import MMA_M, STORE_ROWS, WARPGROUP, Geometry, geometry

TURN_BARRIER = 1  # and the next: named barriers that pass the turn between ping-pong groups
STORE_BARRIER = 4  # and on: one for each consumer warpgroup


class Spec(device.Spec):
    """What is compiled in, with the numbers derived from it."""

    @property
    def geometry(self) -> Geometry:
        """The derived numbers."""
        return geometry(self.problem, self.config)

    @property
    def operand(self) -> type:
        """Type of A and B."""
        return CUTE_TYPES[self.problem.a.dtype]


# -- layouts and descriptors (host) ----------------------------------------------------------------


def operand_layout(spec: Spec, extent: int, k_major: bool) -> cute.ComposedLayout:
    """Shared-memory layout (extent, K, stages) in the 128-byte swizzle that wgmma reads."""
    kinds = warpgroup.SmemLayoutAtomKind
    atom = warpgroup.make_smem_layout_atom(
        kinds.K_SW128 if k_major else kinds.MN_SW128, spec.operand
    )
    shape = (extent, spec.config.tile[2], spec.config.stages)
    return cute.tile_to_shape(atom, shape, order=(0, 1, 2) if k_major else (1, 0, 2))


def store_layout(spec: Spec) -> cute.ComposedLayout:
    """Shared-memory layout (rows, columns) of the box that a warpgroup stores."""
    geo = spec.geometry
    kinds = warpgroup.SmemLayoutAtomKind
    width = geo.store_columns * spec.output.width // 8
    kind = {128: kinds.K_SW128, 64: kinds.K_SW64, 32: kinds.K_SW32, 16: kinds.K_INTER}[width]
    atom = warpgroup.make_smem_layout_atom(kind, spec.output)
    return cute.tile_to_shape(atom, (STORE_ROWS, geo.store_columns), order=(0, 1))


def tiled_mma(spec: Spec) -> cute.TiledMma:
    """Return the wgmma of one group of warpgroups."""
    geo, p = spec.geometry, spec.problem
    op = warpgroup.MmaF16BF16Op(
        spec.operand,
        Float32,
        (MMA_M, geo.mma_n, 16),
        warpgroup.OperandSource.SMEM,
        OperandMajorMode.K if p.a.major == "k" else OperandMajorMode.MN,
        OperandMajorMode.K if p.b.major == "k" else OperandMajorMode.MN,
    )
    return cute.make_tiled_mma(cute.make_mma_atom(op), (geo.wg_m, geo.wg_n, 1))


def batched(
    address: Int64,
    dtype: type,
    rows: Int32,
    columns: Int32,
    steps: tuple,
    batch: tuple,
    row_major: bool,
) -> cute.Tensor:
    """View a matrix as (rows, columns, L0, L1); a batch it does not have is one matrix deep."""
    unit = 16 * 8 // dtype.width
    lead = cute.assume(steps[0] if row_major else steps[1], divby=unit)
    strides = (lead, 1) if row_major else (1, lead)
    outer = [cute.assume(step, divby=unit) for step in steps[2:]]
    deep = [
        select(step != 0, extent, Int32(1)) for step, extent in zip(steps[2:], batch, strict=True)
    ]
    pointer = cute.make_ptr(dtype, address, GMEM, assumed_align=16)
    layout = cute.make_layout((rows, columns, *deep), stride=(*strides, *outer))
    return cute.make_tensor(pointer, layout)


def load_atom(
    tensor: cute.Tensor, layout: cute.ComposedLayout, tile: tuple[int, int], sharers: int
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """TMA load of one stage, multicast to `sharers` CTAs that each bring a part."""
    op = (
        cpasync.CopyBulkTensorTileG2SMulticastOp()
        if sharers > 1
        else cpasync.CopyBulkTensorTileG2SOp()
    )
    one = cute.select(layout, mode=[0, 1])
    return cpasync.make_tiled_tma_atom(op, tensor, one, tile, num_multicast=sharers)


# -- work units ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """One work unit, as this CTA sees it."""

    tile_m: Int32
    tile_n: Int32
    i0: Int32
    i1: Int32
    part: Int32
    first: Int32
    slabs: Int32


def work_unit(spec: Spec, unit: Int32, sizes: tuple, rank_m: Int32, rank_n: Int32) -> Work:
    """Decode a running number: (tile, part of K, batch), and the slabs of K of that part."""
    m, n, k, l0, split_k, along_n, group = sizes
    tile_m, tile_n, tile_k = spec.config.tile
    cm, cn = spec.config.cluster
    tiles_m = (m + tile_m * cm - 1) // (tile_m * cm)
    tiles_n = (n + tile_n * cn - 1) // (tile_n * cn)
    rest = unit // (tiles_m * tiles_n)
    tm, tn = tile_coordinates(unit - rest * (tiles_m * tiles_n), tiles_m, tiles_n, along_n, group)
    slabs = (k + tile_k - 1) // tile_k
    batch, part, first = rest, Int32(0), Int32(0)
    if spec.split:
        batch = rest // split_k
        part = rest - batch * split_k
        each = slabs // split_k
        longer = slabs - each * split_k
        first = part * each + cutlass.min(part, longer)
        slabs = each + select(part < longer, Int32(1), Int32(0))
    i1 = batch // l0
    return Work(
        tile_m=tm * cm + rank_m,
        tile_n=tn * cn + rank_n,
        i0=batch - i1 * l0,
        i1=i1,
        part=part,
        first=first,
        slabs=slabs,
    )


# -- pipeline --------------------------------------------------------------------------------------


def advance(stage: Int32, phase: Int32, stages: int) -> tuple[Int32, Int32]:
    """Next stage; the phase turns when the ring does."""
    last = stage == stages - 1
    return select(last, Int32(0), stage + 1), select(last, phase ^ 1, phase)


def skip(stage: Int32, phase: Int32, slabs: Int32, stages: int) -> tuple[Int32, Int32]:
    """Return the stage `slabs` further on."""
    total = stage + slabs
    turns = total // stages
    return total - turns * stages, phase ^ (turns & 1)


@cute.jit
def release(
    empty: cute.Pointer, rank_m: Int32, rank_n: Int32, lane: Int32, spec: cutlass.Constexpr
) -> None:
    """Tell every CTA whose producer writes here that this warpgroup has left a stage."""
    cm, cn = spec.config.cluster
    if const_expr(cm * cn == 1):
        if lane == 0:
            cute.arch.mbarrier_arrive(empty)
    else:
        # Lanes 0 .. cn-1: CTAs of this row; lanes cn .. cn+cm-1: of this column, without itself.
        if lane < cn:
            cute.arch.mbarrier_arrive(empty, rank_m + lane * cm)
        elif lane < cn + cm:
            if lane - cn != rank_m:
                cute.arch.mbarrier_arrive(empty, (lane - cn) + rank_n * cm)


# -- epilogue --------------------------------------------------------------------------------------


def pack(low: Float32, high: Float32, dtype: type) -> Uint32:
    """Round two accumulators to 16 bits and pack them."""
    name = "bf16x2" if dtype is cutlass.BFloat16 else "f16x2"
    return cute.arch.inline_ptx(
        f"cvt.rn.{name}.f32 {{$w0}}, {{$r1}}, {{$r0}};",
        write_only_types=[Uint32],
        read_only_args=[low, high],
    )


def store_matrices(address: Int32, words: list) -> None:
    """Write four 8x8 matrices of 16-bit elements to shared memory."""
    cute.arch.inline_ptx(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[address, *words],
    )


@cute.jit
def store_direct(
    spec: cutlass.Constexpr, sums: cute.Tensor, out: Int64, row_step: Int64, column_step: Int64,
    row: Int32, column: Int32, m: Int32, n: Int32,
) -> None:  # fmt: skip
    """Store accumulators from registers; (row, column) is this thread's first element."""
    geo, dtype = spec.geometry, spec.output
    size = dtype.width // 8
    wide = const_expr(spec.split or spec.problem.d.alignment >= 2 * size)
    for i in range_constexpr(geo.repeats_m):
        for half in range_constexpr(2):
            at = row + i * MMA_M * geo.wg_m + half * 8
            line = out + Int64(at) * row_step * size
            if at < m:
                for j in range_constexpr(geo.mma_n // 8):
                    left = sums[(0, half, j), i, 0]
                    right = sums[(1, half, j), i, 0]
                    c = column + j * 8
                    address = line + Int64(c) * column_step * size
                    if const_expr(wide):
                        if c + 1 < n:
                            write([left, right], global_vector(address, dtype, 2))
                        elif c < n:
                            write([left], global_vector(address, dtype, 1))
                    else:
                        if c < n:
                            write([left], global_vector(address, dtype, 1))
                        if c + 1 < n:
                            write([right], global_vector(address + column_step * size, dtype, 1))


@cute.jit
def store_by_tma(
    spec: cutlass.Constexpr, sums: cute.Tensor, atom: cute.CopyAtom, target: cute.Tensor,
    boxes: cute.Pointer, consumer: Int32, thread: Int32, row: Int32, column: Int32,
    i0: Int32, i1: Int32, used: Int32,
) -> Int32:  # fmt: skip
    """Store a warpgroup's accumulators box by box; returns the count of boxes ever used."""
    geo, dtype = spec.geometry, spec.output
    width = const_expr(geo.store_columns * 2)  # bytes of a box's row
    lane, warp = thread % 32, thread // 32
    turn = const_expr({128: 0, 64: 1, 32: 2, 16: 3}[width])
    for i in range_constexpr(geo.repeats_m):
        for block in range_constexpr(geo.mma_n // geo.store_columns):
            slot = used % geo.store_buffers
            box = boxes + slot * (STORE_ROWS * geo.store_columns)
            if warp == 0:
                cute.arch.cp_async_bulk_wait_group(geo.store_buffers - 1, read=True)
            cute.arch.barrier(barrier_id=STORE_BARRIER + consumer, number_of_threads=WARPGROUP)
            # Lane l gives the address of row l % 8 of matrix l // 8: rows +8 first, then columns.
            r = warp * 16 + (lane % 8) + ((lane // 8) % 2) * 8
            for j in range_constexpr(geo.store_columns // 16):
                unit = j * 2 + lane // 16
                swizzled = unit ^ ((r >> turn) & (width // 16 - 1))
                words = [
                    pack(sums[(0, half, block * (geo.store_columns // 8) + 2 * j + x), i, 0],
                         sums[(1, half, block * (geo.store_columns // 8) + 2 * j + x), i, 0], dtype)
                    for x in range(2) for half in range(2)
                ]  # fmt: skip
                store_matrices((box.toint() + r * width + swizzled * 16), words)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=STORE_BARRIER + consumer, number_of_threads=WARPGROUP)
            if warp == 0:
                view = cute.make_tensor(
                    cute.recast_ptr(box, swizzle_=None, dtype=dtype), store_layout(spec).outer
                )
                tile = cute.local_tile(
                    target, (STORE_ROWS, geo.store_columns), (None, None, None, None)
                )
                source, out = cpasync.tma_partition(
                    atom, 0, cute.make_layout(1),
                    cute.group_modes(view, 0, 2), cute.group_modes(tile, 0, 2),
                )  # fmt: skip
                cute.copy(
                    atom,
                    source,
                    out[
                        None,
                        row // STORE_ROWS + i * geo.wg_m,
                        column // geo.store_columns + block,
                        i0,
                        i1,
                    ],
                )
                cute.arch.cp_async_bulk_commit_group()
            used += 1
    return used


# -- roles -----------------------------------------------------------------------------------------


@cute.jit
def produce(
    spec: cutlass.Constexpr, sizes: tuple, loads: tuple, barriers: tuple, flags: tuple,
    first_unit: Int32, units: Int32, step: Int32, rank_m: Int32, rank_n: Int32,
) -> None:  # fmt: skip
    """Bring every slab of every unit of this CTA; one warp."""
    config, geo = spec.config, spec.geometry
    cm, cn = config.cluster
    atom_a, from_a, into_a, atom_b, from_b, into_b, mask_a, mask_b = loads
    full, empty = barriers
    stage, phase = Int32(0), Int32(1)  # a fresh barrier counts as passed in the phase before
    unit = first_unit
    while unit < units:
        work = work_unit(spec, unit, sizes, rank_m, rank_n)
        a0, a1, b0, b1 = (
            work.i0 * flags[0],
            work.i1 * flags[1],
            work.i0 * flags[2],
            work.i1 * flags[3],
        )
        for slab in cutlass.range(work.slabs, unroll=1):
            cute.arch.mbarrier_wait(empty + stage, phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, geo.a_bytes + geo.b_bytes)
            k = work.first + slab
            if const_expr(cn > 1):
                cute.copy(atom_a, from_a[None, work.tile_m, k, a0, a1], into_a[None, stage],
                          tma_bar_ptr=full + stage, mcast_mask=mask_a)  # fmt: skip
            else:
                cute.copy(atom_a, from_a[None, work.tile_m, k, a0, a1], into_a[None, stage],
                          tma_bar_ptr=full + stage)  # fmt: skip
            if const_expr(cm > 1):
                cute.copy(atom_b, from_b[None, work.tile_n, k, b0, b1], into_b[None, stage],
                          tma_bar_ptr=full + stage, mcast_mask=mask_b)  # fmt: skip
            else:
                cute.copy(atom_b, from_b[None, work.tile_n, k, b0, b1], into_b[None, stage],
                          tma_bar_ptr=full + stage)  # fmt: skip
            stage, phase = advance(stage, phase, config.stages)
        unit += step
    # No CTA of a cluster may leave while another still signals or writes into it.
    if const_expr(cm * cn > 1):
        for _ in range_constexpr(config.stages):
            cute.arch.mbarrier_wait(empty + stage, phase)
            stage, phase = advance(stage, phase, config.stages)


@cute.jit
def multiply(
    spec: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor,
    barriers: tuple, slabs: Int32, stage: Int32, phase: Int32,
    rank_m: Int32, rank_n: Int32, in_wg: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Multiply the slabs of one unit into the accumulators; returns the stage after them."""
    full, empty = barriers
    previous = stage
    mma.set(warpgroup.Field.ACCUMULATE, True)
    sums.fill(0.0)
    for slab in cutlass.range(slabs, unroll=1):
        cute.arch.mbarrier_wait(full + stage, phase)
        warpgroup.fence()
        for k in range_constexpr(cute.size(a, mode=[2])):
            cute.gemm(mma, sums, a[None, None, k, stage], b[None, None, k, stage], sums)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
        if slab > 0:
            if in_wg < 32:  # the warpgroup's first warp signals for all of it
                release(empty + previous, rank_m, rank_n, in_wg, spec)
        previous = stage
        stage, phase = advance(stage, phase, spec.config.stages)
    warpgroup.wait_group(0)
    if slabs > 0:
        if in_wg < 32:
            release(empty + previous, rank_m, rank_n, in_wg, spec)
    return stage, phase


@cute.jit
def consume(
    spec: cutlass.Constexpr, sizes: tuple, mma: cute.TiledMma, shared: tuple, barriers: tuple,
    store: tuple, out: Int64, d_strides: tuple, consumer: Int32, thread: Int32,
    first_unit: Int32, units: Int32, step: Int32, rank_m: Int32, rank_n: Int32,
) -> None:  # fmt: skip
    """Multiply and store the units of one group of warpgroups."""
    config, geo = spec.config, spec.geometry
    tile_m, tile_n, _ = config.tile
    per_group = geo.wg_m * geo.wg_n
    group, member = consumer // per_group, consumer % per_group
    wg_m, wg_n = member % geo.wg_m, member // geo.wg_m
    in_group = thread % (WARPGROUP * per_group)
    in_wg = thread % WARPGROUP
    partition = mma.get_slice(in_group)
    a = mma.make_fragment_A(partition.partition_A(shared[0]))
    b = mma.make_fragment_B(partition.partition_B(shared[1]))
    sums = cute.make_rmem_tensor(mma.partition_shape_C((tile_m, tile_n)), Float32)
    atom, target, boxes = store
    boxes = boxes + consumer * (geo.store_buffers * STORE_ROWS * geo.store_columns)
    size = spec.output.width // 8
    stage, phase, used = Int32(0), Int32(0), Int32(0)
    unit = first_unit
    if const_expr(geo.groups == 2):
        if group == 1:  # the first unit of the CTA is the other group's
            stage, phase = skip(
                stage, phase, work_unit(spec, unit, sizes, rank_m, rank_n).slabs, config.stages
            )
            unit += step
            cute.arch.barrier_arrive(
                barrier_id=TURN_BARRIER, number_of_threads=2 * WARPGROUP * per_group
            )
    while unit < units:
        work = work_unit(spec, unit, sizes, rank_m, rank_n)
        if const_expr(geo.groups == 2):
            cute.arch.barrier(
                barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARPGROUP * per_group
            )
        stage, phase = multiply(
            spec, mma, sums, a, b, barriers, work.slabs, stage, phase, rank_m, rank_n, in_wg
        )
        if const_expr(geo.groups == 2):
            cute.arch.barrier_arrive(
                barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARPGROUP * per_group
            )
        row = work.tile_m * tile_m + wg_m * MMA_M
        column = work.tile_n * tile_n + wg_n * geo.mma_n
        if const_expr(geo.store_columns > 0):
            used = store_by_tma(
                spec,
                sums,
                atom,
                target,
                boxes,
                consumer,
                in_wg,
                row,
                column,
                work.i0,
                work.i1,
                used,
            )
        else:
            base = out + (Int64(work.i0) * d_strides[2] + Int64(work.i1) * d_strides[3]) * size
            if const_expr(spec.split):
                base += Int64(work.part) * d_strides[4] * size
            lane, warp = in_wg % 32, in_wg // 32
            store_direct(
                spec, sums, base, d_strides[0], d_strides[1],
                row + warp * 16 + lane // 4, column + (lane % 4) * 2, sizes[0], sizes[1],
            )  # fmt: skip
        unit += step
        if const_expr(geo.groups == 2):
            if unit < units:
                stage, phase = skip(
                    stage, phase, work_unit(spec, unit, sizes, rank_m, rank_n).slabs, config.stages
                )
            unit += step
    if const_expr(geo.store_columns > 0):
        if in_wg // 32 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)


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
    units: Int32,
) -> None:
    """Multiply the units that fall to this CTA."""
    config, geo = spec.config, spec.geometry
    cm, cn = config.cluster
    tile_m, tile_n, tile_k = config.tile
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    rank_m, rank_n, cluster_index = cute.arch.block_idx()
    _, _, clusters = cute.arch.grid_dim()
    rank_m, rank_n = rank_m % cm, rank_n % cn

    # -- shared memory: barriers, stages of A, stages of B, boxes of D
    smem = cutlass.memory.SmemAllocator()
    full = smem.allocate_array(cutlass.Int64, config.stages)
    empty = smem.allocate_array(cutlass.Int64, config.stages)
    shared_a = smem.allocate_tensor(spec.operand, layout_a.outer, 1024, swizzle=layout_a.inner)
    shared_b = smem.allocate_tensor(spec.operand, layout_b.outer, 1024, swizzle=layout_b.inner)
    box_elements = max(geo.consumers * geo.store_buffers * STORE_ROWS * geo.store_columns, 8)
    boxes = cute.recast_ptr(
        smem.allocate(box_elements * spec.output.width // 8, 1024), dtype=spec.output
    )

    if warp == 0:
        cpasync.prefetch_descriptor(atom_a)
        cpasync.prefetch_descriptor(atom_b)
        with cute.arch.elect_one():
            for i in range_constexpr(config.stages):
                cute.arch.mbarrier_init(full + i, 1)
                cute.arch.mbarrier_init(empty + i, geo.consumers // geo.groups * (cm + cn - 1))
        cute.arch.mbarrier_init_fence()
    if const_expr(cm * cn > 1):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    else:
        cute.arch.sync_threads()
    # All before this may overlap the kernel before this one in the stream; the next may come too.
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()

    tiles_a = cute.local_tile(tensor_a, (tile_m, tile_k), (None, None, None, None))
    tiles_b = cute.local_tile(tensor_b, (tile_n, tile_k), (None, None, None, None))
    into_a, from_a = cpasync.tma_partition(
        atom_a, rank_n, cute.make_layout(cn),
        cute.group_modes(shared_a, 0, 2), cute.group_modes(tiles_a, 0, 2),
    )  # fmt: skip
    into_b, from_b = cpasync.tma_partition(
        atom_b, rank_m, cute.make_layout(cm),
        cute.group_modes(shared_b, 0, 2), cute.group_modes(tiles_b, 0, 2),
    )  # fmt: skip
    # A goes to the CTAs of this cluster row (all n), B to those of this column (all m).
    mask_a, mask_b = Int32(0), Int32(0)
    for i in range_constexpr(cn):
        mask_a |= Int32(1) << (rank_m + i * cm)
    for i in range_constexpr(cm):
        mask_b |= Int32(1) << (i + rank_n * cm)
    barriers = (full, empty)
    if warp < 4:
        cute.arch.setmaxregister_decrease(geo.registers[0])
        if warp == 0:
            produce(
                spec, sizes,
                (atom_a, from_a, into_a, atom_b, from_b, into_b,
                 cutlass.Int16(mask_a), cutlass.Int16(mask_b)),
                barriers, flags, cluster_index, units, clusters, rank_m, rank_n,
            )  # fmt: skip
    else:
        cute.arch.setmaxregister_increase(geo.registers[1])
        consume(
            spec, sizes, mma, (shared_a, shared_b), barriers, (atom_d, tensor_d, boxes), out,
            d_strides, cute.arch.make_warp_uniform((warp - 4) // 4), thread - WARPGROUP,
            cluster_index, units, clusters, rank_m, rank_n,
        )  # fmt: skip


# -- host ------------------------------------------------------------------------------------------


def make_host(spec: Spec) -> Callable:
    """Return the function to compile: raw addresses, sizes, element strides and a stream."""

    @cute.jit
    def gemm(
        a: Int64, b: Int64, d: Int64, workspace: Int64,
        m: Int32, n: Int32, k: Int32, l0: Int32, l1: Int32,
        a_m: Int64, a_k: Int64, a_l0: Int64, a_l1: Int64,
        b_k: Int64, b_n: Int64, b_l0: Int64, b_l1: Int64,
        d_m: Int64, d_n: Int64, d_l0: Int64, d_l1: Int64,
        split_k: Int32, along_n: Int32, group: Int32, multiprocessors: Int32,
        stream: cuda.CUstream,
    ) -> None:  # fmt: skip
        geo, config, p = spec.geometry, spec.config, spec.problem
        tile_m, tile_n, tile_k = config.tile
        cm, cn = config.cluster
        batch = (l0, l1)
        view_a = batched(a, spec.operand, m, k, (a_m, a_k, a_l0, a_l1), batch, p.a.major == "k")
        view_b = batched(b, spec.operand, n, k, (b_n, b_k, b_l0, b_l1), batch, p.b.major == "k")
        layout_a = operand_layout(spec, tile_m, p.a.major == "k")
        layout_b = operand_layout(spec, tile_n, p.b.major == "k")
        atom_a, tensor_a = load_atom(view_a, layout_a, (tile_m, tile_k), cn)
        atom_b, tensor_b = load_atom(view_b, layout_b, (tile_n, tile_k), cm)
        out, out_strides = d, (d_m, d_n, d_l0, d_l1)
        if const_expr(spec.split):
            row_pitch, part_pitch = workspace_pitches(Float32, m, n, l0 * l1)
            out = workspace
            out_strides = (row_pitch, Int64(1), row_pitch * m, row_pitch * m * l0, part_pitch)
        atom_d, tensor_d = atom_a, tensor_a
        if const_expr(geo.store_columns > 0):
            view_d = batched(d, spec.output, m, n, (d_m, d_n, d_l0, d_l1), batch, True)
            atom_d, tensor_d = cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileS2GOp(), view_d, store_layout(spec),
                (STORE_ROWS, geo.store_columns),
            )  # fmt: skip
        tiles = ((m + tile_m * cm - 1) // (tile_m * cm)) * ((n + tile_n * cn - 1) // (tile_n * cn))
        units = tiles * split_k * l0 * l1
        clusters = cutlass.min(units, cutlass.max(multiprocessors // (cm * cn), Int32(1)))
        flags = tuple(select(step != 0, Int32(1), Int32(0)) for step in (a_l0, a_l1, b_l0, b_l1))
        gemm_kernel(
            spec, tiled_mma(spec), atom_a, tensor_a, atom_b, tensor_b, atom_d, tensor_d,
            layout_a, layout_b, out, out_strides, flags,
            (m, n, k, l0, split_k, along_n, group), units,
        ).launch(
            grid=(cm, cn, clusters), block=(geo.threads, 1, 1), cluster=(cm, cn, 1),
            stream=stream, min_blocks_per_mp=1, use_pdl=True,
        )  # fmt: skip
        if const_expr(spec.split):
            types = spec.reduction(overlap=True)
            launch_reduction(
                types, workspace, d, m, n, batch, (d_m, d_n, d_l0, d_l1), split_k, stream
            )

    return gemm


def example_arguments() -> list:
    """Return arguments of the host function's types, for compiling."""
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
    wide, narrow = Int64(1), Int32(1)
    return [*[wide] * 4, *[narrow] * 5, *[wide] * 12, *[narrow] * 4, stream]


gemm_kernel.set_name_prefix("wgmma_gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
