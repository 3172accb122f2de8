"""Defaults in the reference are those of the code.

The parser of docstrings takes the first of ``{"no", "safe"}`` for the default, and that of the
first name for all in ``alpha, beta : float``; it gives several names one text as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe

_PARAMETERS = griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.other_parameters
_MANY = griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword


def functions(inside: griffe.Object) -> Iterator[griffe.Function]:
    """Yield the functions that the modules of a package name as theirs, and methods of classes."""
    for name, member in inside.members.items():
        if isinstance(member, griffe.Module):
            if name == "kernels":
                continue  # the reference has no device code
            yield from functions(member)
        elif name in (inside.exports or ()) or isinstance(inside, griffe.Class):
            what = member.final_target if isinstance(member, griffe.Alias) else member
            if isinstance(what, griffe.Function):
                yield what
            elif isinstance(what, griffe.Class):
                yield from functions(what)


def corrected(function: griffe.Function) -> None:
    """Give parameters of a docstring their own default, and a shared text to the first only."""
    sections = function.docstring.parsed if function.docstring else []
    parameters = [each for s in sections if s.kind in _PARAMETERS for each in s.value]
    told: dict[str, str] = {}
    for each in parameters:
        own = next((p for p in function.parameters if p.name == each.name.lstrip("*")), None)
        if own is not None:
            each.value = None if own.kind in _MANY else own.default
        first = told.setdefault(each.description, each.name)
        if first != each.name and each.description:
            each.description = f"Described with `{first}`."


class Defaults(griffe.Extension):
    """Correct what the parser of docstrings made of a package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through the functions of a package that was read."""
        for function in functions(pkg):
            corrected(function)
