"""The product that a command is about, and the arguments and options that describe it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Any, get_type_hints

from ..arrays.array_spec import ArraySpec
from ..planning.plan import Plan
from ..planning.planner import KEPT
from ..runtime.plan_call import plan_request
from ..runtime.words import (
    grouped_specs,
    quantize_out_of,
    request_of,
    requested_specs,
    specs,
)
from .epilogue import EpilogueWords
from .groups import Along, Groups
from .options import (
    Backend,
    Batch,
    BatchInvariant,
    Columns,
    Depth,
    DtypeName,
    Layout,
    OutDtype,
    Precision,
    QuantizeOut,
    Rows,
    ScaleA,
    ScaleB,
    Targets,
)

__all__ = ["Product", "operands_of", "plans_of", "takes_product"]


@dataclass(frozen=True)
class Product:
    """A product as the command line describes it."""

    m: Rows
    n: Columns
    k: Depth
    dtype: DtypeName = "float32"
    out_dtype: OutDtype = None
    layout: Layout = "nn"
    batch: Batch = 1
    target: Targets = None
    backend: Backend = "auto"
    precision: Precision = "ieee"
    batch_invariant: BatchInvariant = False
    epilogue: EpilogueWords = None
    groups: Groups = None
    along: Along = "m"
    scale_a: ScaleA = None
    scale_b: ScaleB = None
    quantize_out: QuantizeOut = None


def takes_product(*omitted: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a `Product`, but for `omitted` ones, as its first parameter."""
    hints = get_type_hints(Product, include_extras=True)
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shared = [
        inspect.Parameter(
            x.name,
            keyword,
            annotation=hints[x.name],
            default=inspect.Parameter.empty if x.default is MISSING else x.default,
        )
        for x in fields(Product)
        if x.name not in omitted
    ]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            product = Product(**{x.name: given.pop(x.name) for x in shared})
            command(product, **given)

        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [*shared, *own]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {x.name: x.annotation for x in parameters}
        return run

    return decorated


def plans_of(product: Product, *, keep: int = KEPT) -> list[Plan]:
    """Plan a product for every named target, and keep this many alternatives of each plan."""
    words = {name: word for name, word in vars(product).items() if name != "target"}
    request = request_of(**words)
    wanted: list[str | None] = [*product.target] if product.target else [None]
    return [plan_request(request, x, scaled=False, keep=keep, tuned=True) for x in wanted]


def operands_of(product: Product) -> tuple[ArraySpec, ArraySpec, dict[str, Any], dict[str, Any]]:
    """Return a product's operands, the ends of its groups, and what else a call of it is given.

    Raises
    ------
    UnsupportedProblem
        A word is not known.
    """
    x, ends, shape = product, dict[str, Any](), None
    a, b = specs(x.m, x.n, x.k, x.dtype, x.layout, x.batch)
    if x.groups is not None:
        a, b, ends, shape = grouped_specs(a, b, x.groups, x.along)
    given = requested_specs(x.epilogue, x.scale_a, x.scale_b, a, b, shape)
    if x.quantize_out is not None:
        given["quantize_out"] = quantize_out_of(x.quantize_out)
    return a, b, ends, given
