"""The forms of grouped products that calls request, and ends of groups in host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arrays.array_spec import ArraySpec
from ..arrays.libraries import library_of
from ..arrays.numpy_arrays import viewer
from ..arrays.operands import Operand
from ..errors import UnsupportedProblem
from ..problem.canonical import Layout
from ..problem.grouped import Form, form_of
from ..support.arguments import is_one_of, shown
from .request import Request

__all__ = ["ENDS", "checking", "requested_form"]

#: What says where groups end, or how many rows of each are valid.
ENDS = ("offsets", "rows")


def requested_form(
    request: Request, see: Callable[[Any, str], Operand | Layout | ArraySpec]
) -> Form | None:
    """Return the form of the grouped product that a call requests; None for another operation.

    Parameters
    ----------
    request
        The call.
    see
        Views an array; its second argument is the name.

    Raises
    ------
    UnigemmError
        There is no such product.
    """
    if request.operation == "matmul":
        if request.rest != "zeros":
            raise UnsupportedProblem("rest= is of grouped products; pass offsets or rows, too")
        return None
    if not is_one_of(request.rest, ("zeros", "untouched")):
        raise UnsupportedProblem(
            f"rest is {shown(request.rest)}; pass 'zeros', or 'untouched' for memory as it was"
        )
    found: dict[str, Layout | None] = {}
    for name in ENDS:
        x = getattr(request, name)
        if x is not None and not isinstance(x, ArraySpec):
            library_of(x, name)  # says what is no array
        seen = None if x is None else see(x, name)
        found[name] = None if seen is None else seen.layout
    a, b = (see(x, name).shape for x, name in ((request.a, "a"), (request.b, "b")))
    return form_of(a, b, found["offsets"], found["rows"], request.rest)


def checking(form: Form, name: str, unit: int = 1) -> Callable[[int], None]:
    """Return what refuses ends in host memory, at an address, that are none.

    Parameters
    ----------
    form
        The form, which has groups.
    name
        Of the array: "offsets" or "rows".
    unit
        Groups begin at multiples of it: elements of K that share a scale.
    """
    groups, most = form.groups, form.divided
    assert groups is not None
    view = viewer((form.count,), (1,), groups.dtype)
    what = {"m": "rows", "n": "columns", "k": "elements of K"}[groups.along]

    def check(address: int) -> None:
        ends = view(address)
        low, high = int(ends.min()), int(ends.max())
        if low < 0 or high > most:
            wrong = low if low < 0 else high
            raise UnsupportedProblem(
                f"{name} have {wrong}, and there are {most} {what}; pass numbers from 0 to {most}"
            )
        if not groups.stacked and (ends[1:] < ends[:-1]).any():
            at = int((ends[1:] < ends[:-1]).argmax())
            raise UnsupportedProblem(
                f"offsets fall from {ends[at]} to {ends[at + 1]}; pass where each group ends, as "
                "numpy.cumsum of the sizes gives it"
            )
        if unit > 1:
            _refuse_begins(ends, unit)

    return check


def _refuse_begins(ends: Any, unit: int) -> None:
    """Refuse groups that begin within a block of K."""
    begin = 0
    for end in ends.tolist():
        if end > begin and begin % unit:
            raise UnsupportedProblem(
                f"a group of K begins at {begin}, and blocks of {unit} that share a scale could be "
                "counted from the first of all or from the first of each group; let groups begin "
                f"at multiples of {unit}, behind zeros if need be"
            )
        begin = end
