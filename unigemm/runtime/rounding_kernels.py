"""Kernels that round arrays to eight bits, as lists of what a program needs name them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import hooks
from ..arrays.operands import alignment_of
from ..errors import BackendUnavailable, UnsupportedProblem
from ..planning.entry_files import converted
from ..planning.plan import Plan
from ..planning.registry import compiler_missing_of
from ..planning.target import Target, check_target, named_target
from ..problem.canonical import Layout
from ..problem.problem import Problem
from ..support.arguments import shown

if TYPE_CHECKING:
    from ..cache import Cache, Entry
    from ..cache.artifact import Artifact, KernelKey

__all__ = ["RoundingKernel", "row_alignment", "second_passes_of"]

#: Numbers of columns of which one is aligned as any other number is.
_COLUMNS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class RoundingKernel:
    """A kernel of `unigemm.quantize`, or of the second pass of ``quantize_out="row"``.

    Attributes
    ----------
    kind
        What is compiled in: the types, what shares a scale, and how elements lie.
    target
        The device that it is for.
    """

    kind: Any
    target: Target

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RoundingKernel:
        """Return the kernel that `to_dict` was called on.

        Raises
        ------
        UnsupportedProblem
            The mapping is not that of one.
        """
        unknown = data.keys() - {"quantize", "target"}
        if unknown or "target" not in data:
            raise UnsupportedProblem(
                f"it has {', '.join(map(shown, sorted(unknown))) or 'no target'}; a kernel that "
                "quantises has quantize and target, as unigemm.record writes them"
            )
        kind = converted(data["quantize"], hooks.named(hooks.QUANTIZER).kinds)
        target = data["target"]
        found = named_target(target) if isinstance(target, str) else converted(target, Target)
        check_target(found)
        return cls(kind, found)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        import msgspec

        target = msgspec.to_builtins(replace(self.target, calibration=None))
        del target["calibration"]
        return {"quantize": msgspec.to_builtins(self.kind), "target": target}

    def to_json(self) -> str:
        """Return `to_dict` as one JSON object."""
        return json.dumps(self.to_dict())

    @property
    def backend(self) -> str:
        """Whose kernel it is, as the cache says."""
        return str(hooks.named(hooks.QUANTIZER).name)

    @property
    def key(self) -> KernelKey:
        """What the cache knows it by."""
        found: KernelKey = hooks.named(hooks.QUANTIZER).key(self.kind, self.target)
        return found

    def compiled(self) -> Artifact:
        """Compile it.

        Raises
        ------
        BackendUnavailable
            Nothing is compiled here, or there is no such kernel for the device.
        CompilationError
            The compiler refused it.
        """
        quantizer = hooks.named(hooks.QUANTIZER)
        reason = quantizer.unsupported_reason(self.kind, self.target)
        if reason is not None:
            raise BackendUnavailable(f"nothing is quantised so on {self.target.arch}: {reason}")
        reason = compiler_missing_of(quantizer)
        if reason is not None:
            key = self.key
            raise BackendUnavailable(
                f"kernel {key.digest[:16]} of {key.backend} is in no bundle and not in the cache, "
                f"and it cannot be compiled here: {reason}. Compile it elsewhere (unigemm warmup, "
                "with what unigemm.record wrote) and bring it in a bundle (unigemm cache export; "
                "UNIGEMM_CACHE_BUNDLES)"
            )
        made: Artifact = quantizer.compile(self.kind, self.target)
        return made

    def entry(self, cache: Cache | None = None) -> Entry:
        """Return it in the cache, by default the process's own, after compiling it if needed.

        Raises
        ------
        BackendUnavailable, CompilationError
            As `compiled` does.
        """
        from ..cache import default_cache

        return (cache or default_cache()).get_or_compile(self.key, self.compiled)

    def __str__(self) -> str:
        kind = self.kind
        return f"{kind.source} to {kind.result}, a scale per {kind.sharing}"


def row_alignment(x: Layout, extents: Sequence[int], steps: Sequence[int]) -> int:
    """Return the bytes that rows are aligned to where their elements are neighbours; else 0.

    Parameters
    ----------
    x
        The layout of an array.
    extents, steps
        Its columns, its rows and what it is a stack along, and the steps along these.
    """
    if extents[0] > 1 and steps[0] != 1:
        return 0
    apart = (step for extent, step in zip(extents[1:], steps[1:], strict=True) if extent > 1)
    return min((x.alignment, *(alignment_of(abs(step) * x.dtype.itemsize) for step in apart)))


def second_passes_of(plan: Plan) -> tuple[RoundingKernel, ...]:
    """Return the kernels of which one rounds a plan's new result; none without a second pass.

    There is one of them where M and N are more than 1. Elsewhere a plan does not tell a row from a
    column, or from the rows that a stack of matrices times a vector is, and these may be aligned
    in different ways.
    """
    problem, m, n = plan.problem, plan.extents.m, plan.extents.n
    if problem.quantized_rows is None or not plan.target.is_gpu:
        return ()
    shapes = []
    if 1 in (m, n):
        shapes.append((1, m * n))
    if problem.epilogue is not None and problem.epilogue.gate:
        shapes.append((2, n // 2))  # as far apart as more rows
    elif 1 in (m, n):
        shapes += [(2, columns) for columns in _COLUMNS if m * n % columns == 0]
    else:
        shapes.append((2, n))
    kinds = dict.fromkeys(_second_pass(problem, *shape) for shape in shapes)
    return tuple(RoundingKernel(kind, plan.target) for kind in kinds)


def _second_pass(problem: Problem, rows: int, columns: int) -> Any:
    """Return the kind of kernel that rounds new rows."""
    source, result = problem.d.dtype, problem.quantized_rows
    assert result is not None
    extents, steps = (columns, rows), (1, columns)
    layouts = (Layout((rows, columns), steps[::-1], dtype) for dtype in (source, result))
    reads, writes = (row_alignment(x, extents, steps) for x in layouts)
    return hooks.named(hooks.QUANTIZER).kind(
        source, result, problem.quantized_by, reads, writes, stacked=False
    )
