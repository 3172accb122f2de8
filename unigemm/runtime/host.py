"""Products in host memory that NumPy's own matmul computes, because no kernel does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..arrays.numpy_arrays import viewer
from ..arrays.operands import HostArray, Operand, output_dtype
from ..errors import UnsupportedProblem
from ..planning.backend import Launcher
from ..planning.select import _named
from ..planning.target import CPU
from ..problem.block_scales import elements_of
from ..problem.dtypes import numpy_dtype
from .conversion import Described
from .numpy_matmul import HostProduct, is_for_kernels, numpy_product, refuse_casts
from .options import Options
from .torch_matmul import by_torch, may_be_torchs

__all__ = ["host_product", "launch_apart", "refuse_other_backends", "with_elements"]


def with_elements(x: Described, options: Options) -> Described:
    """Return an operand with the type that its elements have with the call's block scales."""
    assert options.blocks is not None
    return replace(x, dtype=elements_of(x.dtype, options.blocks[0].dtype))


def host_product(
    hosts: Mapping[str, HostArray | None], options: Options, *, promotes: bool, torch: bool = False
) -> HostProduct | None:
    """Return the product that a library's own matmul is to compute; None if kernels compute it.

    Parameters
    ----------
    hosts
        The arrays by their names; None for one that is on a GPU.
    options
        The options of the call.
    promotes
        Whether the library takes mixed types.
    torch
        Whether the arrays are PyTorch's.

    Raises
    ------
    UnsupportedProblem
        NumPy does not compute the product as requested either.
    """
    a, b, out = hosts["a"], hosts["b"], hosts.get("out")
    if a is None or b is None or ("out" in hosts and out is None):
        return None
    if options.scaled or options.blocks or options.epilogue or options.form:
        return None
    # A plan or a name says which kernel is wanted.
    torch = torch and options.backend == "auto" and options.plan is None
    torch = torch and not options.batch_invariant
    if is_for_kernels(a, b, out, options.dtype):
        if options.casting is not None:
            requested = out.dtype if options.dtype is None and out is not None else options.dtype
            assert a.layout is not None
            assert b.layout is not None
            dtype = numpy_dtype(output_dtype(requested, a.layout, b.layout))
            refuse_casts([a.dtype, b.dtype], dtype, options.casting)
        if not torch or not may_be_torchs(a, b):
            return None
        found = numpy_product(a, b, out, options.dtype, options.casting, promotes=promotes)
        found = None if found is None else by_torch(found)
        return None if found is None or found.by == HostProduct.by else found
    product = numpy_product(a, b, out, options.dtype, options.casting, promotes=promotes)
    if product is None:
        return None
    product = by_torch(product) if torch else product
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


def refuse_other_backends(product: HostProduct, backend: str, *, usable: bool = True) -> None:
    """Refuse a backend that a caller names where a library's own matmul multiplies.

    Raises
    ------
    UnigemmError
        It is not the one that multiplies in host memory.
    """
    if backend not in ("auto", "numpy"):
        _named(backend, CPU, usable=usable)
        raise UnsupportedProblem(
            f"NumPy's own matmul multiplies {product.loop[0]}, and backend {backend!r} "
            "does not; leave backend= out"
        )


def launch_apart(
    launch: Launcher, a: int, b: int, out: Operand, *scales: float, kept: bool = False
) -> None:
    """Compute a host product into new memory, then copy it to `out`, which shares memory.

    If it is `kept`, the product may leave parts of `out` as they are.
    """
    import numpy as np

    low, high = out.span
    memory = np.empty(high - low + 16, np.uint8)
    first = memory.ctypes.data
    address = first - low + (out.pointer + low - first) % 16  # aligned as `out` is
    view = viewer(out.shape, out.strides, out.dtype)
    if kept:
        view(address)[...] = view(out.pointer)
    launch(a, b, address, 0, 0, *scales)
    view(out.pointer)[...] = view(address)
