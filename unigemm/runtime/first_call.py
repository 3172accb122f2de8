"""The first call of each kind, which may measure before it is planned: `unigemm.autotuning`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import hooks
from ..arrays.library import KNOWN, Library
from ..support import env
from ..support.dynamo import untraced

if TYPE_CHECKING:
    from .epilogue_arguments import TracedEpilogue
    from .options import Options
    from .request import Request

__all__ = ["Measuring", "measured", "measuring"]


@dataclass(frozen=True, eq=False)
class Measuring:
    """How first calls are measured; see `unigemm.autotuning`."""

    candidates: int = 8
    budget: float = 0.05


_requested: list[Measuring] = []
_BY_ENVIRONMENT = Measuring()


@contextmanager
@untraced
def measuring(how: Measuring) -> Iterator[None]:
    """Measure the first calls of all threads until the block ends; the innermost block decides."""
    _requested.append(how)
    for library in KNOWN.values():
        library.forget()  # what was called before is a first call again
    try:
        yield
    finally:
        _requested.remove(how)


def measured(
    library: Library, request: Request, options: Options, traced: TracedEpilogue | None
) -> bool:
    """Measure for a call that is about to be bound, where that is on.

    Returns
    -------
    bool
        Whether a later call like it should come here again.
    """
    if options.converted is not None:
        return False
    try:
        how = _requested[-1]
    except IndexError:
        if not env.autotune():
            return False
        how = _BY_ENVIRONMENT
    return hooks.named(hooks.MEASURER)(library, request, options, traced, how)
