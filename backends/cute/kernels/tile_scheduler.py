"""What the TMA-fed kernels share: work units, the ring of stages, operands, the host function.

A work unit is a tile of D, one part of K and one batch; units are dealt to clusters round robin.
Operands that TMA or the tensor cores cannot read where they lie are repacked into the workspace.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from unigemm.problem.problem import MatrixType, Problem

from ...common.epilogue import in_halves
from ...common.workspace import PANEL_ROWS, aligned, panel_rows
from .bias_gradients import with_bias_grads
from .device import GMEM, Divisor, Spec, raster, select, tile_coordinates
from .epilogue import Taken, arguments_of, parted
from .grouped import (
    EXHAUSTED,
    Bounds,
    Walk,
    arguments_of_groups,
    find_unit,
    fresh_walk,
    group_range,
    of_groups,
)
from .host_arguments import Addresses, Sizes, Steps, grouped, transposed
from .records import Arguments, Dealt, GroupOrder, Parameters, Ranks, TileOrder
from .repack import Repack, depth, launch_repack, packed_pitch
from .repack_jobs import Job, Lines

PARAMETERS = len(Parameters._fields)
REGISTER_ROWS = 32  # of the tallest tile that is transposed in registers
TMA_BITS = 128  # a box begins at a multiple of 16 bytes along its lines
ROTATIONS = 128  # different starts along K, of tiles that all read the same few rows


class TileSpec(Spec):
    """What is compiled into such a kernel."""

    @property
    def k_major(self) -> tuple[bool, bool]:
        """Whether A and B are K-major in shared memory."""
        raise NotImplementedError

    @property
    def repacked(self) -> tuple[bool, bool]:
        """Whether A and B are copied into the workspace first."""
        raise NotImplementedError

    @property
    def products(self) -> int:
        """Products that make one: three where float32 is split in two."""
        return 1

    @property
    def panels(self) -> bool:
        """Whether the copy of B is in panels, and so in shared memory."""
        return False

    @property
    def early(self) -> bool:
        """Whether copies and products are launched as soon as there is room, and wait then."""
        return False


# -- work units ------------------------------------------------------------------------------------


class Work(NamedTuple):
    """One work unit, as this CTA sees it.

    Attributes
    ----------
    tile_m, tile_n
        The tile, counted in tiles.
    i0, i1
        The batch: L0 and L1.
    part
        The part of split-K.
    first, step, k_tiles
        The first k_tile along K, the distance to the next, and how many there are.
    rotation
        Which of them comes first: after the last one those before it follow.
    begin, end
        Of the group that i0 is, along what the groups divide; where there are groups.
    head
        Elements of K from `begin` on that are the group's before: TMA begins at whole 16 bytes,
        and k_tiles begin with those that share scales.
    """

    tile_m: Int32
    tile_n: Int32
    i0: Int32
    i1: Int32
    part: Int32
    first: Int32
    step: Int32
    k_tiles: Int32
    rotation: Int32
    begin: Int32 | tuple[()] = ()
    end: Int32 | tuple[()] = ()
    head: Int32 | tuple[()] = ()


def unit_order(spec: TileSpec, of: Arguments) -> TileOrder | GroupOrder:
    """Work out on the host what `work_unit` counts and divides by, or what `find_unit` does."""
    m, n, k, l0, _ = of.sizes
    split_k, band = of.parameters.split_k, of.parameters.band
    tile_m, tile_n, tile_k = spec.config.tile
    cm, cn = spec.config.cluster
    tiles_m = (m + tile_m * cm - 1) // (tile_m * cm)
    tiles_n = (n + tile_n * cn - 1) // (tile_n * cn)
    k_tiles = (k + tile_k - 1) // tile_k
    if const_expr(is_walked(spec)):
        return GroupOrder(Bounds(*of.offsets, l0, m, tiles_n, band), k_tiles)
    step = split_k * spec.config.cluster_k
    divisors = [Divisor(number) for number in (split_k, step, l0)]
    tiles = raster(tiles_m, tiles_n, of.parameters.along_n, band)
    rotations = (of.parameters.rotate_m, of.parameters.rotate_n)
    bounds = Bounds(*of.offsets, l0, k) if of.offsets else ()
    return TileOrder(tiles, *divisors, k_tiles, *rotations, bounds)


def most_units(spec: TileSpec, sizes: Sizes, split_k: Int32) -> Int32:
    """Return how many work units there are; on the host, and at most where there are groups."""
    m, n, _, l0, l1 = sizes
    tile_m, tile_n, _ = spec.config.tile
    cm, cn = spec.config.cluster
    rows, columns = tile_m * cm, tile_n * cn
    across = (n + columns - 1) // columns
    if is_walked(spec) and not spec.problem.groups.stacked:
        return (m + l0 * (rows - 1)) // rows * across
    return (m + rows - 1) // rows * across * split_k * l0 * l1


def is_walked(spec: TileSpec) -> bool:
    """Whether units are found by a walk through groups."""
    groups = spec.problem.groups
    return groups is not None and groups.along != "k"


def work_unit(spec: TileSpec, unit: Int32, order: TileOrder, ranks: Ranks) -> Work:
    """Return the unit of a running number.

    Tiles that all read the same few rows begin at different k_tiles (`rotation`), so that they do
    not all want the same ones at once.
    """
    rank_m, rank_n, rank_k = ranks
    cm, cn = spec.config.cluster
    tm, tn, batch = tile_coordinates(unit, order.tiles)
    part = Int32(0)
    if spec.split:
        batch, part = divmod(batch, order.split_k)
    k_tiles = order.k_tiles * spec.products
    # Parts are interleaved: CTAs that run at once then read neighbours in device memory.
    first, apart = Int32(0), Int32(1)
    if spec.split or spec.config.cluster_k > 1:
        first, apart = part * spec.config.cluster_k + rank_k, order.step.divisor
        k_tiles = (k_tiles - first + apart - 1) // order.step
    rotation = ((tm * order.rotate_m + tn * order.rotate_n) % ROTATIONS) * k_tiles // ROTATIONS
    i1, i0 = divmod(batch, order.l0)
    tile_m, tile_n = tm * cm + rank_m, tn * cn + rank_n
    work = Work(tile_m, tile_n, i0, i1, part, first, apart, k_tiles, rotation)
    if not order.bounds:
        return work
    begin, end = group_range(spec.problem.groups, order.bounds, i0)
    tile_k = spec.config.tile[2]
    unit = TMA_BITS // spec.operands[0].width if any(spec.k_major) else 1
    if spec.problem.has_block_scales:  # a k_tile is a block of K, wherever groups begin
        unit = tile_k
    head = begin & (unit - 1)
    begin -= head
    k_tiles = (end - begin + tile_k - 1) // tile_k * spec.products
    k_tiles = select(end > begin + head, k_tiles, Int32(0))
    return work._replace(k_tiles=k_tiles, rotation=Int32(0), begin=begin, end=end, head=head)


def first_of_groups(
    spec: TileSpec, unit: Int32, units: Int32, order: TileOrder | GroupOrder, ranks: Ranks
) -> tuple:  # fmt: skip
    """Return what `next_unit` does for the first unit; without groups nothing but the unit."""
    if spec.problem.groups is None:
        return unit, (), ()
    return next_unit(spec, unit, units, order, ranks, fresh_walk())


def first_row(spec: TileSpec, work: Work) -> Int32:
    """Return where the rows of a unit's group begin in A and D."""
    if is_walked(spec) and not spec.problem.groups.stacked:
        return work.begin
    return Int32(0)


