"""What all CuTe backends do alike: keys, compiling, loading and binding their kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import inf
from typing import Any, ClassVar

from unigemm.cache.artifact import Artifact, KernelKey, source_digest
from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config, copied
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Candidate, Ranking
from unigemm.planning.protocol import Launcher
from unigemm.planning.target import Target, is_usual_memory, named_target
from unigemm.problem.canonical import Gemm
from unigemm.problem.problem import Extents, Problem

from ..common.compile_elsewhere import compile_elsewhere
from ..common.kernel_key import (
    oriented_scales,
    oriented_strides,
    out_of_bounds,
    package_sources,
    refuse_sizes,
    sources_missing,
    specialisation,
    too_many,
)
from . import toolchain

__all__ = ["CuteBackend"]


@dataclass(frozen=True)
class CuteBackend:
    """A backend whose kernels are CuTe DSL; see `unigemm.planning.protocol.CompilingBackend`.

    Attributes
    ----------
    name
        How plans name it; the package beside this one that holds its ``kernel`` module.
    unfit
        (problem, extents, target) to why it does not take them, or None. Sizes that no kernel
        takes are refused before.
    offer
        (problem, extents, target, most, bar) to its `most` cheapest candidates, or to all if None,
        that are expected to take no longer than the bar (us).
    price_legal
        (problem, extents, target, configs that can run) to the candidates.
    illegal
        (problem as the kernel sees it, config, target) to why the configuration cannot run, or
        None.
    misfit
        (problem and extents as the kernel sees them, config within bounds) to why it is not one
        that this backend has for such extents, or None; asked before `illegal`. None where
        extents make no difference.
    compiled
        The problem class that is compiled for a problem: what makes no difference is left out.
    smem_bytes
        Dynamic shared memory of a configuration.
    scratch_bytes
        See `unigemm.planning.protocol.ResizableBackend`.
    arguments
        Integers of a plan that its kernels take after those that all kernels take.
    rehearsed, rehearsed_for
        What is ranked before a caller's first product, for which architecture, whatever the
        caller's is: see `unigemm.planning.protocol.RehearsingBackend`.
    """

    batch_invariant: ClassVar[bool] = True
    name: str
    unfit: Callable[[Problem, Extents, Target], str | None]
    offer: Callable[[Problem, Extents, Target, int | None, float], Ranking]
    price_legal: Callable[[Problem, Extents, Target, Sequence[Config]], Sequence[Candidate]]
    illegal: Callable[[Problem, Config, Target], str | None]
    misfit: Callable[[Problem, Extents, Config], str | None] | None
    compiled: Callable[[Problem], Problem]
    smem_bytes: Callable[[Problem, Config], int]
    scratch_bytes: Callable[[Problem, Extents, Target, Config], int]
    arguments: Callable[[Plan], tuple[int, ...]] = lambda plan: ()
    rehearsed: tuple[tuple[Problem, Extents], ...] = field(default=(), compare=False)
    rehearsed_for: str = field(default="sm_90a", compare=False)

    def missing(self) -> str | None:
        """Say what of the toolchain, or of this package, is not installed; None when all is."""
        return toolchain.missing() or sources_missing(f"unigemm.backends.{self.name}")

    def compiler_missing(self) -> str | None:
        """Return None: what runs the kernels has compiled them."""
        return None

    def refuse(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it cannot compute the product on the target; None when it can."""
        return (
            refuse_sizes(extents, target)
            or toolchain.refuse_architecture(target)
            or self.unfit(problem, extents, target)
        )

    def candidates(self, problem: Problem, extents: Extents, target: Target) -> Sequence[Candidate]:
        """Return its legal configurations, priced."""
        return self.offer(problem, extents, target, None, inf).candidates

    def ranking(
        self, problem: Problem, extents: Extents, target: Target, most: int, bar: float
    ) -> Ranking:
        """Return the cheapest of them under the bar, and those as cheap that cannot run."""
        return self.offer(problem, extents, target, most, bar)

    def rehearse(self) -> None:
        """Rank what is `rehearsed`."""
        for problem, extents in self.rehearsed:
            self.offer(problem, extents, named_target(self.rehearsed_for), 1, inf)

    def price(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> Candidate:
        """Return a configuration, priced.

        Raises
        ------
        UnsupportedProblem
            It cannot run.
        """
        return self.price_all(problem, extents, target, (config,))[0]

    def price_all(
        self, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
    ) -> Sequence[Candidate]:
        """Return configurations, priced.

        Raises
        ------
        UnsupportedProblem
            One of them cannot run.
        """
        compiled = self.compiled(problem)
        for config in configs:
            reason = self.illegal(config.oriented(compiled), config, target)
            if reason is not None:
                raise UnsupportedProblem(f"{self.name} cannot run it: {reason}")
        return self.price_legal(problem, extents, target, configs)

    def refuse_config(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> str | None:
        """Say why a configuration cannot compute a product that it takes; None when it can."""
        reason = out_of_bounds(config)
        if reason is not None:
            return reason
        seen, sizes = config.oriented(self.compiled(problem)), config.oriented(extents)
        reason = self.misfit(seen, sizes, config) if self.misfit else None
        reason = reason or self.illegal(seen, config, target)
        if reason is not None:
            return reason
        whole = self.scratch_bytes(problem, extents, target, copied(config, split_k=1))
        sums = self.scratch_bytes(problem, extents, target, config) - whole
        return too_many(sizes, config, sums)

    def kernels(self) -> Any:
        """Return the module with the device code: `Spec`, `make_host` and `example_arguments`."""
        return import_module(f"unigemm.backends.{self.name}.kernels.host")

    def source(self) -> str:
        """Return the digest of all that decides the code."""
        return _digest(self.name)

    def oriented(self, plan: Plan) -> Problem:
        """Return the class that is compiled for a plan, as the kernel sees it."""
        return plan.config.oriented(self.compiled(plan.problem))

    def key(self, plan: Plan) -> KernelKey:
        """Return the content key: dtypes, majorness, alignment and tile, but no extents.

        And an SM's memory, which the code is made for, where it is not what the architecture has.
        """
        kernel = specialisation(self.oriented(plan), plan.config)
        if not is_usual_memory(plan.target):
            kernel["smem_per_sm"] = plan.target.smem_per_sm
        return KernelKey(
            backend=self.name,
            arch=plan.target.arch,
            kernel=kernel,
            source=self.source(),
            toolchain=toolchain.versions(),
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
        reason = self.illegal(problem, config, plan.target)
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
        return toolchain.load_kernel(files)

    def bind(self, kernel: object, plan: Plan, gemm: Gemm) -> Launcher:
        """Fix everything but the addresses and the stream."""
        run: Callable[..., None] = kernel  # type: ignore[assignment]
        config, extents = plan.config, plan.config.oriented(gemm.extents)
        strides = [step for matrix in oriented_strides(gemm, config) for step in matrix]
        scale_strides = [step for steps in oriented_scales(gemm, config) for step in steps]
        fixed = (
            extents.m, extents.n, extents.k, *gemm.batch, *strides,
            plan.split_k, int(config.raster.order == "n"), config.raster.group,
            *self.arguments(plan), *scale_strides,
        )  # fmt: skip

        def launch(a: int, b: int, d: int, workspace: int, stream: int, *scales: float) -> None:
            run(a, b, d, workspace, *fixed, *scales, stream)

        def launch_swapped(
            a: int, b: int, d: int, workspace: int, stream: int, *scales: float
        ) -> None:
            run(b, a, d, workspace, *fixed, *scales[1::-1], *scales[2:], stream)

        return launch_swapped if gemm.swapped != config.swap_ab else launch


#: The host files of a backend that its kernels import, beside the folder `kernels/`.
CODE_FILES = ("geometry.py", "geometry_gemv.py", "schedules.py", "shares.py", "work_split.py")


@cache
def _digest(name: str) -> str:
    """Return the digest of what decides the code: device code, and the arithmetic behind it."""
    own = package_sources(f"unigemm.backends.{name}")
    kernels = package_sources(f"unigemm.backends.{name}.kernels")
    shared = package_sources("unigemm.backends.cute")
    common = package_sources("unigemm.backends.common")
    return source_digest(
        *(own[file] for file in CODE_FILES if file in own),
        *(kernels[file] for file in sorted(kernels)),
        *(shared[file] for file in sorted(shared.keys() - {"backend.py"})),
        *(common[file] for file in ("factors.py", "workspace.py")),
    )
