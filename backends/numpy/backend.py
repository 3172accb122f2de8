"""The CPU backend: rebuilds NumPy views from addresses, and multiplies with NumPy's BLAS."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unigemm.planning.backend import Backend, Launcher
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Candidate, Prediction
from unigemm.planning.target import Target
from unigemm.problem.canonical import Gemm
from unigemm.problem.problem import Extents, Problem

from .grouped import bind_groups
from .product import bind_product

__all__ = ["BACKEND", "NumpyBackend"]

# What `unigemm.plan` says where a library's own matmul computes (see `unigemm.runtime.host`).
_WAYS = re.compile(
    r"((numpy|torch)\.matmul in \w{1,20}(, [ab] from [<>]?\w{1,20}){0,2})?", re.ASCII
)
# Most rows, columns and K of a block where operands are converted or copied. With 1024 multiply-
# adds for each element that is copied, copies are a few percent of the work.
_BLOCK = 1024
# Rough rates of one core. They decide nothing: no other backend runs on the host.
_CALL_US = 3.0
_FLOPS_PER_US = 50e3
_BYTES_PER_US = 10e3


class NumpyBackend(Backend):
    """NumPy's BLAS on the CPU."""

    name = "numpy"
    takes_scales = True
    takes_fine_scales = True
    takes_epilogues = True
    takes_groups = True
    takes_conversions = True

    def unsupported_reason(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it cannot compute the product on the target; None when it can."""
        if problem.batch_invariant:
            return "BLAS adds up in an order that may depend on M; use a GPU"
        return None

    def candidates(self, problem: Problem, extents: Extents, target: Target) -> Sequence[Candidate]:
        """Return the one way it has."""
        work = max(extents.flops / _FLOPS_PER_US, extents.bytes_moved(problem) / _BYTES_PER_US)
        tile = (min(extents.m, _BLOCK), min(extents.n, _BLOCK), min(extents.k, _BLOCK))
        return [Candidate(Config(tile=tile), Prediction(_CALL_US + work, "host"))]

    def unsupported_config_reason(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> str | None:
        """Say why a configuration cannot compute a product that it takes; None when it can."""
        if config != Config(tile=config.tile, schedule=config.schedule) or not _WAYS.fullmatch(
            config.schedule
        ):
            return f"it has a tile alone, and no {config}"
        if not all(1 <= each <= _BLOCK for each in config.tile):
            return f"the sides of its tiles are 1 to {_BLOCK}, not {config.tile}"
        blocks, (_, _, k) = problem.blocks, config.tile
        if blocks is not None and k % blocks.block and k < extents.k:
            return f"parts of {k} of K do not begin with a scale, of which each has {blocks.block}"
        return None

    def workspace_bytes(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> int:
        """Return 0: what it copies lies in memory of its own."""
        return 0

    def bind(self, plan: Plan, gemm: Gemm, kernel: object) -> Launcher:
        """Return what computes the product on the host."""
        return (bind_groups if gemm.problem.groups else bind_product)(gemm, plan.tile)


BACKEND = NumpyBackend()
