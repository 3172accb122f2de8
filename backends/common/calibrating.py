"""Fit a card's adjustments of the cost model to some hundred launches: `unigemm.calibrate`.

First the coefficients, by a few steps of damped least squares. They are held to the shipped ones:
tightly where these were measured on the architecture and have a correction that was learned with
them, loosely where they were assumed. Then one factor for each property of a launch, by ridge
regression of what is left within each product. A few hundred launches change little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, fields

import numpy as np

from unigemm.planning.backend import Timed
from unigemm.planning.calibration import Adjustment, Offset
from unigemm.planning.target import Target

from .coefficients import Model, model_of, name_of
from .correction import factors
from .cost_model import Coefficients, Usage, estimate
from .launches import Array
from .measured import Measured, MeasuredLaunch, measured
from .offsets import coded, factor, offsets_of, properties
from .ranking import CostModel

__all__ = ["adjusted", "adjustment", "adjustments", "adjustments_of", "estimated"]

_LEAST_LAUNCHES, _LEAST_PRODUCTS = 24, 4  # of which anything is said
_HELD, _LOOSE = 100.0, 1.0  # how the coefficients are held, with a correction and without
_SPREAD, _NOISE = 0.3, 0.15  # usual logarithms of what coefficients change, and of what is left
_FARTHEST = 1.4  # logarithm that a coefficient changes by at most
_RIDGE = 10.0  # launches' worth of no offset
_FARTHEST_OFFSET = 0.7
_LEAST_SEEN = 3  # launches of a property
_STEPS = 12
# Weights fall with the loss against a product's best, to so little.
_OF_COEFFICIENTS, _OF_OFFSETS = (2.0, 0.2), (6.0, 0.15)


def adjustments_of(
    model: CostModel, target: Target, launches: Sequence[Timed]
) -> dict[str, Adjustment]:
    """Return the adjustments of one backend's model, see `unigemm.planning.backend.Backend`."""
    seen = [
        MeasuredLaunch(model.name, problem, extents, target, config, us, True)
        for problem, extents, config, us in launches
    ]
    return adjustments([model], seen)


def adjustments(
    models: Sequence[CostModel], launches: Sequence[MeasuredLaunch]
) -> dict[str, Adjustment]:
    """Return the adjustments that measured launches of one card say, by name.

    Parameters
    ----------
    models
        The backends' cost models.
    launches
        What was measured; kinds of numbers of which there is too little are left out.
    """
    found = {}
    for model in models:
        own = [each for each in launches if each.backend == model.name]
        named: dict[str, list[MeasuredLaunch]] = {}
        for each in own:
            name = name_of(model.name, model.kind(each.problem), each.target)
            named.setdefault(name, []).append(each)
        for name, some in named.items():
            some = [each for each in some if not each.config.remainder]
            if len(some) < _LEAST_LAUNCHES:
                continue
            kinds = sorted({model.kind(each.problem) for each in some})
            of = measured(model, kinds, some)
            if len(of.us) >= _LEAST_LAUNCHES and len(of.names) >= _LEAST_PRODUCTS:
                base = model_of(model.name, kinds[0], some[0].target)
                found[name] = adjustment(of, base)
    return found


def adjustment(of: Measured, base: Model, only: Array | None = None) -> Adjustment:
    """Return the adjustment of a model that launches say, or those that a mask says."""
    rows = np.arange(len(of.us)) if only is None else only.nonzero()[0]
    shipped = asdict(base.coefficients)
    logs, _ = _coefficients(of, base, rows)
    changed = {
        name: float(f"{np.exp(log):.4g}")
        for name, log in zip(shipped, logs, strict=True)
        if abs(log) > 1e-3
    }
    made = Adjustment(len(rows), changed)
    left = np.log(of.us / estimated(of, adjusted(base, made)))
    weight = _weight(of, *_OF_OFFSETS)
    offsets = _offsets(of, left, weight, rows)
    made = Adjustment(len(rows), changed, 0.0, offsets)
    left = np.log(of.us / estimated(of, adjusted(base, made)))[rows]
    level = (left * weight[rows]).sum() / (weight[rows].sum() + _RIDGE)
    return Adjustment(len(rows), changed, _short(level, 1.0), offsets)


def adjusted(base: Model, by: Adjustment) -> Model:
    """Return a model as an adjustment changes it."""
    values = asdict(base.coefficients)
    changed = {name: value * by.coefficients.get(name, 1.0) for name, value in values.items()}
    return Model(Coefficients(**changed), base.correction, offsets_of(by))


def estimated(of: Measured, model: Model) -> Array:
    """Return the estimated times of measured launches."""
    parts = estimate(of.usage, model.coefficients)
    us = parts.total
    if model.correction is not None:
        us = us * factors(model.correction, of.features(parts))
    if model.offsets is None:
        return us
    found, begin = us.copy(), 0
    for (_, _, swapped), end in zip(of.products, of.ends, strict=True):
        index = np.arange(begin, end)
        found[index] *= factor(model.offsets, of.launches.take(index), swapped)
        begin = end
    return found