def rows_of(spec: TileSpec, work: Work, sizes: tuple[Int32, Int32]) -> tuple[Int32, Int32]:
    """Return (M, N) with the end of the group's rows for M."""
    return (work.end, sizes[1]) if is_walked(spec) else sizes


@cute.jit
def next_unit(
    spec: cutlass.Constexpr, unit: Int32, units: Int32, order: TileOrder | GroupOrder,
    ranks: Ranks, walk: Walk,
) -> tuple:  # fmt: skip
    """Return a unit's number in a product with groups, the unit, and the walk so far; a whole warp.

    Behind the last unit the number is `EXHAUSTED`, as it is for any further one.
    """
    unit = select(unit < 0, Int32(EXHAUSTED), unit)
    if const_expr(is_walked(spec)):
        rank_m, rank_n, _ = ranks
        cm, cn = spec.config.cluster
        unit, (tm, tn, group, begin, end), walk = find_unit(
            spec.problem.groups, spec.config.tile[0] * cm, order.bounds, walk, unit
        )
        zero = Int32(0)
        work = Work(
            tm * cm + rank_m, tn * cn + rank_n, group, zero, zero, zero, Int32(1),
            order.k_tiles * spec.products, zero, begin, end,
        )  # fmt: skip
    else:
        work = work_unit(spec, unit, order, ranks)
        unit = select(unit < units, unit, Int32(EXHAUSTED))
    return unit, work, walk


