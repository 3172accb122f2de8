"""The mutants of tests/mutants fit the tree as it is; what finds them is told by its run.py."""

from __future__ import annotations

import ast
import shlex

import pytest
from _pytest.mark.expression import Expression
from catalogue import MUTANTS
from planting import ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_another_program_and_one_at_that(mutant):
    sound = ast.dump(ast.parse((ROOT / mutant.path).read_text(encoding="utf-8")))
    assert ast.dump(ast.parse(mutant.planted())) != sound
    assert mutant.harm
    assert bool(mutant.tests) != bool(mutant.equivalent)


def test_a_mutant_that_no_longer_fits_is_refused():
    for before, times in (("self", "[1-9][0-9]*"), ("no such text", "0")):
        mutant = Mutant("x", "tests/mutants/planting.py", before, "", "none", ("tests",))
        with pytest.raises(ValueError, match=f"stands {times} times"):
            mutant.planted()


def test_there_are_sixty_mutants_that_do_harm_each_with_a_name():
    assert len([mutant for mutant in MUTANTS if not mutant.equivalent]) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_tests_that_should_find_them_exist():
    for name in sorted({name for mutant in MUTANTS for name in mutant.tests}):
        path, _, test = name.partition(" ")[0].partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or f"def {test.partition('[')[0]}(" in text, name


def test_words_that_choose_tests_are_such_as_pytest_takes():
    for name in sorted({name for mutant in MUTANTS for name in mutant.tests}):
        _, *options = shlex.split(name)
        assert not options or (options[0], len(options)) == ("-k", 2), name
        Expression.compile(options[1] if options else "any")
