"""Launches of a problem that are sampled evenly, not by what the model expects of them.

Of everything that is offered the tile (with its warps and schedule) that was taken least so far
comes first, then one of its kernels, then one of that kernel's launches, each with equal chances.
Only what the model expects to take several times as long as its best is left out. Launches with one
parameter changed (raster, cluster, stages, parts of K, columns) are what nobody offers.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import UnsupportedProblem
from ..planning.config import Config, Raster
from ..planning.plan import Plan
from ..planning.prediction import Alternative
from ..planning.registry import backend_named

__all__ = ["Amounts", "LaunchDraw", "SampledLaunch", "kernel_of", "varied"]

_SLOWEST = 4.0  # times the best expected time: no one would pick what is slower
_TRIES = 12  # for each launch with a changed parameter
How = Literal["best", "evenly", "varied"]


@dataclass(frozen=True)
class Amounts:
    """Launches of each problem: the model's best, others as they are offered, and changed ones."""

    best: int
    evenly: int
    varied: int


@dataclass(frozen=True)
class SampledLaunch:
    """A launch, how it was chosen, and its kernel's name."""

    plan: Plan
    how: How
    kernel: str


class LaunchDraw:
    """Draws the launches of one problem after the other; what was taken before has a say.

    Parameters
    ----------
    seed
        The same one draws the same launches of the same problems.
    amounts
        How many.
    shared
        How often a kernel is taken again, where there is one.
    """

    def __init__(self, seed: str, amounts: Amounts, shared: float = 0.6) -> None:
        self._rng = random.Random(seed)
        self._amounts, self._shared = amounts, shared
        self._tiles: Counter[Any] = Counter()
        self._kernels: set[str] = set()

    def __call__(self, kind: str, offered: Sequence[Plan]) -> list[SampledLaunch]:
        """Return the launches to measure, the model's best first.

        Parameters
        ----------
        kind
            Of numbers: tiles are counted by it.
        offered
            All plans of a problem, the best first.
        """
        amounts = self._amounts
        slow = _SLOWEST * offered[0].predicted_us
        worth = [plan for plan in offered if plan.predicted_us <= slow]
        found = [self._noted(plan, "best") for plan in worth[: amounts.best]]
        rest = worth[amounts.best :]
        found += [self._noted(plan, "evenly") for plan in self._evenly(kind, rest)]
        taken = {(each.plan.backend, each.plan.config) for each in found}
        tiles = list(self._by_tile(worth).values())
        most = sum((amounts.best, amounts.evenly, amounts.varied))
        for _ in range(_TRIES * (most - len(found))):
            if len(found) >= most:
                break
            plan = varied(self._rng.choice(self._rng.choice(tiles)), self._rng)
            if plan is None or plan.predicted_us > slow:
                continue
            if (plan.backend, plan.config) not in taken:
                taken.add((plan.backend, plan.config))
                found.append(self._noted(plan, "varied"))
        return found

    def _noted(self, plan: Plan, how: How) -> SampledLaunch:
        kernel = kernel_of(plan)
        self._kernels.add(kernel)
        return SampledLaunch(plan, how, kernel)

    def _by_tile(self, plans: Sequence[Plan]) -> dict[Any, list[Plan]]:
        tiles = defaultdict(list)
        for plan in plans:
            tiles[plan.backend, plan.config.tile, plan.config.warps, plan.config.schedule].append(
                plan
            )
        return tiles

    def _evenly(self, kind: str, plans: Sequence[Plan]) -> list[Plan]:
        """Draw plans: tile by tile, kernel by kernel."""
        rng, found = self._rng, list[Plan]()
        tiles = self._by_tile(plans)
        while tiles and len(found) < self._amounts.evenly:
            tile = min(tiles, key=lambda each: (self._tiles[kind, each], rng.random()))
            self._tiles[kind, tile] += 1
            kernels = defaultdict(list)
            for plan in tiles[tile]:
                kernels[kernel_of(plan)].append(plan)
            known = [name for name in kernels if name in self._kernels]
            names = known if known and rng.random() < self._shared else list(kernels)
            plan = rng.choice(kernels[rng.choice(names)])
            self._kernels.add(kernel_of(plan))
            found.append(plan)
            tiles[tile].remove(plan)
            if not tiles[tile]:
                del tiles[tile]
        return found


def kernel_of(plan: Plan) -> str:
    """Return the name of a plan's kernel."""
    return backend_named(plan.backend).key(plan).digest


def varied(plan: Plan, rng: random.Random) -> Plan | None:
    """Return a plan with one parameter changed, or None where that one cannot be."""
    backend = backend_named(plan.backend)
    config = rng.choice(_CHANGES)(plan.config, rng, plan)
    product = plan.problem, plan.extents, plan.target
    if config == plan.config or backend.unsupported_config_reason(*product, config) is not None:
        return None
    try:
        candidate = backend.estimate(*product, config)
    except UnsupportedProblem:
        return None
    return replace(plan, estimated_for=None).taking(Alternative.of(backend.name, candidate))


def _raster(config: Config, rng: random.Random, plan: Plan) -> Config:
    order: Literal["m", "n"] = "m" if rng.random() < 0.5 else "n"
    return replace(config, raster=Raster(order, rng.choice((1, 2, 4, 8, 16))))


def _cluster(config: Config, rng: random.Random, plan: Plan) -> Config:
    return replace(config, cluster=rng.choice(((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))))


def _stages(config: Config, rng: random.Random, plan: Plan) -> Config:
    return replace(config, stages=rng.randint(2, 8))


def _parts(config: Config, rng: random.Random, plan: Plan) -> Config:
    k_tiles = -(-plan.extents.k // config.tile[2])
    parts = rng.randint(1, 8)
    each = -(-k_tiles // (parts * config.cluster_k)) or 1
    return replace(config, split_k=max(1, -(-k_tiles // each) // config.cluster_k))


def _columns(config: Config, rng: random.Random, plan: Plan) -> Config:
    m, n, k = config.tile
    if config.thread != (0, 0):  # the threads would no longer cover it
        return config
    columns = 16 * rng.randint(1, 16)
    stages = max(2, min(config.stages * n // columns, 12)) if columns > n else config.stages
    return replace(config, tile=(m, columns, k), stages=stages)


_CHANGES: tuple[Callable[[Config, random.Random, Plan], Config], ...] = (
    _raster,
    _cluster,
    _stages,
    _parts,
    _columns,
)
