"""Exports through DLPack, checked before anything relies on them.

A capsule holds C structures that its consumer reads as they are. Which memory they describe only
the producer knows; that their fields fit together is checked here.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..errors import UnsupportedProblem

__all__ = ["CUDA_KINDS", "HOST_KINDS", "Export"]

# DLDeviceType of dlpack.h: kDLCPU and kDLCUDAHost; kDLCUDA and kDLCUDAManaged.
HOST_KINDS = (1, 3)
CUDA_KINDS = (2, 13)
_MAX_DIMENSIONS = 64  # NumPy's limit


class _Tensor(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """`DLManagedTensorVersioned`."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Export:
    """An array that passes on the export of another one, after checking it.

    Parameters
    ----------
    array
        Anything with ``__dlpack__`` and ``__dlpack_device__``.
    """

    def __init__(self, array: Any) -> None:
        kind, index = map(int, array.__dlpack_device__())
        self.array = array  # keeps the memory alive, which the capsule should do, too
        self.device = kind, index

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.array.__dlpack__(**options)
        name = _name_of(capsule)  # raises for what is no capsule
        if name == b"dltensor":
            tensor = _Tensor.from_address(_pointer_of(capsule, name))
        elif name == b"dltensor_versioned":
            managed = _Versioned.from_address(_pointer_of(capsule, name))
            if managed.major != 1:
                raise UnsupportedProblem(
                    f"its export is of version {managed.major} of DLPack; versions 0 and 1 are read"
                )
            tensor = managed.tensor
        else:
            raise UnsupportedProblem("its export has been consumed already")
        told = tensor.device_kind, tensor.device_index
        if told != self.device and not (self.device[0] == told[0] in HOST_KINDS):
            raise UnsupportedProblem(
                f"it says that it is on device {self.device} and exports memory of {told}"
            )
        if not 0 <= tensor.ndim <= _MAX_DIMENSIONS or (tensor.ndim and not tensor.shape):
            raise UnsupportedProblem(
                f"its export has {tensor.ndim} dimensions"
                + ("" if tensor.shape else " and no extents")
            )
        if tensor.byte_offset >> 63:
            raise UnsupportedProblem("its export starts at an offset that no memory has")
        return capsule
