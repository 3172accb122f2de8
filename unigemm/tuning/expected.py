"""What a product with an epilogue or scales has to be: bounds of its results, from float64.

The products of some rows are made in float64 on the device. What the epilogue makes of them is
computed in host memory as intervals (see `intervals`), which need no tolerances and excuse nothing
else.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from ..problem.canonical import result_shape
from ..problem.dtypes import DType, accumulator, numpy_dtype
from ..problem.epilogue import Epilogue, Step, arithmetic, evaluate
from ..problem.problem import Precision
from ..problem.quantization import Sharing
from ..runtime.quantized_results import SCALES
from .intervals import Interval, interval_operations, nearest
from .measure import error_factor
from .measure_device import Device
from .quantized import quantized_bounds, spread

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Bounds", "Requested", "bounds_of"]

_ELEMENTS = 1 << 20  # of a result that are checked at most, in whole rows; two rows always are
_EXACT_BYTES = 4  # of a result: for shorter ones kernels may use quick functions
_WRAPS = float(1 << 31)  # accumulators of int8
_PLAIN = Epilogue((Step("sums"),), 0)


@dataclass(frozen=True)
class Requested:
    """What is computed of a product.

    Attributes
    ----------
    epilogue
        Not in canonical form: as the caller sees rows and columns. None for none.
    names
        Names of its arrays, in its order.
    numbers
        Its numbers, in its order.
    dtypes
        Types of the results, by their names: "out" and those of arrays that are written.
    precision
        As in `unigemm.matmul`.
    of_blocks
        Whether the scales are of blocks of K.
    sharing
        What shares a scale of the result; None where it has none.
    between
        The type that the result is rounded to before it is quantised.
    """

    epilogue: Epilogue | None
    names: tuple[str, ...]
    numbers: tuple[float, ...]
    dtypes: Mapping[str, DType]
    precision: Precision
    of_blocks: bool = False
    sharing: Sharing | None = None
    between: DType = DType.FLOAT32


@dataclass(frozen=True)
class Bounds:
    """Between which numbers right results lie.

    Attributes
    ----------
    rows
        The rows of each matrix that are checked.
    results
        Lower and upper bounds of these rows, by name.
    largest
        The same of the largest magnitude ("amax_out"); None where it is not requested. All rows
        decide it, so that some of them have no upper bound.
    scaled
        Whether the result is that of `found` times its scales.
    """

    rows: tuple[int, ...]
    results: Mapping[str, tuple[np.ndarray, np.ndarray]]
    largest: tuple[float, float] | None
    scaled: bool = False

    def ratio(self, device: Device, found: Mapping[str, Any]) -> float:
        """Return the largest error of results relative to its bound; above 1 they are wrong.

        Parameters
        ----------
        device
            Where the results are.
        found
            Arrays by name.
        """
        import numpy as np

        worst = 0.0
        for name, (low, high) in self.results.items():
            whole = low.ndim < 2 or low.shape[-2] != len(self.rows)  # reduced over all rows
            values = device.values(found[name], None if whole else self.rows)
            if name == "out" and self.scaled:
                scales = device.values(found[SCALES], None if whole else self.rows)
                values = values * spread(scales, values.shape[-1])
            worst = max(worst, _ratio(values, low, high))
        if self.largest is not None:
            most = device.values(found["amax_out"], None).reshape(())
            least, highest = self.largest
            if not (np.isnan(most) and highest == np.inf):  # other rows may have one
                worst = max(worst, _ratio(most, least, highest))
        return worst


def _ratio(values: Any, low: Any, high: Any) -> float:
    """Return how far values are from the middle of their bounds, in halves of these."""
    import numpy as np

    with np.errstate(all="ignore"):
        inside = (values >= low) & (values <= high) | np.isnan(low) | np.isnan(high)
        away = np.abs(values - (low + high) / 2) / ((high - low) / 2)
        away = np.where(inside, np.nan_to_num(np.minimum(away, 1.0)), np.maximum(away, 1.0))
        away = np.where(~inside & ~(away > 1), np.inf, away)  # NaN, and what has one value
    return float(away.max(initial=0.0))


def bounds_of(
    requested: Requested, device: Device, a: Any, b: Any, arrays: Mapping[str, Any],
    scales: Sequence[Any], share: int = 1,
) -> Bounds:  # fmt: skip
    """Return the bounds of a product's results.

    Parameters
    ----------
    requested
        What is computed.
    device
        Where the arrays are.
    a, b
        The operands: matrices, or stacks of such.
    arrays
        What the epilogue reads, by name.
    scales
        Numbers, or arrays of one float32, that accumulators are multiplied by; or those of blocks
        of K of both operands.
    share
        How many products are checked together: each has 1 / `share` of the rows checked.
    """
    import numpy as np

    shape = result_shape(tuple(a.shape), tuple(b.shape))
    rows = _rows(shape, share)
    dtype = requested.dtypes["a"]
    exact, sizes = device.products(a, b, rows, scales if requested.of_blocks else ())
    epilogue = requested.epilogue or _PLAIN
    kind = arithmetic(accumulator(dtype), requested.dtypes["out"])
    quick = any(requested.dtypes[name].itemsize < _EXACT_BYTES for name in _written(requested))
    of = interval_operations(kind, quick and kind is DType.FLOAT32, epilogue.halves)
    native = numpy_dtype(kind).type

    def exactly(values: Any) -> Any:
        return np.asarray(values).astype(native).astype(np.float64)

    def constant(value: float) -> Interval:
        exact = exactly(value)
        return Interval(exact, exact, "one" if value == 1 else "")

    def read(i: int) -> Interval:
        x = arrays[requested.names[i]]
        whole = len(x.shape) < 2 or x.shape[-2] == 1
        values = exactly(device.values(x, None if whole else rows))
        return Interval(values, values)

    with np.errstate(all="ignore"):
        slack = _slack(requested, int(a.shape[-1]), sizes)
        values = Interval(exact - slack, exact + slack)
        if epilogue is not _PLAIN and accumulator(dtype) is DType.INT32 and kind is DType.FLOAT32:
            values = of["round"](values)
        for scale in () if requested.of_blocks else scales:
            one = scale if isinstance(scale, float) else device.values(scale, None).reshape(())
            values = of["mul"](values, Interval(np.float64(one), np.float64(one)))
        found = evaluate(
            epilogue, of, values, read, lambda i: constant(requested.numbers[i]), constant
        )
        results = {}
        for name, step in zip(
            _written(requested), (epilogue.result, *epilogue.stores), strict=True
        ):
            own = requested.dtypes[name]
            results[name] = nearest(found[step].low, own), nearest(found[step].high, own)
        if requested.sharing is not None:
            r = found[epilogue.result]
            low, high = nearest(r.low, requested.between), nearest(r.high, requested.between)
            both = quantized_bounds(low, high, requested.dtypes["out"], requested.sharing)
            results["out"], results[SCALES] = both
        grads = requested.names[len(epilogue.arrays) + len(epilogue.stores) :]
        for name, step in zip(grads, epilogue.totals, strict=True):
            total = _total(found[step], tuple(arrays[name].shape), shape, rows, kind)
            if total is not None:
                own = requested.dtypes[name]
                results[name] = nearest(total.low, own), nearest(total.high, own)
        largest = None
        if epilogue.largest is not None:
            most = of["abs"](found[epilogue.largest])
            highest = np.max(most.high) if len(rows) == shape[-2] else np.inf  # NaN stays
            low, high = nearest([np.max(most.low), highest], DType.FLOAT32)
            largest = float(low), float(high)
    return Bounds(rows, results, largest, requested.sharing is not None)


def _total(
    x: Interval, own: tuple[int, ...], shape: tuple[int, ...], rows: tuple[int, ...], kind: DType
) -> Interval | None:
    """Return reductions over the indices that a result of shape `own` lacks, in any order.

    None where other rows than those that are checked are among them.
    """
    import numpy as np

    missing = len(shape) - len(own)
    lacking = tuple(i for i in range(len(shape)) if i < missing or own[i - missing] == 1)
    if len(shape) - 2 in lacking and len(rows) < shape[-2]:
        return None
    some = (*shape[:-2], len(rows), shape[-1])
    low, high = np.broadcast_to(x.low, some), np.broadcast_to(x.high, some)
    slack = np.maximum(abs(low), abs(high)).sum(axis=lacking, keepdims=True)
    slack = slack * prod(shape[i] for i in lacking) * np.finfo(numpy_dtype(kind)).eps / 2
    low, high = (each.sum(axis=lacking, keepdims=True) for each in (low, high))
    kept = low.shape[missing:]
    return Interval((low - slack).reshape(kept), (high + slack).reshape(kept))


def _slack(requested: Requested, k: int, sizes: Any) -> Any:
    """Return the largest error of accumulators; NaN where they may wrap, or overflow on the way."""
    import numpy as np

    kind = accumulator(requested.dtypes["a"])
    if kind is DType.INT32:
        return np.where(sizes >= _WRAPS, np.nan, 0.0)
    limits = np.finfo(numpy_dtype(kind))
    slack = error_factor(k, requested.dtypes["a"], requested.precision) * sizes + k * float(
        limits.tiny
    )
    return np.where(sizes > float(limits.max), np.nan, slack)


def _written(requested: Requested) -> tuple[str, ...]:
    """Return the names of D and of the results stored with it, in the epilogue's order."""
    if requested.epilogue is None:
        return ("out",)
    first = len(requested.epilogue.arrays)
    return ("out", *requested.names[first : first + len(requested.epilogue.stores)])


def _rows(shape: tuple[int, ...], share: int = 1) -> tuple[int, ...]:
    """Return which rows of a result are checked: the first, the last, one of each stretch."""
    *stack, rows, columns = shape
    each = prod((*stack, columns))
    count = min(rows, max(2, _ELEMENTS // (share * max(each, 1))))
    if count == rows:
        return tuple(range(rows))
    rng = random.Random(f"{shape}")
    starts = [rows * i // count for i in range(count + 1)]
    picked = [rng.randrange(*ends) for ends in pairwise(starts)]
    return (0, *picked[1:-1], rows - 1)
