"""What the cost model is worth on products that it was not fitted to: ``python -m bench.regret``.

Launches of bench/data, in four folds by the products' sizes: fitted to three of them, judged by
the fourth. Of each product the pick is what has the least estimated time of all that was measured
of a backend, and its regret is what it takes above the best. With ``--cards`` fitted to one card
and judged by the other. ``--shipped`` judges the model as it is shipped, by other files than those
it was fitted to. Always the same folds and the same fit. Needs no GPU, but SciPy.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.command import command
from bench.fit import KINDS
from bench.fitting import Fitted, Measured, fit, measured, models
from bench.measured import Launch, launches
from unigemm.backends.common.coefficients import model_of
from unigemm.backends.common.launches import Array

__all__ = ["FOLDS", "by_card", "by_shape", "regrets", "row"]

FOLDS = 4
_LEAST = 4  # launches of a product: of fewer nothing can be picked
_EIGHT = 8


def regrets(of: Measured, us: Array, judged: Array, first: int = 1) -> Array:
    """Return what the best of the first picks of some products take over the best: factors."""
    found = []
    for rows, wanted in zip(of.rows, judged, strict=True):
        if wanted and len(rows) >= _LEAST:
            picks = rows[us[rows].argsort(kind="stable")[:first]]
            found.append(of.us[picks].min() / of.us[rows].min())
    return np.array(found)


def by_shape(of: Measured, folds: int = FOLDS, physics: bool = False) -> Array:
    """Return the regrets of all products, each by a fit to those of other sizes."""
    shapes = [(x.batch, x.m, x.n, x.k) for _, x, _ in of.names]
    order = sorted(set(shapes))
    random.Random(0).shuffle(order)
    fold = {shape: place % FOLDS for place, shape in enumerate(order)}
    whose = np.array([fold[shape] for shape in shapes])
    found = []
    for held in range(folds):
        judged = whose == held
        fitted = fit(of, ~judged[of.product])
        found.append(regrets(of, fitted.estimate(of, physics), judged))
    return np.concatenate(found)


def by_card(of: Measured) -> dict[str, Array]:
    """Return the regrets of each card's products, by a fit to those of the others."""
    cards = np.array([target.name for *_, target in of.names])
    found = {}
    for card in sorted(set(cards.tolist())):
        others = cards != card
        if others.any():
            fitted = fit(of, others[of.product])
            found[card] = regrets(of, fitted.estimate(of), ~others)
    return found


def row(name: str, found: Array) -> dict[str, object]:
    """Return means of regrets in percent: geometric mean, 90th percentile and worst."""
    return {
        "what": name,
        "products": len(found),
        "mean": round(float(100 * np.expm1(np.log(found).mean())), 2),
        "p90": round(float(100 * (np.quantile(found, 0.9) - 1)), 1),
        "worst": round(float(100 * (found.max() - 1)), 1),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="*", help="of sweeps; else ours")
    parser.add_argument("--only", help="such as cute_wgmma/bfloat16")
    parser.add_argument("--folds", type=int, default=FOLDS, help="that are judged")
    parser.add_argument("--cards", action="store_true")
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name, of in tables(launches(args.files or None), args.only):
        if args.shipped:
            model = model_of(*name.split("/"), of.names[0][2])
            us = Fitted(*model[:2]).estimate(of)
            everything = np.ones(len(of.names), bool)
            for first, what in ((1, name), (_EIGHT, f"{name}, best of {_EIGHT}")):
                found = regrets(of, us, everything, first)
                rows += [row(what, found)] if len(found) else []
        elif args.cards:
            rows += [row(f"{name} on {card}", each) for card, each in by_card(of).items()]
        else:
            rows.append(row(name, by_shape(of, args.folds)))
    for each in () if args.json else rows:
        print("| " + " | ".join(map(str, each.values())) + " |")
    if args.json:
        print(json.dumps(rows))


def tables(found: Sequence[Launch], only: str | None = None) -> list[tuple[str, Measured]]:
    """Return the launches of each backend and kind of numbers that there are some of."""
    made = []
    for name, model in models().items():
        for kinds in KINDS:
            own = [x for x in found if x.backend == name and model.kind(x.problem) in kinds]
            if only in (None, f"{name}/{kinds[0]}") and own:
                made.append((f"{name}/{kinds[0]}", measured(model, kinds, own)))
    return made


if __name__ == "__main__":
    command(main)
