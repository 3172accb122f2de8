"""`unigemm report`: a page about the machine at hand, or about a named device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UnsupportedProblem
from . import render as show
from .machine import versions
from .options import Json, named_targets

__all__ = ["report_command"]


def report_command(
    file: Annotated[
        str | None,
        typer.Argument(
            help="Products, as `unigemm warmup` takes them; - is stdin. Default: squares, few "
            "rows, deep and odd products in all kinds of numbers."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="A device that need not be here, such as h100: all times are then estimates. "
            "Default: the first GPU of this machine, where picks and cuBLAS are measured.",
            autocompletion=named_targets,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where the page goes. Default: unigemm-report.html, none with --json."),
    ] = None,
    budget: Annotated[
        float, typer.Option(help="Milliseconds on the device for each pick and for cuBLAS.")
    ] = 30.0,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a device: picks, estimates, measured times, and what limits them.

    The page holds all it shows. With --json the same is printed as JSON, to attach to a bug report.
    """
    from ..tuning.report import report_of
    from ..tuning.report_page import page

    if out is not None and out.suffix not in (".html", ".htm"):
        raise UnsupportedProblem(f"--out {out} is no page; name a file that ends in .html")
    if not 0 < budget < float("inf"):
        raise UnsupportedProblem(f"--budget is {budget}; give milliseconds above 0")
    with show.progress(as_json) as bar:
        task = bar.add_task("planning", total=None)
        report = report_of(
            file,
            target,
            budget_ms=budget,
            versions=versions(),
            progress=lambda what, done, of: bar.update(
                task, description=what, completed=done, total=of
            ),
        )
    if out is None and not as_json:
        out = Path("unigemm-report.html")
    if out is not None:
        out.write_text(page(report), encoding="utf-8")
    if as_json:
        show.print_json(report.to_dict())
        return
    worth = "measured" if report.measured else "estimated"
    show.say(f"{len(report.lines)} products on {report.target}, {worth}: {out}")
