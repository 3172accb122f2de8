"""What all CuTe backends do alike: keys, compiling, loading and binding their kernels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from unigemm.cache import host_code
from unigemm.cache.artifact import Artifact, source_digest
from unigemm.planning.backend import Launcher
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target, is_usual_memory
from unigemm.problem.canonical import Gemm
from unigemm.problem.problem import Extents, Problem

from ..common.code_sources import code_sources, sources_missing
from ..common.compile_elsewhere import compile_elsewhere
from ..common.kernel_backend import KernelBackend
from ..common.kernel_key import (
    oriented_aux,
    oriented_scales,
    oriented_strides,
    unsupported_sizes,
)
from . import toolchain
from .loading import load_kernel

__all__ = ["CuteBackend"]


class CuteBackend(KernelBackend):
    """A backend whose kernels are CuTe DSL, in its package `kernels`."""

    @abstractmethod
    def unsupported_product(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it does not take a product of sizes that kernels take; None when it does."""

    @abstractmethod
    def smem_bytes(self, problem: Problem, config: Config) -> int:
        """Return the dynamic shared memory of a configuration; the problem is the kernel's."""

    def arguments(self, plan: Plan) -> tuple[int, ...]:
        """Return the integers of a plan that its kernels take after those that all kernels take."""
        return ()

    def missing(self) -> str | None:
        """Say what kernels run with, or of this package, is not installed; None when all is."""
        return host_code.missing() or sources_missing(f"unigemm.backends.{self.name}")

    def compiler_missing(self) -> str | None:
        """Say what compiling needs and is not installed; None when all is."""
        return toolchain.missing()

    def unsupported_reason(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it cannot compute the product on the target; None when it can."""
        return (
            unsupported_sizes(extents)
            or toolchain.unsupported_architecture(target)
            or self.unsupported_product(problem, extents, target)
        )

    def kernels(self) -> Any:
        """Return the module with the device code: `Spec`, `make_host` and `example_arguments`."""
        return import_module(f"unigemm.backends.{self.name}.kernels.host")

    def source(self) -> str:
        """Return the digest of all that decides the code."""
        return _digest(self.name)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the compilers that decide the code."""
        return toolchain.versions()

    def specialisation(self, plan: Plan) -> dict[str, Any]:
        """Return what a plan's kernel is specialised on.

        And an SM's memory, which the code is made for, where it is not what the architecture has.
        """
        kernel = super().specialisation(plan)
        if not is_usual_memory(plan.target):
            kernel["smem_per_sm"] = plan.target.smem_per_sm
        return kernel

    def compile(self, plan: Plan) -> Artifact:
        """Compile the plan's kernel for its target.

        Raises
        ------
        UnsupportedProblem
            The plan's configuration is not legal (it did not come from the planner).
        CompilationError
            CuTe DSL refused it.
        """
        problem, config = self.refuse_illegal(plan), plan.config
        if toolchain.COMPILING.abandoned:
            return compile_elsewhere(plan)

        def host() -> Any:
            module = self.kernels()
            capability = plan.target.capability
            overlap, packed = capability >= (9, 0), capability[0] == 10
            spec = module.Spec(problem, config, overlap, packed, plan.target.smem_per_sm)
            return module.make_host(spec)

        def arguments() -> Sequence[Any]:
            return self.kernels().example_arguments(problem)

        smem = self.smem_bytes(problem, config)
        return toolchain.compile_kernel(host, arguments, plan.target.arch, smem)

    def load(self, files: Mapping[str, bytes], plan: Plan) -> Callable[..., None]:
        """Return the compiled function."""
        return load_kernel(files)

    def bind(self, plan: Plan, gemm: Gemm, kernel: object) -> Launcher:
        """Fix everything but the addresses and the stream."""
        run: Callable[..., None] = kernel  # type: ignore[assignment]
        config, extents = plan.config, plan.config.oriented(gemm.extents)
        strides = [step for matrix in oriented_strides(gemm, config) for step in matrix]
        scale_strides = [step for steps in oriented_scales(gemm, config) for step in steps]
        fixed = (
            extents.m, extents.n, extents.k, *gemm.batch, *strides,
            plan.split_k, int(config.raster.order == "n"), config.raster.group,
            *self.arguments(plan), *scale_strides, *oriented_aux(gemm, config),
        )  # fmt: skip
        of_operands = 2 if plan.problem.scaled or plan.problem.blocks else 0  # of A and of B
        of_groups = 3 if plan.problem.scaled and plan.problem.groups else 0  # steps, offsets

        def launch(a: int, b: int, d: int, workspace: int, stream: int, *scales: float) -> None:
            run(a, b, d, workspace, *fixed, *scales, stream)

        def launch_swapped(
            a: int, b: int, d: int, workspace: int, stream: int, *scales: float
        ) -> None:
            swapped = scales[:of_operands][::-1]
            if of_groups:
                *more, step_a, step_b, offsets = scales[of_operands:]
                run(b, a, d, workspace, *fixed, *swapped, *more, step_b, step_a, offsets, stream)
                return
            run(b, a, d, workspace, *fixed, *swapped, *scales[of_operands:], stream)

        return launch_swapped if gemm.swapped != config.swap_ab else launch


@cache
def _digest(name: str) -> str:
    """Return the digest of what decides the code: device code, and the arithmetic behind it."""
    sources = code_sources(f"{name}.kernels.host", "cute.toolchain")
    return source_digest(*sources.values())
