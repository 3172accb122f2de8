"""From a call to a bound launcher: all that happens once for each kind of call.

`bind` checks the call, plans it, gets the kernel from the cache and binds it to the extents and
strides; `unigemm.matmul` keeps the result and from then on only looks it up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import env, tuning
from .arrays.libraries import KNOWN, Library, host_view
from .arrays.numpy_arrays import viewer, without_errors
from .arrays.numpy_ufunc import CASTINGS, HostProduct, is_for_kernels, numpy_product
from .arrays.operands import (
    HOST,
    Device,
    HostArray,
    Operand,
    compact_strides,
    one_device,
    output_dtype,
    parse_dtype,
)
from .backend import (
    Backend,
    CompilingBackend,
    HostBackend,
    Launcher,
    RehearsingBackend,
    compiles,
)
from .blocks import elements_of, refuse_elements
from .dtypes import FLOAT8, DType, numpy_dtype
from .dump import dump
from .errors import (
    BackendUnavailable,
    BackendWarning,
    CacheError,
    CompilationError,
    DeviceMismatch,
    OverlapError,
    ShapeMismatch,
    TuningWarning,
    UnigemmError,
    UnsupportedDtype,
    UnsupportedProblem,
)
from .forks import Lock, held_back
from .gemm import Gemm, Layout, canonical, result_shape
from .log import LOG, attach, is_info, watch
from .overlap import may_share
from .planner import KEPT, choose, invariant_extents, moved, resized, size_classes
from .plans import Config, Plan
from .problem import PRECISIONS, Extents, Problem
from .registry import backend_named, backend_names, compiler_missing_of, missing_of
from .target import CPU, Target, device_target
from .vetting import checked, on_device, typed

if TYPE_CHECKING:
    from .artifact import Artifact
    from .cache import Cache, Entry
    from .tuning import Tuned

__all__ = [
    "Bound",
    "Options",
    "bind",
    "blaming",
    "check_options",
    "describe",
    "forget",
    "forget_device",
    "host_gemm",
    "host_product",
    "kernel_entry",
    "launch_apart",
    "plan_gemm",
    "refuse_overlap",
    "replan",
    "shares",
    "stated",
    "target_of",
    "usable_backend",
    "with_named_backend",
]


@dataclass(frozen=True)
class Options:
    """What a call asks for beside its arrays, as in `unigemm.matmul`."""

    dtype: Any = None
    precision: Any = "ieee"
    deterministic: bool = False
    backend: str = "auto"
    plan: Plan | None = None
    scaled: bool = False
    batch_invariant: bool = False
    blocks: tuple[Layout, Layout] | None = None  # of the scales of blocks
    casting: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A call whose checks, plan and kernel are done with.

    Attributes
    ----------
    make
        Makes a new result array on the current device and stream.
    scalar
        The result is 0-dimensional.
    launch
        Addresses of a, b, d, of the workspace, and the stream; None where nothing is to be
        multiplied.
    fill
        The result is all zeros (K = 0).
    device
        Index of the CUDA device, -1 for the host.
    workspace
        Makes the workspace, None where there is none.
    a_span, b_span, d_span
        Bytes touched, from each array's address; none where shared memory is no matter.
    plan
        Why this kernel; None where nothing is to be multiplied, or NumPy's own matmul does it.
    options
        What the call asked for. Holding the caller's plan keeps its id, which is in the key.
    kept
        Calls with the same key are the same; else each one is bound anew.
    """

    make: Callable[[], Any]
    scalar: bool
    launch: Launcher | None
    fill: bool
    device: int
    workspace: Callable[[], Any] | None
    a_span: tuple[int, int]
    b_span: tuple[int, int]
    d_span: tuple[int, int]
    plan: Plan | None
    options: Options
    kept: bool = True


