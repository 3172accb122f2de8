"""Where the scales of blocks lie: one for some elements along K of a row.

=======  ==================  =======================================  ===========================
format   elements            scales                                   elements that share one
=======  ==================  =======================================  ===========================
mxfp8    float8, both kinds  float8_e8m0fnu, powers of two            32 (OCP Microscaling)
nvfp4    float4_e2m1fn_x2    float8_e4m3fn, of which no sign is read  16, which are 8 of the array
=======  ==================  =======================================  ===========================

An element of float4_e2m1fn_x2 is a byte with two neighbours along K, the first one in its low half.
All counts along K are of the array's elements.

Scales are taken in two orders:

plain
    The array of the operand with a scale for each block in place of K; any strides.
blocked
    What tcgen05 and cuBLAS read: a flat array of tiles of 128 rows and 4 blocks of K, those along K
    first. A tile has 512 bytes: row r and block j of it in byte 16 (r % 32) + 4 (r // 32) + j. Rows
    and blocks are rounded up to whole tiles. What fills them does not matter, but of nvfp4, of
    which four blocks are multiplied at once: there it must be no NaN along K.

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
    "row_and_block_places",
    "scale_steps",
]

#: The formats: types of elements (of float8 one of the two) and of scales.
FORMATS = {
    "mxfp8": (DType.FLOAT8_E4M3FN, DType.FLOAT8_E8M0FNU),
    "nvfp4": (DType.FLOAT4_E2M1FN_X2, DType.FLOAT8_E4M3FN),
}
#: Elements of an array along K that share a scale, by its type.
BLOCKS = {DType.FLOAT8_E8M0FNU: 32, DType.FLOAT8_E4M3FN: 8}
_ELEMENTS = {DType.FLOAT8_E8M0FNU: FLOAT8, DType.FLOAT8_E4M3FN: (DType.FLOAT4_E2M1FN_X2,)}
TILE_ROWS, TILE_BLOCKS = 128, 4
TILE_BYTES = TILE_ROWS * TILE_BLOCKS
_ALIGNMENT = 16  # bytes: what TMA reads begins at multiples of it (PTX ISA, tensor maps)

#: Elements (bytes): (row, block, then each dimension of the stack); zeros where "blocked".
Steps = tuple[int, ...]


def blocks_of(k: int, block: int) -> int:
    """Return how many scales a row of K elements has."""
    return -(-k // block)


def blocked_count(rows: int, blocks: int) -> int:
    """Return the elements of the scales of a matrix in tiles."""
    return -(-rows // TILE_ROWS) * -(-blocks // TILE_BLOCKS) * TILE_BYTES


def row_and_block_places(row: Any, block: Any, blocks: int) -> tuple[Any, Any]:
    """Return two numbers whose sum is where a scale lies among those of a matrix in tiles.

    One depends on the row alone, one on the block alone; arrays of either do as well.
    """
    across = -(-blocks // TILE_BLOCKS) * TILE_BYTES
    inside = row % TILE_ROWS
    of_row = row // TILE_ROWS * across + inside % 32 * 16 + inside // 32 * 4
    return of_row, block // TILE_BLOCKS * TILE_BYTES + block % TILE_BLOCKS


def block_scales(dtype: DType, a: ScaleOrder, b: ScaleOrder) -> BlockScales:
    """Return the class of scales of a type, in two orders."""
    return BlockScales(dtype, BLOCKS[dtype], a, b)


def elements_of(dtype: DType, scales: DType | None) -> DType:
    """Return what the elements of an array are: uint8 holds float4 where blocks have such scales.

    Parameters
    ----------
    dtype
        Of the array.
    scales
        Of its blocks; None where there are none.
    """
    pairs = dtype is DType.UINT8 and scales is DType.FLOAT8_E4M3FN
    return DType.FLOAT4_E2M1FN_X2 if pairs else dtype


def refuse_elements(elements: DType, scales: DType | None) -> None:
    """Refuse elements that have no scales of blocks of such a type; None where there are none.

    Raises
    ------
    UnsupportedDtype
        They need others, or are for other elements.
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
    """Return the order of the scales of an operand, and their steps.

    Parameters
    ----------
    shape, strides, alignment
        Of the scales; elements of one byte, and bytes.
    operand
        The shape of ``a`` or ``b``.
    block
        Its elements that share a scale.
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
    blocks = whole[along] = blocks_of(whole[along], block)
    stack = operand[:-2]
    rows = 1 if len(operand) == 1 else operand[-1 if along == -2 else -2]
    count = blocked_count(rows, blocks)
    steps = [0 if extent == 1 else step for extent, step in zip(stack, strides, strict=False)]
    if shape == tuple(whole):
        row = 0 if len(operand) == 1 else strides[-1 if along == -2 else -2]
        return "plain", (row, strides[along], *steps)
    if shape != (*stack, count):
        turned = (*stack, rows, blocks)
        hint = f" (transposed: {name}.T)" if len(operand) > 1 and shape == turned else ""
        raise ShapeMismatch(
            f"{name} has shape {shape}; one scale for each {block} along K of {operand} is "
            f"{tuple(whole)}{hint}, or {(*stack, count)} in tiles of {TILE_ROWS} x {TILE_BLOCKS}"
        )
    aligned = alignment >= _ALIGNMENT and not any(step % _ALIGNMENT for step in steps)
    if strides[-1] != 1 or min(steps, default=0) < 0 or not aligned:
        raise UnsupportedProblem(
            f"{name} holds tiles that are not contiguous, or do not begin at multiples of "
            f"{_ALIGNMENT} bytes; pass a compact copy"
        )
    return "blocked", (0, 0, *steps)
