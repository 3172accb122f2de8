"""Summaries: geometric mean, worst case and share at or above 1.0, per suite, dtype and layout.

``python -m bench.report records.json [more.json]`` prints Markdown; ``--json`` prints JSON. Takes
what bench.run wrote, or pytest-benchmark's ``--benchmark-json``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.command import command


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers.

    Raises
    ------
    ValueError
        There are none.
    """
    if not values:
        raise ValueError("the geometric mean of no values")
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def load(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    data = json.loads(path.read_text())
    if isinstance(data, dict):  # pytest-benchmark
        # Each implementation of a problem brings the record of all.
        found = [entry["extra_info"]["record"] for entry in data["benchmarks"]]
        return [each for i, each in enumerate(found) if each not in found[:i]]
    return data


def summarise(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each suite, dtype, backend and layout, and one for all layouts together."""
    groups: dict[tuple[str, str, str, str], list[tuple[float, str]]] = defaultdict(list)
    failed: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for record in records:
        for backend, entry in record["backends"].items():
            for layout in (record["layout"], "all"):
                key = (record["suite"], record["dtype"], backend, layout)
                if "ratio" in entry:
                    groups[key].append((entry["ratio"], record["problem"]))
                else:
                    failed[key] += 1
                    groups[key] += []
    rows = []
    for key, found in groups.items():
        ratios = [ratio for ratio, _ in found]
        row: dict[str, Any] = dict(zip(("suite", "dtype", "backend", "layout"), key, strict=True))
        row |= {"problems": len(found), "failed": failed[key]}
        if found:
            row["mean"] = geometric_mean(ratios)
            row["worst"], row["worst_problem"] = min(found)
            row["share"] = sum(ratio >= 1 for ratio in ratios) / len(ratios)
        rows.append(row)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the summary as a Markdown table."""
    lines = [
        "| suite | dtype | backend | layout | problems | mean | worst | at | >= 1.0 | failed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = (
            f"{row['mean']:.3f} | {row['worst']:.3f} | {row['worst_problem']} | {row['share']:.0%}"
            if row["problems"]
            else "- | - | - | -"
        )
        lines.append(
            f"| {row['suite']} | {row['dtype']} | {row['backend']} | {row['layout']} | "
            f"{row['problems']} | {numbers} | {row['failed']} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the summary of some files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = summarise([record for path in args.files for record in load(path)])
    print(json.dumps(rows) if args.json else markdown(rows))


if __name__ == "__main__":
    command(main)