def describe(
    a: Operand | Layout,
    b: Operand | Layout,
    out: Operand | Layout | None,
    options: Options,
    *,
    on_host: bool = False,
) -> Layout:
    """Check a call's shapes, dtypes and precision, and return the layout of its result.

    Raises
    ------
    ShapeMismatch
        The shapes do not fit, or `out` has another shape than the product.
    UnsupportedDtype
        The dtypes are mixed, or the output's is not offered.
    UnsupportedProblem
        A precision other than "ieee" for inputs that are not float32, or scales for inputs that
        are not float8.
    """
    asked = out.dtype if options.dtype is None and out is not None else options.dtype
    dtype = output_dtype(asked, a, b, on_host=on_host)
    if options.precision != "ieee" and a.dtype is not DType.FLOAT32:
        raise UnsupportedProblem(
            f"precision {options.precision!r} is for float32 inputs and these are {a.dtype}; "
            "leave precision out"
        )
    refuse_elements(a.dtype, options.blocks[0].dtype if options.blocks else None)
    if options.scaled and not options.blocks and a.dtype not in FLOAT8:
        raise UnsupportedProblem(
            f"scale_a and scale_b are for float8 inputs and these are {a.dtype}; multiply the "
            "result, or an input"
        )
    shape = result_shape(a.shape, b.shape)
    if out is None:
        return Layout(shape, compact_strides(shape), dtype)
    if out.shape != shape:
        raise ShapeMismatch(f"out has shape {out.shape}; the product has shape {shape}")
    if out.dtype is not dtype:
        raise UnsupportedDtype(f"out is {out.dtype} and dtype= asks for {dtype}; make them agree")
    return out.layout if isinstance(out, Operand) else out


def stated(a: Layout, b: Layout, d: Layout, options: Options) -> Gemm:
    """State a call that was described in canonical form."""
    return canonical(
        a,
        b,
        d,
        precision=options.precision,
        deterministic=bool(options.deterministic),
        scaled=options.scaled,
        batch_invariant=bool(options.batch_invariant),
        scales=options.blocks,
    )


def check_options(options: Options) -> None:
    """Refuse options that no call can have.

    Raises
    ------
    UnsupportedProblem
        An unknown precision or casting rule, or a plan that is none.
    BackendUnavailable
        There is no backend of that name.
    """
    if options.precision not in PRECISIONS:
        raise UnsupportedProblem(
            f"precision {options.precision!r} is not known; use one of {', '.join(PRECISIONS)}"
        )
    names = backend_names()
    if options.backend != "auto" and options.backend not in names:
        raise BackendUnavailable(
            f"there is no backend {options.backend!r}; use auto or one of {', '.join(names)}"
        )
    if options.casting is not None and options.casting not in CASTINGS:
        raise UnsupportedProblem(
            f"casting {options.casting!r} is not known; use one of {', '.join(CASTINGS)}"
        )
    if options.plan is not None:
        if not isinstance(options.plan, Plan):
            raise UnsupportedProblem(
                f"plan= is a {type(options.plan).__name__}; pass what unigemm.plan() returns"
            )
        if options.backend not in ("auto", options.plan.backend):
            raise UnsupportedProblem(
                f"the plan is for backend {options.plan.backend!r} and backend= asks for "
                f"{options.backend!r}; drop one of them"
            )


def with_named_backend(options: Options) -> Options:
    """Return options with the backend that ``UNIGEMM_BACKEND`` names in place of "auto".

    A plan that the caller gives has a backend.

    Raises
    ------
    BackendUnavailable
        There is no backend of that name.
    """
    if options.backend != "auto" or options.plan is not None:
        return options
    name = env.backend()
    if name != "auto" and name not in (names := backend_names()):
        raise BackendUnavailable(
            f"UNIGEMM_BACKEND: there is no backend {name!r}; use auto or one of {', '.join(names)}"
        )
    return replace(options, backend=name)


@contextmanager
def blaming(asked: Options, options: Options) -> Iterator[None]:
    """Name ``UNIGEMM_BACKEND`` in errors of a call whose backend it chose."""
    try:
        yield
    except UnigemmError as error:
        if options.backend == asked.backend:
            raise
        raise type(error)(f"UNIGEMM_BACKEND is {options.backend}: {error}") from error


def target_of(device: Device) -> Target:
    """Return what kernels for a device are planned for."""
    return CPU if device.kind == "cpu" else device_target(device.index)


