"""From candidates to a ranking: the way that all GPU backends share.

A backend draws up its candidates as columns (`Offer`), the cost model estimates all of them, and
the few that it estimates lowest are corrected, rounded and sorted. Only of those that come first
is it checked whether they can run; they become configurations.
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
from .groups import even
from .launches import Array, Launches, columns_of
from .offsets import factor as offset_factor

__all__ = ["CostModel", "Offer", "estimate_all", "rank"]

_CORRECTED = 128  # candidates of the lowest physical estimates, which may come first
_BITS = 13  # of an estimated time that are compared: libraries of mathematics differ in the last


class Offer(NamedTuple):
    """Candidates for a product, one way round.

    Attributes
    ----------
    problem, extents, swap_ab
        The product as the kernel sees it, and whether that is the transpose of the caller's.
    tiles, launches
        The candidates; `Launches.base` is the index of their tile.
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
        Names of its schedules; `Launches.schedule` is the index.
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
    least_us
        (problem, extents, target) to a lower bound of all estimated times.
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
    least_us: Callable[[Problem, Extents, Target], float] = lambda *product: 0.0


class _Estimated(NamedTuple):
    """Candidates of one offer: what they use, and their times before the correction."""

    offer: Offer
    model: Model
    usage: Usage
    parts: Parts


class _Corrected(NamedTuple):
    """Some candidates of an offer: which, what the correction multiplies by, and their times."""

    of: _Estimated
    chosen: Array
    factor: Array
    us: Array

    def prediction(self, at: int, bound: str) -> Prediction:
        """Return what the time of one is made of; the multiply-adds are called `bound`."""
        c, index = self.of.model.coefficients, self.chosen[at]
        of: Any = Parts(*(us[index].item() for us in self.of.parts))
        # The main loop as if all waves were full, and what it takes longer since they are not.
        full = overlapping(c, of.serial * of.filled, of.smem * of.filled, of.l2, of.dram)
        made = Breakdown(
            launch=of.launch,
            mainloop=full,
            waves=of.loop - full + of.starts,
            epilogue=of.epilogue,
            reduction=of.reduction,
            repack=of.repack,
            remainder=self.of.offer.remainder_us,
            latency=of.latency,
            shared=of.smem,
            l2=of.l2,
            dram=of.dram,
            correction=self.factor[at].item(),
            **{bound: of.mma},
        )
        return Prediction(self.us[at].item(), made.limiter, made)


def rank(
    model: CostModel, problem: Problem, extents: Extents, target: Target, most: int | None
) -> Ranking:
    """Return the `most` candidates that come first, or all if None, the best first.

    With them come those that would be among the first and cannot run, and why. Candidates are
    corrected and sorted some at a time, those of the least physical estimates before all others:
    which come first does not depend on how many are requested.
    """
    least_us = model.least_us(problem, extents, target)
    found = [_estimated(model, offer, target) for offer in model.offers(problem, extents, target)]
    if not found:
        return Ranking(())
    starts = np.cumsum([0, *(each.offer.launches.size for each in found)])
    us = np.concatenate([each.parts.total + each.offer.remainder_us for each in found])
    order = rounded(us).argsort(kind="stable")
    kept: list[Candidate] = []
    refused: dict[str, list[Config]] = {}
    while len(order) and len(kept) != most:
        some, order = np.sort(order[:_CORRECTED]), order[_CORRECTED:]
        cuts = some.searchsorted(starts).tolist()
        corrected = [
            _corrected(each, some[begin:end] - start, least_us)
            for each, start, begin, end in zip(found, starts, cuts, cuts[1:], strict=False)
            if begin < end
        ]
        times = [each.us.tolist() for each in corrected]
        every = [(us, x, at) for x, own in enumerate(times) for at, us in enumerate(own)]
        for _, x, at in sorted(every):  # ties go by the catalogue's order
            if len(kept) == most:
                break
            one, offer = corrected[x], corrected[x].of.offer
            config = offer.config(one.chosen[at])
            reason = model.unsupported_reason(offer.problem, config, target)
            if reason is not None:
                refused.setdefault(reason, []).append(config)
                continue
            size = model.workspace(problem, extents, target, config)
            kept.append(Candidate(config, one.prediction(at, model.bound(config)), size))
    return Ranking(
        tuple(kept),
        tuple(
            Rejection(model.name, reason, configs[0], len(configs) - 1)
            for reason, configs in refused.items()
        ),
    )


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
        least_us = model.least_us(problem, extents, target)
        corrected = _corrected(each, np.arange(len(some)), least_us)
        for at, config in enumerate(some):
            size = model.workspace(problem, extents, target, config)
            made = corrected.prediction(at, model.bound(config))
            found[config] = Candidate(config, made, size)
    return [found[config] for config in configs]


def rounded(us: Array) -> Array:
    """Return times rounded to the `_BITS` binary digits that are compared."""
    digits, exponent = np.frexp(us)
    kept: Array = np.ldexp(np.round(digits * (1 << _BITS)), exponent - _BITS)
    return kept


def _estimated(model: CostModel, offer: Offer, target: Target) -> _Estimated:
    launches, problem = offer.launches, offer.problem
    usage = model.usage(problem, offer.extents, target, launches, offer.tiles)
    # What promises bits is planned alike on all cards of a name.
    bits = problem.deterministic or problem.batch_invariant
    calibration = None if bits else target.calibration
    numbers = model_of(model.name, model.kind(problem), target, calibration)
    return _Estimated(offer, numbers, usage, estimate(usage, numbers.coefficients))


def _corrected(each: _Estimated, chosen: Array, least_us: float) -> _Corrected:
    """Correct some candidates of an offer; no time is below the least."""
    (problem, extents, swap, _, launches, _, remainder_us), numbers, usage, parts = each
    factor = np.ones(len(chosen))
    if numbers.correction is not None:
        values = features(problem, even(problem, extents), swap, usage, launches, parts, chosen)
        factor = factors(numbers.correction, values)
    if numbers.offsets is not None:
        factor = factor * offset_factor(numbers.offsets, launches.take(chosen), swap)
    us = np.maximum((parts.total[chosen] + remainder_us) * factor, least_us)
    us = np.maximum(us, usage.dram_us[chosen])  # what must move
    return _Corrected(each, chosen, factor, rounded(us))
