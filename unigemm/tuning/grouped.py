"""Grouped products that are measured, with a caller's offsets, and checked group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import api
from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import library_of
from ..errors import ShapeMismatch, UnsupportedProblem
from ..grouped import grouped_matmul
from ..planning.plan import Plan
from ..problem.dtypes import DType, accumulator, numpy_dtype, unit_roundoff
from ..problem.grouped import Form
from ..runtime.grouped import checking, form_asked
from ..runtime.request import Request
from .measure import Device, error_factor, rotation
from .operands import Arrays, Operands, _empty, _random, _spec, another_class

if TYPE_CHECKING:
    import numpy as np

__all__ = ["grouped_operands"]

_MOST_GROUPS = 16  # that are checked, the largest first
_MOST_ROWS = 64  # of the rest
_Part = tuple[int, Any, Any, Any]  # K of a group, and its places in A, B and D


@dataclass(frozen=True)
class GroupedArrays(Arrays):
    """The arrays of one grouped product.

    Attributes
    ----------
    ends
        By name: offsets, or rows.
    """

    ends: Any = None

    def call(self, plan: Plan) -> Callable[[], object]:
        """Return a function that multiplies them by a plan."""
        problem = plan.problem
        assert problem.groups is not None
        options: dict[str, Any] = {
            "precision": problem.precision,
            "deterministic": problem.deterministic,
            "rest": problem.groups.rest,
        }
        offsets = None
        if problem.groups.stacked:
            options["rows"] = self.ends
        else:
            offsets = self.ends
        return lambda: grouped_matmul(self.a, self.b, offsets, self.out, plan=plan, **options)


def grouped_operands(first: Plan, request: Request, device: Device) -> Operands:
    """Return arrays for a grouped product, with the caller's ends or ones of equal groups.

    Raises
    ------
    UnsupportedProblem
        It has an epilogue or scales, or arrays that are not compact; or its ends are none.
    """
    if request.arguments() or request.scales():
        raise UnsupportedProblem(
            "grouped products are measured without epilogues and scales; tune the product alone"
        )
    described = {name: _spec(getattr(request, name), name) for name in ("a", "b")}
    form = form_asked(request, _described)
    assert form is not None
    assert form.groups is not None
    name = "rows" if form.groups.stacked else "offsets"
    x, y = described["a"], described["b"]
    z = ArraySpec(form.shape, first.problem.d.dtype)
    if request.out is not None:
        z = _spec(request.out, "out")
    ends_of: dict[str, Any] = {name: ArraySpec((form.count,), form.groups.dtype)}
    again = api.plan(
        x, y, z, target=first.target, precision=first.problem.precision,
        deterministic=first.problem.deterministic, rest=request.rest, keep=0, tuned=False,
        backend=first.backend, **ends_of,
    )  # fmt: skip
    if again.problem != first.problem:
        raise another_class(first.problem)
    ends = _ends(getattr(request, name), form, name)
    on_device = device.integers(ends)
    size = first.extents.bytes_moved(first.problem)

    def made() -> GroupedArrays:
        a, b = _random(device, x), _random(device, y)
        return GroupedArrays(a, b, _empty(device, z), ends=on_device)

    sets = [made() for _ in range(rotation(size, device.l2_bytes))]
    check = _Check(device, form, x.dtype, z.dtype, first.problem.precision, ends)
    return Operands(sets, lambda: replace(sets[0], out=_empty(device, z)), check)


def _described(x: Any, name: str) -> Any:
    return x if isinstance(x, ArraySpec) else library_of(x, name).operand(x, name)


def _ends(given: Any, form: Form, name: str) -> np.ndarray:
    """Return ends as a NumPy array: the caller's, or those of equal groups for a description."""
    import numpy as np

    groups = form.groups
    assert groups is not None
    kind = numpy_dtype(groups.dtype)
    if isinstance(given, ArraySpec):
        if groups.stacked:
            return np.full(form.count, form.divided, kind)
        return (np.arange(1, form.count + 1) * form.divided // form.count).astype(kind)
    for ask in ("cpu", "get"):  # PyTorch's and CuPy's way to the host
        if hasattr(given, ask):
            given = getattr(given, ask)()
            break
    found = np.ascontiguousarray(given).astype(kind)
    if found.shape != (form.count,):
        raise ShapeMismatch(f"{name} have shape {found.shape}; pass ({form.count},)")
    if form.count:
        checking(form, name)(found.ctypes.data)
    return found


@dataclass(frozen=True)
class _Check:
    """Says how far a grouped product is from right, by its largest groups and the rest."""

    device: Device
    form: Form
    a: DType
    d: DType
    precision: Any
    ends: np.ndarray

    def __call__(self, x: Arrays) -> float:
        """Return the largest error relative to its bound; infinity for what is to be zero."""
        exact = self.d is accumulator(self.a)
        rounding = 0.0 if exact else 1.01 * unit_roundoff(self.d)
        worst = 0.0
        for k, at_a, at_b, at_d in self._parts(int(x.a.shape[-1])):
            if k == 0:
                worst = max(worst, self._zeros(x.out[at_d]))
                continue
            factor = error_factor(k, self.a, self.precision)
            a, b, d = x.a[at_a], x.b[at_b], x.out[at_d]
            worst = max(worst, self.device.worst_ratio(a, b, d, factor, rounding))
        for place in self._rest():
            worst = max(worst, self._zeros(x.out[place]))
        return worst

    def _zeros(self, x: Any) -> float:
        rows = list(range(min(_MOST_ROWS, x.shape[-2])))
        return float("inf") if self.device.values(x, rows).any() else 0.0

    def _parts(self, k: int) -> Iterator[_Part]:
        everything = slice(None)
        ends = self.ends.tolist()
        along = self.form.along
        starts = [0, *ends[:-1]] if along else [0] * len(ends)
        order = sorted(range(len(ends)), key=lambda g: starts[g] - ends[g])[:_MOST_GROUPS]
        if along == "k" and ends:
            order.append(min(range(len(ends)), key=lambda g: ends[g] - starts[g]))
        for g in order:
            own = slice(starts[g], ends[g])
            if along == "k":
                yield ends[g] - starts[g], (everything, own), own, g
            elif ends[g] > starts[g]:
                yield {
                    "m": (k, own, g, own),
                    "n": (k, g, (everything, own), (everything, own)),
                    "": (k, (g, own), g, (g, own)),
                }[along]

    def _rest(self) -> Iterator[Any]:
        groups = self.form.groups
        assert groups is not None
        if groups.rest != "zeros" or self.form.along == "k" or not len(self.ends):
            return
        end = int(self.ends[-1])
        if groups.stacked:
            least = int(self.ends.argmin())
            if self.ends[least] < self.form.divided:
                yield least, slice(int(self.ends[least]), None)
        elif end < self.form.divided:
            yield slice(end, None) if self.form.along == "m" else (slice(None), slice(end, None))
