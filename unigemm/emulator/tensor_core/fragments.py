"""Fragments: which element of a matrix lies in which register of which lane.

PTX ISA, "Matrix fragments" of ``mma`` and ``wgmma``: all of them follow one rule. Lane 4 r + t
holds a part of row r of eight. A register holds neighbours in a row, those of four lanes lie side
by side. Further registers hold first the rows eight below, then what comes next in the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import rounding
from ..core.memory import carrier

__all__ = [
    "BYTES",
    "acc_kinds",
    "acc_registers",
    "factor",
    "numbers",
    "read_acc",
    "round_acc",
    "write_acc",
]

#: Bytes of an element of A or B.
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f64": 8, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_TOGETHER = {  # types that are multiplied with each other: types of their accumulators
    ("f16",): ("f16", "f32"), ("bf16",): ("f32",), ("tf32",): ("f32",), ("f64",): ("f64",),
    ("e4m3", "e5m2"): ("f16", "f32"), ("s8", "u8"): ("s32",),
}  # fmt: skip


def acc_kinds(a: str, b: str) -> tuple[str, ...]:
    """Return the types that accumulators of products of two types may have, if any."""
    return next((acc for kinds, acc in _TOGETHER.items() if a in kinds and b in kinds), ())


def numbers(bits: Any, kind: str) -> Any:
    """Return the numbers that bits stand for."""
    if kind == "tf32":  # the low 13 bits of a float32 are not looked at
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if kind == "f64":
        return bits.view(np.float64)
    if kind in ("s8", "u8"):
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.float64)
    return rounding.wide(bits, kind).astype(np.float64)


def _of_lanes(x: Any, warps: int) -> Any:
    """Return a register of each lane; most have one."""
    return x if x.shape == (warps, 32) else np.broadcast_to(x, (warps, 32))


def factor(V: Any, slots: tuple[int, ...], kind: str, warps: int, halves: int) -> Any:
    """Return A, or B transposed, out of registers: (warps, 8 halves, K)."""
    word = np.uint64 if kind == "f64" else np.uint32
    raw = np.empty((warps, halves, 8, len(slots) // halves, 4), word)
    for n, slot in enumerate(slots):
        held = _of_lanes(V[slot], warps).reshape(warps, 8, 4)
        raw[:, n % halves, :, n // halves] = held
    return numbers(raw.reshape(warps, 8 * halves, -1).view(carrier(BYTES[kind])), kind)


def acc_registers(kind: str, rows: int, columns: int) -> int:
    """Return how many registers of a lane are accumulators: two float16 share one."""
    return rows * columns // (64 if kind == "f16" else 32)


def read_acc(V: Any, slots: tuple[int, ...], kind: str, warps: int, halves: int) -> Any:
    """Return C out of registers, as float64: (warps, 8 halves, N)."""
    each = 2 if kind == "f16" else 1
    pairs = np.empty((warps, halves, 8, len(slots) * each // (2 * halves), 4, 2))
    for n, slot in enumerate(slots):
        held = _of_lanes(V[slot], warps).reshape(warps, 8, 4)
        if kind == "f16":
            both = np.ascontiguousarray(held).view(np.float16).reshape(warps, 8, 4, 2)
            pairs[:, n % halves, :, n // halves] = both
        else:
            pairs[:, n // 2 % halves, :, n // (2 * halves), :, n % 2] = held
    return pairs.reshape(warps, 8 * halves, -1)


def write_acc(V: Any, slots: tuple[int, ...], values: Any, kind: str, m: Any, *,
              saturate: bool = False) -> None:  # fmt: skip
    """Round D, of the shape of `read_acc`, and write it to the registers of the active lanes."""
    warps, rows, columns = values.shape
    halves = rows // 8
    pairs = round_acc(values, kind, saturate).reshape(warps, halves, 8, columns // 8, 4, 2)
    for n, slot in enumerate(slots):
        if kind == "f16":
            held = np.ascontiguousarray(pairs[:, n % halves, :, n // halves]).view(np.uint32)
        else:
            held = pairs[:, n // 2 % halves, :, n // (2 * halves), :, n % 2]
        np.copyto(V[slot], held.reshape(warps, 32), where=m)


def round_acc(values: Any, kind: str, saturate: bool) -> Any:
    """Round to a type once; whole numbers wrap around, or stop at the ends of their range."""
    if kind != "s32":
        return values.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind])
    if saturate:
        return np.clip(values, -(2.0**31), 2.0**31 - 1).astype(np.int32)
    return np.nan_to_num(values).astype(np.int64).astype(np.int32)
