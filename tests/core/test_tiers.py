"""The first tier is what promises.py names, and names that are there."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from catalogue import MUTANTS
from promises import PROMISES, SAMPLES
from tiers import in_first_tier, selectors, tier_of

TESTS = Path(__file__).parents[1]


def functions_of(path: Path) -> set[str]:
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("promise", PROMISES)
def test_the_tests_of_a_promise_are_there(promise):
    for test in PROMISES[promise]:
        path, _, name = test.partition("::")
        assert not name or name.partition("[")[0] in functions_of(TESTS / path), test


def test_a_test_is_named_by_one_promise():
    names = [test for tests in PROMISES.values() for test in tests]
    assert len(set(names)) == len(names)


def test_what_is_sampled_is_promised():
    by_file = selectors()
    assert [name for name in SAMPLES if not in_first_tier(f"tests/{name}", by_file)] == []


def test_most_planted_faults_name_a_test_of_the_first_tier():
    by_file = selectors()

    def is_found(words: str) -> bool:
        path, _, name = words.partition(" ")[0].partition("::")
        return any(
            in_first_tier(f"{path}::{test}", by_file)
            for test in ([name] if name else functions_of(TESTS.parent / path))
        )

    harmful = [mutant for mutant in MUTANTS if not mutant.equivalent]
    late = [mutant.name for mutant in harmful if not any(map(is_found, mutant.tests))]
    assert len(harmful) - len(late) >= 60, late


def test_a_file_a_function_and_a_case_may_be_named():
    by_file = {"tests/a.py": set(), "tests/b.py": {"test_f", "test_g[1]"}}
    names = {"a.py::test_x[2]", "b.py::test_f", "b.py::test_f[3]", "b.py::test_g[1]"}
    others = {"b.py::test_g[2]", "b.py::test_h", "c.py::test_x"}
    assert {name for name in names | others if in_first_tier(f"tests/{name}", by_file)} == names


def config_of(tier=None, source="TESTPATHS", keyword="", markexpr=""):
    return SimpleNamespace(
        option=SimpleNamespace(tier=tier, keyword=keyword, markexpr=markexpr),
        args_source=pytest.Config.ArgsSource[source],
    )


@pytest.mark.parametrize(
    ("options", "tier"),
    [
        ({}, "first"),
        ({"tier": "thorough"}, "thorough"),
        ({"tier": "thorough", "source": "ARGS"}, "thorough"),
        ({"source": "ARGS"}, "named"),
        ({"keyword": "wgmma"}, "named"),
        ({"markexpr": "gpu"}, "named"),
    ],
)
def test_what_is_named_on_the_command_line_is_run(options, tier, monkeypatch):
    monkeypatch.setattr("tiers.ALL", False)
    assert tier_of(config_of(**options)) == tier
