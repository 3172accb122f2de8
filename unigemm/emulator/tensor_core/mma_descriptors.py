"""The descriptors of tcgen05.mma: what is multiplied, and where a matrix lies in shared memory.

PTX ISA, "tcgen05: instruction descriptor", "tcgen05: shared memory descriptor" and "tcgen05:
canonical layouts"; the same fields are named in CUTLASS's ``mma_sm100_desc.hpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..async_copy.tma import swizzled
from ..ptx.faults import Fault
from .fragments import BYTES
from .narrow import BITS, PACKED, Scaling
from .wgmma import pattern

__all__ = ["InstructionDescriptor", "MatrixDescriptor", "instruction_of", "matrix_of"]

_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_FORMATS = {
    "f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}, "i8": {0: "u8", 1: "s8"},
    "f8f6f4": _F8F6F4, "mxf8f6f4": _F8F6F4, "mxf4": {1: PACKED}, "mxf4nvf4": {1: PACKED},
}  # fmt: skip
_ACC = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "f8f6f4": {0: "f16", 1: "f32"},
        "i8": {2: "s32"}}  # fmt: skip
_SPARSE = 0b111  # the flag, and which metadata
_UNKNOWN = 1 << 6 | 1 << 23 | 1 << 29 | 3 << 30  # must be zero; the last two of .ws only
_UNKNOWN_SCALED = 1 << 3 | 1 << 6 | 1 << 31  # the last: K of 96
_SWIZZLES = {0: 0, 2: 128, 4: 64, 6: 32}
_COARSE = 1  # 128 bytes, in units of 32


@dataclass(frozen=True)
class InstructionDescriptor:
    """The product of an instruction: M and N of all its CTAs, K, and types, `acc` of accumulators.

    K is 32 bytes. Elements of fewer than 8 bits take one byte each, except those of mxf4.
    """

    m: int
    n: int
    k: int
    a: str
    b: str
    acc: str
    a_k_major: bool
    b_k_major: bool
    a_sign: int
    b_sign: int
    saturate: bool = False
    scaling: Scaling | None = None


@lru_cache(maxsize=256)
def instruction_of(word: int, kind: str, group: int, block: int = 0) -> InstructionDescriptor:
    """Read an instruction descriptor.

    Parameters
    ----------
    kind, group
        The instruction's ``.kind`` and ``.cta_group``.
    block
        Elements along K that share a scale; 0 without scales.

    Raises
    ------
    Fault
        It does not fit the instruction, or uses what is not implemented.
    """
    if word & _SPARSE:
        raise Fault("sparse matrices are not implemented")
    if word & (_UNKNOWN_SCALED if block else _UNKNOWN):
        raise Fault(f"the instruction descriptor {word:#010x} sets bits that must be zero")
    a, b = _FORMATS[kind].get(word >> 7 & 7), _FORMATS[kind].get(word >> 10 & 7)
    acc = "f32" if block else _ACC[kind].get(word >> 4 & 3)
    if a is None or b is None or acc is None or (kind == "f16" and a != b):
        raise Fault(f"the instruction descriptor {word:#010x} has types that are not of .{kind}")
    saturate, signs = bool(word >> 3 & 1), (word >> 13 & 1, word >> 14 & 1)
    majors = word >> 15 & 1, word >> 16 & 1
    along_mn = any(x in BITS and major for x, major in zip((a, b), majors, strict=True))
    if (saturate and kind != "i8") or (any(signs) and kind == "i8") or along_mn:
        raise Fault(f"the instruction descriptor {word:#010x} has flags that are not of .{kind}")
    m, n = (word >> 24 & 31) << 4, (word >> 17 & 63) << 3
    k = 64 if PACKED in (a, b) else 32 // BYTES.get(a, 1)
    scaling = _scaling(word, kind, k, block) if block else None
    (_check_scaled_shape if block else _check_shape)(m, n, kind, group)
    return InstructionDescriptor(
        m, n, k, a, b, acc, not majors[0], not majors[1],
        -1 if signs[0] else 1, -1 if signs[1] else 1, saturate, scaling,
    )  # fmt: skip


def _scaling(word: int, kind: str, k: int, block: int) -> Scaling:
    """Read what an instruction descriptor says about scales."""
    found = Scaling(
        "ue8m0" if word >> 23 & 1 else "ue4m3", block, k // block, word >> 29 & 3, word >> 4 & 3
    )
    if found.kind == "ue4m3" and block != 16:
        raise Fault(f"scales of .ue4m3 are for 16 elements, not for the {block} of .{kind}")
    if found.a_byte % found.count or found.b_byte % found.count:
        raise Fault(f"{found.count} scales cannot begin at bytes {found.a_byte} and {found.b_byte}")
    return found


def _check_scaled_shape(m: int, n: int, kind: str, group: int) -> None:
    """Refuse shapes; half of 128 rows in each CTA of a pair is not implemented."""
    if m != 128 * group:
        raise Fault(f"M is {m}; scaled products are implemented for {128 * group}")
    if n % (8 * group) or not 0 < n <= 256:
        raise Fault(f"N is {n}, which M = {m} of .kind::{kind} has not")


def _check_shape(m: int, n: int, kind: str, group: int) -> None:
    """PTX ISA, "tcgen05: matrix shape", without ``.ws``; N of M = 128 as CUTLASS has it."""
    if m not in ((64, 128) if group == 1 else (128, 256)):
        raise Fault(f"M is {m}, which .cta_group::{group} has not")
    if kind == "i8":
        good = n % (16 * group) == 0 or (m == 64 and n in (8, 24))
    else:
        good = n % (8 if m == 64 else 16) == 0
    if not good or not 0 < n <= 256:
        raise Fault(f"N is {n}, which M = {m} of .kind::{kind} has not")


@dataclass(frozen=True)
class MatrixDescriptor:
    """The layout of a matrix in shared memory; offsets are in bytes.

    Attributes
    ----------
    leading, stride
        Between the pieces of a matrix; what they mean depends on the layout.
    swizzle
        Bytes; `coarse` where its units are 32 bytes instead of 16.
    """

    start: int
    leading: int
    stride: int
    swizzle: int
    coarse: bool

    def units(self, rows: int, itemsize: int, *, k_major: bool) -> Any:
        """Return addresses of a matrix's 16-byte units.

        Returns
        -------
        array
            (rows, 2) where it is K-major; else (K, units of a column).

        Raises
        ------
        Fault
            The layout is not one that such matrices have.
        """
        k = 32 // itemsize
        lines, across = (rows, 2) if k_major else (k, -(-rows * itemsize // 16))
        if not self.coarse:
            if itemsize == 4 and not k_major:
                raise Fault("MN-major .tf32 needs a swizzle of 128 bytes in units of 32")
            found = pattern(lines, across, k_major, self.swizzle, self.leading, self.stride)
            return swizzled(self.start + found, self.swizzle)
        if k_major or itemsize != 4:
            raise Fault("a swizzle in units of 32 bytes is for MN-major .tf32 only")
        line, unit = np.arange(lines)[:, None], np.arange(across)
        found = line // 4 * self.stride + line % 4 * 128 + unit // 8 * self.leading + unit % 8 * 16
        return swizzled(self.start + found, self.swizzle, coarse=True)


@lru_cache(maxsize=4096)
def matrix_of(word: int) -> MatrixDescriptor:
    """Read a shared memory descriptor.

    Raises
    ------
    Fault
        It is none for this architecture, or uses what is not implemented.
    """
    if word >> 46 & 3 != 1:
        raise Fault(f"the matrix descriptor {word:#018x} has another version than sm_100's, 1")
    if word >> 49 & 15:
        raise Fault("a matrix descriptor with a base offset or absolute leading dimension is not "
                    "implemented")  # fmt: skip
    if word >> 53 & 0xFF:
        raise Fault(f"the matrix descriptor {word:#018x} sets bits that must be zero")
    mode = word >> 61
    if mode != _COARSE and mode not in _SWIZZLES:
        raise Fault(f"the matrix descriptor {word:#018x} has an unknown swizzle")
    start, leading, stride = ((word >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    swizzle = 128 if mode == _COARSE else _SWIZZLES[mode]
    return MatrixDescriptor(start, leading, stride, swizzle, mode == _COARSE)
