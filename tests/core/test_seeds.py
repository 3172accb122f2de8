"""What tests draw is the same in every process: no order of a set, no state of others."""

from __future__ import annotations

import ast
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import output_of

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "unigemm", "backends", "bench")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
#: What makes a sequence of what it is given, or draws from it.
KEEPS_ORDER = {
    *("list", "tuple", "enumerate", "zip", "map", "iter", "next", "join"),
    *("choice", "choices", "sample", "shuffle", "sampled_from", "parametrize"),
}
#: The functions of modules that draw from a state which all share.
DRAWS = {"choice", "choices", "sample", "shuffle", "randint", "random", "uniform", "rand", "randn"}


def is_set(node: ast.AST, names: frozenset[str]) -> bool:
    """Return whether an expression is surely a set."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.BinOp):
        return is_set(node.left, names) or is_set(node.right, names)
    if isinstance(node, ast.IfExp):
        return is_set(node.body, names) or is_set(node.orelse, names)
    made = isinstance(node, ast.Call) and called(node) in ("set", "frozenset")
    return made or isinstance(node, ast.Set | ast.SetComp)


def called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def ordered(node: ast.AST) -> list[ast.AST]:
    """Return the expressions whose order a node keeps."""
    if isinstance(node, ast.For):
        return [node.iter]
    if isinstance(node, ast.ListComp | ast.DictComp):
        return [each.iter for each in node.generators]
    if isinstance(node, ast.List | ast.Tuple):
        return [each.value for each in node.elts if isinstance(each, ast.Starred)]
    if isinstance(node, ast.Call) and called(node) in KEEPS_ORDER:
        given = [each.value if isinstance(each, ast.Starred) else each for each in node.args]
        return [x.generators[0].iter if isinstance(x, ast.GeneratorExp) else x for x in given]
    return []


def named_sets(scope: ast.AST) -> frozenset[str]:
    """Return the names that are sets, and never anything else, in a function or a module."""
    found: dict[str, bool] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.arg | ast.For | ast.comprehension):
            value = getattr(node, "value", None)
            names = {node.arg} if isinstance(node, ast.arg) else stored(node)
            for name in names:
                surely = value is not None and is_set(value, frozenset())
                found[name] = found.get(name, True) and surely
    return frozenset(name for name, surely in found.items() if surely)


def stored(node: ast.AST) -> set[str]:
    return {
        x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
    }


def unordered(source: str) -> Iterator[int]:
    """Yield the lines where the order of a set decides something, as far as can be read off."""
    tree = ast.parse(source)
    functions = [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)]
    for scope in (tree, *functions):
        names = named_sets(scope)
        for node in ast.walk(scope):
            for each in ordered(node):
                if is_set(each, names):
                    yield each.lineno  # type: ignore[attr-defined]


def unseeded(source: str) -> Iterator[int]:
    """Yield the lines that draw with no seed, or from a state that all share."""
    tree = ast.parse(source)
    imported = {x.name for n in ast.walk(tree) if isinstance(n, ast.Import) for x in n.names}
    modules = (*(["random."] if "random" in imported else []), "np.random.")
    traced = {id(x) for n in ast.walk(tree) if isinstance(n, ast.Lambda) for x in ast.walk(n)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in traced:
            continue
        text = ast.unparse(node.func)
        bare = text in ("random.Random", "default_rng", "np.random.default_rng")
        shared = text in {f"{module}{draw}" for module in modules for draw in DRAWS}
        if (bare and not (node.args or node.keywords)) or shared:
            yield node.lineno


def test_the_order_of_no_set_decides_anything():
    found = {f"{p.relative_to(ROOT)}:{n}" for p in FILES for n in unordered(p.read_text())}
    assert sorted(found) == []


def test_nothing_is_drawn_without_a_seed():
    found = {f"{p.relative_to(ROOT)}:{n}" for p in FILES for n in unseeded(p.read_text())}
    assert sorted(found) == []


@pytest.mark.parametrize(
    "source",
    [
        "rng.choice([*{d for d, _, _ in KINDS}])",
        "x = list({1, 2})",
        "for x in set(a) - {b}: pass",
        "def f():\n    names = frozenset(a)\n    return [x for x in names]",
        "', '.join({str(x) for x in a})",
    ],
)
def test_what_takes_a_set_in_its_order_is_found(source):
    assert [*unordered(source)]


@pytest.mark.parametrize(
    "source", ["sorted({d for d in a})", "x = {*{1}, 2}", "any(x for x in {1, 2})", "3 in {1}"]
)
def test_what_takes_a_set_as_a_set_is_not(source):
    assert not [*unordered(source)]


@pytest.mark.parametrize("_", range(2))
def test_each_test_begins_with_the_same_state_of_shared_generators(_):
    assert random.getstate() == random.Random(0).getstate()
    numpys, torch = np.random.get_state(), sys.modules.get("torch")
    np.testing.assert_array_equal(numpys[1], np.random.RandomState(0).get_state()[1])
    random.seed(7)
    np.random.seed(7)
    if torch is not None:
        assert torch.initial_seed() == 0
        torch.manual_seed(7)


#: What cases are drawn from, and a draw of a sweep whose test is not run here.
OFFERS = """
from itertools import product
from sampling import sampled
from unigemm.planning.registry import backend_named
from unigemm.planning.target import named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.matrix import MatrixType
from unigemm.problem.problem import Extents, Problem

for name, arch in (("cute_simt", "sm_90a"), ("cute_wgmma", "sm_90a"),
                   ("cute_tcgen05", "sm_100a"), ("cutile", "sm_90a")):
    x = DType.BFLOAT16
    problem = Problem(MatrixType(x, "k", 16), MatrixType(x, "n", 16), MatrixType(x, "n", 16))
    backend, target = backend_named(name), named_target(arch)
    for each in backend.candidates(problem, Extents(300, 520, 1000), target):
        print(name, each.config)
print(sampled([dict(zip("ab", case)) for case in product(DType, DType)], 9, "draw"))
"""


def test_two_processes_offer_and_draw_the_same():
    def told(seed: str) -> str:
        path = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        return output_of("-c", OFFERS, PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(path))

    first, second = told("1"), told("2")
    assert len(first.splitlines()) > 100
    assert first == second
