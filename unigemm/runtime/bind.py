"""From a call to a bound launcher: all that happens once for each kind of call.

`bind` checks the call, plans it, gets the kernel from the cache and binds it to the extents and
strides; `unigemm.matmul` keeps the result and from then on only looks it up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..arrays.libraries import host_view
from ..arrays.library import KNOWN, Library
from ..arrays.numpy_arrays import without_errors
from ..arrays.operands import HOST, Operand, one_device, parse_dtype
from ..errors import BackendWarning, CacheError, OverlapError, UnigemmError, UnsupportedProblem
from ..log import LOG, attach, is_info, watch
from ..planning import tuned_plans as tuning
from ..planning.backend import Launcher
from ..planning.explanation import estimate
from ..planning.plan import Plan
from ..planning.select import _failed, _named, _planner, plan_gemm, target_of
from ..planning.target import CPU, Target
from ..planning.validation import checked, on_device, typed
from ..problem.canonical import Gemm
from .host import _elements, host_gemm, host_product
from .loader import _digest, _each_launch, _launcher, _loaded, _loading
from .numpy_matmul import HostProduct
from .options import (
    MAX_BOUND,
    Options,
    _fit,
    blaming,
    check_options,
    describe,
    stated,
    with_named_backend,
)

__all__ = ["Bound", "bind", "forget", "refuse_changed", "refuse_overlap", "replan", "shared_input"]


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A call that has been checked and planned, with its kernel loaded.

    Attributes
    ----------
    make
        Makes a new result array on the current device and stream.
    scalar
        Whether the result is 0-dimensional.
    launch
        Launches the kernel; takes the addresses of a, b, d and the workspace, and the stream. None
        if there is nothing to multiply.
    fill
        Whether the result is all zeros (K = 0).
    device
        Index of the CUDA device, -1 for the host.
    workspace
        Makes the workspace; None if the kernel needs none.
    a_span, b_span, d_span
        First byte touched and one past the last, from each array's address. Empty where arrays may
        share memory.
    reach
        How many bytes from each array's address are read or written: a, b, out.
    plan
        The plan. None if there is nothing to multiply, or NumPy's own matmul computes it.
    options
        The options of the call. They keep the caller's plan alive, so that its id, which is in the
        key, stays its own.
    kept
        Whether calls with the same key are equal. If not, each call is bound anew.
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
    reach: tuple[int, int, int]
    plan: Plan | None
    options: Options
    kept: bool = True


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
        reach=(x.span[1], y.span[1], d_span[1]),
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
    """Log what was chosen for a call, and why."""
    if not is_info():
        return
    why = estimate(plan)
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
    """Plan a call and bind its kernel; "auto" falls back to the next best backend."""
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


def _bind_host(library: Library, product: HostProduct, options: Options) -> Bound:
    """Bind a product that NumPy's own matmul computes."""
    import numpy as np

    if options.backend not in ("auto", "numpy"):
        _named(options.backend, CPU, usable=True)
        raise UnsupportedProblem(
            f"NumPy's own matmul multiplies {product.loop[0]}, and backend {options.backend!r} "
            "does not; leave backend= out"
        )
    out, dtype = product.out, product.dtype
    if out is not None and out.readonly:
        raise UnsupportedProblem("out is read-only; pass an array that may be written")
    if options.plan is not None:
        _fit(options.plan, host_gemm(product, options), CPU)
    # Not in the key: whether a scalar is C's long or long long, and whether a tensor is conjugated.
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
        reach=(product.a.reach, product.b.reach, 0 if out is None else out.reach),
        plan=None,
        options=options,
        kept=bool(told) and (library.promotes or dtype.kind != "c"),
    )


def shared_input(operands: dict[str, Operand]) -> str | None:
    """Return the name of an input that `out` shares memory with, or may share it with.

    None if it shares memory with neither. The search is bounded, so a hard case counts as shared.
    """
    shared = (name for name in ("a", "b") if operands["out"].may_share(operands[name]))
    return next(shared, None)


def refuse_overlap(operands: dict[str, Operand]) -> None:
    """Refuse an `out` that shares memory with an input.

    Raises
    ------
    OverlapError
        It shares memory, or that cannot be ruled out.
    """
    name = shared_input(operands)
    if name is not None:
        raise OverlapError(
            f"out shares memory with {name}, and it is written while {name} is read; pass "
            f"another array as out, or a copy of {name}"
        )


def refuse_changed(library: Library, seen: Iterable[tuple[str, Any, int, Hashable]]) -> None:
    """Refuse arrays that the caller's own code has changed while the call was prepared.

    Parameters
    ----------
    library
        The library of the arrays.
    seen
        Their names, the arrays, and what `Library.read` said of each before.

    Raises
    ------
    UnsupportedProblem
        One got another shape, type or memory.
    """
    for name, x, *before in seen:
        host_view(library, x, name)  # says what is wrong with it now
        if list(library.read(x)) != before:
            raise UnsupportedProblem(
                f"{name} got another shape, type or memory while the call was prepared; a function "
                "or an object that is passed may not change the call's arrays"
            )


def replan() -> None:
    """Drop all plans and bound calls; loaded kernels stay."""
    _planner.cache_clear()
    for library in KNOWN.values():
        library.table.clear()


def forget() -> None:
    """Drop all plans and loaded kernels of this process; bound calls stay."""
    tuning.forget()
    _planner.cache_clear()
    _digest.cache_clear()
    _loaded.clear()
    _loading.clear()
    _failed.clear()


def store(table: dict[Hashable, Any], key: Hashable, bound: Any) -> None:
    """Keep a bound call; a full table is emptied first."""
    if len(table) >= MAX_BOUND:
        table.clear()
    table[key] = bound
