"""`cutile` as the core sees it: what it takes, what it offers, how its kernels are kept and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from unigemm.cache.artifact import Artifact, KernelKey, source_digest
from unigemm.errors import UnsupportedProblem
from unigemm.planning.backend import Backend, Launcher, Timed
from unigemm.planning.calibration import Adjustment
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Candidate, Ranking
from unigemm.planning.target import Target
from unigemm.problem.canonical import Gemm
from unigemm.problem.problem import Extents, Problem

from ..common.code_sources import code_sources, sources_missing
from ..common.compile_elsewhere import compile_elsewhere
from ..common.kernel_key import (
    out_of_bounds,
    specialisation,
    too_many,
    unsupported_sizes,
)
from ..common.ranking import estimate_all, rank
from . import launch_arguments as arguments
from . import toolchain
from .candidates import MODEL, scratch_bytes
from .geometry import features, gpu_code, kernel_problem
from .launch import launcher, load
from .legality import unsupported_product, unsupported_reason

__all__ = ["BACKEND"]


class CutileBackend(Backend):
    """A backend whose kernels are cuTile."""

    # Every M of a class and configuration has the same kernel, whose sums are in the order of K;
    # the schedule of which that is not true is not offered then (`legality.varies`).
    batch_invariant = True
    name = "cutile"
    model = MODEL
    compiles = True
    takes_scales = True
    takes_epilogues = True
    takes_groups = True
    shares_plans = True

    def missing(self) -> str | None:
        """Say what of this package is not installed: kernels of the cache need no compiler."""
        return sources_missing("unigemm.backends.cutile")

    def compiler_missing(self) -> str | None:
        """Say what compiling needs and is not installed; None when all is."""
        return toolchain.missing()

    def unsupported_reason(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it cannot compute the product on the target, or not well; None when it can."""
        return unsupported_sizes(extents) or unsupported_product(problem, extents, target)

    def candidates(self, problem: Problem, extents: Extents, target: Target) -> Sequence[Candidate]:
        """Return its legal configurations with their estimated times."""
        return rank(MODEL, problem, extents, target, None).candidates

    def ranking(self, problem: Problem, extents: Extents, target: Target, most: int) -> Ranking:
        """Return those of least estimated time, and those as fast that cannot run."""
        return rank(MODEL, problem, extents, target, most)

    def estimate(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> Candidate:
        """Return a configuration with its estimated time.

        Raises
        ------
        UnsupportedProblem
            It cannot run, or not as the problem asks.
        """
        return self.estimate_all(problem, extents, target, (config,))[0]

    def estimate_all(
        self, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
    ) -> Sequence[Candidate]:
        """Return configurations as `estimate` does, in their order."""
        for config in configs:
            reason = unsupported_reason(config.oriented(problem), config, target)
            if reason is not None:
                raise UnsupportedProblem(f"cutile cannot run it: {reason}")
        return estimate_all(MODEL, problem, extents, target, configs)

    def unsupported_config_reason(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> str | None:
        """Say why a configuration cannot compute a product that it takes; None when it can."""
        sizes = config.oriented(extents)
        reason = out_of_bounds(config) or unsupported_reason(
            config.oriented(problem), config, target, sizes
        )
        if reason is not None:
            return reason
        whole = scratch_bytes(problem, extents, target, replace(config, split_k=1))
        sums = scratch_bytes(problem, extents, target, config) - whole
        return too_many(sizes, config, sums)

    def adjustments(self, target: Target, launches: Sequence[Timed]) -> Mapping[str, Adjustment]:
        """Return what measured launches of its own say of its cost model, by name."""
        from ..common.calibrating import adjustments_of

        return adjustments_of(self.model, target, launches)

    def workspace_bytes(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> int:
        """Return the bytes of the workspace of a configuration that can run: for all extents."""
        return scratch_bytes(problem, extents, target, config)

    def oriented(self, plan: Plan) -> Problem:
        """Return the class that is compiled for a plan, as the kernel sees it."""
        return plan.config.oriented(kernel_problem(plan.problem))

    def key(self, plan: Plan) -> KernelKey:
        """Return the content key: dtypes, majorness, alignment, tile and hints, but no extents."""
        source, versions = _digest(), toolchain.versions()
        if self.compiler_missing() is not None:
            from unigemm.cache import default_cache

            versions = default_cache().toolchain(self.name, source, versions)
        return KernelKey(
            backend=self.name,
            arch=plan.target.arch,
            kernel=specialisation(self.oriented(plan), plan.config),
            source=source,
            toolchain=versions,
        )

    def compile(self, plan: Plan) -> Artifact:
        """Compile the plan's kernels for its target.

        Raises
        ------
        UnsupportedProblem
            The plan's configuration is not legal (it did not come from the planner).
        BackendUnavailable
            The compiler is not installed.
        CompilationError
            cuTile refused it.
        """
        problem = self.oriented(plan)
        reason = unsupported_reason(problem, plan.config, plan.target)
        if reason is not None:
            raise UnsupportedProblem(f"cutile cannot run {plan.config}: {reason}; plan again")
        if toolchain.COMPILING.abandoned:
            return compile_elsewhere(plan)

        def spec() -> Any:
            from .kernels.host import Spec

            return Spec(problem, plan.config, features(plan.target))

        return toolchain.compile_kernels(spec, gpu_code(plan.target))

    def load(self, files: Mapping[str, bytes], plan: Plan) -> dict[str, Any]:
        """Return the loaded functions, by symbol."""
        return load(files)

    def bind(self, plan: Plan, gemm: Gemm, kernel: object) -> Launcher:
        """Fix everything but the addresses and the stream."""
        return launcher(
            arguments.calls(plan, gemm),
            kernel,  # type: ignore[arg-type]
            swapped=gemm.swapped != plan.config.swap_ab,
            overlap=features(plan.target).overlaps,
            scaled=plan.problem.scaled,
            epilogue=plan.problem.epilogue,
            groups=gemm.batch[0] if plan.problem.groups else 0,
        )


@cache
def _digest() -> str:
    """Return the digest of what decides the code: device code, and what makes code of it."""
    return source_digest(*code_sources("cutile.kernels.host", "cutile.toolchain").values())


BACKEND = CutileBackend()
