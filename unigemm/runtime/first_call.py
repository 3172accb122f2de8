"""The first call of each kind, which may measure before it is planned: `unigemm.autotuning`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from .. import env
from ..arrays.library import KNOWN, Library
from .bind import Bound, bind
from .options import Options

__all__ = ["Measuring", "bind_first", "measuring"]

# Above the api, on which it stands; loaded by the first call that is to be measured.
_TUNING = "unigemm.tuning.online"


@dataclass(frozen=True, eq=False)
class Measuring:
    """How first calls are measured; see `unigemm.autotuning`."""

    candidates: int = 8
    budget: float = 0.05


_asked: list[Measuring] = []
_BY_ENVIRONMENT = Measuring()


@contextmanager
def measuring(how: Measuring) -> Iterator[None]:
    """Measure the first calls of all threads until the block ends; the innermost block decides."""
    _asked.append(how)
    for library in KNOWN.values():
        library.table.clear()  # what was called before is a first call again
    try:
        yield
    finally:
        _asked.remove(how)


def bind_first(library: Library, a: Any, b: Any, out: Any, options: Options, stream: Any) -> Bound:
    """Bind a call as `bind` does, after measuring for it where that is on.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    try:
        how = _asked[-1]
    except IndexError:
        if not env.autotune():
            return bind(library, a, b, out, options)
        how = _BY_ENVIRONMENT
    later = import_module(_TUNING).tune(library, a, b, out, options, stream, how)
    bound = bind(library, a, b, out, options)
    return replace(bound, kept=False) if later else bound
