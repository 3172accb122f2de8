"""Which main loop a configuration has."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Callable

from ..schedules import (
    is_dmma,
)
from .mainloop_fma import sum_slabs
from .spec import Spec

__all__ = ["loop_of"]


def loop_of(spec: Spec) -> Callable:
    """Return what sums slabs: on CUDA cores, or on tensor cores."""
    from . import mainloop_dmma as dmma

    return dmma.sum_slabs if is_dmma(spec.config) else sum_slabs
