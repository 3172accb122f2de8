"""The CPU backend: rebuilds NumPy views from addresses, and multiplies with NumPy's BLAS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unigemm.backend import Launcher
from unigemm.dtypes import numpy_dtype
from unigemm.gemm import Gemm
from unigemm.numpy_arrays import viewer
from unigemm.plans import Candidate, Config, Plan, Prediction
from unigemm.problem import Extents, Problem
from unigemm.target import Target

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BACKEND", "NumpyBackend"]

# Rows, columns and K of one block that is converted or copied: its three float64 matrices take
# 24 MB at most, whatever the problem, and are large enough to keep BLAS at speed.
_BLOCK = 1024
_CALL_US = 2.0  # NumPy's own overhead
_HOST_GFLOPS = 50.0  # a guess for ranking only: nothing competes with this backend on the host


@dataclass(frozen=True)
class NumpyBackend:
    """The backend; see `unigemm.backend.HostBackend` for what each method promises."""

    name: str = "numpy"

    def missing(self) -> str | None:
        """Return None: NumPy is always installed."""
        return None

    def refuse(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it cannot compute the product on the target; None when it can."""
        return "it runs on the host's processor only" if target.is_gpu else None

    def candidates(self, problem: Problem, extents: Extents, target: Target) -> Sequence[Candidate]:
        """Return the one way it has."""
        us = _CALL_US + extents.flops / (_HOST_GFLOPS * 1e3)
        tile = (min(extents.m, _BLOCK), min(extents.n, _BLOCK), min(extents.k, _BLOCK))
        return [Candidate(Config(tile=tile), Prediction(us, "host"))]

    def bind(self, plan: Plan, gemm: Gemm) -> Launcher:
        """Return what computes the product on the host."""
        e, (l0, l1) = gemm.extents, gemm.batch

        def view(which: str, rows: int, columns: int) -> Any:
            step_row, step_column, step0, step1 = getattr(gemm, f"{which}_strides")
            return viewer(
                (l1, l0, rows, columns),
                (step1, step0, step_row, step_column),
                getattr(gemm.problem, which).dtype,
            )

        views = view("a", e.m, e.k), view("b", e.k, e.n), view("d", e.m, e.n)
        sums = numpy_dtype(gemm.problem.accumulator)
        swapped = gemm.swapped

        def launch(a: int, b: int, d: int, workspace: int, stream: int) -> None:
            if swapped:
                a, b = b, a
            _multiply(views[0](a), views[1](b), views[2](d), sums)

        return launch


def _multiply(a: np.ndarray, b: np.ndarray, d: np.ndarray, sums: np.dtype) -> None:
    """D (L1, L0, M, N) = A (L1, L0, M, K) B (L1, L0, K, N), summed in `sums`."""
    import numpy as np

    if a.dtype == sums == d.dtype and _blas(a) and _blas(b) and _blas(d):
        np.matmul(a, b, out=d)
        return
    for i1, i0 in np.ndindex(a.shape[0], a.shape[1]):
        _multiply_blocks(a[i1, i0], b[i1, i0], d[i1, i0], sums)


def _multiply_blocks(a: np.ndarray, b: np.ndarray, d: np.ndarray, sums: np.dtype) -> None:
    """Multiply block by block, with operands that BLAS takes as they are."""
    import numpy as np

    m, k = a.shape
    n = b.shape[1]
    for row in range(0, m, _BLOCK):
        for column in range(0, n, _BLOCK):
            total = np.zeros((min(_BLOCK, m - row), min(_BLOCK, n - column)), sums)
            for step in range(0, k, _BLOCK):
                left = _ready(a[row : row + _BLOCK, step : step + _BLOCK], sums)
                right = _ready(b[step : step + _BLOCK, column : column + _BLOCK], sums)
                total += left @ right
            d[row : row + _BLOCK, column : column + _BLOCK] = total  # one rounding


def _ready(block: np.ndarray, sums: np.dtype) -> np.ndarray:
    """Return a block in the type of the sums and in an order that BLAS takes."""
    import numpy as np

    if block.dtype == sums and _blas(block):
        return block
    return np.ascontiguousarray(block, dtype=sums)


def _blas(x: np.ndarray) -> bool:
    """Whether NumPy hands each matrix to BLAS as it is: one unit stride, the other large enough.

    What BLAS does not take, NumPy multiplies in loops that are many times slower.
    """
    size = x.itemsize
    rows, columns = x.shape[-2:]
    down, along = (step // size for step in x.strides[-2:])
    row_major = (along == 1 or columns == 1) and (down >= columns or rows == 1)
    column_major = (down == 1 or rows == 1) and (along >= rows or columns == 1)
    return row_major or column_major


BACKEND = NumpyBackend()
