"""How the command line prints sentences, tables and JSON, at the width of the terminal."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from ..cache import Entry
from ..cache.sass import instruction_mix
from ..errors import BackendUnavailable, UnigemmError
from ..planning.plan import Plan
from ..runtime.compile_many import (
    Compiled,
    CompiledRounding,
    compile_needed,
    compiled,
    kernel_name,
)
from ..runtime.rounding_kernels import RoundingKernel
from ..support.columns import folded, wrapped

__all__ = [
    "OutputLost",
    "Table",
    "arithmetic",
    "compile_all",
    "compile_time",
    "compiled_json",
    "compiled_line",
    "forget_tiny_sizes",
    "guarded_streams",
    "height",
    "kernel_table",
    "print_json",
    "print_laid_out",
    "print_list",
    "print_table",
    "progress",
    "say",
    "size",
    "table",
    "waiting",
    "width",
]

# The opcodes that are shown: arithmetic, then loads, then stores.
_ARITHMETIC = ("FFMA", "FFMA2", "DFMA", "FHFMA", "HMMA", "DMMA", "HGMMA", "UTCHMMA")
_NARROWEST = 20  # columns
_SHOWN = (
    *_ARITHMETIC,
    *("LDS", "LDSM", "LDG", "LDGSTS", "UTMALDG", "STS", "LDL", "STL"),
)


class OutputLost(BaseException):
    """Standard output cannot be written to. No error of the command, so no handler catches it.

    Attributes
    ----------
    reason
        The error of the operating system.
    """

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason

    @property
    def closed(self) -> bool:
        """Whether the reader has gone, as `head` does; nobody wants to hear of that."""
        return self.reason.errno == errno.EPIPE


class _Guarded:
    """A stream that raises `OutputLost` where it cannot be written to, or ignores it."""

    def __init__(self, file: Any, *, needed: bool) -> None:
        self._file = file
        self._needed = needed

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except OSError as error:
            return self._failed(error)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> int:
        if self._needed:
            raise OutputLost(error) from None
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Raise `OutputLost` where stdout cannot be written to, and ignore it for stderr.

    Raises
    ------
    OutputLost
        Stdout is closed or full, which stderr is told, or its reader has gone.
    """
    out, error = sys.stdout, sys.stderr
    _take_standard_descriptors()
    for stream in (out, error):
        if hasattr(stream, "reconfigure"):  # a path may hold what the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    if error is not None:
        sys.stderr = _Guarded(error, needed=False)  # type: ignore[assignment]
    try:
        if out is None:
            raise OutputLost(OSError(errno.EBADF, "it is closed"))
        sys.stdout = _Guarded(out, needed=True)  # type: ignore[assignment]
        yield
        sys.stdout.flush()
    except OutputLost as lost:
        if out is not None:
            _discard(out)
        if not lost.closed:
            reason = lost.reason.strerror
            say(f"unigemm: standard output cannot be written to: {reason}", error=True)
        raise
    finally:
        sys.stdout, sys.stderr = out, error
        if error is not None:
            try:
                error.flush()
            except OSError:
                _discard(error)


def _discard(stream: Any) -> None:
    """Send what a stream still holds to the null device, as Python flushes it again at exit."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _take_standard_descriptors() -> None:
    """Open the null device where stdin, stdout or stderr is closed.

    Otherwise the next file that is opened, perhaps one of the cache, would get their number, and
    what a compiler prints would go into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def forget_tiny_sizes() -> None:
    """Take COLUMNS or LINES for not set where nothing could be read at that size.

    Rich prints nothing at all, and no error, where COLUMNS is 0.
    """
    for variable, least in (("COLUMNS", _NARROWEST), ("LINES", 1)):
        text = os.environ.get(variable, "")
        if text.isdigit() and (_stated(variable) or 0) < least:
            del os.environ[variable]


def width() -> int | None:
    """Return the columns of the terminal, COLUMNS first; None in a pipe or a file."""
    return _stated("COLUMNS") or _size(sys.stdout, 0)


def height() -> int | None:
    """Return the lines of the terminal, LINES first; None in a pipe or a file."""
    return _stated("LINES") or _size(sys.stdout, 1)


def _stated(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text[:6]) or None if text.isascii() and text.isdecimal() else None


def _size(stream: Any, index: int) -> int | None:
    try:
        return os.get_terminal_size(stream.fileno())[index] or None
    except (AttributeError, OSError, ValueError):  # closed, a file, or a stand-in of a test
        return None


def _print(text: Text | str, *, error: bool = False, style: str | None = None) -> None:
    """Print lines as they are."""
    console = Console(stderr=error)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def say(text: str, *, error: bool = False) -> None:
    """Print sentences, in which brackets are no markup.

    At a terminal lines break between words; in a pipe or a file a sentence is one line.
    """
    terminal = _size(sys.stderr if error else sys.stdout, 0)
    text = wrapped(text, terminal and (_stated("COLUMNS") or terminal))
    _print(text, error=error, style="red" if error else None)


def print_laid_out(text: str) -> None:
    """Print text whose lines are already broken."""
    _print(text)


