"""Python in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

__all__ = ["output_of", "python"]


def python(
    *words: object, cwd: str | os.PathLike[str] | None = None, **environment: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with some words; variables that are None are taken away."""
    whole = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={name: str(value) for name, value in whole.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
    )


def output_of(*words: object, **options: Any) -> str:
    """Return what Python prints with some words (see `python`); its end must be a good one."""
    done = python(*words, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
