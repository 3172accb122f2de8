"""The first call of each kind, which may measure before it is planned: `unigemm.autotuning`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .. import env, hooks
from ..arrays.library import KNOWN, Library
from ..dynamo import untraced
from .bind import Bound, bind, refuse_changed
from .options import Options

if TYPE_CHECKING:
    from .fusion import Fusion

__all__ = ["Given", "Measuring", "bind_first", "measuring"]


@dataclass(frozen=True, eq=False)
class Measuring:
    """How first calls are measured; see `unigemm.autotuning`."""

    candidates: int = 8
    budget: float = 0.05


@dataclass(frozen=True, eq=False)
class Given:
    """What a call is given beside its operands, their result and the options.

    Attributes
    ----------
    stream
        As the caller gave it.
    scaling
        The caller's `scale_a` and `scale_b`, from `named_scales`.
    arguments
        Those of the epilogue, from `named_arguments`.
    more_out
        The arrays for further results of a function.
    fusion
        The epilogue; None for none.
    """

    stream: Any = None
    scaling: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    more_out: tuple[Any, ...] = ()
    fusion: Fusion | None = None


_asked: list[Measuring] = []
_BY_ENVIRONMENT = Measuring()


@contextmanager
@untraced
def measuring(how: Measuring) -> Iterator[None]:
    """Measure the first calls of all threads until the block ends; the innermost block decides."""
    _asked.append(how)
    for library in KNOWN.values():
        library.table.clear()  # what was called before is a first call again
    try:
        yield
    finally:
        _asked.remove(how)


def bind_first(library: Library, a: Any, b: Any, out: Any, options: Options, given: Given) -> Bound:
    """Bind a call as `bind` does, after measuring for it where that is on.

    Raises
    ------
    UnigemmError
        See `unigemm.matmul`.
    """
    named = (("a", a), ("b", b)) if out is None else (("a", a), ("b", b), ("out", out))
    try:
        seen = [(name, x, *library.read(x)) for name, x in named]
    except Exception:
        seen = []  # something is wrong with an array: `bind` says what
    how: Measuring | None
    try:
        how = _asked[-1]
    except IndexError:
        how = _BY_ENVIRONMENT if env.autotune() else None
    later = how and hooks.named(hooks.MEASURER)(library, a, b, out, options, given, how)
    bound = bind(library, a, b, out, options)
    refuse_changed(library, seen)
    return replace(bound, kept=False) if later else bound
