"""Add a backend of your own: float32 products on the CPU, summed in float64.

A package names its backend in the entry-point group `unigemm.backends`. So that this stays a single
file, it writes the two files that pip would write for such a package; docs/add-a-backend.md has
the package itself, and says what each method is for.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from unigemm.arrays.numpy_arrays import viewer
from unigemm.planning.backend import Backend
from unigemm.planning.config import Config
from unigemm.planning.prediction import Candidate, Prediction
from unigemm.problem.dtypes import DType


class Float64Sums(Backend):
    """Converts both operands to float64, multiplies, and rounds once."""

    name = "float64_sums"

    def unsupported_reason(self, problem, extents, target):
        """Take products of float32 alone."""
        if (problem.a.dtype, problem.b.dtype) == (DType.FLOAT32, DType.FLOAT32):
            return None
        return f"it multiplies float32, not {problem.a.dtype}; use backend='numpy'"

    def candidates(self, problem, extents, target):
        """Offer the whole product as one tile; it expects to take long, so auto prefers NumPy."""
        tile = (extents.m, extents.n, extents.k)
        return [Candidate(Config(tile), Prediction(10.0 + extents.flops / 1e4, limiter="host"))]

    def bind(self, plan, gemm, kernel):
        """Fix shapes and strides; what is returned runs for every call of the kind."""
        m, n, k = gemm.extents.m, gemm.extents.n, gemm.extents.k
        stack = gemm.batch[::-1]

        def matrices(rows, columns, strides):
            row, column, inner, outer = strides
            return viewer((*stack, rows, columns), (outer, inner, row, column), DType.FLOAT32)

        left, right = matrices(m, k, gemm.a_strides), matrices(k, n, gemm.b_strides)
        result = matrices(m, n, gemm.d_strides)

        def launch(a, b, d, workspace, stream):
            first, second = (b, a) if gemm.swapped else (a, b)
            result(d)[...] = left(first).astype(np.float64) @ right(second).astype(np.float64)

        return launch


BACKEND = Float64Sums()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder, "float64_sums-1.0.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: float64_sums\nVersion: 1.0\n")
        entry = f"float64_sums = {Path(__file__).stem}:BACKEND\n"
        (info / "entry_points.txt").write_text(f"[unigemm.backends]\n{entry}")
        sys.path[:0] = [folder, str(Path(__file__).parent)]

        import unigemm

        rng = np.random.default_rng(0)
        a, b = rng.standard_normal((2, 300, 300), np.float32)
        exact = a.astype(np.float64) @ b
        for backend in ("numpy", "float64_sums"):
            error = np.abs(unigemm.matmul(a, b, backend=backend) - exact).max()
            print(f"{backend:13s} is off by {error:.0e} at most")
        print("auto picks", unigemm.plan(a, b).backend)
        try:
            unigemm.matmul(a.astype("int8"), b.astype("int8"), backend="float64_sums")
        except unigemm.UnsupportedProblem as error:
            print("refused:", error)
