"""Which array library an object belongs to.

A library is found among the modules that are already imported, and remembered by the array's type.
This module never imports a library first. Each has a module of its own here (`numpy_arrays`,
`cupy_arrays`, `torch_arrays`); all others go through `dlpack_arrays`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ..errors import LibraryMismatch, UnsupportedProblem
from .array_spec import ArraySpec
from .library import KNOWN, Library, is_written
from .operands import HOST, HostArray, Operand

__all__ = ["as_array", "host_view", "library_of", "one_library", "view"]


def library_of(x: Any, name: str) -> Library:
    """Return the library of an array, and remember it for the type.

    Parameters
    ----------
    x
        Anything.
    name
        The argument's name, for errors.

    Raises
    ------
    LibraryMismatch
        The object is no array, or of a type that means more than its numbers (masks, units).
    """
    kind = type(x)
    library = KNOWN.get(kind)
    if library is None:
        library = KNOWN[kind] = _find(x, kind, name)
    return library


def one_library(named: Mapping[str, Any]) -> Library:
    """Return the library that arrays belong to, by name.

    Raises
    ------
    LibraryMismatch
        The arrays belong to different libraries, or one is no array.
    """
    libraries = {name: library_of(x, name) for name, x in named.items()}
    if len(set(libraries.values())) > 1:
        kinds = ", ".join(f"{name} is {library.noun}" for name, library in libraries.items())
        raise LibraryMismatch(
            f"{kinds}; pass arrays of one library (from_dlpack converts without a copy)"
        )
    return next(iter(libraries.values()))


def as_array(x: Any, name: str) -> Any:
    """Return the NumPy array of a list or a number; arrays are returned as they are.

    Raises
    ------
    UnsupportedProblem
        Lists of different lengths.
    """
    kind = type(x)
    if kind in KNOWN or not _is_like_an_array(kind):
        return x
    import numpy as np

    try:
        return np.asarray(x)
    except ValueError as error:
        raise UnsupportedProblem(
            f"{name} is no array to NumPy ({error}); pass lists of equal lengths"
        ) from error


def _is_like_an_array(kind: type) -> bool:
    """Whether NumPy can make an array of a type that means the same.

    False for a type that has its own rules for products.
    """
    if issubclass(kind, (list, tuple, int, float, complex, memoryview)):
        return True
    module = kind.__module__.partition(".")[0]
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    if generic is not None and issubclass(kind, generic):
        return True
    own = ("__array_ufunc__", "__dlpack__", "__cuda_array_interface__")
    if module in ("jax", "jaxlib") or any(getattr(kind, name, None) is not None for name in own):
        return False
    return hasattr(kind, "__array__") or hasattr(kind, "__array_interface__")


def view(x: Any, name: str) -> Operand:
    """Return an array of any library as an `Operand`.

    Raises
    ------
    UnsupportedProblem
        The array cannot be multiplied; subclasses of the error say why.
    """
    return library_of(x, name).operand(x, name)


def host_view(library: Library, x: Any, name: str) -> HostArray | None:
    """Return an array in host memory as NumPy sees it, or None if it is on a GPU.

    Raises
    ------
    UnsupportedProblem
        The array cannot be read.
    """
    if library.host is not None:
        return library.host(x, name)
    operand = library.seen(x, name)
    return HostArray.of(operand) if operand.device == HOST else None


def _find(x: Any, kind: type, name: str) -> Library:
    for module, attribute, build in _ADAPTED:
        base = getattr(sys.modules.get(module), attribute, None)
        if base is not None and issubclass(kind, base):
            return build(kind, name)
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        from . import dlpack_arrays

        return dlpack_arrays.library(kind)
    if kind.__module__.startswith("jax."):
        advice = (
            "it is only traced, by jax.jit or the like: use unigemm.jax.matmul, or call outside"
        )
    elif kind.__module__.startswith("torch.fx."):
        advice = "symbolic tracing holds no data: name a function that calls it in torch.fx.wrap"
    elif isinstance(x, ArraySpec):
        advice = "plan() takes an ArraySpec; matmul needs an array"
    elif hasattr(kind, "__cuda_array_interface__"):
        advice = f"pass cupy.asarray({name}), which shares its memory"
    elif x is None or is_written(name):
        advice = "pass an array"  # a copy would be written instead
    else:
        advice = f"pass numpy.asarray({name}), or an array with __dlpack__"
    raise LibraryMismatch(f"{name} is of type {kind.__qualname__}, no array; {advice}")


def _numpy(kind: type, name: str) -> Library:
    from . import numpy_arrays

    return numpy_arrays.library(kind, name)


def _cupy(kind: type, name: str) -> Library:
    from . import cupy_arrays

    return cupy_arrays.library(kind, name)


def _torch(kind: type, name: str) -> Library:
    from . import torch_arrays

    return torch_arrays.library(kind, name)


_ADAPTED = (
    ("numpy", "ndarray", _numpy),
    ("cupy", "ndarray", _cupy),
    ("torch", "Tensor", _torch),
)