def usable_backend(name: str) -> Backend:
    """Return a backend that can be used here.

    Raises
    ------
    BackendUnavailable
        Something is missing: what it is and how to get it.
    """
    backend = backend_named(name)
    missing = missing_of(backend)
    if missing is not None:
        raise BackendUnavailable(f"backend {name!r} cannot be used here: {missing}")
    return backend


def plan_gemm(
    gemm: Gemm,
    target: Target,
    backend: str = "auto",
    *,
    usable: bool,
    keep: int = KEPT,
    tuned: bool = True,
) -> Plan:
    """Plan a product.

    Parameters
    ----------
    gemm, target
        What, and for what.
    backend
        A backend's name, or "auto" for the best of all.
    usable
        Leave out backends that cannot be used here; a named one then raises.
    keep
        How many of the candidates that lost the plan remembers.
    tuned
        Take what `unigemm.autotune` has found, where it has; it measures one M, so that a
        batch-invariant product takes nothing from it.

    Raises
    ------
    UnsupportedProblem
        No backend takes it.
    DeviceMismatch
        The named backend is not for such a device.
    BackendUnavailable
        The named backend cannot be used here.
    """
    measured = None
    if tuned and not gemm.problem.batch_invariant:
        measured = tuning.lookup(gemm.problem, gemm.extents, target, backend)
    failed = _failed.get((gemm.problem, target), {}) if usable and backend == "auto" else {}
    if measured is not None and measured.plan.backend in failed:
        measured = None
    found = None if measured is None else _tuned(measured, usable)
    if found is None:
        return _modelled(gemm, target, backend, usable, keep)
    if not keep:
        return found
    model = _modelled(gemm, target, backend, usable, keep)
    lost = [
        x
        for x in (model.as_alternative, *model.alternatives)
        if (x.backend, x.config) != (found.backend, found.config)
    ]
    return replace(found, alternatives=tuple(lost[:keep]), rejected=model.rejected)


def _tuned(found: Tuned, usable: bool) -> Plan | None:
    """Return the plan that was measured; None where that says nothing (any more)."""
    try:
        chosen = (usable_backend if usable else backend_named)(found.plan.backend)
    except BackendUnavailable:
        return None
    if compiles(chosen) and chosen.key(found.plan).source != found.source:
        warnings.warn(
            f"{found.plan.backend} has changed since {found.plan.extents} was tuned on "
            f"{found.plan.target}; tune it again",
            TuningWarning,
            stacklevel=2,
        )
        return None
    return None if usable and _unobtainable(found.plan) is not None else found.plan


def _modelled(gemm: Gemm, target: Target, backend: str, usable: bool, keep: int) -> Plan:
    """Plan a product by the model; see `plan_gemm`."""
    failed = _failed.get((gemm.problem, target), {}) if usable and backend == "auto" else {}
    dropped = tuple(failed.items())
    while True:
        plan = _planner(gemm.problem, target, backend, usable, keep, dropped)(gemm.extents)
        reason = _unobtainable(plan) if usable and backend == "auto" else None
        if reason is None:
            return plan
        LOG.info("left out %s: %s", plan.backend, reason)
        dropped = (*dropped, (plan.backend, reason))


@lru_cache(maxsize=128)
def _planner(
    problem: Problem,
    target: Target,
    backend: str,
    usable: bool,
    keep: int,
    dropped: tuple[tuple[str, str], ...],
) -> Callable[[Extents], Plan]:
    """Return what plans the products of a class, and remembers its plans.

    So a product of sizes that are new takes one look-up by all of the class, and few by sizes.
    """
    offered, missing = (
        _competitors(usable) if backend == "auto" else ((_named(backend, target, usable),), ())
    )
    reasons = dict((*missing, *dropped))
    backends = tuple(each for each in offered if each.name not in reasons)
    on_gpu, class_of = target.is_gpu, size_classes(problem)

    @lru_cache(maxsize=1024)
    def planned(extents: Extents) -> Plan:
        if on_gpu and (sizes := class_of(extents)) is not extents:
            found = of_class(sizes, extents)
            if found is not None:
                return found
        if problem.batch_invariant and extents != invariant_extents(extents):
            return moved(planned(invariant_extents(extents)), extents, backend_named)
        if on_gpu:
            _keep_memory()
            for each in backends:
                _rehearse(cast(Hashable, each))
        return choose(problem, extents, target, backends, missing=reasons, keep=keep)

    def of_class(sizes: Extents, extents: Extents) -> Plan | None:
        """Return what is planned for a class of sizes, for some; None if it is not for them."""
        try:
            plan = planned(sizes)
        except UnsupportedProblem:
            return None  # too large, perhaps, which the product itself is not
        return resized(plan, extents, backend_named)

    return planned


