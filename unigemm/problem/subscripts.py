"""Subscripts of `einsum`: which index each dimension of an operand has, and those of the result."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import Any

from ..errors import ShapeMismatch, UnsupportedProblem
from ..support.arguments import shown

__all__ = ["Index", "Subscripts", "parsed", "taken_apart", "written"]

#: A letter; or of a dimension that the ellipsis stands for, its index counted from the last (-1).
Index = str | int

_LETTERS = ascii_uppercase + ascii_lowercase  # of the numbers 0 to 51
_FORM = 'pass "ij,jk->ik" and an array for each operand, or each array and its list of integers'


@dataclass(frozen=True)
class Subscripts:
    """The indices of each operand's dimensions, and those of the result."""

    operands: tuple[tuple[Index, ...], ...]
    result: tuple[Index, ...]

    def __str__(self) -> str:
        return f"{','.join(map(written, self.operands))}->{written(self.result)}"


def written(indices: Sequence[Index]) -> str:
    """Return indices as `einsum` takes them; dimensions of an ellipsis have no letters there."""
    dots = [i for i, index in enumerate(indices) if isinstance(index, int)]
    if not dots:
        return "".join(map(str, indices))
    first, last = dots[0], dots[-1]
    return "".join((*map(str, indices[:first]), "...", *map(str, indices[last + 1 :])))


def taken_apart(given: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the subscripts, as a string, and the operands, from the arguments of `einsum`.

    Raises
    ------
    UnsupportedProblem
        They are neither a string and operands, nor operands with a list of integers each.
    """
    if not given:
        raise UnsupportedProblem(f"einsum got no subscripts and no operands; {_FORM}")
    if isinstance(given[0], str):
        if len(given) == 1:
            raise UnsupportedProblem(f"einsum got subscripts and no operands; {_FORM}")
        return given[0], tuple(given[1:])
    pairs, rest = divmod(len(given), 2)
    if not pairs:
        raise UnsupportedProblem(f"einsum got an operand and no subscripts; {_FORM}")
    said = ",".join(_of_list(each) for each in given[1 : 2 * pairs : 2])
    if rest:
        said += f"->{_of_list(given[-1])}"
    return said, tuple(given[: 2 * pairs : 2])


def _of_list(numbers: Any) -> str:
    """Return subscripts of integers and Ellipsis as a string."""
    if isinstance(numbers, str | bytes) or not hasattr(numbers, "__iter__"):
        raise UnsupportedProblem(f"{shown(numbers)} is no list of subscripts; {_FORM}")
    text = ""
    for number in numbers:
        if number is Ellipsis:
            text += "..."
            continue
        try:
            index = operator.index(number)
        except TypeError:
            index = -1
        if not 0 <= index < len(_LETTERS):
            raise UnsupportedProblem(
                f"subscript {shown(number)} of a list is not known; use integers from 0 to "
                f"{len(_LETTERS) - 1}, or Ellipsis"
            )
        text += _LETTERS[index]
    return text


def parsed(text: str, ndims: Sequence[int]) -> Subscripts:
    """Read subscripts for operands of `ndims` dimensions, by the rules of `numpy.einsum`.

    Raises
    ------
    UnsupportedProblem
        They are no subscripts, or the result has an index twice, or one that no operand has.
    ShapeMismatch
        There are other operands, or other dimensions, than the subscripts are for.
    """
    operands, arrow, result = text.replace(" ", "").partition("->")
    parts = operands.split(",")
    if len(parts) != len(ndims):
        raise ShapeMismatch(
            f"subscripts {shown(text)} are for {len(parts)} operands and there are {len(ndims)}; "
            "separate those of each operand by a comma"
        )
    indices = tuple(_indices(part, ndim, text) for part, ndim in zip(parts, ndims, strict=True))
    most = max((-each for part in indices for each in part if isinstance(each, int)), default=0)
    if not arrow:
        count = Counter("".join(x for part in indices for x in part if isinstance(x, str)))
        once = sorted(x for x, times in count.items() if times == 1)
        return Subscripts(indices, (*range(-most, 0), *once))
    return Subscripts(indices, _of_result(result, most, indices, text))


def _indices(part: str, ndim: int, text: str) -> tuple[Index, ...]:
    """Return the indices of one operand's dimensions."""
    head, dots, tail = part.partition("...")
    _refuse_signs(head + tail, text)
    more = ndim - len(head) - len(tail)
    if more < 0 or (more and not dots):
        raise ShapeMismatch(
            f"subscripts {shown(part)} of {shown(text)} name {len(head) + len(tail)} dimensions "
            f"and the operand has {ndim}; name each, or write ... for the others"
        )
    return (*head, *range(-more, 0), *tail)


def _of_result(
    part: str, most: int, operands: tuple[tuple[Index, ...], ...], text: str
) -> tuple[Index, ...]:
    """Return the indices of the result's dimensions; the ellipsis has `most` of them."""
    head, dots, tail = part.partition("...")
    _refuse_signs(head + tail, text)
    if most and not dots:
        raise ShapeMismatch(
            f"subscripts {shown(text)} have no ... in the result, for {most} dimensions that ... "
            "of the operands stands for; write it there, too"
        )
    seen: set[Index] = {index for each in operands for index in each}
    for letter, times in Counter(head + tail).items():
        if times > 1:
            raise UnsupportedProblem(
                f"subscripts {shown(text)} have {letter!r} {times} times in the result; write each "
                "index once there"
            )
        if letter not in seen:
            raise UnsupportedProblem(
                f"subscripts {shown(text)} have {letter!r} in the result, and no operand has it; "
                "leave it out"
            )
    return (*head, *range(-most, 0), *tail)


def _refuse_signs(letters: str, text: str) -> None:
    for sign in letters:
        if sign not in ascii_letters:
            raise UnsupportedProblem(
                f"subscripts {shown(text)} hold {sign!r} where an index is to be; write letters, "
                "one ... for each operand, commas, and one ->"
            )
