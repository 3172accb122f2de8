"""Calls in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["in_threads"]


def in_threads(work: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Call `work` with each of the arguments, all at once; return the results in any order.

    What a thread raises, this raises.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run(*given: Any) -> None:
        try:
            results.append(work(*given))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=given) for given in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
