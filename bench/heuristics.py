"""Hold nvMatmulHeuristics' picks against ours by what was measured: ``python -m bench.heuristics``.

Of each 16-bit or TF32 problem of a sweep its first picks (of CUTLASS 3 kernels on an H200, its
performance model on) are looked up among the launches of `cute_wgmma`: the same tile, cluster and
parts of K, with whatever schedule, stages and raster are the fastest then. Ours is the one
with the least estimated time. Needs no GPU, but the package nvidia-matmul-heuristics.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.command import command
from bench.measured import DATA, Launch, by_product, launches
from bench.report import geometric_mean
from unigemm.backends.common.coefficients import kind_of
from unigemm.planning.registry import backend_named

#: Types of A, the accumulators and D, as the package writes them.
PRECISIONS = {"bfloat16": "TST", "float16": "HSH", "tf32": "SSS"}
_FEW = 8
Pick = tuple[tuple[int, int], tuple[int, int], int]  # tile M and N, cluster, parts of K


def rival(kind: str, count: int) -> Callable[[Launch], list[Pick]]:
    """Return what asks the package for its first picks of a launch's problem."""
    import nvMatmulHeuristics as package

    known = package.NvMatmulHeuristicsInterfaceEx(
        backend=package.NvMatmulHeuristicsTarget.CUTLASS3,
        flags=package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=package.NvMatmulHeuristicsNvidiaGpu.H200_SXM,
    )
    loaded = set()

    def ask(launch: Launch) -> list[Pick]:
        name = f"{launch.problem.layout.upper()}_ROW_MAJOR"
        layout = package.NvMatmulHeuristicsMatmulLayout[name]
        if layout not in loaded:
            known.loadInternalDiscoverySet(layout, precision=PRECISIONS[kind])
            loaded.add(layout)
        e = launch.extents
        problem = known.makeNvMatmulHeuristicsProblem(e.m, e.n, e.k, layout, e.batch)
        found = [each["kernel"] for each in known.get(problem, count, precision=PRECISIONS[kind])]
        return [
            ((x.cta_tile_m, x.cta_tile_n), (x.cluster_m, x.cluster_n), x.split_k) for x in found
        ]

    return ask


def picked(launch: Launch) -> Pick | None:
    """Return the pick that a launch is one of; None where it has what such picks do not know."""
    config = launch.config
    if launch.backend != "cute_wgmma" or config.swap_ab or config.cluster_k * config.slice_k > 1:
        return None
    return config.tile[:2], config.cluster, config.split_k


def time_of(pick: Pick, of_problem: Iterable[Launch]) -> float | None:
    """Return the time of a pick by the launches of its problem; None where it was not launched."""
    return min((each.us for each in of_problem if picked(each) == pick), default=None)


def ranked(of_problem: Sequence[Launch]) -> list[Launch]:
    """Return the launches of a problem, those of the least estimated time first."""
    found = []
    for name in sorted({each.backend for each in of_problem}):
        own = [each for each in of_problem if each.backend == name]
        product = own[0].problem, own[0].extents, own[0].target
        offered = backend_named(name).estimate_all(*product, [each.config for each in own])
        found += zip((x.prediction.us for x in offered), own, strict=True)
    return [each for _, each in sorted(found, key=lambda pair: (pair[0], str(pair[1].config)))]


def compared(
    of_problem: Sequence[Launch], picks: Sequence[Pick]
) -> tuple[list[float | None], list[float]]:
    """Return what their picks, and our first ones, take over the fastest launch; None: unknown."""
    best = min(each.us for each in of_problem)
    theirs = [time_of(pick, of_problem) for pick in picks]
    return (
        [None if us is None else us / best for us in theirs],
        [each.us / best for each in ranked(of_problem)[: len(picks)]],
    )


def main() -> None:
    """Print the table of some files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "files", type=Path, nargs="*", default=[DATA / "h200.jsonl.xz"], help="of sweeps"
    )
    args = parser.parse_args()
    print(
        "| dtype | problems, its first launched | its first % | worst % | ours there % | worst % "
        "| best of its 8 % | of our 8 % |\n|---|---|---|---|---|---|---|---|"
    )
    measured = launches(args.files or None)
    for kind in PRECISIONS:
        problems = by_product(each for each in measured if kind_of(each.problem) == kind)
        if problems:
            ask = rival(kind, _FEW)
            rows = [compared(each, ask(each[0])) for each in problems]
            print(_line(kind, rows))


def _line(kind: str, rows: Sequence[tuple[list[float | None], list[float]]]) -> str:
    first = [(theirs[0], ours[0]) for theirs, ours in rows if theirs and theirs[0] is not None]
    some = [(min(filter(None, theirs)), min(ours)) for theirs, ours in rows if any(theirs)]

    def percent(factors: Iterable[Any]) -> str:
        found = list(factors)
        return f"{100 * (geometric_mean(found) - 1):.1f}" if found else "-"

    def worst(factors: Iterable[Any]) -> str:
        return f"{100 * (max(factors, default=1.0) - 1):.1f}"

    theirs, ours = [each[0] for each in first], [each[1] for each in first]
    return (
        f"| {kind} | {len(rows)}, {len(first)} | {percent(theirs)} | {worst(theirs)} "
        f"| {percent(ours)} | {worst(ours)} | {percent(each[0] for each in some)} "
        f"| {percent(each[1] for each in some)} |"
    )


if __name__ == "__main__":
    command(main)
