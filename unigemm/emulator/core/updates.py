"""The arithmetic of atomic operations and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arithmetic import narrow, packed

__all__ = ["NAMES", "update_of"]

_BITS: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_SIZES: dict[str, Any] = {"min": np.minimum, "max": np.maximum}
_FLOAT_SIZES: dict[str, Any] = {"min": np.fmin, "max": np.fmax}  # NaN loses against a number
NAMES = ("add", *_BITS, *_SIZES, "inc", "dec")


def _increment(old: Any, last: Any) -> Any:
    return np.where(old >= last, np.zeros_like(old), old + np.ones_like(old))


def _decrement(old: Any, last: Any) -> Any:
    return np.where((old == 0) | (old > last), last, old - np.ones_like(old))


def update_of(name: str, kind: str) -> Any:
    """Return a function (old, other) on arrays of a PTX type; None if there is no such.

    bfloat16 and pairs of narrow floats are bits.
    """
    halves = kind in ("f16x2", "bf16x2")
    if kind in ("f16", "bf16") or halves:
        plain = np.add if name == "add" else _FLOAT_SIZES.get(name)
        if plain is None or kind == "f16":
            return plain
        return packed(plain, kind) if halves else narrow(plain)
    if kind in ("f32", "f64"):
        return np.add if name == "add" else None
    if name in ("inc", "dec"):
        return {"inc": _increment, "dec": _decrement}[name] if kind == "u32" else None
    if kind[0] == "b":
        return _BITS.get(name)
    return np.add if name == "add" else (_SIZES | _BITS).get(name)
