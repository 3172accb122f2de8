"""`unigemm.prepare`: what `matmul` computes, for arrays of one kind; all others are refused."""

from __future__ import annotations

import gc
import pickle
import random
import weakref

import call_path
import numpy as np
import pytest
from threads import in_threads

import unigemm
from unigemm.errors import DeviceMismatch, LibraryMismatch, OverlapError, UnsupportedProblem

RNG = np.random.default_rng(11)
A = RNG.integers(-3, 4, (6, 8)).astype("f4")
B = RNG.integers(-3, 4, (8, 5)).astype("f4")
ROW = np.arange(5, dtype="f4")
C = RNG.integers(-3, 4, (6, 5)).astype("f4")


def scaled_and_shifted(acc, s, t):
    return acc * s + t


def two(acc, s):
    return acc, acc * s


#: What is requested besides a and b. Arrays are NumPy's, and are converted for other libraries.
REQUESTED = {
    "plain": {},
    "dtype": {"dtype": "float32", "precision": "tf32"},
    "bias": {"bias": ROW, "activation": "relu"},
    "numbers": {"alpha": 2.0, "beta": -1.0, "c": C, "bias": 1},
    "zero": {"alpha": 2.0, "beta": 0, "c": C},
    "function": {"epilogue": scaled_and_shifted, "epilogue_args": {"s": 2.0, "t": ROW}},
    "two results": {"epilogue": two, "epilogue_args": {"s": ROW}},
    "written": {"bias": ROW, "preact_out": np.zeros_like(C), "activation": "relu"},
}


def numpy_array(x):
    return x.copy()


def torch_tensor(x):
    return pytest.importorskip("torch").tensor(x)


def jax_array(x):
    return pytest.importorskip("jax.numpy").asarray(x)


def converted(options, make):
    if isinstance(options, dict):
        return {name: converted(x, make) for name, x in options.items()}
    return make(options) if isinstance(options, np.ndarray) else options


def aux(options):
    """Return what a call of the prepared function has to be given again."""
    arrays = {n: x for n, x in options.items() if hasattr(x, "shape") or isinstance(x, dict)}
    return {**arrays}


def plain(x):
    return tuple(map(np.asarray, x)) if isinstance(x, tuple) else np.asarray(x)


@pytest.mark.parametrize("back", [lambda f: f, lambda f: pickle.loads(pickle.dumps(f))],
                         ids=["here", "pickled"])  # fmt: skip
@pytest.mark.parametrize("make", [numpy_array, torch_tensor, jax_array])
@pytest.mark.parametrize("name", REQUESTED)
def test_it_computes_what_matmul_does(name, make, back):
    if name == "written" and make is jax_array:
        pytest.skip("JAX's arrays are never written")
    options = converted(REQUESTED[name], make)
    a, b = make(A), make(B)
    function = back(unigemm.prepare(a, b, **options))
    expected = plain(unigemm.matmul(a, b, **options))
    for _ in range(3):
        a, b = make(A), make(B)
        fresh = converted(aux(REQUESTED[name]), make)
        got = function(a, b, **fresh)
        np.testing.assert_array_equal(plain(got), expected)
        if name == "written":
            np.testing.assert_array_equal(plain(fresh["preact_out"]), A @ B + ROW)
    assert function.plan is None or function.plan.extents.k == 8
    assert function.workspace_bytes == 0


@pytest.mark.parametrize("back", [lambda f: f, lambda f: pickle.loads(pickle.dumps(f))],
                         ids=["here", "pickled"])  # fmt: skip
@pytest.mark.parametrize("make", [numpy_array, torch_tensor, jax_array])
@pytest.mark.parametrize("name", ["offsets", "rows"])
def test_groups_are_divided_anew_by_each_call(name, make, back):
    stack, ends = np.stack([B, -B, 2 * B]), np.array([2, 2, 5], "i4")
    a = np.stack([A] * 3) if name == "rows" else A
    given = {"bias": make(ROW), "activation": "relu", "rest": "zeros"}
    function = back(unigemm.prepare(make(a), make(stack), **{name: make(ends)}, **given))
    for new in (ends, np.array([0, 4, 6], "i4")):
        got = function(make(a), make(stack), **{name: make(new)}, bias=make(ROW))
        rows = {name: new} if name == "rows" else {}
        offsets = () if name == "rows" else (new,)
        expected = unigemm.grouped_matmul(a, stack, *offsets, **rows, bias=ROW, activation="relu")
        np.testing.assert_array_equal(plain(got), expected)
    with pytest.raises(UnsupportedProblem, match=f"prepared with an array as {name}"):
        function(make(a), make(stack), bias=make(ROW))
    with pytest.raises(UnsupportedProblem, match="numbers from 0 to 6"):
        function(make(a), make(stack), **{name: make(ends + 9)}, bias=make(ROW))
    with pytest.raises(UnsupportedProblem, match="pass offsets or rows"):
        unigemm.prepare(make(A), make(B), rest="untouched")


