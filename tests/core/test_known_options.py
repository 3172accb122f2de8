"""A known call refuses what a first call refuses, also values that are equal to others."""

from __future__ import annotations

import enum
import random
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import unigemm
from unigemm.errors import UnigemmError

A = np.ones((4, 256), np.float32)
B = np.ones((256, 8), np.float32)
Pair = namedtuple("Pair", "rows columns")


class Text(str):
    """A string of a caller's own."""


class Named(enum.StrEnum):
    """Strings that a caller enumerates."""

    RELU = "relu"
    ROW = "row"
    TF32 = "tf32"


#: Values of each option that a call may have; of a known call any value equal to one may come.
VALUES = {
    "dtype": ["float32", "float16", np.float32, np.dtype("float16")],
    "precision": ["ieee", "tf32", "3xtf32"],
    "deterministic": [True, False],
    "batch_invariant": [False],
    "backend": ["auto", "numpy"],
    "casting": [None, "same_kind"],
    "activation": ["relu", "gelu", "swiglu"],
    "gate_layout": ["halves"],
    "rest": ["zeros"],
    "quantize_out": ["row", (1, 128)],
    "alpha": [1, 0, 2.0],
    "plan": [None],
    "stream": [None],
    "axes": [[(0, 1), (0, 1), (0, 1)]],
}


def equal_values(value):
    """Return values that are equal to one, of other types, and a few that are not."""
    if isinstance(value, tuple):
        first, second = value
        pairs = [(x, y) for x in equal_values(first) for y in equal_values(second)]
        return [*pairs, Pair(*value), list(value), np.array(value), (*value, 1), value[:1]]
    if isinstance(value, bool | int | float):
        kinds = (bool, int, float, complex, np.int64, np.uint8, np.float32, np.float64, np.bool_,
                 Fraction, Decimal)  # fmt: skip
        found = [kind(value) for kind in kinds]
        return [x for x in found if x == value] + [np.array(value), np.array([value])]
    if isinstance(value, str):
        named = [x for x in Named if x == value]
        return [Text(value), np.str_(value), *named, value.encode(), np.array(value), value.upper()]
    return [value]


def outcome(ask, given):
    try:
        found = ask(given)
    except UnigemmError as error:
        return type(error), str(error)
    return tuple(x.dtype for x in found) if isinstance(found, tuple) else found.dtype


def forget():
    """Make the next call of each kind a first one, as a new record of products does."""
    with unigemm.record():
        pass


def of_numpy(given):
    return unigemm.matmul(A, B, **given)


def of_groups(given):
    return unigemm.grouped_matmul(A, B[None], np.array([4]), **given)


def of_torch(given):
    torch = pytest.importorskip("torch")
    return unigemm.matmul(torch.from_numpy(A), torch.from_numpy(B), **given)


@pytest.mark.parametrize("ask", [of_numpy, of_groups, of_torch])
def test_an_option_that_is_equal_to_a_known_one_is_taken_as_by_a_first_call(ask):
    draw = random.Random(68)
    only = {"matmul": {"rest"}, "grouped": {"casting", "axes"}}
    left_out = only["grouped" if ask is of_groups else "matmul"]
    refused = 0
    for _ in range(100):
        name = draw.choice([name for name in VALUES if name not in left_out])
        base = draw.choice(VALUES[name])
        more = {} if name == "gate_layout" or draw.random() < 0.7 else {"alpha": 2.0}
        if name == "gate_layout":
            more["activation"] = "swiglu"
        given, other = {**more, name: base}, {**more, name: draw.choice(equal_values(base))}
        forget()
        first = outcome(ask, other)
        forget()
        known = [outcome(ask, given) for _ in range(3)]
        assert known[0] == known[1] == known[2]
        for _ in range(2):
            assert outcome(ask, other) == first, f"{other!r} behind {given!r}"
        assert outcome(ask, given) == known[0]
        refused += type(first) is tuple and isinstance(first[0], type)
    assert refused > 10
