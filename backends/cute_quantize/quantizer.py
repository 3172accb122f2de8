"""From a call of `unigemm.quantize` to its kernel: key, compiling and launching."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from unigemm.cache import host_code
from unigemm.cache.artifact import Artifact, KernelKey, source_digest
from unigemm.errors import CompilationError
from unigemm.planning.target import Target
from unigemm.problem.dtypes import FLOAT8

from ..common.code_sources import code_sources, sources_missing
from ..cute import toolchain
from ..cute.loading import load_kernel
from .kind import Kind, kind_of

__all__ = ["QUANTIZER", "Quantizer"]

_FLOAT8_FROM = (8, 9)  # compute capability of the instructions that convert (PTX ISA, cvt)


class Quantizer:
    """What rounds arrays to eight bits on GPUs."""

    name, compiles = "cute_quantize", True
    kind, kinds = staticmethod(kind_of), Kind

    def missing(self) -> str | None:
        """Say what kernels run with and is not installed; None when all is."""
        return host_code.missing() or sources_missing("unigemm.backends.cute_quantize")

    def compiler_missing(self) -> str | None:
        """Say what compiling needs and is not installed; None when all is."""
        return toolchain.missing()

    def unsupported_reason(self, kind: Kind, target: Target) -> str | None:
        """Say why it rounds no such array on a target; None where it does."""
        if kind.result in FLOAT8 and target.capability < _FLOAT8_FROM:
            return f"{target.arch} has no instructions that convert to {kind.result}; use int8"
        return toolchain.unsupported_architecture(target)

    def key(self, kind: Kind, target: Target) -> KernelKey:
        """Return the content key of a kernel; it holds no extents."""
        source, versions = _digest(), toolchain.versions()
        if self.compiler_missing() is not None:
            from unigemm.cache import default_cache

            versions = default_cache().toolchain(self.name, source, versions)
        kernel = {name: getattr(x, "value", x) for name, x in asdict(kind).items()}
        return KernelKey(self.name, target.arch, kernel, source, versions)

    def compile(self, kind: Kind, target: Target) -> Artifact:
        """Compile a kernel.

        Raises
        ------
        CompilationError
            CuTe DSL refused it; or the process was forked while another thread compiled.
        """
        if toolchain.COMPILING.abandoned:
            raise CompilationError(
                "this process was forked while another thread compiled; compile before the fork, "
                "or start processes with spawn"
            )

        def host() -> Any:
            from .kernels.quantize import make_host

            return make_host(kind)

        def arguments() -> Sequence[Any]:
            from .kernels.quantize import example_arguments

            return example_arguments()

        return toolchain.compile_kernel(host, arguments, target.arch, 0)

    def load(self, files: Mapping[str, bytes], key: KernelKey) -> Callable[..., None]:
        """Return the compiled function."""
        return load_kernel(files)


@cache
def _digest() -> str:
    """Return the digest of what decides the code."""
    sources = code_sources("cute_quantize.kernels.quantize", "cute.toolchain")
    return source_digest(*sources.values())


QUANTIZER = Quantizer()