@pytest.mark.parametrize("make", [numpy_array, torch_tensor])
def test_a_result_goes_into_out_and_in_place(make):
    a, b, out = make(A), make(B), make(C)
    function = unigemm.prepare(a, b, out, alpha=2.0)
    np.testing.assert_array_equal(plain(out), C)  # nothing was launched
    assert function(a, b, out) is out
    np.testing.assert_array_equal(plain(out), 2 * (A @ B))
    added = unigemm.prepare(a, b, out, c=out)
    added(a, b, out, c=out)
    np.testing.assert_array_equal(plain(out), 3 * (A @ B))
    added(a, b, out, c=make(C))  # c is another array this time
    np.testing.assert_array_equal(plain(out), A @ B + C)
    both = make(C), make(C)
    options = {"epilogue": two, "epilogue_args": {"s": make(ROW)}}
    unigemm.prepare(a, b, both, **options)(a, b, both, epilogue_args={"s": make(ROW)})
    np.testing.assert_array_equal(plain(both[1]), (A @ B) * ROW)


def test_numbers_may_change_and_stay_where_they_are_left_out():
    function = unigemm.prepare(A, B, alpha=2.0, bias=1.0)
    np.testing.assert_array_equal(function(A, B), 2 * (A @ B) + 1)
    np.testing.assert_array_equal(function(A, B, alpha=-1.0), 1 - A @ B)
    np.testing.assert_array_equal(function(A, B, alpha=-1.0, bias=3), 3 - A @ B)
    np.testing.assert_array_equal(function(A, B), 2 * (A @ B) + 1)


def terms_of(acc, s=1.0, t=0.0):
    return acc * s + t


@pytest.mark.parametrize("make", [numpy_array, torch_tensor, jax_array])
def test_numbers_stay_where_they_are_left_out_and_nothing_is_taken_for_none(make):
    draw = random.Random(69)
    a, b = make(A), make(B)

    def term(array):
        return draw.choice([0, 1, 2.0, -3, make(array)])

    for _ in range(40):
        function = draw.random() < 0.5
        names = draw.sample(["s", "t"] if function else ["alpha", "beta", "bias", "scale_d"], 2)
        given = {name: term({"bias": ROW, "t": ROW}.get(name, ROW[2:3])) for name in names}
        given |= {"c": make(C)} if "beta" in given else {}
        arrays = {name: x for name, x in given.items() if hasattr(x, "shape")}
        numbers = {name: x for name, x in given.items() if name not in arrays}
        changed = {name: x and 2 * x for name, x in numbers.items() if draw.random() < 0.5}

        def passed(terms, function=function):
            return {"epilogue_args": terms} if function else terms

        more = {"epilogue": terms_of} if function else {}
        prepared = unigemm.prepare(a, b, **more, **passed(given))
        if draw.random() < 0.5:
            prepared = pickle.loads(pickle.dumps(prepared))
        for own in (arrays, arrays | changed, given):
            kept = passed(own) if own else {}
            expected = unigemm.matmul(a, b, **more, **passed(given | own))
            np.testing.assert_array_equal(plain(prepared(a, b, **kept)), plain(expected))
        for name in given:
            wrong = passed(arrays | {name: None})
            with pytest.raises(UnsupportedProblem, match=name):
                prepared(a, b, **wrong)
        if function:
            with pytest.raises(UnsupportedProblem, match="epilogue_args"):
                prepared(a, b, epilogue_args=None)


def test_dimensions_may_be_named_and_types_mixed():
    moved = unigemm.prepare(A.T, B, axes=[(1, 0), (0, 1), (1, 0)])
    np.testing.assert_array_equal(moved(A.T, B), (A @ B).T)
    again = pickle.loads(pickle.dumps(moved))
    np.testing.assert_array_equal(again(A.T, B), (A @ B).T)
    integers = A.astype("i8")
    np.testing.assert_array_equal(unigemm.prepare(integers, B)(integers, B), A @ B)
    vector = np.arange(8)
    assert unigemm.prepare(vector, vector)(vector, vector) == vector @ vector
    nothing = unigemm.prepare(A[:, :0], B[:0], bias=ROW)
    np.testing.assert_array_equal(nothing(A[:, :0], B[:0], bias=ROW), np.tile(ROW, (6, 1)))