def _named(name: str, target: Target, usable: bool) -> Backend:
    """Return the backend that a caller asks for.

    Raises
    ------
    DeviceMismatch
        It is not for such a device.
    BackendUnavailable
        It cannot be used here.
    """
    backend = backend_named(name)
    if compiles(backend) and not target.is_gpu:
        raise DeviceMismatch(
            f"backend {name!r} runs on NVIDIA GPUs and the arrays are on the CPU; move them to "
            "a GPU (cupy.asarray, tensor.cuda()), or leave backend= out"
        )
    if target.is_gpu and not compiles(backend):
        raise DeviceMismatch(
            f"backend {name!r} runs on the CPU and the product is for {target}; use arrays in "
            "host memory, or leave backend= out"
        )
    return usable_backend(name) if usable else backend


@cache
def _rehearse(backend: Backend) -> None:
    """Have a backend rank products before the first one: that takes 0.2 to 0.4 ms less then.

    Behind all imports, in which it is lost: these leave the processor's caches to other code.
    """
    if isinstance(backend, RehearsingBackend):
        backend.rehearse()


@cache
def _keep_memory() -> None:
    """Have glibc's malloc keep a plan's memory for the next one.

    Of 128 KiB and more that lie free at the end of its heap it gives all back to the system, and a
    plan's arrays take 0.5 MiB: some have 136 page faults then, of 2.9 us each on a virtual machine.
    Once a block was freed that had pages of its own it keeps twice as much (mallopt(3), the note on
    M_MMAP_THRESHOLD). Most processes have long done so.
    """
    block = bytes(1 << 20)  # of zeros, which nobody touches
    del block


def _competitors(usable: bool) -> tuple[tuple[Backend, ...], tuple[tuple[str, str], ...]]:
    """Return all backends that take part, and the reasons of those that cannot."""
    offered = []
    missing = []
    for name in backend_names():
        try:
            backend = backend_named(name)
        except BackendUnavailable as error:
            missing.append((name, str(error)))
            continue
        reason = missing_of(backend) if usable else None
        if reason is None:
            offered.append(backend)
        else:
            missing.append((name, reason))
    return tuple(offered), tuple(missing)


def _unobtainable(plan: Plan) -> str | None:
    """Say why a plan's kernel cannot be had here: neither compiled nor from the cache."""
    backend = backend_named(plan.backend)
    if not compiles(backend) or (lacking := compiler_missing_of(backend)) is None:
        return None
    from .cache import default_cache

    if default_cache().get(backend.key(plan)) is not None:
        return None
    return f"the cache does not hold its kernel, and it cannot be compiled here: {lacking}"


def kernel_entry(plan: Plan, cache: Cache | None = None) -> Entry | None:
    """Return the cache's entry of a plan's kernel, compiled if need be; None on the host.

    Raises
    ------
    BackendUnavailable
        The plan's backend cannot be used here.
    CompilationError
        The kernel does not compile.
    """
    backend = usable_backend(plan.backend)
    if not compiles(backend):
        return None
    if cache is None:
        from .cache import default_cache

        cache = default_cache()
    compiling = backend
    return cache.get_or_compile(backend.key(plan), lambda: _compiled(compiling, plan))


