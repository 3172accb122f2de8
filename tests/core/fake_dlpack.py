"""The least that a library with DLPack can be: arrays that export themselves, field by field."""

from __future__ import annotations

import ctypes

import numpy as np

CPU, CUDA, METAL = 1, 2, 8  # DLDeviceType
FLOAT, INT, BFLOAT = 2, 0, 4  # DLDataTypeCode
FLOAT8 = {"float8_e4m3fn": 10, "float8_e5m2": 12}


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensor))
DLManagedTensor._fields_ = (
    ("tensor", DLTensor),
    ("context", ctypes.c_void_p),
    ("deleter", Deleter),
)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class OnlyDLPack:
    """An array of a library that has DLPack and nothing more."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Exporter:
    """An array over a NumPy array's memory that offers DLPack and nothing else.

    `lent` counts the exports that are still held; `streams` are those it was to wait for.
    """

    def __init__(self, array, device=(CPU, 0), code=None, compact=False, before=0):
        self.array, self.device, self.compact, self.before = array, device, compact, before
        known = {"bfloat16": BFLOAT, "int8": INT, "int32": INT, **FLOAT8}
        self.code = known.get(array.dtype.name, FLOAT) if code is None else code
        self.lent = 0
        self.streams = []
        self._kept = []  # exports are never freed: tests make few

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **options):
        self.streams.append(stream)
        x = self.array
        extents = (ctypes.c_int64 * max(x.ndim, 1))(*x.shape)
        steps = (ctypes.c_int64 * max(x.ndim, 1))(*(s // x.itemsize for s in x.strides))
        tensor = DLTensor(
            x.ctypes.data - self.before,
            *self.device,
            x.ndim,
            self.code,
            x.itemsize * 8,
            1,
            extents,
            None if self.compact else steps,
            self.before,
        )

        def back(pointer):
            self.lent -= 1

        managed = DLManagedTensor(tensor, None, Deleter(back))
        self._kept.append((managed, extents, steps))
        self.lent += 1
        return new_capsule(ctypes.addressof(managed), b"dltensor", None)


class Liar(Exporter):
    """An array whose export does not describe its memory: `lies` are fields of its `DLTensor`.

    Tuples are lists of 64-bit integers.
    """

    def __init__(self, array, lies, **options):
        super().__init__(array, **options)
        self.lies = lies

    def __dlpack__(self, **options):
        capsule = super().__dlpack__(**options)
        managed = self._kept[-1][0]
        for field, value in self.lies.items():
            if isinstance(value, tuple):
                numbers = (ctypes.c_int64 * len(value))(*value)
                self._kept.append((numbers,))
                value = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_int64))
            setattr(managed.tensor, field, value)
        return capsule


class Placed:
    """An array of a library that has several devices, all of them in host memory."""

    def __init__(self, array, device):
        self.array, self.device = array, device

    def __array_namespace__(self, *, api_version=None):
        return Placed

    @staticmethod
    def from_dlpack(array):
        return Placed(np.from_dlpack(array), "first")

    def to_device(self, device):
        return Placed(self.array, device)

    def __dlpack_device__(self):
        return CPU, 0

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


class Library:
    """What `__array_namespace__` returns: takes arrays in by DLPack, or NumPy's as they are."""

    def __init__(self):
        self.taken = []

    def from_dlpack(self, array):
        self.taken.append(array)
        return Namespaced(array, self)

    asarray = from_dlpack


class Namespaced(Exporter):
    """An array of a library that takes results back."""

    def __init__(self, array, library, **options):
        super().__init__(array, **options)
        self.library = library

    def __array_namespace__(self, *, api_version=None):
        return self.library


def shifted(array, shift):
    """Return a copy that starts `shift` bytes after an address that 64 divides."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + shift
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
