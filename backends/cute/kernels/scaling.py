"""Scales by which accumulators are multiplied: of whole operands, and of blocks of K."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64, Int32, Int64, Uint8, Uint32, const_expr, range_constexpr

from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Problem

from ...common.epilogue import in_halves
from ...common.factors import FINITE, LARGE, MOST, SMALL
from .device import global_vector, read

_NAN, _LEAST = 0x7FC00000, 0x00400000  # bits of float32: NaN, 2 to the -127


class WholeScales(NamedTuple):
    """The addresses of one number for all of A and of one for all of B, or 0; and a factor."""

    a: Int64
    b: Int64
    factor: Float64


class ScaleSteps(NamedTuple):
    """Elements between scales of blocks: of lines, of blocks along K, and along L0 and L1."""

    line: Int64
    block: Int64
    l0: Int64
    l1: Int64


class BlockScales(NamedTuple):
    """Where the scales of blocks of A and of B are."""

    addresses: tuple[Int64, Int64]
    steps: tuple[ScaleSteps, ScaleSteps]


class Scales(NamedTuple):
    """All scales of a product; each empty where it has none.

    Attributes
    ----------
    whole
        Scales of whole operands; with groups, the first group's.
    blocks
        Scales of blocks of K.
    group_steps
        Elements from a group's scale of A, and of B, to the next group's.
    """

    whole: WholeScales | tuple[()] = ()
    blocks: BlockScales | tuple[()] = ()
    group_steps: tuple[Int64, ...] = ()


Scale = tuple[Float32, ...]  # two numbers whose product accumulators are multiplied by; or nothing


def scale_of(scales: WholeScales | tuple[()]) -> Scale:
    """Return what accumulators are multiplied by, for `scale_acc`: two numbers, or nothing."""
    return product_of(*scales) if scales else ()


@cute.jit
def product_of(address_a: Any, address_b: Any, factor: Float64) -> Scale:
    """Return two numbers whose product is that of the scales.

    The product may be outside of float32's range where accumulators make up for that. So it is
    computed in float64, and split in two, both above 1 or both below: an intermediate result
    overflows only where the final one does. Within the range the second number is 1.
    """
    product, more = factor, Float32(1)
    if address_a != 0:
        product = product * Float64(read(global_vector(address_a, Float32, 1), 1)[0])
    if address_b != 0:
        product = product * Float64(read(global_vector(address_b, Float32, 1), 1)[0])
    size = product if product >= 0 else -product
    if (size >= Float64(LARGE)) & (size <= Float64(FINITE)):
        more = Float32(LARGE)
        product = cutlass.max(
            cutlass.min(product * Float64(1 / LARGE), Float64(MOST)), Float64(-MOST)
        )
    elif size < Float64(SMALL):
        more = Float32(SMALL)
        product = product * Float64(1 / SMALL)
    return Float32(product), more


@cute.jit
def scale_acc(acc: cute.Tensor, scale: Scale) -> None:
    """Multiply accumulators by what `scale_of` returned."""
    if const_expr(len(scale) > 0):
        for i in range_constexpr(cute.size(acc)):
            acc[i] = acc[i] * scale[0]
        if scale[1] != 1:
            for i in range_constexpr(cute.size(acc)):
                acc[i] = acc[i] * scale[1]


def block_scale(address: Int64, dtype: DType) -> Any:
    """Load the scale of a block, which is float32 or E8M0, as float32."""
    if dtype is DType.FLOAT32:
        return read(global_vector(address, Float32, 1), 1)[0]
    exponent = Uint32(read(global_vector(address, Uint8, 1), 1)[0])
    bits = Uint32(cutlass.select_(exponent == 0, Uint32(_LEAST), exponent << 23))
    return Uint32(cutlass.select_(exponent == 255, Uint32(_NAN), bits)).bitcast(Float32)


def column_of_b(problem: Problem, column: Int32, columns: Int32) -> Int32:
    """Return which of B's columns a column of the accumulators is; they may be in pairs."""
    return column // 2 + column % 2 * (columns // 2) if in_halves(problem) else column
