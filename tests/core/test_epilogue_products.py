"""All combinations of an epilogue's arguments on the host, against formulas in float64.

An ordinary run takes some of them, and UNIGEMM_TEST_ALL=1 all 15,000.
"""

from __future__ import annotations

import random
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from activation_values import REFERENCE
from sampling import ALL, SEED

import unigemm
from unigemm.activations import ACTIVATIONS, GATED, GRADIENTS

M, N, K = 3, 4, 5
RNG = np.random.default_rng(7)
#: Of the operands and their results: the first is the default.
KINDS = {
    np.float64: (np.float64,),
    np.float32: (np.float32, np.float16, np.int8),
    np.float16: (np.float16, np.float32, ml_dtypes.float8_e4m3fn),
    ml_dtypes.bfloat16: (ml_dtypes.bfloat16, np.int8),
    np.int8: (np.int32, np.int8, np.float32),
    ml_dtypes.float8_e4m3fn: (np.float32, ml_dtypes.bfloat16),
}
FACTORS = ("none", "number", "array", "zero", "zero array")
VALUES = {"number": 0.5, "array": 2.0, "zero": 0.0, "zero array": 0.0, "none": 1.0}
#: How what is added lies: absent, a row, a column, all of it in either order, one element.
SHAPES = ("none", "row", "column", "full", "turned", "one")
LAYOUTS = ("C", "F", "step")
ACTIONS = (
    *((name, "") for name in (None, *ACTIVATIONS, *GRADIENTS)),
    *product(GATED, ("interleaved", "halves")),
)


def some(cases, most, name):
    """Return cases with their numbers: an ordinary run draws some of them, by its seed."""
    found = list(enumerate(cases))
    return found if ALL else random.Random(f"{SEED} {name}").sample(found, most)


def factor(how, wide):
    """Return a factor as it is passed: a number of the host, or an array of one element."""
    value = VALUES[how]
    return np.array([value], wide) if "array" in how else value


def lie(values, layout):
    """Return the same numbers in another layout."""
    if layout == "step":
        whole = np.full((values.shape[0], 2 * values.shape[1]), 99).astype(values.dtype)
        whole[:, ::2] = values
        return whole[:, ::2]
    return np.asfortranarray(values) if layout == "F" else values


def added(where, kind):
    """Return what is added, in a shape; None for nothing."""
    shape = {"row": (N,), "column": (M, 1), "one": (1, 1)}.get(where, (M, N))
    values = (RNG.integers(-4, 5, shape) / 2).astype(kind)
    return None if where == "none" else np.asfortranarray(values) if where == "turned" else values


def rounded(values, kind):
    """Return the nearest numbers of a type, in float64."""
    if np.dtype(kind).kind == "i":
        info = np.iinfo(kind)
        return np.clip(np.rint(np.nan_to_num(values)), info.min, info.max)
    if kind is ml_dtypes.float8_e4m3fn:
        values = np.clip(values, -448, 448)
    return values.astype(kind).astype(np.float64)


def wanted_of(x, activation, layout, preact):
    """Return what an activation makes of numbers in float64."""

    def applied(name, of):
        return REFERENCE[name](of.ravel()).reshape(of.shape)

    if activation is None:
        return x
    if activation in GRADIENTS:
        return x * applied(activation, np.broadcast_to(preact, x.shape).astype(np.float64))
    if activation in GATED:
        halves = np.split(x, 2, -1)
        gate, other = (x[:, ::2], x[:, 1::2]) if layout == "interleaved" else halves
        return applied({"swiglu": "silu", "geglu": "gelu"}[activation], gate) * other
    return applied(activation, x)


def checked(kind, out, action, alpha, beta, scale, c_at, bias_at, layout, written):
    """Compute one combination, and hold all its results against the formula."""
    (activation, gate), wide = action, np.float64 if kind is np.float64 else np.float32
    aux = kind if np.dtype(kind).itemsize > 1 else np.float32
    a, b = ((RNG.integers(-2, 3, s) / (1 if kind is np.int8 else 2)).astype(kind)
            for s in ((M, K), (K, N)))  # fmt: skip
    c, bias = added(c_at, aux), added(bias_at, aux)
    requested = {name: x for name, x in (("c", c), ("bias", bias)) if x is not None}
    factors = {"alpha": alpha, "scale_d": scale} | ({} if c is None else {"beta": beta})
    requested |= {name: factor(how, wide) for name, how in factors.items() if how != "none"}
    x = VALUES[alpha] * (a.astype(np.float64) @ b.astype(np.float64))
    x = x + (0 if c is None else VALUES[beta] * c.astype(np.float64))
    x = np.broadcast_to(x + (0 if bias is None else bias.astype(np.float64)), (M, N))
    preact = None
    if activation is not None:
        requested["activation"] = activation
    if gate:
        requested["gate_layout"] = gate
    if activation in GRADIENTS:
        preact = requested["preact"] = added("full", aux)
    elif activation is not None and written:
        requested["preact_out"] = np.full((M, N), np.nan, wide)
    if written:
        requested["amax_out"] = np.full(1, np.nan, np.float32)
        requested |= {} if gate else {"bias_grad_out": np.full(N, np.nan, wide)}
    y = wanted_of(x, activation, gate, preact)
    d = lie(np.zeros(y.shape, out), layout)
    case = (kind, out, action, alpha, beta, scale, c_at, bias_at, layout, written)
    with np.errstate(all="ignore"):
        if not requested:
            requested["alpha"] = 1.0
        assert unigemm.matmul(a, b, out=d, **requested) is d, case
    exact = rounded(y * VALUES[scale], out)
    unit = 1.0 if np.dtype(out).kind == "i" else float(ml_dtypes.finfo(out).eps)
    close = np.abs(d.astype(np.float64) - exact) <= unit * (np.abs(exact) + (unit == 1)) + 1e-5
    assert close.all(), (case, d, exact)
    results = {"preact_out": x, "amax_out": np.abs(y).max(), "bias_grad_out": y.sum(0)}
    for name, right in results.items():
        if name in requested:
            np.testing.assert_allclose(
                requested[name], right, rtol=1e-5, atol=1e-4, err_msg=str(case)
            )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: np.dtype(kind).name)
@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_all_factors_go_with_all_activations_and_types(kind, action):
    """Numbers and arrays of one element, also zeros, for all three factors."""
    for number, (alpha, beta, scale) in some(product(FACTORS, repeat=3), 16, (kind, action)):
        outs = KINDS[kind]
        checked(
            kind, outs[number % len(outs)], action, alpha, beta, scale,
            SHAPES[number % 6] if beta == "none" else SHAPES[1 + number % 5],
            SHAPES[number // 6 % 6], LAYOUTS[number % 3], bool(number // 3 % 2),
        )  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_all_shapes_go_with_all_activations_and_layouts(action):
    """What is added, and the results, wherever they lie."""
    kinds = [*KINDS]
    for number, case in some(product(SHAPES, SHAPES, LAYOUTS, (False, True)), 24, action):
        kind = kinds[number % len(kinds)]
        c_at, bias_at, layout, written = case
        factors = [FACTORS[(number + i * (i + number // 5)) % 5] for i in range(3)]
        checked(kind, KINDS[kind][0], action, *factors, c_at, bias_at, layout, written)
