"""A call is taken, or refused with the same sentence, whichever function it is passed to."""

from __future__ import annotations

import numpy as np
import pytest
from call_path import forget_kernels
from drawn_calls import Call, drawn_calls

import unigemm
from unigemm.errors import UnigemmError

PARTS = 8
COUNT = 1584 // PARTS
#: What a prepared function takes anew at each call.
GIVEN = ("c", "bias", "alpha", "beta", "preact", "preact_out", "amax_out", "bias_grad_out",
         "scale_a", "scale_b", "scale_d", "offsets", "rows", "epilogue_args")  # fmt: skip


def outcome(ask, call: Call) -> tuple[str, str]:
    """Return the kind of error and the sentence of a call; empty where it is taken."""
    given = dict(call)
    try:
        ask(given.pop("a"), given.pop("b"), **given)
    except UnigemmError as error:
        return type(error).__name__, str(error)
    return "", ""


def multiply(a, b, **given):
    if "offsets" in given or "rows" in given:
        return unigemm.grouped_matmul(a, b, given.pop("offsets", None), **given)
    return unigemm.matmul(a, b, **given)


def prepare_and_call(a, b, **given):
    product = unigemm.prepare(a, b, **given)
    out = () if given.get("out") is None else (given["out"],)
    return product(a, b, *out, **{name: given[name] for name in GIVEN if name in given})


def of_torch(x):
    """Return what a call holds with tensors in place of the arrays that PyTorch has types for."""
    import torch

    if isinstance(x, tuple):
        return tuple(map(of_torch, x))
    if isinstance(x, dict):
        return {name: of_torch(each) for name, each in x.items()}
    kind = getattr(torch, str(x.dtype), None) if isinstance(x, np.ndarray) else None
    if not isinstance(kind, torch.dtype):
        return x
    if x.flags.c_contiguous:
        return torch.zeros(x.shape, dtype=kind)
    return torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=kind)[..., ::2]


def hold_to_matmul(calls):
    """Demand that a known call, a prepared one and a plan are taken as the first call is."""
    taken = 0
    for i, call in enumerate(calls):
        first = outcome(multiply, call)
        assert outcome(multiply, call) == first, f"call {i}, known: {call}"
        assert outcome(prepare_and_call, call) == first, f"call {i}, prepared: {call}"
        planned = outcome(unigemm.plan, call)
        if "multiplies nothing" not in planned[1]:  # of which there is no plan
            assert planned == first, f"call {i}, planned: {call}"
        taken += not first[0]
    return taken


@pytest.mark.parametrize("part", range(PARTS))
def test_matmul_prepare_and_plan_take_the_same_calls(part):
    taken = hold_to_matmul(drawn_calls(COUNT, seed=part))
    assert COUNT / 8 < taken < COUNT / 2  # most refusals have a reason of their own


def test_they_take_the_same_calls_of_tensors():
    pytest.importorskip("torch")
    assert hold_to_matmul(of_torch(call) for call in drawn_calls(120, seed=57)) > 12


def test_they_take_the_same_calls_of_arrays_on_a_gpu(monkeypatch, tmp_path):
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from fake_gpu import install

    driver, _ = install(monkeypatch, tmp_path / "kernels")

    def on_gpu(x):
        if isinstance(x, tuple):
            return tuple(map(on_gpu, x))
        if isinstance(x, dict):
            return {name: on_gpu(each) for name, each in x.items()}
        if not isinstance(x, np.ndarray) or x.dtype.kind in "OMUVg":  # which CuPy has none of
            return x
        if x.flags.c_contiguous:
            return driver.ones(x.shape, x.dtype)
        return driver.ones((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]

    taken = 0
    for i, call in enumerate(map(on_gpu, drawn_calls(120, seed=58))):
        prepared, planned = outcome(unigemm.prepare, call), outcome(unigemm.plan, call)
        if "does not load here" in prepared[1] or "multiplies nothing" in planned[1]:
            continue  # a backend that the call names has no device here
        assert prepared == planned, f"call {i}: {call}"
        taken += not planned[0]
    assert taken > 12
    forget_kernels()