def bind(library: Library, a: Any, b: Any, out: Any, options: Options) -> Bound:
    """Check a call, plan it and bind its kernel.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    attach()
    check_options(options)
    asked, options = options, with_named_backend(options)
    named = {"a": a, "b": b} if out is None else {"a": a, "b": b, "out": out}
    hosts = {name: host_view(library, x, name) for name, x in named.items()}
    if options.casting is not None and (not library.promotes or None in hosts.values()):
        raise UnsupportedProblem("casting= is for NumPy arrays in host memory; leave it out")
    product = host_product(hosts, options, promotes=library.promotes)
    if product is not None:
        with blaming(asked, options):
            return _bind_host(library, product, options)
    operands = {name: library.operand(x, name) for name, x in named.items()}
    if options.blocks:
        operands = {name: _elements(x, options) for name, x in operands.items()}
    x, y, z = operands["a"], operands["b"], operands.get("out")
    device = one_device({name: operand.device for name, operand in operands.items()})
    layout = describe(x, y, z, options, on_host=device == HOST)
    if z is not None and z.readonly:
        raise UnsupportedProblem("out is read-only; pass an array that may be written")
    index = -1 if device == HOST else device.index
    d_span = (
        z.span if z else Operand(0, layout.shape, layout.strides, layout.dtype, device, 16).span
    )
    empty = 0 in layout.shape
    fill = not empty and x.shape[-1] == 0
    bound = partial(
        Bound,
        make=library.maker(layout.shape, layout.dtype, device),
        scalar=not layout.shape,
        fill=fill,
        device=index,
        a_span=x.span,
        b_span=y.span,
        d_span=d_span,
        options=asked,
    )
    if empty or fill:
        if options.plan is not None:
            raise UnsupportedProblem(
                f"the plan is for {options.plan.extents} and {x.shape} @ {y.shape} multiplies "
                "nothing; leave plan= out"
            )
        return bound(launch=None, workspace=None, plan=None)
    gemm = stated(x.layout, y.layout, layout, options)
    # Before a plan is made or a kernel compiled; each later call checks its own addresses.
    if z is not None and index >= 0:
        refuse_overlap(operands)
    target = target_of(device)
    with nullcontext() if index < 0 else library.context(index, None):
        if options.plan is None:
            with blaming(asked, options):
                by_environment = options.backend != asked.backend
                plan, launch = _planned(gemm, target, options.backend, index, by_environment)
        else:
            plan = typed(options.plan)
            gemm = _fit(plan, gemm, target)
            plan = checked(on_device(plan, target))
            launch = _launcher(plan, gemm, index)
    launch = _each_launch(launch, gemm, x.dtype, layout.dtype)
    if index < 0 and not library.numpy_errors:
        launch = without_errors(launch)
    workspace = library.maker((plan.workspace_bytes,), None, device)
    return bound(
        launch=launch,
        workspace=workspace if plan.workspace_bytes else None,
        plan=plan,
    )


def _log_pick(plan: Plan, took: object, by: tuple[str, ...]) -> None:
    """Say what was picked for a call, and why."""
    if not is_info():
        return
    why = f"{plan.predicted_us:.1f} us predicted, limited by {plan.limiter}"
    if plan.measured_us:
        why = f"{plan.measured_us:.1f} us measured by autotune"
    rest = [f"next {x.backend} {x.config}, {x.predicted_us:.1f} us" for x in plan.alternatives]
    LOG.info(
        "picked %s %s for %s of %s on %s in %s: %s",
        *(plan.backend, plan.config, plan.extents, plan.problem, plan.target, took),
        "; ".join((why, *rest, *by)),
    )
    LOG.debug("the plan in full:\n%s", plan)


def _planned(
    gemm: Gemm, target: Target, backend: str, index: int, by_environment: bool
) -> tuple[Plan, Launcher]:
    """Plan a call and bind its kernel; of `auto` the next best, where the best cannot be had."""
    first: UnigemmError | None = None
    while True:
        try:
            with watch() as took:
                plan = plan_gemm(gemm, target, backend, usable=True, keep=int(is_info()))
        except UnsupportedProblem:
            if first is None:
                raise
            del _failed[gemm.problem, target]  # the next call says the same
            raise first from None
        _log_pick(plan, took, ("the backend is UNIGEMM_BACKEND's",) if by_environment else ())
        try:
            return plan, _launcher(plan, gemm, index)
        except CacheError:
            raise
        except UnigemmError as error:
            if backend != "auto":
                raise
            first = first or error
            failed = _failed.setdefault((gemm.problem, target), {})
            if plan.backend in failed:
                raise
            failed[plan.backend] = f"it was tried and failed: {error}"
            warnings.warn(
                f"backend {plan.backend!r} was to compute {gemm.extents} and cannot: {error}; "
                "the next best is taken",
                BackendWarning,
                stacklevel=4,
            )


Seen = TypeVar("Seen", Operand, Layout)


def _elements(x: Seen, options: Options) -> Seen:
    """Return an operand by what its elements are beside the scales of a call."""
    assert options.blocks is not None
    return replace(x, dtype=elements_of(x.dtype, options.blocks[0].dtype))


def host_product(
    hosts: Mapping[str, HostArray | None], options: Options, *, promotes: bool
) -> HostProduct | None:
    """Return the product that NumPy's own matmul is asked for; None where it is for kernels.

    Parameters
    ----------
    hosts
        The arrays by their names; None for one that is on a GPU.
    options
        What the call asks for.
    promotes
        The library's arrays may be of mixed types.

    Raises
    ------
    UnsupportedProblem
        NumPy cannot do as asked either.
    """
    a, b, out = hosts["a"], hosts["b"], hosts.get("out")
    if a is None or b is None or ("out" in hosts and out is None):
        return None
    if options.scaled or options.blocks:
        return None
    if is_for_kernels(a, b, out, options.dtype):
        if options.casting is not None:
            _refuse_casts(a, b, out, options)
        return None
    product = numpy_product(a, b, out, options.dtype, options.casting, promotes=promotes)
    if product is None:
        return None
    kinds = {str(a.dtype), str(b.dtype)}
    if options.precision != "ieee" and kinds != {"float32"}:
        raise UnsupportedProblem(
            f"precision {options.precision!r} is for float32 inputs and these are "
            f"{' and '.join(sorted(kinds))}; leave precision out"
        )
    if options.batch_invariant:
        raise UnsupportedProblem(
            "NumPy adds up in an order that may depend on M; leave batch_invariant out, or use a "
            "GPU"
        )
    return product


def _refuse_casts(a: HostArray, b: HostArray, out: HostArray | None, options: Options) -> None:
    """Refuse inputs that a wider result takes by a cast that the caller does not allow."""
    import numpy as np

    asked = out.dtype if options.dtype is None and out is not None else options.dtype
    x, y = a.layout, b.layout
    assert x is not None
    assert y is not None
    dtype = numpy_dtype(output_dtype(asked, x, y))
    for each in (a, b):
        if not np.can_cast(each.dtype, dtype, options.casting):  # type: ignore[arg-type]
            raise UnsupportedDtype(
                f"{each.dtype} inputs give {dtype}, which casting={options.casting!r} does not "
                "allow; leave casting out, or pass dtype="
            )


def host_gemm(product: HostProduct, options: Options) -> Gemm:
    """State what NumPy multiplies, its inputs converted, in canonical form."""
    return stated(*product.layouts, options)


def _bind_host(library: Library, product: HostProduct, options: Options) -> Bound:
    """Bind a product of NumPy's own matmul."""
    import numpy as np

    if options.backend != "auto":
        _named(options.backend, CPU, usable=True)
    out, dtype = product.out, product.dtype
    if out is not None and out.readonly:
        raise UnsupportedProblem("out is read-only; pass an array that may be written")
    if options.plan is not None:
        _fit(options.plan, host_gemm(product, options), CPU)
    # A scalar's class tells C's long from its long long, which the key does not; and PyTorch's
    # key does not tell whether a tensor is conjugated.
    told = product.shape or dtype.kind not in "iu"
    make = (
        partial(np.empty, product.shape, dtype)
        if library.promotes
        else library.maker(product.shape, parse_dtype(dtype), HOST)
    )
    launch = product.launcher()
    return Bound(
        make=make,
        scalar=not product.shape,
        launch=launch if library.numpy_errors else without_errors(launch),
        fill=False,
        device=-1,
        workspace=None,
        a_span=(0, 0),
        b_span=(0, 0),
        d_span=(0, 0),
        plan=None,
        options=options,
        kept=bool(told) and (library.promotes or dtype.kind != "c"),
    )


