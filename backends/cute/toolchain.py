"""CuTe DSL as a compiler: a host function in, an artifact out; and an artifact's files to a call.

A kernel is kept as an object file with its machine code inside. Where a linker is at hand when it
is compiled, a shared object is made of it too: that one loads with no import of the DSL.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unigemm.cache.artifact import Artifact, KernelInfo
from unigemm.cache.scratch import file_of
from unigemm.errors import BackendUnavailable, CompilationError
from unigemm.extras import install_command
from unigemm.forks import Lock
from unigemm.planning.target import Target

from .settings import check_flavour, default_settings

__all__ = [
    "CAPABILITIES",
    "COMPILING",
    "FUNCTION",
    "compile_kernel",
    "load_kernel",
    "missing",
    "unsupported_architecture",
    "versions",
]

FUNCTION = "gemm"  # the exported symbol of every kernel
#: Compute capabilities that ``--gpu-arch`` takes.
CAPABILITIES = (80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121)
_NAMEABLE = re.compile(r"[\w/ .,:;+=@%~()\[\]!#&^-]+", re.ASCII)  # paths that its options may hold
_PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi")
_INSTALL = install_command("cute")
# The DSL keeps its state in globals: two threads compiling at once crash it.
COMPILING = Lock()


@cache
def missing() -> str | None:
    """Say which package is not installed, and how to get it; None when all are."""
    for package in _PACKAGES:
        try:
            version(package)
        except PackageNotFoundError:
            return f"the package {package} is not installed; {_INSTALL}"
    return None


def unsupported_architecture(target: Target) -> str | None:
    """Say why nothing can be compiled for a target; None where it can."""
    major, minor = target.capability
    if major * 10 + minor in CAPABILITIES:
        return None
    known = ", ".join(f"sm_{number}" for number in CAPABILITIES)
    return f"CuTe DSL compiles for {known}, not for {target.arch}; use another backend"


@cache
def versions() -> dict[str, str]:
    """Return what decides the code that is generated, by package.

    Raises
    ------
    BackendUnavailable
        A package is not installed.
    """
    reason = missing()
    if reason is not None:
        raise BackendUnavailable(f"CuTe DSL cannot be used: {reason}")
    return {"nvidia-cutlass-dsl": version("nvidia-cutlass-dsl"), "cuda": _runtime_folder().name}


def compile_kernel(
    make_host: Callable[[], Any], arguments: Callable[[], Sequence[Any]], arch: str, smem_bytes: int
) -> Artifact:
    """Compile and export one host function with its kernels.

    Parameters
    ----------
    make_host, arguments
        Give the ``@cute.jit`` function and example arguments; called under the compile lock.
    arch
        Target architecture, such as ``"sm_90a"``.
    smem_bytes
        Dynamic shared memory of the main kernel, for the report.

    Raises
    ------
    CompilationError
        With the compiler's own words.
    """
    # A process that only loads kernels has no use for it.
    from unigemm.cache.sass import inspect_cubin, work_folder

    start = time.perf_counter()
    with COMPILING, work_folder() as folder:
        files = _compile(make_host, arguments, arch, folder)
    seconds = time.perf_counter() - start
    report = inspect_cubin(files["kernel.cubin"])
    return Artifact(
        files=files,
        info=KernelInfo(
            registers=report.registers,
            smem_bytes=report.smem_bytes + smem_bytes,
            spill_bytes=report.local_bytes,
            seconds=seconds,
        ),
    )


def _compile(
    make_host: Callable[[], Any], arguments: Callable[[], Sequence[Any]], arch: str, folder: Path
) -> dict[str, bytes]:
    if not _NAMEABLE.fullmatch(str(folder)):
        raise CompilationError(
            f"CuTe DSL cannot write to {str(folder)!r}: quotes and the like end its options; set "
            "TMPDIR to a folder without them"
        )
    options = f"--gpu-arch {arch} --enable-tvm-ffi --keep-ptx --keep-cubin"
    options += f" --dump-dir {shlex.quote(str(folder))}"
    target = folder / "kernel.o"
    try:
        import cutlass.cute as cute  # which refuses a CUTE_DSL_ variable that makes no sense

        check_flavour(_runtime_folder().name)
        with default_settings():
            compiled = cute.compile(make_host(), *arguments(), options=options)
            compiled.export_to_c(str(target), function_name=FUNCTION)
        files = {
            "kernel.o": target.read_bytes(),
            "kernel.cubin": bytes(compiled.__cubin__),
            "kernel.ptx": compiled.__ptx__.encode(),
        }
    except CompilationError:
        raise
    except Exception as error:  # the DSL raises many kinds, all of them the compiler's answer
        raise CompilationError(f"CuTe DSL did not compile for {arch}: {error}") from error
    linked = _link(target)
    return files if linked is None else {**files, "kernel.so": linked}


def _link(target: Path) -> bytes | None:
    """Make a shared object of an object file, if there is a linker."""
    linker = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if linker is None:
        return None
    out = target.with_suffix(".so")
    command = [linker, "-shared", "-nostdlib", "-o", str(out), str(target)]
    # No LD_RUN_PATH, LIBRARY_PATH or GCC_EXEC_PREFIX: they would be part of what is made.
    environment = {k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH") if k in os.environ}
    environment["TMPDIR"] = str(target.parent)
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    return out.read_bytes() if done.returncode == 0 else None


def load_kernel(files: Mapping[str, bytes]) -> Callable[..., None]:
    """Return the compiled function of an artifact's files.

    What is mapped are these bytes and no others: files that only this process has.

    Raises
    ------
    BackendUnavailable
        The packages that run it are not installed.
    """
    reason = missing()
    if reason is not None:
        raise BackendUnavailable(f"a CuTe kernel cannot be loaded: {reason}")
    module = _load_shared(files.get("kernel.so"))
    if module is None:
        if COMPILING.abandoned:
            raise BackendUnavailable(
                "a CuTe kernel without a shared object cannot be loaded: this process was forked "
                "while another thread compiled; compile before the fork, or install a C compiler"
            )
        import cutlass.cute as cute

        with file_of(files["kernel.o"]) as path:
            module = cute.runtime.load_module(path, enable_tvm_ffi=True)
    _LOADED.append(module)
    return getattr(module, FUNCTION)


def _load_shared(data: bytes | None) -> Any:
    """Load a shared object without the DSL; None where there is none or it cannot be mapped."""
    if data is None:
        return None
    import tvm_ffi

    _open_runtime()
    # `tvm_ffi.load_module` learns the format from a suffix, which a file in memory lacks.
    load = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")
    try:
        with file_of(data) as path:
            return load(path, "so")
    except (RuntimeError, OSError):
        return None  # where no such file may be mapped, say: the DSL loads the object file


_LOADED: list[Any] = []  # functions do not keep their modules alive


def _runtime_folder() -> Path:
    """Find the DSL's own runtime, of CUDA 13 where both are installed."""
    spec = find_spec("nvidia_cutlass_dsl")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        for name in ("cu13", "cu12"):
            if (Path(place) / name / "lib" / "libcute_dsl_runtime.so").exists():
                return Path(place) / name
    raise BackendUnavailable(f"libcute_dsl_runtime.so was not found; {_INSTALL}")


@cache
def _open_runtime() -> ctypes.CDLL:
    """Make the runtime's symbols visible to the kernels' shared objects."""
    library = _runtime_folder() / "lib" / "libcute_dsl_runtime.so"
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
