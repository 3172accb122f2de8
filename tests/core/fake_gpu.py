"""Two CUDA devices that are not there: CuPy arrays over host memory, and a compiled backend.

The arrays are real `cupy.ndarray`s whose memory is the host's, so that all that reads them is the
code that reads them on a GPU. The backend's kernels are executed, element by element, from the
addresses and the strides that a launch gets, and every launch is recorded.
"""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import call_path
import numpy as np

from unigemm.arrays.numpy_arrays import viewer
from unigemm.cache.artifact import Artifact, KernelInfo, KernelKey
from unigemm.planning.backend import Backend
from unigemm.planning.config import Config
from unigemm.planning.prediction import Candidate, Prediction
from unigemm.problem.dtypes import DType, numpy_dtype


@dataclass(frozen=True)
class Launch:
    """One launch of a fake kernel, as the backend and the device saw it."""

    a: int
    b: int
    d: int
    workspace: int
    stream: int
    device: int


@dataclass
class Driver:
    """The current device and streams, and what was done on them."""

    device: int = 0
    streams: dict[int, int] = field(default_factory=lambda: {0: 0x100, 1: 0x200})
    capturing: bool = False
    misalign: int = 0  # bytes that new arrays lie off the allocator's alignment
    allocations: list[tuple[int, int, int]] = field(default_factory=list)  # bytes, device, stream
    switches: int = 0
    launches: list[Launch] = field(default_factory=list)
    zeroed: list[tuple[int, int]] = field(default_factory=list)  # device, stream
    of_graphs: list[list[Any]] = field(default_factory=list)  # bytes, stream, memory, launches

    @contextmanager
    def context(self, index, stream):
        self.switches += 1
        before = self.device, dict(self.streams)
        self.device = index
        if stream is not None:
            self.streams[index] = stream
        try:
            yield
        finally:
            self.device, self.streams = before

    def array(self, memory, shape, strides, offset=0, device=None):
        """Return a CuPy array over a flat NumPy array; strides and offset in elements."""
        import cupy

        size = memory.itemsize
        owned = cupy.cuda.UnownedMemory(
            memory.ctypes.data,
            memory.nbytes,
            memory,
            self.device if device is None else device,
        )
        start = cupy.cuda.MemoryPointer(owned, offset * size if math.prod(shape) else 0)
        return cupy.ndarray(shape, memory.dtype, start, tuple(s * size for s in strides))

    def ones(self, shape, dtype="float32", device=None, off=0):
        flat = np.ones(math.prod(shape) + 64 + off, dtype)
        shift = -flat.ctypes.data % 64 // flat.itemsize + off
        steps = np.ones(shape, np.int8).strides
        return self.array(flat[shift:], shape, steps, device=device)

    def empty(self, shape, dtype):
        native = np.dtype(np.uint8) if dtype is None else numpy_dtype(dtype)
        count = math.prod(shape)
        self.allocations.append((count * native.itemsize, self.device, self.streams[self.device]))
        raw = np.full(count * native.itemsize + 128, 0xFF, np.uint8)  # NaNs
        start = -raw.ctypes.data % 64 + self.misalign
        flat = raw[start : start + count * native.itemsize].view(native)
        return self.array(flat, shape, np.empty(shape, np.int8).strides)

    def graph_memory(self, size, stream):
        return self.allocated_by_graph(size, stream) if self.capturing else None

    @contextmanager
    def allocated_by_graph(self, size, stream):
        before, memory = len(self.launches), np.zeros(size, np.uint8)
        self.of_graphs.append([size, stream, memory, ()])
        yield memory.ctypes.data
        self.of_graphs[-1][3] = tuple(self.launches[before:])

    def zero(self, x):
        self.zeroed.append((self.device, self.streams[self.device]))
        host(x)[...] = 0


