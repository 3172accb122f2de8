"""What a known call of tensors still sees: each change that decides whether or how to multiply."""

from __future__ import annotations

import itertools
from collections import Counter

import call_path
import pytest

import unigemm
from unigemm.arrays import torch_arrays
from unigemm.arrays.libraries import library_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import unigemm.torch as ut  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

M, N, K = 4, 6, 8


@pytest.fixture(params=[True, False], ids=["guards", "no guards"], autouse=True)
def library(request, monkeypatch):
    """The library, by PyTorch's guards and as in versions that have none."""
    found = library_of(torch.ones(1), "a")
    if not request.param:
        monkeypatch.setattr(torch_arrays, "comparison", lambda tensors: None)
    found.forget()
    yield found
    found.forget()


def numbers(*shape, dtype=torch.float32):
    return (torch.arange(torch.Size(shape).numel()) % 5 - 2).reshape(shape).to(dtype)


def steps(x):
    return torch.cat((x, x), -1)[..., : x.shape[-1]]


def moved(x):
    """Return the same numbers at an address that is not aligned."""
    return torch.cat((x.flatten()[:1], x.flatten()))[1:].view(x.shape)


#: What becomes of an operand: all of these are computed, each by what it is.
TAKEN = {
    "as before": torch.clone,
    "another dtype": torch.Tensor.double,
    "other strides": steps,
    "transposed strides": lambda x: x.t().contiguous().t(),
    "another address": moved,
    "a parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "of inference": lambda x: torch.inference_mode()(torch.clone)(x),
}

CALLS = {
    "unigemm.matmul": lambda a, b, bias: unigemm.matmul(a, b),
    "unigemm.matmul, bias": lambda a, b, bias: unigemm.matmul(a, b, bias=bias, alpha=2.0),
    "matmul": lambda a, b, bias: ut.matmul(a, b),
    "matmul, all": lambda a, b, bias: ut.matmul(a, b, c=bias, bias=bias, activation="relu"),
    "matmul, options": lambda a, b, bias: ut.matmul(
        a, b, c=bias, alpha=2.0, beta=1.0, deterministic=True, precision="ieee"
    ),
    "bmm": lambda a, b, bias: ut.bmm(a[None].expand(2, -1, -1), b[None].expand(2, -1, -1)),
    "addmm": lambda a, b, bias: ut.addmm(bias, a, b, beta=2.0),
    "linear": lambda a, b, bias: ut.linear(a, b.t()),
    "linear, all": lambda a, b, bias: ut.linear(a, b.t(), bias, activation="relu"),
    "linear, options": lambda a, b, bias: ut.linear(a, b.t(), bias, deterministic=True),
}
EXPECTED = {
    "unigemm.matmul": lambda p, bias: p,
    "unigemm.matmul, bias": lambda p, bias: 2 * p + bias,
    "matmul": lambda p, bias: p,
    "matmul, all": lambda p, bias: torch.relu(p + 2 * bias),
    "matmul, options": lambda p, bias: 2 * p + bias,
    "bmm": lambda p, bias: torch.stack((p, p)),
    "addmm": lambda p, bias: p + 2 * bias,
    "linear": lambda p, bias: p,
    "linear, all": lambda p, bias: torch.relu(p + bias),
    "linear, options": lambda p, bias: p + bias,
}


def arrays():
    return numbers(M, K), numbers(K, N), numbers(N)


def settled(call):
    """Call until nothing is new, and return the arrays of the last call."""
    for _ in range(3):
        given = arrays()
        call(*given)
    return given


