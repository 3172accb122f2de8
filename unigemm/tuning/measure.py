"""The one way that unigemm takes time: graph replays, inputs that outgrow the L2, medians.

A contestant is a list of calls, one for each input set; a call works on its own operands. The calls
of one contestant are captured into one CUDA graph, the contestants' graphs are replayed in turn
(A B A B ...), so that clocks and heat meet all of them alike, and each replay is timed by events.
Host time is another matter and measured apart: the device spins while a replay is being started
(with busy host cores, the time of many short calls was up to twice too long).

What depends on the array library is a `Device` (`measure_device`): `measure_torch` and
`measure_cupy` have one each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..errors import BackendUnavailable
from ..problem.dtypes import FLOAT8, DType, accumulator, output_dtypes, unit_roundoff
from ..problem.problem import Precision
from .measure_device import Call, Device

__all__ = [
    "Device",
    "Timing",
    "Workload",
    "best_device",
    "error_factor",
    "error_ratio",
    "host_us",
    "measure",
    "rotation",
]

# Relative error of one product. TF32 keeps 10 bits behind the point, and tensor cores cut the rest:
# 2**-10 for each factor. Split in two TF32 numbers, each rounded, a float32 keeps an error of
# 2**-23, and the product of the low halves, 2**-22, is left out.
_PRODUCT_ERROR: dict[Precision, float] = {
    "ieee": 0.0,
    "tf32": 2 * 2.0**-10 + 2.0**-20,
    "3xtf32": 2.0**-21,
}
# Hopper's tensor cores add float8 products with 13 bits behind the point of the largest, 32 at a
# time and four times before the sum moves to float32.
_FLOAT8_ERROR = 2.0**-11

_GRAPH_MS = 2.0  # one replay lasts at least this long, where a few hundred calls do
_MAX_CALLS = 400  # of one graph
_MAX_SETS = 200
_QUEUED_US = 50_000  # device time that one round of host timing may queue
_MAX_MEMORY = 24 << 30  # bytes of all input sets together


@dataclass(frozen=True)
class Workload:
    """One problem to measure.

    Attributes
    ----------
    m, n, k, batch
        Extents.
    dtype
        Of the inputs.
    layout
        Two letters for A and B: "n" as it is (row-major), "t" stored transposed.
    offset
        Elements that each operand starts after an aligned address.
    precision
        As in `unigemm.matmul`.
    into
        Type of the result; None for that of the inputs, or what models make of eight bits.
    """

    m: int
    n: int
    k: int
    dtype: DType = DType.FLOAT32
    layout: str = "nn"
    batch: int = 1
    offset: int = 0
    precision: Precision = "ieee"
    into: DType | None = None

    @property
    def flops(self) -> int:
        """2 L M N K."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def out_dtype(self) -> DType:
        """Type of the result."""
        if self.into is not None:
            return self.into
        offered = output_dtypes(self.dtype)
        return DType.BFLOAT16 if self.dtype in FLOAT8 else offered[0]

    @property
    def bytes(self) -> int:
        """Operands and result, once each."""
        read = (self.m * self.k + self.k * self.n) * self.dtype.itemsize
        return self.batch * (read + self.m * self.n * self.out_dtype.itemsize)

    def arrays(self, device: Device) -> tuple[Any, Any, Any]:
        """Make A, B and a poisoned D on a device."""
        lead = () if self.batch == 1 else (self.batch,)
        a = device.operand((*lead, self.m, self.k), self.dtype, self.layout[0] == "t", self.offset)
        b = device.operand((*lead, self.k, self.n), self.dtype, self.layout[1] == "t", self.offset)
        return a, b, self.result(device)

    def result(self, device: Device) -> Any:
        """Make a poisoned D on a device."""
        lead = () if self.batch == 1 else (self.batch,)
        return device.empty((*lead, self.m, self.n), self.out_dtype)

    def __str__(self) -> str:
        size = f"{self.m}x{self.n}x{self.k}"
        size = size if self.batch == 1 else f"{self.batch}x{size}"
        tail = f"+{self.offset}" if self.offset else ""
        kind = str(self.dtype) if self.precision == "ieee" else self.precision
        into = f"-{self.into}" if self.into else ""
        return f"{size}-{self.layout}-{kind}{into}{tail}"


@dataclass(frozen=True)
class Timing:
    """Time of one call on the device.

    Attributes
    ----------
    calls
        How many calls each replay has.
    taken
        What a call took in each replay, microseconds, in their order.
    """

    calls: int
    taken: tuple[float, ...]

    @property
    def us(self) -> float:
        """Median over the replays, microseconds."""
        return median(self.taken)

    @property
    def low(self) -> float:
        """Fastest replay, microseconds a call."""
        return min(self.taken)

    @property
    def high(self) -> float:
        """Slowest replay, microseconds a call."""
        return max(self.taken)

    @property
    def replays(self) -> int:
        """How many replays."""
        return len(self.taken)

    def times_slower(self, other: Timing) -> float:
        """Return how many times as long as `other` this took, measured in the same run.

        The median over the pairs of replays that followed each other: where clocks change within a
        run, both of a pair mostly have the same, while the medians of the two may have different
        ones (an H200 was seen to move between two that are a tenth apart).
        """
        return median(mine / its for mine, its in zip(self.taken, other.taken, strict=True))


