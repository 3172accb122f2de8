"""How long files and functions may be: what a reader can hold in the head."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for room in ("unigemm", "backends", "bench") for path in (ROOT / room).rglob("*.py")
)
HOST_LINES, KERNEL_LINES, FUNCTION_LINES = 500, 900, 80
PARAMETERS = 12  # of a function of device code

#: What is still too long. Nothing may be added, and what is short enough must go from here.
LONG_FILES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def allowed_lines(path):
    return KERNEL_LINES if path.parent.name == "kernels" else HOST_LINES


def functions_in(text):
    """Yield (name, lines of code) of each function: without docstrings, comments, empty lines."""
    lines = text.splitlines()
    tree = ast.parse(text)
    documentation = {
        number
        for node in ast.walk(tree)
        if isinstance(node, (*FUNCTION, ast.ClassDef)) and ast.get_docstring(node) is not None
        for number in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    code = {
        number
        for number, line in enumerate(lines, 1)
        if number not in documentation and line.strip() and not line.strip().startswith("#")
    }
    for node in ast.walk(tree):
        if isinstance(node, FUNCTION):
            yield node.name, len(code & set(range(node.lineno, node.end_lineno + 1)))


def test_the_lines_of_a_function_are_counted_without_what_explains_them():
    text = 'def f(\n    a,\n):\n    """Say.\n\n    More.\n    """\n    # why\n\n    return a\n'
    assert list(functions_in(text)) == [("f", 4)]


def test_files_are_short_enough_to_read():
    found = {
        name_of(path) for path in FILES if len(path.read_text().splitlines()) > allowed_lines(path)
    }
    assert not found - LONG_FILES, "split these"
    assert not LONG_FILES - found, "these are short enough now: take them out of LONG_FILES"


def test_functions_are_short_enough_to_read():
    found = {
        f"{name_of(path)} {name}"
        for path in FILES
        for name, lines in functions_in(path.read_text())
        if lines > FUNCTION_LINES
    }
    assert not found - LONG_FUNCTIONS, "split these"
    assert not LONG_FUNCTIONS - found, "these are short enough now: take them out"


def device_parameters(text):
    """Yield (name, how many parameters) of each function that a DSL compiles: cuTile's are bare."""
    cutile = "import cuda.tile as ct\n" in text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and (
            cutile or {"cute.jit", "cute.kernel"} & set(map(ast.unparse, node.decorator_list))
        ):
            yield node.name, len(node.args.args) + len(node.args.kwonlyargs)


def test_the_parameters_of_device_code_are_counted():
    text = "@cute.jit\ndef f(a, b, *, c):\n    pass\n\n\ndef g(a):\n    pass\n"
    assert list(device_parameters(text)) == [("f", 3)]
    assert list(device_parameters(f"import cuda.tile as ct\n{text}")) == [("f", 3), ("g", 1)]


def test_functions_of_device_code_take_records_and_not_a_list_of_numbers():
    found = {
        f"{name_of(path)}: {name}": count
        for path in FILES
        if path.parent.name == "kernels"
        for name, count in device_parameters(path.read_text())
        if count > PARAMETERS
    }
    assert not found, "name what belongs together in a record"
