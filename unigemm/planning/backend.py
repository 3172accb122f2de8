"""The base class of all backends: what a kernel frontend gives the planner and the runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ..cache.artifact import Artifact, KernelKey
from ..errors import UnsupportedProblem
from ..problem.canonical import Gemm
from ..problem.problem import Extents, Problem
from ..problem.scales import PER_TENSOR
from .calibration import Adjustment
from .config import Config
from .plan import Plan
from .prediction import Candidate, Ranking
from .target import Target

__all__ = ["Backend", "Launcher", "Timed", "unsupported_by"]

#: Starts one product: addresses of A, B, D (the caller's order) and of the workspace, and a stream;
#: of a product with block scales also the addresses of A's and B's block scales; of such a product
#: and of a scaled one the addresses of two scales (0: there is none) and a factor; then those of an
#: epilogue's arrays, and its numbers. One of groups takes behind all this, if it is scaled, by how
#: many numbers each scale steps from group to group, and last the address of the groups' ends.
Launcher = Callable[..., None]
#: A launch that was measured, in microseconds.
Timed: TypeAlias = tuple[Problem, Extents, Config, float]


class Backend(ABC):
    """A kernel frontend.

    Three methods are needed: `unsupported_reason`, `candidates` and `bind`. A backend that compiles
    kernels also needs `key`, `compile` and `load`. All others have defaults.

    Attributes
    ----------
    name
        How callers and plans name it.
    compiles
        It compiles kernels for GPUs, and the cache keeps them. Any other runs on the CPU.
    batch_invariant
        It keeps the promise of that name: with the same problem class, configuration, N and K the
        order in which a row is added up depends on nothing else, neither on M, the batch, the row's
        index nor the raster.
    takes_scales, takes_fine_scales, takes_epilogues, takes_groups, takes_conversions
        It multiplies by scales, of tensors and of blocks of K; by scales of 128 elements of K; it
        computes epilogues; and groups; it converts operands where it reads them. Such problems are
        else not offered to it. Which of them it does not take it says in `unsupported_reason`.
    shares_plans
        A configuration that was chosen for one size may run the others of its size class, see
        `unigemm.planning.size_buckets`. The backend then takes every size of a class if it takes
        the class. And a configuration that needs no workspace for the class needs none for the
        others, unless it has remainder launches.
    """

    name: str
    compiles: bool = False
    batch_invariant: bool = False
    takes_scales: bool = False
    takes_fine_scales: bool = False
    takes_epilogues: bool = False
    takes_groups: bool = False
    takes_conversions: bool = False
    shares_plans: bool = False

    def missing(self) -> str | None:
        """Say what must be installed before this backend can be used here; None when nothing."""
        return None

    def compiler_missing(self) -> str | None:
        """Say what must be installed to compile, where kernels run without it; else None.

        Such a backend then takes part with the kernels that the cache has.
        """
        return None

    @abstractmethod
    def unsupported_reason(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why the product cannot be done (well) on the target; None when it can.

        A pure function: no device and no kernel language is needed. The target is a GPU if the
        backend compiles and the CPU if not: nobody asks about others.
        """

    def unsupported_config_reason(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> str | None:
        """Say why a configuration cannot compute a product that is supported; None when it can.

        Plans come from outside, too: the configuration's numbers are integers from 0 on, its texts
        any. By default what `estimate` takes can run.
        """
        try:
            self.estimate(problem, extents, target, config)
        except UnsupportedProblem as error:
            return str(error)
        return None

    @abstractmethod
    def candidates(self, problem: Problem, extents: Extents, target: Target) -> Sequence[Candidate]:
        """Return legal configurations with their estimated times, in any order, at least one."""

    def ranking(self, problem: Problem, extents: Extents, target: Target, most: int) -> Ranking:
        """Return the `most` best candidates, the best first, and some as good that cannot run.

        Which come first must not depend on how many are requested; more may be returned.
        """
        return Ranking(tuple(sorted(self.candidates(problem, extents, target), key=_estimated_us)))

    def least_us(self, problem: Problem, extents: Extents, target: Target) -> float:
        """Return a lower bound of all estimated times, in microseconds; 0 where none is known.

        The planner does not rank a backend whose bound exceeds the times of others. It asks for
        this first, of products that the backend takes, so it should be quick.
        """
        return 0.0

    def estimate(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> Candidate:
        """Return a configuration with its estimated time: one of the candidates by default.

        Raises
        ------
        UnsupportedProblem
            It cannot run.
        """
        for candidate in self.candidates(problem, extents, target):
            if candidate.config == config:
                return candidate
        raise UnsupportedProblem(f"it is none of those that {self.name} offers")

    def estimate_all(
        self, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
    ) -> Sequence[Candidate]:
        """Return configurations as `estimate` does, in their order."""
        return [self.estimate(problem, extents, target, config) for config in configs]

    def adjustments(self, target: Target, launches: Sequence[Timed]) -> Mapping[str, Adjustment]:
        """Return what launches of its own on one card say of its cost model, by name.

        Nothing where they are too few, and by default: `unigemm.calibrate` then changes nothing.
        """
        return {}

    def workspace_bytes(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> int:
        """Return the bytes of the workspace of a configuration that can run.

        Raises
        ------
        UnsupportedProblem
            It is not for such extents.
        """
        return self.estimate(problem, extents, target, config).workspace_bytes

    def key(self, plan: Plan) -> KernelKey:
        """Return the key of the kernel that the plan needs; it holds no extents."""
        raise NotImplementedError(f"backend {self.name} compiles no kernels")

    def compile(self, plan: Plan) -> Artifact:
        """Compile that kernel for ``plan.target``, which need not be there.

        Raises
        ------
        CompilationError
            The compiler refused it.
        """
        raise NotImplementedError(f"backend {self.name} compiles no kernels")

    def load(self, files: Mapping[str, bytes], plan: Plan) -> object:
        """Load a kernel from its artifact's files, for the current device."""
        raise NotImplementedError(f"backend {self.name} compiles no kernels")

    @abstractmethod
    def bind(self, plan: Plan, gemm: Gemm, kernel: object) -> Launcher:
        """Return what launches the product for one set of extents and strides.

        Parameters
        ----------
        plan, gemm
            What to compute, and how.
        kernel
            What `load` returned; None if the backend compiles none. It then computes on the CPU,
            and its launcher ignores the stream.
        """


def _estimated_us(candidate: Candidate) -> float:
    return candidate.prediction.us


def unsupported_by(
    backend: Backend, problem: Problem, extents: Extents, target: Target
) -> str | None:
    """Say why a backend does not take a product: its own reason, or what it does not promise."""
    if backend.compiles and not target.is_gpu:
        return "runs on GPUs only; on the CPU use backend='numpy'"
    if target.is_gpu and not backend.compiles:
        return "runs on the CPU only"
    if (problem.scaled or problem.blocks is not None) and not backend.takes_scales:
        return "it takes no scales; use another backend"
    if problem.scales not in (None, PER_TENSOR) and not backend.takes_fine_scales:
        return f"it takes a scale per tensor, and here is {problem.scales}; use another backend"
    if problem.groups is not None and not backend.takes_groups:
        return "it computes no groups; use another backend, or loop over the groups"
    if problem.converted is not None and not backend.takes_conversions:
        kinds = f"{problem.a.dtype} by {problem.b.dtype} as {problem.converted}"
        return f"it multiplies {kinds} only after they are converted; use another backend"
    if problem.epilogue is not None and not backend.takes_epilogues:
        return "it computes no epilogues; use another backend, or compute behind the product"
    reason = backend.unsupported_reason(problem, extents, target)
    if reason is None and problem.batch_invariant and not backend.batch_invariant:
        reason = "it does not promise that rows are the same whatever M is"
    return reason
