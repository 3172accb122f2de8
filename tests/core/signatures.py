"""What functions repeat of the options of products: python tests/core/signatures.py writes it.

An option is a field of `Request` and has a type in `unigemm/arrays/types.py`. From these follow the
signatures, which name every argument for `help` and editors, and the parts of a request.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Container
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from unigemm import api, grouped
from unigemm.arrays import types

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does
import call_path

#: Modules, functions, types of their options, and what they set themselves.
FUNCTIONS: tuple[tuple[Any, str, Any, dict[str, Any]], ...] = (
    (api, "matmul", types.MatmulOptions, {"operation": "matmul"}),
    (grouped, "grouped_matmul", types.GroupedOptions, {"operation": "grouped"}),
)
_FUNCTION = (
    r'(.*\ndef {0}\(\n)(    a: Any,\n.*?\n    \*,\n).*?(\) -> Any:\n.*?\n    """\n)'
    r"    operands\b.*?\n    return compute\(.*?\n(.*)"
)
_EPILOGUE = types.EpilogueOptions.__annotations__


def arguments(options: Any) -> str:
    """Return the lines of the arguments that a signature names, those of an epilogue last."""
    typed = {name: x.__forward_arg__ for name, x in options.__annotations__.items()}
    names = [*(name for name in typed if name not in _EPILOGUE), *_EPILOGUE]
    return "".join(f"    {x}: {typed[x]} = {_text(call_path.DEFAULTS[x])},\n" for x in names)


def parts(given: Container[str], own: dict[str, Any]) -> str:
    """Return the lines that make the parts of a request of arguments."""
    held = {**call_path.DEFAULTS, **own}
    names = {x: x if x in given else _text(held[x]) for x in call_path.FIELDS}
    operands, options, *rest = call_path.request(**names).parts
    rest = [x for x in rest if x != "None"]
    lines = f"    operands = (\n{_wrapped(', '.join(operands), 8)},\n    )  # fmt: skip\n"
    if "offsets" not in given:
        nothing = " and~".join(f"{x}~is~None" for x in operands[3:] if x in given)
        lines = (
            "    operands: tuple[Any, ...] = a, b, out  # shorter, which is quicker\n"
            f"    if not (\n{_wrapped(nothing, 8)}\n    ):  # fmt: skip\n{indent(lines, ' ' * 4)}"
        )
    lines += f"    options = (\n{_wrapped(', '.join(options), 8)},\n    )  # fmt: skip\n"
    return f"{lines}    return compute(operands, options, {', '.join(rest)})\n"


def _text(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _wrapped(text: str, margin: int) -> str:
    return indent(fill(text, 99 - margin), " " * margin).replace("~", " ")


def made(source: str, name: str, options: Any, own: dict[str, Any]) -> str:
    """Return a module's source with what follows from options written anew."""
    found = re.fullmatch(_FUNCTION.format(name), source, re.DOTALL)
    assert found is not None
    before, positional, said, after = found.groups()
    given = {*re.findall(r"^    (\w+):", positional, re.MULTILINE), *options.__annotations__}
    return f"{before}{positional}{arguments(options)}{said}{parts(given, own)}{after}"


def path_of(module: Any) -> Path:
    """Return where a module's source is."""
    return Path(inspect.getsourcefile(module) or "")


if __name__ == "__main__":
    for module, *rest in FUNCTIONS:
        path_of(module).write_text(made(path_of(module).read_text(), *rest))
