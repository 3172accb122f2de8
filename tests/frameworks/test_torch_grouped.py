"""`unigemm.torch.grouped_mm`: beside PyTorch's own, compiled, in a layer of experts."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from needed import needed

torch = needed("torch")
sys.path.insert(0, str(Path(__file__).parents[1]))

from grouped_cases import SIZES, Sizes, operands, reference  # noqa: E402

import unigemm  # noqa: E402
import unigemm.torch as ut  # noqa: E402

F = torch.nn.functional
FORMS = ("m", "n", "k")
UNEVEN = Sizes((3, 0, 5, 1), rest=2)


def tensors(form, s, dtype=torch.float64):
    a, b = operands(form, s, np.float64)
    offs = torch.tensor(s.offsets, dtype=torch.int32)
    return torch.from_numpy(a).to(dtype), torch.from_numpy(b).to(dtype), offs


def stacked(count=3):
    s = Sizes((4,) * count)
    a, b = operands("rows", s, np.float32)
    return torch.from_numpy(a), torch.from_numpy(b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", range(len(SIZES)))
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_groups_and_zeros_behind_them(form, size, dtype):
    s = SIZES[size]
    a, b, offs = tensors(form, s, dtype)
    expected = reference(form, a.double().numpy(), b.double().numpy(), s.offsets)
    for of in (offs, offs.long()):
        found = ut.grouped_mm(a, b, offs=of)
        assert found.dtype is dtype
        np.testing.assert_array_equal(found.double().numpy(), expected)
    wide = ut.grouped_mm(a, b, offs=offs, out_dtype=torch.promote_types(dtype, torch.float32))
    np.testing.assert_array_equal(wide.double().numpy(), expected)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="of newer versions of PyTorch")
@pytest.mark.parametrize("form", [*FORMS, "stacks"])
def test_results_and_gradients_are_those_of_pytorchs_function(form):
    s = Sizes((16, 0, 24, 8), other=16, inner=32)  # what PyTorch's takes
    if form == "stacks":
        (a, b), offs = (x.bfloat16() for x in stacked()), None
        a, b = torch.randn(3, 16, 32).bfloat16(), torch.randn(3, 32, 8).bfloat16()
    else:
        a, b, offs = tensors(form, s, torch.bfloat16)
    found = []
    for function in (F.grouped_mm, ut.grouped_mm):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        result = function(x, y, offs=offs)
        result.backward(torch.ones_like(result) / 4)
        found.append((result, x.grad, y.grad))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_behind_the_groups_is_in_no_gradient():
    a, b, offs = tensors("m", UNEVEN)
    bias, all_bias = torch.zeros(4, 5, dtype=a.dtype), torch.zeros(5, dtype=a.dtype)
    x, w, v, u = (t.clone().requires_grad_() for t in (a, b, bias, all_bias))
    g = torch.full((11, 5), torch.nan, dtype=a.dtype)
    g[:9] = 1
    ut.grouped_mm(x, w, offs=offs, bias=v).backward(g)
    assert torch.equal(x.grad[9:], torch.zeros(2, 7, dtype=a.dtype))
    for grad in (x.grad, w.grad, v.grad):
        assert grad.isfinite().all()
    assert v.grad[:, 0].tolist() == [3, 0, 5, 1]
    assert not w.grad[1].any()
    ut.grouped_mm(x, w, offs=offs, bias=u).backward(g)
    assert u.grad.tolist() == [9] * 5


def test_new_offsets_compile_nothing_and_new_sizes_once_more():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda a, b, offs, bias: ut.grouped_mm(a, b, offs=offs, bias=bias).relu(),
        backend=backend,
        fullgraph=True,
    )
    bias = torch.ones(4, 5, dtype=torch.float64)
    for sizes in ((3, 0, 5, 1), (0, 9, 0, 0), (1, 1, 1, 1), (9, 0, 0, 0)):
        a, b, offs = tensors("m", Sizes(sizes, rest=11 - sum(sizes)))
        assert torch.equal(
            compiled(a, b, offs, bias), ut.grouped_mm(a, b, offs=offs, bias=bias).relu()
        )
    assert len(graphs) == 1
    for rest in (4, 7, 30):
        a, b, offs = tensors("m", Sizes((3, 0, 5, 1), rest=rest))
        compiled(a, b, offs, bias)
    assert len(graphs) == 2


def test_a_compiled_layer_has_the_gradients_of_the_layer():
    a, b, offs = tensors("m", UNEVEN, torch.float32)
    a = a.nan_to_num()

    def layer(a, b):
        return ut.grouped_mm(a, b, offs=offs).sin().sum()

    found = []
    for function in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        function(x, y).backward()
        found.append((x.grad, y.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="of newer versions of PyTorch")
def test_use_computes_pytorchs_function_in_one_product_and_its_gradients():
    a, b, offs = tensors("m", Sizes((16, 0, 24, 8), other=16, inner=32), torch.bfloat16)
    a.requires_grad_()
    b.requires_grad_()
    with ut.use(device="cpu") as used:
        result = F.grouped_mm(a, b, offs=offs)
        assert (used.calls, used.fallbacks) == (1, 0)
        result.sum().backward()
    assert (used.calls, used.fallbacks) == (3, 0)
    with ut.use(device="cpu") as used, pytest.raises(RuntimeError):
        F.grouped_mm(a, b[:2], offs=offs)
    assert used.calls == 0


def test_a_mixtral_of_transformers_is_the_same_on_it():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=4,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    if not hasattr(model, "set_experts_implementation"):
        pytest.skip("this version of transformers has no grouped products")
    model.set_experts_implementation("grouped_mm")
    words = torch.arange(14).reshape(2, 7)

    def gradients():
        model.zero_grad()
        loss = model(words, labels=words).loss
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]

    expected = [x.clone() for x in gradients()]
    with ut.use(device="cpu") as used:
        found = gradients()
    assert used.fallbacks == 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


class Experts(torch.nn.Module):
    """A layer of experts, its rows sorted by expert as transformers sorts them."""

    def __init__(self, experts, hidden, inner, product):
        super().__init__()
        self.product = product
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        self.up = torch.nn.Parameter(torch.randn(experts, 2 * inner, hidden) / hidden**0.5)
        self.down = torch.nn.Parameter(torch.randn(experts, hidden, inner) / inner**0.5)

    def forward(self, x):
        weights, expert = self.router(x).softmax(-1).topk(2)
        order = expert.flatten().argsort()
        sizes = torch.bincount(expert.flatten(), minlength=len(self.up))
        offs = sizes.cumsum(0).int()
        rows = x[order // 2]
        gate, value = self.product(rows, self.up.mT, offs=offs).chunk(2, -1)
        rows = self.product(F.silu(gate) * value, self.down.mT, offs=offs)
        rows = rows * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // 2, rows)


def looped(a, b, *, offs):
    starts = pairwise([0, *offs.tolist()])
    return torch.cat([a[i:j] @ b[g] for g, (i, j) in enumerate(starts)])


def test_a_layer_of_experts_has_the_results_and_gradients_of_a_loop():
    found = []
    for product in (looped, ut.grouped_mm):
        torch.manual_seed(1)
        layer = Experts(5, 8, 12, product).double()
        x = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
        result = layer(x)
        result.sin().sum().backward()
        found.append([result, x.grad, *(p.grad for p in layer.parameters())])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_autocast_casts_the_operands_and_not_the_offsets():
    a, b, offs = tensors("m", UNEVEN, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert ut.grouped_mm(a, b, offs=offs).dtype is torch.bfloat16


A, B, OFFS = torch.ones(9, 4), torch.ones(2, 4, 6), torch.tensor([3, 9], dtype=torch.int32)
REFUSED = {
    "no offsets": ((A, B), {}, unigemm.ShapeMismatch),
    "offsets of stacks": ((B, B.mT), {"offs": OFFS}, unigemm.ShapeMismatch),
    "one group short": ((A, B), {"offs": OFFS[:1]}, unigemm.ShapeMismatch),
    "K": ((A[:, :3], B), {"offs": OFFS}, unigemm.ShapeMismatch),
    "vectors": ((A[0], B), {"offs": OFFS}, unigemm.ShapeMismatch),
    "offsets of floats": ((A, B), {"offs": OFFS.float()}, unigemm.UnsupportedDtype),
    "two dtypes": ((A.double(), B), {"offs": OFFS}, unigemm.UnsupportedDtype),
    "bias": ((A, B), {"offs": OFFS, "bias": torch.ones(9, 6)}, unigemm.ShapeMismatch),
    "a bias of columns": (
        (B, A.mT.contiguous().mT.mT[:, :9]), {"offs": OFFS, "bias": torch.ones(9)},
        unigemm.UnigemmError,
    ),
    "bias of another dtype": (
        (A, B), {"offs": OFFS, "bias": torch.ones(6).double()}, unigemm.UnsupportedDtype
    ),
    "a word as dtype": ((A, B), {"offs": OFFS, "out_dtype": "float32"}, unigemm.UnsupportedDtype),
    "an array": ((A, B), {"offs": OFFS.numpy()}, unigemm.LibraryMismatch),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_grouped_product_is_refused_with_and_without_data(name):
    args, options, error = REFUSED[name]
    with pytest.raises(error):
        ut.grouped_mm(*args, **options)

    def bare(x):
        return x.to("meta") if isinstance(x, torch.Tensor) else x

    with pytest.raises(error):
        ut.grouped_mm(*map(bare, args), **{name: bare(x) for name, x in options.items()})
    with pytest.raises(TypeError):
        ut.grouped_mm(A, B, offs=OFFS, scale_a=2.0)


def test_products_of_float8_have_no_gradients():
    a, b, offs = tensors("m", UNEVEN, torch.float8_e4m3fn)
    assert ut.grouped_mm(a, b, offs=offs).dtype is torch.float32
    with pytest.raises(unigemm.UnsupportedProblem, match="float8 have no gradients"):
        ut.grouped_mm(a.requires_grad_(), b, offs=offs)


def test_offsets_that_are_none_are_refused_in_host_memory():
    with pytest.raises(unigemm.UnsupportedProblem, match="pass numbers from 0 to 9"):
        ut.grouped_mm(A, B, offs=OFFS + 1)
