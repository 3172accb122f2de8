"""From a request to a bound launcher: all that happens once for each kind of call.

`bind` checks the call, plans it, gets the kernel from the cache and binds it to the extents and
strides; the result is kept, and from then on only looked up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from ..arrays.libraries import host_view
from ..arrays.library import KNOWN, Library
from ..arrays.numpy_arrays import without_errors
from ..arrays.operands import HOST, Device, Operand, parse_dtype
from ..errors import (
    BackendWarning,
    CacheError,
    UnigemmError,
    UnsupportedProblem,
)
from ..planning import tuned_plans as tuning
from ..planning.backend import Launcher
from ..planning.explanation import estimate
from ..planning.plan import Plan
from ..planning.select import _failed, _planner, plan_gemm, target_of
from ..planning.target import CPU, Target
from ..planning.validation import checked, on_device, typed
from ..problem.canonical import Gemm, Layout
from ..problem.dtypes import EXACT
from ..problem.grouped import Form
from ..support.log import LOG, attach, is_info, watch
from .bound import Arrays, Bound, called, refuse_shared, taking, zeroed
from .checked_call import CheckedCall, checked_call
from .first_call import measured
from .grouped import ENDS, checking
from .host import host_product, refuse_other_backends, with_elements
from .loader import _digest, _each_launch, _launcher, _loaded, _loading
from .numpy_matmul import HostProduct
from .options import Options, _fit, blaming, describe, stated, with_named_backend
from .quantized_results import (
    SCALES,
    leaves_scales,
    scales_layout,
    scales_of_nothing,
    second_pass,
)
from .request import Request
from .result_type import shared_device
from .scale_arguments import Scales

__all__ = ["bind", "forget", "replan"]


def bind(library: Library, request: Request) -> Bound:
    """Check a call, plan it and bind its kernel, perhaps after measuring: see `autotuning`.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    attach()
    before: list[tuple[str, Any, int, Hashable]] = []

    def look(x: Any, name: str) -> Operand:
        found = library.operand(x, called(name))
        before.append((called(name), x, *library.read(x)))
        return found

    on_host = host_view(library, request.a, "a") is not None
    checked = checked_call(request, look, on_host=on_host, promotes=library.promotes)
    options, traced = checked.options, checked.traced
    if traced is None:
        before += _read(library, request)
    else:
        refuse_changed(library, before)
    later = measured(library, request, options, traced)
    hosts = {name: host_view(library, x, name) for name, x in request.multiplied.items()}
    requested, options = options, with_named_backend(options)
    if options.casting is not None and not library.promotes:
        raise UnsupportedProblem("casting= is for NumPy and CuPy arrays; leave it out")
    own = library.name == "torch"
    product = host_product(hosts, options, promotes=library.promotes, torch=own)
    if product is not None:
        with blaming(requested, options):
            bound = _bind_host(library, product, options)
    else:
        operands = request.operands(library) | checked.arrays
        operands = {name: operands[name] for name in request.arrays()}  # in the order of `known`
        bound = _bound(library, operands, requested, options, checked)
    refuse_changed(library, before)
    return replace(bound, kept=False) if later else bound


def _read(library: Library, request: Request) -> list[tuple[str, Any, int, Hashable]]:
    try:
        found = request.arrays()
        return [(called(name), x, *library.read(x)) for name, x in found.items()]
    except Exception:
        return []  # something is wrong with an array: it will be said


