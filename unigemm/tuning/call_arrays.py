"""The arrays of one call that is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import api
from ..arrays.library import WRITTEN
from ..grouped import grouped_matmul
from ..planning.plan import Plan
from ..problem.problem import Problem
from ..problem.quantization import sharing_of_result
from ..runtime.request import PREFIX
from ..runtime.words import QUANTIZED

__all__ = ["Arrays", "keywords", "quantized_options"]


@dataclass(frozen=True)
class Arrays:
    """One call's arrays.

    Attributes
    ----------
    a, b, out
        As in `unigemm.matmul`.
    arguments
        Those of the epilogue, from `unigemm.runtime.request.Request.arguments`.
    more_out
        Further results of a function.
    scaling
        `scale_a` and `scale_b`, as the caller has them.
    groups
        Of a grouped product: `offsets` or `rows`, and `rest`.
    """

    a: Any
    b: Any
    out: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    more_out: tuple[Any, ...] = ()
    scaling: Mapping[str, Any] = field(default_factory=dict)
    groups: Mapping[str, Any] = field(default_factory=dict)

    def call(self, plan: Plan) -> Callable[[], object]:
        """Return a function that multiplies them by a plan."""
        options: dict[str, Any] = {"precision": plan.problem.precision, **self.scaling}
        options |= {"deterministic": plan.problem.deterministic, **keywords(self.arguments)}
        options |= quantized_options(plan.problem)
        out = (self.out, *self.more_out) if self.more_out else self.out
        if self.groups:
            options |= self.groups
            offsets = options.pop("offsets", None)
            return lambda: grouped_matmul(self.a, self.b, offsets, out, plan=plan, **options)
        return lambda: api.matmul(self.a, self.b, out, plan=plan, **options)

    @property
    def results(self) -> dict[str, Any]:
        """The arrays that a call writes, by name."""
        found = {name: x for name, x in self.arguments.items() if name in WRITTEN}
        found |= {f"result {i}": x for i, x in enumerate(self.more_out, 1)}
        return {"out": self.out, **found}


def quantized_options(problem: Problem) -> dict[str, Any]:
    """Return the option by which a call's result is quantised as that of a problem."""
    sharing = sharing_of_result(problem)
    if sharing is None:
        return {}
    return {"quantize_out": QUANTIZED[sharing]}


def keywords(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `Request.arguments`: return the arguments as `unigemm.matmul` takes them."""
    named, more = dict[str, Any](), dict[str, Any]()
    for name, value in arguments.items():
        if name.startswith(PREFIX):
            more[name.removeprefix(PREFIX)] = value
        else:
            named[name] = value
    return {**named, "epilogue_args": more} if more else named
