"""The type of a product's result, before there is an array for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import host_view, library_of
from ..arrays.library import Library
from ..arrays.operands import (
    HOST,
    Device,
    HostArray,
    compact_strides,
    one_device,
    output_dtype,
    parse_dtype,
)
from ..errors import DeviceMismatch, UnsupportedDtype
from ..problem.canonical import Layout
from ..problem.dtypes import COMPLEX, CONVERTED, EXACT, DType, scaled_default
from .conversion import Described, read_as, with_conversion
from .host import host_product
from .numpy_matmul import numpy_product
from .options import Options, check_options
from .request import Request
from .scale_arguments import NO_SCALES

__all__ = [
    "complex_type",
    "conjugated",
    "described",
    "described_type",
    "device_of",
    "is_complex",
    "plain",
    "shared_device",
]


def device_of(library: Library, x: object, name: str) -> Device:
    """Return the device of an array, also of one in host memory that no kernel reads."""
    return HOST if host_view(library, x, name) is not None else library.seen(x, name).device


def described(x: Any, name: str) -> Layout:
    """Return the layout of an array, or of one that an `ArraySpec` describes."""
    return x.layout if isinstance(x, ArraySpec) else library_of(x, name).layout(x, name)


def shared_device(devices: Mapping[str, Device]) -> Device:
    """Return the device that all arrays of a product are on.

    Raises
    ------
    DeviceMismatch
        They are on different devices.
    """
    multiplied = {name: devices[name] for name in ("a", "b", "out") if name in devices}
    device = one_device(multiplied or devices)
    for name, own in devices.items():
        if own != device:
            raise DeviceMismatch(f"{name} is on {own} and a is on {device}; move it")
    return device


def is_complex(request: Request, *, on_host: bool) -> bool:
    """Whether a request is of a complex product that kernels compute by its parts.

    On the host these are products with an epilogue; others are NumPy's own.
    """
    if request.operation != "matmul" or (on_host and not (request.arguments() or request.scales())):
        return False
    return any(_is_complex_array(x, name) for x, name in ((request.a, "a"), (request.b, "b")))


def _is_complex_array(x: Any, name: str) -> bool:
    if not isinstance(x, ArraySpec):
        library = library_of(x, name)
        host = host_view(library, x, name)
        if host is not None:
            return host.dtype.kind == "c"
        # Of a lazily conjugated tensor that which it is a view of tells the type.
        x = library.operand(plain(x), name)
    return x.dtype in COMPLEX


def conjugated(x: Any) -> bool:
    """Whether an array is a lazily conjugated view, as PyTorch has them."""
    ask = getattr(x, "is_conj", None)
    return ask is not None and bool(ask())


def plain(x: Any) -> Any:
    """Return a lazily conjugated view as what it is a view of, and any other array as it is."""
    return x.conj() if conjugated(x) else x


def complex_type(request: Request, a: Described, b: Described, *, promotes: bool) -> DType:
    """Return the type of a complex product that kernels compute, by NumPy's promotion.

    Parameters
    ----------
    request
        The call.
    a, b
        Its operands, or their layouts.
    promotes
        Whether the library converts mixed types. Else both operands have one type.

    Raises
    ------
    UnsupportedDtype
        The operands are mixed and the library does not promote them, one is neither real nor
        complex, or `casting` forbids what is requested.
    """
    out = None
    if request.results:
        given = request.results[0]
        shape = tuple(given.shape)
        kind = parse_dtype(given.dtype)
        out = HostArray.of(Layout(shape, compact_strides(shape), kind))
    for name, x in zip("ab", (a, b), strict=True):
        if x.dtype not in (*COMPLEX, *CONVERTED):
            raise UnsupportedDtype(
                f"{name} is {x.dtype}, which is not multiplied by the parts of complex numbers; "
                "convert it to complex64 or complex128"
            )
    product = numpy_product(
        HostArray.of(a), HostArray.of(b), out, request.dtype, request.casting, promotes=promotes
    )
    found = None if product is None else parse_dtype(product.loop[2])
    written = found if out is None or found is None else parse_dtype(out.dtype)
    if found is None or found not in COMPLEX or written not in COMPLEX:
        raise UnsupportedDtype(
            f"a is {a.dtype} and b is {b.dtype}, which give a complex product, and the result is "
            f"to be {written}; pass a complex out or dtype="
        )
    return found


def described_type(request: Request, *, on_host: bool, promotes: bool) -> DType:
    """Return the type of the new array that a request without `out` gives.

    Parameters
    ----------
    request
        The call; `a` and `b` are described by an `ArraySpec`.
    on_host
        Whether they are in host memory.
    promotes
        Whether their library converts mixed types.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`; not all that is wrong is found here.
    """
    a, b = (x.layout for x in (request.a, request.b) if isinstance(x, ArraySpec))
    hosts = {"a": HostArray.of(a), "b": HostArray.of(b)}
    found = _of_host(request, hosts, promotes=promotes) if on_host else None
    return found or _of_kernels(request, a, b, on_host=on_host, promotes=promotes)


def _of_host(
    request: Request, hosts: Mapping[str, HostArray | None], *, promotes: bool
) -> DType | None:
    """Return the type of what NumPy's own matmul computes; None if kernels compute it."""
    options = Options.of(request, NO_SCALES, scaled=bool(request.scales()))
    check_options(options)
    if request.arguments():
        return None
    product = host_product(hosts, options, promotes=promotes)
    return None if product is None else parse_dtype(product.dtype)


def _of_kernels(
    request: Request, a: Described, b: Described, *, on_host: bool, promotes: bool
) -> DType:
    requested, has_epilogue = request.dtype, bool(request.arguments())
    if a.dtype is DType.INT8 and request.scales():  # the epilogue multiplies by them
        requested, has_epilogue = scaled_default(a.dtype) if requested is None else requested, True
    if any(x.dtype in COMPLEX for x in (a, b)) and (has_epilogue or not on_host):
        return complex_type(request, a, b, promotes=promotes)
    if has_epilogue or not on_host:  # other products that are converted there are NumPy's own
        options = Options.of(request, NO_SCALES, scaled=not has_epilogue and bool(request.scales()))
        named = {"a": a, "b": b}
        options = with_conversion(named, options, has_epilogue=has_epilogue, promotes=promotes)
        if options.converted is not None and (not has_epilogue or options.converted in EXACT):
            return parse_dtype(options.dtype)
        a, b = read_as(a, options), read_as(b, options)
    return output_dtype(requested, a, b, on_host=on_host, epilogue=has_epilogue)
