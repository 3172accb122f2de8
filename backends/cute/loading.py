"""From a kernel's files to its function on a GPU; neither the compiler nor a C compiler is needed.

Where a kernel was compiled without a C compiler, and there is none here either, or its shared
object may not be mapped, CuTe DSL maps the object file itself, if it is installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from unigemm.cache.host_code import Driver, Unmapped, linked, open_shared
from unigemm.cache.scratch import file_of
from unigemm.planning.cuda_driver import current_context

from . import toolchain

__all__ = ["load_kernel"]

_DRIVER = "libcuda.so.1"
_FUNCTIONS = {
    "launch": "cuLaunchKernelEx",
    "load": "cuLibraryLoadData",
    "kernel": "cuLibraryGetKernel",
    "get": "cuKernelGetAttribute",
    "set": "cuKernelSetAttribute",
    "device": "cuDeviceGetAttribute",
    "use": "cuCtxSetCurrent",
    "error_name": "cuGetErrorName",
}


def load_kernel(files: Mapping[str, bytes]) -> Callable[..., None]:
    """Return the compiled function of an artifact's files, for the current device.

    Raises
    ------
    BackendUnavailable
        It cannot be linked or mapped here, or the driver refuses it.
    """
    try:
        return open_shared(linked(files), _driver(), *current_context())
    except Unmapped:
        if toolchain.missing() is not None or toolchain.COMPILING.abandoned:
            raise
        return _loaded_by_the_dsl(files["kernel.o"])


@cache
def _driver() -> Driver:
    """Find the driver's functions."""
    library = ctypes.CDLL(_DRIVER)
    addresses = {
        name: ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        for name, symbol in _FUNCTIONS.items()
    }
    return Driver(**addresses)


def _loaded_by_the_dsl(data: bytes) -> Callable[..., None]:
    import cutlass.cute as cute

    with file_of(data) as path:
        module = cute.runtime.load_module(path, enable_tvm_ffi=True)
    _LOADED.append(module)
    return getattr(module, toolchain.FUNCTION)


_LOADED: list[Any] = []  # functions do not keep their modules alive