def _weight(of: Measured, steep: float, least: float) -> Array:
    found: Array = np.exp(-steep * (of.loss - 1)).clip(least)
    return found


def _short(log: float, most: float) -> float:
    return float(f"{np.clip(log, -most, most):.4g}")


def _coefficients(of: Measured, base: Model, rows: Array) -> tuple[Array, float]:
    """Return the logarithms of the coefficients' factors, and of all estimates' factor."""
    names = [each.name for each in fields(Coefficients)]
    start = np.array(astuple(base.coefficients))
    free = start > 0  # what is assumed to cost nothing stays so
    used = Usage(*(np.asarray(column)[rows] for column in of.usage))
    parts = estimate(of.usage, base.coefficients)
    wanted = np.log(of.us)[rows]
    if base.correction is not None:
        wanted = wanted - np.log(factors(base.correction, of.features(parts)))[rows]
    weight = _weight(of, *_OF_COEFFICIENTS)[rows]
    weight = weight / np.sqrt((weight**2).mean())
    held = np.sqrt(_LOOSE if base.correction is None else _HELD) / _SPREAD
    low, high = np.full(len(names) + 1, -_FARTHEST), np.full(len(names) + 1, _FARTHEST)
    draw, overlap = names.index("draw"), names.index("overlap")
    high[draw] = min(high[draw], -np.log(max(start[draw], 1e-9)))  # a part
    low[overlap] = max(low[overlap], np.log(1.2 / start[overlap]))
    low[:-1][~free] = high[:-1][~free] = 0.0

    def left(logs: Array) -> Array:
        total = estimate(used, Coefficients(*(start * np.exp(logs[:-1])))).total
        error = (np.log(total) + logs[-1] - wanted) / _NOISE
        error = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))  # outliers count less
        found: Array = np.concatenate([error * weight, held * logs[:-1], 0.1 * logs[-1:]])
        return found

    found = _least_squares(left, np.zeros(len(names) + 1), np.minimum(low, 0), np.maximum(high, 0))
    return found[:-1], float(found[-1])


def _least_squares(left: Callable[[Array], Array], x: Array, low: Array, high: Array) -> Array:
    """Return where the squares of what is left are least, near `x` and within bounds."""
    damping, step = 1e-2, 1e-4
    now = left(x)
    best = now @ now
    for _ in range(_STEPS):
        slope = np.empty((len(now), len(x)))
        for i in range(len(x)):
            way = step if x[i] + step <= high[i] else -step
            there = x.copy()
            there[i] += way
            slope[:, i] = (left(there) - now) / way
        square, pull = slope.T @ slope, slope.T @ now
        before = best
        for _ in range(6):
            damped = square + damping * np.diag(np.diag(square) + 1e-9)
            there = np.clip(x - np.linalg.solve(damped, pull), low, high)
            then = left(there)
            if then @ then < best:
                x, now, best, damping = there, then, then @ then, damping / 5
                break
            damping *= 5
        if best > (1 - 1e-4) * before:
            break
    return x


def _offsets(of: Measured, left: Array, weight: Array, rows: Array) -> tuple[Offset, ...]:
    """Return the offsets of properties, from what is left of the logarithms within products."""
    names, columns = _columns(of, rows)
    if not names:
        return ()
    wanted = (left - _mean(of, left, weight, rows))[rows] * weight[rows]
    own = np.stack([x - _mean(of, x, weight, rows) for x in columns])[:, rows] * weight[rows]
    logs = np.linalg.solve(own @ own.T + _RIDGE * np.eye(len(names)), own @ wanted)
    return tuple(
        Offset(name, value, _short(log, _FARTHEST_OFFSET))
        for (name, value), log in zip(names, logs, strict=True)
        if abs(log) > 1e-3
    )


def _columns(of: Measured, rows: Array) -> tuple[list[tuple[str, tuple[int, ...]]], list[Array]]:
    """Return properties that some launches have, and for each which launches have it."""
    each: dict[str, list[Array]] = {}
    begin = 0
    for (_, _, swapped), end in zip(of.products, of.ends, strict=True):
        own = of.launches.take(np.arange(begin, end))
        for name, columns in properties(own, swapped).items():
            each.setdefault(name, []).append(np.stack(columns))
        begin = end
    names, found = [], []
    for name, some in each.items():
        values = np.concatenate(some, axis=1).astype(np.int64)
        codes = coded(values)
        for code in np.unique(codes[rows]):
            have = codes == code
            if _LEAST_SEEN <= have[rows].sum() < len(rows):
                names.append((name, tuple(values[:, have.argmax()].tolist())))
                found.append(have.astype(float))
    return names, found


def _mean(of: Measured, values: Array, weight: Array, rows: Array) -> Array:
    """Return the mean over the product of each launch, of some launches."""
    count = len(of.names)
    sums = np.bincount(of.product[rows], (values * weight)[rows], count)
    total = np.bincount(of.product[rows], weight[rows], count)
    found: Array = (sums / np.maximum(total, 1e-9))[of.product]
    return found