@cute.jit
def later_unit(
    spec: cutlass.Constexpr, unit: Int32, dealt: Dealt, ranks: Ranks, work: Work,
    walk: Walk | tuple[()],
) -> tuple[Int32, Work, Walk | tuple[()]]:  # fmt: skip
    """Return what `next_unit` does, with groups or without; `work` and `walk` are those before."""
    order, units = dealt
    if const_expr(spec.problem.groups is not None):
        unit, work, walk = next_unit(spec, unit, units, order, ranks, walk)
    else:
        if unit < units:
            work = work_unit(spec, unit, order, ranks)
    return unit, work, walk


# -- the ring of stages ----------------------------------------------------------------------------


def advance(stage: Int32, phase: Int32, stages: int, by: int = 1) -> tuple[Int32, Int32]:
    """Return the next stage, or the one `by` further on; the phase flips where the ring wraps."""
    coming = stage + by
    wraps = coming >= stages
    begun = Int32(0) if by == 1 else coming - stages  # one by one, it wraps to the first
    return select(wraps, begun, coming), phase ^ select(wraps, Int32(1), Int32(0))


def skip(stage: Int32, phase: Int32, k_tiles: Int32, stages: int) -> tuple[Int32, Int32]:
    """Return the stage `k_tiles` further on."""
    total = stage + k_tiles
    wraps = total // stages
    return total - wraps * stages, phase ^ (wraps & 1)


def k_tile_source(spec: TileSpec, at: Int32) -> tuple[Int32, Int32, Int32]:
    """Return where a running k_tile lies along K, and whether it is of A's and of B's low half.

    Three products make one of split operands: low times high, high times low, high times high, the
    small ones first. All three of a k_tile come before the next, while what they share is still in
    the L2.
    """
    if spec.products == 1:
        return at, Int32(0), Int32(0)
    k_tile = at // spec.products
    product = at - k_tile * spec.products
    low_a = select(product == 0, Int32(1), Int32(0))
    low_b = select(product == 1, Int32(1), Int32(0))
    return k_tile, low_a, low_b


def bring(
    atom: cute.CopyAtom, source: cute.Tensor, into: cute.Tensor, full: cute.Pointer, mask: Int32,
    sharers: int, policy: Int64 | None = None,
) -> None:  # fmt: skip
    """Start the TMA load of one operand's k_tile, for all CTAs that share it.

    `policy` is the L2's, where it is not the usual one: see `cache_hints`.
    """
    how = {} if policy is None else {"cache_policy": policy}
    if sharers > 1:
        cute.copy(atom, source, into, tma_bar_ptr=full, mcast_mask=mask, **how)
    else:
        cute.copy(atom, source, into, tma_bar_ptr=full, **how)


