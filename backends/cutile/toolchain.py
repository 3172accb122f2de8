"""cuTile as a compiler: where it is, which version, and from a specification to an artifact.

`cuda.tile` turns a kernel's Python into TileIR; tileiras (with ptxas and libnvvm beside it) makes
machine code of that. Only compiling needs them: a kernel from the cache runs with the driver alone.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from unigemm.artifact import Artifact, KernelInfo
from unigemm.errors import BackendUnavailable, CompilationError

__all__ = ["compile_kernels", "missing", "versions"]

# The packages of the compiler; cuda.tile takes them where all three have one major.minor version.
_PACKAGES = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")
_LEAST = (13, 5)  # 13.4 multiplies float64 outside the tensor cores (seen in its machine code)
_PINNED = "13.5"
_FRONT_END = "1.7.0"
_INSTALL = f"pip install cuda-tile {' '.join(f'{name}=={_PINNED}.*' for name in _PACKAGES)}"


@cache
def missing() -> str | None:
    """Say what is not installed that compiling needs, and how to get it; None when all is."""
    if _installed("cuda-tile") is None:
        return f"the package cuda-tile is not installed; {_INSTALL}"
    found = _tileiras()
    if found is None:
        return (
            f"tileiras, cuTile's compiler, is neither installed nor on PATH; {_INSTALL}, or put "
            "CUDA 13.5's bin folder on PATH"
        )
    if found < _LEAST:
        return f"tileiras is {_text(found)} and {_PINNED} is needed; {_INSTALL}"
    return None


@cache
def versions() -> dict[str, str]:
    """Return what decides the code that is generated, by name.

    Where nothing can be compiled, it is what this release is made for: so a machine without a
    compiler finds in a bundle what a machine with that one has made.
    """
    found = _tileiras() if missing() is None else None
    return {
        "cuda-tile": _installed("cuda-tile") or _FRONT_END,
        "tileiras": _PINNED if found is None else _text(found),
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(found: tuple[int, int]) -> str:
    return f"{found[0]}.{found[1]}"


@cache
def _tileiras() -> tuple[int, int] | None:
    """Return the (major, minor) version of the compiler that cuda.tile will find, if any.

    It looks at the packages, then along PATH, then in CUDA_HOME (cuTile's documentation).
    """
    installed = {_major_minor(_installed(name) or "") for name in _PACKAGES}
    if len(installed) == 1 and None not in installed:
        return installed.pop()
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found = shutil.which("tileiras") or shutil.which("tileiras", path=str(Path(home) / "bin"))
    if found is None:
        return None
    done = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"release (\d+\.\d+)", done.stdout)
    return _major_minor(release[1]) if release else None


def _major_minor(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def compile_kernels(make_spec: Callable[[], Any], arch: str) -> Artifact:
    """Compile the kernels of a specification, each to a file ``<symbol>.cubin``.

    Parameters
    ----------
    make_spec
        Gives a `kernel.Spec`; its module needs cuda.tile.
    arch
        As cuTile names it, such as ``"sm_90"``.

    Raises
    ------
    BackendUnavailable
        The compiler is not installed.
    CompilationError
        With the compiler's own words.
    """
    reason = missing()
    if reason is not None:
        raise BackendUnavailable(
            f"cutile cannot compile here, and the cache holds no kernel for this: {reason}; or "
            "bring kernels compiled elsewhere (UNIGEMM_CACHE_BUNDLES)"
        )
    from unigemm.sass import inspect_cubin

    start = time.perf_counter()
    files = _compile(make_spec, arch)
    seconds = time.perf_counter() - start
    reports = {name: inspect_cubin(data) for name, data in files.items()}
    main = reports["gemm.cubin"]
    return Artifact(
        files=files,
        info=KernelInfo(
            registers=main.registers,
            smem_bytes=main.smem_bytes,
            spill_bytes=max(report.local_bytes for report in reports.values()),
            seconds=seconds,
        ),
    )


def _compile(make_spec: Callable[[], Any], arch: str) -> dict[str, bytes]:
    from cuda.tile import TileError
    from cuda.tile.compilation import export_kernel

    from .kernel import kernels

    files = {}
    try:
        for symbol, (kernel, signature) in kernels(make_spec()).items():
            out = io.BytesIO()
            export_kernel(kernel, [signature], out, gpu_code=arch, output_format="cubin")
            files[f"{symbol}.cubin"] = out.getvalue()
    except TileError as error:
        raise CompilationError(f"cuTile did not compile for {arch}: {error}") from error
    return files
