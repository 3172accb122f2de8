"""The host code of CuTe kernels: mapping it, and what of CUDA it calls.

A kernel's host code builds the launch: grid, parameters, TMA descriptors. It calls functions of the
CUDA runtime by names of CuTe DSL's own. `open_shared` hands in others, over the driver's or the
emulator's: so it runs where there is neither the DSL nor a C compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from ..errors import BackendUnavailable, UnigemmError
from ..support.extras import install_command
from .scratch import file_of

__all__ = ["FUNCTION", "Driver", "missing", "open_shared"]

FUNCTION = "gemm"  # the exported symbol of every kernel

_INT, _HANDLE, _INDEX = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint
_INTO, _TEXT = ctypes.POINTER(_HANDLE), ctypes.c_char_p
_INTO_INT, _TEXTS = ctypes.POINTER(_INT), ctypes.POINTER(_TEXT)
_STATUS = _INT
#: The driver's functions as they are called here: their parameters.
_LOAD = ctypes.CFUNCTYPE(
    _STATUS, _INTO, _HANDLE, _HANDLE, _HANDLE, _INDEX, _HANDLE, _HANDLE, _INDEX
)
_SET = ctypes.CFUNCTYPE(_STATUS, _INT, _INT, _HANDLE, _INT)
_ERROR_NAME = ctypes.CFUNCTYPE(_STATUS, _STATUS, _TEXTS)
#: Raises an error: its kind, and its words in parts.
_RAISE = ctypes.CFUNCTYPE(None, _TEXT, _TEXTS, _INT)


class Driver(NamedTuple):
    """Addresses of the driver's functions."""

    launch: int
    load: int
    kernel: int
    get: int
    set: int
    device: int
    use: int
    error_name: int


@cache
def missing() -> str | None:
    """Say what must be installed to run host code; None when all is."""
    try:
        version("apache-tvm-ffi")  # importing it brings PyTorch along, where that is installed
    except PackageNotFoundError:
        return (
            f"the package apache-tvm-ffi is not installed; {install_command('cute')}, or on a node "
            f"that compiles nothing {install_command('run')}"
        )
    return None


@cache
def _ffi() -> Any:
    import tvm_ffi

    # The host code raises it by name.
    tvm_ffi.register_error(UnigemmError.__name__, UnigemmError)
    return tvm_ffi


def open_shared(data: bytes, driver: Driver, device: int, context: int) -> Callable[..., None]:
    """Map a shared object, load its kernels for a device, and return its function.

    What is mapped are these bytes and no others: a file that only this process has.

    Parameters
    ----------
    data
        Of an artifact, as `unigemm.backends.cute.linking` makes it.
    driver
        The functions that it calls.
    device, context
        The driver's handles of the device and of its primary context, which threads get that have
        no context.

    Raises
    ------
    BackendUnavailable
        It cannot be mapped here, or the driver refuses its kernels.
    """
    # `tvm_ffi.load_module` learns the format from a suffix, which a file in memory lacks.
    load = _ffi().get_global_func("ffi.Module.load_from_file.so")
    try:
        with file_of(data) as path:
            library = ctypes.CDLL(path)
            module = load(path, "so")
    except (RuntimeError, OSError) as error:
        raise BackendUnavailable(
            f"its host code cannot be mapped ({error}); allow this process to map files to run, or "
            "name another backend="
        ) from error
    functions = _functions(driver, device)
    _LOADED.append((module, functions))
    addresses = {name: ctypes.cast(f, _HANDLE).value for name, f in functions.items()}
    for name, address in {**addresses, "context": context}.items():
        _HANDLE.in_dll(library, f"slot_{name}").value = address
    kernels = _HANDLE()
    status = getattr(library, f"__cute_internal_{FUNCTION}_cuda_init")(ctypes.byref(kernels))
    if not status:
        load_to_device = getattr(library, f"__cute_internal_{FUNCTION}_cuda_load_to_device")
        status = load_to_device(ctypes.byref(kernels), device)
    if status:
        raise BackendUnavailable(
            f"the driver does not load its kernels ({_error_name(driver, status).decode()}); "
            "update the driver, or name another backend="
        )
    return getattr(module, FUNCTION)


_LOADED: list[Any] = []  # functions keep neither their modules alive, nor what those call


def _functions(driver: Driver, device: int) -> dict[str, Any]:
    """Return what host code calls, by the slots that it is handed.

    Those of Python are called while kernels are loaded, and by a launch that failed.
    """
    load, set_attribute = _LOAD(driver.load), _SET(driver.set)
    own = ctypes.CDLL(None)  # tvm_ffi's are known to the whole process

    @ctypes.CFUNCTYPE(_STATUS, _INTO, _HANDLE)
    def load_data(into: Any, code: int) -> int:
        return load(into, code, None, None, 0, None, None, 0)

    @ctypes.CFUNCTYPE(_STATUS, _INTO_INT)
    def current(into: Any) -> int:
        into[0] = device
        return 0

    @ctypes.CFUNCTYPE(_STATUS, _HANDLE, _INT, _INT)
    def set_here(kernel: int, attribute: int, value: int) -> int:
        return set_attribute(attribute, value, kernel, device)

    @ctypes.CFUNCTYPE(_STATUS, _HANDLE, _INT, _INT, _INT)
    def set_there(kernel: int, attribute: int, value: int, on: int) -> int:
        return set_attribute(attribute, value, kernel, on)

    @ctypes.CFUNCTYPE(None, _RAISE, _STATUS)
    def refused(set_raised: Any, status: int) -> None:
        words = b"the CUDA driver refused to launch a CuTe kernel: ", _error_name(driver, status)
        set_raised(UnigemmError.__name__.encode(), (_TEXT * 2)(*words), 2)

    return {
        "launch": _HANDLE(driver.launch),
        "use": _HANDLE(driver.use),
        "_cudaLibraryLoadData": load_data,
        "_cudaLibraryGetKernel": _HANDLE(driver.kernel),
        "_cuKernelGetAttribute": _HANDLE(driver.get),
        "_cudaKernelSetAttributeForDevice": set_there,
        "_cudaFuncSetAttribute": set_here,
        "_cudaDeviceGetAttribute": _HANDLE(driver.device),
        "_cudaGetDevice": current,
        "CuteDSLRT_TVMFFISetRaisedCudaError": refused,
        "TVMFFIErrorSetRaisedFromCStr": own.TVMFFIErrorSetRaisedFromCStr,
        "TVMFFIErrorSetRaisedFromCStrParts": own.TVMFFIErrorSetRaisedFromCStrParts,
    }


def _error_name(driver: Driver, status: int) -> bytes:
    name = _TEXT()
    _ERROR_NAME(driver.error_name)(status, ctypes.byref(name))
    return name.value or b"an unknown error"
