"""What backends that compile kernels do alike: ranking by a cost model, legality, keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unigemm.cache.artifact import KernelKey
from unigemm.errors import UnsupportedProblem
from unigemm.planning.backend import Backend, Timed
from unigemm.planning.calibration import Adjustment
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Candidate, Ranking
from unigemm.planning.target import Target
from unigemm.problem.problem import Extents, Problem

from .kernel_key import out_of_bounds, specialisation, too_many
from .ranking import CostModel, estimate_all, rank

__all__ = ["KernelBackend"]


class KernelBackend(Backend):
    """A backend that compiles kernels, and ranks their configurations by a cost model.

    Each says which products it takes, what it considers for one (`model`), which configurations can
    run, and what its kernels are compiled for.
    """

    compiles = True
    batch_invariant = True
    takes_scales = True
    takes_epilogues = True
    shares_plans = True
    model: CostModel

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
    def source(self) -> str:
        """Return the digest of all that decides the code."""

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the compilers that decide the code."""

    def legal_as(self, problem: Problem) -> Problem:
        """Return a problem as `unsupported_kernel` is to see it."""
        return self.kernel_problem(problem)

    def copied_as(self, problem: Problem) -> Problem:
        """Return a problem with operands of the classes that kernels copy them by."""
        return problem

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
        """Return a configuration with its estimated time; see `estimate_all`."""
        return self.estimate_all(problem, extents, target, (config,))[0]

    def estimate_all(
        self, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
    ) -> Sequence[Candidate]:
        """Return configurations with their estimated times, in their order.

        Raises
        ------
        UnsupportedProblem
            One of them cannot run.
        """
        seen = self.legal_as(problem)
        for config in configs:
            reason = self.unsupported_kernel(config.oriented(seen), config, target)
            if reason is not None:
                raise UnsupportedProblem(f"{self.name} cannot run it: {reason}")
        return estimate_all(self.model, self.copied_as(problem), extents, target, configs)

    def adjustments(self, target: Target, launches: Sequence[Timed]) -> Mapping[str, Adjustment]:
        """Return what measured launches of its own say of its cost model, by name."""
        from .calibrating import adjustments_of

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
        own, sizes = config.oriented(self.legal_as(problem)), config.oriented(extents)
        reason = self.unsupported_kernel(own, config, target, sizes)
        if reason is not None:
            return reason
        whole = self.workspace_bytes(problem, extents, target, replace(config, split_k=1))
        parts = self.workspace_bytes(problem, extents, target, config) - whole
        return too_many(sizes, config, parts)

    def oriented(self, plan: Plan) -> Problem:
        """Return the class that is compiled for a plan, as the kernel sees it."""
        return plan.config.oriented(self.kernel_problem(plan.problem))

    def specialisation(self, plan: Plan) -> dict[str, Any]:
        """Return what a plan's kernel is specialised on, for its key."""
        return specialisation(self.oriented(plan), plan.config)

    def key(self, plan: Plan) -> KernelKey:
        """Return the content key: dtypes, majorness, alignment and tile, but no extents."""
        source, versions = self.source(), self.versions()
        if self.compiler_missing() is not None:
            from unigemm.cache import default_cache

            versions = default_cache().toolchain(self.name, source, versions)
        return KernelKey(
            backend=self.name,
            arch=plan.target.arch,
            kernel=self.specialisation(plan),
            source=source,
            toolchain=versions,
        )

    def refuse_illegal(self, plan: Plan) -> Problem:
        """Return the class that is compiled for a plan.

        Raises
        ------
        UnsupportedProblem
            The plan's configuration is not legal (it did not come from the planner).
        """
        problem = self.oriented(plan)
        reason = self.unsupported_kernel(problem, plan.config, plan.target)
        if reason is not None:
            raise UnsupportedProblem(f"{self.name} cannot run {plan.config}: {reason}; plan again")
        return problem
