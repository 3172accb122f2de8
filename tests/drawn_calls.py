"""Calls of products, drawn: types, shapes, layouts and options, most of which go together.

What is drawn is what a caller writes, so that it holds whatever a call becomes behind that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from unigemm.problem.dtypes import DType, numpy_dtype

__all__ = ["Call", "drawn_calls"]

#: What a call passes, by name; a and b are among it.
Call = dict[str, Any]

_FLOATS = ["float64", "float32", "float16", "bfloat16"]
_EIGHT = ["float8_e4m3fn", "float8_e5m2", "int8"]
_KINDS = [*_FLOATS, *_EIGHT, *_EIGHT, "uint8", "int32", "int64", "bool", "complex64", "complex128"]
_ODD = ["float8_e8m0fnu", "longdouble", "U3", "O", "M8[s]", "V4"]
_FUNCTIONS = [
    lambda acc: acc * 2,
    lambda acc, s: acc * s,
    lambda acc, s: (acc, acc + s),
    lambda acc: (acc, acc),
]


def _dtype(name: str) -> np.dtype:
    try:
        return numpy_dtype(DType(name))
    except ValueError:
        return np.dtype(name)


class _Draw:
    """One call's choices."""

    def __init__(self, random: random.Random) -> None:
        self.random = random

    def often(self, share: float) -> bool:
        return self.random.random() < share

    def one(self, *of: Any) -> Any:
        return self.random.choice(of)

    def array(self, shape: tuple[int, ...], kind: str) -> np.ndarray:
        """Return an array of a shape, which lies somehow."""
        dtype = _dtype(kind)
        if self.often(0.03) and dtype.itemsize > 1 and kind != "O":
            dtype = dtype.newbyteorder()
        lies = self.random.random()
        if lies < 0.1 and len(shape) > 1:
            return np.zeros((*shape[:-2], shape[-1], shape[-2]), dtype).swapaxes(-1, -2)
        if lies < 0.2 and shape:
            return np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
        if lies < 0.23 and kind != "O":
            count = int(np.prod(shape)) * dtype.itemsize
            return np.zeros(count + 1, np.uint8)[1:].view(dtype).reshape(shape)
        return np.zeros(shape, dtype)

    def kinds(self) -> tuple[str, str]:
        if self.often(0.03):
            return self.one(*_ODD), self.one(*_ODD, *_KINDS)
        a = self.one(*_KINDS)
        return a, a if self.often(0.8) else self.one(*_KINDS)

    def number(self) -> Any:
        return self.one(0, 0.0, 1, 2, 2.0, -0.5, True, 2**31, 1e40, np.float32(2), 2j, 0j, "x")

    def term(self, shape: tuple[int, ...], kind: str) -> Any:
        """Return what is added or multiplied: a number, or an array that may broadcast."""
        if self.often(0.2):
            return self.number()
        cut = self.random.randrange(len(shape) + 1)
        shape = tuple(1 if self.often(0.2) else extent for extent in shape[cut:])
        if self.often(0.06):
            shape = (*shape, 3)
        kind = kind if self.often(0.6) else self.one("float32", "bfloat16", "int32", "complex64")
        return self.array(shape, kind)

    def factor(self, kind: str) -> Any:
        if self.often(0.75):
            return self.number()
        kinds = (kind, "float32", "float64", "int32", "complex64")
        return self.array(self.one((), (1,), (1, 1), (2,)), self.one(*kinds))

    def scale(self, name: str, shape: tuple[int, ...], groups: int) -> Any:
        """Return a scale of `a` or `b`: of all, of lines, or of blocks."""
        rows, k = (shape[-2:] if name == "scale_a" else shape[:-3:-1]) if len(shape) > 1 else (1, 1)
        turn = (lambda s: s) if name == "scale_a" else (lambda s: (*s[:-2], s[-1], s[-2]))
        what = self.random.randrange(9)
        if what < 3:
            return self.number()
        if what == 3:
            return self.array(self.one((), (1,), (1, 1)), self.one("float32", "float64"))
        if what == 4:
            return self.array(turn((rows, 1)), "float32")
        if what == 5:
            return self.array((groups,), "float32")
        if what == 6:
            return self.array(turn((rows, -(-k // 32))), self.one("float8_e8m0fnu", "float32"))
        count = self.one(rows, -(-rows // 128))
        return self.array(turn((count, -(-k // 128))), self.one("float32", "float32", "uint8"))

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        m, k, n = (self.one(1, 2, 5, 8, 16, 130) for _ in range(3))
        a, b = self.one(
            ((m, k), (k, n)), ((m, k), (k, n)), ((m, k), (k, n)), ((3, m, k), (k, n)),
            ((3, m, k), (3, k, n)), ((k,), (k, n)), ((m, k), (k,)), ((k,), (k,)),
            ((2, 1, m, k), (3, k, n)), ((3, m, k), (k,)),
        )  # fmt: skip
        if self.often(0.04):
            b = (*b[:-1], b[-1] + 1) if len(b) == 1 else (*b[:-2], b[-2] + 1, b[-1])
        if self.often(0.01):
            a = ()
        return a, b

    def grouped(self) -> tuple[Call, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the ends of groups, and shapes of a, b and the result."""
        m, k, n = (self.one(2, 5, 16, 130) for _ in range(3))
        ends = self.array((3,), self.one("int32", "int32", "int64", "float32"))
        a, b, d, name = self.one(
            ((m, k), (3, k, n), (m, n), "offsets"), ((3, m, k), (k, n), (m, n), "offsets"),
            ((m, k), (k, n), (3, m, n), "offsets"), ((3, m, k), (3, k, n), (3, m, n), "rows"),
        )  # fmt: skip
        more: Call = {name: ends}
        if self.often(0.2):
            more["rest"] = self.one("zeros", "untouched", "x")
        return more, a, b, d

    def call(self) -> Call:
        kind_a, kind_b = self.kinds()
        if self.often(0.2):
            call, a, b, d = self.grouped()
        else:
            (a, b), call = self.shapes(), {}
            stack = (*a[:-2], *b[:-2])[: max(len(a), len(b)) - 2]
            d = (*stack, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))
        call |= {"a": self.array(a, kind_a), "b": self.array(b, kind_b)}
        self.plain_options(call)
        result = "float32" if kind_a in _EIGHT else kind_a
        if self.often(0.2):
            call["quantize_out"] = self.one(
                "row", (1, 128), [1, 128], (1, 128.0), (True, 128), (128, 128), "rows",
                np.str_("row"), 1,
            )  # fmt: skip
        if self.often(0.2):
            self.outs(call, d, result)
        for name, shape in (("scale_a", a), ("scale_b", b)):
            if self.often(0.35 if kind_a in _EIGHT else 0.08):
                call[name] = self.scale(name, shape, 3)
                if self.often(0.04):
                    call[name] = (call[name], self.one(2.0, self.array((1,), "float32")))
        if self.often(0.5):
            self.epilogue(call, d, result)
        return call

    def plain_options(self, call: Call) -> None:
        """Draw the options that are no arrays."""
        for name, share, values in (
            ("dtype", 0.25, [*_KINDS, "f4", np.float32, "x", 3, ">f4", np.str_("float32")]),
            ("precision", 0.1, ["ieee", "tf32", "3xtf32", "x", np.str_("tf32"), 1]),
            ("deterministic", 0.08, [True, 1, 1.0, np.True_, 2, "no"]),
            ("batch_invariant", 0.05, [True, 0, 1, 1.0, "no"]),
            ("backend", 0.08, ["numpy", "auto", "cute_simt", "x", np.str_("numpy"), 0]),
        ):
            if self.often(share):
                call[name] = self.one(*values)

    def outs(self, call: Call, d: tuple[int, ...], kind: str) -> None:
        kind = kind if self.often(0.6) else self.one(*_KINDS)
        shape = d if self.often(0.9) else (*d, 1)
        call["out"] = self.array(shape, kind)
        if self.often(0.5 if "quantize_out" in call else 0.05):
            scales = (*d[:-1], self.one(1, -(-max(d, default=1) // 128)))
            call["out"] = (self.array(d, self.one("float8_e4m3fn", "int8")),
                           self.array(scales, self.one("float32", "float64")))  # fmt: skip

    def epilogue(self, call: Call, d: tuple[int, ...], kind: str) -> None:
        """Draw what is computed of accumulators."""
        if self.often(0.15):
            function = self.one(*_FUNCTIONS)
            call["epilogue"] = function
            if function.__code__.co_argcount > 1 or self.often(0.1):
                call["epilogue_args"] = {"s": self.one(None, 2.0, self.term(d, kind))}
            if self.often(0.9):
                return
        for name, share in (("alpha", 0.3), ("beta", 0.15), ("scale_d", 0.1)):
            if self.often(share):
                call[name] = self.factor(kind)
        for name, share in (("c", 0.35 if "beta" not in call else 0.9), ("bias", 0.35)):
            if self.often(share):
                call[name] = self.term(d, kind)
        if self.often(0.4):
            call["activation"] = self.one("relu", "gelu", "drelu", "swiglu", "swiglu", "x",
                                          np.str_("relu"))  # fmt: skip
        if call.get("activation") == "swiglu" or self.often(0.03):
            call["gate_layout"] = self.one("interleaved", "halves", "halves", "x")
        if call.get("activation") == "drelu" or self.often(0.03):
            call["preact"] = self.term(d, kind)
        for name, share in (("preact_out", 0.15), ("amax_out", 0.1), ("bias_grad_out", 0.1)):
            if self.often(share):
                shape = {"preact_out": d, "amax_out": (1,), "bias_grad_out": d[-1:]}[name]
                call[name] = self.array(shape, self.one("float32", "float32", "float32", kind))


def drawn_calls(count: int, seed: int) -> Iterator[Call]:
    """Yield as many calls; the same for the same seed."""
    for i in range(count):
        yield _Draw(random.Random(f"{seed}.{i}")).call()
