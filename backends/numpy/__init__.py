"""GEMM on the host: BLAS through NumPy, with float32 sums for 16-bit types."""

from .backend import BACKEND

__all__ = ["BACKEND"]