def print_list(items: Iterable[str]) -> None:
    """Print short texts with commas between, on the lines that they need."""
    _print(wrapped(", ".join(items), width()))


def print_json(data: Any) -> None:
    """Print plain data as JSON."""
    Console().print_json(data=data, ensure_ascii=True)


@dataclass(frozen=True)
class Table:
    """Rows of plain text under headings; see `unigemm.support.columns.folded`."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose cells are plain text."""
    return Table(title, tuple(headings), tuple(tuple(row) for row in rows))


def print_table(made: Table) -> None:
    """Print a table; columns that do not fit continue below."""
    columns = width()
    heading, *rows = folded(made.headings, made.rows, columns)
    text = Text()
    if made.title:
        text.append(wrapped(made.title, columns) + "\n", style="italic")
    text.append("\n".join(heading), style="bold")
    for lines in rows:
        text.append("\n" + "\n".join(lines))
    _print(text)


@contextmanager
def progress(quiet: bool) -> Iterator[Progress]:
    """Show a progress bar at a terminal; an error replaces it, and follows no half a bar."""
    console = Console(stderr=True)
    bar = Progress(
        # Cut rather than wrapped, because a bar is redrawn in place and must be one line.
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    with bar:
        try:
            yield bar
        except BaseException:
            bar.live.transient = True
            raise


@contextmanager
def waiting(what: str, quiet: bool) -> Iterator[None]:
    """Show at a terminal what goes on, and for how long; nothing of it is left."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    disable = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        bar.add_task(what, total=None)
        yield


def size(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def compile_all(plans: Sequence[Plan | RoundingKernel], *, quiet: bool) -> list[Compiled]:
    """Compile the kernels of plans side by side, with a progress bar."""
    entries: dict[str, Entry] = {}
    made = []
    with progress(quiet) as bar:
        task = bar.add_task("compiling", total=None, visible=False)
        for plan, entry in compile_needed(
            plans,
            report=lambda done, of: bar.update(task, completed=done, total=of, visible=of > 0),
        ):
            if isinstance(entry, UnigemmError):
                raise entry
            entries[kernel_name(plan)] = entry
        bar.update(task, description="kernels")
    for plan in plans:
        name = kernel_name(plan)
        kept = entries.get(name)
        made.append(compiled(plan, kept))
        if kept is not None:
            entries[name] = replace(kept, cached=True)  # for a second plan it was there
    return made


def compiled_json(made: Sequence[Compiled]) -> dict[str, Any]:
    """Return the JSON of compiled kernels: how many, and what each one is."""
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


def compiled_line(made: Sequence[Compiled]) -> str:
    """Say how many kernels were compiled and how many came from the cache."""
    cached = [kernel.entry.cached for kernel in made if kernel.entry is not None]
    if not cached:
        return "the host backend needs no kernels"
    if all(cached):
        return f"kernels from the cache: {len(cached)}; nothing was compiled"
    return f"kernels compiled: {cached.count(False)}; from the cache: {sum(cached)}"


def _mix(entry: Entry) -> dict[str, int]:
    """Return the counts of a kernel's opcodes; empty if no disassembler is installed."""
    cubins = {name: data for name, data in entry.read().items() if name.endswith(".cubin")}
    return _mix_of(tuple(cubins.items()))


@lru_cache(maxsize=256)  # a kernel may be shown both as JSON and in a table
def _mix_of(cubins: tuple[tuple[str, bytes], ...]) -> dict[str, int]:
    try:
        return instruction_mix(dict(cubins))
    except BackendUnavailable:
        return {}


def arithmetic(made: Compiled) -> str:
    """Return the opcode that does most of a kernel's arithmetic; "" if that is not known."""
    mix = {} if made.entry is None else _mix(made.entry)
    return max((op for op in _ARITHMETIC if op in mix), key=lambda op: mix[op], default="")


def compile_time(made: Compiled) -> str:
    """Return how long a kernel took to compile, "cached", or "-" if there is none."""
    if made.entry is None:
        return "-"
    return "cached" if made.entry.cached else f"{made.entry.info.seconds:.1f} s"


def kernel_table(made: Sequence[Compiled]) -> Table:
    """Return a table of compiled kernels."""
    headings = (
        *("problem", "target", "backend", "regs", "smem", "spills", "compile"),
        *("kernel", "instructions"),
    )
    return table("", headings, map(_kernel_row, made))


def _kernel_row(made: Compiled) -> tuple[str, ...]:
    entry = made.entry
    if isinstance(made, CompiledRounding):
        kernel = made.kernel
        start, config = (str(kernel), kernel.target.arch, kernel.backend), ""
    else:
        plan = made.plan
        problem = f"{plan.extents} {plan.problem.layout} {plan.problem.a.dtype}"
        start, config = (problem, plan.target.arch, plan.backend), str(plan.config)
    if entry is None:
        return (*start, *"----", config, "")
    info, mix = entry.info, _mix(entry)
    return (
        *start,
        str(info.registers),
        size(info.smem_bytes),
        size(info.spill_bytes),
        compile_time(made),
        config,
        " ".join(f"{op}:{mix[op]}" for op in _SHOWN if op in mix),
    )
