"""How operands of `cute_wgmma` lie in shared memory, by the problem and the tile alone."""

from __future__ import annotations

from typing import Any, Literal

from unigemm.problem.dtypes import FLOAT8
from unigemm.problem.problem import Major, MatrixType, Problem

from ..common.epilogue import in_halves
from ..common.groups import begins_anywhere

__all__ = [
    "FEW_ROWS",
    "LEAST_SWIZZLE",
    "MMA_M",
    "SWIZZLE_BYTES",
    "TMA_BYTES",
    "from_registers",
    "in_panels",
    "is_promoted",
    "is_repacked",
    "may_panel",
    "products",
    "shared_major",
    "swizzle",
    "swizzle_of_b",
]

SWIZZLE_BYTES = 128  # a row of the widest swizzle: every operand line is cut into these
LEAST_SWIZZLE = 64  # of an N-major B: narrower ones are slow
MMA_M = 64  # rows of one wgmma (PTX ISA, wgmma.mma_async)
FEW_ROWS = (8, 16, 32)  # of a tile: an M-major A has them in one row of a swizzle
TMA_BYTES = 16  # base addresses and strides (PTX ISA, tensor maps)


def products(problem: Problem) -> int:
    """Return how many tensor core products make one: three where float32 is split in two."""
    return 3 if problem.precision == "3xtf32" else 1


def is_promoted(problem: Problem) -> bool:
    """Whether accumulators of the tensor cores are added to other registers now and then."""
    return products(problem) > 1 or problem.a.dtype in FLOAT8


def from_registers(problem: Problem, rows: int) -> bool:
    """Whether wgmma takes A, in tiles of `rows` rows, from registers.

    Rows of A lie side by side in lines of shared memory, which tiles have whole.
    """
    a = problem.a
    if problem.groups is not None:  # these end at any row, or at any K
        return False
    wide = a.dtype.itemsize != 2 and products(problem) == 1
    whole = rows >= MMA_M and rows * a.dtype.itemsize % SWIZZLE_BYTES == 0
    return wide and a.major == "m" and a.alignment == TMA_BYTES and whole


def shared_major(problem: Problem, name: Literal["a", "b"], rows: int) -> Major:
    """Return the majorness of A or B in shared memory; K-major but for 16-bit types, or registers.

    For few rows of an M-major A, TMA brings each K by itself, in as many lines as for 64 rows. So
    an A that is copied anyway becomes K-major, and so do eight rows where B is N-major.
    """
    matrix: MatrixType = getattr(problem, name)
    if name == "b" and in_halves(problem):  # TMA brings pairs of whole rows along K
        return "k"
    if name == "a" and from_registers(problem, rows):
        return "m"
    if name == "a" and begins_anywhere(problem):
        return "k"
    if name == "a" and rows < MMA_M:
        eight = rows == FEW_ROWS[0] and shared_major(problem, "b", rows) == "n"
        if eight or matrix.alignment < TMA_BYTES:
            return "k"
    other = matrix.major in ("m", "n") and matrix.dtype.itemsize == 2
    return matrix.major if other else "k"


def is_repacked(problem: Problem, name: Literal["a", "b"], rows: int) -> bool:
    """Whether A or B is copied into the workspace before it is multiplied."""
    matrix: MatrixType = getattr(problem, name)
    as_it_is = matrix.major == shared_major(problem, name, rows)
    return not as_it_is or matrix.alignment < TMA_BYTES or products(problem) > 1


def may_panel(problem: Problem) -> bool:
    """Whether an N-major B is copied, so that tiles may have any multiple of eight columns."""
    return shared_major(problem, "b", MMA_M) == "n" and is_repacked(problem, "b", MMA_M)


def in_panels(problem: Problem, columns: Any) -> Any:
    """Whether the copy of B is in panels, for tiles of `columns` columns; or for an array of these.

    Lines are faster where a swizzle of 64 bytes or more divides a tile's row.
    """
    return may_panel(problem) & (columns * problem.b.dtype.itemsize % LEAST_SWIZZLE != 0)


def swizzle(row_bytes: int) -> int:
    """Return the widest swizzle whose rows divide the bytes."""
    return next(width for width in (128, 64, 32, 16) if row_bytes % width == 0)


def swizzle_of_b(problem: Problem, rows: int, columns: int) -> int:
    """Return the bytes of a swizzled row of B in shared memory; 16 is not swizzled."""
    if shared_major(problem, "b", rows) == "k":
        return SWIZZLE_BYTES
    return TMA_BYTES if in_panels(problem, columns) else swizzle(columns * problem.b.dtype.itemsize)
