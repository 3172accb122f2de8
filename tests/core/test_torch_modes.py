"""Modes, transforms and kinds of tensors in which a tensor's memory is not the whole of it."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import unigemm
from unigemm.arrays import torch_arrays

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

KEPT = torch.ones(2, 2)  # not made inside of anything


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def inside(mode):
    def run(f, x):
        with mode():
            f(x)

    return run


def fake(f, x):
    with FakeTensorMode():
        f(torch.ones(2, 2))


def exported(f, x):
    class Module(torch.nn.Module):
        def forward(self, x):
            return f(x)

    torch.export.export(Module(), (x,), strict=False)


# How a function of a tensor is called, and words of the refusal.
WAYS = {
    "jit.trace": (lambda f, x: torch.jit.trace(f, x), "torch.jit.trace"),
    "vmap": (lambda f, x: torch.func.vmap(f)(x[None]), "torch.func"),
    "grad": (lambda f, x: torch.func.grad(lambda x: f(x).sum())(x), "torch.func"),
    "jvp": (lambda f, x: torch.func.jvp(f, (x,), (x,)), "torch.func"),
    "vjp": (lambda f, x: torch.func.vjp(f, x), "torch.func"),
    "jacfwd": (lambda f, x: torch.func.jacfwd(f)(x), "torch.func"),
    "hessian": (lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x), "torch.func"),
    "functionalize": (lambda f, x: torch.func.functionalize(f)(x), "torch.func"),
    "make_fx": (lambda f, x: make_fx(f)(x), "active"),
    "make_fx before dispatch": (lambda f, x: make_fx(f, pre_dispatch=True)(x), "active"),
    "make_fx of fakes": (lambda f, x: make_fx(f, tracing_mode="fake")(x), "real tensors"),
    "make_fx of symbols": (lambda f, x: make_fx(f, tracing_mode="symbolic")(x), "real tensors"),
    "export": (exported, "real tensors"),
    "symbolic_trace": (lambda f, x: torch.fx.symbolic_trace(f), "torch.fx.wrap"),
    "fakes": (fake, "real tensors"),
    "FakeTensorMode": (inside(FakeTensorMode), "FakeTensorMode is active"),
    "a dispatch mode": (inside(Dispatched), "Dispatched is active"),
    "a function mode": (inside(Functions), "Functions is active"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
def test_a_product_that_something_else_would_have_to_see_is_refused(way, known):
    run, words = WAYS[way]
    called = []

    def f(x):
        called.append(x)
        return unigemm.matmul(x, x)

    if known:
        unigemm.matmul(KEPT, KEPT)
    with pytest.raises(unigemm.UnsupportedProblem) as caught:
        run(f, torch.ones(2, 2))
    assert words in str(caught.value)
    assert len(called) == 1


@pytest.mark.parametrize("way", ["vmap", "grad", "jvp", "functionalize", "make_fx"])
def test_tensors_from_outside_are_refused_there_too(way):
    out = torch.zeros(2, 2)

    def f(x):
        unigemm.matmul(KEPT, KEPT, out)
        return x * 1

    unigemm.matmul(KEPT, KEPT)
    unigemm.matmul(KEPT, KEPT, out.clone())
    with pytest.raises(unigemm.UnsupportedProblem, match="outside of it"):
        WAYS[way][0](f, torch.ones(2, 2))
    assert out.sum() == 0


@pytest.mark.parametrize("way", WAYS)
def test_after_a_refusal_products_are_as_before(way):
    with contextlib.suppress(unigemm.UnsupportedProblem):
        WAYS[way][0](lambda x: unigemm.matmul(x, x), torch.ones(2, 2))
    assert torch.equal(unigemm.matmul(KEPT, KEPT), torch.full((2, 2), 2.0))


def test_a_tangent_is_not_lost_of_any_argument():
    unigemm.matmul(KEPT, KEPT, torch.zeros(2, 2))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2, 2), torch.ones(2, 2))
        plain, out = torch.ones(2, 2), torch.zeros(2, 2)
        for arrays in ((dual, plain), (plain, dual), (plain, plain, dual)):
            with pytest.raises(unigemm.UnsupportedProblem, match="primal"):
                unigemm.matmul(*arrays)
        assert torch.equal(unigemm.matmul(plain, plain, out), torch.full((2, 2), 2.0))
        primal = forward_ad.unpack_dual(dual).primal
        assert torch.equal(unigemm.matmul(primal, plain), out)


def test_where_new_tensors_are_made_is_no_mode_that_sees_products():
    with torch.device("meta"):
        got = unigemm.matmul(KEPT, KEPT)
    assert got.device.type == "cpu"
    assert got.sum() == 8
    with torch.device("cpu"), Functions(), pytest.raises(unigemm.UnsupportedProblem):
        unigemm.matmul(KEPT, KEPT)


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        torch.enable_grad,
        lambda: torch.autograd.graph.save_on_cpu(),
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autograd.set_multithreading_enabled(False),
        lambda: torch.autograd.profiler.profile(),
    ],
    ids=["no_grad", "inference", "enable_grad", "save_on_cpu", "autocast", "threads", "profile"],
)
def test_modes_that_change_nothing_of_a_product_are_taken(mode):
    out = torch.zeros(2, 2)
    with mode():
        got = unigemm.matmul(KEPT, KEPT)
        unigemm.matmul(KEPT, KEPT, out)
    assert torch.equal(got, out)
    assert got.dtype is torch.float32
    assert out.sum() == 8


def test_results_are_filled_and_then_computed_in_deterministic_mode():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(unigemm.matmul(KEPT, KEPT), torch.full((2, 2), 2.0))
    finally:
        torch.use_deterministic_algorithms(before)


def leaked(transform):
    kept = []

    def f(x):
        kept.append(x)
        return x.sum()

    transform(f)(torch.ones(2, 2))
    return kept[0]


def resized(shape, size):
    x = torch.ones(shape)
    x.untyped_storage().resize_(size)
    return x


def fake_tensor():
    with FakeTensorMode():
        return torch.ones(2, 2)


class WithDispatch(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError


def nested(layout):
    return torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=layout)


KINDS = {
    "nested": (lambda: nested(torch.strided), "unbind()"),
    "jagged": (lambda: nested(torch.jagged), "unbind()"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "to_dense()"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), "to_dense()"),
    "csc": (lambda: torch.eye(2).to_sparse_csc(), "to_dense()"),
    "bsr": (lambda: torch.eye(2).to_sparse_bsr((1, 1)), "to_dense()"),
    "bsc": (lambda: torch.eye(2).to_sparse_bsc((1, 1)), "to_dense()"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2, 2), 1.0, 0, torch.qint8),
        "dequantize()",
    ),
    "zero tensor": (lambda: torch._efficientzerotensor(2, 2), "clone()"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(2, 2)), "functionalized"),
    "leaked from grad": (lambda: leaked(torch.func.grad), "wrapper"),
    "leaked from vmap": (lambda: leaked(torch.func.vmap), "wrapper"),
    "freed": (lambda: resized((2, 2), 0), "storage was freed"),
    "meta": (lambda: torch.ones(2, 2, device="meta"), "cpu or cuda"),
    "fake": (fake_tensor, "real tensors"),
    "dispatch": (lambda: torch.ones(2, 2).as_subclass(WithDispatch), "stands for"),
    "lazy": (torch.nn.UninitializedParameter, "lazy module"),
    "gradient": (lambda: torch.nn.Parameter(torch.ones(2, 2)), "detach()"),
}
if hasattr(torch.Tensor, "has_names"):
    KINDS["named"] = (lambda: torch.ones(2, 2, names=("x", "y")), "rename(None)")


@pytest.mark.parametrize("name", ["a", "b", "out"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_that_is_more_than_its_memory_is_refused_as_any_argument(kind, name):
    make, words = KINDS[kind]
    arrays = {"a": torch.ones(2, 2), "b": torch.ones(2, 2), "out": torch.zeros(2, 2)}
    unigemm.matmul(*arrays.values())
    arrays[name] = make()
    with pytest.raises(unigemm.UnsupportedProblem) as caught:
        unigemm.matmul(*arrays.values())
    assert words in str(caught.value)
    assert f"{name} " in str(caught.value)


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_new_call_with_less_memory_than_a_shape_needs_is_refused(name):
    shape = (37, 37)  # of no other test: PyTorch's own operations do not look, nor known calls
    arrays = {name: torch.ones(shape) for name in ("a", "b", "out")}
    arrays[name] = resized(shape, 37 * 37 * 4 - 1)
    with pytest.raises(unigemm.UnsupportedProblem, match=f"{name} reaches behind its storage"):
        unigemm.matmul(*arrays.values())


@pytest.mark.parametrize("name", ["a", "b", "out", "c", "bias", "preact_out", "amax_out"])
def test_a_known_call_with_an_epilogue_refuses_what_was_freed(name):
    arrays = {name: torch.ones(3, 3) for name in ("a", "b", "out", "c", "preact_out")}
    arrays |= {"bias": torch.ones(3), "amax_out": torch.ones(1)}

    def multiply():
        rest = {name: x for name, x in arrays.items() if name not in ("a", "b")}
        unigemm.matmul(arrays["a"], arrays["b"], activation="relu", **rest)

    multiply()
    arrays[name].untyped_storage().resize_(0)
    with pytest.raises(unigemm.UnsupportedProblem, match=f"{name} has no memory"):
        multiply()


def test_scales_are_looked_at_as_operands_are():
    a = torch.ones(16, 16).to(torch.float8_e4m3fn)
    unigemm.matmul(a, a, scale_a=torch.ones(()))
    with pytest.raises(unigemm.UnsupportedProblem, match="scale_a requires grad"):
        unigemm.matmul(a, a, scale_a=torch.ones((), requires_grad=True))
    with forward_ad.dual_level(), pytest.raises(unigemm.UnsupportedProblem, match="primal"):
        unigemm.matmul(a, a, scale_b=forward_ad.make_dual(torch.ones(()), torch.ones(())))


def test_memory_of_other_makers_is_memory():
    shared = torch.ones(2, 2).share_memory_()
    lent = torch.from_numpy(np.ones((2, 2), "f4"))
    lazy = torch._lazy_clone(torch.ones(2, 2)) if hasattr(torch, "_lazy_clone") else lent
    weight = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
    for x in (shared, lent, lazy, weight, weight.data):
        assert torch.equal(unigemm.matmul(x, x), torch.full((2, 2), 2.0))


def test_plans_are_made_of_plain_tensors_only():
    with FakeTensorMode(), pytest.raises(unigemm.UnsupportedProblem, match="active"):
        unigemm.plan(KEPT, KEPT)
    with pytest.raises(unigemm.UnsupportedProblem, match="real tensors"):
        unigemm.plan(fake_tensor(), KEPT)


def test_a_version_that_cannot_be_read_is_refused_and_named(monkeypatch):
    from unigemm.arrays.torch_tensors import watchers

    watchers.cache_clear()
    monkeypatch.delattr(torch._C, "_len_torch_dispatch_stack")
    with pytest.raises(unigemm.LibraryMismatch, match=r"2\.\d.*_len_torch_dispatch_stack"):
        watchers()
    monkeypatch.undo()
    watchers()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_functions_leave_the_product_out_of_their_graphs(fullgraph):
    torch._dynamo.reset()

    def f(x):
        return unigemm.matmul(x + 1, x) * 3

    compiled = torch.compile(f, backend="eager", fullgraph=fullgraph)
    if not fullgraph:
        assert torch.equal(compiled(KEPT), torch.full((2, 2), 12.0))
        return
    with pytest.raises(torch._dynamo.exc.Unsupported, match="works on the addresses"):
        compiled(KEPT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numpys_floating_point_state_is_for_numpys_users(dtype):
    top = torch.finfo(dtype).max
    big, small = torch.full((2, 2), top, dtype=dtype), torch.full((2, 2), 2.0, dtype=dtype)
    with np.errstate(all="raise"):
        for _ in range(2):
            got = unigemm.matmul(big, small)
            assert np.geterr()["over"] == "raise"
        nan = unigemm.matmul(got - got, small)
        tiny = unigemm.matmul(torch.full((1, 1), 1e-30), torch.full((1, 1), 1e-30))
    assert torch.isinf(got).all()
    assert torch.isnan(nan).all()
    assert tiny == 0


def test_the_first_call_of_a_process_may_be_in_inference_mode():
    with torch.inference_mode():
        count = torch_arrays._version_counter()  # made by the first call
    x = torch.ones(1)
    before = x._version
    count(x)
    assert x._version == before + 1


def test_what_was_made_in_inference_mode_may_be_written_outside_of_it():
    with torch.inference_mode():
        out, bias_grad, largest = torch.zeros(3, 3), torch.ones(3), torch.full((1,), 7.0)
    a = torch.full((3, 3), 2.0)
    unigemm.matmul(a, a, out=out, bias_grad_out=bias_grad, amax_out=largest)
    assert (out == 12).all()
    assert (bias_grad == 36).all()
    assert largest == 12