def _bound(
    library: Library, operands: dict[str, Operand], requested: Options, options: Options,
    checked: CheckedCall,
) -> Bound:  # fmt: skip
    """Bind what kernels compute.

    Parameters
    ----------
    operands
        All arrays by name, as `Arrays` has them.
    requested, options
        The call's, before and after ``UNIGEMM_BACKEND`` was read.
    checked
        What is computed of the product.
    """
    traced, scales = checked.traced, checked.scales
    if options.blocks:
        named = {name: operands[name] for name in ("a", "b", "out") if name in operands}
        operands |= {name: with_elements(x, options) for name, x in named.items()}
    x, y, z = operands["a"], operands["b"], operands.get("out")
    device = shared_device({name: operand.device for name, operand in operands.items()})
    layout = describe(x, y, z, options, on_host=device == HOST)
    if z is not None and z.readonly:
        raise UnsupportedProblem("out is read-only; pass an array that may be written")
    arrays = Arrays.of(operands, in_place=checked.in_place)
    quantized = None
    if options.quantize_out is not None:
        quantized = scales_layout(operands.get(SCALES), layout.shape, options.quantize_out)
    make = library.maker(layout.shape, layout.dtype, device)
    returned = (make,) * (0 if traced is None else traced.returned)
    if quantized is not None:
        returned = (_scales_maker(library, quantized, device, options),)
        arrays = arrays.with_zeroed(SCALES) if leaves_scales(options) else arrays
    made = [f"result {i}" for i in range(1, 1 + len(returned))] if z is None else []
    at = {name: i for i, name in enumerate((*arrays.names, *made))} | {"": -1}
    names = () if traced is None else (*traced.names, *(("amax_out",) * traced.largest))
    names = (SCALES, *names) if options.behind else names
    index = -1 if device == HOST else device.index
    empty = 0 in layout.shape
    form = options.form
    without = form is not None and form.count == 0  # groups
    fill = not empty and (x.shape[-1] == 0 or (without and options.rest == "zeros"))
    if fill and without:
        arrays = arrays._replace(zeroed=tuple(i for i in arrays.written if i != at.get("out")))
    bound = partial(
        Bound,
        make=make,
        scalar=not layout.shape,
        fill=fill,
        device=index,
        options=requested,
        arrays=arrays,
        fresh=z is None,
        takes_more=traced is not None or bool(scales.brought) or form is not None,
        returned=returned,
        scales=tuple(at[name] for name in scales.brought),
        factors=scales.factors,
        brought=taking([at[name] for name in names]),
        numbers=() if traced is None else traced.numbers,
        whole=options.converted in EXACT,
        **_of_groups(form, at, scales, index),
    )
    if empty or fill or without:
        launch = scales_of_nothing(layout, quantized, device, scales.taken) if empty else None
        if options.plan is not None:
            raise UnsupportedProblem(
                f"the plan is for {options.plan.extents} and {x.shape} @ {y.shape} multiplies "
                "nothing; leave plan= out"
            )
        return bound(launch=launch)
    gemm = stated(x.layout, y.layout, layout, options)
    # Before a plan is made or a kernel compiled; each later call checks its own addresses.
    refuse_shared(arrays, operands)
    plan, launch = _planned_launch(library, gemm, device, requested, options)
    launch = _each_launch(launch, gemm)
    if index < 0 and not library.numpy_errors:
        launch = without_errors(launch)
    scratch = plan.workspace_bytes
    if gemm.problem.quantized_rows is not None:
        assert quantized is not None
        by = gemm.problem.quantized_by
        size, launch = second_pass(launch, x.dtype, layout, quantized, device, scales.taken, by)
        scratch += size
    workspace = library.maker((scratch,), None, device) if scratch else None
    return bound(launch=launch, workspace=workspace, workspace_bytes=scratch, plan=plan)


def _scales_maker(
    library: Library, scales: Layout, device: Device, options: Options
) -> Callable[[], Any]:
    make = library.maker(scales.shape, scales.dtype, device)
    return partial(zeroed, library, make) if leaves_scales(options) else make


def _of_groups(
    form: Form | None, at: Mapping[str, int], scales: Scales, device: int
) -> dict[str, Any]:
    """Return what a bound call knows of the ends of groups; device -1 is the host."""
    name = next((name for name in ENDS if name in at), None)
    if form is None or name is None:
        return {}
    blocks = scales.granularity if form.along == "k" else None
    unit = blocks.a.sharing[1] if blocks else 1
    return {
        "ends": at[name],
        "steps": scales.steps if scales.brought else (),
        "check": checking(form, name, unit) if device < 0 and form.count else None,
    }


def _planned_launch(
    library: Library, gemm: Gemm, device: Any, requested: Options, options: Options
) -> tuple[Plan, Launcher]:
    """Plan a product, or check the caller's plan, and bind its kernel."""
    target = target_of(device)
    index = -1 if device == HOST else device.index
    with nullcontext() if index < 0 else library.context(index, None):
        if options.plan is None:
            with blaming(requested, options):
                by_environment = options.backend != requested.backend
                return _planned(gemm, target, options.backend, index, by_environment)
        plan = typed(options.plan)
        gemm = _fit(plan, gemm, target)
        plan = checked(on_device(plan, target))
        return plan, _launcher(plan, gemm, index)


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
    """Bind a product that a library's own matmul computes."""
    import numpy as np

    refuse_other_backends(product, options.backend)
    out, dtype = product.out, product.dtype
    if out is not None and out.readonly:
        raise UnsupportedProblem("out is read-only; pass an array that may be written")
    if options.plan is not None:
        _fit(options.plan, stated(*product.layouts, options), CPU)
    # Not in the key: whether a scalar is C's long or long long.
    told = product.shape or dtype.kind not in "iu"
    make = (
        partial(np.empty, product.shape, dtype)
        if library.promotes
        else library.maker(product.shape, parse_dtype(dtype), HOST)
    )
    launch = product.launcher()
    given = {"a": product.a, "b": product.b} | ({} if out is None else {"out": out})
    names, reach = tuple(given), tuple(x.reach for x in given.values())
    return Bound(
        make=make,
        scalar=not product.shape,
        launch=launch if library.numpy_errors else without_errors(launch),
        device=-1,
        options=options,
        # NumPy reads what shares memory before it writes.
        arrays=Arrays(names, names, reach, (), () if out is None else (2,), ()),
        fresh=out is None,
        kept=bool(told),
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
        library.forget()


def forget() -> None:
    """Drop all plans and loaded kernels of this process; bound calls stay."""
    tuning.forget()
    _planner.cache_clear()
    _digest.cache_clear()
    _loaded.clear()
    _loading.clear()
    _failed.clear()
