"""Elements of fewer than 8 bits in shared memory, and block scales in tensor memory.

PTX ISA, "tcgen05: packing formats" and "tcgen05: scale factor layout"; where scales lie is also in
CUTLASS's ``mma_traits_sm100_frag.hpp``. The scales of row i of A (or column i of B) are
neighbouring bytes of the word in lane i % 32 and column i / 32 of tensor memory; all four quarters
of the lanes hold the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..core.rounding import wide
from ..ptx.faults import Fault
from .tensor_memory import LANES, memory_of, split_address
from .tensor_queue import Region

__all__ = ["BITS", "PACKED", "Scaling", "elements", "scale_region", "scales"]

#: Bits of exponent and mantissa of types that have no infinities and no NaN.
_FLOATS = {"e2m3": (2, 3), "e3m2": (3, 2), "e2m1": (2, 1)}
#: Bits of an element; sixteen begin a unit of 16 bytes, whose rest is not looked at.
BITS = {"e2m3": 6, "e3m2": 6, "e2m1": 4, "e2m1x2": 4}
PACKED = "e2m1x2"  # a unit of 16 bytes is full


@lru_cache(maxsize=8)
def _values(kind: str) -> Any:
    """Return the number of each code."""
    exponents, mantissas = _FLOATS[kind]
    code = np.arange(1 << exponents + mantissas + 1)
    mantissa = code & (1 << mantissas) - 1
    exponent = code >> mantissas & (1 << exponents) - 1
    whole = np.where(exponent == 0, mantissa, mantissa | 1 << mantissas)
    bias = (1 << exponents - 1) - 1 + mantissas
    size = np.ldexp(whole.astype(np.float64), np.maximum(exponent, 1) - bias)
    return np.where(code >> exponents + mantissas, -size, size)


def elements(units: Any, kind: str) -> Any:
    """Return the numbers in (rows, 2) units of 16 bytes: (rows, 32), or (rows, 64) if packed."""
    width = BITS[kind]
    held = units.view(np.uint8).reshape(*units.shape, 16)
    if kind != PACKED:
        held = held[..., : 2 * width]
    bits = np.unpackbits(np.ascontiguousarray(held), axis=-1, bitorder="little")
    codes = bits.reshape(len(units), -1, width) @ (1 << np.arange(width))
    return _values("e2m1" if kind == PACKED else kind)[codes]


@dataclass(frozen=True)
class Scaling:
    """Scales of blocks along K: their type, elements of a block, and scales of a row.

    Attributes
    ----------
    a_byte, b_byte
        The first scale's byte in its word.
    """

    kind: str
    block: int
    count: int
    a_byte: int
    b_byte: int


def scale_region(machine: Any, cta: int, address: int, rows: int, byte: int) -> Region:
    """Find the scales of a CTA.

    Raises
    ------
    Fault
        They cannot be there.
    """
    if address >> 30 not in (0, byte):
        raise Fault(f"scales are in byte {address >> 30} by their address, and in byte {byte} by "
                    "the instruction descriptor")  # fmt: skip
    lane, first = split_address(address & 0x3FFFFFFF)
    if lane:
        raise Fault(f"scales cannot begin at lane {lane} of tensor memory")
    columns = -(-rows // 32)
    memory_of(machine, cta).check(first, columns)
    return Region(cta, np.arange(LANES), first, columns)


def scales(machine: Any, region: Region, rows: int, byte: int, scaling: Scaling) -> Any:
    """Return the factor of each element, (rows, K).

    Raises
    ------
    Fault
        Nothing wrote them, or the quarters of the lanes differ.
    """
    memory = memory_of(machine, region.cta)
    memory.check(region.first, region.count)
    i = np.arange(rows)
    quarters = 32 * np.arange(LANES // 32)[:, None]
    words = memory.read(quarters + i % 32, region.first + i // 32)
    taken = words.view(np.uint8).reshape(len(quarters), rows, 4)[..., byte : byte + scaling.count]
    if (taken != taken[0]).any():
        machine.mistake("the four quarters of the lanes of tensor memory hold different scales")
    return np.repeat(_factors(taken[0], scaling.kind), scaling.block, axis=-1)


def _factors(codes: Any, kind: str) -> Any:
    if kind == "ue4m3":  # the sign is not looked at
        return wide(codes & np.uint8(0x7F), "e4m3").astype(np.float64)
    factors = np.ldexp(1.0, codes.astype(np.int32) - 127)
    return np.where(codes == 0xFF, np.nan, factors)
