"""Faults on purpose, as SQLite makes them: of what a call does, the n-th thing fails, for every n.

`every_nth` runs an operation again and again, each time on state of its own. In run n the n-th file
operation below a folder (or the n-th call of a function that is named) raises; in another run all
from the n-th on do. It ends with the first run in which there was nothing left to fail.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from unigemm.errors import UnigemmError

#: Operations that take a path or a descriptor, and fail on real disks.
_OF_FILES = (
    *("open", "mkdir", "replace", "rename", "link", "unlink", "rmdir", "chmod", "utime", "fsync"),
    *("listdir", "scandir", "stat", "lstat", "readlink"),
)
_MOST = 400  # runs of one operation: one that never ends is a mistake of the test


@dataclass
class Fault:
    """The n-th call that `counts` fails; with `stays` all behind it, too."""

    number: int
    stays: bool
    make: Callable[[], BaseException]
    seen: int = 0

    def meet(self) -> None:
        self.seen += 1
        if self.seen == self.number or (self.stays and self.seen > self.number):
            raise self.make()

    @property
    def struck(self) -> bool:
        return self.seen >= self.number


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


@contextmanager
def file_faults(fault: Fault, below: Path) -> Iterator[None]:
    """Have file operations on paths below a folder, and on what was opened there, meet a fault."""
    root = os.path.realpath(below)
    opened: set[int] = set()

    def concerns(x: Any) -> bool:
        if isinstance(x, int):
            return x in opened
        try:
            return os.path.abspath(os.fspath(x)).startswith(root)
        except TypeError:
            return False

    def failing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if "dir_fd" not in kwargs and any(map(concerns, args[:2])):
                fault.meet()
                found = real(*args, **kwargs)
                if name == "open" and isinstance(found, int):
                    opened.add(found)
                return found
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in _OF_FILES:
            patch.setattr(os, name, failing(name, getattr(os, name)))
        open_ = failing("file", io.open)
        patch.setattr(io, "open", open_)
        patch.setattr("builtins.open", open_)
        yield


def every_nth(
    folder: Path,
    prepare: Callable[[Path], Any],
    run: Callable[[Path], Any],
    check: Callable[[Path, Any], None],
    faults: Callable[[Fault, Path], Any] = file_faults,
    makes: tuple[Callable[[], BaseException], ...] = (full_disk, broken_disk),
    may_raise: tuple[type[BaseException], ...] = (UnigemmError,),
) -> int:
    """Fail each thing that `run` does; return how many there were.

    Parameters
    ----------
    folder
        Gets a folder for each run.
    prepare
        Makes the state in a folder, once; runs get copies.
    run
        The operation on a folder; it may only end with a result, or with one of `may_raise`.
    check
        Asserts that the folder, and the result if there was one (else None), are sound.
    """
    prepare(folder / "made")
    struck = 0
    for stays in (False, True):
        for number in count(1):
            assert number < _MOST, "the operation never ends"
            where = folder / f"run-{number}-{stays}"
            shutil.copytree(folder / "made", where, symlinks=True)
            fault = Fault(number, stays, makes[number % len(makes)])
            result = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is said is tested elsewhere
                try:
                    with faults(fault, where):
                        result = run(where)
                except may_raise:
                    assert fault.struck, "it fails without a fault"
            check(where, result)
            shutil.rmtree(where)
            if not fault.struck:
                assert result is not None, "run returns something"
                break
            struck = max(struck, number)
    return struck
