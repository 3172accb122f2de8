"""`Request`, the one list of what a call requests: who must agree with it, and how arrays go in."""

from __future__ import annotations

import importlib
import inspect
import typing

import call_path
import numpy as np
import pytest
from fake_dlpack import OnlyDLPack
from signatures import FUNCTIONS, made, path_of

import unigemm
from unigemm import activations
from unigemm.activations import ACTIVATIONS, GATED, GRADIENTS
from unigemm.arrays import types
from unigemm.arrays.library import KNOWN
from unigemm.problem.problem import PRECISIONS, Precision

jnp = pytest.importorskip("jax.numpy")

A = (np.arange(24, dtype="f4").reshape(4, 6) % 5) - 2
B = (np.arange(48, dtype="f4").reshape(6, 8) % 7) - 3
C = np.arange(32, dtype="f4").reshape(4, 8) % 3
ROW = np.arange(8, dtype="f4") - 4
OPERANDS = {"a", "b", "out"}
#: What `unigemm.grouped_matmul` has more; `test_grouped` holds that to the fields.
GROUPED = {"operation", "offsets", "rows", "rest"}


def test_the_arguments_of_matmul_are_the_fields_of_a_request():
    parameters = inspect.signature(unigemm.matmul).parameters
    assert {*parameters} == {*call_path.FIELDS} - GROUPED
    for name in sorted({*parameters} & {*call_path.DEFAULTS}):
        default = call_path.DEFAULTS[name]
        assert parameters[name].default == default, name
    assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values())


@pytest.mark.parametrize("module", ["api", "grouped"])
def test_each_argument_alone_goes_into_its_field(monkeypatch, module):
    requests = []
    module = importlib.import_module(f"unigemm.{module}")
    monkeypatch.setattr(
        module, "compute", lambda *parts: requests.append(call_path.request_of_parts(*parts))
    )
    function = module.matmul if hasattr(module, "matmul") else module.grouped_matmul
    function(A, B)
    (nothing,) = requests
    named = inspect.signature(function).parameters.values()
    for name in [x.name for x in named if x.kind is not x.POSITIONAL_ONLY]:
        given = object()
        function(A, B, **{name: given})
        assert requests[-1] == nothing._replace(**{name: given}), name
        assert call_path.request_of_parts(*requests[-1].parts) == requests[-1]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda x: x[1])
def test_what_functions_repeat_of_options_follows_from_requests_and_types(function):
    module, *rest = function
    source = path_of(module).read_text()
    assert made(source, *rest) == source, "python tests/core/signatures.py writes it anew"


def test_the_types_of_its_options_are_of_the_same_fields():
    assert {*types.MatmulOptions.__annotations__} == {*call_path.FIELDS} - OPERANDS - GROUPED
    own = {*types.MatmulOptions.__annotations__} - {*types.EpilogueOptions.__annotations__}
    planned = {*inspect.signature(unigemm.plan).parameters} | {
        "plan",
        "stream",
        "axes",
        "casting",
    }
    assert own <= planned
    given = {*inspect.signature(unigemm.autotune).parameters}
    assert own - given == {"plan", "stream", "axes", "casting", "batch_invariant"}


def test_what_has_a_fixed_set_of_values_is_typed_by_them():
    assert {*typing.get_args(activations.Activation)} == {*ACTIVATIONS, *GATED, *GRADIENTS}
    assert {*typing.get_args(Precision)} == {*PRECISIONS}
    with pytest.raises(unigemm.UnsupportedProblem) as refused:
        unigemm.matmul(A, B, casting="odd")
    assert str(refused.value).endswith(f"use one of {', '.join(typing.get_args(types.Casting))}")


@pytest.mark.parametrize("ask", [unigemm.matmul, unigemm.plan, unigemm.autotune])
def test_no_function_takes_what_is_no_field(ask):
    with pytest.raises(TypeError, match="unexpected keyword argument 'biass'"):
        ask(A, B, biass=ROW)


EVERYTHING = [
    call_path.request(A, B),
    call_path.request(A, B, C, bias=ROW, activation="relu"),
    call_path.request(A, B, C, c=C, beta=0.5, preact_out=C, activation="relu", amax_out=ROW[:1]),
    call_path.request(
        A,
        B,
        (C, C),
        epilogue=lambda acc, s, t: (acc * t, acc + s),
        epilogue_args={"s": ROW, "t": 2.0},
    ),
    call_path.request(A, B, scale_a=(A, ROW[:1]), scale_b=(B, 2.0), alpha=ROW[:1]),
]


