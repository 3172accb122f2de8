"""What a calibration is worth on products that it has not seen: ``python -m bench.calibration``.

The cost model is fitted to one card's launches of bench/data and judged on another card's, as it is
and calibrated by other products of that card, in four folds by their sizes. ``--unknown`` begins
with coefficients that were fitted to nothing, as of an architecture of which nothing was measured.
With files of launches, the shipped model is judged by these, and with the calibration of
``--calibration``. Needs no GPU, but SciPy where it fits.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np

from bench.command import command
from bench.fitting import fit
from bench.measured import launches
from bench.regret import FOLDS, Judged, mean, regrets, tables
from unigemm.backends.common.calibrating import adjusted, adjustment, estimated
from unigemm.backends.common.coefficients import Model, model_of, name_of
from unigemm.backends.common.cost_model import Coefficients
from unigemm.backends.common.launches import Array
from unigemm.backends.common.measured import Measured
from unigemm.errors import UnsupportedProblem
from unigemm.planning.calibration import Calibration
from unigemm.planning.calibrations import read

_LEAST = 300  # launches of other cards, without which nothing is fitted to them
_CARD = "NVIDIA H100 80GB HBM3"


def by_shape(of: Measured, card: Array, base: Model) -> tuple[Array, Array]:
    """Return the regrets of a card's products: as the model is, and calibrated.

    Parameters
    ----------
    of, card
        Launches, and which of their products are of the card.
    base
        The model.
    """
    shapes = [(x.batch, x.m, x.n, x.k) for _, x, _ in of.names]
    order = sorted(shapes[row] for row in set(card.nonzero()[0].tolist()))
    order = list(dict.fromkeys(order))
    random.Random(0).shuffle(order)
    fold = {shape: i % FOLDS for i, shape in enumerate(order)}
    whose = np.array([fold.get(shape, -1) for shape in shapes])
    plain, calibrated = estimated(of, base), []
    for held in range(FOLDS):
        judged = card & (whose == held)
        made = adjustment(of, base, (card & ~judged)[of.product])
        calibrated.append(_of(of, estimated(of, adjusted(base, made)), judged))
    return _of(of, plain, card), np.concatenate(calibrated)


def _of(of: Measured, times: Array, which: Array) -> Array:
    """Return the regrets of some products by estimated times."""
    judged = which[of.product]
    card = np.zeros(judged.sum(), "U1")
    return regrets(Judged(of.product[judged], card, of.us[judged], times[judged]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="*", help="of launches to judge by")
    parser.add_argument("--calibration", type=Path, help="a file of unigemm calibrate")
    parser.add_argument("--card", default=_CARD)
    parser.add_argument("--unknown", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of numbers: bfloat16 tf32")
    args = parser.parse_args()
    found = tables(launches(args.files or None), args.only)
    for name, of in ((f"{x}/{kind}", of) for kind, each in found.items() for x, of in each.items()):
        card = np.array([target.name == args.card for *_, target in of.names])
        if not card.any():
            continue
        if args.files:
            judged = _shipped(name, of, card, args.calibration)
        else:
            others = ~card[of.product]
            if others.sum() < _LEAST:
                continue
            base = Model(Coefficients(), None) if args.unknown else Model(*fit(of, others))
            judged = by_shape(of, card, base)
        if len(judged[0]):
            cells = (f"{mean(x):.2f} | {100 * x.max() - 100:.1f}" for x in judged)
            print(f"| {name} | {len(judged[0])} | {' | '.join(cells)} |", flush=True)


def _shipped(name: str, of: Measured, card: Array, path: Path | None) -> tuple[Array, ...]:
    """Return the regrets of a card's products by the shipped model, and calibrated by a file."""
    target = next(target for *_, target in of.names)
    backend, kind = name.split("/")
    base = model_of(backend, kind, target)
    calibration = _of_card(path, target.name)
    by = None if calibration is None else calibration.models.get(name_of(backend, kind, target))
    after = base if by is None else adjusted(base, by)
    return tuple(_of(of, estimated(of, each), card) for each in (base, after))


def _of_card(path: Path | None, name: str) -> Calibration | None:
    if path is None:
        return None
    for each in read(path):
        if each.target.name == name:
            return each.calibration
    raise UnsupportedProblem(f"{path} has no calibration of {name}; name its own file")


if __name__ == "__main__":
    command(main)
