"""Block scales: one scale for each block of elements along K, and where they lie in memory.

=======  ==================  =======================================  ===========================
format   elements            scales                                   elements that share one
=======  ==================  =======================================  ===========================
mxfp8    float8, both kinds  float8_e8m0fnu, powers of two            32 (OCP Microscaling)
nvfp4    float4_e2m1fn_x2    float8_e4m3fn, of which no sign is read  16, which are 8 of the array
=======  ==================  =======================================  ===========================

An element of float4_e2m1fn_x2 is a byte that holds two neighbours along K, the first in its low
half. All counts along K are of the array's elements.

Scales are taken in two orders:

plain
    An array of the operand's shape with one scale for each block instead of K; any strides.
blocked
    What tcgen05 and cuBLAS read: a flat array of tiles of 128 rows by 4 blocks of K. Tiles along K
    come first. A tile has 512 bytes; row r and block j of it are in byte 16 (r % 32) + 4 (r // 32)
    + j. Rows and blocks are rounded up to whole tiles. The padding is ignored, except that for
    nvfp4 the padding along K must not be NaN, because four blocks are multiplied at once.

Rows are those of A, and the columns of B.
"""

from __future__ import annotations

from typing import Any

from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from .dtypes import FLOAT8, DType
from .problem import BlockScales, ScaleOrder

__all__ = [
    "BLOCKS",
    "FORMATS",
    "TILE_BLOCKS",
    "TILE_BYTES",
    "TILE_ROWS",
    "Steps",
    "block_scales",
    "blocked_count",
    "blocks_of",
    "elements_of",
    "refuse_elements",
    "row_and_block_offsets",
    "scale_steps",
]

#: Types of the elements and of the scales of each format; mxfp8 also takes the other float8.
FORMATS = {
    "mxfp8": (DType.FLOAT8_E4M3FN, DType.FLOAT8_E8M0FNU),
    "nvfp4": (DType.FLOAT4_E2M1FN_X2, DType.FLOAT8_E4M3FN),
}
#: How many elements of an array along K share a scale, by the type of the scale.
BLOCKS = {DType.FLOAT8_E8M0FNU: 32, DType.FLOAT8_E4M3FN: 8}
_ELEMENTS = {DType.FLOAT8_E8M0FNU: FLOAT8, DType.FLOAT8_E4M3FN: (DType.FLOAT4_E2M1FN_X2,)}
TILE_ROWS, TILE_BLOCKS = 128, 4
TILE_BYTES = TILE_ROWS * TILE_BLOCKS
_ALIGNMENT = 16  # bytes, of what TMA reads (PTX ISA, tensor maps)

#: Strides in elements (bytes) of row, block and each dimension of the stack; 0 if "blocked".
Steps = tuple[int, ...]


def blocks_of(k: int, block: int) -> int:
    """Return how many scales a row of K elements has."""
    return -(-k // block)


def blocked_count(rows: int, blocks: int) -> int:
    """Return how many scales a matrix has in tiles, padding included."""
    return -(-rows // TILE_ROWS) * -(-blocks // TILE_BLOCKS) * TILE_BYTES


def row_and_block_offsets(row: Any, block: Any, blocks: int) -> tuple[Any, Any]:
    """Return two offsets whose sum is the index of a scale among those of a matrix in tiles.

    The first depends on the row only, the second on the block only. Both may be arrays.
    """
    across = -(-blocks // TILE_BLOCKS) * TILE_BYTES
    inside = row % TILE_ROWS
    of_row = row // TILE_ROWS * across + inside % 32 * 16 + inside // 32 * 4
    return of_row, block // TILE_BLOCKS * TILE_BYTES + block % TILE_BLOCKS


def block_scales(dtype: DType, a: ScaleOrder, b: ScaleOrder) -> BlockScales:
    """Return the `BlockScales` of a type of scales, in the orders of A and B."""
    return BlockScales(dtype, BLOCKS[dtype], a, b)


def elements_of(dtype: DType, scales: DType | None) -> DType:
    """Return the type of an array's elements: uint8 with NVFP4's scales holds float4.

    Parameters
    ----------
    dtype
        Type of the array.
    scales
        Type of its block scales; None if it has none.
    """
    pairs = dtype is DType.UINT8 and scales is DType.FLOAT8_E4M3FN
    return DType.FLOAT4_E2M1FN_X2 if pairs else dtype


def refuse_elements(elements: DType, scales: DType | None) -> None:
    """Refuse elements that do not go with a type of block scales (None for no scales).

    Raises
    ------
    UnsupportedDtype
        The elements need other scales, or the scales other elements.
    """
    packed = DType.FLOAT4_E2M1FN_X2
    if elements is packed and scales is not DType.FLOAT8_E4M3FN:
        raise UnsupportedDtype(
            f"{packed} is multiplied with a scale for each 16 elements of both operands: pass "
            "these as scale_a and scale_b, float8_e4m3fn; or convert the array"
        )
    if scales is not None and elements not in _ELEMENTS[scales]:
        taken = " and ".join(str(each) for each in _ELEMENTS[scales])
        raise UnsupportedDtype(
            f"scales of blocks of {scales} are for {taken} inputs and these are {elements}; "
            "multiply them by their scales first"
        )


def scale_steps(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    alignment: int,
    operand: tuple[int, ...],
    block: int,
    name: str,
) -> tuple[ScaleOrder, Steps]:
    """Return the order of an operand's block scales, and their strides.

    Parameters
    ----------
    shape, strides, alignment
        Of the array of scales; strides in elements, alignment in bytes.
    operand
        Shape of ``a`` or ``b``.
    block
        How many elements of the operand share a scale.
    name
        ``"scale_a"`` or ``"scale_b"``.

    Raises
    ------
    ShapeMismatch
        The shape is not that of such an operand's scales.
    UnsupportedProblem
        TMA cannot read the tiles: they are not contiguous, or not aligned.
    """
    along = -2 if name == "scale_b" and len(operand) > 1 else -1
    whole = list(operand)
    blocks = whole[along] = blocks_of(whole[along], block)
    stack = operand[:-2]
    rows = 1 if len(operand) == 1 else operand[-1 if along == -2 else -2]
    count = blocked_count(rows, blocks)
    steps = [0 if extent == 1 else step for extent, step in zip(stack, strides, strict=False)]
    if shape == tuple(whole):
        row = 0 if len(operand) == 1 else strides[-1 if along == -2 else -2]
        return "plain", (row, strides[along], *steps)
    if shape != (*stack, count):
        transposed = (*stack, rows, blocks)
        hint = f" (transposed: {name}.T)" if len(operand) > 1 and shape == transposed else ""
        of = f"{block} elements" if block == 32 else f"{block} bytes (16 elements)"
        raise ShapeMismatch(
            f"{name} has shape {shape}; one scale for each {of} along K of {operand} is "
            f"{tuple(whole)}{hint}, or {(*stack, count)} in tiles of {TILE_ROWS} x {TILE_BLOCKS}"
        )
    aligned = alignment >= _ALIGNMENT and not any(step % _ALIGNMENT for step in steps)
    if strides[-1] != 1 or min(steps, default=0) < 0 or not aligned:
        raise UnsupportedProblem(
            f"{name} holds tiles that are not contiguous, or do not begin at multiples of "
            f"{_ALIGNMENT} bytes; pass a compact copy"
        )
    return "blocked", (0, 0, *steps)
