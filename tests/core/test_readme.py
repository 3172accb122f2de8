"""What the README shows works as it stands there, and the pages beside it lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import output_of

from unigemm.support import env

README = Path(__file__).parents[2] / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="an installed wheel has no README")


def python_blocks():
    text = README.read_text() if README.exists() else ""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.compile
@pytest.mark.parametrize("code", python_blocks(), ids=lambda code: code.splitlines()[-1][:20])
def test_its_python_runs(code, tmp_path):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    output_of("-c", code, cwd=tmp_path)


def test_there_is_python_in_it():
    assert len(python_blocks()) == 2


def test_its_variables_are_all_that_there_are():
    named = set(re.findall(r"`(UNIGEMM_[A-Z_]+)`", README.read_text()))
    assert named == set(env.VARIABLES)


def test_ci_runs_its_two_commands_word_for_word():
    commands = re.findall(r"^    (\S.*)$", README.read_text(), re.MULTILINE)[:2]
    assert commands == ['pip install -e ".[dev]" && unigemm demo', "pytest"]
    steps = (README.parent / ".ci" / "run").read_text().split("\nstep ")
    (first,) = [step for step in steps if step.startswith('"README')]
    assert [line for line in first.splitlines() if line in commands] == commands


def test_how_long_tests_take_and_how_large_an_install_is_are_said_once():
    pages = [README.read_text(), (README.parent / "CONTRIBUTING.md").read_text()]
    assert [len(re.findall(r"about \d+ minutes", page)) for page in pages] == [0, 1]
    assert [bool(re.findall(r"\d GB", page.split("## What runs")[0])) for page in pages] == [
        True,
        False,
    ]


@pytest.mark.parametrize("page", ["README", "CHANGELOG", "CONTRIBUTING"])
def test_its_links_lead_to_files_of_the_tree(page):
    links = re.findall(r"\]\(([^)#]+)", (README.parent / f"{page}.md").read_text())
    inside = [link for link in links if "://" not in link]
    assert inside
    assert [link for link in inside if not (README.parent / link).exists()] == []
