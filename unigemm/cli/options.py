"""Arguments and options that several commands have, each with its help and its completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from ..planning.registry import backend_names
from ..planning.target import ARCHITECTURES, SHORT_NAMES
from ..problem.block_scales import FORMATS
from ..problem.dtypes import INPUTS, DType
from ..problem.problem import PRECISIONS
from ..runtime.words import LAYOUTS, QUANTIZED, SCALES

__all__ = [
    "Backend",
    "Batch",
    "BatchInvariant",
    "Columns",
    "Depth",
    "DtypeName",
    "Json",
    "Layout",
    "OutDtype",
    "Precision",
    "QuantizeOut",
    "Rows",
    "ScaleA",
    "ScaleB",
    "Targets",
    "among",
    "named_backends",
    "named_targets",
]


def among(*names: str) -> Callable[[str], Iterable[str]]:
    """Return what completes a value in a shell, with names that are known."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


#: Names of targets, and of backends, those of other packages too.
named_targets = among("cpu", *ARCHITECTURES, *SHORT_NAMES)


def named_backends(incomplete: str) -> Iterable[str]:
    """Complete the name of a backend, or "auto"."""
    return among("auto", *backend_names())(incomplete)


Rows = Annotated[int, typer.Argument(min=1, metavar="M", help="Rows of A and of the result A @ B.")]
Columns = Annotated[int, typer.Argument(min=1, metavar="N", help="Columns of B and of the result.")]
Depth = Annotated[
    int, typer.Argument(min=1, metavar="K", help="Columns of A and rows of B: what is summed over.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DtypeName = Annotated[
    str,
    typer.Option(
        "--dtype",
        help=f"Type of the inputs: {', '.join(map(str, INPUTS))}; for plan and compile also "
        f"{' and '.join(FORMATS)}, with block scales in tiles.",
        autocompletion=among(*map(str, INPUTS), *FORMATS),
    ),
]
OutDtype = Annotated[
    str | None,
    typer.Option(
        "--out-dtype",
        help="Type of the result. Default: that of the inputs; float32 for float8, int32 for int8.",
        autocompletion=among(*map(str, DType)),
    ),
]
Layout = Annotated[
    str,
    typer.Option(
        "--layout",
        help="nn, nt, tn or tt, for A and B: t is stored transposed.",
        autocompletion=among(*LAYOUTS),
    ),
]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Products in a stack.")]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="sm_90a, h100, 'RTX 4090', cpu, ... (unigemm targets lists all); may be repeated. "
        "Default: this machine.",
        autocompletion=named_targets,
    ),
]
Backend = Annotated[
    str,
    typer.Option("--backend", help="A backend's name, or auto.", autocompletion=named_backends),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        help=f"Coarsest arithmetic for float32: {', '.join(PRECISIONS)}.",
        autocompletion=among(*PRECISIONS),
    ),
]
ScaleA = Annotated[
    str | None,
    typer.Option(
        "--scale-a",
        help=f"What shares a scale of A, of float8 or int8: {', '.join(SCALES['scale_a'])}; blocks "
        "are of float8, and 1x128:float8_e8m0fnu is a power of two for each.",
        autocompletion=among(*SCALES["scale_a"]),
    ),
]
ScaleB = Annotated[
    str | None,
    typer.Option(
        "--scale-b",
        help=f"The same of B: {', '.join(SCALES['scale_b'])}.",
        autocompletion=among(*SCALES["scale_b"]),
    ),
]
QuantizeOut = Annotated[
    str | None,
    typer.Option(
        "--quantize-out",
        help="Give a result of eight bits and its scales: 1x128 for each 128 neighbours of a row, "
        "which the kernel writes, or row, which a second pass does. --out-dtype is float8_e4m3fn "
        "by default (int8 for int8).",
        autocompletion=among(*QUANTIZED),
    ),
]
BatchInvariant = Annotated[
    bool, typer.Option("--batch-invariant", help="Rows bitwise the same for every M.")
]
