"""Where the scales of blocks lie: one for each 32 elements along K of a row (OCP Microscaling).

Scales are taken in two orders:

plain
    The array of the operand with ceil(K / 32) in place of K; any strides.
blocked
    What tcgen05 and cuBLAS read: a flat array of tiles of 128 rows and 4 blocks of K, those along K
    first. A tile has 512 bytes: row r and block j of it in byte 16 (r % 32) + 4 (r // 32) + j. Rows
    and blocks are rounded up to whole tiles; what fills them is never multiplied by anything that
    is kept.

Rows are those of A, and the columns of B.
"""

from __future__ import annotations

from typing import Any

from .dtypes import DType
from .errors import ShapeMismatch, UnsupportedProblem
from .problem import BlockScales, ScaleOrder

__all__ = [
    "BLOCK",
    "TILE_BLOCKS",
    "TILE_BYTES",
    "TILE_ROWS",
    "Steps",
    "block_scales",
    "blocked_count",
    "blocks_of",
    "row_and_block_places",
    "scale_steps",
]

BLOCK = 32  # elements along K that share a scale
TILE_ROWS, TILE_BLOCKS = 128, 4
TILE_BYTES = TILE_ROWS * TILE_BLOCKS
_ALIGNMENT = 16  # bytes: what TMA reads begins at multiples of it (PTX ISA, tensor maps)

#: Elements (bytes): (row, block, then each dimension of the stack); zeros where "blocked".
Steps = tuple[int, ...]


def blocks_of(k: int) -> int:
    """Return how many scales a row of K elements has."""
    return -(-k // BLOCK)


def blocked_count(rows: int, k: int) -> int:
    """Return the elements of the scales of a matrix in tiles."""
    return -(-rows // TILE_ROWS) * -(-blocks_of(k) // TILE_BLOCKS) * TILE_BYTES


def row_and_block_places(row: Any, block: Any, k: int) -> tuple[Any, Any]:
    """Return two numbers whose sum is where a scale lies among those of a matrix in tiles.

    One depends on the row alone, one on the block alone; arrays of either do as well.
    """
    across = -(-blocks_of(k) // TILE_BLOCKS) * TILE_BYTES
    inside = row % TILE_ROWS
    of_row = row // TILE_ROWS * across + inside % 32 * 16 + inside // 32 * 4
    return of_row, block // TILE_BLOCKS * TILE_BYTES + block % TILE_BLOCKS


def block_scales(a: ScaleOrder, b: ScaleOrder) -> BlockScales:
    """Return the class of MX scales in two orders."""
    return BlockScales(DType.FLOAT8_E8M0FNU, BLOCK, a, b)


def scale_steps(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    alignment: int,
    operand: tuple[int, ...],
    name: str,
) -> tuple[ScaleOrder, Steps]:
    """Return the order of the scales of an operand, and their steps.

    Parameters
    ----------
    shape, strides, alignment
        Of the scales; elements of one byte, and bytes.
    operand
        The shape of ``a`` or ``b``.
    name
        ``"scale_a"`` or ``"scale_b"``.

    Raises
    ------
    ShapeMismatch
        They are not the scales of such an operand.
    UnsupportedProblem
        Tiles that TMA cannot read.
    """
    along = -2 if name == "scale_b" and len(operand) > 1 else -1
    whole = list(operand)
    k = whole[along]
    whole[along] = blocks_of(k)
    stack = operand[:-2]
    rows = 1 if len(operand) == 1 else operand[-1 if along == -2 else -2]
    count = blocked_count(rows, k)
    steps = [0 if extent == 1 else step for extent, step in zip(stack, strides, strict=False)]
    if shape == tuple(whole):
        row = 0 if len(operand) == 1 else strides[-1 if along == -2 else -2]
        return "plain", (row, strides[along], *steps)
    if shape != (*stack, count):
        turned = (*stack, rows, blocks_of(k))
        hint = f" (transposed: {name}.T)" if len(operand) > 1 and shape == turned else ""
        raise ShapeMismatch(
            f"{name} has shape {shape}; one scale for each {BLOCK} elements along K of "
            f"{operand} is {tuple(whole)}{hint}, or {(*stack, count)} in tiles of "
            f"{TILE_ROWS} x {TILE_BLOCKS}"
        )
    aligned = alignment >= _ALIGNMENT and not any(step % _ALIGNMENT for step in steps)
    if strides[-1] != 1 or min(steps, default=0) < 0 or not aligned:
        raise UnsupportedProblem(
            f"{name} holds tiles that are not contiguous, or do not begin at multiples of "
            f"{_ALIGNMENT} bytes; pass a compact copy"
        )
    return "blocked", (0, 0, *steps)
