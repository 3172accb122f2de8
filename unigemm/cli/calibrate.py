"""`unigemm calibrate`: measure a card, and plan by what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import render as show
from .options import Json

__all__ = ["calibrate_command"]


def calibrate_command(
    device: Annotated[int, typer.Option(min=0, help="CUDA device number.")] = 0,
    budget: Annotated[
        float, typer.Option(help="Seconds to spend; most of them go into compiling.")
    ] = 180.0,
    file: Annotated[
        Path | None, typer.Option(help="File to add the result to. Default: your own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure some hundred launches on a GPU, and estimate times by them from then on."""
    from ..tuning.calibrate import calibrate

    with show.progress(as_json) as bar:
        task = bar.add_task("calibrating", total=None)
        found = calibrate(
            device,
            budget=budget,
            file=file,
            report=lambda what, spent, of: bar.update(
                task, description=what, completed=spent, total=of
            ),
        )
    if as_json:
        import msgspec

        show.print_json(msgspec.to_builtins(found))
        return
    show.print_list(f"{name} {value:g}" for name, value in found.measured.items())
    rows = [
        (name, str(each.launches), str(len(each.offsets))) for name, each in found.models.items()
    ]
    show.print_table(show.table("what was adjusted", ("model", "launches", "offsets"), rows))
    show.say(str(found))
