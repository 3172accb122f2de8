"""The errors and warnings of unigemm. Each is a sentence that ends with what would work."""

from __future__ import annotations

from typing import Any

__all__ = [
    "AxisError",
    "BackendUnavailable",
    "BackendWarning",
    "CacheError",
    "CacheWarning",
    "CompilationError",
    "DeviceMismatch",
    "LibraryMismatch",
    "OverlapError",
    "SettingWarning",
    "ShapeMismatch",
    "TuningWarning",
    "UnigemmError",
    "UnsupportedDtype",
    "UnsupportedProblem",
]


class UnigemmError(Exception):
    """Base class of every error that unigemm raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # From what an error holds, as constructors take different arguments: a process pool waits
        # for ever for an exception that it cannot unpickle.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[UnigemmError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class UnsupportedProblem(UnigemmError, ValueError):
    """The product cannot be computed as requested; the base class of errors about its arrays."""


class ShapeMismatch(UnsupportedProblem):
    """The shapes do not fit, as for `numpy.matmul`, or `out` has the wrong shape."""


class AxisError(ShapeMismatch, IndexError, TypeError):
    """Dimensions are named that an array does not have; NumPy raises each of these, by the case."""


class UnsupportedDtype(UnsupportedProblem, TypeError):
    """A dtype, or a combination of dtypes, that no backend takes."""


class LibraryMismatch(UnsupportedProblem, TypeError):
    """The operands belong to different array libraries, or one is no array."""


class DeviceMismatch(UnsupportedProblem):
    """The operands are on different devices, or the backend does not run on theirs."""


class OverlapError(UnsupportedProblem):
    """What is written shares memory with what is read, or with itself."""


class BackendUnavailable(UnigemmError, RuntimeError):
    """A backend cannot be used because something is missing; says what, and how to get it."""


class CompilationError(UnigemmError, RuntimeError):
    """A kernel did not compile; the message holds what the compiler said."""


class CacheError(UnigemmError, OSError):
    """A cache, bundle or tuning file cannot be written, read or trusted."""


class BackendWarning(UserWarning):
    """The best backend failed to compile or load its kernel, so the next best one is used."""


class TuningWarning(UserWarning):
    """A tuning file or one of its entries cannot be used, so the cost model plans instead."""


class SettingWarning(UserWarning):
    """An environment variable has a value that cannot be used, so it is ignored."""


class CacheWarning(UserWarning):
    """The cache on disk cannot be used as configured, so the call goes on without it."""