def shares(operands: dict[str, Operand]) -> str | None:
    """Return the name of the input that an output shares memory with.

    So it is also said where that cannot be ruled out in bounded time.
    """
    out = operands["out"]
    target = (out.pointer, out.shape, out.strides, out.dtype.itemsize)
    for name in ("a", "b"):
        x = operands[name]
        if may_share(target, (x.pointer, x.shape, x.strides, x.dtype.itemsize)):
            return name
    return None


def refuse_overlap(operands: dict[str, Operand]) -> None:
    """Refuse an output that shares memory with an input.

    Raises
    ------
    OverlapError
        It does, or that cannot be ruled out.
    """
    name = shares(operands)
    if name is not None:
        raise OverlapError(
            f"out shares memory with {name}, and it is written while {name} is read; pass "
            f"another array as out, or a copy of {name}"
        )


def launch_apart(launch: Launcher, a: int, b: int, out: Operand, *scales: float) -> None:
    """Compute a product on the host into memory of its own, and copy it to `out`."""
    import numpy as np

    low, high = out.span
    memory = np.empty(high - low + 16, np.uint8)
    first = memory.ctypes.data
    place = first - low + (out.pointer + low - first) % 16  # aligned as `out` is
    launch(a, b, place, 0, 0, *scales)
    view = viewer(out.shape, out.strides, out.dtype)
    view(out.pointer)[...] = view(place)


