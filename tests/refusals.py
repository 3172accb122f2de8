"""Whether an error of unigemm's stands alone: the check of every `pytest.raises` of the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["checking_raises", "shown_above"]


def shown_above(error: BaseException | None) -> BaseException | None:
    """Return the error that a traceback shows above one of unigemm's that does not name it.

    What an error is raised from was named on purpose: a compiler's error, or the caller's own.
    """
    from unigemm.errors import UnigemmError

    while error is not None:
        above = None if error.__suppress_context__ else error.__context__
        if isinstance(error, UnigemmError) and above is not None:
            return above
        error = error.__cause__
    return None


class _Checking:
    """A context of `pytest.raises` that also looks at what is above the error."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.handled = sys.exc_info()[1]  # by the test, which is no matter of the call

    def __enter__(self) -> Any:
        return self.inner.__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        above = shown_above(error)
        assert above in (None, self.handled), (
            f"{error!r} shows {above!r} above it: raise it outside of `except`"
        )
        return self.inner.__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def checking_raises(raises: Callable[..., Any]) -> Callable[..., Any]:
    """Return `pytest.raises` that also refuses errors of unigemm's with another above them."""

    @wraps(raises)
    def checked(*arguments: Any, **options: Any) -> Any:
        made = raises(*arguments, **options)
        return _Checking(made) if hasattr(made, "__exit__") else made

    return checked
