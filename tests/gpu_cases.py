"""What the GPU tests share: libraries, layouts, plans with a configuration of one's own."""

from __future__ import annotations

import pytest
from reference import Case, cupy_lib, lay_out, torch_lib

import unigemm
from unigemm.problem.dtypes import DType, output_dtypes

LIBRARIES = ("cupy", "torch-cuda")


def lib_named(name):
    if name == "cupy":
        pytest.importorskip("cupy", reason="CuPy is not installed")
        return cupy_lib()
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch_lib("cuda")


def matrix(rows, columns, transposed, pad, shift):
    order = (0, 1) if transposed else (1, 0)
    return lay_out((rows, columns), order, (pad, 0), 1, shift)


def tma_matrix(rows, columns, transposed, itemsize=2, units=1):
    """Lines that start at multiples of 16 bytes, at least 16 * units bytes of poison between."""
    unit = 16 // itemsize
    line = rows if transposed else columns
    return matrix(rows, columns, transposed, -line % unit + units * unit, 0)


def odd_case():
    """Return a product whose operands neither TMA nor tensor cores read where they lie."""
    m, n, k = 77, 65, 103
    a, b, d = matrix(m, k, True, 3, 1), matrix(k, n, False, 3, 1), matrix(m, n, True, 3, 1)
    return Case(a, b, d, (m, n), DType.BFLOAT16, DType.BFLOAT16, False, 3)


#: Rows of an M-major A, what lies between its columns, and elements in front of it: every
#: alignment but TMA's, groups of eight rows that end early, and several.
FEW_ROWS = ((2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 3, 4), (6, 0, 2), (7, 0, 0), (8, 8, 1), (12, 0, 0),
            (13, 0, 0), (31, 0, 0))  # fmt: skip


def few_rows_case(dtype, rows, pad, shift, layout="n", seed=0):
    """Return a product with a few rows that are turned or copied before it."""
    n, k = 72, 331  # K ends inside 16 bytes
    return Case(
        a=matrix(rows, k, True, pad, shift),
        b=tma_matrix(k, n, layout == "t", dtype.itemsize),
        d=matrix(rows, n, False, 3, 1),
        shape=(rows, n),
        dtype=dtype,
        out_dtype=output_dtypes(dtype)[0],
        exact=False,
        seed=seed,
    )


def needs(what, *architectures):
    target = unigemm.capabilities().devices[0].target
    if target is None or target.arch not in architectures:
        pytest.skip(f"{what} runs on {' and '.join(architectures)} only")


def needs_hopper():
    needs("wgmma", "sm_90a")


def needs_blackwell():
    needs("tcgen05", "sm_100a", "sm_103a", "sm_110a")
