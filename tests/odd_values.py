"""Values that are no option of any function, and what a test does with them."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import shown_above

from unigemm.errors import UnigemmError


class Unreadable:
    """What no message can show, and nothing can be compared with."""

    __hash__ = None

    def __repr__(self):
        raise RuntimeError("not to be shown")

    def __eq__(self, other):
        raise RuntimeError("not to be compared")


HUGE = 10**400
#: What is no option of any call: neither None nor a name, number, array or function that it takes.
ODD = [
    -3,
    2.5,
    float("nan"),
    HUGE,
    1j,
    "x",
    b"x",
    ["relu"],
    {"a": 1},
    ("halves",),
    {1},
    object(),
    Unreadable(),
    np.array([1, 2]),
    np.array(["relu"]),
    np.array([]),
    np.datetime64("2020"),
    np.void(b"abc"),
    np.dtype([("a", "f4")]),
    slice(1, 2),
    Ellipsis,
    range(3),
]


def described(value):
    return type(value).__name__ if isinstance(value, Unreadable) else repr(value)[:20]


def refused(call, name, value, **more):
    """Pass an option that is wrong, and demand an error of unigemm's; and the same one again."""
    said = [_refusal(call, name, value, more) for _ in range(2)]
    assert said[0] == said[1], f"{name}={described(value)}"


def _refusal(call, name, value, more):
    try:
        call(**{**more, name: value})
    except UnigemmError as error:
        if shown_above(error) is not None:
            pytest.fail(f"{error!r} shows {shown_above(error)!r} above it")
        return type(error)
    except Exception as error:
        raise AssertionError(f"{name}={described(value)}: {error!r}") from error
    pytest.fail(f"{name}={described(value)} was taken")
