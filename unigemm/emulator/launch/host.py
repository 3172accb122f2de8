"""The compiled host function of a CuTe kernel, run with no CUDA: its launches come back to Python.

What the host code asks of the driver, functions here answer: a kernel's handle is a number for its
name, and a launch hands on grid, block, cluster, shared memory and parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...cache.host_code import Driver, missing, open_shared
from ..ptx.faults import EmulatorError
from ..ptx.parser import parse
from ..ptx.ptx import Kernel

__all__ = ["HostFunction", "Launch", "missing"]

_CLUSTER = 4  # cudaLaunchAttributeClusterDimension
_DEPENDENT = 6  # cudaLaunchAttributeProgrammaticStreamSerialization


class _Attribute(ctypes.Structure):
    """`cudaLaunchAttribute`: an id and 64 bytes of value."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """`cudaLaunchConfig_t`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_MAX_SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_FAILED, _NOT_FOUND = 719, 500  # CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_NOT_FOUND

_STATUS, _INT, _HANDLE = ctypes.c_int, ctypes.c_int, ctypes.c_void_p
_INTO_HANDLE, _INTO_INT = ctypes.POINTER(_HANDLE), ctypes.POINTER(_INT)
#: The driver's functions as the host code calls them: their parameters behind the status.
_SIGNATURES = {
    "launch": (ctypes.POINTER(_Config), _HANDLE, _INTO_HANDLE, _HANDLE),
    "load": (_INTO_HANDLE, *(_HANDLE,) * 3, ctypes.c_uint, *(_HANDLE,) * 2, ctypes.c_uint),
    "kernel": (_INTO_HANDLE, _HANDLE, ctypes.c_char_p),
    "get": (_INTO_INT, _INT, _HANDLE, _INT),
    "set": (_INT, _INT, _HANDLE, _INT),
    "device": (_INTO_INT, _INT, _INT),
    "use": (_HANDLE,),
    "error_name": (_STATUS, ctypes.POINTER(ctypes.c_char_p)),
}


@dataclass(frozen=True)
class Launch:
    """One launch, as the host function requested it.

    `params` are laid out as the PTX says; `dependent` is whether it may begin before the launch
    before it has ended.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    params: bytes
    dependent: bool = False


class HostFunction:
    """A host function that can be called; each of its launches goes to `launch`.

    Parameters
    ----------
    shared_object
        Of a CuTe artifact, and `ptx` its PTX.
    shared_bytes
        Shared memory that a CTA of the emulated device may have.
    launch
        Gets each launch.

    Raises
    ------
    BackendUnavailable
        It cannot be mapped here.
    """

    def __init__(self, shared_object: bytes, ptx: str, shared_bytes: int,
                 launch: Callable[[Launch], None]) -> None:  # fmt: skip
        self.module, self.launch = parse(ptx), launch
        self.error: BaseException | None = None
        self._kernels = list(self.module.kernels)
        answers: dict[str, Callable[..., int]] = {
            "launch": self._on_launch,
            "load": lambda library, *_: _put(library, 1),
            "kernel": self._on_kernel,
            "get": lambda value, *_: _put(value, 0),
            "set": lambda *_: 0,
            # All that is requested is how much shared memory a CTA may have.
            "device": lambda value, of, _: _put(value, shared_bytes) if of == _MAX_SHARED else 1,
            "use": lambda _: 0,
            "error_name": lambda *_: 1,
        }
        self._answers = {  # kept: C has their addresses
            name: ctypes.CFUNCTYPE(_STATUS, *_SIGNATURES[name])(answer)
            for name, answer in answers.items()
        }
        addresses = {n: ctypes.cast(f, _HANDLE).value or 0 for n, f in self._answers.items()}
        self._function = open_shared(shared_object, Driver(**addresses), 0, 0)

    def __call__(self, *arguments: int | float) -> None:
        """Call the host function; an error of an emulated kernel is raised here.

        Raises
        ------
        EmulatorError
            A kernel failed, or the host function itself.
        """
        self.error = None
        try:
            self._function(*arguments)
        except Exception as error:
            if self.error is not None:
                raise self.error from None
            raise EmulatorError(f"the host function failed: {error}") from error
        if self.error is not None:
            raise self.error

    def _on_kernel(self, kernel: Any, library: int, name: bytes) -> int:
        if name.decode() not in self._kernels:
            return _NOT_FOUND
        return _put(kernel, 1 + self._kernels.index(name.decode()))

    def _on_launch(self, config: Any, kernel: int, parameters: Any, extra: Any) -> int:
        try:
            name = self._kernels[kernel - 1]
            self.launch(self._described(name, config.contents, parameters))
        except BaseException as error:  # it cannot pass through C
            self.error = error
            return _FAILED
        return 0

    def _described(self, name: str, config: _Config, parameters: Any) -> Launch:
        kernel = self.module.kernels[name]
        cluster: Sequence[int] = (1, 1, 1)
        dependent = False
        for i in range(config.count):
            attribute = config.attributes[i]
            if attribute.id == _CLUSTER:
                cluster = tuple(attribute.value[:3])
            elif attribute.id == _DEPENDENT:
                dependent = bool(attribute.value[0])
        gx, gy, gz = config.grid
        bx, by, bz = config.block
        cx, cy, cz = cluster
        return Launch(
            name, (gx, gy, gz), (bx, by, bz), (cx, cy, cz), config.shared,
            _parameters(kernel, parameters), dependent,
        )  # fmt: skip


def _parameters(kernel: Kernel, pointers: Any) -> bytes:
    out = bytearray(kernel.parameter_bytes)
    for i, parameter in enumerate(kernel.parameters):
        raw = ctypes.string_at(pointers[i], parameter.size)
        out[parameter.offset : parameter.offset + parameter.size] = raw
    return bytes(out)


def _put(pointer: Any, value: int) -> int:
    """Write an answer, and say that all went well."""
    pointer[0] = value
    return 0
