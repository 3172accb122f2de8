"""Measured launches as the cost model sees them, and its fit."""

from __future__ import annotations

from dataclasses import astuple, fields, replace
from typing import NamedTuple

import numpy as np

from bench.trees import boosted, joined
from unigemm.backends.common.correction import OF_PROBLEM, Trees, factors
from unigemm.backends.common.cost_model import Coefficients, Parts, Usage, estimate
from unigemm.backends.common.launches import Array
from unigemm.backends.common.measured import Measured, measured
from unigemm.backends.common.ranking import CostModel

__all__ = ["Fitted", "Measured", "fit", "measured", "models"]

_BOUNDS = {  # of a coefficient: else it stands in for another
    "overlap": (1.2, 12.0), "draw": (1e-4, 1.0), "mma": (0.8, 3.0), "dram": (0.9, 3.0),
}  # fmt: skip
# Weights fall with the loss against a product's best, to so little: of coefficients, of trees.
_OF_COEFFICIENTS, _OF_TREES = (2.0, 0.2), (2.0, 0.3)
_OF_SAMPLED = 4.0  # times the weight of launches that no model chose: they show what is bad, too
_TREES, _LEVEL_TREES = 300, 40
_SOME = 5000  # launches, sampled, by which the coefficients are fitted
_KEPT = 12  # of a product whose launches a model chose: the best, and the same number of the others


class Fitted(NamedTuple):
    """What is fitted to them."""

    coefficients: Coefficients
    correction: Trees | None

    def estimate(self, to: Measured, physics: bool = False) -> Array:
        """Return the estimated times of launches, corrected unless by physics alone."""
        parts = estimate(to.usage, self.coefficients)
        if physics or self.correction is None:
            return parts.total
        return parts.total * factors(self.correction, to.features(parts))


def models() -> dict[str, CostModel]:
    """Return the cost models of the backends by name."""
    from unigemm.backends.cute_simt.candidates import MODEL as CUTE_SIMT
    from unigemm.backends.cute_tcgen05.candidates import MODEL as CUTE_TCGEN05
    from unigemm.backends.cute_wgmma.candidates import MODEL as CUTE_WGMMA
    from unigemm.backends.cutile.candidates import MODEL as CUTILE

    return {each.name: each for each in (CUTE_WGMMA, CUTE_TCGEN05, CUTE_SIMT, CUTILE)}


def fit(to: Measured, only: Array | None = None, seed: int = 0, fits: int = 1) -> Fitted:
    """Fit coefficients and correction to launches, or to those that a mask says.

    The correction is the mean of `fits` by seeds of their own: one alone loses by chance on some
    products what another gains.
    """
    seeds = range(seed * fits, (seed + 1) * fits)
    trained = [_trained(to, only, each) for each in seeds]
    coefficients = _coefficients(to, trained[0], _weights(to, *_OF_COEFFICIENTS))
    parts = estimate(to.usage, coefficients)
    found = [_grown(to, train, parts, each) for train, each in zip(trained, seeds, strict=True)]
    mean = [replace(x, leaves=x.leaves / np.float32(fits)) for pair in found for x in pair]
    return Fitted(coefficients, joined(*mean))


def _trained(to: Measured, only: Array | None, seed: int) -> Array:
    """Return the launches that a fit sees, of those that a mask says."""
    kept = _thinned(to, np.random.default_rng(seed))
    return (kept if only is None else kept & only).nonzero()[0]


def _grown(to: Measured, train: Array, parts: Parts, seed: int) -> tuple[Trees, Trees]:
    """Grow trees on what estimates leave of some launches' times."""
    weight = _weights(to, *_OF_TREES)
    left = np.log(to.us / parts.total)
    weights = np.bincount(to.product[train], weight[train], len(to.names))
    level = np.bincount(to.product[train], (left * weight)[train], len(to.names))
    level = (level / np.maximum(weights, 1e-9))[to.product]
    values = to.features(parts)[:, train]
    # How long a product takes is learned of the product alone, and what of its launches differs
    # by all: so that the few that are near the best are not outweighed by how products differ.
    of_level = boosted(
        values, level[train], weight[train], trees=_LEVEL_TREES, depth=4, rate=0.2, damping=20.0,
        among=range(len(OF_PROBLEM)), seed=seed,
    )  # fmt: skip
    of_launch = boosted(
        values, (left - level)[train], weight[train], trees=_TREES, rate=0.12, seed=seed
    )
    return of_level, of_launch


def _thinned(to: Measured, rng: np.random.Generator) -> Array:
    """Return which launches are fitted to: all that were sampled, and some others."""
    kept = to.sampled.copy()
    for rows in to.rows:
        chosen = rows[~to.sampled[rows]]
        order = chosen[to.us[chosen].argsort(kind="stable")]
        kept[order[:_KEPT]] = True
        kept[rng.permutation(order[_KEPT:])[:_KEPT]] = True
    return kept


def _weights(to: Measured, steep: float, least: float) -> Array:
    times = np.where(to.sampled, _OF_SAMPLED, 1.0)
    found: Array = np.exp(-steep * (to.loss - 1)).clip(least) * times
    return found


def _coefficients(to: Measured, train: Array, weight: Array) -> Coefficients:
    """Fit the coefficients by least squares of the logarithms."""
    from scipy.optimize import least_squares

    names = [each.name for each in fields(Coefficients)]
    start = np.log(astuple(Coefficients()))
    low, high = np.full(len(names), -9.0), np.full(len(names), 4.0)
    for name, bounds in _BOUNDS.items():
        low[names.index(name)], high[names.index(name)] = np.log(bounds)
    if len(train) > _SOME:
        train = np.random.default_rng(0).choice(train, _SOME, replace=False)
    used = Usage(*(column[train] for column in to.usage))
    wanted, near = np.log(to.us[train]), weight[train]
    pull = 1e-3 * len(train) ** 0.5  # what the data do not tell stays where it began

    def left(logs: Array) -> Array:
        total = estimate(used, Coefficients(*np.exp(logs))).total
        found: Array = np.concatenate([(np.log(total) - wanted) * near, pull * (logs - start)])
        return found

    found = least_squares(left, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=60)
    return Coefficients(*(float(f"{x:.4g}") for x in np.exp(found.x)))
