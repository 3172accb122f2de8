"""The copies of operands that `cute_wgmma` makes before a product, and their bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from unigemm.planning.config import Config
from unigemm.problem.problem import Extents, Problem

from ..common.groups import stack_of
from ..common.workspace import packed_bytes, panel_bytes, workspace_bytes
from .geometry_operands import is_repacked, may_panel, products, shared_major

__all__ = ["copied_operands", "repacked_bytes", "scratch_bytes"]

_NAMES: tuple[Literal["a", "b"], ...] = ("a", "b")


def scratch_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the workspace of a plan: repacked operands, then partial sums."""
    return repacked_bytes(problem, extents, config.tile[0]) + workspace_bytes(
        problem, extents, config.split_k
    )


def copied_operands(problem: Problem, tile_m: int) -> int:
    """Return how many operands are copied for tiles of `tile_m` rows."""
    return len(_copied(problem, tile_m))


def repacked_bytes(problem: Problem, extents: Extents, tile_m: int) -> int:
    """Return the bytes of the operands' copies, at most."""
    total, stacked = 0, stack_of(problem)
    for copy in _copied(problem, tile_m):
        batch = extents.batch * (extents.groups if copy.name == stacked else 1)
        rows = copy.rows(extents)
        lines, along = (rows, extents.k) if copy.along_k else (extents.k, rows)
        most = packed_bytes(lines, along * copy.itemsize, batch, copy.copies)
        if copy.may_panel:  # tiles decide
            most = max(most, panel_bytes(lines, along * copy.itemsize, batch))
        total += most
    return total


class _Copy(NamedTuple):
    """An operand that is copied: whether in lines along K, into how many, and maybe in panels."""

    name: Literal["a", "b"]
    along_k: bool
    itemsize: int
    copies: int
    may_panel: bool

    def rows(self, extents: Extents) -> int:
        """Return how many rows of K it has."""
        return extents.m if self.name == "a" else extents.n


@lru_cache(maxsize=1024)
def _copied(problem: Problem, tile_m: int) -> tuple[_Copy, ...]:
    """Return the operands that are copied for tiles of `tile_m` rows."""
    return tuple(
        _Copy(
            name,
            shared_major(problem, name, tile_m) == "k",
            getattr(problem, name).dtype.itemsize,
            2 if products(problem) > 1 else 1,
            name == "b" and may_panel(problem),
        )
        for name in _NAMES
        if is_repacked(problem, name, tile_m)
    )
