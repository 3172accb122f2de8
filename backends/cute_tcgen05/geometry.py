"""The arithmetic of one Blackwell configuration: computed once, for the planner, kernel and tests.

A CTA has four warps that store, one that multiplies and one that loads. Accumulators lie in tensor
memory, in two buffers, so that one tile is stored while the next is multiplied. With the pair
schedule two CTAs along M multiply together (cta_group::2): each loads its own rows of A and half
the columns of B, and holds its own rows of D; the even one issues the instructions.

With a dynamic schedule a grid has a cluster for each work unit, and clusters that run take over
those that have not begun, one after the other (PTX ISA, clusterlaunchcontrol). One more warp
requests them.

Results go to D through boxes in shared memory, each some columns of one warp's rows. TMA stores the
boxes where it can write D, whose rows must begin and end at multiples of 16 bytes; rows of partial
sums do. Boxes for other rows are stored by all lanes of a warp.

Where blocks of K have scales (`Problem.blocks`), a stage also holds tiles of scales (see
`unigemm.problem.block_scales`). Each CTA of a pair holds the scales of its 128 rows and
of all columns; along K it is one tile for mxfp8, four for nvfp4. Tiles are copied to tensor memory,
where each stage has columns of its own, so a copy waits, as the stage does, for the products that
read the scales before.

Where scales of blocks multiply accumulators (`Problem.scales`), each k_tile has accumulators in a
buffer of its own, and the store warps add them up in registers: a row of the tile each thread, so
tiles are narrow.

Problems are as the kernel sees them: with `Config.swap_ab`, the transposed product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from unigemm.planning.config import Config
from unigemm.problem.block_scales import TILE_BLOCKS, TILE_BYTES, TILE_ROWS
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import BlockScales, Major, MatrixType, Problem

from ..common.epilogue import in_halves, scales_each_column
from ..common.groups import begins_anywhere

__all__ = [
    "Geometry",
    "box_of",
    "ctas_of",
    "geometry",
    "instruction_kind",
    "instruction_word",
    "is_repacked",
    "operand_bytes",
    "scale_tiles",
    "scales_k_tiles",
    "scales_of_instruction",
    "shared_major",
    "store_of",
]

ROWS = 128  # of a CTA's tile: the lanes of tensor memory
K_TILE_BYTES = 128  # of K: a row of the widest swizzle
STORE_WARPS = 4  # each reads its own quarter of the lanes (PTX ISA, tcgen05.ld)
MULTIPLY_WARP, LOAD_WARP, SCHEDULE_WARP = 4, 5, 6
BARRIER = 8  # bytes
BARRIER_BYTES = 1024  # reserved before the tiles: mbarriers, rounded to the swizzle's alignment
TMA_BYTES = 16  # base addresses and strides (PTX ISA, tensor maps)
ANSWERS = 2  # of the hardware's scheduler that are kept at once
SCHEDULES = ("single", "pair", "single-dynamic", "pair-dynamic")
BUFFERS = 2  # of accumulators in tensor memory, where they fit
# k_tiles that are prefetched into the L2 while tensor memory is allocated and the kernel before
# still runs.
PREFETCHED = 2
BOX_ROWS = ROWS // STORE_WARPS  # that one warp holds
BOX_BYTES = 128  # of a row of a box, at most: the widest swizzle
BOXES = 2  # of a warp, where TMA stores: one is filled while the other is stored
K_BYTES = 32  # of one instruction
K_BLOCKS = K_TILE_BYTES // K_BYTES  # instructions
COLUMNS = 512  # of tensor memory, 32 bits each
TILE_COLUMNS = TILE_ROWS // 32  # of tensor memory: a tile of scales, a column for 32 rows
HALF_TILE = TILE_ROWS // 2  # columns of B: a tile of D begins at a multiple of them
WIDEST = 256  # columns of a tile
WIDEST_SCALED = 128  # where a thread adds up a row in registers
LEAST_COLUMNS = 32  # that are allocated, in powers of two (PTX ISA, tcgen05.alloc)

# The number of each element type within its kind (PTX ISA, tcgen05 instruction descriptor).
_FORMATS = {
    DType.FLOAT16: 0,
    DType.BFLOAT16: 1,
    DType.FLOAT32: 2,
    DType.FLOAT8_E4M3FN: 0,
    DType.FLOAT8_E5M2: 1,
    DType.INT8: 1,
    DType.FLOAT4_E2M1FN_X2: 1,
}
# For types of scales: the kind, and the type's number (from the same tables).
_SCALED_KINDS = {
    DType.FLOAT8_E8M0FNU: ("mxf8f6f4.block_scale.scale_vec::1X", 1),
    DType.FLOAT8_E4M3FN: ("mxf4nvf4.block_scale.scale_vec::4X", 0),
}
_ACCUMULATORS = {DType.FLOAT32: 1, DType.INT32: 2}


Store = Literal["tma", "rows", "direct"]


@dataclass(frozen=True)
class Geometry:
    """Derived numbers of a configuration.

    Attributes
    ----------
    ctas
        CTAs that multiply together.
    pairs
        Groups of `ctas` along M of a cluster: they share B.
    cluster
        CTAs of a cluster.
    readers
        CTAs that multiply what one CTA loads, a pair counted once.
    dynamic
        Whether units are requested as they are needed, not dealt beforehand.
    warps
        Warps of a CTA.
    mma
        (M, N) of one instruction, over all of them.
    loaded
        Columns of B that one CTA loads.
    buffers
        Buffers of accumulators in tensor memory.
    scales_k_tiles
        Whether the accumulators of each k_tile are scaled and added up in registers.
    slot_bytes
        Shared memory for the scales of a k_tile's columns, where each has one of its own.
    scale_tiles
        Tiles of scales in a stage: of A and of B along their rows, and along K; zeros without
        scales.
    scale_count
        All tiles of scales in a stage.
    scale_bytes
        Shared memory for the scales of a stage.
    a_bytes, b_bytes
        One stage of an operand in one CTA.
    scale_column
        The first column of tensor memory behind the accumulators.
    scale_pitch
        Columns of tensor memory for the scales of a stage, whole ones for a byte of a barrier (see
        `stages`).
    tensor_columns
        Columns of tensor memory that are allocated, a power of two.
    store
        How D is written: out of boxes in shared memory by "tma" or in "rows", or "direct" from
        registers.
    box_columns, box_pitch
        Columns of D in a box, and bytes between its rows; 0 without boxes.
    box_bytes
        Shared memory for all boxes.
    smem_bytes
        All of a CTA's shared memory.
    """

    ctas: int
    pairs: int
    cluster: int
    readers: int
    dynamic: bool
    warps: int
    mma: tuple[int, int]
    loaded: int
    buffers: int
    scales_k_tiles: bool
    slot_bytes: int
    a_bytes: int
    b_bytes: int
    scale_tiles: tuple[int, int, int]
    scale_count: int
    scale_bytes: int
    scale_column: int
    scale_pitch: int
    tensor_columns: int
    store: Store
    box_columns: int
    box_pitch: int
    box_bytes: int
    smem_bytes: int


def shared_major(problem: Problem, name: str) -> Major:
    """Return the majorness of A or B in shared memory.

    Strided operands are made K-major, and so are pairs of float4, which are neighbours along K (PTX
    ISA, tcgen05.mma: transposes), and a B of halves, of which TMA brings pairs of rows along K.
    """
    matrix: MatrixType = getattr(problem, name)
    made_k_major = matrix.major == "strided" or matrix.dtype is DType.FLOAT4_E2M1FN_X2
    made_k_major = made_k_major or (name == "b" and in_halves(problem))
    made_k_major = made_k_major or (name == "a" and begins_anywhere(problem))
    return "k" if made_k_major else matrix.major


def is_repacked(problem: Problem, name: str) -> bool:
    """Whether A or B is copied into the workspace before it is multiplied."""
    matrix: MatrixType = getattr(problem, name)
    return matrix.major != shared_major(problem, name) or matrix.alignment < TMA_BYTES


def scales_k_tiles(problem: Problem) -> bool:
    """Whether the accumulators of each k_tile are multiplied by scales before they are added up."""
    return problem.scales is not None and problem.scales.of_blocks


@lru_cache(maxsize=8192)
def geometry(problem: Problem, config: Config) -> Geometry:
    """Return the derived numbers of a configuration."""
    m, n, _ = config.tile
    ctas = ctas_of(config)
    dynamic = config.schedule.endswith("dynamic")
    a_bytes, b_bytes = operand_bytes(problem.a.dtype.itemsize, config)
    tiles = scale_tiles(problem.blocks, config)
    tile_count = (tiles[0] + tiles[1]) * tiles[2]
    scale_pitch = -(-tile_count * TILE_COLUMNS // BARRIER) * BARRIER
    of_scales = config.stages * scale_pitch
    buffers = BUFFERS if BUFFERS * n + of_scales <= COLUMNS else 1
    columns = LEAST_COLUMNS
    while columns < buffers * n + of_scales:
        columns *= 2
    scale_bytes = tile_count * TILE_BYTES
    store, stored = store_of(problem, config.split_k > 1)
    box_columns, box_pitch = box_of(store, n, stored)
    boxes = {"tma": BOXES, "rows": 1, "direct": 0}[store]
    box_bytes = STORE_WARPS * boxes * BOX_ROWS * box_pitch
    scaled = scales_k_tiles(problem)
    # A slot for each buffer of accumulators.
    slot_bytes = 4 * n * buffers if scaled and scales_each_column(problem) else 0
    return Geometry(
        ctas=ctas,
        pairs=config.cluster[0] // ctas,
        cluster=config.cluster[0] * config.cluster[1],
        readers=config.cluster[0] // ctas + config.cluster[1] - 1,
        dynamic=dynamic,
        warps=SCHEDULE_WARP + dynamic,
        mma=(m * ctas, n),
        loaded=n // ctas,
        buffers=buffers,
        scales_k_tiles=scaled,
        slot_bytes=slot_bytes,
        a_bytes=a_bytes,
        b_bytes=b_bytes,
        scale_tiles=tiles,
        scale_count=tile_count,
        scale_bytes=scale_bytes,
        scale_column=buffers * n,
        scale_pitch=scale_pitch,
        tensor_columns=columns,
        store=store,
        box_columns=box_columns,
        box_pitch=box_pitch,
        box_bytes=box_bytes,
        smem_bytes=BARRIER_BYTES
        + config.stages * (a_bytes + b_bytes + scale_bytes)
        + box_bytes
        + slot_bytes,
    )


def ctas_of(config: Config) -> int:
    """Return the CTAs that multiply together."""
    return 2 if config.schedule.startswith("pair") else 1


def operand_bytes(size: int, config: Config) -> tuple[int, int]:
    """Return the bytes of a stage of A and of B in one CTA, for elements of `size` bytes."""
    m, n, k = config.tile
    return m * k * size, n // ctas_of(config) * k * size


def scale_tiles(blocks: BlockScales | None, config: Config) -> tuple[int, int, int]:
    """Return the tiles of scales in a stage: of A and of B along their rows, and along K."""
    _, n, k = config.tile
    if blocks is None:
        return 0, 0, 0
    return 1, -(-n // TILE_ROWS), -(-k // (blocks.block * TILE_BLOCKS))


def store_of(problem: Problem, split: bool) -> tuple[Store, int]:
    """Return how results are stored, and the bytes of an element: of D, or of partial sums."""
    d = problem.d
    size = (problem.accumulator if split else d.dtype).itemsize
    gated = problem.epilogue is not None and bool(problem.epilogue.gate)
    if d.major == "m" or (not split and (gated or size == 1)):
        return "direct", size
    if split or (d.major == "n" and d.alignment == TMA_BYTES):
        return "tma", size
    return ("rows" if d.major == "n" else "direct"), size


def box_of(store: Store, tile_n: int, size: int) -> tuple[int, int]:
    """Return the columns of a box of elements of a size, and the pitch of its rows.

    Rows of boxes that TMA does not store have an odd number of 16-byte units, so that neighbouring
    rows lie on different banks.
    """
    if store == "direct":
        return 0, 0
    columns = BOX_BYTES // size
    while tile_n % columns:
        columns //= 2
    return columns, columns * size + (16 if store == "rows" else 0)


def instruction_kind(problem: Problem) -> str:
    """Return the ``.kind`` of tcgen05.mma."""
    if problem.blocks:
        return _SCALED_KINDS[problem.blocks.dtype][0]
    if problem.a.dtype is DType.INT8:
        return "i8"
    return {1: "f8f6f4", 2: "f16", 4: "tf32"}[problem.a.dtype.itemsize]


def scales_of_instruction(blocks: BlockScales) -> int:
    """Return how many scales of a row one instruction takes."""
    return K_BYTES // blocks.block


def instruction_word(problem: Problem, config: Config, block: int = 0) -> int:
    """Return the instruction descriptor: types, majorness, M and N (PTX ISA; nothing saturates).

    With scales it also says, instead of the accumulators' type, which of a row's four scales in a
    tile the `block`-th instruction of a k_tile takes.
    """
    m, n = geometry(problem, config).mma
    scales = {}
    if problem.blocks:
        first = block * scales_of_instruction(problem.blocks) % TILE_BLOCKS
        scales = {4: first, 23: _SCALED_KINDS[problem.blocks.dtype][1], 29: first}
    fields = {
        4: _ACCUMULATORS[problem.accumulator],
        7: _FORMATS[problem.a.dtype],
        10: _FORMATS[problem.b.dtype],
        15: shared_major(problem, "a") == "m",
        16: shared_major(problem, "b") == "n",
        17: n // 8,
        24: m // 16,
        **scales,
    }
    return sum(int(value) << bit for bit, value in fields.items())
