"""GEMM on the tensor cores of Blackwell (sm_100, sm_103, sm_110), in CuTe DSL."""

from .backend import BACKEND

__all__ = ["BACKEND"]
