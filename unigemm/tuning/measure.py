"""How unigemm measures: replays of CUDA graphs, inputs larger than the L2, medians.

An implementation is a list of calls, one for each set of inputs. Its calls are captured into one
CUDA graph. The graphs of all implementations are replayed in turns (A B A B ...), so that clocks
and heat affect all of them alike, and events time each replay. The device spins while a replay is
being started, because a busy host would otherwise count as device time. Host time is measured
separately.

What depends on the array library is a `Device`, see `measure_device`; `measure_torch` and
`measure_cupy` have one each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..arrays.array_spec import ArraySpec
from ..errors import BackendUnavailable
from ..problem.dtypes import (
    FLOAT8,
    DType,
    accumulator,
    output_dtypes,
    scaled_default,
    unit_roundoff,
)
from ..problem.problem import Precision
from ..problem.quantization import quantized_default
from .measure_device import Call, Device

__all__ = [
    "Device",
    "Timing",
    "Workload",
    "best_device",
    "device_through",
    "error_factor",
    "error_ratio",
    "host_us",
    "measure",
    "rotation",
]

# Relative error of one product. TF32 keeps 10 bits behind the point and tensor cores cut the rest,
# an error of 2**-10 for each factor. A float32 that is split into two rounded TF32 numbers has an
# error of 2**-23, and the product of the two low halves, 2**-22, is left out.
_PRODUCT_ERROR: dict[Precision, float] = {
    "ieee": 0.0,
    "tf32": 2 * 2.0**-10 + 2.0**-20,
    "3xtf32": 2.0**-21,
}
# Hopper's tensor cores add float8 products with 13 bits behind the point of the largest one: 32
# products at a time, four times before the sum moves to float32.
_FLOAT8_ERROR = 2.0**-11

_GRAPH_MS = 2.0  # a replay lasts at least this long, if `_MAX_CALLS` calls do
_MAX_CALLS = 400  # in one graph
_MAX_SETS = 200
_QUEUED_US = 50_000  # device time that one repetition of host timing may queue
_MAX_MEMORY = 24 << 30  # bytes of all input sets together


@dataclass(frozen=True)
class Workload:
    """One problem to measure.

    Attributes
    ----------
    m, n, k, batch
        Sizes of the product.
    dtype
        Type of the inputs.
    layout
        Two letters for A and B: "n" is row-major, "t" is stored transposed.
    offset
        Distance of each operand from an aligned address, in elements.
    precision
        As in `unigemm.matmul`.
    into
        Type of the result. None stands for that of the inputs, bfloat16 for float8, int32 for int8,
        float32 for int8 with scales; or what results are quantised to.
    arguments
        Further arguments of `unigemm.matmul` and their values: its scales, and its epilogue's. An
        `ArraySpec` describes an array.
    groups, along
        Of a grouped product: how many groups there are, and what they divide, as the options of the
        command line say it. 0 for another product.
    each
        How much each group has of what they divide; nothing where they are equal.
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
    arguments: tuple[tuple[str, Any], ...] = ()
    groups: int = 0
    along: str = "m"
    each: tuple[int, ...] = ()

    @property
    def plain(self) -> Workload:
        """The same product without an epilogue and scales."""
        if not self.arguments:
            return self
        offered = output_dtypes(self.dtype)
        into = self.into if self.into in offered else None
        return replace(self, arguments=(), into=into)

    @property
    def flops(self) -> int:
        """Floating-point operations, 2 L M N K."""
        return 2 * self.count * self.m * self.n * self.k

    @property
    def count(self) -> int:
        """How many products of M x N x K there are; 1 where groups divide one."""
        return max(self.groups, 1) if self.along == "rows" else self.batch

    @property
    def out_dtype(self) -> DType:
        """Type of the result."""
        if self.into is not None:
            return self.into
        if "quantize_out" in dict(self.arguments):
            return quantized_default(self.dtype)
        offered = output_dtypes(self.dtype)
        default = scaled_default(self.dtype)
        if default is not None and {"scale_a", "scale_b"} & dict(self.arguments).keys():
            return default
        return DType.BFLOAT16 if self.dtype in FLOAT8 else offered[0]

    @property
    def bytes(self) -> int:
        """Bytes of the operands and the result, of the product alone."""
        of_a, of_b, of_d = (
            self.groups if self.groups and self.along in stacked else self.batch
            for stacked in (("n", "rows"), ("m", "rows"), ("k", "rows"))
        )
        read = (of_a * self.m * self.k + of_b * self.k * self.n) * self.dtype.itemsize
        return read + of_d * self.m * self.n * self.out_dtype.itemsize

    def arrays(self, device: Device) -> tuple[Any, Any, Any]:
        """Make A, B and a D full of poison on a device."""
        lead = () if self.batch == 1 else (self.batch,)
        a = device.operand((*lead, self.m, self.k), self.dtype, self.layout[0] == "t", self.offset)
        b = device.operand((*lead, self.k, self.n), self.dtype, self.layout[1] == "t", self.offset)
        return a, b, self.result(device)

    def result(self, device: Device) -> Any:
        """Make a D full of poison on a device."""
        lead = () if self.batch == 1 else (self.batch,)
        return device.empty((*lead, self.m, self.n), self.out_dtype)

    def __str__(self) -> str:
        size = f"{self.m}x{self.n}x{self.k}"
        size = size if self.batch == 1 else f"{self.batch}x{size}"
        tail = f"+{self.offset}" if self.offset else ""
        kind = str(self.dtype) if self.precision == "ieee" else self.precision
        into = f"-{self.into}" if self.into else ""
        uneven = "uneven " if self.each else ""
        size += f" in {self.groups} {uneven}groups along {self.along}" if self.groups else ""
        arguments = "".join(f"+{_word(name, value)}" for name, value in self.arguments)
        return f"{size}-{self.layout}-{kind}{into}{tail}{arguments}"


