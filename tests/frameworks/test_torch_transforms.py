"""Derivatives of derivatives through unigemm.torch are those of torch's own operators."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from needed import needed

torch = needed("torch")

from transforms import OPERATORS, TRANSFORMS, functions  # noqa: E402

import unigemm.torch as ut  # noqa: E402
from unigemm import UnsupportedProblem  # noqa: E402

func = torch.func
forward_ad = torch.autograd.forward_ad
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
_functorch = torch._C._functorch


def cube(x):
    """Return the issue's function: at 1, 27 with derivatives 81 and 162."""
    return (ut.matmul(x, torch.tensor([[3.0]])) ** 3).sum()


def twice(x):
    return func.grad(lambda x: func.grad(cube)(x).sum())(x)


def nested(outer, inner, f):
    return TRANSFORMS[outer](TRANSFORMS[inner](f))


def of_torch(outer, inner, f, x):
    """Return what torch's operators give, or None where PyTorch itself does not nest the two."""
    try:
        result = nested(outer, inner, f)(x)
    except (RuntimeError, NotImplementedError):
        return None
    # PyTorch's older vmap, of `is_grads_batched`, may leave a tensor that is of its inside.
    inside = _functorch.is_functorch_wrapped_tensor(result)
    return None if inside or _functorch.is_legacy_batchedtensor(result) else result


def check(outer, inner, name, taken, seed):
    ours, theirs, x = functions(name, taken, seed)
    expected = of_torch(outer, inner, theirs, x)
    if expected is None:
        return False
    got = nested(outer, inner, ours)(x)
    torch.testing.assert_close(got.detach(), expected.detach(), rtol=1e-9, atol=1e-9)
    assert got.requires_grad or not expected.requires_grad
    return True


@settings(max_examples=50)
@given(
    st.sampled_from(sorted(TRANSFORMS)),
    st.sampled_from(sorted(TRANSFORMS)),
    st.sampled_from(sorted(OPERATORS)),
    st.integers(0, 3),
    st.data(),
)
def test_drawn_pairs_of_transforms_give_what_torchs_operators_give(outer, inner, name, seed, data):
    """For all of the operands, or for some."""
    every = 2 ** len(OPERATORS[name].shapes) - 1
    taken = data.draw(st.just(every) | st.integers(1, every))
    assume(check(outer, inner, name, taken, seed))


@pytest.mark.parametrize("name", ["matmul", "addmm", "linear gelu", "swiglu halves", "options"])
def test_hessians_are_torchs(name):
    assert check("hessian", "vmap", name, 1, 0)
    assert check("jacfwd", "jacrev", name, 3, 0)
    assert check("jacrev", "jacfwd", name, 3, 0)


@pytest.mark.parametrize("name", ["matmul", "addmm"])
@pytest.mark.parametrize(
    ("outer", "inner"),
    [("hessian", "batched"), ("hessian", "jacobian"), ("vjp", "jacobian_forward")],
)
def test_pairs_with_the_older_vmap_are_torchs_for_one_operand(outer, inner, name):
    assert check(outer, inner, name, 1, 0)
    assert check(outer, inner, name, 2, 0)


def test_a_graph_inside_a_forward_level_keeps_no_operand_that_no_gradient_needs():
    weight = torch.ones(3, 2)
    with forward_ad.dual_level():
        x = torch.ones(2, 3, requires_grad=True) * 1
        kept = weakref.ref(x)
        y = ut.matmul(x, weight)
        del x
        assert kept() is None
        assert y.requires_grad


def test_a_gradient_of_a_gradient_has_both():
    x = torch.ones(1, 1)
    assert twice(x).item() == 162
    assert func.hessian(cube)(x).item() == 162
    assert func.jvp(func.grad(cube), (x,), (x,))[1].item() == 162
    assert func.grad(lambda x: func.jvp(cube, (x,), (x,))[1])(x).item() == 162 + 81
    assert func.grad(lambda x: twice(x).sum())(x).item() == 162


def test_autograd_around_an_inner_gradient_has_a_graph():
    x = torch.ones(1, 1, requires_grad=True)
    func.grad(cube)(x).sum().backward()
    assert x.grad.item() == 162


def test_no_grad_around_a_transform_is_kept():
    x = torch.ones(1, 1, requires_grad=True)
    with torch.no_grad():
        y = func.grad(cube)(x)
    assert y.item() == 81
    assert not y.requires_grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_transforms_give_the_same(backend):
    x = torch.ones(1, 1)
    compiled = lambda f: torch.compile(f, backend=backend, fullgraph=True)(x)  # noqa: E731
    torch._dynamo.reset()
    assert compiled(twice).item() == 162
    assert compiled(lambda x: func.hessian(cube)(x)).item() == 162
    assert compiled(lambda x: func.jvp(cube, (x,), (x,))[1]).item() == 81


@pytest.mark.parametrize("name", ["swiglu interleaved", "geglu interleaved", "swiglu halves"])
def test_batched_gradients_of_gates_are_torchs(name):
    ours, theirs, x = functions(name, 7, 0)
    for transform in ("batched", "jacobian", "jacobian_forward"):
        got, expected = (TRANSFORMS[transform](f)(x) for f in (ours, theirs))
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex128])
def test_tangents_have_the_dtype_of_their_result(dtype):
    a, b = torch.randn(2, 3, dtype=torch.float64).to(dtype), torch.ones(3, 2, dtype=dtype)
    for function, theirs in (
        (lambda a, b: ut.matmul(a, b), torch.matmul),
        (lambda a, b: ut.linear(a, b.mT), torch.matmul),
        (lambda a, b: ut.addmm(a[:, :2], a, b), lambda a, b: torch.addmm(a[:, :2], a, b)),
    ):
        got = func.jvp(function, (a, b), (b.mT, b))
        expected = func.jvp(theirs, (a, b), (b.mT, b))
        torch.testing.assert_close(got, expected)


def test_what_has_no_derivative_is_refused_forward_too():
    x = torch.ones(16, 16).to(torch.float8_e4m3fn)
    scale = torch.ones(())
    with pytest.raises(UnsupportedProblem, match="pass scale"):
        func.jvp(lambda s: ut.matmul(x, x.t(), scale_a=s), (scale,), (scale,))
    with pytest.raises(UnsupportedProblem, match="pass scale"):
        func.grad(lambda s: ut.matmul(x, x.t(), scale_a=s).sum())(scale)
