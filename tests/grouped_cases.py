"""Grouped products for the tests: drawn arrays, and a float64 reference with a loop over groups.

Operands are small whole numbers: products are exact in every type, and results are compared bit for
bit. What belongs to no group is NaN where the type has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy knows bfloat16 and float8 by it)
import numpy as np

FORMS = ("m", "n", "k", "rows")
LAYOUTS = ("rows", "columns", "padded", "shifted")


@dataclass(frozen=True)
class Sizes:
    """T or the rows, N, K and the sizes of groups; `rest` is what follows the last."""

    sizes: tuple[int, ...]
    rest: int = 0
    other: int = 5  # columns of D along "m", rows along "n" and "k"
    inner: int = 7  # K along "m" and "n", columns of D along "k"

    @property
    def total(self) -> int:
        return sum(self.sizes) + self.rest

    @property
    def count(self) -> int:
        return len(self.sizes)

    @property
    def offsets(self) -> np.ndarray:
        return np.cumsum(self.sizes)


#: Empty groups first, last and between, one row, very uneven, a rest and none.
SIZES = (
    Sizes((3, 0, 5, 1)),
    Sizes((0, 0, 0), rest=4),
    Sizes((0, 37, 1, 0), rest=3),
    Sizes((6,)),
    Sizes((1, 1, 1, 1, 1), rest=1, other=1),
    Sizes((2, 9), rest=70, inner=1),
)


def shapes(form: str, s: Sizes) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of A, B and D."""
    g, t, x, y = s.count, s.total, s.other, s.inner
    return {
        "m": ((t, y), (g, y, x), (t, x)),
        "n": ((g, x, y), (y, t), (x, t)),
        "k": ((x, t), (t, y), (g, x, y)),
        "rows": ((g, max(s.sizes), y), (g, y, x), (g, max(s.sizes), x)),
    }[form]


def ends(form: str, s: Sizes) -> np.ndarray:
    """Return the offsets, or the numbers of valid rows."""
    return np.array(s.sizes) if form == "rows" else s.offsets


def parts(form: str, found: np.ndarray) -> Iterator[tuple[int, Any, Any, Any]]:
    """Yield each group with its indices in A, B and D."""
    everything, start = slice(None), 0
    for g, end in enumerate(found.tolist()):
        own = slice(start, end)
        yield (
            g,
            *{
                "m": (own, g, own),
                "n": (g, (everything, own), (everything, own)),
                "k": ((everything, own), own, g),
                "rows": ((g, slice(end)), g, (g, slice(end))),
            }[form],
        )
        start = end if form != "rows" else 0


def reference(
    form: str,
    a: np.ndarray,
    b: np.ndarray,
    found: np.ndarray,
    epilogue: Callable[[np.ndarray, int, Any], np.ndarray] = lambda acc, g, at: acc,
    before: np.ndarray | None = None,
) -> np.ndarray:
    """Return D in float64: zeros, or what was there `before`, where no group is.

    `epilogue` takes the accumulators of a group, its number, and its index in D.
    """
    m, n = a.shape[-2], b.shape[-1]
    shape = (m, n) if form in ("m", "n") else (len(found), m, n)
    with np.errstate(all="ignore"):
        pieces = []
        for g, at_a, at_b, at_d in parts(form, found):
            x, y = a[at_a].astype(np.float64), b[at_b].astype(np.float64)
            pieces.append((at_d, epilogue(x @ y, g, at_d)))
    columns = pieces[0][1].shape[-1] if pieces and form != "n" else n
    d = np.zeros((*shape[:-1], columns)) if before is None else before.astype(np.float64)
    for at, piece in pieces:
        d[at] = piece
    return d


def laid(values: np.ndarray, layout: str) -> np.ndarray:
    """Return the values in memory of a layout, with poison around and between."""
    poison = np.array(np.nan if values.dtype.kind not in "iu" else 77).astype(values.dtype)
    if layout == "rows":
        return values.copy()
    if layout == "columns":
        return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    pad = 3 if layout == "padded" else 8
    shift = 0 if layout == "padded" else 1
    whole = np.full((*values.shape[:-1], values.shape[-1] + pad), poison)
    view = whole[..., shift : shift + values.shape[-1]]
    view[...] = values
    return view


def operands(
    form: str, s: Sizes, dtype: Any, layouts: tuple[str, str] = ("rows", "rows"), seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B, with NaN where no group is."""
    rng = np.random.default_rng(seed)
    of_a, of_b, _ = shapes(form, s)
    a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in (of_a, of_b))
    if np.dtype(dtype).kind not in "iu":
        nothing = np.array(np.nan).astype(dtype)
        if form == "rows":
            for g, size in enumerate(s.sizes):
                a[g, size:] = nothing
        elif s.rest:
            for x, axis in ((a, {"m": 0, "k": 1}.get(form)), (b, {"n": 1, "k": 0}.get(form))):
                if axis is not None:
                    x[(slice(None),) * axis + (slice(s.total - s.rest, None),)] = nothing
    return laid(a, layouts[0]), laid(b, layouts[1])
