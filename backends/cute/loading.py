"""From a kernel's files to its function on a GPU, without the compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache

from unigemm.cache.host_code import Driver, open_shared
from unigemm.planning.cuda_driver import current_context

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
        It cannot be mapped here, or the driver refuses it.
    """
    return open_shared(files["kernel.so"], _driver(), *current_context())


@cache
def _driver() -> Driver:
    """Find the driver's functions."""
    library = ctypes.CDLL(_DRIVER)
    addresses = {
        name: ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
        for name, symbol in _FUNCTIONS.items()
    }
    return Driver(**addresses)
