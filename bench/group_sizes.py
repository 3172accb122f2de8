"""Grouped products at random by a seed, as layers of experts have them.

To fit to (``groups:SEED``), and to judge by (``heldout-groups:SEED``): as `bench.model_sizes` says
of single products, they share no shape.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.model_sizes import WIDTHS, is_held_out

__all__ = ["NAMES", "GroupedSizes", "random_groups"]

#: What a fit may see, and what it may not.
NAMES = ("groups", "heldout-groups")
_ALONG = ("m", "m", "m", "k", "rows")  # how often each form is drawn
_MOST_GROUPS, _MOST_EACH = 256, 2048
_MOST_WIDTH = 14336
_MOST_BYTES = 6e9  # of bfloat16
_EVEN = 0.25  # of the products whose groups need not be equal


@dataclass(frozen=True)
class GroupedSizes:
    """One grouped product.

    Attributes
    ----------
    along
        What the groups divide, as the command line says it.
    groups
        How many there are.
    m, n, k
        Sizes of the product that they divide, or of each product of a stack.
    each
        How much of it each group has; none where groups are equal.
    """

    along: str
    groups: int
    m: int
    n: int
    k: int
    each: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many products of M x N x K there are."""
        return self.groups if self.along == "rows" else 1

    @property
    def bytes(self) -> int:
        """Least traffic in bfloat16."""
        of_a, of_b, of_d = (
            self.groups if self.along in stacked else 1
            for stacked in (("rows",), ("m", "rows"), ("k", "rows"))
        )
        return 2 * (of_a * self.m * self.k + of_b * self.n * self.k + of_d * self.m * self.n)


def random_groups(name: str, seed: int, most_flops: float = math.inf) -> Iterator[GroupedSizes]:
    """Yield grouped products without end.

    Numbers of groups, and rows for each on average, are drawn evenly by their logarithms. How the
    rows are shared out follows a Dirichlet distribution with all parameters 1: some experts get
    several times the mean, and some nothing.

    Parameters
    ----------
    name
        One of `NAMES`.
    seed
        The same one draws the same products.
    most_flops
        Operations of all groups, at most.
    """
    rng = random.Random(f"{name}:{seed}")
    shares = np.random.default_rng(rng.getrandbits(32))
    widths = [width for width in WIDTHS if width <= _MOST_WIDTH]
    while True:
        along, n, k = rng.choice(_ALONG), rng.choice(widths), rng.choice(widths)
        groups = round(math.exp(rng.uniform(math.log(4), math.log(_MOST_GROUPS))))
        mean = math.exp(rng.uniform(0.0, math.log(_MOST_EACH)))
        even = along == "rows" or rng.random() < _EVEN
        each = max(1, round(mean))
        total = each * groups if even else max(groups, round(mean * groups))
        if along == "k":
            found = GroupedSizes(along, groups, k, n, 8 * total)
        elif along == "rows":
            found = GroupedSizes(along, groups, each, n, k)
        else:
            found = GroupedSizes(along, groups, total, n, k)
        if is_held_out((groups, found.m, found.n, found.k)) != (name != NAMES[0]):
            continue
        flops = 2 * found.count * found.m * found.n * found.k
        if found.bytes > _MOST_BYTES or flops > most_flops:
            continue
        if even:
            yield found
        else:
            drawn = shares.multinomial(total, shares.dirichlet(np.ones(groups)))
            own = tuple((drawn * (8 if along == "k" else 1)).tolist())
            yield GroupedSizes(along, groups, found.m, found.n, found.k, own)
