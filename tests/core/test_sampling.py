"""What an ordinary run leaves out of a sweep."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import sampling
from sampling import sampled

CASES = [dict(zip("abc", case, strict=True)) for case in product(range(4), "xyz", (True, False))]


def test_a_draw_has_every_value_of_every_factor():
    for name in map(str, range(50)):
        found = sampled(CASES, 4, name)
        assert len(set(found)) == 4
        assert found == sorted(found) == sampled(CASES, 4, name)
        chosen = {item for number in found for item in CASES[number].items()}
        assert chosen == {item for case in CASES for item in case.items()}


def test_names_draw_differently_and_few_cases_are_all_taken():
    assert len({tuple(sampled(CASES, 6, name)) for name in "abcdefgh"}) > 1
    assert sampled(CASES[:5], 5, "") == sampled(CASES[:5], 9, "") == [0, 1, 2, 3, 4]
    assert sampled([], 3, "") == []


def item(name, most=None, **params):
    marker = most and SimpleNamespace(args=(most,))
    return SimpleNamespace(
        nodeid=f"tests/{name}", get_closest_marker=lambda _: marker,
        callspec=SimpleNamespace(params=params),
    )  # fmt: skip


def test_a_run_leaves_out_what_is_not_sampled_of_a_sweep(monkeypatch):
    sweep = [item(f"a.py::sweep[{x}-{y}]", 3, x=x, y=y) for x in range(3) for y in range(4)]
    others = [item("a.py::other[1]", x=1), item("a.py::one", 3)]
    items = [*sweep, *others]
    monkeypatch.setattr(sampling, "ALL", False)
    left = sampling.left_out(items, {})
    assert len(left) == 9
    assert not any(each is other for each in left for other in others)
    kept = [each for each in sweep if not any(each is other for other in left)]
    assert {each.callspec.params["x"] for each in kept} == {0, 1, 2}
    monkeypatch.setattr(sampling, "ALL", True)
    assert sampling.left_out(items, {}) == []
