"""What a kernel frontend gives the core: the protocol that every backend implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeGuard, runtime_checkable

from ..cache.artifact import Artifact, KernelKey
from ..problem.canonical import Gemm
from ..problem.problem import Extents, Problem
from .config import Config
from .plan import Plan
from .prediction import Candidate, Ranking
from .target import Target

__all__ = [
    "Backend",
    "CheckingBackend",
    "CompilingBackend",
    "HostBackend",
    "InvariantBackend",
    "Launcher",
    "PricingBackend",
    "RankingBackend",
    "RehearsingBackend",
    "ResizableBackend",
    "RivalledBackend",
    "compiles",
]

#: Starts one product: addresses of A, B, D (the caller's order) and of the workspace, and a stream;
#: of a product whose blocks have scales also the addresses of those of A and of B; of such a one
#: and of a scaled one the addresses of two scales (0: there is none) and a factor.
Launcher = Callable[..., None]


class Backend(Protocol):
    """A kernel frontend. `name` is how callers and plans name it."""

    name: str

    def missing(self) -> str | None:
        """Say what must be installed before this backend can be used here; None when nothing."""
        ...

    def refuse(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why the product cannot be done (well) on the target; None when it can.

        A pure function: no device and no kernel language is needed.
        """
        ...

    def candidates(self, problem: Problem, extents: Extents, target: Target) -> Sequence[Candidate]:
        """Return legal configurations with their predicted times, in any order, at least one."""
        ...


@runtime_checkable
class RankingBackend(Backend, Protocol):
    """A backend with so many configurations that it looks further at the cheapest only."""

    def ranking(
        self, problem: Problem, extents: Extents, target: Target, most: int, bar: float
    ) -> Ranking:
        """Return the `most` cheapest candidates, and configurations as cheap that cannot run.

        Of candidates that cost the same, more may be returned; none above the bar (us). For the
        cheapest alone nobody asks what cannot run, and it may be left out.
        """
        ...


@runtime_checkable
class RehearsingBackend(RankingBackend, Protocol):
    """A backend that ranks some product before a caller's first, once a process."""

    def rehearse(self) -> None:
        """Rank it, and forget what came out.

        What runs for the first time takes longer: NumPy looks up its loops for the types of each
        operation, and Python's code is cold.
        """
        ...


@runtime_checkable
class RivalledBackend(RankingBackend, Protocol):
    """A backend that others mostly beat on some targets: there it is asked last, or not at all."""

    def floor_us(self, problem: Problem, extents: Extents, target: Target) -> float:
        """Return a price that none of its candidates is under; 0 where it need not wait."""
        ...


@runtime_checkable
class PricingBackend(Backend, Protocol):
    """A backend that also prices configurations that it would not offer for a product."""

    def price(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> Candidate:
        """Return a configuration as a candidate.

        Raises
        ------
        UnsupportedProblem
            It cannot run.
        """
        ...


@runtime_checkable
class CheckingBackend(Backend, Protocol):
    """A backend that says of any configuration whether it can run, not only of its candidates.

    Plans come from outside, too. Of a backend that does not say so what it prices is taken, and if
    it prices none, its candidates only. One that needs workspaces is also a `ResizableBackend`.
    """

    def refuse_config(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> str | None:
        """Say why a configuration cannot compute a product that `refuse` takes; None when it can.

        By the same rules that its candidates are drawn up by. The configuration's numbers are
        integers from 0 on, its texts any.
        """
        ...


@runtime_checkable
class ResizableBackend(Backend, Protocol):
    """A backend whose configurations may be taken for other extents than they were chosen for.

    For those of the same class of sizes, see `unigemm.planning.planner.size_class`: it refuses none
    of these unless it refuses the class. And a configuration that needs no workspace for the class
    needs none for these, unless it has strips.
    """

    def scratch_bytes(
        self, problem: Problem, extents: Extents, target: Target, config: Config
    ) -> int:
        """Return the bytes of the workspace of a configuration that can run.

        Raises
        ------
        UnsupportedProblem
            It is not for such extents.
        """
        ...


@runtime_checkable
class InvariantBackend(PricingBackend, Protocol):
    """A backend that keeps the promise of `batch_invariant`.

    In one class, with one configuration, N and K, the order of a row's sums depends on nothing
    else: not on M, the batch, the row's place or the raster.
    """

    batch_invariant: ClassVar[bool]

    def price_all(
        self, problem: Problem, extents: Extents, target: Target, configs: Sequence[Config]
    ) -> Sequence[Candidate]:
        """Return configurations as `price` does, in their order."""
        ...


@runtime_checkable
class HostBackend(Backend, Protocol):
    """A backend that runs on the host's processor."""

    def bind(self, plan: Plan, gemm: Gemm) -> Launcher:
        """Return what computes the product; the stream is ignored."""
        ...


@runtime_checkable
class CompilingBackend(Backend, Protocol):
    """A backend that compiles kernels, which the cache keeps."""

    def compiler_missing(self) -> str | None:
        """Say what must be installed to compile, where kernels run without it; else None.

        Such a backend then takes part with the kernels that the cache has.
        """
        ...

    def key(self, plan: Plan) -> KernelKey:
        """Return the key of the kernel that the plan needs; it holds no extents."""
        ...

    def compile(self, plan: Plan) -> Artifact:
        """Compile that kernel for ``plan.target``, which need not be there.

        Raises
        ------
        CompilationError
            The compiler refused it.
        """
        ...

    def load(self, files: Mapping[str, bytes], plan: Plan) -> object:
        """Load a kernel from its artifact's files, for the current device."""
        ...

    def bind(self, kernel: object, plan: Plan, gemm: Gemm) -> Launcher:
        """Return what launches a loaded kernel for one set of extents and strides."""
        ...


def compiles(backend: Backend) -> TypeGuard[CompilingBackend]:
    """Say whether a backend compiles kernels.

    Every call asks, and `isinstance` takes ten microseconds: it looks for all of the protocol.
    """
    return hasattr(backend, "compile")
