"""The operators of unigemm.torch are operators of PyTorch in every respect."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import call_path
import pytest
from needed import needed
from odd_values import HUGE, ODD, refused
from processes import output_of

torch = needed("torch")

from transforms import ACTIVATIONS as REFERENCE  # noqa: E402

import unigemm  # noqa: E402
import unigemm.torch as ut  # noqa: E402
from unigemm import (  # noqa: E402
    BackendUnavailable,
    DeviceMismatch,
    LibraryMismatch,
    ShapeMismatch,
    UnsupportedDtype,
    UnsupportedProblem,
)
from unigemm.torch import overlapped, products  # noqa: E402
from unigemm.torch.activations import ACTIVATIONS, GATED  # noqa: E402
from unigemm.torch.operators import OPERATORS  # noqa: E402

F = torch.nn.functional
ops = torch.ops.unigemm
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def draw(*shape, dtype=torch.float64, grad=False, seed=None):
    generator = torch.Generator().manual_seed(sum(shape) if seed is None else seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(grad)


def cases(grad):
    """Yield (operator, positional, keyword arguments)."""
    m = lambda *shape: draw(*shape, grad=grad)  # noqa: E731
    yield "mm", (m(4, 3), m(3, 5)), {}
    yield "bmm", (m(2, 4, 3), m(2, 3, 5)), {}
    yield "addmm", (m(5), m(4, 3), m(3, 5)), {"beta": 0.5, "alpha": 2.0}
    yield "linear", (m(2, 4, 3), m(5, 3), m(5)), {}
    yield "linear", (m(3), m(5, 3)), {}
    yield "linear_activation", (m(4, 3), m(5, 3), m(5), "gelu"), {}
    yield "linear_preact", (m(2, 2, 3), m(5, 3), None, "silu"), {}
    yield "linear_gated", (m(2, 4, 3), m(6, 3), m(6), "swiglu", "halves"), {}
    yield "linear_gated_preact", (m(4, 3), m(6, 3), None, "geglu", "interleaved"), {}
    yield "matmul", (m(2, 1, 4, 3), m(2, 3, 5), m(4, 5), m(5)), {"alpha": 0.5, "activation": "tanh"}
    yield "matmul", (m(2, 4, 3), m(3, 5)), {"beta": 3.0}
    offs = torch.tensor([2, 2, 7], dtype=torch.int32)  # an empty group, and a rest
    yield "grouped_mm", (m(9, 4), m(3, 4, 5), offs, m(3, 5)), {}
    yield "grouped_mm", (m(9, 4), m(3, 4, 5), offs, m(5)), {"deterministic": True}
    yield "grouped_mm", (m(3, 5, 4), m(4, 9), offs), {}
    yield "grouped_mm", (m(4, 9), m(9, 5), offs, m(3, 5)), {"out_dtype": torch.float64}
    yield "grouped_mm", (m(3, 5, 4), m(3, 4, 2), None, m(2)), {}


def labelled(grad=True):
    return [pytest.param(*case, id=f"{case[0]}-{i}") for i, case in enumerate(cases(grad))]


def test_the_activations_are_all_that_unigemm_knows():
    from unigemm import activations

    assert set(GATED) == set(activations.GATED) == {"swiglu", "geglu"}
    assert set(ACTIVATIONS) == set(activations.ACTIVATIONS) == set(REFERENCE)


def test_an_added_activation_is_everywhere():
    assert output_of(Path(__file__).parent / "added_activation.py").split() == ["right"]


def test_every_operator_is_in_the_cases():
    assert {name for name, _, _ in cases(False)} == set(OPERATORS)


@pytest.mark.parametrize(("name", "args", "options"), labelled())
def test_an_operator_passes_what_pytorch_checks_of_one(name, args, options):
    done = torch.library.opcheck(getattr(ops, name).default, args, options)
    assert set(done.values()) == {"SUCCESS"}
    assert len(done) == 4


@pytest.mark.parametrize(("name", "args", "options"), labelled())
def test_gradients_are_those_of_finite_differences(name, args, options):
    op = getattr(ops, name)
    indices = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor)]

    def call(*tensors):
        given = list(args)
        for i, x in zip(indices, tensors, strict=True):
            given[i] = x
        return op(*given, **options)

    tensors = tuple(args[i] for i in indices)
    assert torch.autograd.gradcheck(call, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", ((4, 3), (3, 5))),
        ("bmm", ((2, 4, 3), (2, 3, 5))),
        ("linear", ((2, 4, 3), (5, 3))),
        ("matmul", ((2, 4, 3), (2, 3, 5))),
        ("matmul", ((2, 1, 4, 3), (2, 3, 5))),
        ("matmul", ((2, 4, 3), (3, 5))),
    ],
)
def test_gradients_of_complex_products_and_stacks_are_those_of_finite_differences(name, shapes):
    tensors = [
        torch.complex(draw(*shape), draw(*shape).flip(-1)).requires_grad_() for shape in shapes
    ]
    op = getattr(ops, name)
    assert torch.autograd.gradcheck(op, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(op, tensors, fast_mode=True)


MULTIPLIED = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32),
    *(torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2),
)


@pytest.mark.parametrize("name", ["mm", "bmm", "linear", "matmul"])
def test_results_on_meta_have_the_types_of_real_ones_for_every_pair(name):
    """Or both refuse the pair, in the same words."""

    def told(a, b):
        try:
            result = getattr(ops, name)(a, b)
        except Exception as error:
            return type(error)
        return result.dtype, tuple(result.shape)

    for first, second in product(MULTIPLIED, repeat=2):
        stack = (2,) if name == "bmm" else ()
        a = torch.ones(*stack, 4, 4).to(first)
        b = torch.ones(*stack, 4, 4).to(second)
        assert told(a.to("meta"), b.to("meta")) == told(a, b), (first, second)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_each_activation_and_its_gradient_are_pytorchs(activation):
    x, w, b = draw(4, 3, grad=True), draw(5, 3, grad=True), draw(5, grad=True)
    ours = ut.linear(x, w, b, activation=activation)
    theirs = REFERENCE[activation](F.linear(x, w, b))
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(theirs)
    for one, two in zip(
        torch.autograd.grad((ours * weights).sum(), (x, w, b)),
        torch.autograd.grad((theirs * weights).sum(), (x, w, b)),
        strict=True,
    ):
        torch.testing.assert_close(one, two)
    # The same where no gradient is wanted, and where the operator keeps nothing for it.
    with torch.no_grad():
        torch.testing.assert_close(ut.linear(x, w, b, activation=activation), theirs)
    kept = ops.linear_activation(x, w, b, activation)
    torch.testing.assert_close(
        torch.autograd.grad((kept * weights).sum(), w)[0],
        torch.autograd.grad((REFERENCE[activation](F.linear(x, w, b)) * weights).sum(), w)[0],
    )


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize(("name", "of_gate"), [("swiglu", F.silu), ("geglu", F.gelu)])
def test_gated_activations_and_their_gradients_are_pytorchs(name, of_gate, layout):
    def reference(x, w, b):
        y = F.linear(x, w, b)
        gate, other = (y[..., ::2], y[..., 1::2]) if layout == "interleaved" else y.chunk(2, -1)
        return of_gate(gate) * other

    def ours(x, w, b):
        return ut.linear(x, w, b, activation=name, gate_layout=layout)

    x, w, b = draw(2, 4, 3, grad=True), draw(6, 3, grad=True), draw(6, grad=True)
    for bias in (b, None):
        torch.testing.assert_close(ours(x, w, bias), reference(x, w, bias))
        with torch.no_grad():
            for _ in range(2):  # bound, then known
                torch.testing.assert_close(ours(x, w, bias), reference(x, w, bias))
            torch.testing.assert_close(ours(x[0, 0], w, bias), reference(x[0, 0], w, bias))
    weights = draw(2, 4, 3, seed=5)
    for one, two in zip(
        torch.autograd.grad((ours(x, w, b) * weights).sum(), (x, w, b)),
        torch.autograd.grad((reference(x, w, b) * weights).sum(), (x, w, b)),
        strict=True,
    ):
        torch.testing.assert_close(one, two)
    rows = torch.vmap(ours, (0, None, None))(x, w, b)
    torch.testing.assert_close(rows, reference(x, w, b))
    layer = ut.Linear(3, 6, activation=name, gate_layout=layout, dtype=torch.float64)
    assert f"gate_layout={layout}" in repr(layer)
    torch.testing.assert_close(layer(x), reference(x, layer.weight, layer.bias))
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(x.float(), w.float(), b.float())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), reference(x, w, b), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("way", ["plain", "gradient", "again", "vector", "vmap", "forward"])
def test_all_products_of_a_gated_layer_have_its_options(monkeypatch, way):
    seen = []
    real = products.matmul

    def recorded(*operands, **options):
        seen.append({name: options.get(name) for name in told})
        return real(*operands, **options)

    told = {"precision": "tf32", "deterministic": True, "backend": "numpy"}
    x, w, b = (draw(*shape).float() for shape in ((2, 4, 3), (6, 3), (6,)))
    given = (w, b, "swiglu", "halves")
    layer = ut.Linear(3, 6, activation="swiglu", gate_layout="halves", **told)
    layer.weight.data, layer.bias.data = w, b

    def run():
        if way == "plain":
            return layer.requires_grad_(False)(x)
        if way == "vector":
            return torch.autograd.grad(layer(x[0, 0]).sum(), layer.weight)[0]
        if way == "gradient":
            return torch.autograd.grad(layer(x).sum(), [*layer.parameters()])[0]
        if way == "again":  # what went into the activation is computed once more
            y = ops.linear_gated(x.requires_grad_(), *given, **told)
            return torch.autograd.grad(y.square().sum(), x)[0]
        if way == "vmap":
            return torch.vmap(lambda row: ops.linear_gated(row, *given, **told))(x)
        return torch.func.jvp(lambda row: ops.linear_gated(row, *given, **told), (x,), (x,))[1]

    expected = run()
    monkeypatch.setattr(products, "matmul", recorded)
    torch.testing.assert_close(run(), expected)
    assert seen
    assert [each for each in seen if each != told] == []


@pytest.mark.parametrize("options", [{}, {"precision": "3xtf32"}])
def test_a_gated_layer_is_compiled_whole(options):
    layer = ut.Linear(8, 12, activation="swiglu", gate_layout="halves", **options)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 5, 6):
        x = draw(rows, 8, dtype=torch.float32, grad=True)
        torch.testing.assert_close(compiled(x), layer(x))
        ours, theirs = (torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, layer))
        torch.testing.assert_close(ours, theirs)


SHAPES = [((3,), (3,)), ((3,), (3, 5)), ((4, 3), (3,)), ((2, 4, 3), (3,)), ((3,), (2, 3, 5))]
SHAPES += [((4, 3), (3, 5)), ((2, 4, 3), (2, 3, 5)), ((2, 1, 4, 3), (6, 3, 5)), ((0, 3), (3, 2))]
SHAPES += [((4, 0), (0, 2)), ((2, 4, 3), (3, 5))]


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_matmul_and_its_gradients_are_torchs_for_every_rank(first, second):
    a, b = draw(*first, grad=True), draw(*second, grad=True, seed=1)
    ours, theirs = ut.matmul(a, b), torch.matmul(a, b)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(theirs)
    for one, two in zip(
        torch.autograd.grad((ours * weights).sum(), (a, b)),
        torch.autograd.grad((theirs * weights).sum(), (a, b)),
        strict=True,
    ):
        torch.testing.assert_close(one, two)
    with torch.inference_mode():
        torch.testing.assert_close(ut.matmul(a, b), theirs)


@pytest.mark.parametrize(("k", "n"), [(0, 6), (4, 0), (0, 0)])
@pytest.mark.parametrize(
    "options", [{}, {"activation": "silu"}, {"activation": "swiglu", "gate_layout": "halves"}]
)
def test_stacks_without_columns_have_gradients(k, n, options):
    x, weight = draw(2, 3, k, grad=True), draw(n, k, grad=True)
    ut.linear(x, weight, **options).sum().backward()
    ut.matmul(x, weight.mT).sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.complex128])
def test_results_and_gradients_have_the_dtype_of_the_operands(dtype):
    x = draw(8, 16).to(dtype).requires_grad_()
    w = draw(4, 16).to(dtype).requires_grad_()
    y = ut.linear(x, w)
    assert y.dtype == dtype
    torch.testing.assert_close(y, F.linear(x, w))
    y.sum().backward() if not dtype.is_complex else y.sum().abs().backward()
    ours = x.grad, w.grad
    x.grad = w.grad = None
    y = F.linear(x, w)
    y.sum().backward() if not dtype.is_complex else y.sum().abs().backward()
    for one, two in zip(ours, (x.grad, w.grad), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, two)


def test_a_wider_result_gives_gradients_in_the_operands_dtype():
    a = draw(4, 3, dtype=torch.bfloat16, grad=True)
    b = draw(3, 5, dtype=torch.bfloat16, grad=True)
    y = ut.matmul(a, b, dtype=torch.float32)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert a.grad.dtype == b.grad.dtype == torch.bfloat16


def test_no_bias_is_read_where_beta_is_zero():
    c = torch.full((4, 5), torch.nan, dtype=torch.float64)
    a, b = draw(4, 3), draw(3, 5)
    torch.testing.assert_close(ut.addmm(c, a, b, beta=0), a @ b)


@pytest.mark.parametrize("route", ["eager", "operator", "grad"])
def test_addmm_and_bmm_are_torchs(route):
    grad = route == "grad"
    c, a, b = draw(4, 5, grad=grad), draw(4, 3, grad=grad), draw(3, 5, grad=grad)
    module = ops if route == "operator" else ut
    torch.testing.assert_close(
        module.addmm(c, a, b, beta=0.5, alpha=2.0), torch.addmm(c, a, b, beta=0.5, alpha=2.0)
    )
    s, t = draw(2, 4, 3, grad=grad), draw(2, 3, 5, grad=grad)
    torch.testing.assert_close(module.bmm(s, t), torch.bmm(s, t))


VMAPS = [
    (ops.mm, ((4, 3), (3, 5)), {}),
    (ops.bmm, ((2, 4, 3), (2, 3, 5)), {}),
    (ops.addmm, ((5,), (4, 3), (3, 5)), {"alpha": 2.0}),
    (ops.linear, ((3,), (5, 3), (5,)), {}),
    (ops.linear, ((2, 4, 3), (5, 3), (5,)), {}),
    (lambda x, w: ops.linear_preact(x, w, None, "relu")[1], ((4, 3), (5, 3)), {}),
    (ops.matmul, ((2, 4, 3), (3, 5), (4, 5), (5,)), {}),
]


@pytest.mark.parametrize("case", range(len(VMAPS)))
def test_vmap_maps_any_of_the_operands(case):
    op, shapes, options = VMAPS[case]
    plain = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    for mask in range(1, 2 ** len(shapes)):
        chosen = [bool(mask >> i & 1) for i in range(len(shapes))]
        dims = tuple((i % 2 if x.dim() else 0) if on else None
                     for i, (on, x) in enumerate(zip(chosen, plain, strict=True)))  # fmt: skip
        args = [
            x if d is None else torch.stack([x, x + 1, 2 * x], d)
            for x, d in zip(plain, dims, strict=True)
        ]
        mapped = torch.vmap(lambda *xs: op(*xs, **options), dims)(*args)
        for i in range(3):
            one = [x if d is None else x.select(d, i) for x, d in zip(args, dims, strict=True)]
            torch.testing.assert_close(mapped[i], op(*one, **options))


def test_transforms_of_torch_func_compose():
    x, w = draw(6, 3), draw(5, 3)
    loss = lambda w, x: ut.linear(x, w, activation="tanh").sum()  # noqa: E731
    theirs = lambda w, x: torch.tanh(F.linear(x, w)).sum()  # noqa: E731
    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
    torch.testing.assert_close(
        per_sample, torch.func.vmap(torch.func.grad(theirs), (None, 0))(w, x)
    )
    torch.testing.assert_close(torch.func.jacrev(loss)(w, x), torch.func.jacrev(theirs)(w, x))


def test_autocast_casts_as_torchs_own_products():
    x, w, b = (draw(*shape, dtype=torch.float32) for shape in ((4, 3), (5, 3), (5,)))
    with torch.autocast("cpu", torch.bfloat16):
        for ours, theirs in (
            (ut.linear(x, w, b), F.linear(x, w, b)),
            (ut.matmul(x, w.t()), x @ w.t()),
            (ut.matmul(x, w.t(), precision="tf32"), x @ w.t()),
            (ut.bmm(x[None], w.t()[None]), torch.bmm(x[None], w.t()[None])),
            (ut.addmm(b, x, w.t()), torch.addmm(b, x, w.t())),
        ):
            assert ours.dtype == theirs.dtype == torch.bfloat16
            torch.testing.assert_close(ours, theirs)
        assert ut.matmul(x.double(), w.t().double()).dtype == torch.float64
    w.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = ut.linear(x, w, b)
    y.float().sum().backward()
    assert w.grad.dtype == torch.float32


def test_float8_with_scales_of_whole_operands():
    a, b = (draw(*s, dtype=torch.float32).to(torch.float8_e4m3fn) for s in ((4, 16), (16, 8)))
    scale = torch.tensor(0.5)
    expected = a.float() @ b.float() * 0.5 * 3
    for route in (
        lambda: ut.matmul(a, b, scale_a=scale, scale_b=3.0),
        lambda: ut.matmul(a, b, scale_a=3.0, scale_b=scale),
        lambda: ut.matmul(a, b, scale_a=1.5),
        lambda: ops.matmul(a, b, scale=1.5),
    ):
        torch.testing.assert_close(route(), expected)
    bias = draw(8, dtype=torch.bfloat16)
    y = ut.matmul(a, b, scale_a=scale, bias=bias, activation="relu", dtype=torch.bfloat16)
    torch.testing.assert_close(y, torch.relu(a.float() @ b.float() * 0.5 + bias.float()).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ut.matmul(a, b, scale_a=scale, scale_b=3.0), expected)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_rows_and_columns_have_scales_of_their_own(kind):
    a, b = ((draw(*s, dtype=torch.float32) * 3).to(kind) for s in ((4, 16), (16, 8)))
    rows, columns = torch.rand(4, 1) + 1, torch.rand(1, 8) + 1
    product = a.double() @ b.double()
    for x, y in ((rows, columns), (rows, 0.5), (None, columns), (torch.tensor([3.0]), 1.0)):
        expected = product * (1 if x is None else x) * y
        scales = {name: s for name, s in (("scale_a", x), ("scale_b", y)) if s is not None}
        eager = partial(ut.matmul, a, b, **scales)
        for route in (eager, torch.compile(eager, backend="aot_eager", fullgraph=True)):
            torch._dynamo.reset()
            torch.testing.assert_close(route(), expected.float(), rtol=1e-5, atol=1e-4)
            half = route(dtype=torch.bfloat16)
            torch.testing.assert_close(half, expected.bfloat16(), rtol=1e-2, atol=1e-2)
    meta = ut.matmul(a.to("meta"), b.to("meta"), scale_a=rows.to("meta"))
    assert meta.dtype == torch.float32


def test_a_compiled_function_has_no_break_and_takes_new_sizes_without_a_recompile():
    def f(x, w, bias, s):
        y = ut.linear(x, w, bias, activation="gelu_tanh")
        z = ut.matmul(y, w) + ut.addmm(x, y, w, beta=2.0)
        return ut.bmm(s, z[None].expand(s.shape[0], -1, -1).mT), ut.matmul(s, z.t(), alpha=0.5)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")

    def args(m, n, k, grad=False):
        return (draw(m, k), draw(n, k, grad=grad), draw(n), draw(3, m, k))

    for grad in (False, True):
        first = args(4, 6, 5, grad)
        for one, two in zip(compiled(*first), f(*first), strict=True):
            torch.testing.assert_close(one, two)
        with torch.compiler.set_stance("fail_on_recompile"):
            for sizes in ((8, 7, 9), (17, 33, 12)):
                more = args(*sizes, grad)
                ours, theirs = compiled(*more), f(*more)
                for one, two in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(one, two)
                if grad:
                    got = torch.autograd.grad(ours[0].sum() + ours[1].sum(), more[1])
                    want = torch.autograd.grad(theirs[0].sum() + theirs[1].sum(), more[1])
                    torch.testing.assert_close(got, want)


def test_inductor_calls_the_operator():
    layer = ut.Linear(16, 8, bias=False)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5):
            x = draw(rows, 16, dtype=torch.float32)
            torch.testing.assert_close(compiled(x), layer(x))


def test_an_exported_model_holds_the_operator_and_takes_other_sizes():
    model = torch.nn.Sequential(ut.Linear(8, 4, activation="silu"), ut.Linear(4, 3))
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        model, (draw(5, 8, dtype=torch.float32),), dynamic_shapes=({0: rows},)
    )
    assert "torch.ops.unigemm.linear" in program.graph_module.code
    x = draw(7, 8, dtype=torch.float32)
    torch.testing.assert_close(program.module()(x), model(x))


def freed(x):
    x.untyped_storage().resize_(0)
    return x


def test_what_is_refused_here_is_refused_though_unigemm_matmul_knows_it():
    whole = torch.ones(4, 4, dtype=torch.int8)
    unigemm.matmul(whole, whole, c=whole)
    unigemm.matmul(whole, whole, activation="relu")
    x, wide = draw(4, 4).float(), draw(4, 4).double()
    unigemm.matmul(draw(1, 2, 3), draw(4, 3, 5))
    unigemm.matmul(x, x, activation="drelu", preact=x)
    conjugated = torch.full((4, 4), 1j).conj()
    for _ in range(2):
        with pytest.raises(UnsupportedDtype, match="floating-point products"):
            ut.addmm(whole, whole, whole)
        with pytest.raises(UnsupportedDtype, match="floating-point products"):
            ut.matmul(whole, whole, activation="relu")
        with pytest.raises(UnsupportedDtype, match="bias is"):
            ut.linear(x, x, wide[0])
        with pytest.raises(ShapeMismatch, match="stacks of one length"):
            ut.bmm(draw(1, 2, 3), draw(4, 3, 5))
        with pytest.raises(ShapeMismatch, match="weight of linear has 3 dimensions"):
            ut.linear(draw(1, 2, 3), draw(4, 5, 3))
        with pytest.raises(UnsupportedProblem, match="activation 'drelu' is not known"):
            ut.matmul(x, x, activation="drelu")
        torch.testing.assert_close(ut.matmul(conjugated, conjugated), conjugated @ conjugated)


def test_known_calls_are_one_look_up_and_see_what_is_different(monkeypatch):
    x, w, bias = draw(2, 3, 8), draw(5, 8), draw(5)
    silu = torch.nn.functional.silu
    for given, activation in ((None, None), (bias, None), (bias, "silu"), (None, "silu")):
        ut.linear(x, w, given, activation=activation)
    ut.matmul(x, w.t())

    def right(x, w, bias, activation=None):
        value = torch.nn.functional.linear(x, w, bias)
        y = ut.linear(x, w, bias, activation=activation)
        torch.testing.assert_close(y, silu(value) if activation else value)
        return y

    with monkeypatch.context() as patch:
        call_path.only_known_calls(patch)
        for given, activation in ((None, None), (bias, None), (bias, "silu"), (None, "silu")):
            right(2 * x, w + 1, given, activation)
        torch.testing.assert_close(ut.matmul(x, w.t()), x @ w.t())
        op = torch.ops.unigemm.linear.default
        torch.testing.assert_close(op(x, w, bias), right(x, w, bias))
    right(x.mT.contiguous().mT, w, bias)
    right(x, w.t().contiguous().t(), bias)
    right(draw(2 * 3 * 8 + 1)[1:].view(2, 3, 8), w, bias, "silu")  # not aligned to 16 bytes
    right(x[:, :, ::2], w[:, ::2], bias)
    right(x[0, 0], w, bias)
    right(x[:0], w, bias)
    right(x[..., :0], w[:, :0], bias)
    right(x.float(), w.float(), bias.float(), "silu")
    right(x, torch.nn.Parameter(w), bias).sum().backward()
    assert right(x, w, bias.clone().requires_grad_(), "silu").requires_grad
    rows = torch.vmap(lambda row: ut.linear(row, w, bias))(x)
    torch.testing.assert_close(rows, torch.nn.functional.linear(x, w, bias))
    with torch.inference_mode():
        assert right(x, w, bias).is_inference()
    with torch.autocast("cpu", torch.bfloat16):
        assert ut.linear(x.float(), w.float(), bias.float()).dtype == torch.bfloat16
    with pytest.raises(ShapeMismatch):
        ut.linear(x, w[:, 1:], bias)
    with pytest.raises(UnsupportedProblem, match="use one of"):
        ut.linear(x, w, bias, activation="Silu")
    with pytest.raises(UnsupportedProblem, match=r"weight .* storage"):
        ut.linear(x, freed(draw(5, 8)), bias)


def ragged():
    return torch.nested.nested_tensor([draw(2, 3), draw(4, 3)], layout=torch.jagged)


def masked():
    return torch.masked.masked_tensor(draw(4, 3), draw(4, 3) > 0)


def test_tensors_without_data_have_products_of_their_shape():
    layer = ut.Linear(8, 6, device="meta", activation="relu")
    for bias in (layer.bias, None):
        with torch.no_grad():
            y = ut.linear(torch.empty(2, 3, 8, device="meta"), layer.weight, bias)
        assert (y.shape, y.device.type) == ((2, 3, 6), "meta")
    assert layer(torch.empty(3, 8, device="meta")).shape == (3, 6)
    a = torch.empty(2, 3, 8, device="meta")
    assert ut.matmul(a, a.mT).shape == ut.bmm(a, a.mT).shape == (2, 3, 3)


def test_symbolic_tracing_leaves_a_layer_whole():
    layer = ut.Linear(3, 4, activation="silu", dtype=torch.float64)
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(layer))
    torch.testing.assert_close(traced(draw(2, 3)), layer(draw(2, 3)))
    with pytest.raises(LibraryMismatch, match=r"torch\.fx\.wrap"):
        torch.fx.symbolic_trace(lambda x: ut.matmul(x, x))


@pytest.mark.filterwarnings("ignore")
def test_pytorchs_counter_of_operations_counts_products():
    from torch.utils.flop_counter import FlopCounterMode

    x, w, b = draw(2, 4, 3), draw(6, 3, grad=True), draw(6)
    with FlopCounterMode(display=False) as counter:
        y = ut.linear(x, w, b, activation="relu")
        assert counter.get_total_flops() == 2 * 2 * 4 * 3 * 6
        y.sum().backward()
    assert counter.get_total_flops() == 2 * (2 * 2 * 4 * 3 * 6)
    with FlopCounterMode(display=False) as counter:
        ut.addmm(draw(6), draw(4, 3), draw(3, 6))
        ut.matmul(draw(5, 1, 4, 3), draw(2, 3, 6), alpha=2.0)
    assert counter.get_total_flops() == 2 * 4 * 3 * 6 * (1 + 10)


def gated(x, w, bias=None, *, activation="swiglu", gate_layout="halves", **options):
    return ut.linear(x, w, bias, activation=activation, gate_layout=gate_layout, **options)


def test_products_over_processes_refuse_what_are_no_tensors_and_no_parts():
    a = torch.ones(4, 4)
    with pytest.raises(LibraryMismatch, match="b is a ndarray"):
        overlapped.all_gather_matmul(a, a.numpy())
    for parts in (1.0, "2", None):
        with pytest.raises(UnsupportedProblem, match="parts is"):
            overlapped.matmul_reduce_scatter(a, a, parts=parts)


def test_memory_for_products_over_processes_is_refused_in_words_where_there_is_none(tmp_path):
    def part(**options):
        return overlapped.symmetric_part(**{"rows": 4, "k": 4, "dtype": torch.float32, **options})

    with pytest.raises(UnsupportedProblem, match="no process group"):
        part()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        with pytest.raises(DeviceMismatch, match="way='messages'"):
            part(device="cpu")
        if not torch.cuda.is_available():
            for device in (None, "cuda", "cuda:3"):
                with pytest.raises(BackendUnavailable, match="0 GPUs"):
                    part(device=device)
        for value in ODD:
            for name in ("rows", "k", "dtype", "device", "group"):
                refused(part, name, value)
            refused(lambda **o: overlapped.all_gather_matmul(torch.ones(2, 2), torch.ones(2, 2),
                    way="messages", **o), "group", value)  # fmt: skip
            refused(lambda **o: overlapped.matmul_reduce_scatter(torch.ones(2, 2), torch.ones(2, 2),
                    way="messages", **o), "group", value)  # fmt: skip
    finally:
        torch.distributed.destroy_process_group()


def test_what_is_wrong_is_said_by_a_typed_error():
    a, b = draw(4, 3), draw(3, 5)
    for wrong, error, words in (
        (lambda: ut.matmul(a, a), ShapeMismatch, "3"),
        (lambda: ut.bmm(a, b), ShapeMismatch, "dimensions"),
        (lambda: ops.mm(a[None], b), ShapeMismatch, "dimensions"),
        (lambda: ut.bmm(a[None], b.expand(2, 3, 5)), ShapeMismatch, "broadcasts"),
        (lambda: ut.addmm(draw(6), a, b), ShapeMismatch, "broadcast"),
        (lambda: ut.addmm(draw(1, 4, 5), a, b), ShapeMismatch, "broadcast"),
        (lambda: ut.linear(a, b.t(), draw(4)), ShapeMismatch, "bias"),
        (lambda: ut.linear(a, b.t(), draw(5).half()), UnsupportedDtype, "bias"),
        (lambda: ut.linear(a, b.t(), activation="swish"), UnsupportedProblem, "use one of"),
        (lambda: ut.matmul(a, b.float()), UnsupportedDtype, "float"),
        (lambda: ut.matmul(a, 2.0), LibraryMismatch, "Tensor"),
        (lambda: ut.matmul(a, b, c=1.0), LibraryMismatch, "c is a float"),
        (lambda: ut.linear(a, b.t(), 1.0), LibraryMismatch, "bias is a float"),
        (lambda: ut.addmm(None, a, b), LibraryMismatch, "input is a NoneType"),
        (lambda: ut.matmul(a, b, out=a), ShapeMismatch, "out has shape"),
        (lambda: ut.matmul(a, b.to("meta")), DeviceMismatch, "meta"),
        (lambda: ut.linear(a.to("meta"), b.t()), DeviceMismatch, "meta"),
        (lambda: ut.linear(ragged(), b.t()), LibraryMismatch, "unbind"),
        (lambda: ut.matmul(masked(), b), LibraryMismatch, "masked"),
        (lambda: ut.matmul(a.sum(), b), ShapeMismatch, ""),
        (lambda: ut.matmul(a, b, precision="tf16"), UnsupportedProblem, "tf16"),
        (lambda: ut.matmul(a.int(), b.int(), alpha=2.0), UnsupportedDtype, "floating"),
        (lambda: ut.Linear(2, 2, activation="none"), UnsupportedProblem, "use one of"),
        (lambda: ut.Linear(2, 2, activation="swiglu"), UnsupportedProblem, "gate_layout="),
        (lambda: ut.Linear(2, 3, activation="swiglu", gate_layout="halves"), ShapeMismatch, "even"),
        (lambda: gated(a, b.t()[1:], gate_layout="both"), UnsupportedProblem, "interleaved"),
        (lambda: gated(a, b.t()), ShapeMismatch, "even"),
        (lambda: gated(a, b.t()[1:], activation="relu"), UnsupportedProblem, "not gated"),
        (lambda: gated(a, b.t()[1:], activation=None), UnsupportedProblem, "not known"),
        (lambda: gated(a, b.t()[1:], dtype=torch.float32), UnsupportedDtype, "float64 inputs"),
        (lambda: gated(a, b.t()[1:], precision="half"), UnsupportedProblem, "precision 'half'"),
        (lambda: gated(a.int(), b.t()[1:].int()), UnsupportedDtype, "int32"),
        (lambda: gated(a, b.t()[1:], draw(3)), ShapeMismatch, "bias"),
        (lambda: ut.matmul(a, b, activation="swiglu"), UnsupportedProblem, "linear alone"),
    ):
        with pytest.raises(error, match=words):
            wrong()
    scale = torch.tensor(1.0, requires_grad=True)
    f8 = a.to(torch.float8_e4m3fn)
    with pytest.raises(UnsupportedProblem, match="detach"):
        ut.matmul(f8, b.to(torch.float8_e4m3fn), scale_a=scale)


@pytest.mark.parametrize(
    "name",
    [
        *("alpha", "beta", "activation", "dtype", "precision", "deterministic"),
        *("batch_invariant", "backend", "scale_a", "scale_b", "c", "bias"),
        "quantize_out",
    ],
)
def test_an_option_of_a_wrong_kind_is_refused_in_words(name):
    a, b, c = torch.ones(4, 3), torch.ones(3, 5), torch.ones(4, 5)
    numbers = ("alpha", "beta", "scale_a", "scale_b")
    calls = [lambda **options: ut.matmul(a, b, **{"c": c, **options})]
    if name not in ("c", "bias", "activation"):
        calls.append(lambda **options: ut.addmm(c, a, b, **options))
    if name not in ("c", "alpha", "beta"):
        calls.append(lambda **options: ut.linear(a, b.t(), **options))
    recorded = torch.ones(4, 3, requires_grad=True)
    calls.append(lambda **options: ut.matmul(recorded, b, **{"c": c, **options}))
    for value in ODD:
        if name in numbers and value is not HUGE and isinstance(value, int | float):
            continue
        for call in calls:
            refused(call, name, value)


def test_arguments_of_layers_of_a_wrong_kind_are_refused_in_words():
    a, weight = torch.ones(4, 6), torch.ones(8, 6)
    for value in ODD:
        refused(lambda **o: ut.linear(a, weight, activation="swiglu", **o), "gate_layout", value)
        refused(lambda **o: ut.linear(a, weight, gate_layout="halves", **o), "activation", value)
        refused(lambda **o: ut.Linear(6, 8, **o), "activation", value)
        refused(lambda **o: ut.Linear(6, 8, activation="swiglu", **o), "gate_layout", value)
        refused(lambda **o: ut.replace_linear(torch.nn.Linear(2, 2), **o), "filter", value)
        refused(ut.replace_linear, "model", value)
        refused(ut.use, "device", value)
        refused(lambda **o: ut.use(device="cpu", **o), "deterministic", value)


def test_a_factor_without_anything_to_multiply_is_refused():
    with pytest.raises(UnsupportedProblem, match="pass c="):
        ut.matmul(torch.ones(2, 2), torch.ones(2, 2), beta=2.0)


def test_linear_layers_are_replaced_in_place():
    class Special(torch.nn.Linear):
        pass

    tied = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(tied, torch.nn.ReLU(), tied, Special(4, 4), torch.nn.Linear(4, 2))
    seen = []
    model[4].register_forward_hook(lambda *_: seen.append(1))
    before = {name: x.data_ptr() for name, x in model.state_dict().items()}
    x = draw(3, 4, dtype=torch.float32)
    expected = model(x)
    assert ut.replace_linear(model, filter=lambda name, layer: name != "4") == 1
    assert type(model[4]) is torch.nn.Linear
    assert ut.replace_linear(model) == 1
    assert type(model[0]) is type(model[4]) is ut.Linear
    assert type(model[3]) is Special
    assert before == {name: x.data_ptr() for name, x in model.state_dict().items()}
    torch.testing.assert_close(model(x), expected)
    assert len(seen) == 2
    with pytest.raises(UnsupportedProblem, match="no torch"):
        ut.replace_linear(model)
    lone = torch.nn.Linear(4, 2)
    assert ut.replace_linear(lone) == 1
    assert isinstance(lone, ut.Linear)
    with pytest.raises(UnsupportedProblem, match="left out"):
        ut.replace_linear(torch.nn.Linear(2, 2), filter=lambda name, layer: False)


def test_a_layer_says_its_activation_and_loads_pytorchs_state():
    layer = ut.Linear(4, 2, activation="relu", dtype=torch.float64)
    assert "activation=relu" in repr(layer)
    other = torch.nn.Linear(4, 2, dtype=torch.float64)
    layer.load_state_dict(other.state_dict())
    x = draw(3, 4)
    torch.testing.assert_close(layer(x), torch.relu(other(x)))


@pytest.mark.parametrize("value", [1.0, 1, 0.0, 0.5, torch.tensor(1.0)])
def test_no_value_of_a_factor_changes_what_is_taken(value):
    whole, wide = torch.ones(2, 2, dtype=torch.int8), torch.full((2, 2), 70000.0)
    with pytest.raises(UnsupportedDtype, match="floating"):
        ut.matmul(whole, whole, alpha=value)
    with pytest.raises(UnsupportedProblem, match="pass c="):
        ut.matmul(wide, wide, beta=value)
    with pytest.raises(UnsupportedProblem, match="float8"):
        ut.matmul(wide, wide, scale_a=float(value))
    got = ut.matmul(wide, torch.tensor([[1.0], [-0.5]]), dtype=torch.float16, alpha=value)
    assert got.dtype is torch.float16
    assert got[0, 0] == 35000 * float(value)


def test_an_alpha_of_zero_leaves_the_product_unread():
    for dtype in (torch.float32, torch.float16, torch.complex64):
        bad = torch.full((2, 2), float("nan"), dtype=dtype)
        c = torch.ones(2, 2, dtype=dtype)
        torch.testing.assert_close(ut.addmm(c, bad, bad, alpha=0, beta=3), 3 * c)
        torch.testing.assert_close(ut.matmul(bad, bad, alpha=0), 0 * c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "sigmoid", "tanh"])
def test_activations_have_their_limits_and_so_have_their_gradients(name, dtype):
    far = torch.tensor([-float("inf"), -1e30, 1e30, float("inf")], dtype=dtype, requires_grad=True)
    a, b = torch.zeros(1, 2, dtype=dtype), torch.zeros(4, 2, dtype=dtype)
    linear = name in ("gelu", "gelu_tanh", "silu")
    low, top, slope = (0.0, far.detach()[2:], 1.0) if linear else (
        -1.0 if name == "tanh" else 0.0, torch.ones(2, dtype=dtype), 0.0
    )  # fmt: skip
    result = ut.linear(a, b, far, activation=name)
    assert result[0, :2].tolist() == [low, low]
    torch.testing.assert_close(result[0, 2:], top)
    (first,) = torch.autograd.grad(result.sum(), far, create_graph=True)
    assert first.tolist() == [0, 0, slope, slope]
    if linear:
        (second,) = torch.autograd.grad(first.sum(), far)
        assert second.tolist() == [0, 0, 0, 0]


def test_functions_take_pytorchs_own_names_and_out():
    a, b, c, x, w, bias = draw(3, 4), draw(4, 5), draw(3, 5), draw(2, 3, 8), draw(5, 8), draw(5)
    same = torch.testing.assert_close
    same(ut.linear(input=x, weight=w, bias=bias), torch.nn.functional.linear(x, w, bias))
    same(ut.addmm(input=c, mat1=a, mat2=b, beta=2), torch.addmm(c, a, b, beta=2))
    same(ut.bmm(input=a[None], mat2=b[None]), torch.bmm(a[None], b[None]))
    for call, kept in (
        (lambda out: ut.matmul(a, b, bias=bias, out=out), a @ b + bias),
        (lambda out: ut.matmul(a, b, out=out, deterministic=True), a @ b),
        (lambda out: ut.addmm(c, a, b, alpha=0.5, beta=0, out=out), 0.5 * (a @ b)),
        (lambda out: ut.bmm(a[None], b[None], out=out[None])[0], a @ b),
        (lambda out: ut.linear(a, b.t(), bias, activation="relu", out=out), (a @ b + bias).relu()),
    ):
        out = torch.zeros(3, 5, dtype=a.dtype)
        assert call(out).data_ptr() == out.data_ptr()
        same(out, kept)
    gated = torch.zeros(2, 3, 5, dtype=x.dtype)
    ut.linear(x, draw(10, 8), activation="swiglu", gate_layout="halves", out=gated)
    assert gated.abs().sum() > 0


def test_out_records_no_gradients_and_says_so():
    a, b, out = draw(3, 4), draw(4, 5), draw(3, 5)
    parameter = b.clone().requires_grad_()
    with pytest.raises(UnsupportedProblem, match=r"out= is for products .* torch\.no_grad\(\)"):
        ut.matmul(a, parameter, out=out)
    with torch.no_grad():
        torch.testing.assert_close(ut.matmul(a, parameter, out=out), a @ b)
    with pytest.raises(UnsupportedProblem, match="leave it out"):
        torch.vmap(lambda x: ut.matmul(x, b, out=out))(a[None])
    with pytest.raises(LibraryMismatch, match="out is a list"):
        ut.matmul(a, b, out=[1])
    with pytest.raises(ShapeMismatch, match="out has shape"):
        ut.addmm(out, a, b, out=draw(3, 4))


def test_layers_have_the_options_of_their_products():
    x = draw(3, 8, dtype=torch.float32)
    layer = ut.Linear(8, 5, precision="tf32", deterministic=True)
    assert "precision=tf32, deterministic=True" in repr(layer)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    assert ut.replace_linear(model, precision="3xtf32") == 2
    assert [each.options for each in (model[0], model[2])] == [{"precision": "3xtf32"}] * 2
    model(x).sum().backward()
    with pytest.raises(UnsupportedProblem, match="for float32 inputs"):
        layer.double()(x.double())
    with pytest.raises(UnsupportedProblem, match="precision 'some' is not known"):
        ut.Linear(8, 5, precision="some")
    with pytest.raises(TypeError, match="no option 'scale_a'"):
        ut.replace_linear(torch.nn.Linear(8, 5), scale_a=2.0)
    gated = ut.Linear(8, 4, activation="swiglu", gate_layout="halves", deterministic=True)
    assert "deterministic=True" in repr(gated)
    gated.double()(x.double())


def test_use_has_the_options_of_its_products():
    a, b = draw(3, 4, dtype=torch.float32), draw(4, 5, dtype=torch.float32)
    with ut.use(device="cpu", precision="3xtf32", backend="numpy") as used:
        torch.testing.assert_close(torch.mm(a, b), a @ b)
        torch.mm(a.double(), b.double())  # precision is for float32
    assert (used.calls, used.fallbacks) == (3, 0)
    with pytest.raises(UnsupportedProblem, match="precision 'some' is not known"):
        ut.use(device="cpu", precision="some")
    with pytest.raises(BackendUnavailable, match="no backend 'some'"):
        ut.use(device="cpu", backend="some")
