"""CuTe DSL as a compiler: where it is, which version, and from a host function to an artifact.

A kernel is a shared object with its machine code inside, which is linked here and runs without the
DSL (`loading`, `unigemm.cache.host_code`).
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unigemm.cache.artifact import Artifact, KernelInfo
from unigemm.cache.host_code import FUNCTION
from unigemm.errors import BackendUnavailable, CompilationError
from unigemm.planning.target import Target
from unigemm.support.extras import install_command
from unigemm.support.forks import Lock

from .linking import link
from .settings import check_flavour, default_settings

__all__ = [
    "CAPABILITIES",
    "COMPILING",
    "compile_kernel",
    "missing",
    "unsupported_architecture",
    "versions",
]

#: Compute capabilities that ``--gpu-arch`` takes.
CAPABILITIES = (80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121)
_NAMEABLE = re.compile(r"[\w/ .,:;+=@%~()\[\]!#&^-]+", re.ASCII)  # paths that its options may hold
_PINNED = {"nvidia-cutlass-dsl": "4.8.1", "cuda": "cu13"}  # what this release is made for
_INSTALL = install_command("cute")
# The DSL keeps its state in globals: two threads compiling at once crash it.
COMPILING = Lock()


@cache
def missing() -> str | None:
    """Say that the compiler is not installed, and how to get it; None when it is."""
    if _installed() is None:
        return f"the package nvidia-cutlass-dsl is not installed; {_INSTALL}"
    return None


def _installed() -> str | None:
    try:
        return version("nvidia-cutlass-dsl")
    except PackageNotFoundError:
        return None


def unsupported_architecture(target: Target) -> str | None:
    """Say why nothing can be compiled for a target; None where it can."""
    major, minor = target.capability
    if major * 10 + minor in CAPABILITIES:
        return None
    known = ", ".join(f"sm_{number}" for number in CAPABILITIES)
    return f"CuTe DSL compiles for {known}, not for {target.arch}; use another backend"


@cache
def versions() -> Mapping[str, str]:
    """Return what decides the code that is generated, by package.

    Where nothing can be compiled, it is what this release is made for.
    """
    installed = _installed()
    if installed is None:
        return _PINNED
    return {"nvidia-cutlass-dsl": installed, "cuda": _runtime_folder().name}


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
    BackendUnavailable
        The compiler is not installed.
    CompilationError
        With the compiler's own words.
    """
    reason = missing()
    if reason is not None:
        raise BackendUnavailable(f"CuTe DSL cannot compile here: {reason}")
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
        return {
            "kernel.so": link(target.read_bytes()),
            "kernel.cubin": bytes(compiled.__cubin__),
            "kernel.ptx": compiled.__ptx__.encode(),
        }
    except CompilationError:
        raise
    except Exception as error:  # the DSL raises many kinds, all of them the compiler's answer
        raise CompilationError(f"CuTe DSL did not compile for {arch}: {error}") from error


def _runtime_folder() -> Path:
    """Find the DSL's own runtime, of CUDA 13 where both are installed."""
    spec = find_spec("nvidia_cutlass_dsl")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for name in ("cu13", "cu12"):
            if (Path(folder) / name / "lib" / "libcute_dsl_runtime.so").exists():
                return Path(folder) / name
    raise BackendUnavailable(f"libcute_dsl_runtime.so was not found; {_INSTALL}")
