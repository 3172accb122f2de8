"""Grouped products at random by a seed, as layers of experts have them.

To fit to (``groups:SEED``), and to judge by (``heldout-groups:SEED``): as `bench.model_sizes` says
of single products, they share no shape.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.model_sizes import WIDTHS, is_held_out
from unigemm.problem.dtypes import DType
from unigemm.tuning.measure import Workload

__all__ = ["NAMES", "random_groups"]

#: What a fit may see, and what it may not.
NAMES = ("groups", "heldout-groups")
_ALONG = ("m", "m", "m", "k", "rows")  # how often each form is drawn
_MOST_GROUPS, _MOST_EACH = 256, 2048
_MOST_WIDTH = 14336
_MOST_BYTES = 6e9  # of a product in bfloat16
_EVEN = 0.25  # of the products whose groups need not be equal


def random_groups(name: str, seed: int, most_flops: float = math.inf) -> Iterator[Workload]:
    """Yield grouped products in bfloat16 without end.

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
        m, n, k = {"k": (k, n, 8 * total), "rows": (each, n, k)}.get(along, (total, n, k))
        work = Workload(m, n, k, DType.BFLOAT16, groups=groups, along=along)
        if is_held_out((groups, m, n, k)) != (name != NAMES[0]):
            continue
        if work.bytes > _MOST_BYTES or work.flops > most_flops:
            continue
        if not even:
            drawn = shares.multinomial(total, shares.dirichlet(np.ones(groups)))
            own = tuple((drawn * (8 if along == "k" else 1)).tolist())
            work = replace(work, each=own)
        yield work
