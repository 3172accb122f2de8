"""Alpha, beta, c and bias of integers and booleans: in accumulators, which wrap around."""

from __future__ import annotations

import numpy as np
import pytest
from type_cases import EXACT_TYPES, drawn_terms, epilogue_exactly, numbers

import unigemm


@pytest.mark.parametrize("kind", EXACT_TYPES)
def test_terms_are_added_in_the_type_of_the_accumulators(kind):
    drawn = np.random.default_rng(56)
    for left, right in ((kind, kind), (kind, "?")):
        a, b = numbers((2, 5, 40), left), numbers((40, 7), right, 1)
        for _ in range(4):
            terms = drawn_terms(drawn, kind, (2, 5, 7), (7,))
            got = unigemm.matmul(a, b, **terms)
            wanted = epilogue_exactly(a, b, **terms)
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)


def test_c_may_be_out_itself_and_out_may_be_wider():
    a, b = numbers((5, 40), "i4"), numbers((40, 7), "i4", 1)
    out = numbers((5, 7), "i4", 2)
    expected = 2 * (a @ b) - out
    assert unigemm.matmul(a, b, out, alpha=2, beta=-1, c=out) is out
    np.testing.assert_array_equal(out, expected)
    wide = np.zeros((5, 7), "i8")
    unigemm.matmul(a, b, wide, alpha=3)
    np.testing.assert_array_equal(wide, 3 * (a @ b))  # cut to 32 bits first, as without alpha


def test_mixed_types_are_promoted_on_the_host_too():
    a, b = numbers((5, 40), "f4"), numbers((40, 7), "f8", 1)
    for x, y in ((a, b), (a.astype("i4"), b), (a.astype("f2"), b.astype("i1"))):
        got = unigemm.matmul(x, y, alpha=0.5, activation="relu")
        wanted = np.maximum(0.5 * (x @ y), 0)
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-2 if got.dtype == "f2" else 1e-6)


def test_a_number_that_is_not_whole_is_refused_at_every_call():
    a = numbers((4, 4), "i4")
    assert unigemm.matmul(a, a, alpha=2).dtype == "i4"
    for alpha in (2.5, float("nan"), float("inf"), 2**53, -(2**60)):
        with pytest.raises(unigemm.UnsupportedProblem, match="; pass a whole number"):
            unigemm.matmul(a, a, alpha=alpha)
    np.testing.assert_array_equal(unigemm.matmul(a, a, alpha=2.5, dtype="f8"),
                                  2.5 * np.matmul(a, a, dtype="f8"))  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [{"activation": "relu"}, {"epilogue": lambda x: x}, {"bias": np.ones(4)}, {"alpha": np.ones(1)},
     {"scale_d": 2.0}, {"amax_out": np.zeros(1, "f4")}],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_what_is_for_rounded_accumulators_is_refused(given):
    a = numbers((4, 4), "i4")
    with pytest.raises(unigemm.UnsupportedProblem, match="; "):
        unigemm.matmul(a, a, **given)


def test_plans_of_integers_with_terms_come_back_from_json():
    spec = unigemm.ArraySpec((64, 64), "int16")
    for target in ("h100", "cpu"):
        plan = unigemm.plan(spec, spec, alpha=2, bias=unigemm.ArraySpec((64,), "uint8"),
                            target=target)  # fmt: skip
        assert unigemm.Plan.from_json(plan.to_json()) == plan
        assert "read as int16" in str(plan.problem)
    text = plan.to_json().replace('"uint8"', '"float16"')
    with pytest.raises(unigemm.UnsupportedProblem, match="epilogue"):
        unigemm.Plan.from_json(text)
