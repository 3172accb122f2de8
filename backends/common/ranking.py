"""From candidates to a ranking: the way that all GPU backends share.

A backend draws up its candidates as columns (`Offer`), the cost model estimates all of them, and
the few that it estimates lowest are corrected, rounded and sorted. Only those that come first are
asked whether they can run, and become configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.prediction import Breakdown, Candidate, Prediction, Ranking, Rejection
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from .coefficients import Model, kind_of, model_of
from .correction import factors, features
from .cost_model import Parts, Usage, estimate, overlapping
from .launches import Array, Launches, columns_of
from .offsets import factor as offset_factor

__all__ = ["CostModel", "Offer", "estimate_all", "rank"]

_CORRECTED = 32  # candidates of the lowest physical estimates, which may come first
_BITS = 13  # of an estimated time that are compared: libraries of mathematics differ in the last


class Offer(NamedTuple):
    """Candidates for a product, one way round.

    Attributes
    ----------
    problem, extents, swap_ab
        The product as the kernel sees it, and whether that is the transpose of the caller's.
    tiles, launches
        The candidates; `Launches.base` is the place of their tile.
    remainder, remainder_us
        Configurations of remainder launches, and their estimated time; the extents are without
        what they compute.
    """

    problem: Problem
    extents: Extents
    swap_ab: bool
    tiles: Sequence[Config]
    launches: Launches
    remainder: tuple[Config, ...] = ()
    remainder_us: float = 0.0

    def config(self, index: int) -> Config:
        """Return one of them as a configuration."""
        own = self.launches.config(index, self.tiles)
        if self.swap_ab or self.remainder:
            return replace(own, swap_ab=self.swap_ab, remainder=self.remainder)
        return own


@dataclass(frozen=True)
class CostModel:
    """What the shared way asks of a backend.

    Attributes
    ----------
    name
        The backend's.
    schedules
        Names of its schedules; `Launches.schedule` is the place.
    offers
        (problem, extents, target) to its candidates.
    usage
        (problem, extents, target, launches, tiles) to what they use; as the kernel sees it.
    unsupported_reason
        (problem as the kernel sees it, config, target) to why it cannot run; None if it can.
    workspace
        (problem, extents, target, config) to the bytes of a launch's workspace; the caller's view.
    bound
        A configuration to what its multiply-adds are called among the bounds of a `Breakdown`.
    kind
        A problem to its kind of numbers, as the cost model tells them apart.
    remainder
        (problem, extents, target, config with remainder launches) to the extents that its tiles
        compute, and the estimated time of those launches.
    """

    name: str
    schedules: tuple[str, ...]
    offers: Callable[[Problem, Extents, Target], Sequence[Offer]]
    usage: Callable[[Problem, Extents, Target, Launches, Sequence[Config]], Usage]
    unsupported_reason: Callable[[Problem, Config, Target], str | None]
    workspace: Callable[[Problem, Extents, Target, Config], int]
    bound: Callable[[Config], str] = lambda config: "tensor"
    kind: Callable[[Problem], str] = kind_of
    remainder: Callable[[Problem, Extents, Target, Config], tuple[Extents, float]] | None = None


class _Estimated(NamedTuple):
    """Candidates of one offer: what they use, and their times before the correction."""

    offer: Offer
    usage: Usage
    parts: Parts


class _Corrected(NamedTuple):
    """Some candidates of an offer, corrected: which, the factor and the time."""

    of: _Estimated
    chosen: Array
    factor: Array
    us: Array


def rank(
    model: CostModel, problem: Problem, extents: Extents, target: Target, most: int | None
) -> Ranking:
    """Return the `most` candidates of least estimated time, or all if None.

    Beside them those that would be among the first and cannot run, with the reasons.
    """
    found = [_estimated(model, offer, target) for offer in model.offers(problem, extents, target)]
    if not found:
        return Ranking(())
    counts = [each.offer.launches.size for each in found]
    offer = np.repeat(np.arange(len(found)), counts)
    index = np.concatenate([np.arange(count) for count in counts])
    us = np.concatenate([each.parts.total + each.offer.remainder_us for each in found])
    order = rounded(us).argsort(kind="stable")
    first = len(order) if most is None else max(_CORRECTED, most)
    rejected: tuple[Rejection, ...] = ()
    while True:
        some, order = np.sort(order[:first]), order[first:]  # ties go by the catalogue's order
        ranking = _ranked(model, found, offer[some], index[some], (problem, extents, target), most)
        rejected += ranking.rejected
        if ranking.candidates or not len(order):
            return Ranking(ranking.candidates, rejected)


def estimate_all(
    model: CostModel, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
) -> list[Candidate]:
    """Return configurations that can run with their estimated times, in their order."""
    found: dict[Config, Candidate] = {}
    for swap, remainder in dict.fromkeys((c.swap_ab, c.remainder) for c in configs):
        some = [c for c in configs if (c.swap_ab, c.remainder) == (swap, remainder)]
        own = some[0].oriented(problem), some[0].oriented(extents)
        sizes, remainder_us = own[1], 0.0
        if remainder and model.remainder is not None:
            sizes, remainder_us = model.remainder(*own, target, some[0])
        launches = columns_of(some, model.schedules)
        offer = Offer(own[0], sizes, swap, some, launches, remainder, remainder_us)
        each = _estimated(model, offer, target)
        corrected = _corrected(model, each, np.arange(len(some)), target)
        for place, config in enumerate(some):
            size = model.workspace(problem, extents, target, config)
            made = _prediction(model, corrected, place, config, target)
            found[config] = Candidate(config, made, size)
    return [found[config] for config in configs]


def _prediction(
    model: CostModel, corrected: _Corrected, place: int, config: Config, target: Target
) -> Prediction:
    """Return what one candidate's time is made of."""
    offer, at = corrected.of.offer, corrected.chosen[place]
    of: Any = Parts(*(us[at].item() for us in corrected.of.parts))
    c = _model(model, offer.problem, target).coefficients
    # The main loop as if all waves were full, and what it takes longer since they are not.
    full = overlapping(c, of.serial * of.filled, of.smem * of.filled, of.l2, of.dram)
    made = Breakdown(
        launch=of.launch,
        mainloop=full,
        waves=of.loop - full + of.starts,
        epilogue=of.epilogue,
        reduction=of.reduction,
        repack=of.repack,
        remainder=offer.remainder_us,
        latency=of.latency,
        shared=of.smem,
        l2=of.l2,
        dram=of.dram,
        correction=float(corrected.factor[place]),
        **{model.bound(config): of.mma},
    )
    return Prediction(float(corrected.us[place]), made.limiter, made)


