"""Functions that `torch.compile` leaves as they are, with all that they call.

Dynamo reads a function's attributes where a call of it is traced: there the graph ends, once. As
the function then runs, Dynamo would trace it, and each that it calls, as functions of their own; a
mark of the code objects, which only PyTorch can write, stops that. So that ``import unigemm`` need
not import PyTorch, they are marked when Dynamo is imported. A call costs nothing more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

__all__ = ["untraced", "untraced_api"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_DYNAMO = "torch._dynamo"
_codes: dict[int, CodeType] = {}  # by identity, since equal ones are marked apart


def untraced(function: FunctionT) -> FunctionT:
    """Let Dynamo trace neither a function that runs nor what it calls.

    Parameters
    ----------
    function
        A function in Python. All that share its code are marked with it.

    Returns
    -------
    function
        The same.
    """
    code = function.__code__  # type: ignore[attr-defined]
    if id(code) not in _codes:
        _codes[id(code)] = code
        if _notice.is_imported or _DYNAMO in sys.modules:
            _mark(code)
    return function


_ADDRESSES = "works on the addresses of tensors, which a graph does not have"
_OUTSIDE = "leave fullgraph=True out, or call it outside of the compiled function"


def untraced_api(value: Any, name: str, why: str = _ADDRESSES, instead: str = _OUTSIDE) -> None:
    """Let the graph of a compiled function end where it calls something public.

    Parameters
    ----------
    value
        A function, or a class, whose functions are meant; other values are left as they are.
    name
        Its name below `unigemm`, which ``fullgraph=True`` says.
    why
        Why it is in no graph.
    instead
        What would work.
    """
    if isinstance(value, type) and not issubclass(value, BaseException):
        for attribute, member in vars(value).items():
            called = name if attribute.startswith("__") else f"{name}.{attribute}"
            untraced_api(getattr(member, "__func__", member), called, why, instead)
    elif isinstance(value, FunctionType):
        instead = f"use unigemm.torch.matmul, {instead}" if name == "matmul" else instead
        value._torchdynamo_disable = True  # type: ignore[attr-defined]
        value._torchdynamo_disable_msg = f"unigemm.{name} {why}: {instead}"  # type: ignore[attr-defined]
        untraced(value)


def _mark(code: CodeType) -> None:
    frames = sys.modules["torch._C"]._dynamo.eval_frame
    skip = frames._FrameAction.SKIP  # of its own frame, and of those below it
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


class _Notice:
    """Finds no module, and notices that Dynamo is about to be imported."""

    is_imported = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == _DYNAMO and not self.is_imported:
            self.is_imported = True  # first: a function of another thread then marks its own
            for code in tuple(_codes.values()):
                _mark(code)


_notice = _Notice()
sys.meta_path.insert(0, _notice)  # type: ignore[arg-type]
