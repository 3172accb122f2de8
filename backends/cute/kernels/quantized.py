"""Rounding to eight bits with scales, in CuTe DSL: `unigemm.problem.quantization` has the rule."""

# mypy: ignore-errors
# As other device code: what the DSL makes of these operators is not in its types.
# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from unigemm.problem.dtypes import DType
from unigemm.problem.quantization import LARGEST, LEAST_SCALE

from .device import CUTE_TYPES, FLOAT8_NAMES

__all__ = ["larger", "largest_of_lanes", "rounded_pair", "scale_of_largest"]

_INFINITY = float("inf")


def larger(most: Float32, value: Float32) -> Float32:
    """Return the larger of a magnitude and that of a value; NaN is larger than all."""
    return cute.arch.inline_ptx(
        "{ .reg .f32 size; abs.f32 size, {$r1}; max.NaN.f32 {$w0}, {$r0}, size; }",
        write_only_types=[Float32],
        read_only_args=[most, value],
    )


def largest_of_lanes(most: Float32, lanes: int) -> Float32:
    """Return the largest magnitude of `lanes` (a power of two) neighbours to all of them."""
    step = lanes // 2
    while step:
        most = larger(most, cute.arch.shuffle_sync_bfly(most, step))
        step //= 2
    return most


def scale_of_largest(amax: Float32, dtype: DType) -> tuple[Float32, Float32]:
    """Return the scale of elements whose largest magnitude is known, and its reciprocal."""
    scale = amax / Float32(LARGEST[dtype])
    scale = Float32(cutlass.select_(scale > Float32(LEAST_SCALE), scale, Float32(LEAST_SCALE)))
    scale = Float32(cutlass.select_(amax < Float32(_INFINITY), scale, Float32(float("nan"))))
    return scale, Float32(1.0) / scale


def rounded_pair(first: Float32, second: Float32, dtype: DType) -> Int32:
    """Round two numbers to a type of eight bits; the first is in the low byte of 16 bits."""
    name = FLOAT8_NAMES.get(CUTE_TYPES[dtype])
    if name is None:  # none is beyond the range, and NaN becomes 0
        return cute.arch.inline_ptx(
            "{ .reg .s32 low, high; cvt.rni.s32.f32 low, {$r0}; cvt.rni.s32.f32 high, {$r1}; "
            "prmt.b32 {$w0}, low, high, 0x7740; and.b32 {$w0}, {$w0}, 0xffff; }",
            write_only_types=[Int32],
            read_only_args=[first, second],
        )
    return cute.arch.inline_ptx(
        f"{{ .reg .b16 pair; cvt.rn.satfinite.{name}x2.f32 pair, {{$r1}}, {{$r0}}; "
        "cvt.u32.u16 {$w0}, pair; }",
        write_only_types=[Int32],
        read_only_args=[first, second],
    )
