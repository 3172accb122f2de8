"""How the arguments of a host function are grouped: as `CuteBackend.bind` passes them."""

from __future__ import annotations

import pytest

from unigemm.backends.cute.kernels.host_arguments import grouped

NAMES = [
    *("a", "b", "d", "workspace", "m", "n", "k", "l0", "l1"),
    *("am", "ak", "a0", "a1", "bk", "bn", "b0", "b1", "dm", "dn", "d0", "d1"),
]


@pytest.mark.parametrize("parameters", [4, 6])
@pytest.mark.parametrize("more", [[], ["scale_a", "scale_b", "factor"]])
def test_arguments_are_grouped_in_the_order_in_which_they_are_passed(parameters, more):
    numbers = [f"p{i}" for i in range(parameters)]
    found = grouped([*NAMES, *numbers, *more, "stream"], parameters)
    assert found.addresses == ("a", "b", "d", "workspace")
    assert found.sizes == ("m", "n", "k", "l0", "l1")
    assert found.a_steps == ("am", "ak", "a0", "a1")
    assert found.b_steps == ("bk", "bn", "b0", "b1")
    assert found.d_steps == ("dm", "dn", "d0", "d1")
    assert (found.parameters, found.more) == (tuple(numbers), tuple(more))
    assert found.stream == "stream"