# -- operands (host) -------------------------------------------------------------------------------


def batched(
    address: Int64, dtype: type, rows: Int32, columns: Int32, steps: Steps,
    deep: tuple[Int32, Int32], row_major: bool,
) -> cute.Tensor:  # fmt: skip
    """View matrices as (rows, columns, L0, L1), `deep` of them along the batch indices."""
    unit = 16 * 8 // dtype.width
    lead = cute.assume(steps.row if row_major else steps.column, divby=unit)
    strides = (lead, 1) if row_major else (1, lead)
    outer = [cute.assume(step, divby=unit) for step in (steps.l0, steps.l1)]
    pointer = cute.make_ptr(dtype, address, GMEM, assumed_align=16)
    layout = cute.make_layout((rows, columns, *deep), stride=(*strides, *outer))
    return cute.make_tensor(pointer, layout)


def operands(spec: TileSpec, of: Arguments) -> tuple[cute.Tensor, cute.Tensor, Int64]:
    """Return views of A (M, K) and B (N, K), repacked if need be, and the workspace behind them."""
    m, n, k, l0, l1 = of.sizes
    problem, workspace = spec.problem, of.addresses.workspace
    views, kinds, jobs = [], [], []
    for name, dtype, k_major, repacked, address, rows, steps in zip(
        ("a", "b"), spec.operands, spec.k_major, spec.repacked, of.addresses[:2], (m, n),
        (of.a_steps, transposed(of.b_steps)), strict=True,
    ):  # fmt: skip
        deep = (depth(steps.l0, l0), depth(steps.l1, l1))
        if repacked:
            few = name == "a" and spec.config.tile[0] <= REGISTER_ROWS
            panels = name == "b" and spec.panels
            kind = repack_of(spec, getattr(problem, name), k_major, few, panels)
            if panels:
                job, view = panelled(kind, dtype, address, (rows, k), steps, deep, workspace)
            else:
                job, view = packed(kind, dtype, address, (rows, k), steps, deep, k_major, workspace)
            workspace += aligned(job.part_bytes * kind.copies)
            kinds.append(kind)
            jobs.append(job)
            views.append(view)
        else:
            views.append(batched(address, dtype, rows, k, steps, deep, k_major))
    if in_halves(problem):
        views[1] = in_pairs(views[1])
    if kinds:
        launch_repack(tuple(kinds), tuple(jobs), of.stream)
    return (*views, workspace)


