"""What lower rooms ask of upper ones by name: `unigemm/__init__.py`, which is above all, fills it.

A name is ``"module:attribute"``, and what it names is imported when it is first requested.
"""

from __future__ import annotations

from typing import Any

from .support.forks import imported

__all__ = ["BACKENDS", "ENTRY_POINTS", "MEASURER", "QUANTIZER", "named"]

#: The backends that unigemm brings with it.
BACKENDS: dict[str, str] = {}
#: The group of entry points by which other packages offer backends.
ENTRY_POINTS = ""
#: What measures the first call of each kind while that is on.
MEASURER = ""
#: What rounds arrays on a GPU to eight bits with scales.
QUANTIZER = ""


def named(where: str) -> Any:
    """Import what ``"module:attribute"`` names."""
    module, _, attribute = where.partition(":")
    return getattr(imported(module), attribute)
