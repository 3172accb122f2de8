"""`unigemm.torch.QuantizedLinear`: layers of float8 and int8 with scales of rows and blocks."""

from __future__ import annotations

import io
from copy import deepcopy

import pytest
from needed import needed

torch = needed("torch")

import unigemm  # noqa: E402
import unigemm.torch as ut  # noqa: E402
from unigemm import ShapeMismatch, UnsupportedDtype, UnsupportedProblem  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
E4M3, INT8 = torch.float8_e4m3fn, torch.int8
#: Types of weights, what shares their scales, and how far results may be off.
KINDS = [(E4M3, "row"), (E4M3, (1, 128)), (E4M3, (128, 128)), (torch.float8_e5m2, "row"),
         (INT8, "row")]  # fmt: skip
OFF = {E4M3: 0.05, torch.float8_e5m2: 0.1, INT8: 0.02}


@pytest.fixture(autouse=True)
def _no_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def model(bias=True):
    return torch.nn.Sequential(
        torch.nn.Linear(300, 260, bias), torch.nn.ReLU(), torch.nn.Linear(260, 40, bias)
    )


def error(got, exact):
    return float((got.float() - exact).norm() / exact.norm())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "block"), KINDS)
def test_layers_compute_about_what_the_others_did(dtype, block, bias):
    net, x = model(bias), torch.randn(2, 7, 300)
    exact = net(x)
    assert ut.quantize_linear(net, dtype, block=block) == 2
    assert error(net(x), exact) < OFF[dtype]
    assert net(x).dtype is torch.float32
    kinds = [x.dtype for x in net.buffers()]
    half = net.bfloat16()(x.bfloat16())
    assert [x.dtype for x in net.buffers()] == kinds  # which hold what the numbers are
    assert half.dtype is torch.bfloat16
    assert error(half, exact) < 1.2 * OFF[dtype]
    assert error(net(x[0, 0]), exact[0, 0]) < 2 * OFF[dtype]


@pytest.mark.parametrize(("dtype", "block"), KINDS)
def test_pairs_go_from_layer_to_layer(dtype, block):
    net, x = model(), torch.randn(7, 300)
    out = "row" if block == "row" else (1, 128)
    first = ut.QuantizedLinear.of(net[0], dtype, block=block, activation="relu", quantize_out=out)
    second = ut.QuantizedLinear.of(net[2], dtype, block=block)
    h = first(x)
    assert (h[0].dtype, h[0].shape) == (dtype, (7, 260))
    assert second(h).dtype is torch.bfloat16
    assert error(second(h), net(x)) < 1.2 * OFF[dtype]


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_gates_are_in_the_layer(layout):
    gate = {"activation": "swiglu", "gate_layout": layout}
    plain, x = ut.Linear(300, 260, **gate), torch.randn(7, 300)
    layer = ut.QuantizedLinear.of(plain)  # which takes the activation over
    assert error(layer(x), plain(x)) < 2 * OFF[E4M3]  # of two factors
    rows = ut.QuantizedLinear.of(plain, quantize_out="row")(x)
    assert rows[0].shape == (7, 130)


def test_a_state_dict_goes_through_a_file():
    layer, x = (
        ut.QuantizedLinear.of(torch.nn.Linear(300, 260), block=(128, 128)),
        torch.randn(7, 300),
    )
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = ut.QuantizedLinear(300, 260, block=(128, 128))
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), layer(x))
    assert torch.equal(deepcopy(layer)(x), layer(x))
    assert {*layer.state_dict()} == {"weight", "weight_scale", "bias"}
    assert "dtype=torch.float8_e4m3fn, scales=128x128" in repr(layer)


@pytest.mark.parametrize(("dtype", "block"), [(E4M3, (128, 128)), (INT8, "row")])
def test_graphs_have_no_break(dtype, block):
    net = model()
    ut.quantize_linear(net, dtype, block=block)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (5, 7):
        x = torch.randn(rows, 300)
        assert torch.equal(compiled(x), net(x))


def test_only_the_chosen_layers_are_replaced_and_shared_ones_stay_shared():
    shared = torch.nn.Linear(8, 8)
    net = torch.nn.Sequential(shared, shared, torch.nn.Linear(8, 5))
    assert ut.quantize_linear(net, filter=lambda name, layer: layer.out_features == 8) == 1
    assert type(net[2]) is torch.nn.Linear
    assert net[0] is net[1]


