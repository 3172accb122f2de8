"""The configurations that `cute_wgmma` offers, the cheapest of them first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from unigemm.planning.config import Config, Raster
from unigemm.planning.prediction import Candidate, Prediction, Ranking, Rejection
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from ..common.top_k import Shortlist, changed, cheapest_first
from ..common.workspace import workspace_bytes
from .coefficients import Figures
from .cost import Times, likely_us, prediction, priced, takes_longer, tiles_in, tiles_of
from .geometry import MMA_M, SWIZZLE_BYTES, shared_major, spare_bytes
from .legality import unsupported_reason
from .tiles import (
    LEAST_STAGES,
    SHAPES,
    Family,
    Shape,
    choices,
    families,
    family_of,
    is_idle,
    tile_config,
)
from .traffic import Work, least_us, repacked_bytes, work_of

__all__ = [
    "candidates",
    "offered",
    "predict",
    "predict_all",
    "price_all",
    "ranking",
    "scratch_bytes",
    "turns",
]


_MOST_STAGES = 12
_RASTERS = Raster("n", 8), Raster("m", 8)  # made once: plans are kept, and many of them
# The other way round waits where its copies alone take so many times what the first is likely to
# take: of 272 products in TF32 in 128, none of which is priced then.
_UNLIKELY = 1.75
_TURNED_BYTES = 8 << 20  # of the rows that all tiles read: well within the L2


@lru_cache(maxsize=16384)
def _config(
    family: Family,
    shape: Shape,
    columns: int,
    cluster: tuple[int, int],
    split: bool,
    cluster_k: int,
    slice_k: int,
) -> tuple[Config, str | None]:
    """Return a tile's configuration with as many stages as fit, and why it cannot run.

    It has two parts of K if there are to be several, and as many stages for each slice.
    """
    problem, target = family.problem, family.target
    least = tile_config(family, shape, columns, slice_k, split or cluster_k * slice_k > 1)
    stage = (shape.rows + columns) * SWIZZLE_BYTES
    room = target.smem_per_block - spare_bytes(problem, least)
    stages = max(LEAST_STAGES, min(_MOST_STAGES, room // stage))
    config = replace(
        least,
        cluster=cluster,
        stages=stages - stages % slice_k,
        split_k=2 if split else 1,
        cluster_k=cluster_k,
        swap_ab=family.swap_ab,
    )
    return config, unsupported_reason(problem, config, target)


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return the legal configurations worth considering, priced."""
    return list(ranking(problem, extents, target, None).candidates)


class _Place(NamedTuple):
    """One of many choices: which, whose, its parts of K, and its configuration but for those."""

    times: Times
    number: int
    work: Work
    split_k: int
    config: Config

    def finished(self) -> Config:
        """Return the configuration."""
        order = raster(self.work.extents, self.config)
        return changed(self.config, split_k=self.split_k, raster=order)

    def candidate(self) -> Candidate:
        """Return the configuration with its price."""
        work, config = self.work, self.finished()
        scratch = work.copied[min(config.tile[0], MMA_M)]
        scratch += workspace_bytes(work.family.problem, work.extents, config.split_k)
        return Candidate(config, prediction(work, self.times, self.number), scratch)


def ranking(
    problem: Problem, extents: Extents, target: Target, most: int | None, bar: float = inf
) -> Ranking:
    """Price all that is worth considering, and return the cheapest under the bar."""
    works = [
        work_of(family, extents.transposed if family.swap_ab else extents)
        for family in families(problem, target)
    ]
    short: Shortlist[_Place] = Shortlist(most, bar)
    for some in _in_turn(works, most):
        if least_us(some[0]) <= short.bar:
            _add_offer(short, some)
    refused = [
        Rejection("cute_wgmma", reason, place.finished(), others)
        for place, reason, others in short.refused()
    ]
    return Ranking(tuple(place.candidate() for place in short.kept()), tuple(refused))


def _in_turn(works: list[Work], most: int | None) -> list[list[Work]]:
    """Return what to price one behind the other: both ways round at once, or the likelier first."""
    first, *others = sorted(works, key=least_us)
    if not others:
        return [[first]]
    (other,) = others
    if most == 1 and takes_longer(other, first):
        return [[first]]
    alike = first.family.figures is other.family.figures
    if alike and least_us(other) <= _UNLIKELY * likely_us(first):
        return [[first, other]]
    return [[first], [other]]