def host(x):
    """Return a NumPy view of the host memory of a posing CuPy array."""
    steps = tuple(s // x.dtype.itemsize for s in x.strides)
    from unigemm.arrays.operands import parse_dtype

    return viewer(x.shape, steps, parse_dtype(x.dtype))(x.data.ptr)


@dataclass
class FakeBackend(Backend):
    """Computes in host memory what it is to launch."""

    driver: Driver
    name: str = "fake"
    workspace: int = 0
    lacks: str | None = None
    refuses: str | None = None
    uncompilable: str | None = None
    us: float = 1.0
    compiled: list[Any] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    bound: list[Any] = field(default_factory=list)

    compiles = True
    takes_scales = True
    takes_epilogues = True
    takes_groups = True
    takes_fine_scales = True
    __hash__ = object.__hash__

    def missing(self):
        return self.lacks

    def compiler_missing(self):
        return self.uncompilable

    def unsupported_reason(self, problem, extents, target):
        return self.refuses

    def candidates(self, problem, extents, target):
        return [Candidate(Config((64, 64, 8)), Prediction(self.us, "fma"), self.workspace)]

    def key(self, plan):
        import msgspec

        problem = msgspec.to_builtins(plan.problem)
        return KernelKey(self.name, plan.target.arch, problem, "source", {"fake": "1"})

    def compile(self, plan):
        self.compiled.append(plan)
        return Artifact({"kernel.bin": b"kernel"}, KernelInfo(32, 0, 0, 0.0))

    def load(self, files, plan):
        assert files["kernel.bin"] == b"kernel"
        self.loaded.append(self.driver.device)
        return self.driver.device

    def bind(self, plan, gemm, kernel):
        self.bound.append((plan, gemm))
        return partial(self.launch, kernel, gemm)

    def launch(self, kernel, gemm, a, b, d, workspace, stream, *more):
        assert kernel == self.driver.device, "a kernel is launched on the device it was loaded on"
        self.driver.launches.append(Launch(a, b, d, workspace, stream, self.driver.device))
        if gemm.problem.groups is not None:
            from unigemm.backends.numpy.grouped import bind_groups

            bind_groups(gemm, (64, 64, 64))(a, b, d, workspace, stream, *more)
            return
        if gemm.problem.scales is not None and gemm.problem.scales.of_blocks:
            from unigemm.backends.numpy.product import bind_product

            bind_product(gemm, (64, 64, 128))(a, b, d, workspace, stream, *more)
            return
        first, second = (b, a) if gemm.swapped else (a, b)
        x, y, z = (
            np.broadcast_to(view, view.shape)
            for view in (
                self.stack(gemm, "a", first),
                self.stack(gemm, "b", second),
                self.stack(gemm, "d", d),
            )
        )
        kind = numpy_dtype(gemm.problem.accumulator)
        total = np.einsum("...mk,...kn->...mn", x.astype(kind), y.astype(kind))
        if gemm.problem.scaled:
            addresses, (factor, *more) = more[:2], more[2:]
            for address in filter(None, addresses):
                factor *= viewer((), (), DType.FLOAT32)(address)[()]
            total = total * kind.type(factor)
        if gemm.problem.epilogue is None:
            self.stack(gemm, "d", d)[...] = total.astype(z.dtype)
            return
        from unigemm.backends.numpy.epilogue import bind_epilogue

        everything = tuple(slice(0, extent) for extent in total.shape)
        bind_epilogue(gemm)(more)(total, everything, self.stack(gemm, "d", d))

    @staticmethod
    def stack(gemm, which, address):
        e, (l0, l1) = gemm.extents, gemm.batch
        gate = gemm.problem.epilogue.gate if gemm.problem.epilogue else ""
        of_d = e.m // (1 + (gate == "m")), e.n // (1 + (gate == "n"))
        rows, columns = {"a": (e.m, e.k), "b": (e.k, e.n), "d": of_d}[which]
        down, along, step0, step1 = getattr(gemm, f"{which}_strides")
        kind = getattr(gemm.problem, which)
        if kind.alignment > kind.dtype.itemsize:  # what the kernel was promised
            assert address % kind.alignment == 0
        return viewer((l1, l0, rows, columns), (step1, step0, down, along), kind.dtype)(address)


def everywhere(monkeypatch, name, value):
    """Replace a function in each module of the core that has imported it."""
    from unigemm import api, info  # noqa: F401
    from unigemm.planning import validation  # noqa: F401

    for path, module in list(sys.modules.items()):
        room = path.partition("unigemm.")[2]
        own = room in ("planning.registry", "planning.target")  # where these are defined
        rooms = ("api", "info", "planning.", "runtime.", "tuning.", "cli.")
        if room.startswith(rooms) and not own and name in vars(module):
            monkeypatch.setattr(module, name, value)


def install(monkeypatch, kernels=None, arch="sm_90a"):
    """Put two devices and the backend in place of the real ones; return both.

    With `kernels`, a folder, calls have a cache of their own there.
    """
    import cupy

    from unigemm import cache
    from unigemm.arrays import cupy_arrays, dlpack_arrays
    from unigemm.arrays.library import KNOWN
    from unigemm.planning import registry
    from unigemm.planning.target import named_target

    if kernels is not None:
        kept = cache.Cache(kernels, [])
        monkeypatch.setattr(cache, "default_cache", lambda: kept)
    driver = Driver()
    backend = FakeBackend(driver)
    library = replace(
        cupy_arrays.cupy_library(),
        maker=lambda shape, dtype, device: partial(driver.empty, shape, dtype),
        zero=driver.zero,
        current_device=lambda: driver.device,
        current_stream=lambda index: driver.streams[index],
        context=driver.context,
        graph_memory=driver.graph_memory,
        table={},
    )
    monkeypatch.setitem(KNOWN, cupy.ndarray, library)
    monkeypatch.setattr(cupy_arrays, "cupy_library", lambda: library)
    everywhere(monkeypatch, "device_target", lambda index: named_target(arch))
    named = {"fake": backend}
    real = registry.backend_named

    def backend_named(name):
        return named.get(name) or real(name)

    everywhere(monkeypatch, "backend_names", lambda: ("numpy", "fake"))
    everywhere(monkeypatch, "backend_named", backend_named)
    # Views of foreign arrays on a device keep the library they were first made with.
    dlpack_arrays.cuda_views.cache_clear()
    monkeypatch.delitem(KNOWN, dlpack_arrays.CudaView, raising=False)
    call_path.forget_kernels()
    return driver, backend
