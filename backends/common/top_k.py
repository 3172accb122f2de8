"""What a backend keeps while it prices its configurations: the cheapest, and those refused."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any, Generic, TypeVar

import numpy as np

from unigemm.planning.config import Config

__all__ = ["Shortlist", "changed", "cheapest_first"]

_FIRST = 16  # prices that are sorted before all are: few are asked for, mostly

Item = TypeVar("Item")


class Shortlist(Generic[Item]):
    """The cheapest items so far, of whatever a configuration is made from later.

    Parameters
    ----------
    most
        How many to keep, and all that cost as much as the last of them; None for all.
    bar
        The price above which nothing is wanted to begin with.

    Attributes
    ----------
    bar
        The price above which nothing is kept any more.
    """

    def __init__(self, most: int | None, bar: float = inf) -> None:
        self.bar = bar
        self._most = most
        self._prices: list[float] = []
        self._kept: list[tuple[float, Item]] = []
        self._refused: list[tuple[float, str, Item]] = []

    def add(self, price: float, item: Item, reason: str | None = None) -> None:
        """Take an item, or refuse it for a reason."""
        if price > self.bar:
            return
        if reason is not None:
            self._refused.append((price, reason, item))
            return
        self._kept.append((price, item))
        if self._most is not None:
            insort(self._prices, price)
            if len(self._prices) >= self._most:
                self.bar = min(self.bar, self._prices[self._most - 1])

    def kept(self) -> list[Item]:
        """Return the cheapest items, in their order."""
        found = [entry for entry in self._kept if entry[0] <= self.bar]
        return [item for _, item in sorted(found, key=lambda entry: entry[0])]

    def refused(self) -> list[tuple[Item, str, int]]:
        """Return for each reason the cheapest item refused below the bar, and how many more."""
        found: dict[str, list[Item]] = {}
        for price, reason, item in sorted(self._refused, key=lambda entry: entry[0]):
            if price <= self.bar:
                found.setdefault(reason, []).append(item)
        return [(items[0], reason, len(items) - 1) for reason, items in found.items()]


def cheapest_first(prices: np.ndarray) -> Iterator[int]:
    """Yield where the prices are, the least first, and of equal ones that which comes first."""
    if len(prices) <= 4 * _FIRST:
        yield from prices.argsort(kind="stable").tolist()
        return
    first = prices <= np.partition(prices, _FIRST)[_FIRST]
    for some in (first, ~first):
        places = some.nonzero()[0]
        yield from places[prices[places].argsort(kind="stable")].tolist()


@lru_cache(maxsize=1 << 15)
def changed(config: Config, **parameters: Any) -> Config:
    """Return a configuration with some parameters changed; made once, since plans are kept."""
    return replace(config, **parameters)
