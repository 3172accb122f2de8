"""`cute_simt` as the core sees it: what it takes, what it offers, how its kernels are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from unigemm.artifact import Artifact, KernelKey, source_digest
from unigemm.backend import Launcher
from unigemm.errors import UnsupportedProblem
from unigemm.gemm import Gemm
from unigemm.plans import Candidate, Plan
from unigemm.problem import Extents, MatrixType, Problem
from unigemm.target import Target

from ..cute import toolchain
from .configs import candidates
from .geometry import geometry, illegal

__all__ = ["BACKEND", "CuteSimt"]

_SOURCES = ("kernel.py", "geometry.py", "../cute/device.py")
_INT32_MAX = 2**31 - 1


def kernel_problem(problem: Problem) -> Problem:
    """Return the class that is compiled for a problem: what makes no difference is left out."""
    narrow = problem.d.alignment < 16 or problem.d.major == "strided"
    d: MatrixType = replace(
        problem.d, alignment=problem.d.dtype.itemsize if narrow else problem.d.alignment
    )
    return replace(problem, d=d, deterministic=False)


@dataclass(frozen=True)
class CuteSimt:
    """The backend; see `unigemm.backend.CompilingBackend` for what each method promises."""

    name: str = "cute_simt"

    def missing(self) -> str | None:
        """Say which package of the toolchain is not installed; None when all are."""
        return toolchain.missing()

    def refuse(self, problem: Problem, extents: Extents, target: Target) -> str | None:
        """Say why it cannot compute the product on the target; None when it can."""
        if not target.is_gpu:
            return "it runs on CUDA devices; use backend='numpy' on the host"
        if target.capability < (8, 0):
            return f"it needs cp.async (sm_80 or newer), {target.arch} has none"
        if max(extents.m, extents.n, extents.k) > _INT32_MAX:
            return "M, N and K must be below 2**31; cut the product into blocks"
        ctas = -(-extents.m // 8) * -(-extents.n // 8) * extents.batch
        if ctas > _INT32_MAX * 16:
            return f"{extents} has more tiles than a grid of 2**31 - 1; cut it into blocks"
        return None

    def candidates(self, problem: Problem, extents: Extents, target: Target) -> Sequence[Candidate]:
        """Return its legal configurations, priced."""
        return candidates(problem, extents, target)

    def key(self, plan: Plan) -> KernelKey:
        """Return the content key: dtypes, majorness, alignment and tile, but no extents."""
        config = plan.config
        problem = kernel_problem(plan.problem)
        return KernelKey(
            backend=self.name,
            arch=plan.target.arch,
            kernel={
                **{
                    name: {"dtype": x.dtype.value, "major": x.major, "alignment": x.alignment}
                    for name, x in (("a", problem.a), ("b", problem.b), ("d", problem.d))
                },
                "precision": problem.precision,
                "tile": list(config.tile),
                "warps": list(config.warps),
                "thread": list(config.thread),
                "stages": config.stages,
                "split": config.split_k > 1,
            },
            source=_digest(),
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
        problem = kernel_problem(plan.problem)
        reason = illegal(problem, plan.config, plan.target)
        if reason is not None:
            raise UnsupportedProblem(f"cute_simt cannot run {plan.config}: {reason}; plan again")

        def host() -> Any:
            from . import kernel

            return kernel.make_host(kernel.Spec(problem, plan.config))

        def arguments() -> Sequence[Any]:
            from . import kernel

            return kernel.example_arguments()

        smem = geometry(problem, plan.config).smem_bytes
        return toolchain.compile_kernel(host, arguments, plan.target.arch, smem)

    def load(self, files: dict[str, str], plan: Plan) -> Callable[..., None]:
        """Return the compiled function."""
        return toolchain.load_kernel(files)

    def bind(self, kernel: object, plan: Plan, gemm: Gemm) -> Launcher:
        """Fix everything but the addresses and the stream."""
        run: Callable[..., None] = kernel  # type: ignore[assignment]
        extents, raster = gemm.extents, plan.config.raster
        fixed = (
            extents.m, extents.n, extents.k, *gemm.batch,
            *gemm.a_strides, *gemm.b_strides, *gemm.d_strides,
            plan.split_k, int(raster.order == "n"), raster.group,
        )  # fmt: skip
        problem = gemm.problem
        sizes = (problem.a.dtype.itemsize, problem.b.dtype.itemsize, problem.d.dtype.itemsize)
        offsets = [
            tuple(step * size for step, size in zip(each, sizes, strict=True))
            for each in gemm.offsets
        ]
        swapped = gemm.swapped

        def launch(a: int, b: int, d: int, workspace: int, stream: int) -> None:
            if swapped:
                a, b = b, a
            run(a, b, d, workspace, *fixed, stream)

        def launch_each(a: int, b: int, d: int, workspace: int, stream: int) -> None:
            if swapped:
                a, b = b, a
            for at_a, at_b, at_d in offsets:
                run(a + at_a, b + at_b, d + at_d, workspace, *fixed, stream)

        return launch if offsets == [(0, 0, 0)] else launch_each


@cache
def _digest() -> str:
    folder = Path(__file__).parent
    return source_digest(*((folder / name).read_bytes() for name in _SOURCES))


BACKEND = CuteSimt()
