"""The part of the performance page on scales and on quantised results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["QUANTIZED", "SCALES", "quantized_parts", "scales_parts"]

Record = Mapping[str, Any]

SCALES = """## Scales

Products with a scale for each operand, for each row and column, and for blocks of 128 elements of
K, of float8 to bfloat16; and of int8 with none (to int32) and with those of rows and columns (to
bfloat16). A cell has the time in us, in brackets that time over the first cell's, and how many
times as long PyTorch took in the same run (`torch._scaled_mm`, `torch._int_mm`), which has not all
of these."""

QUANTIZED = """## Quantised results

A result of eight bits with a scale for each 128 neighbours of a row, which the kernel writes, or
for each row, which a second pass behind it makes: its time over that of a result in bfloat16. The
result is float8 (of int8 int8). Below that `unigemm.quantize` of an array to float8, by its rate of
reading and writing, beside that of a copy."""


def scales_parts(found: Mapping[str, Any], heading: str, name: str) -> list[str]:
    """Return what `bench.scales` has measured, under a heading of the card; `name` is the file."""
    parts = [heading]
    for kind, of_kind in _by(found["records"], "kind").items():
        ways = list(dict.fromkeys(x["scales"] for x in of_kind))
        lines = [_head([kind, *ways])]
        for shape, records in _by(of_kind, "shape").items():
            cells = [_size(shape), *_scaled_cells(records, ways)]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    parts.append(f"From `bench/data/{name}`, by `python -m bench.scales`.")
    return parts


def _scaled_cells(records: Sequence[Record], ways: Iterable[str]) -> list[str]:
    us = {(x["by"], x["scales"]): x["us"] for x in records}
    cells, first = [], None
    for way in ways:
        ours, theirs = us.get(("unigemm", way)), us.get(("torch", way))
        if ours is None:
            cells.append("")
            continue
        over = "" if first is None else f" ({ours / first:.2f})"
        compared = "" if theirs is None else f", PyTorch {theirs / ours:.2f}"
        cells.append(f"{ours:.1f}{over}{compared}")
        first = first or ours
    return cells


def quantized_parts(found: Mapping[str, Any], heading: str, name: str) -> list[str]:
    """Return what `bench.quantized` has measured, under a heading of the card."""
    records = found["records"]
    products = [x for x in records if "result" in x]
    arrays = [x for x in records if "source" in x]
    parts = [heading]
    results = list(dict.fromkeys(x["result"] for x in products))
    lines = [_head(["", "M x N x K", f"{results[0]}, us", *results[1:]])] if products else []
    for kind, shape, some in _rows(products, "kind"):
        us = {x["result"]: x["us"] for x in some}
        ratios = [f"{us[each] / us[results[0]]:.2f}" for each in results[1:]]
        cells = [kind, _size(shape), f"{us[results[0]]:.1f}", *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    parts += ["\n".join(lines)] if lines else []
    ways = list(dict.fromkeys(x["scales"] for x in arrays))
    lines = [_head(["`quantize`, GB/s", "M x N", *ways])] if arrays else []
    for source, shape, some in _rows(arrays, "source"):
        rates = {x["scales"]: x["gbs"] for x in some}
        cells = [source, _size(shape), *(f"{rates[way]:.0f}" for way in ways)]
        lines.append(f"| {' | '.join(cells)} |")
    parts += ["\n".join(lines)] if lines else []
    return [*parts, f"From `bench/data/{name}`, by `python -m bench.quantized`."]


def _by(records: Iterable[Record], name: str) -> dict[Any, list[Record]]:
    """Return records by a value that they have, in their order."""
    found: dict[Any, list[Record]] = {}
    for x in records:
        key = tuple(x[name]) if isinstance(x[name], list) else x[name]
        found.setdefault(key, []).append(x)
    return found


def _rows(records: Iterable[Record], name: str) -> Iterator[tuple[Any, Any, list[Record]]]:
    """Yield records by a value that they have and by shape, with both."""
    for value, some in _by(records, name).items():
        for shape, of_shape in _by(some, "shape").items():
            yield value, shape, of_shape


def _size(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _head(names: Sequence[str]) -> str:
    return f"| {' | '.join(names)} |\n{'|---' * len(names)}|"
