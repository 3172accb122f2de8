"""From a plan to a loaded kernel, compiled or from the cache; once for each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailable, CompilationError, UnigemmError
from ..planning.backend import Backend, Launcher
from ..planning.config import Config
from ..planning.plan import Plan
from ..planning.registry import backend_named, compiler_missing_of
from ..planning.target import Target
from ..problem.canonical import Gemm
from ..problem.problem import Extents, Problem
from ..support.forks import Lock, held_back
from ..support.log import LOG, watch
from .dump import dump
from .rounding_kernels import RoundingKernel, second_passes_of

if TYPE_CHECKING:
    from ..cache import Cache, Entry
    from ..cache.artifact import Artifact, KernelKey
from ..planning.select import kernel_missing, usable_backend

__all__ = ["LOADERS", "RECORDERS", "forget_device", "kernel_entry"]


def kernel_entry(
    plan: Plan, cache: Cache | None = None, compile: Callable[[Plan], Artifact] | None = None
) -> Entry | None:
    """Return a plan's kernel in the cache, after compiling it if needed; None on the host.

    Parameters
    ----------
    plan
        The plan.
    cache
        Where it is kept; by default in the process's own cache.
    compile
        Compiles it; by default its backend does, in this process.

    Raises
    ------
    BackendUnavailable
        The plan's backend cannot be used here.
    CompilationError
        The kernel does not compile.
    """
    backend = usable_backend(plan.backend)
    if not backend.compiles:
        return None
    if cache is None:
        from ..cache import default_cache

        cache = default_cache()
    for second_pass in second_passes_of(plan):
        second_pass.entry(cache)
    return cache.get_or_compile(backend.key(plan), lambda: _compiled(backend, plan, compile))


_loaded: dict[tuple[str, str, int], object] = {}

_loading: dict[tuple[str, str, int], Lock] = {}


@lru_cache(maxsize=1024)
def _digest(backend: str, problem: Problem, config: Config, target: Target) -> str:
    """Return the digest of a kernel's key; it does not depend on the sizes."""
    plan = Plan(backend, config, problem, Extents(1, 1, 1), target)
    return backend_named(backend).key(plan).digest


def _launcher(plan: Plan, gemm: Gemm, device: int) -> Launcher:
    """Return the bound kernel of a plan, loaded once for each device."""
    # A launcher computes one product; `_each_launch` gives it the addresses of the others.
    if gemm.offsets != ((0, 0, 0),):
        gemm = replace(gemm, offsets=((0, 0, 0),), aux_offsets=((0,) * len(gemm.aux_strides),))
    backend = usable_backend(plan.backend)
    if not backend.compiles:
        dump(plan, "", {})
        return backend.bind(plan, gemm, None)
    for each in tuple(RECORDERS):
        each(plan)
    key = (plan.backend, _digest(plan.backend, plan.problem, plan.config, plan.target), device)
    with _loading.setdefault(key, Lock()):
        kernel = _loaded.get(key)  # products of other sizes do not read the disk
        if kernel is None:
            kernel = _loaded[key] = _load(backend, plan, device)
        else:
            dump(plan, key[1], {})
    return backend.bind(plan, gemm, kernel)


#: Called with each kernel that a call needs, a product's by its plan; see `record`.
RECORDERS: list[Callable[[Plan | RoundingKernel], object]] = []

#: Loaders of emulated devices, by index (see `unigemm.emulator`).
LOADERS: dict[int, Callable[[Mapping[str, bytes], Plan | KernelKey], object]] = {}


def _load(backend: Backend, plan: Plan, device: int = 0) -> object:
    """Load a plan's kernel, from the bytes that the cache has checked."""
    from ..cache import default_cache

    key = backend.key(plan)
    files = default_cache().contents(key, lambda: _compiled(backend, plan))
    kernel = _loaded_from(backend.load, files, plan, key, device)
    dump(plan, key.digest, files)
    return kernel


def _loaded_from(
    load: Callable[[Any, Any], object], files: Any, plan: Plan | KernelKey, key: KernelKey,
    device: int,
) -> object:  # fmt: skip
    """Load a kernel while forks wait; whatever goes wrong is a typed error."""
    try:
        with watch() as took, held_back():
            kernel = LOADERS.get(device, load)(files, plan)
        LOG.info("loaded %s %s on cuda:%d in %s", key.backend, key.digest[:16], device, took)
        return kernel
    except (UnigemmError, MemoryError):
        raise
    except Exception as error:
        raise BackendUnavailable(
            f"the kernel of backend {plan.backend!r} does not load here ({type(error).__name__}: "
            f"{error}); name another backend="
        ) from error


def _compiled(
    backend: Backend, plan: Plan, compile: Callable[[Plan], Artifact] | None = None
) -> Artifact:
    """Compile a plan's kernel; whatever goes wrong is a typed error."""
    if compiler_missing_of(backend) is not None:
        raise kernel_missing(plan)
    try:
        return (compile or backend.compile)(plan)
    except (UnigemmError, MemoryError):
        raise
    except Exception as error:
        raise CompilationError(
            f"backend {plan.backend!r} did not compile {plan.config} ({type(error).__name__}: "
            f"{error}); name another backend="
        ) from error


def _each_launch(launch: Launcher, gemm: Gemm) -> Launcher:
    """Return a launcher that also covers the batch dimensions that one launch does not."""
    if gemm.offsets == ((0, 0, 0),):
        return launch
    moves = []
    kinds = gemm.problem.epilogue.aux if gemm.problem.epilogue else ()
    sizes = [x.matrix.dtype.itemsize for x in kinds]
    offsets = gemm.aux_offsets or ((),) * len(gemm.offsets)
    matrices = gemm.problem.a, gemm.problem.b, gemm.problem.d
    of_a, of_b, of_d = (matrix.dtype.itemsize for matrix in matrices)
    for (first, second, d), aux in zip(gemm.offsets, offsets, strict=True):
        to_a, to_b = first * of_a, second * of_b
        a, b = (to_b, to_a) if gemm.swapped else (to_a, to_b)
        steps = tuple(at * size for at, size in zip(aux, sizes, strict=True))
        moves.append((a, b, d * of_d, steps))
    of_scales = 3 if gemm.problem.scaled else 0
    behind = of_scales + len(kinds)

    def launch_each(a: int, b: int, d: int, workspace: int, stream: int, *more: Any) -> None:
        for to_a, to_b, to_d, steps in moves:
            aux = (at + step for at, step in zip(more[of_scales:behind], steps, strict=True))
            rest = (*more[:of_scales], *aux, *more[behind:])
            launch(a + to_a, b + to_b, d + to_d, workspace, stream, *rest)

    return launch_each


def forget_device(index: int) -> None:
    """Drop the loaded kernels of one device; bound calls stay."""
    for key in [key for key in _loaded if key[2] == index]:
        del _loaded[key]
