"""The settings of cuda.tile under which kernels are compiled: its defaults."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from unigemm.errors import CompilationError

__all__ = ["default_settings"]


@contextmanager
def default_settings() -> Iterator[None]:
    """Have cuda.tile compile with its defaults; other threads' compiles wait.

    It reads its switches (``CUDA_TILE_TESTING_*``, ...) when it is imported, and copies them from
    module to module. Those that change the code are either on or off.

    Raises
    ------
    CompilationError
        The installed cuda.tile keeps its switches in another way.
    """
    try:
        from cuda.tile import _debug
        from cuda.tile._compile import _compiler_lock
    except ImportError as error:
        raise CompilationError(
            f"this version of cuda.tile does not keep its settings where unigemm sets them "
            f'({error}); pip install "cuda-tile>=1.7,<1.8"'
        ) from error
    names = [name for name, value in vars(_debug).items() if isinstance(value, bool)]
    with _compiler_lock:
        modules = [m for name, m in list(sys.modules.items()) if name.startswith("cuda.tile")]
        on = [(m, name) for m in modules for name in names if getattr(m, name, False)]
        for module, name in on:
            setattr(module, name, False)
        try:
            yield
        finally:
            for module, name in on:
                setattr(module, name, True)