def best_device(index: int = 0) -> Device:
    """Return the measuring device of PyTorch if it is installed, else of CuPy.

    Raises
    ------
    BackendUnavailable
        There is no CUDA device, or neither library.
    """
    from ..planning.target import device_count

    if index >= device_count():
        raise BackendUnavailable("measuring needs a CUDA device; there is none here")
    from importlib.util import find_spec

    if find_spec("torch") is not None:
        from .measure_torch import TorchDevice

        return TorchDevice(index)
    from .measure_cupy import CupyDevice

    return CupyDevice(index)


def rotation(size: int, l2_bytes: int) -> int:
    """Return how many input sets of `size` bytes one round needs to exceed twice the L2.

    At least 2; bounded by memory, where a set alone is far larger than the L2 anyway.
    """
    sets = max(2, math.ceil(2 * l2_bytes / max(size, 1)) + 1)
    return max(1, min(sets, _MAX_SETS, _MAX_MEMORY // max(size, 1)))


def measure(
    contestants: Mapping[str, Sequence[Call]],
    device: Device,
    *,
    budget_ms: float = 30.0,
    least_replays: int = 5,
) -> dict[str, Timing]:
    """Time contestants against each other.

    Parameters
    ----------
    contestants
        Name to calls, one call for each input set; every list is gone through in turn.
    device
        Where they run.
    budget_ms
        Device time to spend on each contestant.
    least_replays
        Replays of each contestant, however long one takes.
    """
    graphs: dict[str, tuple[Call, int]] = {}
    replays = least_replays
    for name, calls in contestants.items():
        for call in calls[:2]:
            call()
        once = max(device.seconds(calls[0]), 1e-7)
        count = max(len(calls), min(_MAX_CALLS, math.ceil(_GRAPH_MS / 1e3 / once)))
        if once * count > budget_ms / 1e3:  # long calls: a few of them outgrow any cache
            count = max(1, min(count, math.ceil(budget_ms / 1e3 / least_replays / once)))
        graphs[name] = device.capture([calls[i % len(calls)] for i in range(count)]), count
        device.seconds(graphs[name][0])
        replays = max(replays, math.ceil(budget_ms / 1e3 / max(once * count, 1e-6)))
    replays = min(replays, 50)
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(replays):
        for name, (graph, count) in graphs.items():
            taken[name].append(device.seconds(graph) * 1e6 / count)
    return {name: Timing(graphs[name][1], tuple(us)) for name, us in taken.items()}


def host_us(
    call: Call, device: Device, *, device_us: float = 0.0, calls: int = 100, rounds: int = 5
) -> float:
    """Return the host's time to start one call, microseconds: the median of a few rounds.

    Parameters
    ----------
    call
        What to start.
    device
        Its queue is emptied before each round and never gets full, so it is not waited for.
    device_us
        What one call takes there: fewer long ones are queued.
    calls, rounds
        Calls of each round at most, and rounds.
    """
    if device_us > 0:
        calls = max(3, min(calls, int(_QUEUED_US / device_us)))
    for _ in range(min(10, calls)):
        call()
    taken = []
    for _ in range(rounds):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - start) / calls * 1e6)
    device.synchronize()
    return median(taken)


def error_factor(k: int, dtype: DType, precision: Precision) -> float:
    """Return what the error of a sum of `k` products may be, as a part of |A| |B|.

    The sums: 2 (K + 8) u, with u the unit roundoff of their type. A sum of K products in any order
    has a rounding error below about K u (Higham, Accuracy and Stability of Numerical Algorithms,
    section 3.1); twice that covers a reference in the same type. Tensor cores cut where the formula
    rounds, which doubles u. To this comes the error of each product. Integers have no error.
    """
    sums = accumulator(dtype)
    if sums is DType.INT32:
        return 0.0
    cut = 2 if precision != "ieee" or dtype in FLOAT8 else 1
    product = _FLOAT8_ERROR if dtype in FLOAT8 else _PRODUCT_ERROR[precision]
    return 2 * (k + 8) * cut * unit_roundoff(sums) + product


def error_ratio(workload: Workload, device: Device, a: Any, b: Any, out: Any) -> float:
    """Return the largest error of a product as a part of its bound; above 1 it is wrong.

    The bound of an element is `error_factor` of |A| |B| plus one rounding to the output's type.
    """
    factor = error_factor(workload.k, workload.dtype, workload.precision)
    exact = workload.out_dtype is accumulator(workload.dtype)
    rounding = 0.0 if exact else 1.01 * unit_roundoff(workload.out_dtype)
    return device.worst_ratio(a, b, out, factor, rounding)
