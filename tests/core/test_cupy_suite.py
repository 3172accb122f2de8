"""The shapes and types of CuPy's suite of matmul, on the host."""

from __future__ import annotations

import numpy as np
import pytest
from type_cases import SHAPES, TYPES, WRONG, check, numbers

import unigemm


@pytest.mark.parametrize("left", TYPES)
def test_each_shape_of_any_two_types_is_numpys(left):
    for number, right in enumerate(TYPES):
        for i, (first, second) in enumerate(SHAPES):
            if (i + number) % 3:  # each pair of types has a third of the shapes
                continue
            a, b = numbers(first, left), numbers(second, right, 1)
            with np.errstate(all="ignore"):
                check(unigemm.matmul(a, b), a, b)


@pytest.mark.parametrize(("first", "second"), WRONG)
def test_shapes_that_do_not_fit_are_refused(first, second):
    with pytest.raises(ValueError, match=r"matmul|broadcast"):
        np.matmul(np.ones(first), np.ones(second))
    with pytest.raises(unigemm.ShapeMismatch, match="; "):
        unigemm.matmul(np.ones(first), np.ones(second))