@pytest.mark.parametrize("request_", EVERYTHING)
def test_arrays_are_in_the_order_in_which_a_key_has_them(request_):
    unigemm.matmul(A, B)  # NumPy is known now
    names, arrays, addresses = call_path.known_by(KNOWN[np.ndarray], request_)
    named = request_.arrays()
    assert [id(x) for x in arrays] == [id(x) for x in named.values()]
    assert addresses == [x.ctypes.data for x in arrays]
    assert names[: len(named)] == (*named,)


@pytest.mark.parametrize("request_", EVERYTHING)
def test_other_arrays_take_their_places_by_name(request_):
    copies = {name: x.copy() for name, x in request_.arrays().items()}
    again = request_.having(copies)
    assert again.arrays() == copies or all(again.arrays()[n] is x for n, x in copies.items())
    assert again.arguments().keys() == request_.arguments().keys()
    assert again.scales().keys() == request_.scales().keys()


EPILOGUES = {
    "bias": {"bias": ROW},
    "bias relu": {"bias": ROW, "activation": "relu"},
    "alpha beta c": {"alpha": 0.5, "beta": 2.0, "c": C},
    "gate": {"activation": "swiglu", "gate_layout": "halves"},
    "alpha": {"alpha": np.full(1, 0.5, "f4")},
    "drelu": {"activation": "drelu", "preact": C - 1},
    "function": {"epilogue": lambda acc, s: acc * s, "epilogue_args": {"s": ROW}},
    "two results": {"epilogue": lambda acc, s: (acc + s, acc * 2), "epilogue_args": {"s": ROW}},
}


def as_jax(x):
    if isinstance(x, dict):
        return {name: as_jax(each) for name, each in x.items()}
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def results(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", EPILOGUES)
def test_arrays_through_dlpack_have_epilogues(name):
    given = EPILOGUES[name]
    for _ in range(2):  # the second call is known
        expected = unigemm.matmul(A, B, **given)
        found = unigemm.matmul(as_jax(A), as_jax(B), **as_jax(given))
        for x, y in zip(results(found), results(expected), strict=True):
            np.testing.assert_array_equal(np.asarray(x), y)
            assert type(x) is type(as_jax(A))


def test_arrays_through_dlpack_are_written():
    out, preact = OnlyDLPack(np.zeros_like(C)), OnlyDLPack(np.zeros_like(C))
    a, b, row = OnlyDLPack(A), OnlyDLPack(B), OnlyDLPack(ROW)
    found = unigemm.matmul(a, b, out, bias=row, activation="relu", preact_out=preact)
    assert found is out
    np.testing.assert_array_equal(preact.array, A @ B + ROW)
    np.testing.assert_array_equal(out.array, np.maximum(A @ B + ROW, 0))
    with pytest.raises(unigemm.OverlapError, match="out shares memory with c"):
        unigemm.matmul(a, b, OnlyDLPack(out.array[:, ::-1]), c=out)


def test_an_array_of_another_library_is_refused_with_those_of_dlpack():
    with pytest.raises(unigemm.LibraryMismatch, match="bias is a ndarray, of another library"):
        unigemm.matmul(as_jax(A), as_jax(B), bias=ROW)


@pytest.mark.parametrize("name", EPILOGUES)
def test_axes_move_what_lies_as_the_result_does_and_nothing_else(name):
    given = EPILOGUES[name]
    expected = unigemm.matmul(A, B, **given)
    turned = {x: y.T if x in ("c", "preact") else y for x, y in given.items()}
    found = unigemm.matmul(A.T, B, axes=[(1, 0), (0, 1), (1, 0)], **turned)
    for x, y in zip(results(found), results(expected), strict=True):
        np.testing.assert_array_equal(x, y.T)


def test_axes_write_results_where_they_lie():
    out, preact = np.zeros((8, 4), "f4"), np.zeros((8, 4), "f4")
    axes = [(0, 1), (0, 1), (1, 0)]
    given = {"bias": ROW, "activation": "relu", "preact_out": preact}
    assert unigemm.matmul(A, B, out, axes=axes, **given) is out
    np.testing.assert_array_equal(preact, (A @ B + ROW).T)
    np.testing.assert_array_equal(out, np.maximum(A @ B + ROW, 0).T)
    with pytest.raises(unigemm.UnsupportedProblem, match="c has 1 dimensions and the result 2"):
        unigemm.matmul(A, B, axes=axes, c=ROW)
