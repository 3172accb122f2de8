"""A device that is not there: while it is in use, NumPy arrays are multiplied on it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...arrays.library import KNOWN, Library
from ...arrays.numpy_arrays import array_types, numpy_library
from ...arrays.operands import Device, Operand
from ...cache.artifact import KernelKey
from ...errors import BackendUnavailable
from ...planning.plan import Plan
from ...planning.target import VIRTUAL, Target, named_target
from ...problem.dtypes import DType
from ...runtime.loader import LOADERS, forget_device
from ..core.memory import Memory, span_of
from ..ptx.faults import EmulatorError
from . import host
from .launching import Report, launch

__all__ = ["EmulatedDevice", "device"]

_NUMBERS = itertools.count(1 << 20)  # no CUDA device has such an index


@dataclass
class EmulatedDevice:
    """An emulated device, and what has run on it.

    Attributes
    ----------
    target
        The target that its kernels are planned for.
    launches
        The launch and the report of every kernel that ran.
    seed, strict, lockstep, conflicts, events, leftovers
        As in `launch`.
    """

    target: Target
    index: int
    seed: int = 0
    strict: bool = True
    lockstep: bool = True
    conflicts: bool = False
    events: bool = False
    leftovers: bool = True
    launches: list[tuple[host.Launch, Report]] = field(default_factory=list)
    _arrays: dict[int, Any] = field(default_factory=dict, repr=False)
    _written: set[int] = field(default_factory=set, repr=False)

    def see(self, x: Any, *, write: bool = False) -> Any:
        """Let kernels use an array for as long as it lives."""
        key = id(x)
        if key not in self._arrays:
            self._arrays[key] = weakref.ref(x, lambda _: self._drop(key))
        if write:
            self._written.add(key)
        return x

    def _drop(self, key: int) -> None:
        self._arrays.pop(key, None)
        self._written.discard(key)

    def memory(self) -> Memory:
        """Return the memory of all arrays that are alive: each byte once."""
        spans = []
        for key, reference in list(self._arrays.items()):
            x = reference()
            if x is not None and x.size:
                address, size = span_of(x)
                spans.append((address, address + size, key in self._written))
        merged: list[tuple[int, int, bool]] = []
        for start, end, written in sorted(spans):
            if merged and start < merged[-1][1]:
                before = merged.pop()
                start, end = before[0], max(end, before[1])
                written = written or before[2]
            merged.append((start, end, written))
        memory = Memory()
        for start, end, written in merged:
            memory.add_raw(start, end - start, start, writable=written)
        return memory

    def load(self, files: Mapping[str, bytes], plan: Plan | KernelKey) -> Callable[..., None]:
        """Return the host function of an artifact, whose launches are emulated here.

        Raises
        ------
        BackendUnavailable
            It is no CuTe kernel, or its host code cannot be mapped here.
        """
        if "kernel.ptx" not in files:
            raise BackendUnavailable(
                f"kernels of {plan.backend} hold no host code and PTX; the emulator runs those of "
                "the CuTe backends"
            )
        ptx = files["kernel.ptx"].decode()
        shared = self.target.smem_per_block
        return host.HostFunction(files["kernel.so"], ptx, shared, partial(self.run, ptx))

    def run(self, ptx: str, requested: host.Launch) -> None:
        """Run one launch."""
        report = launch(
            ptx, requested.kernel, requested.grid, requested.block, requested.cluster,
            requested.shared_bytes, requested.params, self.memory(),
            seed=self.seed + len(self.launches), strict=self.strict,
            lockstep=self.lockstep, conflicts=self.conflicts, events=self.events,
            leftovers=self.leftovers, dependent=requested.dependent,
            shared_limit=self.target.smem_per_block,
        )  # fmt: skip
        self.launches.append((requested, report))

    def library(self) -> Library:
        """Return NumPy, with its arrays on this device."""
        plain = numpy_library()
        here = Device("cuda", self.index)

        def read(x: Any) -> tuple[int, Hashable]:
            self.see(x)
            return plain.read(x)

        def operand(x: Any, name: str) -> Operand:
            self.see(x)
            return replace(plain.operand(x, name), device=here)

        def as_bytes(x: Any, name: str) -> Operand | None:
            found = plain.as_bytes(x, name)
            return found and replace(found, device=here)

        def claim(x: Any, name: str = "out") -> None:
            plain.claim(x, name)
            self.see(x, write=True)

        def maker(shape: tuple[int, ...], dtype: DType | None, device: Device) -> Callable[[], Any]:
            make = plain.maker(shape, dtype, device)
            return lambda: self.see(make(), write=True)

        return replace(
            plain,
            read=read,
            operand=operand,
            as_bytes=as_bytes,
            claim=claim,
            maker=maker,
            current_device=lambda: self.index,
            host=None,
            table={},
        )


@contextmanager
def device(
    target: str | Target,
    *,
    seed: int = 0,
    strict: bool = True,
    lockstep: bool = True,
    conflicts: bool = False,
    events: bool = False,
    leftovers: bool = True,
) -> Iterator[EmulatedDevice]:
    """Emulate a GPU: inside, NumPy arrays lie on it.

    Parameters
    ----------
    target
        An architecture such as ``"sm_90a"``, or a `Target`.
    seed, strict, lockstep, conflicts, events, leftovers
        As in `launch`. Arrivals that are left over are accepted: the ping-pong kernels of
        cute_wgmma pass a last turn that nobody takes.

    Yields
    ------
    EmulatedDevice
        Its `launches` tell what ran.

    Raises
    ------
    EmulatorError
        Another one is in use. There is one at a time in a process, for all its threads.
    BackendUnavailable
        The package that calls host code is not installed.

    Examples
    --------
    >>> with unigemm.emulator.device("sm_80") as gpu:
    ...     d = unigemm.matmul(a, b, backend="cute_simt")
    >>> gpu.launches[0][1].total  # warp instructions
    """
    reason = host.missing()
    if reason is not None:
        raise BackendUnavailable(f"the emulator cannot be used here: {reason}")
    if VIRTUAL:
        raise EmulatorError("another emulated device is in use; leave that one first")
    chosen = target if isinstance(target, Target) else named_target(target)
    if not chosen.is_gpu:
        raise EmulatorError("a GPU is emulated; name an architecture such as 'sm_90a'")
    made = EmulatedDevice(
        chosen, next(_NUMBERS), seed, strict, lockstep, conflicts, events, leftovers
    )
    VIRTUAL[made.index] = chosen
    LOADERS[made.index] = made.load
    before = {kind: KNOWN.get(kind) for kind in array_types()}
    KNOWN.update(dict.fromkeys(before, made.library()))
    try:
        yield made
    finally:
        del VIRTUAL[made.index], LOADERS[made.index]
        for kind, library in before.items():
            KNOWN[kind] = library or numpy_library()
        forget_device(made.index)
