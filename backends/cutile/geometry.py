"""What a device lets cuTile do, and the arithmetic of one configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Literal, NamedTuple

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import Epilogue
from unigemm.problem.problem import Extents, MatrixType, Problem

from ..common.groups import anywhere
from ..common.workspace import packed_bytes

__all__ = [
    "ALIGNMENT",
    "ANY_MAJOR",
    "CLEAR_TILE",
    "DEFAULT_WARPS",
    "ENTRY",
    "PIECE_ROWS",
    "REDUCE_TILE",
    "SCHEDULE_TILE",
    "TRANSPOSE_TILE",
    "Features",
    "Part",
    "cleared_aux",
    "columns_of",
    "copied_bytes",
    "cut_by_groups",
    "effective_problem",
    "entries_of",
    "features",
    "gpu_code",
    "is_copied",
    "k_major",
    "kernel_problem",
    "parts_of",
    "physical_lines",
    "spans_of",
    "stored_directly",
    "table_bytes",
]

ALIGNMENT = 16  # bytes: base addresses and strides of TMA (PTX ISA, tensor maps), and cp.async
DEFAULT_WARPS = 4  # worker warps where the compiler is not told (cuda.tile.kernel)
REDUCE_TILE = (4, 256)  # lines and elements of them that a block of the reduction adds up
# Lines of a copy and elements of them that a block of `transpose` writes: a warp moves two
# lines of the L2 at a time on both sides, and five blocks an SM have 80 kB in flight.
TRANSPOSE_TILE = (64, 64)
PIECE_ROWS = 8  # of a shared tile that a block of `join` adds up: 16 bytes of a column-major D
ENTRY = 4  # numbers of a tile in the table of groups: group, which of its tiles, begin, end
# Entries that a block of `schedule` writes, and groups that it looks at together; lines and
# elements of them to which it writes zeros at once.
SCHEDULE_TILE = (16, 64)
CLEAR_TILE = (8, 256)
ANY_MAJOR = (10, 11)  # major compute capabilities whose tcgen05 reads an operand as it lies


@dataclass(frozen=True)
class Features:
    """What the code depends on, but for the configuration.

    Attributes
    ----------
    tma
        Tiles are moved by TMA; else by cp.async.
    whole_vectors
        Lines of A and B must be whole vectors of 16 bytes: else the compiler loads single elements
        instead of using cp.async, and registers spill (seen in code of 13.4 and 13.5 for sm_80).
    reads_tf32
        float32 in memory is read as TF32, whose low bits the tensor cores ignore; else it is
        converted on the way (13.5 ends with an assertion for sm_80).
    overlaps
        A kernel may begin before the one in front of it has ended.
    multiplies
        Indices are multiplied by numbers that the launch brings instead of being divided. On sm_90,
        where it was measured; on sm_100 and sm_110 loops over tiles of 512x256 spill two registers
        by it.
    """

    tma: bool
    whole_vectors: bool
    reads_tf32: bool
    overlaps: bool
    multiplies: bool


@lru_cache(maxsize=64)
def features(target: Target) -> Features:
    """Return what the target's architecture allows."""
    tma = target.capability >= (9, 0)
    hopper = target.capability[0] == 9
    return Features(tma=tma, whole_vectors=not tma, reads_tf32=tma, overlaps=tma, multiplies=hopper)


def gpu_code(target: Target) -> str:
    """Return the architecture's name as cuTile takes it: no letter behind the number."""
    major, minor = target.capability
    return f"sm_{major}{minor}"


def cut_by_groups(problem: Problem) -> Problem:
    """Return a problem whose matrices are as little aligned as what groups have of their lines.

    A D of a stack begins where its memory does, and its lines end anywhere, too.
    """
    own, groups = anywhere(problem), problem.groups
    if groups is None or not groups.stacked or own.d.major != groups.along:
        return own
    return replace(own, d=replace(own.d, alignment=own.d.dtype.itemsize))


def kernel_problem(problem: Problem) -> Problem:
    """Return the class that is compiled for a problem: what makes no difference is left out."""
    problem = cut_by_groups(problem)
    d = problem.d
    alignment = d.alignment if d.alignment == ALIGNMENT else d.dtype.itemsize
    precision = problem.precision if problem.a.dtype is DType.FLOAT32 else "ieee"
    return Problem(
        problem.a,
        problem.b,
        MatrixType(d.dtype, d.major, alignment),
        precision,
        scales=problem.scales,
        epilogue=problem.epilogue,
        groups=problem.groups,
        converted=problem.converted,
    )