_loaded: dict[tuple[str, str, int], object] = {}
_loading: dict[tuple[str, str, int], Lock] = {}
# What `auto` took and could not be had, with the reason: until `forget`.
_failed: dict[tuple[Problem, Target], dict[str, str]] = {}


@lru_cache(maxsize=1024)
def _digest(backend: str, problem: Problem, config: Config, target: Target) -> str:
    """Return the digest of a kernel's key, which holds no extents."""
    compiling = backend_named(backend)
    assert compiles(compiling)
    return compiling.key(Plan(backend, config, problem, Extents(1, 1, 1), target)).digest


def _launcher(plan: Plan, gemm: Gemm, device: int) -> Launcher:
    """Return the bound kernel of a plan; one load for each kernel and device."""
    # Launchers see one product at the addresses that they are given; `_each_launch` moves those.
    if gemm.offsets != ((0, 0, 0),):
        gemm = replace(gemm, offsets=((0, 0, 0),))
    backend = usable_backend(plan.backend)
    if not compiles(backend):
        dump(plan, "", {})
        return cast(HostBackend, backend).bind(plan, gemm)
    key = (plan.backend, _digest(plan.backend, plan.problem, plan.config, plan.target), device)
    with _loading.setdefault(key, Lock()):
        kernel = _loaded.get(key)  # new extents need no look at the disk
        if kernel is None:
            kernel = _loaded[key] = _load(backend, plan, device)
        else:
            dump(plan, key[1], {})
    return backend.bind(kernel, plan, gemm)


#: What loads kernels of devices that are not there, by index (see `unigemm.emulator`).
LOADERS: dict[int, Callable[[Mapping[str, bytes], Plan], object]] = {}


def _load(backend: CompilingBackend, plan: Plan, device: int = 0) -> object:
    """Load a plan's kernel, from the very bytes that the cache has checked."""
    from .cache import default_cache

    load = LOADERS.get(device, backend.load)
    key = backend.key(plan)
    files = default_cache().contents(key, lambda: _compiled(backend, plan))
    with watch() as took:
        kernel = _loaded_from(load, files, plan)
    LOG.info("loaded %s %s on cuda:%d in %s", key.backend, key.digest[:16], device, took)
    dump(plan, key.digest, files)
    return kernel


