"""What the cost model is worth on products that it was not fitted to: ``python -m bench.regret``.

Launches of bench/data, in four folds by the products' sizes: fitted to three of them, judged by
the fourth. Of each product the pick is what has the least estimated time of all that was measured,
of one backend or of all ("auto"), and its regret is what it takes above the best. With ``--cards``
fitted to one card and judged by the other. ``--shipped`` judges the model as it is shipped, by
other files than those it was fitted to. ``--formula`` leaves the correction out. Always the same
folds and the same fit. Needs no GPU, but SciPy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from bench.command import command
from bench.fit import KINDS
from bench.fitting import Fitted, Measured, fit, measured, models
from bench.measured import Launch, launches
from unigemm.backends.common.coefficients import model_of
from unigemm.backends.common.launches import Array
from unigemm.problem.problem import Extents

__all__ = [
    "FOLDS",
    "Judged",
    "by_card",
    "by_shape",
    "joined",
    "mean",
    "regrets",
    "shipped",
    "tables",
]

FOLDS = 4
_LEAST = 4  # launches of a product: of fewer nothing can be picked
_EIGHT = 8


class Judged(NamedTuple):
    """Launches: the index of each one's product and its card, its time, and the estimated time.

    NaN where a launch was fitted to.
    """

    product: Array
    card: Array
    us: Array
    estimated: Array


def by_shape(of: Measured, folds: int = FOLDS, physics: bool = False) -> Array:
    """Return the estimated times of all launches, each by a fit to products of other sizes."""
    whose = np.array([_fold(extents) for _, extents, _ in of.names])[of.product]
    found = np.full(len(of.us), np.nan)
    for held in range(folds):
        judged = whose == held
        if judged.any():
            found[judged] = fit(of, ~judged).estimate(of, physics)[judged]
    return found


def _fold(extents: Extents) -> int:
    shape = (extents.batch, extents.m, extents.n, extents.k)
    return crc32(repr(shape).encode()) // FOLDS % FOLDS  # the remainder says what may be fitted to


def by_card(of: Measured, physics: bool = False) -> Array:
    """Return the estimated times of all launches, each by a fit to those of other cards."""
    cards = np.array([target.name for *_, target in of.names])[of.product]
    found = np.full(len(of.us), np.nan)
    for card in sorted(set(cards.tolist())):
        own = cards == card
        if not own.all():
            found[own] = fit(of, ~own).estimate(of, physics)[own]
    return found


def shipped(of: Measured, name: str, kind: str, physics: bool = False) -> Array:
    """Return the estimated times of all launches by the model as it is shipped."""
    return Fitted(*model_of(name, kind, of.names[0][2])[:2]).estimate(of, physics)


def joined(of: Mapping[str, Measured], estimated: Mapping[str, Array]) -> Judged:
    """Return the launches of some backends with their estimated times as those of one."""
    indices: dict[object, int] = {}
    product, card = [], []
    for each in of.values():
        index = np.array([indices.setdefault(name, len(indices)) for name in each.names])
        product.append(index[each.product])
        card.append(np.array([target.name for *_, target in each.names])[each.product])
    us = np.concatenate([each.us for each in of.values()])
    return Judged(
        np.concatenate(product), np.concatenate(card), us,
        np.concatenate([estimated[name] for name in of]),
    )  # fmt: skip


def regrets(of: Judged, card: str | None = None, first: int = 1) -> Array:
    """Return what the best of the first picks of each product take over the best: factors."""
    order = of.product.argsort(kind="stable")
    found = []
    for rows in np.split(order, np.bincount(of.product).cumsum()[:-1]):
        estimated = of.estimated[rows]
        if len(rows) < _LEAST or np.isnan(estimated).any() or card not in (None, of.card[rows[0]]):
            continue
        picks = rows[estimated.argsort(kind="stable")[:first]]
        found.append(of.us[picks].min() / of.us[rows].min())
    return np.array(found)


def mean(found: Array) -> float:
    """Return the geometric mean of regrets, in percent."""
    return float(100 * np.expm1(np.log(found).mean()))


def _rows(name: str, of: Judged) -> list[dict[str, object]]:
    """Return mean, 90th percentile and worst of regrets in percent, for each card."""
    found = []
    for card in sorted(set(of.card.tolist())):
        own = regrets(of, card)
        if len(own):
            p90, worst = 100 * (np.quantile(own, 0.9) - 1), 100 * (own.max() - 1)
            found.append(
                {
                    "what": name,
                    "card": card,
                    "products": len(own),
                    "mean": round(mean(own), 2),
                    "p90": round(float(p90), 1),
                    "worst": round(float(worst), 1),
                    "eight": round(mean(regrets(of, card, _EIGHT)), 2),
                }
            )
    return found


def tables(found: Sequence[Launch], only: Sequence[str] = ()) -> dict[str, dict[str, Measured]]:
    """Return the launches by kind of numbers, and by backend."""
    made: dict[str, dict[str, Measured]] = {}
    for kinds in KINDS:
        if only and kinds[0] not in only:
            continue
        for name, model in models().items():
            own = [x for x in found if x.backend == name and model.kind(x.problem) in kinds]
            if own:
                made.setdefault(kinds[0], {})[name] = measured(model, kinds, own)
    return made


def _estimated(args: argparse.Namespace, name: str, kind: str, of: Measured) -> Array:
    if args.shipped:
        return shipped(of, name, kind, args.formula)
    return by_card(of, args.formula) if args.cards else by_shape(of, args.folds, args.formula)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="*", help="of sweeps; else ours")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of numbers: bfloat16 tf32")
    parser.add_argument("--folds", type=int, default=FOLDS, help="that are judged")
    parser.add_argument("--cards", action="store_true")
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--formula", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for kind, of in tables(launches(args.files or None), args.only).items():
        estimated = {name: _estimated(args, name, kind, each) for name, each in of.items()}
        for name in of if len(of) > 1 else ():
            rows += _rows(f"{name}/{kind}", joined({name: of[name]}, estimated))
        rows += _rows(f"auto/{kind}", joined(of, estimated))
    if args.json:
        print(json.dumps(rows))
        return
    for each in rows:
        print("| " + " | ".join(map(str, each.values())) + " |")


if __name__ == "__main__":
    command(main)
