"""Products with scales of 128 elements of K, drawn, against float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unigemm.problem.dtypes import DType, numpy_dtype

BLOCK = 128


@dataclass(frozen=True)
class Scaled:
    """Operands, their scales, and what comes out.

    Attributes
    ----------
    a, b, scale_a, scale_b
        Arguments of `unigemm.matmul`, or of `unigemm.grouped_matmul`.
    expected, magnitude
        The product of the scaled operands, and that of their magnitudes, in float64; 0 where no
        group is.
    ends
        Those of groups: `offsets` or `rows`.
    """

    a: np.ndarray
    b: np.ndarray
    scale_a: np.ndarray
    scale_b: np.ndarray
    expected: np.ndarray
    magnitude: np.ndarray
    ends: dict[str, np.ndarray] = field(default_factory=dict)

    def error(self, got) -> float:
        """Return the largest error, of the sum of magnitudes; NaN where one is."""
        assert np.shape(got) == self.expected.shape
        off = abs(np.asarray(got, np.float64) - self.expected)
        return float(np.max(off / np.where(self.magnitude == 0, 1, self.magnitude), initial=0))


def drawn(
    sizes, lines, *, stack=(), exponents=False, apart=False, major="k", seed=0,
    types=("float8_e4m3fn", "float8_e4m3fn"), major_a="k",
) -> Scaled:  # fmt: skip
    """Draw a product.

    Parameters
    ----------
    sizes, stack
        M, N and K, and what comes before.
    lines
        How many rows of A, and columns of B, share a scale: 1 or 128.
    exponents
        Whether scales are E8M0, and not float32.
    apart
        Whether NaN lies between and behind scales in memory.
    major, major_a
        Of B: "k" or "n"; of A: "k" or "m".
    """
    rng = np.random.default_rng(seed)
    m, n, k = sizes
    kinds = [numpy_dtype(DType(name)) for name in types]
    a = (2 * rng.standard_normal((*stack, m, k))).astype(np.float32).astype(kinds[0])
    b = (2 * rng.standard_normal((*stack, n, k))).astype(np.float32).astype(kinds[1])
    b = b.swapaxes(-1, -2)
    b = np.ascontiguousarray(b) if major == "n" else b
    if major_a == "m":
        a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)

    def scales(shape):
        if exponents:
            found = (2.0 ** rng.integers(-3, 4, shape)).astype(numpy_dtype(DType.FLOAT8_E8M0FNU))
        else:
            found = rng.uniform(-2, 2, shape).astype(np.float32)
        wide = np.full((*shape[:-1], 2 * shape[-1]), np.nan).astype(found.dtype)[..., ::2]
        wide[...] = found
        return wide if apart else found

    def spread(x, axis, count, extent):
        x = np.repeat(x.astype(np.float64), count, axis)
        return x[..., :extent] if axis == -1 else x[..., :extent, :]

    blocks, (of_a, of_b) = -(-k // BLOCK), lines
    scale_a = scales((*stack, -(-m // of_a), blocks))
    scale_b = scales((*stack, blocks, -(-n // of_b)))
    x = a.astype(np.float64) * spread(spread(scale_a, -1, BLOCK, k), -2, of_a, m)
    y = b.astype(np.float64) * spread(spread(scale_b, -2, BLOCK, k), -1, of_b, n)
    return Scaled(a, b, scale_a, scale_b, x @ y, abs(x) @ abs(y))
