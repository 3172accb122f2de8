"""cuTile as a compiler: where it is, which version, and from a specification to an artifact.

`cuda.tile` turns a kernel's Python into TileIR; tileiras (with ptxas and libnvvm around it) makes
machine code of that. Only compiling needs them: a kernel from the cache runs with the driver alone.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unigemm.cache.artifact import Artifact, KernelInfo
from unigemm.errors import BackendUnavailable, CompilationError
from unigemm.support.extras import install_command
from unigemm.support.forks import Lock

__all__ = ["COMPILING", "compile_kernels", "missing", "versions"]

# The packages of the compiler; cuda.tile takes them where all three have one major.minor version.
_PACKAGES = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")
_LEAST = (13, 5)  # 13.4 multiplies float64 outside the tensor cores (seen in its machine code)
_PINNED = "13.5"
_FRONT_END = "1.7.0"
_BYTECODE = "13.4"  # what cuda.tile offers at most and every such compiler takes
_INSTALL = install_command("cutile")

COMPILING = Lock()


@cache
def missing() -> str | None:
    """Say what is not installed that compiling needs, and how to get it; None when all is."""
    if _installed("cuda-tile") is None:
        return f"the package cuda-tile is not installed; {_INSTALL}"
    compiler = _tileiras()
    if compiler is None:
        return (
            f"tileiras, cuTile's compiler, is neither installed nor on PATH; {_INSTALL}, or put "
            "CUDA 13.5's bin folder on PATH"
        )
    if compiler.version < _LEAST:
        return f"tileiras is {_text(compiler.version)} and {_PINNED} is needed; {_INSTALL}"
    if sys.flags.optimize > 1:
        return "cuda.tile reads its docstrings; run Python without -OO and PYTHONOPTIMIZE=2"
    return None


@cache
def versions() -> Mapping[str, str]:
    """Return what decides the code that is generated, by name.

    Where nothing can be compiled, it is what this release is made for.
    """
    compiler = _tileiras() if missing() is None else None
    return {
        "cuda-tile": _installed("cuda-tile") or _FRONT_END,
        "tileiras": _PINNED if compiler is None else _text(compiler.version),
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(found: tuple[int, int]) -> str:
    return f"{found[0]}.{found[1]}"


@dataclass(frozen=True)
class _Compiler:
    """Where tileiras is, and its (major, minor) version."""

    path: Path
    version: tuple[int, int]

    @property
    def environment(self) -> dict[str, str]:
        """What it runs with, whatever the caller's environment names: its own toolkit."""
        folder = self.path.parent
        return {"PATH": f"{folder}{os.pathsep}{os.defpath}", "CUDA_ROOT": str(folder.parent)}


@cache
def _tileiras() -> _Compiler | None:
    """Find the compiler: in the packages, along PATH, then in CUDA_HOME."""
    installed = {_major_minor(_installed(name) or "") for name in _PACKAGES}
    release = installed.pop() if len(installed) == 1 else None
    if release is not None and (packaged := _packaged()) is not None:
        return _Compiler(packaged.resolve(), release)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found = shutil.which("tileiras") or shutil.which("tileiras", path=str(Path(home) / "bin"))
    if found is None:
        return None
    done = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    text = re.search(r"release (\d+\.\d+)", done.stdout)
    release = _major_minor(text[1]) if text else None
    return None if release is None else _Compiler(Path(found).resolve(), release)


def _packaged() -> Path | None:
    """Return where the packages have put the compiler."""
    spec = find_spec("nvidia")  # which several packages share
    folders = list(spec.submodule_search_locations or ()) if spec else []
    paths = [Path(folder) / "cu13" / "bin" / "tileiras" for folder in folders]
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def _major_minor(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def compile_kernels(make_spec: Callable[[], Any], arch: str) -> Artifact:
    """Compile the kernels of a specification, each to a file ``<symbol>.cubin``.

    Parameters
    ----------
    make_spec
        Gives a `kernels.host.Spec`; its module needs cuda.tile.
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
    from unigemm.cache.sass import inspect_cubin, work_folder

    start = time.perf_counter()
    with COMPILING, work_folder() as folder:
        files = _compile(make_spec, arch, folder)
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


def _compile(make_spec: Callable[[], Any], arch: str, folder: Path) -> dict[str, bytes]:
    """Compile with the default settings, past cuda.tile's own cache, whose bytes nobody checks."""
    from cuda.tile import TileError
    from cuda.tile.compilation import export_kernel

    from .kernels.host import kernels
    from .settings import default_settings

    files = {}
    try:
        for symbol, (kernel, signature) in kernels(make_spec()).items():
            out = io.BytesIO()
            with default_settings():
                export_kernel(
                    kernel,
                    [signature],
                    out,
                    gpu_code=arch,
                    output_format="tileir_bytecode",
                    bytecode_version=_BYTECODE,
                )
            files[f"{symbol}.cubin"] = _machine_code(out.getvalue(), arch, folder / symbol)
    except (TileError, OSError) as error:
        raise CompilationError(f"cuTile did not compile for {arch}: {error}") from error
    return files


def _machine_code(bytecode: bytes, arch: str, stem: Path) -> bytes:
    """Have tileiras compile a kernel; `stem` is the path of its files without their endings."""
    compiler = _tileiras()
    assert compiler is not None, "missing() has said so"
    source, target = stem.with_suffix(".tileirbc"), stem.with_suffix(".cubin")
    source.write_bytes(bytecode)
    files = [str(compiler.path), str(source), "-o", str(target)]
    command = [*files, "--gpu-name", arch, "-O3", "--lineinfo"]
    environment = {**compiler.environment, "TMPDIR": str(stem.parent)}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise CompilationError(
            f"cuTile did not compile for {arch}: tileiras ended with {done.returncode}: {said}"
        )
    return target.read_bytes()
