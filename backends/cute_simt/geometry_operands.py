"""How an operand's k_tiles lie in shared memory, and which thread copies what of them.

Operands stay in shared memory in the majorness that they have in device memory, so that every copy
is a plain vector; lanes read 16-byte vectors along whichever index is contiguous. There are three
exceptions:

- Big tiles of float32 transpose a K-major operand on its way, by 4-byte copies.
- A `repacked` configuration multiplies copies of the operands that are not M- or N-major with
  aligned rows: `effective_problem` is the problem of these copies.
- TMA brings operands to warp-specialized tiles, a box a k_tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from unigemm.planning.config import Config
from unigemm.problem.dtypes import INTEGERS, DType
from unigemm.problem.problem import Extents, MatrixType, Problem
from unigemm.support.forks import cached_property

from ..common.workspace import aligned, whole
from .schedules import (
    DMMA_K_TILE,
    FRAGMENT_K,
    FRAGMENT_ROWS,
    is_big,
    is_biggest,
    is_dmma,
    is_warp_specialized,
)

__all__ = [
    "BANK_VECTOR",
    "Copy",
    "OperandTile",
    "copy_schedule",
    "copy_step",
    "effective_problem",
    "has_aligned_rows",
    "is_repacked",
    "lanes_of",
    "longer_operand",
    "may_transpose",
    "operand_tile",
    "repacked_bytes",
    "widens_integers",
]

BANK_VECTOR = 16  # bytes: the widest shared-memory access of a lane
MIN_COPY = 4  # bytes: the narrowest cp.async (PTX ISA, cp.async: cp-size is 4, 8 or 16)


@dataclass(frozen=True)
class OperandTile:
    """One operand's tile in shared memory, `extent` (M or N) by `k_tile` (K).

    A line is what is contiguous in shared memory: a row along K of a K-major tile, else a row along
    M or N. All widths are in elements.

    Attributes
    ----------
    dtype
        Element type.
    k_major
        Stored (extent, K) with K contiguous; else (K, extent).
    transposed
        K-major in device memory, but stored (K, extent): the copies transpose it.
    swizzle_parts
        Groups of a line that are exchanged, differently in each line: four in each 128 bytes that
        tensor cores read. 0 where none are.
    extent, k_tile
        Sizes along M (or N) and K.
    pitch
        From one line to the next, padding included.
    copy_width
        Width of one copy from device memory.
    lanes, run, rows
        `lanes` lanes of a warp share the extent; each owns `rows` of it, in runs of `run`
        neighbours.
    vector
        Width of one shared-memory read along the contiguous index.
    most_accumulators
        The threads have the most accumulators that they may, and no registers to spare.
    tma_fed
        Brought by TMA, a box a k_tile, and not by copies of threads.
    tma_swizzled
        The boxes have rows of 128 bytes, whose 16-byte units TMA exchanges by the row's number: in
        float64. An operand that is not K-major comes in several boxes, of 16 M or N each.
    padded
        Behind the last row of the operand, a copy in the workspace, there are others up to a whole
        tile. What they hold goes into accumulators that nobody stores.
    """

    dtype: DType
    k_major: bool
    transposed: bool
    swizzle_parts: int
    extent: int
    k_tile: int
    pitch: int
    copy_width: int
    lanes: int
    rows: int
    run: int
    vector: int
    most_accumulators: bool
    tma_fed: bool
    tma_swizzled: bool
    padded: bool

    @property
    def asynchronous(self) -> bool:
        """Whether the copies are cp.async; single 2-byte elements go through registers."""
        return self.copy_width * self.dtype.itemsize >= MIN_COPY

    @property
    def checks_k_end(self) -> bool:
        """Whether the k_tile that K ends within is copied by the loop with checks.

        Copies of one element need none, since each lies before the end of K or behind it. But to
        tell which takes registers where the lines of a k_tile are copied one by one, and threads
        with the most accumulators would spill.
        """
        return self.copy_width > 1 or (self.most_accumulators and not self.transposed)

    @property
    def by_elements(self) -> bool:
        """Whether it is copied by single elements for another reason than being transposed."""
        return self.copy_width == 1 and not self.transposed

    @property
    def lines(self) -> int:
        """Lines of the tile."""
        return self.extent if self.k_major else self.k_tile

    @property
    def line(self) -> int:
        """Elements of one line, padding left out."""
        return self.k_tile if self.k_major else self.extent

    @cached_property  # as the next: tiles are kept, and planning asks often
    def copies(self) -> int:
        """Return how many copies fill the tile."""
        return self.lines * self.line // self.copy_width

    @property
    def elements(self) -> int:
        """Elements of the tile in shared memory, padding included, a multiple of 16 bytes."""
        unit = BANK_VECTOR // self.dtype.itemsize
        return -(-self.lines * self.pitch // unit) * unit

    @cached_property
    def bytes(self) -> int:
        """Shared memory of one stage of this operand."""
        return self.elements * self.dtype.itemsize

    def swizzle_xor(self, line: int) -> int:
        """Return what an offset in a line is combined with (exclusive or) where it is stored.

        In a transposed tile this and the pitch spread over the banks what the copies of a warp
        write at once; in one with `swizzle_parts`, what tensor cores read at once. It is never odd:
        the compiler has FMAs read one even and one odd register, for all K alike.
        """
        if self.swizzle_parts:
            return line % self.swizzle_parts * FRAGMENT_K
        return (line >> 3 & 1) * 2 if self.transposed else 0

    def row(self, index: int) -> int:
        """Return the offset along the extent, within a warp, of accumulator `index` of lane 0."""
        return (index // self.run) * self.lanes * self.run + index % self.run


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
    return [
        Copy(*copy_step(tile, threads, i), (i + 1) * threads > tile.copies)
        for i in range(-(-tile.copies // threads))
    ]


def copy_step(tile: OperandTile, threads: int, index: int) -> tuple[int, int]:
    """Return a thread's steps, in lines and along them, to its copy `index`."""
    per_line = tile.line // tile.copy_width
    if tile.transposed:  # neighbours along K
        return 0, index * (threads // tile.k_tile)
    if per_line <= threads:
        return index * (threads // per_line), 0
    wide = per_line // threads
    return index // wide, (index % wide) * threads * tile.copy_width


def lanes_of(config: Config) -> tuple[int, int]:
    """Return the lanes (M, N) of a warp."""
    m, n, _ = config.tile
    return (
        m // (config.warps[0] * config.thread[0]),
        n // (config.warps[1] * config.thread[1]),
    )


def has_aligned_rows(kind: MatrixType) -> bool:
    """Whether an operand has aligned rows along M or N, which are copied by whole vectors."""
    return kind.major in ("m", "n") and kind.alignment == BANK_VECTOR


def may_transpose(kind: MatrixType) -> bool:
    """Whether big tiles transpose an operand as they copy it."""
    return kind.major == "k" and kind.dtype is DType.FLOAT32


def is_repacked(kind: MatrixType, config: Config) -> bool:
    """Whether an operand is copied into the workspace before it is multiplied."""
    return config.repacked and not has_aligned_rows(kind)


def widens_integers(problem: Problem) -> bool:
    """Whether integers are added up in the type that they were read as, and D has another."""
    return problem.converted in INTEGERS and problem.d.dtype is not problem.converted


def effective_problem(problem: Problem, config: Config) -> Problem:
    """Return the problem that the GEMM kernel multiplies: repacked operands are their copies.

    The problem is the kernel's, as with `swap_ab`.
    """
    return _with_copies(problem) if config.repacked else problem


@lru_cache(maxsize=256)
def _with_copies(problem: Problem) -> Problem:
    return replace(problem, a=_repacked_matrix(problem.a, 0), b=_repacked_matrix(problem.b, 1))


def _effective_matrix(kind: MatrixType, config: Config, mode: int) -> MatrixType:
    return _repacked_matrix(kind, mode) if config.repacked else kind


def _repacked_matrix(kind: MatrixType, mode: int) -> MatrixType:
    if has_aligned_rows(kind):
        return kind
    return MatrixType(kind.dtype, "m" if mode == 0 else "n", BANK_VECTOR)


def repacked_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the bytes of the operands' copies, at most: a repeated batch is copied once."""
    total = 0
    for mode, (kind, rows) in enumerate(((problem.a, extents.m), (problem.b, extents.n))):
        if is_repacked(kind, config):
            line = whole(rows, config.tile[mode]) * kind.dtype.itemsize
            total += aligned(extents.batch * extents.k * line)
    return total


@lru_cache(maxsize=8192)
def operand_tile(kind: MatrixType, config: Config, mode: int) -> OperandTile:
    """Return the tile of A (mode 0) or B (mode 1); of a copy, where the operand has one."""
    padded, kind = is_repacked(kind, config), _effective_matrix(kind, config, mode)
    extent, k_tile, rows = config.tile[mode], config.tile[2], config.thread[mode]
    size = kind.dtype.itemsize
    widest = BANK_VECTOR // size
    transposed = may_transpose(kind) and is_big(config)
    k_major = kind.major == "k" and not transposed
    # A pitch of an odd number of 16-byte units puts eight neighbouring lines in distinct banks.
    pitch = k_tile + widest if k_major else extent + widest if transposed else extent
    tma_swizzled = is_dmma(config) and is_warp_specialized(config)
    run = 1 if k_major else min(rows, widest)
    # 8-byte reads of 16-bit elements: 16 bytes would hold eight K steps of a row in registers.
    vector = min(k_tile, widest, 4) if k_major else run
    swizzle_parts = 0
    if is_dmma(config):
        eight = lanes_of(config)[mode] == FRAGMENT_ROWS
        run, vector = (1, 1) if eight and k_major else (2, 1 + eight)
        swizzle_parts = DMMA_K_TILE // FRAGMENT_K if k_major and not tma_swizzled else 0
        pitch = k_tile if k_major else extent if tma_swizzled else extent + FRAGMENT_K
    along = k_tile if k_major else extent
    copy_width = 1 if transposed or kind.major == "strided" else min(kind.vector, along)
    if copy_width * size < MIN_COPY:  # bytes, which go through registers one by one
        copy_width = 1
    return OperandTile(
        dtype=kind.dtype,
        k_major=k_major,
        transposed=transposed,
        swizzle_parts=swizzle_parts,
        extent=extent,
        k_tile=k_tile,
        pitch=pitch,
        copy_width=copy_width,
        lanes=lanes_of(config)[mode],
        rows=rows,
        run=run,
        vector=vector,
        most_accumulators=is_biggest(config),
        tma_fed=tma_swizzled or (is_warp_specialized(config) and has_aligned_rows(kind)),
        tma_swizzled=tma_swizzled,
        padded=padded,
    )


def longer_operand(problem: Problem, config: Config) -> MatrixType:
    """Return the operand of which a tile has more rows."""
    m, n, _ = config.tile
    return problem.a if m > n else problem.b
