"""`unigemm sweep`: configurations of one problem, measured side by side."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnsupportedProblem
from ..problem.dtypes import dtype_named
from ..problem.problem import PRECISIONS
from ..tuning.measure import Workload, best_device
from ..tuning.plot import check_picture, write_plot
from ..tuning.sweep import (
    COLUMNS,
    Lists,
    compile_all,
    contenders,
    row,
    starts,
    sweep_into,
)
from . import render as show
from .options import Json, named_backends
from .product import Product, operands_of, takes_product

__all__ = ["lists_of", "sweep_command", "write_csv"]

Values = Annotated[str, typer.Option(help="Values to try, with commas between. Default: all.")]


@takes_product("target", "backend", "batch_invariant")
def sweep_command(
    product: Product,
    backend: Annotated[
        str,
        typer.Option(help="Names with commas between, or auto.", autocompletion=named_backends),
    ] = "auto",
    tile: Annotated[str, typer.Option(help="128x256x64,128x128,...: M, N and perhaps K.")] = "",
    stages: Values = "",
    cluster: Annotated[str, typer.Option(help="2x1,1x1,...: CTAs along M and N.")] = "",
    schedule: Values = "",
    raster: Annotated[str, typer.Option(help="m, n: order of the tiles.")] = "",
    group: Annotated[str, typer.Option(help="Width of the raster's bands: 1,8,...")] = "",
    split_k: Values = "",
    cluster_k: Values = "",
    occupancy: Annotated[str, typer.Option(help="CTAs on an SM at once: 0,1,... (0: any).")] = "",
    top: Annotated[
        int, typer.Option(min=1, help="Measure this many, best estimated times first.")
    ] = 24,
    others: Annotated[int, typer.Option(min=0, help="And this many of the others, at random.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the random choice.")] = 0,
    verify: Annotated[bool, typer.Option(help="Check each result against float64.")] = True,
    budget: Annotated[float, typer.Option(help="Milliseconds on the device for each.")] = 8.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compile in this many processes.")] = None,
    out: Annotated[
        Path,
        typer.Option(help="JSON lines are added to this file; a table goes beside it in .csv."),
    ] = Path("sweep.jsonl"),
    plot: Annotated[
        Path | None, typer.Option(help="Draw times and rates into this file: .svg, .png or .pdf.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure configurations of an M x N x K product against each other and cuBLAS.

    Parameters that are not named keep the values that the backends offer. What the file holds
    already is not measured again.
    """
    if out.suffix == ".csv":
        raise UnsupportedProblem(f"--out {out} is where the table goes; name it {out.stem}.jsonl")
    if plot is not None:
        check_picture(plot)
    lists = lists_of(tile, stages, cluster, schedule, raster, group, split_k, cluster_k, occupancy)
    work = workload(product)
    device = best_device()
    plans, reasons = starts(work, _parts(backend))
    if not plans:
        raise UnsupportedProblem(f"no backend takes {work}: {'; '.join(reasons)}")
    plans = contenders(plans, top, others, seed, lists)
    with show.progress(as_json) as bar:
        task = bar.add_task("compiling")

        def done(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)

        compile_all(plans, jobs, done, strict=False)
        bar.update(task, description="measuring")
        records = sweep_into(out, work, plans, device, verify=verify, budget_ms=budget, report=done)
    rows = sorted(map(row, records), key=lambda each: each["us"] or float("inf"))
    write_csv(out.with_suffix(".csv"), rows)
    if plot is not None:
        write_plot(plot, rows)
    if as_json:
        show.print_json(rows)
        return
    headings = ("kernel", "us", "TFLOP/s", "/ cuBLAS", "predicted us", "/ predicted", "error")
    show.print_table(show.table(str(work), headings, map(_cells, rows)))


def workload(product: Product) -> Workload:
    """Return the problem that the options describe.

    Raises
    ------
    UnsupportedProblem
        A word is not known.
    """
    x = product
    a, _, _, given = operands_of(x)
    if x.precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise UnsupportedProblem(f"precision {x.precision!r} is not known; use one of {known}")
    work = Workload(
        x.m, x.n, x.k, a.dtype, x.layout, x.batch, precision=x.precision,  # type: ignore[arg-type]
        into=None if x.out_dtype is None else dtype_named(x.out_dtype),
        arguments=tuple(given.items()),
    )  # fmt: skip
    return work if x.groups is None else replace(work, groups=x.groups, along=x.along)


def lists_of(
    tile: str = "", stages: str = "", cluster: str = "", schedule: str = "", raster: str = "",
    group: str = "", split_k: str = "", cluster_k: str = "", occupancy: str = "",
) -> Lists:  # fmt: skip
    """Return the values of parameters that texts name.

    Raises
    ------
    UnsupportedProblem
        A text is not a list of such values.
    """
    order = _parts(raster)
    if not {*order} <= {"m", "n"}:
        raise UnsupportedProblem(f"raster {raster!r} is not known; use m, n or m,n")
    return Lists(
        tile=_sizes("tile", tile, (2, 3)),
        stages=tuple(x for (x,) in _sizes("stages", stages, (1,))),
        cluster=_sizes("cluster", cluster, (2,)),  # type: ignore[arg-type]
        schedule=_parts(schedule),
        order=order,
        group=tuple(x for (x,) in _sizes("group", group, (1,))),
        split_k=tuple(x for (x,) in _sizes("split-k", split_k, (1,))),
        cluster_k=tuple(x for (x,) in _sizes("cluster-k", cluster_k, (1,))),
        occupancy=tuple(x for (x,) in _sizes("occupancy", occupancy, (1,), least=0)),
    )


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _sizes(
    name: str, text: str, lengths: tuple[int, ...], least: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Read "64x64,128x64" as tuples of numbers, positive or not negative, of one of the lengths."""
    found = []
    for part in _parts(text):
        numbers = part.split("x")
        if len(numbers) not in lengths or not all(
            x.isdecimal() and int(x) >= least for x in numbers
        ):
            example = "x".join(["64"] * lengths[0])
            raise UnsupportedProblem(f"--{name} {part!r} is not like {example}; use such values")
        found.append(tuple(int(x) for x in numbers))
    return tuple(found)


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows of `unigemm.tuning.sweep.row`."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def _cells(each: dict[str, Any]) -> tuple[str, ...]:
    def number(name: str, digits: int) -> str:
        return "-" if each[name] is None else f"{each[name]:.{digits}f}"

    return (
        f"{each['backend']} {each['config']}",
        number("us", 2),
        number("tflops", 1),
        number("vs_cublas", 3),
        number("predicted_us", 2),
        number("vs_predicted", 3),
        each["error"],
    )
