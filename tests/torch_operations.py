"""PyTorch's own table of operations, with samples of what each takes."""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

__all__ = ["torch_operations"]


@cache
def torch_operations() -> list[Any]:
    """Return the table, whose module wants a package that it does not use.

    To import it takes long: one test does.
    """
    if find_spec("expecttest") is None:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return op_db
