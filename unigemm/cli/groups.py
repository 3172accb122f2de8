"""The options ``--groups`` and ``--along``: grouped products, described by their sizes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..arrays.array_spec import ArraySpec
from ..errors import UnsupportedProblem

__all__ = ["Along", "Groups", "grouped_specs"]

_ALONG = ("m", "n", "k", "rows")
Groups = Annotated[
    int | None,
    typer.Option(
        "--groups",
        min=1,
        help="Groups, each with a matrix of its own (see unigemm.grouped_matmul), of equal sizes.",
    ),
]
Along = Annotated[
    str,
    typer.Option(
        "--along",
        help="What the groups divide: m, n or k, whose size is that of all; or rows, for a stack "
        "of M x K matrices with valid rows.",
    ),
]


def grouped_specs(
    a: ArraySpec, b: ArraySpec, groups: int, along: str
) -> tuple[ArraySpec, ArraySpec, dict[str, Any], tuple[int, ...]]:
    """Return the operands of a grouped product, its ends, and its result's shape.

    Parameters
    ----------
    a, b
        The operands of the product of all.
    groups, along
        The options.

    Raises
    ------
    UnsupportedProblem
        There is nothing of that name to divide, or the operands are stacks already.
    """
    if along not in _ALONG:
        raise UnsupportedProblem(f"--along {along[:40]!r} is not known; use m, n, k or rows")
    if len(a.shape) > 2:
        raise UnsupportedProblem("--batch is not for groups; use --groups alone, or --along rows")

    def stack(x: ArraySpec) -> ArraySpec:
        return ArraySpec((groups, *x.shape), x.dtype, x.order)

    shape: tuple[int, ...] = (a.shape[0], b.shape[1])
    if along in ("k", "rows"):
        shape = (groups, *shape)
    a = stack(a) if along in ("n", "rows") else a
    b = stack(b) if along in ("m", "rows") else b
    ends = ArraySpec((groups,), "int32")
    return a, b, {"rows" if along == "rows" else "offsets": ends}, shape