def _add_offer(short: Shortlist[_Place], works: Sequence[Work]) -> None:
    """Add what families offer, the cheapest first."""
    own = tuple(work.family for work in works)
    found = choices(own, [work.extents for work in works], [work.split for work in works])
    launches = found.cluster_m, found.cluster_n, found.split_k, found.cluster_k
    times = priced(works, found.family, tiles_of(own, found), *launches)
    for index in cheapest_first(times.total):
        us = float(times.total[index])
        if us > short.bar:
            break
        number, choice = found.at(index)
        shape, columns, cluster, split_k, cluster_k, slice_k = choice
        split = split_k > 1
        config, reason = _config(own[number], shape, columns, cluster, split, cluster_k, slice_k)
        short.add(us, _Place(times, index, works[number], split_k, config), reason)


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every legal configuration that some sizes may get, K whole or in two parts."""
    for family in families(problem, target):
        for shape in SHAPES:
            for columns in range(family.unit, shape.widest + 1, family.unit):
                for cluster, cluster_k, slice_k, split_k in product(
                    shape.clusters, shape.cluster_k, shape.slices, (1, 2)
                ):
                    if is_idle(cluster_k, split_k, slice_k):
                        continue
                    config, reason = _config(
                        family, shape, columns, cluster, split_k > 1, cluster_k, slice_k
                    )
                    if reason is None:
                        yield config


def raster(extents: Extents, config: Config) -> Raster:
    """Return the order of the tiles: bands of eight along the shorter side of D in tiles."""
    tall = extents.m * config.tile[1] >= extents.n * config.tile[0]
    return _RASTERS[tall]


def turns(problem: Problem, extents: Extents, config: Config) -> tuple[int, int]:
    """Whether tiles start at different places along K, for (M, N).

    Where all tiles along N read the same few rows of A, those that run at once then read different
    ones (11.3 against 11.8 us at 1x4096x4096 on an H200). Not where B is N-major: there they
    read neighbours in device memory as long as they keep step (11.4 against 11.2 us). The start
    decides the order of the sums: not where results are to be the same for every M, and not where
    the last tile computes again what its neighbour does (`places.last_places`).
    """
    if problem.batch_invariant:
        return 0, 0
    size = extents.k * problem.a.dtype.itemsize * extents.batch
    few_m = extents.m <= config.tile[0] * config.cluster[0] and extents.m * size <= _TURNED_BYTES
    few_n = extents.n <= config.tile[1] * config.cluster[1] and extents.n * size <= _TURNED_BYTES
    across = extents.n <= config.tile[1] or extents.n % config.tile[1] == 0
    down = extents.m <= config.tile[0] or extents.m % config.tile[0] == 0
    along_n = few_m and across and shared_major(problem, "b", config.tile[0]) == "k"
    along_m = few_n and down and shared_major(problem, "a", config.tile[0]) == "k"
    return int(along_m and not along_n), int(along_n)


def scratch_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the workspace of a plan: repacked operands, then partial sums."""
    return repacked_bytes(problem, extents, config.tile[0]) + workspace_bytes(
        problem, extents, config.split_k
    )


def predict(
    problem: Problem,
    extents: Extents,
    target: Target,
    config: Config,
    figures: Figures | None = None,
) -> Prediction:
    """Price one configuration; problem and extents as the kernel sees them.

    By other figures than its own where they are given.
    """
    return predict_all(problem, extents, target, (config,), figures)[0]


def predict_all(
    problem: Problem,
    extents: Extents,
    target: Target,
    configs: Sequence[Config],
    figures: Figures | None = None,
) -> list[Prediction]:
    """Price configurations as `predict` does; many take little longer than one."""
    family = family_of(problem, target, figures=figures)
    work = work_of(family, extents)
    knobs = [(*config.cluster, config.split_k, config.cluster_k) for config in configs]
    one = np.zeros(len(configs), dtype=np.int64)
    times = priced([work], one, tiles_in(family, configs), *np.array(knobs).T)
    return [prediction(work, times, index) for index in range(len(configs))]


def price_all(
    problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
) -> list[Candidate]:
    """Return configurations as candidates; problem and extents as the caller sees them."""
    found: dict[Config, Candidate] = {}
    for swap in {config.swap_ab for config in configs}:
        some = [config for config in configs if config.swap_ab == swap]
        seen, sizes = some[0].oriented(problem), some[0].oriented(extents)
        for config, price in zip(some, predict_all(seen, sizes, target, some), strict=True):
            found[config] = Candidate(config, price, scratch_bytes(seen, sizes, config))
    return [found[config] for config in configs]
