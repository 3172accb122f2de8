"""Grouped products that are measured, with a caller's offsets, and checked group by group."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..arrays.array_spec import ArraySpec
from ..errors import ShapeMismatch
from ..problem.dtypes import numpy_dtype
from ..problem.grouped import Form, Rest
from ..problem.quantization import BLOCK
from ..runtime.grouped import ENDS, checking
from ..runtime.quantized_results import SCALES
from ..runtime.request import Request
from ..support.arguments import number
from ..support.forks import cached_property
from .call_arrays import Arrays
from .expected import Bounds, Requested, bounds_of
from .measure import Device

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Ends", "GroupedCheck", "ends_of", "given_ends"]

_MOST_GROUPS = 16  # that are checked, the largest first
_MOST_ROWS = 64  # of the rest
_EVERYTHING = slice(None)


@dataclass(frozen=True)
class Ends:
    """Where the groups of a measured call end.

    Attributes
    ----------
    form
        The form of the product, which has groups.
    values
        The offsets, or the numbers of valid rows, in host memory.
    rest
        As in `unigemm.grouped_matmul`.
    """

    form: Form
    values: np.ndarray
    rest: Rest = "zeros"

    @property
    def name(self) -> str:
        """The argument that they are: "offsets" or "rows"."""
        assert self.form.groups is not None
        return "rows" if self.form.groups.stacked else "offsets"

    def options(self, x: Any) -> dict[str, Any]:
        """Return what `unigemm.grouped_matmul` takes; `x` are the ends on the device."""
        return {self.name: x, "rest": self.rest}


def ends_of(request: Request, form: Form, given: Any) -> Ends:
    """Return where the groups of a call end: the caller's ends, or those of equal groups.

    Parameters
    ----------
    request
        The call.
    form
        Its form, which has groups.
    given
        The ends as numbers in host memory, or a description.

    Raises
    ------
    UnigemmError
        The numbers are no ends.
    """
    import numpy as np

    groups = form.groups
    assert groups is not None
    kind = numpy_dtype(groups.dtype)
    if isinstance(given, ArraySpec):
        equal = np.arange(1, form.count + 1) * form.divided // form.count
        if form.along == "k" and form.divided >= BLOCK * form.count:  # with whole blocks
            equal[:-1] -= equal[:-1] % BLOCK
        values = np.full(form.count, form.divided) if groups.stacked else equal
        return Ends(form, values.astype(kind), request.rest)
    found = Ends(form, np.ascontiguousarray(given).astype(kind), request.rest)
    if found.values.shape != (form.count,):
        raise ShapeMismatch(f"{found.name} have shape {found.values.shape}; pass ({form.count},)")
    if form.count:
        checking(form, found.name)(found.values.ctypes.data)
    return found


def given_ends(request: Request) -> Any:
    """Return the ends of a call as it has them, in host memory if they are an array."""
    (given,) = (x for name in ENDS if (x := getattr(request, name)) is not None)
    if isinstance(given, ArraySpec):
        return given
    for ask in ("cpu", "get"):  # PyTorch's and CuPy's way to the host
        if hasattr(given, ask):
            return getattr(given, ask)()
    return given


@dataclass(frozen=True)
class _Part:
    """A group, and its slices of A, B and D; `lines` are its own rows or columns, or all."""

    group: int
    a: Any
    b: Any
    d: Any
    lines: slice


@dataclass(frozen=True)
class GroupedCheck:
    """Says how far results are from right, by the largest groups and what belongs to none.

    Attributes
    ----------
    requested
        What is computed of each group.
    device
        Where the arrays are.
    inputs
        The arrays that are multiplied and read; no call writes to them.
    ends
        Where the groups end.
    """

    requested: Requested
    device: Device
    inputs: Arrays
    ends: Ends

    @cached_property
    def bounds(self) -> tuple[list[tuple[_Part, Bounds]], Bounds]:
        """Return the bounds of each group's results, and of those of all groups together."""
        parts = self._parts()
        x, shapes = self.inputs, _Shapes(self.ends.form)
        found = []
        for part in parts[:_MOST_GROUPS]:
            arrays = {name: shapes.part(y, name, part) for name, y in x.arguments.items()}
            scales = [
                number(s, name) if isinstance(s, numbers.Number) else shapes.scale(s, name, part)
                for name, s in x.scaling.items()
            ]
            bounds = bounds_of(
                self.requested, self.device, x.a[part.a], x.b[part.b], arrays, scales,
                share=min(len(parts), _MOST_GROUPS),
            )  # fmt: skip
            found.append((part, bounds))
        shared = [name for name, y in x.arguments.items() if shapes.is_of_all(y, name)]
        own = [(p, _without(b, shared)) for p, b in found]
        return own, _together([b for _, b in found], shared, every=len(found) == len(parts))

    def __call__(self, x: Arrays) -> float:
        """Return the largest error of results relative to its bound; infinity for no zeros."""
        shapes = _Shapes(self.ends.form)
        own, of_all = self.bounds
        worst = of_all.ratio(self.device, x.results)
        for part, bounds in own:
            results = {name: shapes.part(y, name, part) for name, y in x.results.items()}
            worst = max(worst, bounds.ratio(self.device, results))
        no_zeros = ("amax_out", "bias_grad_out", *((SCALES,) if self.requested.sharing else ()))
        for part in self._rest():
            for name, y in x.results.items():
                if name not in no_zeros:
                    worst = max(worst, self._zeros(y[part]))
        return worst

    def _zeros(self, x: Any) -> float:
        rows = list(range(min(_MOST_ROWS, x.shape[-2])))
        return float("inf") if self.device.values(x, rows).any() else 0.0

    def _parts(self) -> list[_Part]:
        """Return the groups that have anything to be checked, the largest first."""
        form, ends = self.ends.form, self.ends.values.tolist()
        starts = [0, *ends[:-1]] if form.along else [0] * len(ends)
        order = sorted(range(len(ends)), key=lambda g: starts[g] - ends[g])
        if form.along == "k" and len(order) > _MOST_GROUPS:  # an empty one has to be zeros, too
            order.insert(_MOST_GROUPS - 1, order.pop())
        found = []
        for g in order:
            own = slice(starts[g], ends[g])
            if form.along == "k":
                found.append(_Part(g, (_EVERYTHING, own), own, g, _EVERYTHING))
            elif ends[g] > starts[g]:
                found.append(
                    {
                        "m": _Part(g, own, g, own, own),
                        "n": _Part(g, g, (_EVERYTHING, own), (_EVERYTHING, own), own),
                        "": _Part(g, (g, own), g, (g, own), own),
                    }[form.along]
                )
        return found

    def _rest(self) -> Iterator[Any]:
        """Yield slices of D that belong to no group, and are to be zeros."""
        form, ends = self.ends.form, self.ends.values
        if self.ends.rest != "zeros" or form.along == "k" or not len(ends):
            return
        end = int(ends[-1])
        if not form.along:
            least = int(ends.argmin())
            if ends[least] < form.divided:
                yield least, slice(int(ends[least]), None)
        elif end < form.divided:
            yield slice(end, None) if form.along == "m" else (_EVERYTHING, slice(end, None))