def physical_lines(matrix: MatrixType) -> Literal["m", "n"]:
    """Return the index that the lines of an auxiliary array are numbered by: rows, or columns."""
    return "n" if matrix.major == "m" else "m"


class Part(NamedTuple):
    """An auxiliary array as a kernel takes it; `half`: which half of N it has, None for all."""

    array: int
    half: int | None = None


def parts_of(epilogue: Epilogue) -> tuple[Part, ...]:
    """Return the arrays that a kernel takes: with a gate in halves, those along N by halves."""
    found: list[Part] = []
    for i, x in enumerate(epilogue.aux):
        if epilogue.halves and "n" in x.along:
            found += [Part(i, 0), Part(i, 1)]
        else:
            found.append(Part(i))
    return tuple(found)


def cleared_aux(problem: Problem) -> tuple[int, ...]:
    """Return which arrays of an epilogue are results that have zeros where no group is, as D has.

    Those are the results of the shape of the accumulators.
    """
    epilogue, groups = problem.epilogue, problem.groups
    if epilogue is None or groups is None or groups.rest != "zeros":
        return ()
    stored = range(len(epilogue.arrays), len(epilogue.arrays) + len(epilogue.stored))
    return tuple(i for i in stored if epilogue.aux[i].along == "mn")


def entries_of(problem: Problem, extents: Extents, config: Config) -> int:
    """Return how many tiles groups may have along what they divide, as the kernel sees it."""
    groups = problem.groups
    if groups is None or groups.along == "k":
        return 0
    at = "mn".index(groups.along)
    tile, total = config.tile[at], (extents.m, extents.n)[at]
    if groups.stacked:
        return extents.batch * ceil(total / tile)
    return (total + extents.groups * (tile - 1)) // tile


def table_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the bytes of the table of groups' tiles: how many there are, and the entry of each."""
    entries = entries_of(problem, extents, config)
    return 4 * ENTRY * (entries + 1) if entries else 0


def columns_of(problem: Problem, columns: int) -> int:
    """Return the columns of one B: with a gate in halves there are two, of half of them each."""
    halves = problem.epilogue is not None and problem.epilogue.halves
    return columns // 2 if halves else columns


def is_copied(kind: MatrixType, config: Config) -> bool:
    """Whether an operand is copied into the workspace before it is multiplied."""
    return config.repacked and kind.major != "k"


def k_major(problem: Problem) -> Problem:
    """Return the class of the same product of K-major operands, as copies of them are."""
    a, b = (
        kind if kind.major == "k" else MatrixType(kind.dtype, "k", ALIGNMENT)
        for kind in (problem.a, problem.b)
    )
    return replace(problem, a=a, b=b)


def effective_problem(problem: Problem, config: Config) -> Problem:
    """Return the problem that is multiplied: with the copies of operands that have one.

    The problem is the kernel's, as with `swap_ab`.
    """
    return k_major(problem) if config.repacked else problem


def copied_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the most bytes that the operands' copies take: a repeated batch is copied once."""
    line = extents.k * problem.a.dtype.itemsize
    return sum(
        packed_bytes(rows, line, extents.batch, 1)
        for kind, rows in ((problem.a, extents.m), (problem.b, extents.n))
        if is_copied(kind, config)
    )


@lru_cache(maxsize=64)
def spans_of(length: int) -> tuple[int, ...]:
    """Return the powers of two that make up a side of a tile, the largest first.

    cuTile has no other tiles: 224 columns are 128, 64 and 32.
    """
    return tuple(1 << bit for bit in reversed(range(length.bit_length())) if length >> bit & 1)


def stored_directly(problem: Problem, config: Config) -> bool:
    """Whether threads store the tiles of a kernel, and not TMA.

    Tiles of 128x256 in TF32 that are stored column by column, as where B is the kernel's A, are
    faster so; smaller ones are not (docs/lab-notes/2026-11-26-tensor-core-code-choices.md).
    """
    m, n, _ = config.tile
    by_columns = problem.a.dtype is DType.FLOAT32 and problem.a.major == problem.d.major == "m"
    return by_columns and not config.repacked and config.cluster[0] == 1 and m * n >= 128 * 256
