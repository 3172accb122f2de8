"""The settings of CuTe DSL under which kernels are compiled: its defaults, whatever a user has set.

The DSL takes its settings from ``CUTE_DSL_*`` when it is imported, and a program may change them
afterwards. Many change the code (line information, assertions, the PyIR front end, options of the
compiler), and a kernel's key knows none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unigemm.errors import CompilationError

__all__ = ["check_flavour", "default_settings"]

# As a name in front of the DSL's variables: no environment holds one with "=".
_NOWHERE = "="
_COMPILER = "cutlass._mlir._mlir_libs._cutlass_ir"


@contextmanager
def default_settings() -> Iterator[None]:
    """Have the DSL compile with its defaults; the caller keeps other threads off it.

    Raises
    ------
    CompilationError
        The installed DSL keeps its settings in another way.
    """
    from cutlass.cutlass_dsl import CuTeDSL

    dsl = CuTeDSL._get_dsl()
    changed = _changes(dsl)
    before = {name: getattr(dsl, name) for name in changed}
    for name, value in changed.items():
        setattr(dsl, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(dsl, name, value)


def _changes(dsl: Any) -> dict[str, Any]:
    """Return the attributes that hold a user's settings, as they are where nothing is set."""
    from cutlass.base_dsl.ast_preprocessor import DSLPreprocessor

    try:
        settings = type(dsl.envar)(_NOWHERE)
        settings.prefix = dsl.envar.prefix
        settings.shared_libs = dsl.envar.shared_libs  # for what runs at once, and nothing does
        settings.no_cache = settings.disable_file_caching = True
        return {
            "envar": settings,
            "preprocessor": DSLPreprocessor(dsl.package_name),
            "_trace_finalize_hooks": [],
        }
    except (AttributeError, TypeError) as error:
        raise CompilationError(
            f"this version of CuTe DSL does not keep its settings where unigemm sets them ({error})"
            '; pip install "nvidia-cutlass-dsl[cu13]>=4.8.1,<4.9"'
        ) from error


def check_flavour(kept: str) -> None:
    """Check that the DSL has loaded the compiler whose version kernels are kept under.

    Where several are installed, the DSL takes the newest that the driver supports.

    Raises
    ------
    CompilationError
        It has taken another one.
    """
    where = str(getattr(sys.modules.get(_COMPILER), "__file__", None))
    if f".{kept}." not in where:
        raise CompilationError(
            f"CuTe DSL has loaded the compiler {where} and kernels are kept as those of {kept}; "
            f"update the driver for {kept}, or install CuTe DSL for one version of CUDA only"
        )
