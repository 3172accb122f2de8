"""The CUDA driver: what a device is, and which one a thread works on.

Through cuda.bindings: cuda.core says the same, and takes ten times as long to import.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..errors import BackendUnavailable, UnigemmError
from ..support.extras import install_command

__all__ = ["attribute", "current_context", "current_index", "device_name", "done", "driver"]


@cache
def driver() -> Any:
    """Return `cuda.bindings.driver`, initialised.

    Raises
    ------
    BackendUnavailable
        It is not installed, or there is no driver that works.
    """
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise BackendUnavailable(
            f"a GPU is reached through cuda-bindings, which does not import ({error}); "
            f"{install_command('cuda')}"
        ) from error
    try:
        done(bindings, bindings.cuInit(0), "cuInit")
    except Exception as error:  # each version of cuda-bindings has another for a missing driver
        raise BackendUnavailable(
            f"there is no CUDA driver here that works ({error}); install or update it"
        ) from error
    return bindings


def done(bindings: Any, answer: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    """Return what a function of the driver answers beside its status.

    Raises
    ------
    UnigemmError
        It failed.
    """
    status, *values = answer
    if int(status):
        name = bindings.cuGetErrorName(status)[1]
        name = name.decode() if isinstance(name, bytes) else status
        raise UnigemmError(f"the CUDA driver refused: {what} gave {name}; see that it works at all")
    return tuple(values)


def _device(index: int) -> Any:
    return done(driver(), driver().cuDeviceGet(index), "cuDeviceGet")[0]


def device_name(index: int) -> str:
    """Return a device's name, such as ``"NVIDIA H100 80GB HBM3"``."""
    (name,) = done(driver(), driver().cuDeviceGetName(256, _device(index)), "cuDeviceGetName")
    return name.split(b"\0", 1)[0].decode()


def attribute(index: int, name: str) -> int:
    """Return an attribute of a device, by its name behind ``CU_DEVICE_ATTRIBUTE_``."""
    of = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    answer = driver().cuDeviceGetAttribute(of, _device(index))
    return int(done(driver(), answer, "cuDeviceGetAttribute")[0])


def current_index() -> int:
    """Return the device of the calling thread; 0, as for the CUDA runtime, where it has none yet.

    Raises
    ------
    UnigemmError
        The driver refuses.
    """
    (context,) = done(driver(), driver().cuCtxGetCurrent(), "cuCtxGetCurrent")
    if not int(context):
        return 0
    return int(done(driver(), driver().cuCtxGetDevice(), "cuCtxGetDevice")[0])


def current_context() -> tuple[int, int]:
    """Return the driver's handles of the current device and of its context.

    A thread that has used no CUDA yet has no context, and the driver then loads and launches
    nothing. It gets the primary one, as from the CUDA runtime.

    Raises
    ------
    UnigemmError
        The driver refuses.
    """
    (context,) = done(driver(), driver().cuCtxGetCurrent(), "cuCtxGetCurrent")
    if not int(context):
        context = _primary(current_index())
        done(driver(), driver().cuCtxSetCurrent(context), "cuCtxSetCurrent")
    (device,) = done(driver(), driver().cuCtxGetDevice(), "cuCtxGetDevice")
    return int(device), int(context)


@cache  # it is retained once, as long as the process lives
def _primary(index: int) -> Any:
    answer = driver().cuDevicePrimaryCtxRetain(_device(index))
    return done(driver(), answer, "cuDevicePrimaryCtxRetain")[0]
