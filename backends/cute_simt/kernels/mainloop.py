"""Which main loop a configuration has."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable

from ..schedules import is_dmma
from . import mainloop_dmma, mainloop_dmma_tma, mainloop_fma, mainloop_fma_consumer
from .spec import Spec

__all__ = ["consumer_loop_of", "loop_of"]


def loop_of(spec: Spec) -> Callable:
    """Return the loop of warps that copy and multiply: on CUDA cores, or on tensor cores."""
    return (mainloop_dmma if is_dmma(spec.config) else mainloop_fma).sum_k_tiles


def consumer_loop_of(spec: Spec) -> Callable:
    """Return the loop of warps that only multiply: on CUDA cores, or on tensor cores."""
    return (mainloop_dmma_tma if is_dmma(spec.config) else mainloop_fma_consumer).sum_k_tiles
