"""The options ``--groups`` and ``--along``: grouped products, described by their sizes."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Along", "Groups"]

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