def rounded(us: Array) -> Array:
    """Return times with so many binary digits as are compared."""
    digits, exponent = np.frexp(us)
    kept: Array = np.ldexp(np.round(digits * (1 << _BITS)), exponent - _BITS)
    return kept


def _estimated(model: CostModel, offer: Offer, target: Target) -> _Estimated:
    launches, problem = offer.launches, offer.problem
    usage = model.usage(problem, offer.extents, target, launches, offer.tiles)
    coefficients = _model(model, problem, target).coefficients
    return _Estimated(offer, usage, estimate(usage, coefficients))


def _model(model: CostModel, problem: Problem, target: Target) -> Model:
    # What promises bits is planned alike on all cards of a name.
    bits = problem.deterministic or problem.batch_invariant
    return model_of(model.name, model.kind(problem), target, None if bits else target.calibration)


def _corrected(model: CostModel, each: _Estimated, index: Array, target: Target) -> _Corrected:
    """Correct some candidates of an offer."""
    problem, extents, swap, _, launches, _, remainder_us = each.offer
    _, trees, offsets = _model(model, problem, target)
    some = Parts(*(us[index] for us in each.parts))
    usage = Usage(*(x[index] for x in each.usage))
    factor = np.ones(len(index))
    if trees is not None and len(index):
        asked = features(problem, extents, swap, usage, launches.take(index), some)
        factor = factors(trees, asked)
    if offsets is not None and len(index):
        factor = factor * offset_factor(offsets, launches.take(index), swap)
    us = np.maximum((some.total + remainder_us) * factor, usage.dram_us)  # what must move
    return _Corrected(each, index, factor, rounded(us))


def _ranked(
    model: CostModel,
    found: Sequence[_Estimated],
    offer: Array,
    index: Array,
    product: tuple[Problem, Extents, Target],
    most: int | None,
) -> Ranking:
    """Correct and sort candidates, each the `index`-th of an `offer`, and ask what can run."""
    target = product[-1]
    chosen = [index[offer == place] for place in range(len(found))]
    of = [_corrected(model, *x, target) for x in zip(found, chosen, strict=True) if len(x[1])]
    us = np.concatenate([each.us for each in of])
    which = np.repeat(np.arange(len(of)), [len(each.us) for each in of])
    place = np.concatenate([np.arange(len(each.us)) for each in of])
    kept: list[Candidate] = []
    refused: dict[str, list[Config]] = {}
    for at in us.argsort(kind="stable").tolist():
        if most is not None and len(kept) >= most:
            break
        corrected = of[which[at]]
        own = corrected.of.offer
        config = own.config(corrected.chosen[place[at]])
        reason = model.unsupported_reason(own.problem, config, target)
        if reason is not None:
            refused.setdefault(reason, []).append(config)
            continue
        made = _prediction(model, corrected, place[at], config, target)
        kept.append(Candidate(config, made, model.workspace(*product, config)))
    return Ranking(
        tuple(kept),
        tuple(
            Rejection(model.name, reason, configs[0], len(configs) - 1)
            for reason, configs in refused.items()
        ),
    )
