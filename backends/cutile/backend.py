"""`cutile` as the core sees it: what it takes, what it offers, how its kernels are kept and run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from unigemm.cache.artifact import Artifact, source_digest
from unigemm.planning.backend import Launcher
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target
from unigemm.problem.canonical import Gemm
from unigemm.problem.problem import Extents, Problem

from ..common.code_sources import code_sources, sources_missing
from ..common.compile_elsewhere import compile_elsewhere
from ..common.kernel_backend import KernelBackend
from ..common.kernel_key import unsupported_sizes
from . import launch_arguments as arguments
from . import toolchain
from .candidates import MODEL
from .geometry import features, gpu_code, kernel_problem
from .launch import launcher, load
from .legality import unsupported_product, unsupported_reason

__all__ = ["BACKEND"]


class CutileBackend(KernelBackend):
    """A backend whose kernels are cuTile."""

    # Every M of a class and configuration has the same kernel, which adds in the order of K;
    # the schedule of which that is not true is not offered then (`legality.varies`).
    batch_invariant = True
    name = "cutile"
    model = MODEL
    takes_groups = True

    def missing(self) -> str | None:
        """Say what of this package is not installed: kernels of the cache need no compiler."""
        return sources_missing("unigemm.backends.cutile")

    def compiler_missing(self) -> str | None:
        """Say what compiling needs and is not installed; None when all is."""
        return toolchain.missing()

    def unsupported_reason(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it cannot compute the product on the target, or not well; None when it can."""
        return unsupported_sizes(extents) or unsupported_product(problem, extents, target)

    def unsupported_kernel(
        self, problem: Problem, config: Config, target: Target, extents: Extents | None = None
    ) -> str | None:
        """Say why a configuration cannot run on the target; None when it can."""
        return unsupported_reason(problem, config, target, extents)

    def kernel_problem(self, problem: Problem) -> Problem:
        """Return the class that is compiled for a problem: what makes no difference is left out."""
        return kernel_problem(problem)

    def legal_as(self, problem: Problem) -> Problem:
        """Return the problem: which schedules vary with M is no part of what is compiled."""
        return problem

    def source(self) -> str:
        """Return the digest of what decides the code: device code, and what makes code of it."""
        return _digest()

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the compilers that decide the code."""
        return toolchain.versions()

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
        problem = self.refuse_illegal(plan)
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
