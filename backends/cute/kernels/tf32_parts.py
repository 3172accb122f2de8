"""float32 as TF32 numbers: as two of them whose sum is nearly it, or as one that keeps NaN."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Uint32, const_expr, range_constexpr

from .device import elements

__all__ = ["quiet", "split_tf32"]

# Float32 and TF32 as bits: both have 8 bits of exponent, TF32 lacks the last 13.
_SIZE, _SIGN, _KEPT = Uint32(0x7FFF_FFFF), Uint32(0x8000_0000), Uint32(0xFFFF_E000)
_ZERO, _ONE, _INFINITY = Uint32(0), Uint32(0x3F80_0000), Uint32(0x7F80_0000)
_QUIET = Uint32(0x0040_0000)  # the bit of a NaN that no payload leaves out
_HALF = Uint32(0x1000)  # of TF32's last bit
_OVER = Uint32(0x7F7F_F000)  # from here on the nearest TF32 is infinite


@cute.jit
def split_tf32(words: cutlass.Constexpr) -> tuple:
    """Return the TF32 numbers, high and low ones, that stand for some float32 as bits.

    A product is made of low times high, high times low and high times high. High is the nearest
    TF32 number, ties away from zero, and low the nearest to what is left, but

    - the largest have the largest finite one as high, and low is cut: their sum stays finite;
    - infinity is (1, infinity) with its sign, and so times a number gives infinity times that one's
      high part, and finite terms. As (infinity, 0) it gave infinity times 0. NaN is (1, NaN);
    - high of the smallest is not 0, with which infinity gives NaN; low takes that back.
    """
    count = const_expr(len(words))
    high, low = cute.make_rmem_tensor(count, Uint32), cute.make_rmem_tensor(count, Uint32)
    ordinary = cutlass.Boolean(True)
    for i in range_constexpr(count):
        size = words[i] & _SIZE
        ordinary = ordinary & (size < _OVER) & (size - 1 >= _HALF - 1)
    if ordinary:
        for i in range_constexpr(count):
            high[i] = (words[i] + _HALF) & _KEPT
            low[i] = (rest(words[i], high[i]) + _HALF) & _KEPT
    else:
        for i in range_constexpr(count):
            size = words[i] & _SIZE
            least = pick(size == _ZERO, _ZERO, _HALF + _HALF)
            near = cutlass.max(cutlass.min(size, _OVER - 1) + _HALF, least) & _KEPT
            high[i] = pick(size >= _INFINITY, _ONE, near) | words[i] & _SIGN
            left = rest(words[i], high[i])
            low[i] = pick(size >= _OVER, left, left + _HALF) & _KEPT
    return elements(high, 0, count), elements(low, 0, count)


def rest(bits: Uint32, high: Uint32) -> Uint32:
    """Return what is left of a float32 without its high part."""
    return (bits.bitcast(Float32) - high.bitcast(Float32)).bitcast(Uint32)


def quiet(bits: Uint32) -> Uint32:
    """Return a float32 that is NaN in TF32, too, if it is: not by bits alone that are cut."""
    return bits | pick((bits & _SIZE) > _INFINITY, _QUIET, _ZERO)


def pick(condition: cutlass.Boolean, yes: Uint32, no: Uint32) -> Uint32:
    """Choose without a branch."""
    return Uint32(cutlass.select_(condition, yes, no))