@pytest.mark.parametrize("name", CALLS)
def test_known_calls_see_all_that_decides_a_product(name):
    call, expected = CALLS[name], EXPECTED[name]
    settled(call)
    for first, second in itertools.product(TAKEN, repeat=2):
        a, b, bias = arrays()
        if first == second or "another dtype" not in (first, second):
            a, b = TAKEN[first](a), TAKEN[second](b)
        bias = bias.to(a.dtype)
        for _ in range(2):
            got = call(a, b, bias)
            assert got.dtype is a.dtype
            assert torch.equal(got, expected(a @ b, bias)), (first, second)


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_known_or_prepared_call_refuses_what_holds_no_numbers(name):
    a, b, _ = arrays()
    out = torch.zeros(M, N)
    prepared = unigemm.prepare(a, b, out)
    calls = prepared, unigemm.matmul

    def given():
        return {"a": numbers(M, K), "b": numbers(K, N), "out": torch.zeros(M, N)}

    x = given()[name]
    bad = {
        "negated": x._neg_view(),
        "recorded": x.clone().requires_grad_(),
        "sparse": x.to_sparse(),
        "zeros": torch._efficientzerotensor(x.shape),
        "nested": torch.nested.nested_tensor([x, x]),
        "functional": torch._to_functional_tensor(x.clone()),
        "meta": x.to("meta"),
        "freed": x.clone(),
        "shrunk": x.clone(),
    }
    if torch.backends.mkldnn.is_available():
        bad["mkldnn"] = x.to_mkldnn()
    bad["freed"].untyped_storage().resize_(0)
    bad["shrunk"].untyped_storage().resize_(x.nbytes - 4)
    for kind, wrong in bad.items():
        for call in calls:
            for _ in range(3):
                call(*given().values())
            with pytest.raises(unigemm.UnsupportedProblem):
                call(*(given() | {name: wrong}).values())
            assert torch.equal(call(*given().values()), a @ b), kind


