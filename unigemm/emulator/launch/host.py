"""The compiled host function of a CuTe kernel, run with no CUDA: its launches come back to Python.

The object file is linked with a stand-in for the CUDA runtime (``stand_in.c``), whose functions
answer what the host code asks and hand on grid, block, cluster, shared memory and parameters.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pkgutil
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...cache.scratch import kept_folder
from ...errors import BackendUnavailable
from ...extras import install_command
from ..ptx.faults import EmulatorError
from ..ptx.parser import parse
from ..ptx.ptx import Kernel, Module

__all__ = ["HostFunction", "Launch", "missing", "open_host"]

FUNCTION = "gemm"  # as the CuTe backends export it
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


_LAUNCHER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_Config), ctypes.POINTER(ctypes.c_void_p)
)


@dataclass(frozen=True)
class Launch:
    """One launch, as the host function asked for it.

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


def missing() -> str | None:
    """Say what a host function needs and this machine lacks; None when nothing."""
    if _compiler() is None:
        return "it links the host code with a C compiler, and there is none (cc, gcc or clang)"
    try:
        import tvm_ffi  # noqa: F401
    except ImportError:
        return f"the package apache-tvm-ffi is not installed; {install_command('cute')}"
    return None


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


class HostFunction:
    """A host function that can be called; each of its launches goes to `launch`."""

    def __init__(self, path: Path, module: Module, shared_bytes: int,
                 launch: Callable[[Launch], None]) -> None:  # fmt: skip
        import tvm_ffi

        self.module, self.launch = module, launch
        self.error: BaseException | None = None
        self._library = ctypes.CDLL(str(path))
        self._callback = _LAUNCHER(self._on_launch)  # kept: C has its address
        self._library.unigemm_emulator_connect(self._callback, ctypes.c_int(shared_bytes))
        self._loaded = tvm_ffi.load_module(str(path))
        self._function = getattr(self._loaded, FUNCTION)

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

    def _on_launch(self, name: bytes, config: Any, parameters: Any) -> int:
        try:
            self.launch(self._described(name.decode(), config.contents, parameters))
        except BaseException as error:  # it cannot pass through C
            self.error = error
            return 719  # cudaErrorLaunchFailure
        return 0

    def _described(self, name: str, config: _Config, parameters: Any) -> Launch:
        kernel = self.module.kernels.get(name)
        if kernel is None:
            raise EmulatorError(f"the host function launches {name!r}, which is not in the PTX")
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


def open_host(
    object_file: bytes, ptx: str, shared_bytes: int, launch: Callable[[Launch], None]
) -> HostFunction:
    """Link and load a host function.

    Parameters
    ----------
    object_file
        ``kernel.o`` of a CuTe artifact, and `ptx` its PTX.
    shared_bytes
        Shared memory that a CTA of the emulated device may have.
    launch
        Gets each launch.

    Raises
    ------
    BackendUnavailable
        There is no C compiler, or no TVM-FFI.
    """
    reason = missing()
    if reason is not None:
        raise BackendUnavailable(f"the emulator cannot run host code: {reason}")
    target = _folder() / f"host{next(_NUMBERS)}.so"
    source = target.with_suffix(".o")
    source.write_bytes(object_file)
    # -Bsymbolic: these functions and no others, even where the real runtime is loaded.
    _run([_compiler(), "-shared", "-Wl,-Bsymbolic", "-o", target, source, _stand_in()])
    source.unlink()
    return HostFunction(target, parse(ptx), shared_bytes, launch)


@cache
def _folder() -> Path:
    try:
        return kept_folder()  # the libraries are mapped until the process ends
    except OSError as error:
        raise BackendUnavailable(
            f"the emulator has no folder for host code ({error}); set TMPDIR to one that you and "
            "nobody else can write"
        ) from error


_NUMBERS = itertools.count()


@cache
def _stand_in() -> Path:
    target, source = _folder() / "stand_in.o", _folder() / "stand_in.c"
    source.write_bytes(pkgutil.get_data(__package__, "stand_in.c") or b"")  # also from an archive
    _run([_compiler(), "-O1", "-fPIC", "-c", "-o", target, source])
    return target


def _run(command: Sequence[Any]) -> None:
    environment = {**os.environ, "TMPDIR": str(_folder())}  # where a compiler's parts meet
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise EmulatorError(f"{command[0]} failed: {done.stderr.strip()}")