def test_what_is_no_such_layer_is_refused_in_words():
    layer = torch.nn.Linear(8, 6)
    for wrong, kind, words in (
        (lambda: ut.QuantizedLinear(8, 6, dtype=torch.bfloat16), UnsupportedDtype, "quantised to"),
        (lambda: ut.QuantizedLinear(8, 6, dtype="int8"), UnsupportedDtype, "torch.int8"),
        (lambda: ut.QuantizedLinear(8, 6, block=None), UnsupportedProblem, "block is None"),
        (lambda: ut.QuantizedLinear(8, 6, block="rows"), UnsupportedProblem, "block is 'rows'"),
        (lambda: ut.QuantizedLinear(8, 6, dtype=INT8, block=(1, 128)), UnsupportedProblem, "rows"),
        (lambda: ut.QuantizedLinear(8, 6, activation="none"), UnsupportedProblem, "use one of"),
        (lambda: ut.QuantizedLinear(8, 5, activation="swiglu", gate_layout="halves"),
         ShapeMismatch, "even"),
        (lambda: ut.QuantizedLinear(8, 6, quantize_out="rows"), UnsupportedProblem, "quantize_out"),
        (lambda: ut.QuantizedLinear(8, 6, quantize_out="row", out_dtype=torch.half),
         UnsupportedDtype, "out_dtype is float16"),
        (lambda: ut.QuantizedLinear(8, 6, scale=2), TypeError, "no option 'scale'"),
        (lambda: ut.QuantizedLinear(None, 6), UnsupportedProblem, "in_features is None; pass an"),
        (lambda: ut.QuantizedLinear(8, -1), UnsupportedProblem, "out_features is -1; pass an int"),
        (lambda: ut.QuantizedLinear(8, 6.0), UnsupportedProblem, "out_features is 6.0; pass an"),
        (lambda: ut.QuantizedLinear(8, 6, torch.ones(6)), UnsupportedProblem, "bias is tensor"),
        (lambda: ut.QuantizedLinear(8, 6, out_dtype="float32"), UnsupportedDtype, "a torch.dtype"),
        (lambda: ut.QuantizedLinear(8, 6, out_dtype=torch.float64), UnsupportedDtype,
         "out_dtype is torch.float64, and products of torch.float8_e4m3fn give float32"),
        (lambda: ut.QuantizedLinear.of(torch.nn.ReLU()), UnsupportedProblem, "torch.nn.Linear"),
        (lambda: ut.quantize_linear(layer), UnsupportedProblem, "QuantizedLinear.of"),
        (lambda: ut.quantize_linear(torch.nn.ReLU()), UnsupportedProblem, "it has none"),
        (lambda: ut.quantize_linear(torch.nn.Sequential(layer), filter=lambda *x: False),
         UnsupportedProblem, "left out all 1"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words):
            wrong()
    with torch.enable_grad(), pytest.raises(UnsupportedProblem, match="no derivatives"):
        ut.QuantizedLinear.of(layer)(torch.ones(2, 8, requires_grad=True))
    q, scales = unigemm.quantize(torch.ones(2, 8), "int8", block="row")
    with pytest.raises(UnsupportedDtype, match="int8"):
        ut.QuantizedLinear.of(layer)((q, scales))


@pytest.mark.parametrize(("dtype", "block"), KINDS)
def test_what_a_layer_does_not_take_is_refused_in_words(dtype, block):
    layer = ut.QuantizedLinear.of(torch.nn.Linear(300, 260), dtype, block=block)
    x = torch.randn(7, 300)
    other = (1, 128) if block == "row" else "row"
    q, scales = unigemm.quantize(x, dtype, block=block if block == "row" else (1, 128))
    advice = "pass unigemm.quantize"
    other_type = unigemm.quantize(x, E4M3 if dtype == INT8 else INT8, block="row")
    other_block = unigemm.quantize(x, dtype, block=other)
    for given, kind, words in (
        (None, unigemm.LibraryMismatch, "x is a NoneType"),
        (x.numpy(), unigemm.LibraryMismatch, "x is a ndarray"),
        ([q, scales], unigemm.LibraryMismatch, "x is a list"),
        (x.to_sparse(), UnsupportedProblem, "x has layout torch.sparse_coo"),
        (x[:, :299], ShapeMismatch, r"x has shape \(7, 299\); the layer takes \(..., 300\)"),
        (x[0, 0], ShapeMismatch, "x has shape"),
        (x.int(), UnsupportedDtype, "x is int32"),
        (x.double(), UnsupportedDtype, r"x is of torch.float64.*pass x.float\(\)"),
        ((), UnsupportedProblem, f"x is a tuple of 0.*{advice}"),
        ((q, scales, scales), UnsupportedProblem, f"x is a tuple of 3.*{advice}"),
        ((q, None), unigemm.LibraryMismatch, r"x\[1\] is a NoneType"),
        ((x, scales), UnsupportedDtype, rf"x\[0\] is torch.float32.*{advice}"),
        ((q[0], scales[0]), ShapeMismatch, r"x\[0\] has shape \(300,\)"),
        (other_type, UnsupportedDtype, advice),
        (other_block, UnsupportedProblem, rf"x\[1\] has shape.*{advice}"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words):
            layer(given)
    assert layer((q, scales)).shape == (7, 260)


@pytest.mark.parametrize(("dtype", "block"), KINDS)
def test_layers_without_rows_columns_or_elements_give_what_linear_does(dtype, block):
    for k, n, rows in ((0, 6, 2), (6, 0, 2), (0, 0, 2), (6, 5, 0)):
        plain = torch.nn.Linear(k, n)
        layer, x = ut.QuantizedLinear.of(plain, dtype, block=block), torch.ones(rows, k)
        torch.testing.assert_close(layer(x), plain(x), rtol=0.1, atol=0.2)


def test_float64_is_taken_where_the_result_has_another_type():
    plain, x = torch.nn.Linear(300, 260).double(), torch.randn(7, 300).double()
    net = torch.nn.Sequential(plain)
    for wrong in (lambda: ut.QuantizedLinear.of(plain), lambda: ut.quantize_linear(net)):
        with pytest.raises(UnsupportedDtype, match=r"out_dtype=torch\.float32"):
            wrong()
    assert net[0] is plain
    layer = ut.QuantizedLinear.of(plain, out_dtype=torch.float32)
    assert layer(x).dtype is torch.float32
    assert error(layer(x), plain(x)) < OFF[E4M3]
    q, scales = ut.QuantizedLinear.of(plain, quantize_out="row")(x)
    assert error(q.float() * scales, plain(x)) < 2 * OFF[E4M3]


class Adapted(torch.nn.Linear):
    """A layer with a low-rank part beside it, as LoRA has."""

    def __init__(self, k, n):
        super().__init__(k, n)
        self.down = torch.nn.Linear(k, 2)

    def forward(self, x):
        return super().forward(x) + self.down(x).sum(-1, keepdim=True)


def test_layers_with_a_forward_of_their_own_stay_and_what_is_in_them_is_quantised():
    net, x = torch.nn.Sequential(Adapted(64, 32), ut.Linear(32, 8)), torch.randn(5, 64)
    exact, weight = net(x), net[0].weight
    assert ut.quantize_linear(net) == 2
    assert type(net[0]) is Adapted
    assert net[0].weight is weight
    assert [type(each) for each in (net[0].down, net[1])] == [ut.QuantizedLinear] * 2
    assert error(net(x), exact) < 2 * OFF[E4M3]
    alone = Adapted(64, 32)
    assert ut.quantize_linear(alone) == 1  # the one in it
    with pytest.raises(UnsupportedProblem, match="subclasses have a meaning of their own"):
        ut.QuantizedLinear.of(alone)


@pytest.mark.parametrize("dtype", [E4M3, INT8])
def test_layers_whose_weights_pytorch_reads_stay(dtype):
    encoder = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    encoder.self_attn.out_proj = torch.nn.Linear(32, 32)
    net = torch.nn.Sequential(encoder, torch.nn.Linear(32, 8)).eval()
    x = torch.randn(2, 5, 32)
    exact = net(x)
    assert ut.quantize_linear(net, dtype) == 1
    assert error(net(x), exact) < OFF[dtype]
    with pytest.raises(UnsupportedProblem, match="it has none"):
        ut.quantize_linear(torch.nn.MultiheadAttention(32, 4))


def test_hooks_and_other_forwards_are_not_lost():
    def hooked(register):
        layer = torch.nn.Linear(8, 6)
        register(layer)
        return torch.nn.Sequential(torch.nn.Linear(8, 8), layer)

    for register in (
        lambda layer: layer.register_forward_hook(lambda *x: None),
        lambda layer: layer.register_forward_pre_hook(lambda *x: None),
        lambda layer: setattr(layer, "forward", lambda x: x),
    ):
        net = hooked(register)
        with pytest.raises(UnsupportedProblem, match="leave the layer out by filter="):
            ut.quantize_linear(net)
        assert type(net[0]) is torch.nn.Linear  # nothing was replaced


def test_options_of_a_layer_are_taken_over_or_refused():
    options = {"deterministic": True, "batch_invariant": True, "backend": "numpy"}
    layer = ut.Linear(8, 6, activation="relu", **options)
    made = ut.QuantizedLinear.of(layer)
    assert made.options == options
    assert made.activation == "relu"
    assert ut.QuantizedLinear.of(layer, batch_invariant=False).options["batch_invariant"] is False
    net = torch.nn.Sequential(torch.nn.Linear(8, 6))
    ut.replace_linear(net, precision="tf32")
    with pytest.raises(UnsupportedProblem, match='pass precision="ieee"'):
        ut.quantize_linear(net)
    with pytest.raises(UnsupportedProblem, match='pass precision="ieee"'):
        ut.QuantizedLinear(8, 6, precision="tf32")
    assert ut.quantize_linear(net, precision="ieee") == 1


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_of_other_types_is_not_converted(assign):
    plain = torch.nn.Linear(300, 260)
    ours = torch.nn.Sequential(ut.QuantizedLinear.of(plain, INT8))
    before = [x.clone() for x in ours.buffers()]
    eight = ut.QuantizedLinear.of(plain, E4M3).state_dict()
    scales = ours[0].state_dict()
    for state, name in (
        (eight, "0.weight is torch.float8_e4m3fn"),
        (plain.state_dict(), "0.weight is torch.float32"),
        (scales | {"weight_scale": scales["weight_scale"].half()}, "0.weight_scale is torch.float"),
    ):
        named = {f"0.{key}": x for key, x in state.items()}
        for strict in (True, False):
            with pytest.raises(UnsupportedDtype, match=name):
                ours.load_state_dict(named, strict=strict, assign=assign)
    assert all(map(torch.equal, ours.buffers(), before))
