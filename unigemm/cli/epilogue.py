"""The option ``--epilogue``: words for what `unigemm.matmul` takes by name, scales included."""

from __future__ import annotations

from typing import Annotated

import typer

from ..runtime.words import WORDS

__all__ = ["EpilogueWords"]

EpilogueWords = Annotated[
    str | None,
    typer.Option(
        "--epilogue",
        help="What is done to the accumulator, such as bias,gelu_tanh: words for what matmul takes "
        f"by name ({', '.join(WORDS)} of a gate, and activations).",
    ),
]
