"""Every plan that `plan` makes is one that a file holds, and that a call computes by."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_shapes import broadcasting
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unigemm
from unigemm.activations import ACTIVATIONS, GATED, GRADIENTS
from unigemm.errors import UnsupportedProblem
from unigemm.problem.dtypes import numpy_dtype
from unigemm.problem.epilogue import MOST_ARRAYS

SPEC = unigemm.ArraySpec
TARGETS = ("cpu", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
DTYPES = ("float32", "float64", "bfloat16", "float16", "int8", "float8_e4m3fn")
SIZES = st.sampled_from([1, 2, 3, 8, 17, 64, 300])


@st.composite
def broadcast(draw, shape, dtype):
    """Return a description of an array that broadcasts to a shape."""
    own = draw(broadcasting(shape))
    return SPEC(own, dtype, order=draw(st.sampled_from("CF")))


@st.composite
def named(draw, shape, dtype):
    """Return arguments of an epilogue with names of their own."""
    wide = "float64" if dtype == "float64" else "float32"
    aux = wide if dtype in ("int8", "float8_e4m3fn") else draw(st.sampled_from([dtype, wide]))
    if dtype == "float64":
        aux = dtype
    requested = {}

    def factor():
        numbers = st.sampled_from([0, 1, 2.5, -1e30, float("inf")])
        arrays = st.sampled_from([SPEC((), wide), SPEC((1,), wide), SPEC((1, 1), "float32")])
        return draw(st.one_of(numbers, arrays))

    if draw(st.booleans()):
        requested["c"] = draw(broadcast(shape, aux))
        if draw(st.booleans()):
            requested["beta"] = factor()
    for name in ("alpha", "scale_d"):
        if draw(st.booleans()):
            requested[name] = factor()
    if draw(st.booleans()):
        requested["bias"] = draw(broadcast(shape, aux))
    activation = draw(st.sampled_from([None, *ACTIVATIONS, *GATED, *GATED, *GRADIENTS]))
    if activation in GATED and shape[-1] % 2:
        activation = None
    if activation is not None:
        requested["activation"] = activation
    if activation in GATED:
        requested["gate_layout"] = draw(st.sampled_from(["interleaved", "halves"]))
    if activation in GRADIENTS:
        requested["preact"] = draw(broadcast(shape, aux))
    elif activation is not None and draw(st.booleans()):
        requested["preact_out"] = SPEC(shape, wide)
    if draw(st.booleans()):
        requested["amax_out"] = SPEC((1,), "float32")
    if activation not in GATED and len(shape) == 2 and draw(st.booleans()):
        requested["bias_grad_out"] = SPEC(draw(st.sampled_from([shape[1:], (shape[0], 1)])), wide)
    return requested


@st.composite
def function(draw, shape, dtype):
    """Return a function, and its arguments: few or many steps, numbers, results."""
    count = draw(st.sampled_from([0, 1, MOST_ARRAYS, MOST_ARRAYS + 1]))
    steps = draw(st.sampled_from([1, 30, 255, 256, 600]))
    more = draw(st.sampled_from([0, 1, MOST_ARRAYS, MOST_ARRAYS + 1]))

    def epilogue(acc, **numbers):
        x = acc
        for each in numbers.values():
            x = x + each
        for _ in range(steps):
            x = x * x + 1
        return (x, *[x + i for i in range(more)])

    args = {f"s{i}": draw(st.sampled_from([0, 1.5])) for i in range(count)}
    return {"epilogue": epilogue, "epilogue_args": args}


def array_of(x):
    """Return ones where a description says that they lie; other values stay."""
    if not isinstance(x, SPEC):
        return x
    layout = x.layout
    size = 1 + sum((e - 1) * s for e, s in zip(layout.shape, layout.strides, strict=True))
    flat = np.ones(size, numpy_dtype(layout.dtype))
    steps = [step * flat.itemsize for step in layout.strides]
    return np.lib.stride_tricks.as_strided(flat, layout.shape, steps)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_plan_survives_the_way_through_a_file(data):
    m, n, k = (data.draw(SIZES) for _ in range(3))
    dtype = data.draw(st.sampled_from(DTYPES))
    stack = data.draw(st.sampled_from([(), (), (2,)]))
    orders = data.draw(st.tuples(*[st.sampled_from("CF")] * 2))
    a, b = SPEC((*stack, m, k), dtype, order=orders[0]), SPEC((k, n), dtype, order=orders[1])
    requested = data.draw(st.one_of(named((*stack, m, n), dtype), function((*stack, m, n), dtype)))
    narrow = dtype != "float64" and bool(requested) and data.draw(st.booleans())
    options = {"dtype": data.draw(st.sampled_from(["int8", "float8_e5m2"]))} if narrow else {}
    target = data.draw(st.sampled_from(TARGETS))
    try:
        plan = unigemm.plan(a, b, target=target, **options, **requested)
    except UnsupportedProblem:
        return
    again = unigemm.Plan.from_json(plan.to_json())
    assert again == plan
    if target == "cpu" and max(m, n, k) <= 64:
        given = {name: array_of(x) for name, x in requested.items()}
        with np.errstate(all="ignore"):
            unigemm.matmul(array_of(a), array_of(b), plan=again, **options, **given)


@pytest.mark.parametrize(
    ("what", "requested"),
    [
        ("numbers", lambda: {
            "epilogue": lambda acc, **s: acc + sum(s.values()),
            "epilogue_args": {f"s{i}": 1.0 for i in range(17)},
        }),
        ("arrays", lambda: {"epilogue": lambda acc: (acc,) * 18}),
        ("steps", lambda: {"epilogue": long}),
    ],
)  # fmt: skip
def test_what_no_plan_may_have_is_refused_by_plans_and_calls(what, requested):
    a = np.ones((4, 4), np.float32)
    for call in (unigemm.plan, unigemm.matmul):
        with pytest.raises(UnsupportedProblem, match=rf"at most \d+ {what}.*; compute"):
            call(a, a, **requested())


def long(acc):
    for _ in range(300):
        acc = acc * acc + 1
    return acc
