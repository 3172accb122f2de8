"""The folder that keeps compiled kernels from one run of the tests to the next; run, it prints it.

Kernels are named by what they are compiled from, so one that is found is what would be compiled.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs


def kept_kernels() -> Path | None:
    """Return the folder beside the user's cache, made where it is missing; None if it cannot be."""
    folder = platformdirs.user_cache_path("unigemm-tests", appauthor=False)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder


if __name__ == "__main__":
    print(kept_kernels() or "")
