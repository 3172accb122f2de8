"""Rounding arrays to eight bits with scales, in CuTe DSL: `unigemm.quantize` on a GPU."""

from .quantizer import QUANTIZER

__all__ = ["QUANTIZER"]
