"""Measured launches as the cost model sees them, one column for each use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from .correction import features
from .cost_model import Parts, Usage
from .launches import Array, Launches, columns_of
from .ranking import CostModel

__all__ = ["Measured", "MeasuredLaunch", "measured"]


@dataclass(frozen=True)
class MeasuredLaunch:
    """A launch and its time in microseconds; `sampled` is whether no model chose it."""

    backend: str
    problem: Problem
    extents: Extents
    target: Target
    config: Config
    us: float
    sampled: bool = False


class Measured(NamedTuple):
    """The launches of one backend and kind of numbers.

    Attributes
    ----------
    products
        (problem, extents, target, swapped) of each group of launches, as the kernel sees it.
    groups
        Where each of them ends.
    usage, launches, us, sampled
        Of all launches, one behind the other.
    product
        Which of `names` each launch is a product of.
    names
        (problem, extents, target) of the products, as the caller sees them.
    """

    products: list[tuple[Problem, Extents, bool]]
    ends: Array
    usage: Usage
    launches: Launches
    us: Array
    sampled: Array
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

    def features(self, parts: Parts) -> Array:
        """Return the features of all launches."""
        found, begin = [], 0
        for (problem, extents, swapped), end in zip(self.products, self.ends, strict=True):
            of = self.usage, self.launches, parts, slice(begin, end)
            found.append(features(problem, extents, swapped, *of))
            begin = end
        return np.concatenate(found, axis=1)


def measured(model: CostModel, kinds: Sequence[str], of: Sequence[MeasuredLaunch]) -> Measured:
    """Gather the launches of some kinds of numbers.

    Those with remainder launches, and those no longer legal, are left out.
    """
    groups: dict[tuple[Problem, Extents, Target], list[MeasuredLaunch]] = defaultdict(list)
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
    products, usages, launches, us, sampled, product = [], [], [], [], [], []
    for index, ((problem, extents, target), every) in enumerate(groups.items()):
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
            sampled += [each.sampled for each in some]
            product += [index] * len(some)
    return Measured(
        products,
        np.cumsum([x.size for x in launches]),
        Usage(*(np.concatenate(column) for column in zip(*usages, strict=True))),
        Launches(*(np.concatenate(column) for column in zip(*launches, strict=True))),
        np.array(us),
        np.array(sampled),
        np.array(product),
        list(groups),
    )
