"""What was looked at before the caller's own code runs, or at an earlier call, is looked at again.

A tensor's storage can be freed or resized at any time, and a function that is traced may change the
arrays of its own call.
"""

from __future__ import annotations

import numpy as np
import pytest

import unigemm
from unigemm.errors import UnsupportedProblem

torch = pytest.importorskip("torch")

import unigemm.torch as operators  # noqa: E402

N = 8
BYTES = N * N * 4


def tensors(*names):
    return {name: torch.ones(N, N) for name in names}


def own(acc, y):
    return acc + y


def two(acc):
    return acc, acc * 2


def matmul(a, b, out=None, more=None, **options):
    """Multiply; `more` is the second result, and names with a prefix are the function's."""
    out = out if more is None else (out, more)
    return unigemm.matmul(a, b, out, **options)


def with_function(a, b, y):
    return unigemm.matmul(a, b, epilogue=own, epilogue_args={"y": y})


CALLS = {
    "plain": (matmul, ("a", "b"), {}),
    "out": (matmul, ("a", "b", "out"), {}),
    "c": (matmul, ("a", "b", "c"), {"beta": 0.5}),
    "bias": (matmul, ("a", "b", "bias", "out"), {"activation": "relu"}),
    "preact": (matmul, ("a", "b", "preact"), {"activation": "drelu"}),
    "preact_out": (matmul, ("a", "b", "preact_out"), {"activation": "relu"}),
    "function": (with_function, ("a", "b", "y"), {}),
    "results": (matmul, ("a", "b", "out", "more"), {"epilogue": two}),
    "torch.matmul": (operators.matmul, ("a", "b"), {}),
    "torch.bmm": (operators.bmm, ("input", "mat2"), {}),
    "torch.addmm": (operators.addmm, ("input", "mat1", "mat2"), {}),
    "torch.matmul into out": (operators.matmul, ("a", "b", "out"), {}),
    "torch.bmm into out": (operators.bmm, ("input", "mat2", "out"), {}),
    "torch.addmm into out": (operators.addmm, ("input", "mat1", "mat2", "out"), {}),
    "torch.linear into out": (operators.linear, ("input", "weight", "bias", "out"), {}),
    "torch.linear": (operators.linear, ("input", "weight", "bias"), {}),
    "torch.linear with an option": (
        operators.linear,
        ("input", "weight", "bias"),
        {"precision": "tf32"},
    ),
    "torch.linear with a gate": (
        operators.linear,
        ("input", "weight", "bias"),
        {"activation": "swiglu", "gate_layout": "halves"},
    ),
    "torch.linear with an activation": (
        operators.linear,
        ("input", "weight", "bias"),
        {"activation": "relu"},
    ),
}


def resized(tensor, size):
    tensor.untyped_storage().resize_(size)


@pytest.mark.parametrize("size", [0, BYTES - 4])
@pytest.mark.parametrize("known", [False, True], ids=["first", "known"])
@pytest.mark.parametrize("kind", CALLS)
def test_a_storage_that_was_freed_or_shrunk_is_refused_at_every_call(kind, known, size):
    call, names, options = CALLS[kind]
    vectors = {"bias": torch.ones(N)}
    for name in names:
        arrays = tensors(*names)
        if kind.startswith("torch.bmm"):
            arrays = {each: x[None] for each, x in arrays.items()}
        arrays |= {each: vectors[each].clone() for each in vectors if each in names}
        if known:
            call(**arrays, **options)
        else:
            torch_library().forget()
        resized(arrays[name], min(size, arrays[name].nbytes - 4) if size else 0)
        with pytest.raises(UnsupportedProblem, match=r"resized|freed"):
            call(**arrays, **options)


def torch_library():
    from unigemm.arrays.libraries import library_of

    return library_of(torch.ones(1), "a")


@pytest.mark.parametrize("name", ["scale_a", "amax_out", "bias_grad_out", "alpha"])
def test_a_small_array_that_was_freed_is_refused_at_every_call(name):
    arrays = tensors("a", "b")
    if name == "scale_a":
        arrays = {each: x.to(torch.float8_e4m3fn) for each, x in arrays.items()}
    arrays[name] = torch.ones(N if name == "bias_grad_out" else 1)
    call = unigemm.matmul
    a, b = arrays.pop("a"), arrays.pop("b")
    call(a, b, **arrays)
    resized(arrays[name], 0)
    with pytest.raises(UnsupportedProblem, match="freed"):
        call(a, b, **arrays)


def test_what_numpy_multiplies_is_looked_at_too():
    a, out = torch.ones(N, N, dtype=torch.int64), torch.ones(N, N, dtype=torch.int64)
    for x in (a, out):
        unigemm.matmul(a, a, out)
        resized(x, 8)
        with pytest.raises(UnsupportedProblem, match="resized"):
            unigemm.matmul(a, a, out)
        resized(x, x.nbytes)


def test_views_of_one_storage_share_what_is_known_of_their_kind():
    store = torch.ones(N * N * 4)
    views = [store[i * N * N : (i + 1) * N * N].view(N, N) for i in range(4)]
    before = len(torch_library().table)
    for view in views:
        np.testing.assert_array_equal(unigemm.matmul(view, view), np.full((N, N), N))
    assert len(torch_library().table) <= before + 1
    resized(store, BYTES * 2)
    unigemm.matmul(views[1], views[1])
    with pytest.raises(UnsupportedProblem, match="resized"):
        unigemm.matmul(views[2], views[2])


def freed(array):
    if isinstance(array, np.ndarray):
        array.resize((0,), refcheck=False)
    else:
        array.set_(torch.zeros(1))


@pytest.mark.parametrize("name", ["a", "b", "out", "more", "y"])
@pytest.mark.parametrize("make", [lambda: np.ones((N, N), np.float32), lambda: torch.ones(N, N)])
def test_a_function_that_changes_the_call_s_arrays_while_it_is_traced_is_refused(make, name):
    arrays = {each: make() for each in ("a", "b", "out", "more", "y")}

    def function(acc, y):
        freed(arrays[name])
        return acc + y, acc

    with pytest.raises(UnsupportedProblem, match=r"another shape|resized|of shape"):
        unigemm.matmul(
            arrays["a"],
            arrays["b"],
            (arrays["out"], arrays["more"]),
            epilogue=function,
            epilogue_args={"y": arrays["y"]},
        )


def test_a_function_that_changes_the_names_of_its_arguments_changes_nothing_of_the_call():
    both = np.ones((N, 2 * N), np.float32)
    arguments, out = {"y": both[:, ::2]}, both[:, 1::2]  # so near that each is looked at closely
    a = np.ones((N, N), np.float32)

    def function(acc, y):
        arguments.clear()
        return acc + y

    unigemm.matmul(a, a, out, epilogue=function, epilogue_args=arguments)
    np.testing.assert_array_equal(out, N + 1)


@pytest.mark.parametrize("options", [{}, {"activation": "relu"}], ids=["plain", "epilogue"])
@pytest.mark.parametrize("when", range(6))
def test_a_dtype_that_changes_an_array_when_it_is_read_is_refused(when, options):
    out = np.ones((N, N), np.float32)

    class Kind:
        reads = 0

        @property
        def dtype(self):
            self.reads += 1
            if self.reads == 1 + when:
                out.resize((4 * N, N), refcheck=False)
            return np.dtype(np.float32)

    kind, a = Kind(), np.ones((N, N), np.float32)
    try:
        unigemm.matmul(a, a, out, dtype=kind, **options)
    except UnsupportedProblem:
        assert kind.reads > when
    else:
        assert kind.reads <= when
