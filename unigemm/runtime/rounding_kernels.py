"""Kernels that round arrays to eight bits, as lists of what a program needs name them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import hooks
from ..arrays.operands import alignment_of
from ..errors import BackendUnavailable, UnsupportedProblem
from ..planning.entry_files import converted
from ..planning.plan import Plan
from ..planning.registry import compiler_missing_of
from ..planning.target import Target, check_target, named_target
from ..support.arguments import shown

if TYPE_CHECKING:
    from ..cache import Cache, Entry
    from ..cache.artifact import Artifact, KernelKey

__all__ = ["RoundingKernel", "second_pass_of"]


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


def second_pass_of(plan: Plan) -> RoundingKernel | None:
    """Return what rounds the rows of a plan's new result; None where nothing does."""
    problem, columns = plan.problem, plan.extents.n
    dtype = problem.quantized_rows
    if dtype is None or not plan.target.is_gpu:
        return None
    if problem.epilogue is not None and problem.epilogue.gate:
        columns //= 2
    quantizer = hooks.named(hooks.QUANTIZER)
    reads, writes = (alignment_of(columns * x.itemsize) for x in (problem.d.dtype, dtype))
    kind = quantizer.kind(
        problem.d.dtype, dtype, problem.quantized_by, reads, writes, stacked=False
    )
    return RoundingKernel(kind, plan.target)