def _word(name: str, value: Any) -> str:
    """Return what an argument is called in the name of a problem."""
    if name == "epilogue":
        return str(getattr(value, "__name__", name))
    if name in ("scale_a", "scale_b") and isinstance(value, ArraySpec):
        kind = "" if value.dtype is DType.FLOAT32 else f":{value.dtype}"
        return f"{name}:{'x'.join(map(str, value.shape))}{kind}"
    if name == "quantize_out":
        return f"{name}:{value if value == 'row' else 'x'.join(map(str, value))}"
    return str(value) if name in ("activation", "gate_layout") else name


@dataclass(frozen=True)
class Timing:
    """Time of one call on the device.

    Attributes
    ----------
    calls
        How many calls each replay has.
    taken
        Microseconds for one call in each replay, in their order.
    """

    calls: int
    taken: tuple[float, ...]

    @property
    def us(self) -> float:
        """Median of the replays, in microseconds for one call."""
        return median(self.taken)

    @property
    def low(self) -> float:
        """Fastest replay, in microseconds for one call."""
        return min(self.taken)

    @property
    def high(self) -> float:
        """Slowest replay, in microseconds for one call."""
        return max(self.taken)

    @property
    def replays(self) -> int:
        """Number of replays."""
        return len(self.taken)

    def times_slower(self, other: Timing) -> float:
        """Return how many times as long as `other` this took, measured in the same run.

        It is the median over pairs of replays that followed each other. Where clocks change within
        a run, the two of a pair mostly had the same clock, but the two medians may not.
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

    return device_through("torch" if find_spec("torch") is not None else "cupy", index)


def device_through(library: str, index: int) -> Device:
    """Return the measuring device of a library: "torch" or "cupy"."""
    if library == "torch":
        from .measure_torch import TorchDevice

        return TorchDevice(index)
    from .measure_cupy import CupyDevice

    return CupyDevice(index)


def rotation(size: int, l2_bytes: int) -> int:
    """Return how many sets of inputs exceed twice the L2 together.

    It is at least 2, unless memory allows only one, which is then far larger than the L2.

    Parameters
    ----------
    size
        Bytes of one set.
    l2_bytes
        Bytes of the L2.
    """
    sets = max(2, math.ceil(2 * l2_bytes / max(size, 1)) + 1)
    return max(1, min(sets, _MAX_SETS, _MAX_MEMORY // max(size, 1)))


def measure(
    implementations: Mapping[str, Sequence[Call]],
    device: Device,
    *,
    budget_ms: float = 30.0,
    least_replays: int = 5,
) -> dict[str, Timing]:
    """Time implementations against each other.

    Parameters
    ----------
    implementations
        The calls of each implementation by its name, one call for each set of inputs.
    device
        Where they run.
    budget_ms
        Device time to spend on each implementation, in milliseconds.
    least_replays
        How often each implementation is replayed, however long that takes.
    """
    graphs: dict[str, tuple[Call, int]] = {}
    replays = least_replays
    for name, calls in implementations.items():
        for call in calls[:2]:
            call()
        once = max(device.seconds(calls[0]), 1e-7)
        count = max(len(calls), min(_MAX_CALLS, math.ceil(_GRAPH_MS / 1e3 / once)))
        if once * count > budget_ms / 1e3:  # a few long calls exceed any cache
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
    call: Call, device: Device, *, device_us: float = 0.0, calls: int = 100, repetitions: int = 5
) -> float:
    """Return the host's time to start one call in microseconds, the median of some repetitions.

    Parameters
    ----------
    call
        What to start.
    device
        The device. Its queue is emptied before each repetition and never gets full, so that the
        host does not wait for it.
    device_us
        Time of one call on the device; fewer long calls are queued.
    calls, repetitions
        Most calls in one repetition, and how many repetitions.
    """
    if device_us > 0:
        calls = max(3, min(calls, int(_QUEUED_US / device_us)))
    for _ in range(min(10, calls)):
        call()
    taken = []
    for _ in range(repetitions):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - start) / calls * 1e6)
    device.synchronize()
    return median(taken)


def error_factor(k: int, dtype: DType, precision: Precision) -> float:
    """Return the largest error that a sum of `k` products may have, relative to |A| |B|.

    A sum of K products in any order has a rounding error below about K u, where u is the unit
    roundoff of its type (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). The
    bound is 2 (K + 8) u, so that it also covers a reference in the same type. Tensor cores cut
    where the formula rounds, which doubles u. The error of each product is added. Integers have no
    error.
    """
    acc = accumulator(dtype)
    if acc is DType.INT32:
        return 0.0
    cut = 2 if precision != "ieee" or dtype in FLOAT8 else 1
    product = _FLOAT8_ERROR if dtype in FLOAT8 else _PRODUCT_ERROR[precision]
    return 2 * (k + 8) * cut * unit_roundoff(acc) + product


def error_ratio(workload: Workload, device: Device, a: Any, b: Any, out: Any) -> float:
    """Return the largest error of an element relative to its bound; above 1 it is wrong.

    The bound of an element is `error_factor` of |A| |B| plus one rounding to the output's type.
    """
    factor = error_factor(workload.k, workload.dtype, workload.precision)
    exact = workload.out_dtype is accumulator(workload.dtype)
    rounding = 0.0 if exact else 1.01 * unit_roundoff(workload.out_dtype)
    return device.worst_ratio(a, b, out, factor, rounding)
