"""Errors of the emulator: PTX that it does not know, and faults of a running kernel."""

from __future__ import annotations

import struct
from collections.abc import Callable
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
    "fail",
    "of_thread",
    "overlook",
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
    """Where a fault is: line of the PTX, CTA in the grid, warp in the CTA, and lane."""

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


def fail(message: str, thread: int | None = None) -> None:
    """Report a mistake.

    Raises
    ------
    Fault
        Always.
    """
    raise Fault(message, thread)


def overlook(message: str, thread: int | None = None) -> None:
    """Go on in spite of a mistake: hardware does, too."""


class at_thread:
    """Say of a fault inside that it is one of a thread: its index among those that are active."""

    def __init__(self, thread: int | Callable[[], int]) -> None:
        self.thread = thread

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Fault):
            own = self.thread if isinstance(self.thread, int) else self.thread()
            thread = own if error.thread is None else error.thread
            raise Fault(str(error), thread, error.line) from None


def of_thread(m: Any, g: Any, n: int, lane: int = 0) -> at_thread:
    """Say of a fault inside that it is one of warp `n` of a group, and maybe of one lane."""
    return at_thread(lambda: int(np.broadcast_to(m, (g.n, 32)).reshape(-1)[: 32 * n + lane].sum()))
