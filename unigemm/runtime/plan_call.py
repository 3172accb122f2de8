"""Plans for calls that are not made: of arrays, or of their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import as_array, host_view, library_of
from ..arrays.operands import HOST, HostArray, one_device
from ..errors import UnsupportedProblem
from ..planning.calibrations import calibrated_target
from ..planning.cuda_driver import current_index
from ..planning.plan import Plan
from ..planning.select import plan_gemm, target_of
from ..planning.target import CPU, Target, check_target, device_count, named_target
from ..problem.canonical import Gemm, Layout
from ..problem.dtypes import COMPLEX
from .complex_calls import TERMS, real_description
from .complex_terms import has_complex_terms, without_terms
from .conversion import with_conversion
from .converted_copies import dtype_of_copies
from .epilogue_arguments import traced_epilogue
from .grouped import requested_form
from .host import host_product, with_elements
from .numpy_matmul import HostProduct
from .options import Options, blaming, check_options, describe, stated, with_named_backend
from .quantized_results import (
    refuse_more_results,
    with_quantized_results,
    with_second_pass,
)
from .request import Request
from .result_type import described, plain
from .scale_arguments import scales_of

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
    request = _whole(request)
    request = _plain_product(request)
    gpu, here = _complex_target(request, target), target is None
    if gpu is not None:
        request, target = real_description(request), gpu
    form = requested_form(request, described)
    scales = scales_of(
        request.scales(), described, lambda name: described(getattr(request, name), name), form
    )
    options = Options.of(request, scales, form, scaled=scaled)
    check_options(options)
    if request.quantize_out is not None:
        kinds = {name: described(x, name).dtype for name, x in request.multiplied.items()}
        options = with_quantized_results(options, kinds, len(request.results))
        request = request._replace(out=next(iter(request.results), None))
    arguments = request.arguments() | request.given(scales.in_epilogue)
    return plan_call(
        request.a, request.b, request.out, options, target, arguments, keep=keep, tuned=tuned,
        here=here,
    )  # fmt: skip


def _plain_product(request: Request) -> Request:
    """Return the product of which a complex call adds terms behind it; other calls as they are."""
    if request.operation != "matmul" or not (request.has_epilogue or request.scales()):
        return request
    named = {n: plain(x) for n, x in request.arrays().items() if n in ("a", "b", *TERMS)}
    if not has_complex_terms(request, named):
        return request
    layouts = {n: described(x, n) for n, x in named.items()}
    complexes = any(layouts[n].dtype in COMPLEX for n in "ab")
    return without_terms(request, layouts) if complexes else request


def _complex_target(request: Request, target: str | Target | None) -> Target | None:
    """Return where a complex product runs that kernels compute by its parts; None of others."""
    if request.operation != "matmul":
        return None
    named = {"a": request.a, "b": request.b}
    specs = {n: x for n, x in named.items() if isinstance(x, ArraySpec)}
    libraries = {n: library_of(x, n) for n, x in named.items() if n not in specs}
    hosts = {n: host_view(library, named[n], n) for n, library in libraries.items()}
    seen = {n: x.dtype.kind == "c" for n, x in hosts.items() if x is not None}
    seen |= {n: described(plain(x), n).dtype in COMPLEX for n, x in named.items() if n not in seen}
    if not any(seen.values()):
        return None
    where = _target_for(target, named, hosts)
    return where if where.is_gpu or request.arguments() else None


def _whole(request: Request) -> Request:
    """Return a request whose arrays are arrays, also those that are lists."""
    given = {name: getattr(request, name) for name in ("a", "b", "offsets", "rows")}
    given = {n: x for n, x in given.items() if x is not None and not isinstance(x, ArraySpec)}
    return request._replace(**{name: as_array(x, name) for name, x in given.items()})


def plan_call(
    a: Any,
    b: Any,
    out: Any,
    options: Options,
    target: str | Target | None,
    given: Mapping[str, Any],
    *,
    keep: int,
    tuned: bool,
    here: bool = False,
) -> Plan:
    """Plan a call as `unigemm.plan` does, its options being checked.

    Parameters
    ----------
    a, b, out
        Arrays or `ArraySpec`; `out` may be None.
    options
        What the call requests.
    target
        Where it is to run; None for the arrays' own device.
    given
        The arguments of the epilogue, from `Request.arguments`.
    keep
        How many candidates that lost the plan holds.
    tuned
        Whether tuning files are read.
    here
        The target is the arrays' own device, which these do not tell.

    Raises
    ------
    UnigemmError
        See `unigemm.plan`.
    """
    requested, options, usable = options, with_named_backend(options), target is None or here
    named = {"a": a, "b": b} if out is None else {"a": a, "b": b, "out": out}
    libraries = {n: library_of(x, n) for n, x in named.items() if not isinstance(x, ArraySpec)}
    if len(libraries) == len(named) and all(library.opened for library in libraries.values()):
        from ..arrays.dlpack_arrays import promoted

        named["a"], named["b"] = promoted(a, b)
    hosts = {n: host_view(library, named[n], n) for n, library in libraries.items()}
    where = _target_for(target, named, hosts)
    promotes = all(library.promotes for library in libraries.values())
    if where.is_gpu or given:
        seen = {n: described(x, n) for n, x in named.items()}
        options = with_conversion(seen, options, has_epilogue=bool(given), promotes=promotes)
        copies = promotes and where.is_gpu
        dtype = dtype_of_copies(seen, options, where, has_epilogue=bool(given)) if copies else None
        if dtype is not None:  # the product of these is planned
            copied = {n: seen[n].shape for n in "ab" if seen[n].dtype is not dtype}
            named |= {n: ArraySpec(shape, dtype) for n, shape in copied.items()}
            options = replace(options, converted=None)
    if given or (options.quantize_out is not None and options.epilogue is None):
        options = _with_epilogue(options, given, named, on_host=not where.is_gpu)
    if not where.is_gpu:
        hosts |= {n: HostArray.of(x.layout) for n, x in named.items() if isinstance(x, ArraySpec)}
        own = bool(libraries) and all(x.name == "torch" for x in libraries.values())
        product = host_product(hosts, options, promotes=promotes, torch=own)
        if product is not None:
            with blaming(requested, options):
                return _plan_on_host(product, where, options, usable=usable, keep=keep)
    layouts = {n: described(x, n) for n, x in named.items()}
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


def _with_epilogue(
    options: Options, given: Mapping[str, Any], named: Mapping[str, Any], *, on_host: bool
) -> Options:
    """Return the options of a call with an epilogue; an `ArraySpec` stands for any array."""
    layouts = {name: described(x, name) for name, x in named.items()}
    in_place = "c" in given and given["c"] is named.get("out")
    vector = len(layouts["b"].shape) == 1
    options = with_second_pass(options, given, on_host=on_host, vector=vector)
    traced = traced_epilogue(
        given, layouts["a"], layouts["b"], layouts.get("out"), described, options,
        on_host=on_host, in_place=in_place,
    )  # fmt: skip
    if options.behind:
        refuse_more_results(traced.returned)
    return replace(options, epilogue=traced.epilogue, aux=traced.layouts)


def _plan_on_host(
    product: HostProduct, target: Target, options: Options, *, usable: bool, keep: int
) -> Plan:
    """Plan what NumPy's own matmul computes."""
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
    target: str | Target | None, named: dict[str, Any], hosts: dict[str, HostArray | None]
) -> Target:
    """Return the target that a caller names, else that of the arrays' device."""
    if isinstance(target, Target):
        check_target(target)
        return target
    if target is not None:
        return named_target(target)
    devices = {
        n: HOST if x is not None else library_of(named[n], n).seen(plain(named[n]), n).device
        for n, x in hosts.items()
    }
    if devices:
        return target_of(one_device(devices))
    return calibrated_target(current_index()) if device_count() else CPU
