"""What a contraction would do, without doing it: its products, and what is copied for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import as_array, library_of
from ..arrays.operands import one_device
from ..planning.plan import Plan
from ..planning.select import target_of
from ..planning.target import Target, check_target, device_count, named_target
from ..problem.contraction import Contraction, Named, View, contraction
from ..problem.dtypes import DType
from ..problem.subscripts import Index, parsed, taken_apart, written
from ..runtime.plan_call import plan_request
from ..runtime.request import Request
from ..runtime.result_type import described, device_of
from ..support.arguments import whole_number
from .einsum import requested
from .quantized import rounded
from .terms import Term, contracted, is_apart, is_view, order_of, refuse_shape
from .types import Types, common_type, types_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arrays.types import ContractionOptions

__all__ = ["EinsumPlan", "EinsumStep", "plan_einsum"]


@dataclass(frozen=True)
class EinsumStep:
    """One product of a contraction.

    Attributes
    ----------
    subscripts
        What is multiplied, as `einsum` takes it.
    operands
        What the two operands are: "operand 0", "a product", or "1" where one is only summed.
    copies
        What is copied for it, and how many bytes each: an operand's name, or "the result".
    launches
        How many launches it takes.
    plan
        Of each launch; None for a product of nothing.
    """

    subscripts: str
    operands: tuple[str, str]
    copies: tuple[tuple[str, int], ...]
    launches: int
    plan: Plan | None

    def explain(self) -> str:
        """Return what is done, and why its kernel was picked."""
        head = f"{self.subscripts}: {self.operands[0]} by {self.operands[1]}"
        if self.launches > 1:
            head += f", in {self.launches} launches"
        said = [f"{name} is copied first, {size} bytes" for name, size in self.copies]
        lines = [head, *(said or ["nothing is copied"])]
        lines += [] if self.plan is None else self.plan.explain().splitlines()
        return "\n  ".join(lines)


@dataclass(frozen=True)
class EinsumPlan:
    """What `plan_einsum` returns; prints as an explanation.

    Attributes
    ----------
    steps
        The products, in order; none where the result is a view of the only operand.
    quantized
        What the result, in float32, is rounded to by a pass behind them; None for no such pass.
    """

    steps: tuple[EinsumStep, ...]
    quantized: DType | None = None

    @property
    def copied_bytes(self) -> int:
        """How much is copied in all."""
        return sum(size for step in self.steps for _, size in step.copies)

    def explain(self) -> str:
        """Return what is done, product by product."""
        said = [x.explain() for x in self.steps]
        if self.quantized is not None:
            said.append(f"a pass behind rounds the result, in float32, to {self.quantized}")
        return "\n".join(said) or "a view of operand 0; nothing is done"

    __str__ = explain


def plan_einsum(
    *subscripts_and_operands: Any, out: Any = None, optimize: Any = "greedy",
    target: str | Target | None = None, keep: int = 3, **options: Unpack[ContractionOptions],
) -> EinsumPlan:  # fmt: skip
    """Say which products a contraction takes, which kernels compute them, and what is copied.

    Parameters
    ----------
    subscripts_and_operands, out, optimize, **options
        As in `einsum`; an `ArraySpec` describes an array.
    target
        As in `plan`.
    keep : int
        How many of the candidates that lost to keep in each plan.

    Returns
    -------
    EinsumPlan
        The products in order, each with its plan.

    Raises
    ------
    UnigemmError
        See `einsum` and `plan`.

    Examples
    --------
    >>> import unigemm
    >>> q = unigemm.ArraySpec((2, 512, 8, 64), "bfloat16")
    >>> unigemm.plan_einsum("bqhd,bkhd->bhqk", q, q, target="h100").copied_bytes
    0
    """
    text, given = taken_apart(subscripts_and_operands)
    arrays = [x if isinstance(x, ArraySpec) else as_array(x, "operand") for x in given]
    named = {f"operand {i}": x for i, x in enumerate(arrays) if not isinstance(x, ArraySpec)}
    libraries = {name: library_of(x, name) for name, x in named.items()}
    devices = {name: device_of(libraries[name], x, name) for name, x in named.items()}
    if target is None and devices:
        target = target_of(one_device(devices))
    specs = [_described(x, f"operand {i}") for i, x in enumerate(arrays)]
    found = parsed(text, [len(x.shape) for x in specs])
    terms = [
        Term(x, _named(x, own), f"operand {i}", x.dtype)
        for i, (x, own) in enumerate(zip(specs, found.operands, strict=True))
    ]
    request = requested(options, None if out is None else _described(out, "out"))
    kinds = [x.dtype for x in specs]
    promotes = all(library.promotes or library.opened for library in libraries.values())
    quantized = None
    if request.quantize_out is not None:
        kind = common_type(kinds, promotes=promotes)
        request, quantized, _ = rounded(request, kind, len(found.result))
    order = order_of(found, text, [x.shape for x in specs], optimize)
    refuse_shape(request.results, terms, found.result)
    steps: list[EinsumStep] = []
    if len(terms) > 1 or not is_view(terms[0], found.result, request):
        types = types_of(kinds, request, promotes=promotes, on_host=_is_host(target))
        made = _Planned(request, types, target, whole_number(keep, "keep", 0), steps)
        contracted(terms, found.result, order, made.multiply)
    return EinsumPlan(tuple(steps), quantized)


def _described(x: Any, name: str) -> ArraySpec:
    if isinstance(x, ArraySpec):
        return x
    seen = described(x, name)
    return ArraySpec(seen.shape, seen.dtype, strides=seen.strides, alignment=seen.alignment)


def _is_host(target: str | Target | None) -> bool:
    if target is None:
        return not device_count()
    if isinstance(target, Target):
        check_target(target)
        return not target.is_gpu
    return not named_target(target).is_gpu


def _named(x: ArraySpec, indices: tuple[Index, ...]) -> Named:
    return Named(indices, View(x.shape, x.layout.strides), 1, x.dtype.itemsize)


def _seen(x: ArraySpec, view: View) -> ArraySpec:
    return ArraySpec(view.shape, x.dtype, strides=view.strides, alignment=x.alignment)


@dataclass
class _Planned:
    """A contraction that is being planned."""

    request: Request
    types: Types
    target: Any
    keep: int
    steps: list[EinsumStep]

    def multiply(self, a: Term, b: Term, result: tuple[Index, ...], last: bool) -> Term:
        """Plan the product of two terms; see `terms.Multiply`."""
        product = self.types.product(self.request, a, b, last=last)
        (a, of_a), (b, of_b) = map(self._converted, (a, b), product.copied)
        a, b = self._filled(a, b), self._filled(b, a)
        request = product.request._replace(a=a.array, b=b.array)
        out = request.out
        aux = {
            name: _described(x, name) for name, x in request.arrays().items() if not is_apart(name)
        }
        free = out is None and (not last or request.epilogue is not None)
        views = tuple(View(x.shape, x.layout.strides) for x in aux.values())
        of_out = None if out is None else View(out.shape, out.layout.strides)
        form = contraction(a.named, b.named, result, of_out, views, free=free)
        moved = {name: _seen(x, own) for (name, x), own in zip(aux.items(), form.aux, strict=True)}
        copied = dict(form.copied)
        for term, name, own in ((a, "a", form.a), (b, "b", form.b)):
            x = replace(term.array, strides=None, alignment=16) if name in copied else term.array
            moved[name] = _seen(x, own)
        request = request.having(moved)
        dtype = product.dtype
        alignment = out.alignment if out is not None and form.made is None else 16
        d = ArraySpec(form.d.shape, dtype, strides=form.d.strides, alignment=alignment)
        sizes = [*of_a, *of_b]
        for name, own in form.copied:
            term = a if name == "a" else b
            sizes.append((term.name, prod(own.shape) * term.array.dtype.itemsize))
        if out is not None and form.made is not None:
            sizes.append(("the result", prod(form.made) * dtype.itemsize))
        self._add(request._replace(out=d), form, (a, b, result), sizes)
        found = ArraySpec(form.back.shape, dtype, strides=form.back.strides)
        return Term(found, _named(found, result), "a product", dtype, made=True)

    def _add(
        self, request: Request, form: Contraction, of: tuple[Term, Term, tuple[Index, ...]],
        sizes: list[tuple[str, int]],
    ) -> None:  # fmt: skip
        a, b, result = of
        plan = None
        if 0 not in form.a.shape and 0 not in form.b.shape:
            plan = plan_request(request, self.target, scaled=False, keep=self.keep, tuned=True)
        text = f"{written(a.named.indices)},{written(b.named.indices)}->{written(result)}"
        step = EinsumStep(text, (a.name, b.name), tuple(sizes), form.launches, plan)
        self.steps.append(step)

    def _converted(self, x: Term, dtype: DType | None) -> tuple[Term, list[tuple[str, int]]]:
        """Return a term in the type that it is copied to, and how many bytes that takes."""
        if dtype is None:
            return x, []
        copy = ArraySpec(x.array.shape, dtype)
        size = prod(copy.shape) * dtype.itemsize
        return replace(x, array=copy, named=_named(copy, x.named.indices), dtype=dtype), [
            (x.name, size)
        ]

    def _filled(self, x: Term, other: Term) -> Term:
        if x.array is not None:
            return x
        one = ArraySpec((), other.array.dtype)
        return replace(x, array=one, named=_named(one, ()), dtype=one.dtype)
