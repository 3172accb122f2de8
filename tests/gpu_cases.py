"""What the GPU tests share: libraries, layouts, plans with a configuration of one's own."""

from __future__ import annotations

import pytest
from reference import cupy_lib, lay_out, torch_lib

import unigemm

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


def needs(what, *architectures):
    target = unigemm.capabilities().devices[0].target
    if target is None or target.arch not in architectures:
        pytest.skip(f"{what} runs on {' and '.join(architectures)} only")


def needs_hopper():
    needs("wgmma", "sm_90a")


def needs_blackwell():
    needs("tcgen05", "sm_100a", "sm_103a")
