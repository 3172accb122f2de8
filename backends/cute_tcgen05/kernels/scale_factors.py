"""Block scales on their way: into tiles if need be, to shared memory, to tensor memory.

A tile (see `unigemm.problem.block_scales`) is 512 contiguous bytes: 32 lines of 16. TMA brings
tiles as they lie; in a stage tiles along K follow one another, first of A, then of each 128 columns
of B. Copied to tensor memory by 32x128b.warpx4, a line becomes a lane of each of the four warps,
and four columns, each with the scales of a row: row 32 q + i of the tile is in lane i of column q,
a byte for each block of K (PTX ISA, tcgen05: scale factor layouts).
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8, range_constexpr
from cutlass.cute.nvgpu import cpasync, tcgen05

from unigemm.problem.block_scales import TILE_BLOCKS, TILE_BYTES, TILE_ROWS

from ...common.workspace import aligned
from ...cute.kernels.device import GMEM, global_vector, pinned_tensor, read, select, write
from ...cute.kernels.records import Arguments, TmaView
from ...cute.kernels.repack import after_the_kernel_before, depth
from ...cute.kernels.scaling import ScaleSteps
from ...cute.kernels.tile_scheduler import Work
from ..geometry import HALF_TILE, K_BLOCKS, TILE_COLUMNS, scales_of_instruction
from .pipeline import Ring, at_stage, origin
from .records import Operand, ScaleTiles
from .spec import Spec

_WORDS = TILE_BYTES // 4  # of a tile, the scales of four blocks of a row each
_LINE = 16  # bytes


# -- into tiles ------------------------------------------------------------------------------------


@cute.kernel
def tile_kernel(
    source: Int64, steps: ScaleSteps, target: Int64, rows: Int32, blocks: Int32, l0: Int32
) -> None:
    """Write a tile of scales, a word each thread.

    Tiles are counted along K, then along the rows, then over the stack. The last scale of a row is
    repeated behind it: it multiplies zeros there, and if it is NaN the whole row is NaN anyway.
    """
    tile, _, _ = cute.arch.block_idx()
    word, _, _ = cute.arch.thread_idx()
    across = (blocks + TILE_BLOCKS - 1) // TILE_BLOCKS
    down = (rows + TILE_ROWS - 1) // TILE_ROWS
    line = tile // across
    first = (tile - line * across) * TILE_BLOCKS
    batch = line // down
    row = (line - batch * down) * TILE_ROWS + word % 4 * 32 + word // 4
    i1 = batch // l0
    start = source + Int64(batch - i1 * l0) * steps.l0 + Int64(i1) * steps.l1
    start += Int64(cutlass.min(row, rows - 1)) * steps.line
    addresses = []
    for j in range_constexpr(TILE_BLOCKS):
        addresses.append(start + Int64(cutlass.min(first + j, blocks - 1)) * steps.block)
    where = target + Int64(tile) * TILE_BYTES + word * 4
    after_the_kernel_before(*addresses, where)
    found = [read(global_vector(address, Uint8, 1), 1)[0] for address in addresses]
    write(found, global_vector(where, Uint8, TILE_BLOCKS))


def tiled(
    order: str, block: int, address: Int64, steps: ScaleSteps, sizes: tuple[Int32, Int32],
    batch: tuple[Int32, Int32], workspace: Int64, stream: cuda.CUstream,
) -> tuple[cute.Tensor, Int64]:  # fmt: skip
    """Return scales in tiles, viewed as words (a tile, along K, along the rows, L0, L1).

    Plain scales are copied into the workspace first. Also returns the workspace behind them.
    """
    rows, k = sizes
    blocks = (k + block - 1) // block
    across = (blocks + TILE_BLOCKS - 1) // TILE_BLOCKS
    down = (rows + TILE_ROWS - 1) // TILE_ROWS
    inner, outer = steps.l0, steps.l1
    deep = (depth(inner, batch[0]), depth(outer, batch[1]))
    apart = Int64(across) * down * TILE_BYTES
    if order == "plain":
        count = across * down * deep[0] * deep[1]
        tile_kernel(address, steps, workspace, rows, blocks, deep[0]).launch(
            grid=(count, 1, 1), block=(_WORDS, 1, 1), stream=stream, use_pdl=True
        )
        address, inner, outer = workspace, apart, apart * deep[0]
        size = apart * deep[0] * deep[1]
        workspace += aligned(size)
    pointer = cute.make_ptr(Int32, address, GMEM, assumed_align=_LINE)
    strides = (1, _WORDS, Int64(across) * _WORDS)
    stack = [cute.assume(step // 4, divby=_LINE // 4) for step in (inner, outer)]
    layout = cute.make_layout((_WORDS, across, down, *deep), stride=(*strides, *stack))
    return cute.make_tensor(pointer, layout), workspace


# -- to shared memory ------------------------------------------------------------------------------


def loads(
    spec: Spec, of: Arguments, workspace: Int64
) -> tuple[tuple[TmaView, ...], Int64]:  # fmt: skip
    """Return the TMA loads of a k_tile of A's scales and of B's, and the workspace behind tiles."""
    blocks, (m, n, k, l0, l1) = spec.problem.blocks, of.sizes
    assert blocks is not None
    group = tcgen05.CtaGroup.TWO if spec.geometry.ctas == 2 else tcgen05.CtaGroup.ONE
    load, made = cpasync.CopyBulkTensorTileG2SOp(group), []
    for order, address, steps, count, box in zip(
        (blocks.a, blocks.b), *of.scales.blocks, (m, n), boxes(spec), strict=True
    ):
        view, workspace = tiled(
            order, blocks.block, address, steps, (count, k), (l0, l1), workspace, of.stream
        )
        atom, tensor = cpasync.make_tiled_tma_atom(load, view, cute.make_layout(box), box)
        made.append(TmaView(atom, tensor))
    return tuple(made), workspace


def boxes(spec: Spec) -> tuple[tuple[int, int, int], ...]:
    """Return the box that TMA brings of A's scales and of B's: (words, along K, along the rows)."""
    of_a, of_b, deep = spec.geometry.scale_tiles
    return (_WORDS, deep, of_a), (_WORDS, deep, of_b)


def partitions(spec: Spec, views: tuple[TmaView, ...], shared: cute.Pointer) -> list[Operand]:
    """Return how the scales of A and of B are loaded."""
    made, ahead = [], 0
    geo = spec.geometry
    for (atom, tensor), box in zip(views, boxes(spec), strict=True):
        pitches = (1, _WORDS, _WORDS * box[1], geo.scale_bytes // 4)
        layout = cute.make_layout((*box, spec.config.stages), stride=pitches)
        held = pinned_tensor(cute.make_tensor(shared + ahead, layout))
        made.append(Operand(atom, tensor, cute.group_modes(held, 0, 3)))
        ahead += cute.size(box)
    return made


def bring_tiles(
    spec: Spec, scales: tuple[Operand, ...], tile_m: Int32, tile_n: Int32, k: Int32,
    batch: tuple[tuple[Int32, Int32], ...], stage: Int32, full: cute.Pointer,
) -> None:  # fmt: skip
    """Start the TMA loads of a stage's scales; TMA fills up with zeros behind rows and blocks."""
    starts = (tile_m, first_half_tile(spec, tile_n) * HALF_TILE // TILE_ROWS)
    for i, (atom, tensor, held, _) in enumerate(scales):
        _, deep, wide = boxes(spec)[i]
        # From any row of tiles on: the scales of a tile's columns may begin between two boxes.
        ahead = cute.domain_offset((0, k * deep, starts[i], *batch[i]), tensor)
        source = cute.local_tile(ahead, (_WORDS, deep, wide, 1, 1), (0,) * 5)
        into, addresses = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), held, cute.group_modes(source, 0, 5)
        )
        cute.copy(atom, addresses, into[None, stage], tma_bar_ptr=full)


