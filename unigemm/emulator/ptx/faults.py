"""Errors of the emulator: PTX that it does not know, and faults of a running kernel."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import UnigemmError

__all__ = [
    "MALFORMED",
    "EmulatorError",
    "Fault",
    "KernelFault",
    "PtxError",
    "Site",
    "at_thread",
    "of_thread",
]

#: Errors that Python and NumPy raise for senseless PTX, operands, addresses or descriptors.
MALFORMED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError,
    TypeError, ValueError, struct.error,
)  # fmt: skip


class EmulatorError(UnigemmError):
    """Base of all errors of the emulator."""


class PtxError(EmulatorError):
    """PTX that is malformed, or that this emulator does not implement; it names the line."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.line = line


@dataclass(frozen=True)
class Site:
    """The place of a fault: line of the PTX, CTA in the grid, warp in the CTA, and lane."""

    line: int
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lane: int | None = None

    def __str__(self) -> str:
        parts = [f"PTX line {self.line}"]
        if self.cta is not None:
            parts.append(f"CTA {self.cta}")
        if self.warp is not None:
            parts.append(f"warp {self.warp}")
        if self.lane is not None:
            parts.append(f"lane {self.lane}")
        return ", ".join(parts)


class KernelFault(EmulatorError):
    """A kernel did something that is not allowed, at `site`; `text` is the line of PTX."""

    def __init__(self, message: str, site: Site, text: str = "") -> None:
        quoted = f" `{text.strip()}`" if text else ""
        super().__init__(f"{site}{quoted}: {message}")
        self.message = message
        self.site = site


class Fault(Exception):
    """A fault on its way to a `KernelFault`: an instruction knows what, the scheduler where.

    Attributes
    ----------
    thread
        Index among the threads of the warps that ran the instruction together; None for all.
    line
        The line of the text, where it is not that of the instruction that is run.
    """

    def __init__(self, message: str, thread: int | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.thread, self.line = thread, line


@contextmanager
def at_thread(thread: int) -> Iterator[None]:
    """Say of a fault inside that it is one of a thread: its index among those that are active."""
    try:
        yield
    except Fault as fault:
        raise Fault(str(fault), thread if fault.thread is None else fault.thread) from None


@contextmanager
def of_thread(m: Any, g: Any, n: int, lane: int | None = None) -> Iterator[None]:
    """Say of a fault inside that it is one of warp `n` of a group, and maybe of one lane."""
    here = np.broadcast_to(m, (g.n, 32)).reshape(-1)
    with at_thread(int(here[: 32 * n + (lane or 0)].sum())):
        yield
