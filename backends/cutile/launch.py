"""Loading cubins and launching their kernels through the CUDA driver.

A launch fills in addresses and the stream and calls the driver once. The buffers that it fills are
each thread's own: the driver reads them while other threads may run.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from ctypes import addressof, c_uint64
from dataclasses import dataclass
from typing import Any

from unigemm.errors import BackendUnavailable
from unigemm.planning.backend import Launcher
from unigemm.planning.cuda_driver import current_context, done
from unigemm.problem.epilogue import MOST_ARRAYS, Epilogue

from .launch_arguments import CALL_ARGUMENTS, Argument, Call, CallArgument

__all__ = ["DRIVER", "launcher", "load"]

DRIVER = 13000  # cuDriverGetVersion of CUDA 13.0 (r580), which tile kernels need (cuTile's manual)
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


def load(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Load the kernels of an artifact for the current device, by their symbols.

    Raises
    ------
    BackendUnavailable
        The driver is too old for tile kernels.
    UnigemmError
        The driver refuses a file.
    """
    from cuda.bindings import driver

    (version,) = done(driver, driver.cuDriverGetVersion(), "cuDriverGetVersion")
    if version < DRIVER:
        raise BackendUnavailable(
            f"cutile needs a driver for CUDA 13.0 (r580) and this one is for "
            f"{version // 1000}.{version % 1000 // 10}; update it, or name another backend"
        )
    current_context()
    found = {}
    for name, image in files.items():
        symbol, _, kind = name.rpartition(".")
        if kind != "cubin":
            continue
        # Never unloaded: functions live as long as the process.
        (library,) = done(
            driver, driver.cuLibraryLoadData(image, [], [], 0, [], [], 0), "cuLibraryLoadData"
        )
        (kernel,) = done(
            driver, driver.cuLibraryGetKernel(library, symbol.encode()), "cuLibraryGetKernel"
        )
        # Loads it now rather than at the first launch, which may be captured into a graph.
        done(driver, driver.cuKernelGetFunction(kernel), "cuKernelGetFunction")
        found[symbol] = kernel
    return found


@dataclass(frozen=True)
class Launch:
    """A launch whose buffers a thread fills in.

    `per_call` are (index of the argument, index in `CALL_ARGUMENTS`, offset).
    """

    config: Any
    function: Any
    values: Any
    pointers: Any
    per_call: tuple[tuple[int, int, int], ...]


def _bits(argument: Argument) -> int:
    """Return what stands for an argument until a call brings it, as an unsigned number."""
    if isinstance(argument, CallArgument):
        return 0
    return (argument if isinstance(argument, int) else argument.packed) & (2**64 - 1)


def _prepare(call: Call, function: Any, overlap: bool) -> Launch:
    """Lay a call's arguments out, each in eight bytes of its own, low bytes first."""
    from cuda.bindings import driver

    count = len(call.arguments)
    values = (c_uint64 * count)(*(_bits(x) for x in call.arguments))
    start = addressof(values)
    pointers = (c_uint64 * count)(*(start + 8 * i for i in range(count)))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = call.blocks, 1, 1
    config.blockDimX = config.blockDimY = config.blockDimZ = 1  # a tile block counts as one thread
    if overlap:
        attribute = driver.CUlaunchAttribute()
        kind = driver.CUlaunchAttributeID
        attribute.id = kind.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs = [attribute]
        config.numAttrs = 1
    per_call = tuple(
        (slot, CALL_ARGUMENTS.index(x.name), x.offset)
        for slot, x in enumerate(call.arguments)
        if isinstance(x, CallArgument)
    )
    return Launch(config, function, values, pointers, per_call)


class _Prepared(threading.local):
    """The launches of a product, laid out anew for each thread that calls."""

    def __init__(self, calls: Sequence[Call], kernels: Mapping[str, Any], overlap: bool) -> None:
        made = [_prepare(call, kernels[call.symbol], overlap) for call in calls]
        self.launches = [
            (x.config, x.function, addressof(x.pointers), x.values, x.per_call) for x in made
        ]
        self.kept = made
        self.stream = 0  # that of a new configuration

    def to(self, stream: int) -> None:
        """Send the launches to a stream."""
        for config, *_ in self.launches:
            config.hStream = stream
        self.stream = stream


def launcher(
    calls: Sequence[Call],
    kernels: Mapping[str, Any],
    *,
    swapped: bool,
    overlap: bool,
    scaled: bool = False,
    epilogue: Epilogue | None = None,
    groups: int = 0,
) -> Launcher:
    """Return what launches a product.

    Parameters
    ----------
    calls
        In the order of the stream.
    kernels
        Loaded functions, by symbol.
    swapped
        The kernel's A is the caller's b.
    overlap
        Let each kernel begin while the one before it ends.
    scaled, epilogue
        Of the problem: what a launch brings after the workspace and the stream.
    groups
        How many there are, of which a launch brings the ends; 0 for another product.
    """
    from cuda.bindings import driver

    prepared = _Prepared(calls, kernels, overlap)
    start = driver.cuLaunchKernelEx

    def run(brought: tuple[int, ...], stream: int) -> None:
        if stream != prepared.stream:
            prepared.to(stream)
        for config, function, pointers, values, per_call in prepared.launches:
            for slot, index, offset in per_call:
                values[slot] = brought[index] + offset
            status = start(config, function, pointers, 0)
            if status[0] == _NO_CONTEXT:  # the thread has used no CUDA yet
                current_context()
                status = start(config, function, pointers, 0)
            if status[0]:
                done(driver, status, "cuLaunchKernelEx")

    def launch(a: int, b: int, d: int, workspace: int, stream: int, *scales: float) -> None:
        if swapped:
            a, b = b, a
        if not scales:
            run((a, b, d, workspace), stream)
            return
        run((a, b, d, workspace, *_of_scales(scales)), stream)

    if epilogue is None and not groups:
        return launch
    arrays = 0 if epilogue is None else len(epilogue.aux)
    largest = epilogue is not None and epilogue.largest is not None
    first = 3 if scaled else 0
    unused, behind = (0,) * (MOST_ARRAYS - arrays), first + arrays
    spare = (0,) * (MOST_ARRAYS - (0 if epilogue is None else epilogue.numbers))

    def launch_with(a: int, b: int, d: int, workspace: int, stream: int, *more: float) -> None:
        if swapped:
            a, b = b, a
        own, counts = [*more], (1, 1)
        of_groups: tuple[int, ...] = ()
        if groups:
            ends = int(own.pop())
            steps = (int(own.pop(-2)), int(own.pop())) if scaled else (0, 0)
            counts = (groups if steps[0] else 1, groups if steps[1] else 1)
            of_groups = (*spare, ends, *steps)
        scales = _of_scales(own, counts) if scaled else (0,) * 5
        at = int(own[behind]) if largest else 0
        aux = (*map(int, own[first:behind]), *unused)
        numbers = map(_float_bits, own[behind + largest :])
        run((a, b, d, workspace, *scales, at, *aux, *numbers, *of_groups), stream)

    return launch_with


def _of_scales(scales: Sequence[float], counts: tuple[int, int] = (1, 1)) -> tuple[int, ...]:
    """Return the addresses of scales, how many there are (or 0), and the bits of the factor."""
    at_a, at_b = int(scales[0]), int(scales[1])
    count_a, count_b = counts
    return at_a, at_b, count_a * (at_a != 0), count_b * (at_b != 0), _float_bits(scales[2])


def _float_bits(number: float) -> int:
    """Return a float64's bits as an unsigned number."""
    return int.from_bytes(struct.pack("<d", number), "little")
