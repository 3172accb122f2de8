"""Plans for calls that are not made: of arrays, or of their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import host_view, library_of
from ..arrays.library import Library
from ..arrays.operands import HostArray, Operand
from ..errors import UnsupportedProblem
from ..planning.calibrations import calibrated_target
from ..planning.cuda_driver import current_index
from ..planning.plan import Plan
from ..planning.select import plan_gemm, target_of
from ..planning.target import CPU, Target, check_target, device_count, named_target
from ..problem.canonical import Gemm, Layout
from .bound import called
from .byte_copies import odd_arrays
from .checked_call import check_request, checked_call, library_of_call, whole
from .complex_calls import real_description
from .complex_terms import has_complex_terms, without_terms
from .converted_copies import type_of_copies
from .host import host_product, refuse_other_backends, with_elements
from .numpy_matmul import HostProduct
from .options import Options, blaming, describe, stated, with_named_backend
from .request import Request
from .result_type import device_of, is_complex, plain, shared_device

__all__ = ["plan_call", "plan_request"]


def plan_request(
    request: Request, target: str | Target | None, *, scaled: bool, keep: int, tuned: bool
) -> Plan:
    """Plan a call as `unigemm.plan` does.

    Parameters
    ----------
    request
        The call; an `ArraySpec` describes an array.
    target
        Where it is to run; None for the arrays' own device.
    scaled
        Whether a whole operand will have a scale.
    keep
        How many candidates that lost the plan holds.
    tuned
        Whether tuning files are read.

    Raises
    ------
    UnigemmError
        See `unigemm.plan`.
    """
    request = whole(request)
    real = {n: x for n, x in request.arrays().items() if not isinstance(x, ArraySpec)}
    library = library_of_call(real) if real else None
    check_request(request)
    where, usable = _target_for(library, target, real), target is None
    if library is not None and library.opened and request.multiplied.keys() <= real.keys():
        from ..arrays.dlpack_arrays import promoted

        request = request._replace(**dict(zip("ab", promoted(request.a, request.b), strict=True)))
    promotes = library is None or library.promotes
    request = _multiplied(library, request, where, promotes=promotes)
    if where.is_gpu and promotes:
        seen = {name: _look(x, name) for name, x in request.multiplied.items()}
        found = type_of_copies(request, seen, where)
        if found is not None:
            copied = {n: seen[n].shape for n in "ab" if seen[n].dtype is not found[0]}
            specs: dict[str, Any] = {n: ArraySpec(shape, found[0]) for n, shape in copied.items()}
            request = request._replace(**specs, dtype=found[1])
    checked = checked_call(
        request, _look, on_host=not where.is_gpu, promotes=promotes, scaled=scaled
    )
    return plan_call(
        request.multiplied, checked.options, where, keep=keep, tuned=tuned, usable=usable,
        promotes=promotes,
    )  # fmt: skip


def _look(x: Any, name: str) -> Operand | Layout:
    """Return an array as kernels will read it, or what describes one."""
    if isinstance(x, ArraySpec):
        return x.layout
    return library_of(x, called(name)).operand(plain(x), called(name))


def _multiplied(
    library: Library | None, request: Request, where: Target, *, promotes: bool
) -> Request:
    """Return what kernels multiply for a complex call, without terms behind it; or other calls."""
    on_host = not where.is_gpu
    if library is not None:
        odd = odd_arrays(library, request, on_host=on_host)
        copied = {name: library.layout(plain(x), called(name)) for name, x in odd.items()}
        request = request.having({n: ArraySpec(x.shape, x.dtype) for n, x in copied.items()})
    if not is_complex(request, on_host=on_host):
        return request
    layouts = {name: _look(x, name).layout for name, x in request.arrays().items()}
    if has_complex_terms(request, layouts):
        request, d = without_terms(request, layouts, promotes=promotes)
        request = request._replace(out=ArraySpec(d.shape, d.dtype))
        if on_host:
            return request
    return real_description(request, _look, promotes=promotes)


def plan_call(
    named: Mapping[str, Any],
    options: Options,
    where: Target,
    *,
    keep: int,
    tuned: bool,
    usable: bool = True,
    promotes: bool = True,
) -> Plan:
    """Plan a call as `unigemm.plan` does, its options being checked.

    Parameters
    ----------
    named
        `a`, `b` and perhaps `out`, which are arrays or an `ArraySpec`.
    options
        What the call requests, from `checked_call`.
    where
        Where it is to run.
    keep
        How many candidates that lost the plan holds.
    tuned
        Whether tuning files are read.
    usable
        Whether backends have to be usable here.
    promotes
        Whether the library of the arrays converts mixed types.

    Raises
    ------
    UnigemmError
        See `unigemm.plan`.
    """
    requested, options = options, with_named_backend(options)
    hosts: dict[str, HostArray | None] = {}
    if not where.is_gpu:
        own = False
        for name, x in named.items():
            if isinstance(x, ArraySpec):
                hosts[name] = HostArray.of(x.layout)
            else:
                library = library_of(x, name)
                hosts[name], own = host_view(library, x, name), library.name == "torch"
        product = host_product(hosts, options, promotes=promotes, torch=own)
        if product is not None:
            with blaming(requested, options):
                return _plan_on_host(product, where, options, usable=usable, keep=keep)
    layouts = {n: _look(x, n).layout for n, x in named.items()}
    if options.blocks:
        layouts = {n: with_elements(x, options) for n, x in layouts.items()}
    on_host = not where.is_gpu
    stated: Callable[..., Gemm] = _stated
    try:
        hash(options)
    except TypeError:  # of a dtype that has no hash, say
        stated = _stated.__wrapped__
    gemm = stated(options, on_host, *layouts.values())
    with blaming(requested, options):
        return plan_gemm(gemm, where, options.backend, usable=usable, keep=keep, tuned=tuned)


def _plan_on_host(
    product: HostProduct, target: Target, options: Options, *, usable: bool, keep: int
) -> Plan:
    """Plan what NumPy's own matmul computes."""
    refuse_other_backends(product, options.backend, usable=usable)
    if 0 in product.shape or product.a.shape[-1] == 0:
        raise _nothing(product.a.shape, product.b.shape)
    gemm = stated(*product.layouts, options)
    plan = plan_gemm(gemm, target, options.backend, usable=usable, keep=keep, tuned=False)
    schedule = f"{product.by} in {product.loop[0]}"
    for name, x, dtype in zip("ab", (product.a, product.b), product.loop, strict=False):
        schedule += "" if x.dtype == dtype else f", {name} from {x.dtype}"
    return replace(plan, config=replace(plan.config, schedule=schedule))


def _nothing(a: tuple[int, ...], b: tuple[int, ...]) -> UnsupportedProblem:
    return UnsupportedProblem(f"{a} @ {b} multiplies nothing; matmul does it with no kernel")


@lru_cache(maxsize=256)  # stating a product takes most of the time of a plan that is known
def _stated(
    options: Options, on_host: bool, a: Layout, b: Layout, out: Layout | None = None
) -> Gemm:
    """Check a product, and state it in canonical form."""
    layout = describe(a, b, out, options, on_host=on_host)
    without = options.form is not None and options.form.count == 0
    if 0 in layout.shape or a.shape[-1] == 0 or without:
        raise _nothing(a.shape, b.shape)
    return stated(a, b, layout, options)


def _target_for(
    library: Library | None, target: str | Target | None, real: Mapping[str, Any]
) -> Target:
    """Return the target that a caller names, else that of the arrays' device."""
    if isinstance(target, Target):
        check_target(target)
        return target
    if target is not None:
        return named_target(target)
    if library is None:
        return calibrated_target(current_index()) if device_count() else CPU
    return target_of(shared_device({n: device_of(library, plain(x), n) for n, x in real.items()}))