WIDE = np.zeros((6, 16), "f4")
OTHERS = {
    "shape": (lambda f: f(A[:4], B, bias=ROW), r"a is .*\(4, 8\).*prepared for .*\(6, 8\)"),
    "dtype": (lambda f: f(A.astype("f8"), B.astype("f8"), bias=ROW), "a is .*float64"),
    "strides": (lambda f: f(np.asfortranarray(A), B, bias=ROW), "a is .*strides"),
    "address": (lambda f: f(WIDE[:, 1:9], B, bias=ROW), "a is .*a multiple of 4,"),
    "no bias": (lambda f: f(A, B), "pass bias="),
    "bias": (lambda f: f(A, B, bias=ROW[:1]), "bias is"),
    "number": (lambda f: f(A, B, bias=ROW, alpha=0), "alpha is 0"),
    "complex": (lambda f: f(A, B, bias=ROW, alpha=2j), "alpha is a complex"),
    "c": (lambda f: f(A, B, bias=ROW, c=C), "prepared without 'c'"),
    "word": (lambda f: f(A, B, bias=ROW, activation="relu"), "prepared without 'activation'"),
    "out": (lambda f: f(A, B, np.empty_like(C), bias=ROW), "prepared without out="),
}


@pytest.mark.parametrize("back", [lambda f: f, lambda f: pickle.loads(pickle.dumps(f))],
                         ids=["here", "pickled"])  # fmt: skip
@pytest.mark.parametrize("name", OTHERS)
def test_what_it_was_not_prepared_for_is_refused(name, back):
    ask, said = OTHERS[name]
    with pytest.raises(UnsupportedProblem, match=said):
        ask(back(unigemm.prepare(A, B, bias=ROW, alpha=2.0)))


def test_an_array_is_never_taken_for_another_of_its_kind():
    full = unigemm.prepare(A, B, bias=C)
    with pytest.raises(UnsupportedProblem, match="prepared without out="):
        full(A, B, C)
    with pytest.raises(UnsupportedProblem, match="pass bias="):
        full(A, B, c=C)
    two = unigemm.prepare(A, B, bias=C, c=C, beta=2.0)
    np.testing.assert_array_equal(two(A, B, c=C, bias=3 * C), A @ B + 5 * C)
    with pytest.raises(UnsupportedProblem, match="with out="):
        unigemm.prepare(A, B, C.copy(), bias=C)(A, B, bias=C)


def test_what_matmul_refuses_is_refused():
    torch = pytest.importorskip("torch")
    out = np.empty_like(C)
    function = unigemm.prepare(A, B, out)
    for wrong, error in (
        (lambda: function(torch.tensor(A), B, out), LibraryMismatch),
        (lambda: function(torch.tensor(A), torch.tensor(B), torch.tensor(C)), UnsupportedProblem),
        (lambda: function(A, B, out, stream=3), UnsupportedProblem),
        (lambda: unigemm.prepare(A, B[:3]), UnsupportedProblem),
        (lambda: unigemm.prepare(A, B, backend="cute_simt"), DeviceMismatch),
        (lambda: unigemm.prepare(A, B, bias=out, preact_out=out, activation="relu"), OverlapError),
    ):
        with pytest.raises(error):
            wrong()
    out.flags.writeable = False
    with pytest.raises(UnsupportedProblem, match="read-only"):
        function(A, B, out)
    a, b = torch.tensor(A), torch.tensor(B)
    function = unigemm.prepare(a, b)
    with pytest.raises(UnsupportedProblem, match=r"requires_grad|gradient"):
        function(a.clone().requires_grad_(), b)


def test_it_keeps_no_array_and_serves_threads():
    a, b, row = A.copy(), B.copy(), ROW.copy()
    function = unigemm.prepare(a, b, bias=row)
    dead = [weakref.ref(x) for x in (a, b, row)]
    del a, b, row
    call_path.forget_calls()
    gc.collect()
    assert [each() for each in dead] == [None] * 3

    def use(seed):
        a = np.random.default_rng(seed).integers(-3, 4, A.shape).astype("f4")
        for _ in range(50):
            np.testing.assert_array_equal(function(a, B, bias=ROW), a @ B + ROW)

    in_threads(use, [(seed,) for seed in range(4)])


def test_on_a_gpu_the_kernel_is_loaded_before_the_first_call(monkeypatch, tmp_path):
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from fake_gpu import host, install

    driver, fake = install(monkeypatch, tmp_path)
    try:
        a, b = driver.ones((3, 4)), driver.ones((4, 5))
        function = unigemm.prepare(a, b)
        assert (len(fake.compiled), len(fake.loaded)) == (1, 1)
        assert not driver.launches
        call_path.forget_calls()
        for _ in range(2):
            np.testing.assert_array_equal(host(function(a, b)), 4)
        assert len(fake.bound) == 1
        again = pickle.loads(pickle.dumps(function.plan))
        assert again == function.plan
    finally:
        call_path.forget_kernels()
