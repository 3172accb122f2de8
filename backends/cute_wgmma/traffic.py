"""What prices of `cute_wgmma` owe to the extents alone: traffic, and copies of operands before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from unigemm.problem.problem import Extents, Problem

from ..common.l2_residency import is_l2_resident
from ..common.workspace import (
    LINE_BYTES,
    ROW_BYTES,
    SECTOR_BYTES,
    TRANSPOSE_BLOCK,
    packed_bytes,
    panel_bytes,
    workspace_bytes,
)
from .geometry import (
    FEW_ROWS,
    MMA_M,
    SWIZZLE_BYTES,
    is_promoted,
    is_repacked,
    may_panel,
    products,
    shared_major,
)
from .tiles import Family

__all__ = ["Work", "least_us", "repacked_bytes", "work_of"]

_NAMES: tuple[Literal["a", "b"], ...] = ("a", "b")


class Work(NamedTuple):
    """What a price owes to the extents alone.

    Attributes
    ----------
    family, extents
        What it is; the extents as the kernel sees them.
    slabs
        Slabs of K, each as often as there are products.
    moved, a_bytes, b_bytes
        Bytes that must be moved, and those of the operands.
    fixed_us
        Of the kernel, until its first slab is there.
    part_bytes
        Bytes of the partial sums of one part of K.
    repack_us
        Of copying operands before, by the rows of a tile: few, or 64 for more.
    copied
        Bytes of these copies, by the same.
    near_copies
        Of these, by the same, what launches may find in the L2.
    row_us
        Of a row of a slab of A, and of B, by where their lines begin.
    split
        Whether lines of an operand do not begin where the L2's do.
    b_rows
        Whether B is N-major.
    streamed
        Whether B is K-major, and larger than the L2.
    promoted
        Whether sums move to other registers.
    """

    family: Family
    extents: Extents
    slabs: int
    moved: int
    a_bytes: int
    b_bytes: int
    fixed_us: float
    part_bytes: int
    repack_us: np.ndarray
    copied: Mapping[int, int]
    near_copies: np.ndarray
    row_us: tuple[float, float]
    split: bool
    b_rows: bool
    streamed: bool
    promoted: bool


def work_of(family: Family, extents: Extents) -> Work:
    """Return what a product's prices owe to its extents."""
    problem, f = family.problem, family.figures
    size = problem.a.dtype.itemsize
    each = extents.k * extents.batch * size
    moved = extents.bytes_moved(problem)
    near = is_l2_resident(moved)
    b_rows = shared_major(problem, "b", MMA_M) == "n"
    repack_us, near_copies = np.zeros(MMA_M + 1), np.zeros(MMA_M + 1)
    copied: dict[int, int] = {}
    for copies, tiles in _ways_of_copying(problem):
        written = _copied_bytes(copies, extents)
        copied.update(dict.fromkeys(tiles, written))
        if not written:
            continue
        us, found = _repack_us(family, written, _block_bytes(copies, extents), near), 0
        # Lines of copies are padded, those of operands not. Stacks gain nothing by it (256 products
        # of 64x64x64 in TF32 take 8.3 us in nn, and would 7.0).
        if 2 * moved < family.target.l2_bytes and extents.batch == 1:
            found = min(written, (extents.m + extents.n) * each)
        for rows in tiles:
            repack_us[rows], near_copies[rows] = us, found
    of_a, of_b = _lines_of(problem)
    begin_a, begin_b = of_a.begin(extents.m, extents.k), of_b.begin(extents.n, extents.k)
    row_us = {ROW_BYTES: f.odd_row_us, SECTOR_BYTES: f.sector_row_us, LINE_BYTES: f.line_row_us}
    return Work(
        family,
        extents,
        slabs=-(-extents.k * size // SWIZZLE_BYTES) * products(problem),
        moved=moved,
        a_bytes=extents.m * each,
        b_bytes=extents.n * each,
        fixed_us=f.fixed_us - (f.near_us if near else 0.0),
        part_bytes=workspace_bytes(problem, extents, 2) // 2,
        repack_us=repack_us,
        copied=copied,
        near_copies=near_copies,
        row_us=(row_us[begin_a], row_us[begin_b]),
        split=min(begin_a, begin_b) < LINE_BYTES,
        b_rows=b_rows,
        streamed=extents.n * each > family.target.l2_bytes and not b_rows,
        promoted=is_promoted(problem),
    )


def least_us(work: Work) -> float:
    """Return a time that no launch is under: until the first slab is there, and for copies."""
    launch = max(work.family.figures.empty_us, work.fixed_us)
    return launch + min(float(work.repack_us[rows]) for rows in work.copied)


class _Lines(NamedTuple):
    """How an operand lies: whether tiles read a copy, whether along K, and its elements' size."""

    copy: bool
    along_k: bool
    itemsize: int

    def begin(self, rows: int, k: int) -> int:
        """Return the bytes that lines begin at multiples of: L2's lines, its sectors, or less."""
        if self.copy:
            return LINE_BYTES
        size = (k if self.along_k else rows) * self.itemsize
        size = -(-size // ROW_BYTES) * ROW_BYTES
        if size % SECTOR_BYTES:
            return ROW_BYTES
        whole = size % LINE_BYTES == 0 or LINE_BYTES % size == 0  # or several in one
        return LINE_BYTES if whole else SECTOR_BYTES


@lru_cache(maxsize=256)
def _lines_of(problem: Problem) -> tuple[_Lines, _Lines]:
    """Return the lines of A and of B."""
    a, b = (
        _Lines(
            is_repacked(problem, name, MMA_M),
            shared_major(problem, name, MMA_M) == "k",
            getattr(problem, name).dtype.itemsize,
        )
        for name in _NAMES
    )
    return a, b


def _repack_us(family: Family, copied: int, in_blocks: int, near: bool) -> float:
    """Return the time of copying so many bytes of operands, in blocks of so many."""
    f = family.figures
    # What the L2 does not hold is written to device memory, too.
    passes = 1 if 2 * copied < family.target.l2_bytes else 2
    fixed = f.repack_us - (f.near_copy_us if near else 0.0)
    return fixed + passes * max(copied, in_blocks) / f.repack_gbs / 1e3


def _block_bytes(copies: tuple[_Copy, ...], extents: Extents) -> int:
    """Return the bytes of the blocks that copy operands.

    Small matrices leave them partly empty: 1024 of 32x32 in TF32 take 3 us more than as many bytes
    of others.
    """
    total = 0
    for copy in copies:
        rows = copy.rows(extents)
        blocks = -(-rows // TRANSPOSE_BLOCK) * -(-extents.k // TRANSPOSE_BLOCK) * extents.batch
        total += blocks * TRANSPOSE_BLOCK**2 * copy.itemsize * copy.copies
    return total


def repacked_bytes(problem: Problem, extents: Extents, tile_m: int) -> int:
    """Return the bytes of the operands' copies, at most."""
    return _copied_bytes(_copied(problem, tile_m), extents)


def _copied_bytes(copies: tuple[_Copy, ...], extents: Extents) -> int:
    total = 0
    for copy in copies:
        rows = copy.rows(extents)
        lines, along = (rows, extents.k) if copy.along_k else (extents.k, rows)
        most = packed_bytes(lines, along * copy.itemsize, extents.batch, copy.copies)
        if copy.may_panel:  # tiles decide
            most = max(most, panel_bytes(lines, along * copy.itemsize, extents.batch))
        total += most
    return total


class _Copy(NamedTuple):
    """An operand that is copied: whether in lines along K, into how many, and maybe in panels."""

    name: Literal["a", "b"]
    along_k: bool
    itemsize: int
    copies: int
    may_panel: bool

    def rows(self, extents: Extents) -> int:
        """Return how many rows of K it has."""
        return extents.m if self.name == "a" else extents.n


@lru_cache(maxsize=1024)
def _copied(problem: Problem, tile_m: int) -> tuple[_Copy, ...]:
    """Return the operands that are copied for tiles of so many rows."""
    return tuple(
        _Copy(
            name,
            shared_major(problem, name, tile_m) == "k",
            getattr(problem, name).dtype.itemsize,
            _copies(problem),
            name == "b" and may_panel(problem),
        )
        for name in _NAMES
        if is_repacked(problem, name, tile_m)
    )


@lru_cache(maxsize=256)
def _ways_of_copying(problem: Problem) -> tuple[tuple[tuple[_Copy, ...], list[int]], ...]:
    """Return what tiles have copied, once each, and for how many rows: few, or 64 for more."""
    found: dict[tuple[_Copy, ...], list[int]] = {}
    for rows in (*FEW_ROWS, MMA_M):
        found.setdefault(_copied(problem, rows), []).append(rows)
    return tuple(found.items())


def _copies(problem: Problem) -> int:
    """Return how many matrices an operand becomes that is copied."""
    return 2 if products(problem) > 1 else 1