def in_pairs(view: cute.Tensor) -> cute.Tensor:
    """View a K-major B with its columns in pairs, one of each half: ((2, N / 2), K, L0, L1)."""
    (columns, *shape), (step, *steps) = view.shape, view.stride
    half = columns // 2
    apart = cute.assume(half * step, divby=16 * 8 // view.element_type.width)
    layout = cute.make_layout(((2, half), *shape), stride=((apart, step), *steps))
    return cute.make_tensor(view.iterator, layout)


def packed(
    kind: Repack, dtype: type, address: Int64, sizes: tuple[Int32, Int32], steps: Steps,
    deep: tuple[Int32, Int32], k_major: bool, workspace: Int64,
) -> tuple[Job, cute.Tensor]:  # fmt: skip
    """Return the job of one copy, in lines, and a view of the copy."""
    rows, k = sizes
    # The copy's lines run along its major index.
    lines, along = (rows, k) if k_major else (k, rows)
    source = steps if k_major else transposed(steps)
    pitch = packed_pitch(kind.itemsize, along)
    apart = pitch * lines
    part = apart * deep[0] * deep[1] * kind.itemsize
    job = Job(Lines(lines, along, *deep), address, source, workspace, pitch, part)
    line = (pitch, Int64(1)) if k_major else (Int64(1), pitch)
    # The low halves of a split follow the high ones along L1.
    strides, deep = Steps(*line, apart, apart * deep[0]), (deep[0], deep[1] * kind.copies)
    return job, batched(workspace, dtype, rows, k, strides, deep, k_major)


def panelled(
    kind: Repack, dtype: type, address: Int64, sizes: tuple[Int32, Int32], steps: Steps,
    deep: tuple[Int32, Int32], workspace: Int64,
) -> tuple[Job, cute.Tensor]:  # fmt: skip
    """Return the same in panels: a view as (eight rows, those along K, panels along N, L0, L1)."""
    rows, k = sizes
    matrix = PANEL_ROWS * kind.unit  # elements of eight rows
    pitch = panel_rows(k)
    panels = (rows + kind.unit - 1) // kind.unit
    apart = Int64(panels) * pitch * kind.unit
    part = apart * deep[0] * deep[1] * kind.itemsize
    source = transposed(steps)
    job = Job(Lines(k, rows, *deep), address, source, workspace, Int64(pitch), part)
    line = cute.assume(Int64(pitch) * kind.unit, divby=matrix)
    apart = cute.assume(apart, divby=matrix)
    layout = cute.make_layout(
        (matrix, pitch // PANEL_ROWS, panels, *deep),
        stride=(1, matrix, line, apart, apart * deep[0]),
    )
    pointer = cute.make_ptr(dtype, workspace, GMEM, assumed_align=16)
    return job, cute.make_tensor(pointer, layout)


def repack_of(
    spec: TileSpec, matrix: MatrixType, k_major: bool, few: bool, panels: bool
) -> Repack:  # fmt: skip
    """Say how an operand is copied; `few` says that it has few rows, `panels` that it is for these.

    However small, a transposition through shared memory takes twice as long as one in registers.
    """
    contiguous = matrix.major != "strided" and (matrix.major == "k") == k_major
    way: Literal["gather", "panels", "transpose_registers", "transpose_shared"] = (
        "transpose_registers" if few else "transpose_shared"
    )
    if contiguous or matrix.major == "strided":
        way = "panels" if panels else "gather"
    return Repack(
        itemsize=matrix.dtype.itemsize,
        way=way,
        contiguous=contiguous,
        vector=1 if matrix.major == "strided" else matrix.vector,
        split=spec.products > 1,
        early=spec.early,
    )


# -- the host function -----------------------------------------------------------------------------


def make_host(
    spec: Any, start: Callable[[Any, Arguments], None], parameters: int = PARAMETERS
) -> Callable:  # fmt: skip
    """Return the function to compile: raw addresses, sizes, element strides and a stream.

    `start` launches the kernels of a backend, which has the first few `parameters` of `Parameters`.
    """

    @cute.jit
    def gemm(*arguments: Any) -> None:
        of = grouped(arguments, parameters)
        scales, taken = parted(spec.problem, of.more)
        scale_steps, offsets = of_groups(spec.problem, of.more)
        whole = Arguments(
            of.addresses, of.sizes, of.a_steps, of.b_steps, of.d_steps, Parameters(*of.parameters),
            scales._replace(group_steps=scale_steps), of.stream, taken, offsets,
        )  # fmt: skip

        def launch(spec: Any, addresses: Addresses, taken: Taken) -> None:
            start(spec, whole._replace(addresses=addresses, taken=taken))

        with_bias_grads(launch, spec, of.addresses, of.sizes, of.d_steps, of.stream, taken, offsets)

    return gemm


def example_arguments(problem: Problem, parameters: int = PARAMETERS) -> list:
    """Return arguments of the host function's types, for compiling: see `host_arguments.py`.

    Four addresses, five sizes, twelve strides, the parameters, what only some problems have, and
    the stream: what `CuteBackend.bind` passes.
    """
    more = [*arguments_of(problem), *arguments_of_groups(problem)]
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
    wide, narrow = Int64(1), Int32(1)
    return [*[wide] * 4, *[narrow] * 5, *[wide] * 12, *[narrow] * parameters, *more, stream]
