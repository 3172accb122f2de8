"""What decides what a caller's function does, as a key; and quickly, where nothing has changed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from dis import get_instructions
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ..epilogue import erf

__all__ = ["fingerprint", "known_as"]

#: Modules whose attributes are looked at; others may do something else tomorrow.
_KNOWN_MODULES = ("numpy", "math", "unigemm.epilogue", "unigemm.activations", "unigemm")
#: Modules whose built-in functions do the same today and tomorrow.
_PURE_MODULES = ("builtins", "math", "_operator")
#: The type of NumPy's functions that are no ufuncs (since NumPy 1.25), and of nobody else's.
_DISPATCHED = type(np.where)
#: Names of what reads state that is in no global, or gives something else at each call.
_HIDDEN = frozenset(
    (
        *("__dict__", "__getattribute__", "__import__", "eval", "exec", "getattr", "globals"),
        *("hasattr", "input", "locals", "open", "random", "vars"),
    )
)


def fingerprint(function: Any) -> Any:
    """Return a key of all that decides what a function does; None where that cannot be told.

    Its code, its defaults, what it closes over and the globals that it names, if these are plain
    numbers, texts, tuples of such, functions of the same kind, or parts of NumPy; of a module, the
    attributes that it names.
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
_NAMES: dict[int, tuple[CodeType, tuple[str, ...], tuple[str, ...]]] = {}
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
        _collect(function, state, (), ())
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


def _collect(value: Any, state: list[Any], inside: tuple[Any, ...], named: tuple[str, ...]) -> None:
    """Append the objects that a value is made of: those that decide its fingerprint.

    Parameters
    ----------
    value
        What a function refers to, or the function.
    state
        Where to.
    inside
        The functions and modules that it was reached through.
    named
        What the function's code names, which may be attributes of a module.
    """
    kind = type(value)
    if kind is tuple:
        state.append(len(value))
        for each in value:
            _collect(each, state, inside, named)
        return
    if kind is ModuleType and value.__name__ in _KNOWN_MODULES and value not in inside:
        state.append(value)
        inside = (*inside, value)
        space = value.__dict__
        for name in named:
            if name in space:
                state.append(name)
                _collect(space[name], state, inside, named)
        return
    if kind is not FunctionType or value is erf:
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
    named, imported = _names(code)
    _collect(value.__defaults__, state, inside, named)
    for name, default in (value.__kwdefaults__ or {}).items():
        state.append(name)
        _collect(default, state, inside, named)
    for cell in value.__closure__ or ():
        try:
            _collect(cell.cell_contents, state, inside, named)
        except ValueError:  # it is still empty
            raise _Unknown from None
    space, builtin = value.__globals__, value.__builtins__  # type: ignore[attr-defined]
    for name in named:
        found = space.get(name, _MISSING)
        if found is _MISSING:
            found = builtin.get(name, _MISSING)
        _collect(found, state, inside, named)
    for name in imported:
        _collect(sys.modules.get(name), state, inside, named)


def _names(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a function's code, and code inside of it, may name and what modules it imports.

    Other modules, and what it reads in another hidden way, are not known.
    """
    found = _NAMES.get(id(code))
    if found is None:
        codes = _codes(code)
        names = dict.fromkeys(name for each in codes for name in each.co_names)
        steps = (step for each in codes for step in get_instructions(each))
        modules = tuple(step.argval for step in steps if step.opname == "IMPORT_NAME")
        if not _HIDDEN.isdisjoint(names) or not set(modules) <= set(_KNOWN_MODULES):
            raise _Unknown
        found = _NAMES[id(code)] = code, tuple(names), modules
    return found[1:]


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
    names, imported = _names(code)
    spaces = (function.__globals__, function.__builtins__)  # type: ignore[attr-defined]
    found = ((name, space[name]) for name in names for space in spaces if name in space)
    return (
        code,
        _of_value(defaults, inside, names),
        tuple(_of_value(x, inside, names) for x in cells),
        tuple((name, _of_value(x, inside, names)) for name, x in found),
        tuple(_of_value(sys.modules.get(name), inside, names) for name in imported),
    )


def _codes(code: CodeType) -> list[CodeType]:
    found = [code]
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found += _codes(each)
    return found


def _of_value(value: Any, inside: tuple[Any, ...], named: tuple[str, ...]) -> Any:
    if value is None or type(value) in (bool, int, str, float):
        return type(value).__name__, repr(value)  # 0.0 and -0.0 are equal, 1 and True too
    if type(value) is tuple:
        return tuple(_of_value(x, inside, named) for x in value)
    if isinstance(value, np.generic) and not isinstance(value, np.void):  # which may be written
        return value.dtype.str, value.tobytes()
    if isinstance(value, ModuleType) and value.__name__ in _KNOWN_MODULES:
        return "module", value.__name__, _of_module(value, inside, named)
    if type(value) is FunctionType and value is not erf:
        return _of_function(value, inside)
    if isinstance(value, type) and value.__module__ in ("builtins", "numpy"):
        return "known", value
    if isinstance(value, np.ufunc) or type(value) is _DISPATCHED or value is erf:
        return "known", value
    if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType):
        if value.__self__.__name__ not in _PURE_MODULES or value.__name__ in _HIDDEN:
            raise _Unknown
        return "known", value
    raise _Unknown


def _of_module(module: ModuleType, inside: tuple[Any, ...], named: tuple[str, ...]) -> Any:
    """Return the key of the attributes that a function may name; they can be replaced."""
    if module in inside:
        return "itself", inside.index(module)
    inside, space = (*inside, module), module.__dict__
    return tuple((name, _of_value(space[name], inside, named)) for name in named if name in space)
