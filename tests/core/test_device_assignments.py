"""What the DSL does not see in device code: targets of assignments that stand inside others.

`(row, within), columns = ...` assigns three variables to Python, and one to the compiler: a loop or
a branch that assigns `row` again leaves it as it was, and nobody says so.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNELS = sorted((ROOT / "backends").glob("*/kernels/*.py"))


def names_in(target, depth=0):
    """Yield (name, how many tuples deep it stands) of the variables that a target assigns."""
    if isinstance(target, ast.Name):
        yield target.id, depth
    elif isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from names_in(each, depth + 1)
    elif isinstance(target, ast.Starred):
        yield from names_in(target.value, depth)


def is_traced(node):
    """Whether the compiler gets a loop or a branch, and not one way through it."""
    if isinstance(node, ast.If):
        return not ast.unparse(node.test).startswith("const_expr(")
    if isinstance(node, ast.For):
        return ast.unparse(node.iter).startswith(("cutlass.range(", "range("))
    return isinstance(node, ast.While)


def assignments(node, blocks=()):
    """Yield (variable, depth in its target, traced blocks around it) below a node, in order."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, (ast.AugAssign, ast.For)):
        targets = [node.target]
    for target in targets:
        for name, depth in names_in(target):
            yield name, depth, blocks
    blocks = (*blocks, node) if is_traced(node) else blocks
    for child in ast.iter_child_nodes(node):
        yield from assignments(child, blocks)


def hidden_variables(text):
    """Yield (function, variable) of nested targets that other traced blocks assign, too."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef):
            continue
        kinds = [ast.unparse(each) for each in function.decorator_list]
        if not any("cute.jit" in kind or "cute.kernel" in kind for kind in kinds):
            continue
        found = list(assignments(function))
        blocks_of = defaultdict(set)
        for name, _, blocks in found:
            blocks_of[name].add(blocks)
        nested = {name for name, depth, _ in found if depth > 1 and name != "_"}
        yield from ((function.name, name) for name in sorted(nested) if len(blocks_of[name]) > 1)


def test_a_variable_of_a_nested_target_is_found():
    code = "@cute.jit\ndef f(x):\n    (a, b), c = x\n    if c > 0:\n        a, c = g(b)\n"
    assert list(hidden_variables(code)) == [("f", "a")]
    assert not list(hidden_variables(code.replace("(a, b), c = x", "a, b, c = x")))
    assert not list(hidden_variables(code.replace("c > 0", "const_expr(c > 0)")))


def test_device_code_assigns_no_nested_variable_twice():
    found = {
        f"{path.relative_to(ROOT)}: {name} in {function}"
        for path in KERNELS
        for function, name in hidden_variables(path.read_text())
    }
    assert not found, "assign these in statements of their own"
