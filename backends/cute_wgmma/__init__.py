"""GEMM on Hopper's tensor cores in CuTe DSL: TMA, wgmma, persistent and warp-specialised."""

from .backend import BACKEND

__all__ = ["BACKEND"]
