"""Picks change on purpose only: tests/core/golden_plans.py says how."""

from __future__ import annotations

import json

import pytest
from golden_plans import ARCHITECTURES, FILE, picks

GOLDEN = json.loads(FILE.read_text())


def test_all_architectures_are_in_the_file():
    assert tuple(GOLDEN) == ARCHITECTURES


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_picks_are_those_of_the_file(arch):
    now, before = picks(arch), GOLDEN[arch]
    changed = [
        f"{problem}: {before.get(problem)} -> {now.get(problem)}"
        for problem in {**before, **now}
        if before.get(problem) != now.get(problem)
    ]
    assert not changed, "python tests/core/golden_plans.py, if so wanted:\n" + "\n".join(changed)


def test_float32_and_16_bits_have_a_plan_everywhere():
    for arch, plans in GOLDEN.items():
        missing = {problem.split()[0] for problem, plan in plans.items() if plan == "none"}
        assert missing <= {"float8_e4m3fn", "int8"}, arch
    assert "none" not in GOLDEN["sm_90a"].values()
