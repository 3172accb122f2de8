"""Reading compiled kernels: registers, memory and instruction mix of a cubin.

The work is done by cuobjdump and nvdisasm of the CUDA toolkit, which the packages
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm bring.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from .errors import BackendUnavailable, CompilationError

__all__ = ["CubinReport", "KernelReport", "disassemble", "inspect_cubin"]

_PACKAGES = {"cuobjdump": "nvidia-cuda-cuobjdump", "nvdisasm": "nvidia-cuda-nvdisasm"}
_FUNCTION = re.compile(
    r"Function (?P<name>[^:\s]+):\s*REG:(?P<reg>\d+) STACK:(?P<stack>\d+) "
    r"SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)"
)
# "        /*0070*/                   @!P0 LDG.E.128 R4, [R2.64] ;" gives LDG.
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_HEADING = re.compile(r"^\s*Function : (\S+)")


@dataclass(frozen=True)
class KernelReport:
    """One kernel of a cubin.

    Attributes
    ----------
    name
        Its symbol.
    registers
        Registers of one thread.
    smem_bytes
        Static shared memory of one CTA, what the driver reserves included.
    local_bytes
        Local memory of one thread: stack frame, spills included.
    instructions
        SASS opcodes without modifiers, and how many of each there are.
    """

    name: str
    registers: int
    smem_bytes: int
    local_bytes: int
    instructions: Mapping[str, int]


@dataclass(frozen=True)
class CubinReport:
    """All kernels of a cubin."""

    kernels: tuple[KernelReport, ...]

    @property
    def registers(self) -> int:
        """Most registers of a thread of any kernel."""
        return max(kernel.registers for kernel in self.kernels)

    @property
    def smem_bytes(self) -> int:
        """Most static shared memory of a CTA of any kernel."""
        return max(kernel.smem_bytes for kernel in self.kernels)

    @property
    def local_bytes(self) -> int:
        """Most local memory of a thread of any kernel."""
        return max(kernel.local_bytes for kernel in self.kernels)

    @property
    def instructions(self) -> dict[str, int]:
        """Opcodes of all kernels together, the most frequent first."""
        total: Counter[str] = Counter()
        for kernel in self.kernels:
            total.update(kernel.instructions)
        return dict(total.most_common())


@cache
def _tool(name: str) -> Path:
    """Find a toolkit program: the registry package's, else the one on PATH."""
    try:
        for entry in files(_PACKAGES[name]) or ():
            if entry.name == name and entry.parent.name == "bin":
                path = Path(str(entry.locate()))
                if path.exists():
                    return path
    except PackageNotFoundError:
        pass
    found = shutil.which(name)
    if found is None:
        raise BackendUnavailable(
            f"{name} was not found, which reads compiled kernels; pip install {_PACKAGES[name]}"
        )
    return Path(found)


def _run(cubin: bytes, *options: str) -> str:
    # cuobjdump finds nvdisasm on PATH.
    path = os.pathsep.join((str(_tool("nvdisasm").parent), os.environ.get("PATH", "")))
    with tempfile.TemporaryDirectory(prefix="unigemm-") as folder:
        target = Path(folder) / "kernel.cubin"
        target.write_bytes(cubin)
        done = subprocess.run(
            [str(_tool("cuobjdump")), *options, str(target)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path},
        )
    if done.returncode:
        words = (done.stderr or done.stdout).strip()
        raise CompilationError(f"cuobjdump cannot read the cubin: {words}")
    return done.stdout


def disassemble(cubin: bytes) -> str:
    """Return the SASS of a cubin as cuobjdump prints it.

    Raises
    ------
    BackendUnavailable
        The toolkit's programs are not installed.
    CompilationError
        The bytes are no cubin.
    """
    return _run(cubin, "--dump-sass")


def inspect_cubin(cubin: bytes) -> CubinReport:
    """Read registers, memory and instruction mix off a cubin.

    Raises
    ------
    BackendUnavailable
        The toolkit's programs are not installed.
    CompilationError
        The bytes are no cubin, or hold no kernel.
    """
    text = _run(cubin, "--dump-resource-usage", "--dump-sass")
    mix: dict[str, Counter[str]] = {}
    current: Counter[str] = Counter()
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading:
            current = mix.setdefault(heading[1], Counter())
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction:
            current[instruction[1]] += 1
    kernels = tuple(
        KernelReport(
            name=found["name"],
            registers=int(found["reg"]),
            smem_bytes=int(found["shared"]),
            local_bytes=int(found["stack"]) + int(found["local"]),
            instructions=dict(mix.get(found["name"], Counter()).most_common()),
        )
        for found in _FUNCTION.finditer(text)
    )
    if not kernels:
        raise CompilationError("the cubin holds no kernel")
    return CubinReport(kernels)
