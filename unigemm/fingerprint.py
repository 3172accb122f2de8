"""What decides what a caller's function does, as a key; and quickly, where nothing has changed."""

from __future__ import annotations

from dataclasses import dataclass
from dis import get_instructions
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from .epilogue import erf

__all__ = ["fingerprint", "known_as"]

#: Modules whose functions do the same today and tomorrow.
_KNOWN_MODULES = ("numpy", "math", "unigemm.epilogue", "unigemm.activations", "unigemm")
#: Modules whose built-in functions do the same today and tomorrow.
_PURE_MODULES = ("builtins", "math", "_operator")
#: Names of what reads state that is in no global, or gives something else at each call.
_HIDDEN = frozenset(
    ("__import__", "eval", "exec", "globals", "input", "locals", "open", "random", "vars")
)


def fingerprint(function: Any) -> Any:
    """Return a key of all that decides what a function does; None where that cannot be told.

    Its code, its defaults, what it closes over and the globals that it names, if these are plain
    numbers, texts, tuples of such, functions of the same kind, or parts of NumPy.
    """
    try:
        return _of_function(function, ())
    except _Unknown:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What a function's state was, and the key that it had; objects are kept so that ids stay."""

    code: CodeType
    state: list[Any]
    key: object


#: By the id of the function's code, since functions are often made anew for each call.
_SEEN: dict[int, _Seen] = {}
_NAMES: dict[int, tuple[CodeType, tuple[str, ...]]] = {}
_KEYS: dict[Any, object] = {}
_MOST = 1024
_MISSING = object()


def known_as(function: Any) -> object | None:
    """Return an object that is the same for functions of one `fingerprint`; None if it has none.

    It takes a few microseconds where a function's code, defaults, closure and globals are the very
    objects that they were.
    """
    if type(function) is not FunctionType:
        return None
    state: list[Any] = []
    try:
        _collect(function, state, ())
    except _Unknown:
        return None
    code = function.__code__
    seen = _SEEN.get(id(code))
    if seen is not None and len(seen.state) == len(state) and all(map(is_, seen.state, state)):
        return seen.key
    own = fingerprint(function)
    if own is None:
        return None
    for table in (_SEEN, _NAMES, _KEYS):
        if len(table) >= _MOST:
            table.clear()  # type: ignore[attr-defined]
    key = _KEYS.setdefault(own, object())
    _SEEN[id(code)] = _Seen(code, state, key)
    return key


def _collect(value: Any, state: list[Any], inside: tuple[Any, ...]) -> None:
    """Append the objects that a value is made of: those that decide its fingerprint."""
    kind = type(value)
    if kind is tuple:
        state.append(len(value))
        for each in value:
            _collect(each, state, inside)
        return
    if kind is not FunctionType:
        state.append(value)
        return
    if value.__dict__:
        raise _Unknown
    code = value.__code__
    state.append(code)
    if value in inside:
        state.append(inside.index(value))
        return
    inside = (*inside, value)
    _collect(value.__defaults__, state, inside)
    for name, default in (value.__kwdefaults__ or {}).items():
        state.append(name)
        _collect(default, state, inside)
    for cell in value.__closure__ or ():
        try:
            _collect(cell.cell_contents, state, inside)
        except ValueError:  # it is still empty
            raise _Unknown from None
    space = value.__globals__
    for name in _names(code):
        _collect(space.get(name, _MISSING), state, inside)


def _names(code: CodeType) -> tuple[str, ...]:
    """Return what a function's code, and code inside of it, may name in its globals.

    What it imports, or reads in another hidden way, is not known.
    """
    found = _NAMES.get(id(code))
    if found is None:
        codes = _codes(code)
        names = dict.fromkeys(name for each in codes for name in each.co_names)
        if not _HIDDEN.isdisjoint(names) or any(
            step.opname == "IMPORT_NAME" and step.argval not in _KNOWN_MODULES
            for each in codes
            for step in get_instructions(each)
        ):
            raise _Unknown
        found = _NAMES[id(code)] = code, tuple(names)
    return found[1]


class _Unknown(Exception):
    pass


def _of_function(function: Any, inside: tuple[Any, ...]) -> Any:
    if type(function) is not FunctionType or function.__dict__:
        raise _Unknown
    if function in inside:
        return "itself", inside.index(function)
    inside = (*inside, function)
    code = function.__code__
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a cell that is still empty
        raise _Unknown from None
    defaults = function.__defaults__, tuple(sorted((function.__kwdefaults__ or {}).items()))
    space = function.__globals__
    named = sorted(name for name in _names(code) if name in space)
    return (
        code,
        _of_value(defaults, inside),
        tuple(_of_value(x, inside) for x in cells),
        tuple((name, _of_value(space[name], inside)) for name in named),
    )


def _codes(code: CodeType) -> list[CodeType]:
    found = [code]
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found += _codes(each)
    return found


def _of_value(value: Any, inside: tuple[Any, ...]) -> Any:
    if value is None or type(value) in (bool, int, str, float):
        return type(value).__name__, repr(value)  # 0.0 and -0.0 are equal, 1 and True too
    if type(value) is tuple:
        return tuple(_of_value(x, inside) for x in value)
    if isinstance(value, np.generic) and not isinstance(value, np.void):  # which may be written
        return value.dtype.str, value.tobytes()
    if isinstance(value, ModuleType) and value.__name__ in _KNOWN_MODULES:
        return "module", value.__name__
    if isinstance(value, np.ufunc) or (isinstance(value, type) and value.__module__ == "builtins"):
        return "known", id(value)
    if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType):
        if value.__self__.__name__ not in _PURE_MODULES or value.__name__ in _HIDDEN:
            raise _Unknown
        return "known", id(value)
    if value is erf or value is np.where or value is np.clip:
        return "known", id(value)
    return _of_function(value, inside)
