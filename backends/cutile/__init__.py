"""GEMM in cuTile: tensor cores from Ampere to Blackwell, one short kernel for all."""

from .backend import BACKEND

__all__ = ["BACKEND"]
