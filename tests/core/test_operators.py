"""Each operator of an epilogue's function is NumPy's, of all pairs of special values."""

from __future__ import annotations

import numpy as np
import pytest
from operator_table import EXACT, FUNCTIONS, REFUSED, VALUES, as_numpy, differing

import unigemm
from unigemm.errors import UnsupportedProblem

KINDS = (np.float32, np.float64)


def computed(function, kind):
    """Return what an epilogue computes of all pairs."""
    x = np.array(VALUES, kind)
    ones = np.ones((len(x), 1), kind)
    args = {"x": x[:, None], "y": x}
    return unigemm.matmul(
        ones, ones.T, epilogue=lambda acc, x, y: function(x, y), epilogue_args=args
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*EXACT, *FUNCTIONS])
def test_operators_are_those_of_numpy(name, kind):
    function = (EXACT | FUNCTIONS)[name]
    units = 8 if name.startswith("power") else 0  # multiplications
    wrong = differing(computed(function, kind), as_numpy(function, kind), units)
    assert not wrong, wrong[:5]


@pytest.mark.parametrize("name", REFUSED)
def test_what_numpy_refuses_is_refused_with_what_would_do(name):
    with pytest.raises((TypeError, OverflowError)):
        as_numpy(REFUSED[name], np.float32)
    with pytest.raises(UnsupportedProblem, match=r"line \d+: .*; "):
        computed(REFUSED[name], np.float32)


def test_integers_that_no_float_holds_are_refused_wherever_they_stand():
    huge = 10**400
    for function in (
        lambda acc: acc**huge,
        lambda acc: huge**acc,
        lambda acc: np.float_power(acc, huge),
        lambda acc: np.where(acc > huge, acc, 0),
        lambda acc: np.clip(acc, 0, huge),
        lambda acc: acc // huge,
        lambda acc: np.logical_and(acc, huge),
        lambda acc: (acc, huge),
    ):
        with pytest.raises(UnsupportedProblem, match="larger than any float"):
            unigemm.matmul(np.eye(2), np.eye(2), epilogue=function)


def test_a_known_truth_stays_one_where_it_is_alone():
    got = unigemm.matmul(np.eye(2), np.eye(2), epilogue=lambda acc: np.where(True, acc > 0, 2.0))
    np.testing.assert_array_equal(got, np.eye(2))
