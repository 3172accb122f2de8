"""`torch.compile` around unigemm's functions: where graphs end, and that nothing of ours is traced.

These hold for every PyTorch from 2.11: CONTRIBUTING.md says how to run them with another one.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from needed import needed
from processes import output_of

torch = needed("torch")

from torch._dynamo.convert_frame import input_codes  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

import unigemm  # noqa: E402
import unigemm.torch as ut  # noqa: E402

HOME = Path(unigemm.__file__).parent
_GENERATOR = torch.Generator().manual_seed(7)
X, W, BIAS = (torch.randn(shape, generator=_GENERATOR) for shape in ((4, 8), (8, 3), (3,)))


def seen():
    """Return the functions of unigemm that Dynamo traced as they ran."""
    codes = [code for each in input_codes.seen if (code := each()) is not None]
    return {code.co_name for code in codes if HOME in Path(code.co_filename).parents}


def compiled(function, **options):
    torch._dynamo.reset()
    counters.clear()
    return torch.compile(function, backend="aot_eager", **options)


def breaks():
    return sum(counters["graph_break"].values())


def doubled(acc, by):
    return acc * by


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(W.clone(), requires_grad=False)

    def forward(self, x):
        return torch.relu(unigemm.matmul(x * 2, self.weight)) + 1


def plain(x, w):
    return torch.relu(unigemm.matmul(x * 2, w)) + 1


def with_out(x, w):
    out = torch.empty(x.shape[0], w.shape[1])
    unigemm.matmul(x * 2, w, out=out)
    return torch.relu(out) + 1


def without_grad(x, w):
    with torch.no_grad():
        return torch.relu(unigemm.matmul(x * 2, w)) + 1


def of_numpy(x, w):
    return torch.relu(torch.from_numpy(unigemm.matmul((x * 2).numpy(), w.numpy()))) + 1


def got_by_name(x, w):
    return torch.relu(functools.partial(getattr(unigemm, "matmul"), x * 2)(w)) + 1  # noqa: B009


def with_epilogue(x, w):
    return unigemm.matmul(x, w, alpha=2.0, activation="relu", bias=BIAS * 0) + 1


def with_own_function(x, w):
    return torch.relu(unigemm.matmul(x, w, epilogue=doubled, epilogue_args={"by": 2.0})) + 1


def in_a_list(x, w):
    return torch.relu(next(iter(map(unigemm.matmul, [x * 2], [w])))) + 1


WAYS = [plain, with_out, without_grad, of_numpy, got_by_name, with_epilogue, with_own_function]
WAYS += [in_a_list, Layer]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"dynamic": True}], ids=["", "dynamic"])
def test_a_product_breaks_the_graph_once_and_is_not_traced(way, options):
    f, given = (Layer(), (X,)) if way is Layer else (way, (X, W))
    f = compiled(f, **options)
    for _ in range(2):
        torch.testing.assert_close(f(*given), torch.relu(X * 2 @ W) + 1)
    assert breaks() == 1
    assert not seen()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_of_gradients_change_nothing(mode):
    with mode():
        torch.testing.assert_close(compiled(plain)(X, W), torch.relu(X * 2 @ W) + 1)
    assert breaks() == 1
    assert not seen()


def test_a_dynamic_size_is_not_compiled_again():
    f = compiled(plain, dynamic=True)
    f(X, W)
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in (5, 9):
            x = torch.ones(rows, 8)
            torch.testing.assert_close(f(x, W), torch.relu(x * 2 @ W) + 1)
    assert not seen()


def test_a_size_that_is_marked_dynamic_stays_it():
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)  # an error where the size is fixed
    torch.testing.assert_close(compiled(plain)(x, W), torch.relu(X * 2 @ W) + 1)
    assert breaks() == 1
    assert not seen()


def with_plan(x, w):
    return unigemm.matmul(x * 2, w, plan=unigemm.plan(x, w))


def with_spec(x, w):
    spec = unigemm.ArraySpec((4, 8), "float32")
    read = unigemm.Plan.from_json(unigemm.plan(spec, w, target="cpu").to_json())
    return unigemm.matmul(x * 2, w, plan=read)


def with_error(x, w):
    try:
        unigemm.matmul(x, w.T)
    except unigemm.ShapeMismatch:
        return unigemm.matmul(x * 2, w)


def with_measuring(x, w):
    with unigemm.autotuning():
        return unigemm.matmul(x * 2, w)


def with_questions(x, w):
    unigemm.capabilities()
    unigemm.backend_info()
    unigemm.compile(unigemm.plan(x, w))
    unigemm.named_target("h100")
    return unigemm.matmul(x * 2, w)


@pytest.mark.parametrize(
    "function", [with_plan, with_spec, with_error, with_measuring, with_questions]
)
def test_no_public_function_is_traced(function):
    unigemm.Plan  # noqa: B018  # named somewhere, as whoever uses its functions does
    torch.testing.assert_close(compiled(function)(X, W), X * 2 @ W)
    assert not seen()


def test_every_public_function_says_what_to_do_under_fullgraph():
    functions = [getattr(unigemm, name) for name in unigemm.__all__]
    functions = [f for f in functions if not isinstance(f, type) and callable(f)]
    assert unigemm.autotune in functions
    for function in functions:
        f = compiled(lambda x, function=function: function(x + 1, x), fullgraph=True)
        with pytest.raises(torch._dynamo.exc.Unsupported) as said:
            f(X)
        assert f"unigemm.{function.__name__} works on the addresses of tensors" in str(said.value)
        assert ("use unigemm.torch.matmul" in str(said.value)) == (function is unigemm.matmul)


def test_the_users_functions_below_a_product_are_not_traced_either():
    code = doubled.__code__
    compiled(with_own_function)(X[:3], W)
    assert code not in [each() for each in input_codes.seen]


IN_ORDER = """
{imports}
from torch._dynamo.convert_frame import input_codes
f = torch.compile(lambda x: unigemm.matmul(x + 1, x) * 2, backend="eager")
assert f(torch.ones(2, 2)).tolist() == [[8.0, 8.0]] * 2
names = [code.co_filename for each in input_codes.seen if (code := each()) is not None]
assert not [name for name in names if "unigemm" in name], names
assert sum(torch._dynamo.utils.counters["graph_break"].values()) == 1
"""
ORDERS = {
    "torch first": "import torch, torch._dynamo, unigemm",
    "unigemm first": "import unigemm, torch",
    "a product first": (
        "import numpy, unigemm; unigemm.matmul(numpy.eye(2), numpy.eye(2)); import torch"
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_it_does_not_matter_what_is_imported_first(order):
    code = IN_ORDER.format(imports=ORDERS[order])
    output_of("-c", code)


def run_by_name(x, w):
    return torch.ops.unigemm.mm(x, w)


def run_backward(x, w):
    x = x.detach().requires_grad_()
    torch.ops.unigemm.linear(x, w.mT).backward(torch.ones(4, 3))
    return x.grad @ w


def run_below(x, w):
    with ut.use(device="cpu") as used:
        y = torch.mm(x, w)
    assert used.calls == 1
    return y


EXPECTED = {run_by_name: X @ W, run_below: X @ W, run_backward: torch.ones(4, 3) @ W.mT @ W}


@pytest.mark.parametrize("function", EXPECTED)
def test_kernels_are_not_traced_where_compiled_code_runs_them_uncompiled(function):
    def f(x, w):
        try:
            torch._dynamo.graph_break()  # here: then all of the function runs uncompiled
            return function(x, w)
        finally:
            pass

    f = compiled(f)
    torch._dynamo.eval_frame.skip_code(function.__code__)
    torch.testing.assert_close(f(X, W), EXPECTED[function])
    assert not seen()


def test_use_is_left_out_of_graphs_and_says_so():
    def multiply(x, w):
        with ut.use(device="cpu") as used:
            y = torch.mm(x, w)
        assert used.calls == 1
        return y

    f = compiled(multiply)
    for _ in range(2):
        torch.testing.assert_close(f(X, W), X @ W)
    assert breaks() == 1
    assert not seen()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"unigemm\.torch\.use changes"):
        compiled(multiply, fullgraph=True)(X, W)


def test_use_decorates_functions_that_are_compiled_too():
    used = ut.use(device="cpu")
    f = used(torch.mm)
    torch.testing.assert_close(f(X, W), X @ W)
    torch.testing.assert_close(compiled(f)(X, W), X @ W)
    assert used.calls == 2
    torch.mm(X, W)
    assert used.calls == 2


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_factor_that_is_a_tensor_breaks_the_graph_or_is_refused(name):
    def f(x, w, factor):
        return ut.addmm(BIAS, x, w, **{name: factor}) + 1

    factor = torch.tensor(2.0)
    want = torch.addmm(BIAS, X, W, **{name: 2.0}) + 1
    torch.testing.assert_close(compiled(f)(X, W, factor), want)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="pass alpha and beta as numbers"):
        compiled(f, fullgraph=True)(X, W, factor)
    torch.testing.assert_close(compiled(f, fullgraph=True)(X, W, 2.0), want)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_layers_are_refused_with_what_works():
    for model in (ut.Linear(8, 3), torch.nn.Sequential(ut.Linear(8, 3))):
        with pytest.raises(
            unigemm.UnsupportedProblem, match=r"use torch\.compile or torch\.export"
        ):
            torch.jit.script(model)
