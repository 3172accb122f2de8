"""Measured launches as the cost model sees them, and its fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import NamedTuple

import numpy as np

from bench.measured import Launch
from bench.trees import boosted, joined
from unigemm.backends.common.correction import OF_PROBLEM, Trees, factors, features
from unigemm.backends.common.cost_model import Coefficients, Parts, Usage, estimate
from unigemm.backends.common.launches import Array, Launches, columns_of
from unigemm.backends.common.ranking import CostModel
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

__all__ = ["Fitted", "Measured", "fit", "measured", "models"]

_BOUNDS = {  # of a coefficient: else it stands in for another
    "overlap": (1.2, 12.0), "draw": (1e-4, 1.0), "mma": (0.8, 3.0), "dram": (0.9, 3.0),
}  # fmt: skip
# Weights fall with the loss against a product's best, to so little: of coefficients, of trees.
_OF_COEFFICIENTS, _OF_TREES = (2.0, 0.2), (6.0, 0.15)
_DRAWN = 4.0  # times the weight of launches that no model chose: they show what is bad, too
_TREES, _LEVEL_TREES = 130, 30
_SOME = 5000  # launches, drawn, by which the coefficients are fitted
_KEPT = 12  # of a product whose launches a model chose: the best, and as many of the others


class Measured(NamedTuple):
    """The launches of one backend and kind of numbers.

    Attributes
    ----------
    products
        (problem, extents, target, swapped) of each group of launches, as the kernel sees it.
    groups
        Where each of them ends.
    usage, launches, us, drawn
        Of all launches, one behind the other.
    product
        Place of each launch's product as the caller sees it, and which these are.
    names
        (problem, extents, target) by that place.
    """

    products: list[tuple[Problem, Extents, bool]]
    ends: Array
    usage: Usage
    launches: Launches
    us: Array
    drawn: Array
    product: Array
    names: list[tuple[Problem, Extents, Target]]

    @property
    def rows(self) -> list[Array]:
        """The launches of each product."""
        order = self.product.argsort(kind="stable")
        counts = np.bincount(self.product, minlength=len(self.names))
        return np.split(order, counts.cumsum()[:-1])

    @property
    def loss(self) -> Array:
        """Each launch's time over the best of its product."""
        least = np.full(len(self.names), np.inf)
        np.minimum.at(least, self.product, self.us)
        loss: Array = self.us / least[self.product]
        return loss

    def asked(self, parts: Parts) -> Array:
        """Return the features of all launches."""
        found, begin = [], 0
        for (problem, extents, swapped), end in zip(self.products, self.ends, strict=True):
            some = slice(begin, end)
            usage, launches, own = (
                type(of)(*(x[some] for x in of)) for of in (self.usage, self.launches, parts)
            )
            found.append(features(problem, extents, swapped, usage, launches, own))
            begin = end
        return np.concatenate(found, axis=1)


class Fitted(NamedTuple):
    """What is fitted to them."""

    coefficients: Coefficients
    correction: Trees | None

    def estimate(self, to: Measured, physics: bool = False) -> Array:
        """Return the estimated times of launches, corrected unless by physics alone."""
        parts = estimate(to.usage, self.coefficients)
        if physics or self.correction is None:
            return parts.total
        return parts.total * factors(self.correction, to.asked(parts))


def models() -> dict[str, CostModel]:
    """Return the cost models of the backends by name."""
    from unigemm.backends.cute_simt.candidates import MODEL as CUTE_SIMT
    from unigemm.backends.cute_wgmma.candidates import MODEL as CUTE_WGMMA
    from unigemm.backends.cutile.candidates import MODEL as CUTILE

    return {each.name: each for each in (CUTE_WGMMA, CUTE_SIMT, CUTILE)}


def measured(model: CostModel, kinds: Sequence[str], of: Sequence[Launch]) -> Measured:
    """Gather the launches of some kinds of numbers.

    Not those with remainder launches, nor what is not legal any more.
    """
    groups: dict[tuple[Problem, Extents, Target], list[Launch]] = defaultdict(list)
    for each in of:
        if (
            each.backend == model.name
            and model.kind(each.problem) in kinds
            and not each.config.remainder
            and model.unsupported_reason(
                each.config.oriented(each.problem), each.config, each.target
            )
            is None
        ):
            groups[each.problem, each.extents, each.target].append(each)
    products, usages, launches, us, drawn, product = [], [], [], [], [], []
    for place, ((problem, extents, target), every) in enumerate(groups.items()):
        for swapped in (False, True):
            some = [each for each in every if each.config.swap_ab == swapped]
            if not some:
                continue
            configs = [each.config for each in some]
            own, sizes = configs[0].oriented(problem), configs[0].oriented(extents)
            columns = columns_of(configs, model.schedules)
            used = model.usage(own, sizes, target, columns, configs)
            shape = (len(some),)
            usages.append([np.broadcast_to(np.asarray(x, float), shape) for x in used])
            launches.append(columns)
            products.append((own, sizes, swapped))
            us += [each.us for each in some]
            drawn += [each.drawn for each in some]
            product += [place] * len(some)
    return Measured(
        products,
        np.cumsum([x.size for x in launches]),
        Usage(*(np.concatenate(column) for column in zip(*usages, strict=True))),
        Launches(*(np.concatenate(column) for column in zip(*launches, strict=True))),
        np.array(us),
        np.array(drawn),
        np.array(product),
        list(groups),
    )


def fit(to: Measured, only: Array | None = None, seed: int = 0) -> Fitted:
    """Fit coefficients and correction to launches, or to those that a mask says."""
    kept = _thinned(to, np.random.default_rng(seed))
    train = (kept if only is None else kept & only).nonzero()[0]
    coefficients = _coefficients(to, train, _weights(to, *_OF_COEFFICIENTS))
    weight = _weights(to, *_OF_TREES)
    parts = estimate(to.usage, coefficients)
    left = np.log(to.us / parts.total)
    sums = np.bincount(to.product[train], weight[train], len(to.names))
    level = np.bincount(to.product[train], (left * weight)[train], len(to.names))
    level = (level / np.maximum(sums, 1e-9))[to.product]
    asked = to.asked(parts)[:, train]
    # How long a product takes is learned of the product alone, and what of its launches differs
    # by all: so that the few that are near the best are not outweighed by how products differ.
    of_level = boosted(
        asked, level[train], weight[train], trees=_LEVEL_TREES, depth=4, rate=0.2, damping=20.0,
        among=range(len(OF_PROBLEM)), seed=seed,
    )  # fmt: skip
    of_launch = boosted(
        asked, (left - level)[train], weight[train], trees=_TREES, rate=0.12, seed=seed
    )
    return Fitted(coefficients, joined(of_level, of_launch))


def _thinned(to: Measured, rng: np.random.Generator) -> Array:
    """Return which launches are fitted to: all that were drawn, and some of those that were not."""
    kept = to.drawn.copy()
    for rows in to.rows:
        chosen = rows[~to.drawn[rows]]
        order = chosen[to.us[chosen].argsort(kind="stable")]
        kept[order[:_KEPT]] = True
        kept[rng.permutation(order[_KEPT:])[:_KEPT]] = True
    return kept


def _weights(to: Measured, steep: float, least: float) -> Array:
    found: Array = np.exp(-steep * (to.loss - 1)).clip(least) * np.where(to.drawn, _DRAWN, 1.0)
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
