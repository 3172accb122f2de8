"""What all CuTe backends do alike: keys, compiling, loading and binding their kernels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from unigemm.cache import host_code
from unigemm.cache.artifact import Artifact, KernelKey, source_digest
from unigemm.errors import UnsupportedProblem
from unigemm.planning.backend import Backend, Launcher, Timed
from unigemm.planning.calibration import Adjustment
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Candidate, Ranking
from unigemm.planning.target import Target, is_usual_memory
from unigemm.problem.canonical import Gemm
from unigemm.problem.problem import Extents, Problem

from ..common.code_sources import code_sources, sources_missing
from ..common.compile_elsewhere import compile_elsewhere
from ..common.kernel_key import (
    oriented_beside,
    oriented_scales,
    oriented_strides,
    out_of_bounds,
    specialisation,
    too_many,
    unsupported_sizes,
)
from ..common.ranking import CostModel, estimate_all, rank
from . import toolchain
from .loading import load_kernel

__all__ = ["CuteBackend"]


class CuteBackend(Backend):
    """A backend whose kernels are CuTe DSL, in the package `kernels` beside its own module.

    Each of them says which products it takes, what it considers for one (`model`), which
    configurations can be compiled and launched, and what its kernels are compiled for.
    """

    compiles = True
    batch_invariant = True
    takes_scales = True
    takes_epilogues = True
    shares_plans = True
    model: CostModel

    @abstractmethod
    def unsupported_product(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it does not take a product of sizes that kernels take; None when it does."""

    @abstractmethod
    def unsupported_kernel(
        self, problem: Problem, config: Config, target: Target, extents: Extents | None = None
    ) -> str | None:
        """Say why a configuration cannot run on the target; None when it can.

        Its numbers are within bounds. Problem and extents are as the kernel sees them; without
        extents, for products of any size.
        """

    @abstractmethod
    def kernel_problem(self, problem: Problem) -> Problem:
        """Return the class that is compiled for a problem: what makes no difference is left out."""

    @abstractmethod
    def smem_bytes(self, problem: Problem, config: Config) -> int:
        """Return the dynamic shared memory of a configuration; the problem is the kernel's."""

    def copied_as(self, problem: Problem) -> Problem:
        """Return a problem with operands of the classes that kernels copy them by."""
        return problem

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

    def candidates(self, problem: Problem, extents: Extents, target: Target) -> Sequence[Candidate]:
        """Return its legal configurations with their estimated times."""
        return rank(self.model, self.copied_as(problem), extents, target, None).candidates

    def ranking(self, problem: Problem, extents: Extents, target: Target, most: int) -> Ranking:
        """Return those of least estimated time, and those as fast that cannot run."""
        return rank(self.model, self.copied_as(problem), extents, target, most)

    def least_us(self, problem: Problem, extents: Extents, target: Target) -> float:
        """Return a lower bound of all estimated times, in microseconds."""
        return self.model.least_us(problem, extents, target)

    def estimate(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> Candidate:
        """Return a configuration with its estimated time.

        Raises
        ------
        UnsupportedProblem
            It cannot run.
        """
        return self.estimate_all(problem, extents, target, (config,))[0]

    def estimate_all(
        self, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
    ) -> Sequence[Candidate]:
        """Return configurations with their estimated times.

        Raises
        ------
        UnsupportedProblem
            One of them cannot run.
        """
        compiled = self.kernel_problem(problem)
        for config in configs:
            reason = self.unsupported_kernel(config.oriented(compiled), config, target)
            if reason is not None:
                raise UnsupportedProblem(f"{self.name} cannot run it: {reason}")
        return estimate_all(self.model, self.copied_as(problem), extents, target, configs)

    def adjustments(self, target: Target, launches: Sequence[Timed]) -> Mapping[str, Adjustment]:
        """Return what measured launches of its own say of its cost model, by name."""
        from ..common.calibrating import adjustments_of

        return adjustments_of(self.model, target, launches)

    def workspace_bytes(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> int:
        """Return the bytes of the workspace of a configuration that can run."""
        return self.model.workspace(problem, extents, target, config)

    def unsupported_config_reason(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> str | None:
        """Say why a configuration cannot compute a product that it takes; None when it can."""
        reason = out_of_bounds(config)
        if reason is not None:
            return reason
        own, sizes = config.oriented(self.kernel_problem(problem)), config.oriented(extents)
        reason = self.unsupported_kernel(own, config, target, sizes)
        if reason is not None:
            return reason
        whole = self.workspace_bytes(problem, extents, target, replace(config, split_k=1))
        sums = self.workspace_bytes(problem, extents, target, config) - whole
        return too_many(sizes, config, sums)

    def kernels(self) -> Any:
        """Return the module with the device code: `Spec`, `make_host` and `example_arguments`."""
        return import_module(f"unigemm.backends.{self.name}.kernels.host")

    def source(self) -> str:
        """Return the digest of all that decides the code."""
        return _digest(self.name)

    def oriented(self, plan: Plan) -> Problem:
        """Return the class that is compiled for a plan, as the kernel sees it."""
        return plan.config.oriented(self.kernel_problem(plan.problem))

    def key(self, plan: Plan) -> KernelKey:
        """Return the content key: dtypes, majorness, alignment and tile, but no extents.

        And an SM's memory, which the code is made for, where it is not what the architecture has.
        """
        kernel = specialisation(self.oriented(plan), plan.config)
        if not is_usual_memory(plan.target):
            kernel["smem_per_sm"] = plan.target.smem_per_sm
        source, versions = self.source(), toolchain.versions()
        if self.compiler_missing() is not None:
            from unigemm.cache import default_cache

            versions = default_cache().toolchain(self.name, source, versions)
        return KernelKey(
            backend=self.name,
            arch=plan.target.arch,
            kernel=kernel,
            source=source,
            toolchain=versions,
        )

    def compile(self, plan: Plan) -> Artifact:
        """Compile the plan's kernel for its target.

        Raises
        ------
        UnsupportedProblem
            The plan's configuration is not legal (it did not come from the planner).
        CompilationError
            CuTe DSL refused it.
        """
        problem, config = self.oriented(plan), plan.config
        reason = self.unsupported_kernel(problem, config, plan.target)
        if reason is not None:
            raise UnsupportedProblem(f"{self.name} cannot run {config}: {reason}; plan again")
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
            *self.arguments(plan), *scale_strides, *oriented_beside(gemm, config),
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
    return source_digest(*sources.values(), host_code.runtime_source())