def _loaded_from(load: Callable[[Any, Plan], object], files: Any, plan: Plan) -> object:
    """Load a kernel, no fork in between; whatever goes wrong is a typed error."""
    try:
        with held_back():
            return load(files, plan)
    except (UnigemmError, MemoryError):
        raise
    except Exception as error:
        raise BackendUnavailable(
            f"the kernel of backend {plan.backend!r} does not load here ({type(error).__name__}: "
            f"{error}); name another backend="
        ) from error


def _compiled(backend: CompilingBackend, plan: Plan) -> Artifact:
    """Compile a plan's kernel; whatever goes wrong is a typed error."""
    try:
        return backend.compile(plan)
    except (UnigemmError, MemoryError):
        raise
    except Exception as error:
        raise CompilationError(
            f"backend {plan.backend!r} did not compile {plan.config} ({type(error).__name__}: "
            f"{error}); name another backend="
        ) from error


def _each_launch(launch: Launcher, gemm: Gemm, inputs: DType, output: DType) -> Launcher:
    """Repeat a launcher for batch dimensions that one launch does not take."""
    if gemm.offsets == ((0, 0, 0),):
        return launch
    moves = []
    for first, second, d in gemm.offsets:
        a, b = (second, first) if gemm.swapped else (first, second)
        moves.append((a * inputs.itemsize, b * inputs.itemsize, d * output.itemsize))

    def launch_each(a: int, b: int, d: int, workspace: int, stream: int, *scales: float) -> None:
        for to_a, to_b, to_d in moves:
            launch(a + to_a, b + to_b, d + to_d, workspace, stream, *scales)

    return launch_each


def _fit(plan: Plan, gemm: Gemm, target: Target) -> Gemm:
    """Check that a given plan is for this product, and return the product as the plan states it."""
    if plan.problem.deterministic:  # such a plan also serves a call that does not ask for it
        gemm = replace(gemm, problem=replace(gemm.problem, deterministic=True))
    pairs: Sequence[tuple[str, object, object]] = (
        ("A", plan.problem.a, gemm.problem.a),
        ("B", plan.problem.b, gemm.problem.b),
        ("D", plan.problem.d, gemm.problem.d),
        ("precision", plan.problem.precision, gemm.problem.precision),
        ("deterministic", plan.problem.deterministic, gemm.problem.deterministic),
        ("scaled", plan.problem.scaled, gemm.problem.scaled),
        ("scales of blocks", plan.problem.blocks, gemm.problem.blocks),
        ("batch_invariant", plan.problem.batch_invariant, gemm.problem.batch_invariant),
        ("size", plan.extents, gemm.extents),
        ("architecture", plan.target.arch, target.arch),
    )
    differences = [
        f"{name} is {planned} in the plan and {called} in the call"
        for name, planned, called in pairs
        if planned != called
    ]
    if differences:
        swapped = " (the call is computed as its transpose)" if gemm.swapped else ""
        raise UnsupportedProblem(
            f"the plan does not fit the call{swapped}: {'; '.join(differences)}; plan these "
            "arrays with unigemm.plan(a, b), or leave plan= out"
        )
    return gemm


def replan() -> None:
    """Drop all plans, and the calls that are bound to them; loaded kernels stay."""
    _planner.cache_clear()
    for library in KNOWN.values():
        library.table.clear()


def forget_device(index: int) -> None:
    """Drop the loaded kernels of one device (bound calls stay)."""
    for key in [key for key in _loaded if key[2] == index]:
        del _loaded[key]


def forget() -> None:
    """Drop all plans and loaded kernels that this process remembers (bound calls stay)."""
    tuning.forget()
    _planner.cache_clear()
    _digest.cache_clear()
    _loaded.clear()
    _loading.clear()
    _failed.clear()


def store(table: dict[Hashable, Any], key: Hashable, bound: Bound) -> None:
    """Remember a bound call; the table is emptied when it is full."""
    if len(table) >= MAX_BOUND:
        table.clear()
    table[key] = bound


#: Calls remembered for each library: about 2 kB each.
MAX_BOUND = 4096
