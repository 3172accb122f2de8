"""The host code of CuTe kernels: linking it, mapping it, and what of CUDA it calls.

A kernel's object file builds the launch: grid, parameters, TMA descriptors. It calls functions of
the CUDA runtime by names of CuTe DSL's own. ``cuda_runtime.c`` has these over the driver's, and is
linked with each kernel, so that the shared object runs where there is neither the DSL nor a C
compiler. It finds no function of the driver by itself: `open_shared` hands them in, on a GPU the
driver's, and the emulator its own.
"""

from __future__ import annotations

import ctypes
import os
import pkgutil
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import BackendUnavailable, UnigemmError
from ..support.extras import install_command
from ..support.log import LOG
from .scratch import file_of, scratch_folder

__all__ = [
    "FUNCTION",
    "Driver",
    "Unmapped",
    "link",
    "linked",
    "missing",
    "open_shared",
    "runtime_source",
]

FUNCTION = "gemm"  # the exported symbol of every kernel
_RUNTIME = "cuda_runtime.c"
# No symbol table, identifier or note that names the compiler: equal kernels have equal bytes.
_FLAGS = (
    *("-shared", "-nostdlib", "-fPIC", "-O2", "-ffreestanding", "-fno-stack-protector"),
    *("-fno-ident", "-fvisibility=hidden", "-s", "-Wl,-Bsymbolic", "-Wl,--build-id=none"),
)


class Unmapped(BackendUnavailable):
    """Host code cannot be linked or mapped here; the kernels themselves may be good."""


class Driver(ctypes.Structure):
    """Addresses of the driver's functions, in the order of ``struct driver``."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in ("launch", "load", "kernel", "get", "set", "device", "use", "error_name")
    )


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


def runtime_source() -> bytes:
    """Return the C source that is linked with each kernel; it may lie in an archive."""
    return pkgutil.get_data(__package__, _RUNTIME) or b""


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def link(target: Path) -> bytes | None:
    """Make a shared object of an object file; None where no C compiler does.

    Parameters
    ----------
    target
        The object file, alone in a private folder.
    """
    compiler = _compiler()
    if compiler is None:
        return None
    source, out = target.with_name(_RUNTIME), target.with_suffix(".so")
    source.write_bytes(runtime_source())
    # No LD_RUN_PATH, LIBRARY_PATH or GCC_EXEC_PREFIX: they would be part of what is made.
    environment = {k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH") if k in os.environ}
    environment["TMPDIR"] = str(target.parent)
    command = [compiler, *_FLAGS, "-o", out.name, target.name, source.name]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, cwd=target.parent
    )
    if done.returncode:
        LOG.info("%s did not link a kernel: %s", compiler, done.stderr.strip())
        return None
    return out.read_bytes()


def linked(files: Mapping[str, bytes]) -> bytes:
    """Return the shared object of an artifact's files, linked now if it was compiled without one.

    Raises
    ------
    Unmapped
        No C compiler was there when it was compiled, and none is here.
    """
    data = files.get("kernel.so")
    if data is None:
        with scratch_folder() as folder:
            target = folder / "kernel.o"
            target.write_bytes(files["kernel.o"])
            data = link(target)
    if data is None:
        raise Unmapped(
            "it was compiled where no C compiler links (cc, gcc or clang), nor does one here; "
            "compile it again where one is in PATH, or install one here"
        )
    return data


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
        From `linked`.
    driver
        The functions that it calls.
    device, context
        The driver's handles of the device and of its primary context, which threads get that have
        no context.

    Raises
    ------
    Unmapped
        It cannot be mapped here.
    BackendUnavailable
        The driver refuses its kernels.
    """
    # `tvm_ffi.load_module` learns the format from a suffix, which a file in memory lacks.
    load = _ffi().get_global_func("ffi.Module.load_from_file.so")
    try:
        with file_of(data) as path:
            library = ctypes.CDLL(path)
            module = load(path, "so")
    except (RuntimeError, OSError) as error:
        raise Unmapped(
            f"its host code cannot be mapped ({error}); allow this process to map files to run, or "
            "name another backend="
        ) from error
    start = library.unigemm_open
    start.argtypes = ctypes.POINTER(Driver), ctypes.c_int, ctypes.c_void_p
    status = start(ctypes.byref(driver), device, context)
    if status:
        raise BackendUnavailable(
            f"the driver does not load its kernels ({_error_name(driver, status)}); update the "
            "driver, or name another backend="
        )
    _LOADED.append(module)
    return getattr(module, FUNCTION)


_LOADED: list[Any] = []  # functions do not keep their modules alive


def _error_name(driver: Driver, status: int) -> str:
    name = ctypes.c_char_p()
    ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
    ask(driver.error_name)(status, ctypes.byref(name))
    return (name.value or b"an unknown error").decode()