@dataclass(frozen=True)
class _Shapes:
    """What groups have of the auxiliary arrays, which are as `Form.lifted` sees them."""

    form: Form

    def part(self, x: Any, name: str, part: _Part) -> Any:
        """Return what a group has of an array, as of a product of two dimensions; words as is."""
        if not hasattr(x, "shape") or self.is_of_all(x, name):
            return x
        shape = tuple(x.shape)
        if name in ("bias", "bias_grad_out") and len(shape) == 2:
            return x[part.group if shape[0] > 1 else 0]
        if len(shape) == 3:
            x = x[part.group if shape[0] > 1 else 0]
        axis = {"k": None, "n": -1}.get(self.form.along, -2)
        if axis is None or len(x.shape) < -axis or x.shape[axis] == 1:
            return x
        return _cut(x, axis, part.lines)

    def scale(self, x: Any, name: str, part: _Part) -> Any:
        """Return a group's scale, or those of its blocks of K."""
        if len(x.shape) < 2:
            each = tuple(x.shape) == (self.form.count,)
            return x[part.group : part.group + 1] if each else x
        if len(x.shape) == 3:
            x = x[part.group if x.shape[0] > 1 else 0]
        lines, along_k, of_a = -2, -1, name == "scale_a"
        if not of_a:
            lines, along_k = -1, -2
        if self.form.along == "k":
            k = part.b
            blocks: Any = slice(k.start // BLOCK, -(-k.stop // BLOCK))
            if k.start % BLOCK:  # within one: a scale for each element
                blocks = [i // BLOCK for i in range(k.start, k.stop)]
            return _cut(x, along_k, blocks)
        divides = of_a == (self.form.along != "n")
        each = x.shape[lines] == self.form.seen[1 if of_a else 2]
        return _cut(x, lines, part.lines) if divides and each else x

    def is_of_all(self, x: Any, name: str) -> bool:
        """Whether an array is a result of all groups together."""
        if name != "bias_grad_out" or self.form.count == 1:
            return name == "amax_out"
        shape = tuple(x.shape)
        if self.form.along == "n" and len(shape) == 1:  # one for each column of all groups
            return shape[0] == 1
        return len(shape) < 2 or shape[0] == 1


def _cut(x: Any, axis: int, part: Any) -> Any:
    return x[..., part] if axis == -1 else x[..., part, :]


def _without(bounds: Bounds, names: Sequence[str]) -> Bounds:
    results = {name: both for name, both in bounds.results.items() if name not in names}
    return replace(bounds, results=results, largest=None)


def _together(each: Sequence[Bounds], names: Sequence[str], *, every: bool) -> Bounds:
    """Return the bounds of results of all groups, from those of each.

    Where not every group is among these, others may have the largest magnitude, and bias gradients
    have no bounds.
    """
    import numpy as np

    largest = None
    pairs = [x.largest for x in each if x.largest is not None]
    if pairs:
        lows, highs = zip(*pairs, strict=True)
        largest = max(lows), float(np.max(highs)) if every else float("inf")
    results = {}
    for name in names if every else ():
        if all(name in x.results for x in each):
            low, high = (np.sum([x.results[name][i] for x in each], axis=0) for i in (0, 1))
            # Groups are added up in any order, in float32.
            sizes = [np.maximum(*map(abs, x.results[name])) for x in each]
            slack = np.sum(sizes, axis=0) * len(each) * np.finfo(np.float32).eps
            results[name] = low - slack, high + slack
    return Bounds((), results, largest)