class Sees(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class SeesBelow(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_a_known_or_prepared_call_is_refused_where_something_has_to_see_it():
    a, b, _ = arrays()
    prepared = unigemm.prepare(a, b)
    for call in (prepared, unigemm.matmul):
        for _ in range(3):
            call(a, b)
        for mode in (Sees, SeesBelow):
            with mode(), pytest.raises(unigemm.UnsupportedProblem, match="active"):
                call(a, b)
        for transform in (torch.func.vmap, torch.func.functionalize):
            with pytest.raises(unigemm.UnsupportedProblem, match=r"torch\.func"):
                transform(lambda x, call=call: call(a, b) + x)(a[:, :N])
        with pytest.raises(unigemm.UnsupportedProblem, match="traced"):
            torch.jit.trace(lambda x, y, call=call: call(x, y), (a, b))
        with torch.device("meta"):
            assert torch.equal(call(a, b), a @ b)


#: What the calls above make themselves.
VIEWS = {
    "bmm": (lambda a, b: a[None].expand(2, -1, -1), lambda a, b: b[None].expand(2, -1, -1)),
    "linear": (lambda a, b: b.t(),),
    "linear, all": (lambda a, b: b.t(),),
    "linear, options": (lambda a, b: b.t(),),
}


def operations(call, given):
    """Return the operations of PyTorch in a call, each as often as it is there."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        call(*given)
    return Counter(event.name for event in seen.events())


@pytest.mark.parametrize("name", CALLS)
def test_a_known_call_requests_nothing_of_pytorch_but_its_result(name):
    given = settled(CALLS[name])
    made = operations(lambda a, b, bias: [view(a, b) for view in VIEWS.get(name, ())], given)
    assert operations(CALLS[name], given) - made <= Counter(("aten::empty_strided",))


@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith("unigemm")])
def test_autocast_and_gradients_begin_and_end_between_known_calls(name):
    a, b, bias = settled(CALLS[name])
    plain = CALLS[name](a, b, bias)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert CALLS[name](a, b, bias).dtype is torch.bfloat16
        recorded = CALLS[name](a.clone().requires_grad_(), b, bias)
        assert recorded.requires_grad
        assert torch.equal(recorded, plain)
        with torch.no_grad():
            assert not CALLS[name](a.clone().requires_grad_(), b, bias).requires_grad
        assert torch.equal(CALLS[name](a, b, bias), plain)
        with torch.inference_mode():
            assert torch.equal(CALLS[name](a, b, bias), plain)


@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith("unigemm")])
def test_a_step_with_gradients_runs_no_operator_of_the_dispatcher(name):
    given = [x.requires_grad_() for x in arrays()]

    def step(*given):
        CALLS[name](*given).sum().backward()

    step(*given)
    assert not [key for key in operations(step, given) if key.startswith("unigemm::")]


def complex_numbers(*shape):
    return torch.complex(numbers(*shape), numbers(*shape) + 1)


#: Tensors that PyTorch makes others of before an operator sees them.
RESOLVED = {
    "negated": lambda: numbers(M, K)._neg_view(),
    "conjugated": lambda: complex_numbers(M, K).conj(),
    "zeros": lambda: torch._efficientzerotensor(M, K),
}


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("kind", RESOLVED)
def test_views_that_stand_for_other_numbers_are_resolved(kind, recorded):
    a = RESOLVED[kind]()
    b = (complex_numbers if a.is_complex() else numbers)(K, N)
    expected = a.clone().resolve_conj().resolve_neg() @ b
    b.requires_grad_(recorded)
    for _ in range(3):
        for got in (ut.matmul(a, b), ut.linear(a, b.t()), ut.matmul(a, b, precision="ieee")):
            assert torch.equal(got, expected)
            assert got.requires_grad is recorded


def test_what_has_no_memory_or_is_recorded_gets_the_operator():
    a, b, _ = settled(CALLS["matmul"])
    assert ut.matmul(a.to("meta"), b.to("meta")).is_meta
    traced = torch.jit.trace(ut.matmul, (a, b))
    assert "unigemm::mm" in str(traced.graph)
    assert torch.equal(traced(a + 1, b), (a + 1) @ b)


LAYERS = [{}, {"activation": "gelu"}, {"activation": "swiglu", "gate_layout": "halves"},
          {"precision": "ieee"}]  # fmt: skip


@pytest.mark.parametrize("options", LAYERS, ids=str)
@pytest.mark.parametrize("recorded", [False, True])
def test_a_trace_of_a_layer_is_the_same_with_gradients_and_without(options, recorded):
    layer = ut.Linear(8, 6, bias=recorded, **options).requires_grad_(recorded)
    x = numbers(3, 8)
    of_weight = (lambda x, weight: ut.linear(x, weight, **options)), (x, layer.weight)
    for called, given in ((layer, (x,)), of_weight):
        called(*given)  # known, where nothing is recorded
        traced = torch.jit.trace(called, given)  # which traces it once more, and compares
        assert torch.equal(traced(x + 1, *given[1:]), called(x + 1, *given[1:]))
    if recorded:
        traced = torch.jit.trace(layer, x)
        traced(x).sum().backward()
        found, layer.weight.grad = layer.weight.grad, None
        layer(x).sum().backward()
        torch.testing.assert_close(found, layer.weight.grad)


def test_a_layer_is_not_taken_for_a_product_of_the_same_arrays():
    a, b = numbers(N, N), numbers(N, N) + torch.eye(N)
    for _ in range(3):
        assert torch.equal(ut.linear(a, b), a @ b.t())
        assert torch.equal(ut.matmul(a, b), a @ b)
        assert torch.equal(unigemm.matmul(a, b), a @ b)
        assert torch.equal(unigemm.matmul(a, a), a @ a)
    with pytest.raises(unigemm.ShapeMismatch, match="2 are needed"):
        ut.addmm(a, a[None], b[None])
    for _ in range(3):
        with pytest.raises(unigemm.LibraryMismatch, match="input is a NoneType"):
            ut.addmm(None, a, b)
        ut.matmul(a[None], b[None], c=a)
        with pytest.raises(unigemm.ShapeMismatch, match="2 are needed"):
            ut.addmm(a, a[None], b[None])


def test_what_one_function_takes_another_still_refuses():
    a, b = numbers(N, N, dtype=torch.float16), numbers(N, N, dtype=torch.float16)
    bias, whole = numbers(N), (a.to(torch.int8), b.to(torch.int8))
    for _ in range(3):
        unigemm.matmul(a, b, bias=bias, dtype=torch.float16)
        ut.matmul(a, b, deterministic=True)
        assert torch.equal(unigemm.matmul(*whole, alpha=2), ut.matmul(*whole) * 2)
        for refused in (
            lambda: ut.matmul(a, b, bias=bias.double()),
            lambda: ut.matmul(a, b, precision=["ieee"]),
            lambda: ut.matmul(a, b, beta=1.0),
            lambda: ut.matmul(a, b, beta=2.0),
            lambda: ut.matmul(*whole, alpha=1.0),
            lambda: ut.matmul(*whole, alpha=2.0),
        ):
            with pytest.raises(unigemm.UnsupportedProblem):
                refused()


def test_alike_calls_are_kept_in_a_small_number(library):
    a, b, _ = arrays()
    for step in range(1, 9):
        for _ in range(3):
            wide = torch.cat([a] * step, -1)[:, :K]
            assert torch.equal(unigemm.matmul(wide, b), a @ b)
    assert max(map(len, library.alike.values())) <= 4
    call_path.forget_calls()
    assert not library.alike
