"""GEMM on CUDA cores in CuTe DSL: any layout, any stride, any size, every GPU from sm_80 on."""

from .backend import BACKEND

__all__ = ["BACKEND"]
