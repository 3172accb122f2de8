"""What unigemm raises: one base class, each error a sentence that ends with what would work."""

from __future__ import annotations

from typing import Any

__all__ = [
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
        # By what an error holds, not by its constructor's arguments: these differ from class to
        # class, and a process pool waits for ever for a result that it cannot read.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[UnigemmError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class UnsupportedProblem(UnigemmError, ValueError):
    """The call cannot be done: what is unsupported, by which backend, and what would do."""


class ShapeMismatch(UnsupportedProblem):
    """Shapes that `numpy.matmul` would refuse too, or an `out` of the wrong shape."""


class UnsupportedDtype(UnsupportedProblem, TypeError):
    """A dtype, or a combination of dtypes, that no backend takes."""


class LibraryMismatch(UnsupportedProblem, TypeError):
    """Operands of different array libraries, or an object that is no array."""


class DeviceMismatch(UnsupportedProblem):
    """Operands on different devices, or a backend that cannot run on theirs."""


class OverlapError(UnsupportedProblem):
    """`out` shares memory with an input (on a GPU), with a scale, or with itself."""


class BackendUnavailable(UnigemmError, RuntimeError):
    """A backend was named whose toolchain or device is missing: what it is and how to get it."""


class CompilationError(UnigemmError, RuntimeError):
    """A kernel did not compile; carries the compiler's own words."""


class CacheError(UnigemmError, OSError):
    """A kernel can be written nowhere, or a bundle cannot be read or must not be trusted."""


class BackendWarning(UserWarning):
    """The backend that was to compute a product cannot; the next best does."""


class TuningWarning(UserWarning):
    """A tuning file, or one of its entries, cannot be used; the model plans instead."""


class SettingWarning(UserWarning):
    """A variable of the environment cannot be used as it is; the call goes on without it."""


class CacheWarning(UserWarning):
    """The on-disk cache cannot be used as asked; the call goes on without it."""
