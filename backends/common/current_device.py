"""The device that a thread works on, for functions of the CUDA driver."""

from __future__ import annotations

from typing import Any

from unigemm.errors import UnigemmError

__all__ = ["current_device", "done"]


def current_device() -> tuple[int, int]:
    """Return the driver's handles of the current device and of its context.

    A thread that has used no CUDA yet has no context, and the driver then loads and launches
    nothing. It gets the primary one, as from the CUDA runtime.

    Raises
    ------
    UnigemmError
        The driver refuses.
    """
    from cuda.bindings import driver

    (context,) = done(driver, driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
    if not int(context):
        from cuda.core import Device

        Device().set_current()
        (context,) = done(driver, driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
    (device,) = done(driver, driver.cuCtxGetDevice(), "cuCtxGetDevice")
    return int(device), int(context)


def done(driver: Any, answer: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    """Return what a function of `cuda.bindings.driver` answers beside its status.

    Raises
    ------
    UnigemmError
        It failed.
    """
    status, *values = answer
    if int(status):
        name = driver.cuGetErrorName(status)[1]
        name = name.decode() if isinstance(name, bytes) else status
        raise UnigemmError(f"the CUDA driver refused: {what} gave {name}")
    return tuple(values)
