"""GEMM on the host: BLAS through NumPy, also for what BLAS does not take as it is."""

from .backend import BACKEND

__all__ = ["BACKEND"]
