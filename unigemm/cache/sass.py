"""Reading compiled kernels: registers and memory of a cubin, and the mix of its instructions.

cuobjdump and nvdisasm of the CUDA toolkit do the work; the packages nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm contain them. Disassembling is slow, so it is done only for callers who request
instructions (docs/lab-notes/2026-11-23-size-buckets.md).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from ..errors import BackendUnavailable, CompilationError
from ..support.extras import install_command
from .scratch import scratch_folder

__all__ = [
    "TOOLS",
    "CubinReport",
    "KernelReport",
    "disassemble",
    "inspect_cubin",
    "instruction_mix",
    "kernel_mixes",
    "tool",
    "work_folder",
]

#: Programs by name, and the packages that bring them.
TOOLS = {"cuobjdump": "nvidia-cuda-cuobjdump", "nvdisasm": "nvidia-cuda-nvdisasm"}
_FUNCTION = re.compile(
    r"Function (?P<name>[^:\s]+):\s*REG:(?P<reg>\d+) STACK:(?P<stack>\d+) "
    r"SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)"
)
# "        /*0070*/                   @!P0 LDG.E.128 R4, [R2.64] ;" gives LDG.
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_HEADING = re.compile(r"^\.text\.(\S+):$")


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
    """

    name: str
    registers: int
    smem_bytes: int
    local_bytes: int


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


@cache
def tool(name: str) -> Path:
    """Find a toolkit program: the registry package's, else the one on PATH.

    Raises
    ------
    BackendUnavailable
        It is not there.
    """
    try:
        for entry in files(TOOLS[name]) or ():
            if entry.name == name and entry.parent.name == "bin":
                path = Path(str(entry.locate()))
                if path.exists():
                    return path
    except PackageNotFoundError:
        pass
    found = shutil.which(name)
    if found is None:
        raise BackendUnavailable(
            f"{name} was not found, which reads compiled kernels; {install_command('cute')}"
        )
    return Path(found)


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a folder for the files of a compiler or disassembler, and remove it in the end.

    Raises
    ------
    CompilationError
        No folder can be made.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise CompilationError(
            f"a compiler cannot start in the working folder ({error}); change to one that exists"
        ) from error
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder())
        except OSError as error:
            raise CompilationError(
                f"there is no folder for a compiler's files ({error}); set TMPDIR to one that you "
                "and nobody else can write"
            ) from error
        yield folder


def _run(program: str, cubin: bytes, *options: str) -> str:
    path = os.environ.get("PATH", "")
    if "--dump-sass" in options:  # it finds nvdisasm on PATH
        path = os.pathsep.join((str(tool("nvdisasm").parent), path))
    with work_folder() as folder:
        target = folder / "kernel.cubin"
        target.write_bytes(cubin)
        done = subprocess.run(
            [str(tool(program)), *options, str(target)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path},
        )
    if done.returncode:
        words = (done.stderr or done.stdout).strip()
        raise CompilationError(f"{program} cannot read the cubin: {words}")
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
    return _run("cuobjdump", cubin, "--dump-sass")


def inspect_cubin(cubin: bytes) -> CubinReport:
    """Read registers and memory off a cubin.

    Raises
    ------
    BackendUnavailable
        The toolkit's program is not installed.
    CompilationError
        The bytes are no cubin, or hold no kernel.
    """
    kernels = tuple(
        KernelReport(
            name=found["name"],
            registers=int(found["reg"]),
            smem_bytes=int(found["shared"]),
            local_bytes=int(found["stack"]) + int(found["local"]),
        )
        for found in _FUNCTION.finditer(_run("cuobjdump", cubin, "--dump-resource-usage"))
    )
    if not kernels:
        raise CompilationError("the cubin holds no kernel")
    return CubinReport(kernels)


def kernel_mixes(cubin: bytes) -> dict[str, Counter[str]]:
    """Return the counts of SASS opcodes, without modifiers, by the symbol of each kernel.

    Raises
    ------
    BackendUnavailable
        The toolkit's program is not installed.
    CompilationError
        The bytes are no cubin.
    """
    # The targets of branches are not needed, and slow to find.
    text = _run("nvdisasm", cubin, "--no-dataflow", "--print-code")
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
    return mix


def instruction_mix(files: Mapping[str, bytes | str]) -> dict[str, int]:
    """Return the opcodes of all kernels of some files together, the most frequent first.

    Parameters
    ----------
    files
        Those of an artifact or of an entry of the cache: name to bytes, or to a path. Those that
        are no cubins by their names are left out.

    Raises
    ------
    BackendUnavailable
        The toolkit's program is not installed.
    CompilationError
        A cubin is none.
    """
    total: Counter[str] = Counter()
    for name, data in files.items():
        if name.endswith(".cubin"):
            cubin = Path(data).read_bytes() if isinstance(data, str) else data
            for mix in kernel_mixes(cubin).values():
                total.update(mix)
    return dict(total.most_common())