def first_half_tile(spec: Spec, tile_n: Int32) -> Int32:
    """Return how many half tiles of scales lie before a tile's columns."""
    return tile_n * (spec.config.tile[1] // HALF_TILE)


# -- to tensor memory ------------------------------------------------------------------------------


def column_of(spec: Spec, part: int, along: int) -> int:
    """Return the first column, within a stage, of a tile of A (`part` 0) or of columns of B.

    Tiles of B for the same K follow one another, since they are read as one.
    """
    _, wide, deep = spec.geometry.scale_tiles
    tile = along if part == 0 else deep + along * wide + part - 1
    return tile * TILE_COLUMNS


def descriptor_words(shared: cute.Pointer) -> tuple[Int32, Int32]:
    """Return the words of the descriptor of the first tile; the lower has its address.

    Lines of 16 bytes that are not swizzled, 8 of them to the next 8; nothing leads (PTX ISA,
    tcgen05: shared memory descriptor).
    """
    version, stride, leading = 1 << (46 - 32), 8 * _LINE >> 4, _LINE >> 4
    return (Int32(shared.toint()) >> 4) + (leading << 16), Int32(version | stride)


def origins(spec: Spec, scales: ScaleTiles, ring: Ring) -> ScaleTiles:
    """Return what `at_stage` adds to, from the scales of the first stage."""
    low, high = scales.words
    geo = spec.geometry
    words = (origin(low, geo.scale_bytes >> 4, ring), high)
    return ScaleTiles(words, origin(scales.column, geo.scale_pitch, ring))


def copy_tiles(spec: Spec, scales: ScaleTiles, stage: Int32) -> list[tuple[Int32, ...]]:
    """Copy a stage's tiles to tensor memory, in both CTAs of a pair; one warp.

    `scales` are what `origins` returns, with the tile along N. Returns the columns that each
    instruction's scales begin at.
    """
    words, base, tile_n = scales
    geo = spec.geometry
    into = at_stage(base, geo.scale_pitch, stage)
    deep = geo.scale_tiles[2]
    for tile in range(geo.scale_count):
        low = at_stage(words[0], geo.scale_bytes >> 4, stage) + (tile * TILE_BYTES >> 4)
        with cute.arch.elect_one():
            cute.arch.inline_ptx(
                "{ .reg .b64 tile; mov.b64 tile, {{$r1}, {$r2}}; "
                f"tcgen05.cp.cta_group::{geo.ctas}.32x128b.warpx4 [{{$r0}}], tile; }}",
                read_only_args=[into + column_of(spec, tile // deep, tile % deep), low, words[1]],
            )
    return [scales_of_block(spec, into, block, tile_n) for block in range(K_BLOCKS)]


def scales_of_block(spec: Spec, first: Int32, block: int, tile_n: Int32) -> tuple[Int32, Int32]:
    """Return the columns that A's scales and B's begin at for an instruction of a k_tile.

    `first` is the stage's first column, `block` counts instructions.
    """
    blocks = spec.problem.blocks
    assert blocks is not None
    along = block * scales_of_instruction(blocks) // TILE_BLOCKS
    # The columns may begin in the middle of a tile.
    inside = first_half_tile(spec, tile_n) % (TILE_ROWS // HALF_TILE) * (HALF_TILE // 32)
    return first + column_of(spec, 0, along), first + column_of(spec, 1, along) + inside


def whole_k_tiles(work: Work, blocks: Int32) -> tuple[Int32, Int32]:
    """Return how many k_tiles come before the one that K ends in, and how many k_blocks that has.

    All k_tiles, where K ends with a k_tile or in another part. `blocks` counts the k_blocks of K.
    """
    last = work.first + (work.k_tiles - 1) * work.step
    ends = (last + 1) * K_BLOCKS > blocks
    return select(ends, work.k_tiles - 1 - work.rotation, work.k_tiles), blocks % K_BLOCKS


tile_kernel.set_name_prefix("scale_tiles", remove_cutlass_symbol=True, keep_mangled_name=False)
