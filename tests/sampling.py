"""Which cases of a sweep an ordinary run takes: some that cover it, on demand all."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

import pytest

#: An ordinary run takes a sample of long sweeps; UNIGEMM_TEST_ALL=1 takes them whole.
ALL = os.environ.get("UNIGEMM_TEST_ALL") == "1"
#: Another number draws other samples.
SEED = os.environ.get("UNIGEMM_TEST_SEED", "0")


def sampled(cases: Sequence[Mapping[str, Hashable]], most: int, name: str) -> list[int]:
    """Return the numbers of some cases, the same each time for one name, `most` at most.

    Each value of each factor is in one of them, where so few can have them all; those come first
    that have the most values that were not there before.
    """
    order = list(range(len(cases)))
    random.Random(f"{SEED} {name}").shuffle(order)
    found: list[int] = []
    seen: set[tuple[str, Hashable]] = set()
    while order and len(found) < most:
        best = max(order, key=lambda number: len(cases[number].items() - seen))
        order.remove(best)
        found.append(best)
        seen |= cases[best].items()
    return sorted(found)


def left_out(items: Sequence[pytest.Item], limits: Mapping[str, int]) -> list[pytest.Item]:
    """Return the cases of sweeps that a run does not take.

    A sweep is a function with the marker "sample", or one that `limits` names.
    """
    sweeps: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        if (item.get_closest_marker("sample") and not ALL) or name in limits:
            sweeps[name].append(item)
    left: list[pytest.Item] = []
    for name, cases in sweeps.items():
        marker = cases[0].get_closest_marker("sample")
        most = limits[name] if name in limits else marker.args[0]
        factors = [
            dict(pair for name, value in case.callspec.params.items() for pair in _of(name, value))
            for case in cases
        ]
        taken = set(sampled(factors, most, name.rpartition("/")[2]))
        left += [case for number, case in enumerate(cases) if number not in taken]
    return left


def _of(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the factors that a parameter is: of a plan or a configuration, those of its fields."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _of(f"{name}.{field.name}", getattr(value, field.name))
    else:
        yield name, repr(value)
