"""What the command line prints: one console, JSON or text, and the tables of compiled kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from . import api
from .cache import Entry
from .errors import BackendUnavailable
from .plans import Plan
from .sass import instruction_mix

__all__ = [
    "compile_all",
    "compiled_json",
    "compiled_line",
    "kernel_table",
    "print_json",
    "print_table",
    "progress",
    "say",
    "size",
    "table",
]

# Into a file or a pipe, tables keep a width of their own.
_out = Console(width=None if sys.stdout.isatty() else 140)
# Opcodes worth a column, in the order arithmetic, loads and stores.
_SHOWN = (
    *("FFMA", "FFMA2", "DFMA", "FHFMA", "HMMA", "DMMA", "HGMMA", "UTCHMMA"),
    *("LDS", "LDSM", "LDG", "LDGSTS", "UTMALDG", "STS", "LDL", "STL"),
)


def say(text: str, *, error: bool = False) -> None:
    """Print a sentence as it is: brackets are no markup, and lines are not broken."""
    console = Console(stderr=True) if error else _out
    style = "red" if error else None
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_json(data: Any) -> None:
    """Print plain data as JSON."""
    _out.print_json(data=data)


def print_table(made: Table) -> None:
    """Print a table."""
    _out.print(made)


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose cells are plain text, folded where they do not fit."""
    made = Table(title=title or None)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def progress(quiet: bool) -> Progress:
    """Return a progress bar on stderr."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )


def size(count: float) -> str:
    """Return bytes in the unit that suits them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def compile_all(plans: Sequence[Plan], *, quiet: bool) -> list[api.CompiledKernel]:
    """Compile plans one after the other under a progress bar."""
    made = []
    with progress(quiet) as bar:
        task = bar.add_task("compiling", total=len(plans))
        for plan in plans:
            bar.update(task, description=f"{plan.backend} for {plan.target.arch}, {plan.extents}")
            made.append(api.compile(plan))
            bar.advance(task)
        bar.update(task, description="kernels")
    return made


def compiled_json(made: Sequence[api.CompiledKernel]) -> dict[str, Any]:
    """Return counts, and for each kernel what was made."""
    entries = [kernel.entry for kernel in made if kernel.entry is not None]
    return {
        "compiled": sum(not entry.cached for entry in entries),
        "cached": sum(entry.cached for entry in entries),
        "kernels": [
            {
                "key": entry.digest,
                "path": str(entry.path),
                "backend": entry.key["backend"],
                "target": entry.key["arch"],
                "cached": entry.cached,
                "registers": entry.info.registers,
                "smem_bytes": entry.info.smem_bytes,
                "spill_bytes": entry.info.spill_bytes,
                "seconds": entry.info.seconds,
                "instructions": _mix(entry),
            }
            for entry in entries
        ],
    }


def compiled_line(made: Sequence[api.CompiledKernel]) -> str:
    """Say how many kernels were compiled and how many came from the cache."""
    cached = [kernel.entry.cached for kernel in made if kernel.entry is not None]
    if not cached:
        return "the host backend needs no kernels"
    if all(cached):
        return f"kernels from the cache: {len(cached)}; nothing was compiled"
    return f"kernels compiled: {cached.count(False)}; from the cache: {sum(cached)}"


def _mix(entry: Entry) -> dict[str, int]:
    """Return the opcodes of a kernel; none where nothing is installed that reads them."""
    return _mix_of(tuple(entry.files.items()))


@lru_cache(maxsize=256)  # what is shown as JSON may be shown as a table, too
def _mix_of(files: tuple[tuple[str, str], ...]) -> dict[str, int]:
    try:
        return instruction_mix(dict(files))
    except BackendUnavailable:
        return {}


def kernel_table(made: Sequence[api.CompiledKernel]) -> Table:
    """Return a table of what was compiled."""
    headings = ("problem", "target", "kernel", "regs", "smem", "spills", "instructions", "compile")
    return table("kernels", headings, map(_kernel_row, made))


def _kernel_row(made: api.CompiledKernel) -> tuple[str, ...]:
    plan, entry = made.plan, made.entry
    name = f"{plan.extents} {plan.problem.layout} {plan.problem.a.dtype}"
    if entry is None:
        return (name, plan.target.arch, plan.backend, *["-"] * 5)
    info, mix = entry.info, _mix(entry)
    return (
        name,
        plan.target.arch,
        f"{plan.backend} {plan.config}",
        str(info.registers),
        size(info.smem_bytes),
        size(info.spill_bytes),
        " ".join(f"{op}:{mix[op]}" for op in _SHOWN if op in mix) or "-",
        "cached" if entry.cached else f"{info.seconds:.1f} s",
    )
