"""`quantize_out` in unigemm.torch, and gates beside scales: what PyTorch sees of them."""

from __future__ import annotations

import pytest
from needed import needed

torch = needed("torch")

import unigemm  # noqa: E402
import unigemm.torch as ut  # noqa: E402
from unigemm import ShapeMismatch, UnsupportedDtype, UnsupportedProblem  # noqa: E402
from unigemm.torch.quantized_operators import OPERATORS  # noqa: E402

ops = torch.ops.unigemm
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
BLOCKS = ("row", (1, 128))
E4M3 = torch.float8_e4m3fn


def draw(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def same(got, expected):
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype is theirs.dtype
        raw = (x.contiguous().view(torch.uint8) for x in (mine, theirs))
        assert torch.equal(*raw)


A, B, C = draw(4, 40), draw(40, 300), draw(4, 300)
STACKS = draw(2, 4, 40), draw(2, 40, 300)
EIGHT = [x.to(E4M3) for x in (A, B)]
ROWS, COLUMNS = torch.rand(4, 1) + 1, torch.rand(1, 300) + 1
TOKENS, EXPERTS, ENDS = draw(9, 40), draw(3, 40, 300), torch.tensor([2, 2, 7])
LINES = {"scale_a": ROWS, "scale_b": COLUMNS}
#: What functions of this room compute, and the same by `unigemm.matmul`.
CALLS = {
    "matmul": (
        lambda **o: ut.matmul(A, B, c=C, beta=0.5, alpha=2.0, activation="relu", **o),
        lambda **o: unigemm.matmul(A, B, c=C, beta=0.5, alpha=2.0, activation="relu", **o),
    ),
    "scales": (
        lambda **o: ut.matmul(*EIGHT, **LINES, bias=C[0], **o),
        lambda **o: unigemm.matmul(*EIGHT, **LINES, bias=C[0], **o),
    ),
    "bmm": (lambda **o: ut.bmm(*STACKS, **o), lambda **o: unigemm.matmul(*STACKS, **o)),
    "addmm": (
        lambda **o: ut.addmm(C, A, B, beta=3.0, **o),
        lambda **o: unigemm.matmul(A, B, c=C, beta=3.0, **o),
    ),
    "linear": (
        lambda **o: ut.linear(STACKS[0], B.T.contiguous(), C[0], activation="silu", **o),
        lambda **o: unigemm.matmul(STACKS[0], B, bias=C[0], activation="silu", **o),
    ),
    "gated": (
        lambda **o: ut.linear(A, B.T, activation="swiglu", gate_layout="halves", **o),
        lambda **o: unigemm.matmul(A, B, activation="swiglu", gate_layout="halves", **o),
    ),
    "scaled_mm": (
        lambda **o: ut.scaled_mm(*EIGHT, ROWS, "RowWise", COLUMNS, "RowWise", **o),
        lambda **o: unigemm.matmul(*EIGHT, **LINES, **o),
    ),
    "grouped_mm": (
        lambda **o: ut.grouped_mm(TOKENS, EXPERTS, offs=ENDS, bias=C[0], **o),
        lambda **o: unigemm.grouped_matmul(TOKENS, EXPERTS, ENDS, bias=C[0], **o),
    ),
    "scaled_grouped_mm": (
        lambda **o: ut.scaled_grouped_mm(
            TOKENS.to(E4M3), EXPERTS.to(E4M3), torch.tensor(2.0), "TensorWise", torch.tensor(0.5),
            "TensorWise", offs=ENDS, **o,
        ),
        lambda **o: unigemm.grouped_matmul(
            TOKENS.to(E4M3), EXPERTS.to(E4M3), ENDS, scale_a=2.0, scale_b=0.5, **o
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", CALLS)
def test_pairs_are_those_of_unigemm_matmul(name, block):
    mine, theirs = CALLS[name]
    same(mine(quantize_out=block), theirs(quantize_out=block))
    kind = "output_dtype" if "scaled" in name else "out_dtype" if name == "grouped_mm" else "dtype"
    got = mine(quantize_out=block, **{kind: torch.int8})
    same(got, theirs(quantize_out=block, dtype="int8"))


@pytest.mark.parametrize("block", BLOCKS)
def test_graphs_have_no_break(block):
    def f(a, b, w, scale):
        h, of_h = ut.matmul(a, b, activation="relu", quantize_out=block)
        return ut.linear(h, w, scale_a=of_h, scale_b=scale, quantize_out=block)

    w, scale = draw(70, 300).to(E4M3), torch.tensor(2.0)
    scale = scale if block == "row" else torch.rand(3, 70) + 1
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (4, 7):
        a = draw(rows, 40)
        same(compiled(a, B, w, scale), f(a, B, w, scale))
    meta = f(*(x.to("meta") for x in (A, B, w, scale)))
    assert [tuple(x.shape) for x in meta] == [(4, 70), (4, 1)]


def cases():
    """Yield operators, their arguments and options."""
    scales = {"scale": 0.5}
    eight = draw(4, 40).to(torch.int8), draw(40, 300).to(torch.int8)
    yield "matmul_gated", eight, {"activation": "geglu", "gate_layout": "halves", **scales}
    for sharing in ("row", "1x128"):
        yield "matmul_quantized", (A, B, None, C[0]), {"quantize_out": sharing}
        yield "grouped_mm_quantized", (TOKENS, EXPERTS, ENDS), {"quantize_out": sharing}
    for sharing in (None, "row", "1x128", "128x128"):
        yield "quantize", (draw(4, 130),), {"dtype": torch.int8, "sharing": sharing}


def test_every_operator_is_in_the_cases():
    assert {name for name, _, _ in cases()} == {*OPERATORS}


@pytest.mark.parametrize(("name", "args", "options"), [*cases()])
def test_an_operator_passes_what_pytorch_checks_of_one(name, args, options):
    done = torch.library.opcheck(getattr(ops, name).default, args, options)
    assert set(done.values()) == {"SUCCESS"}


@pytest.mark.parametrize(("name", "args", "options"), [*cases()])
def test_a_mapped_product_is_that_of_each(name, args, options):
    op = getattr(ops, name)
    both = torch.stack([args[0], args[0].flip(0)])
    mapped = torch.vmap(lambda x: op(x, *args[1:], **options))(both)
    each = [op(x, *args[1:], **options) for x in both]
    if isinstance(mapped, torch.Tensor):
        mapped, each = (mapped,), [(x,) for x in each]
    same(mapped, [torch.stack(x) for x in zip(*each, strict=True)])


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("kind", [E4M3, torch.int8], ids=str)
def test_gates_stand_beside_scales(kind, layout):
    x, w = ((draw(*shape, dtype=torch.float32) * 2).to(kind) for shape in ((5, 40), (12, 40)))
    rows, columns, bias = torch.rand(5, 1) / 8, torch.rand(1, 12) / 8, draw(12)
    acc = x.double() @ w.double().T * rows * columns + bias
    pairs = (acc[:, ::2], acc[:, 1::2]) if layout == "interleaved" else acc.chunk(2, -1)
    expected = torch.nn.functional.silu(pairs[0]) * pairs[1]
    given = {"activation": "swiglu", "gate_layout": layout, "scale_a": rows, "scale_b": columns}
    got = ut.linear(x, w, bias, **given)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    half = ut.linear(x, w, bias, **given, dtype=torch.bfloat16)
    torch.testing.assert_close(half, expected.bfloat16(), rtol=1e-2, atol=1e-2)
    one = ut.linear(x[0], w, bias, **{**given, "scale_a": 1.0})
    assert one.shape == (6,)


def test_a_pair_of_the_callers_gets_result_and_scales():
    expected = ut.matmul(A, B, quantize_out="row")
    out = torch.zeros(4, 300, dtype=E4M3), torch.zeros(4, 1)
    got = ut.matmul(A, B, out=out, quantize_out="row")
    assert all(x is y for x, y in zip(got, out, strict=True))
    same(out, expected)
    out[1].zero_()
    ut.linear(A, B.T, out=out, quantize_out="row")
    same(out, expected)


def test_blocks_go_from_layer_to_layer_by_recipes():
    x, up, down = draw(5, 256), draw(200, 256), draw(30, 200)
    (a, of_a), (b, of_b), (c, of_c) = (
        unigemm.quantize(each, "e4m3", block=block)
        for each, block in ((x, (1, 128)), (up, (128, 128)), (down, (128, 128)))
    )
    recipes = "BlockWise1x128", "BlockWise128x128"
    h, of_h = ut.scaled_mm(a, b.T, of_a, recipes[0], of_b.T, recipes[1], quantize_out=(1, 128))
    y = ut.scaled_mm(h, c.T, of_h, recipes[0], of_c.T, recipes[1])
    exact = (x.double() @ up.double().T) @ down.double().T
    assert (y - exact).norm() < 0.08 * exact.norm()


def test_what_is_not_quantised_is_refused_in_words():
    recorded = A.clone().requires_grad_()
    weight = B.T.contiguous()
    gate = {"activation": "swiglu", "gate_layout": "halves"}
    for wrong, error, words in (
        (lambda: ut.matmul(A, B, quantize_out="rows"), UnsupportedProblem, r'\(1, 128\) or "row"'),
        (lambda: ut.matmul(A, B, quantize_out=(128, 128)), UnsupportedProblem, "quantize_out is"),
        (lambda: ut.grouped_mm(A, A, quantize_out=2), UnsupportedProblem, "quantize_out is 2"),
        (lambda: ut.matmul(A[0], B, quantize_out="row"), ShapeMismatch, "pass matrices"),
        (lambda: ut.linear(A[0], weight, quantize_out="row", **gate), ShapeMismatch, "matrices"),
        (lambda: ut.matmul(A, B, quantize_out="row", dtype=torch.bfloat16), UnsupportedDtype,
         "quantised to"),
        (lambda: ut.matmul(recorded, B, quantize_out="row"), UnsupportedProblem, "no derivatives"),
        (lambda: ut.linear(recorded, weight, dtype=torch.float32, **gate), UnsupportedProblem,
         "gated results beside scales or dtype= have no derivatives"),
        (lambda: ut.grouped_mm(recorded, B, offs=ENDS, quantize_out="row"), UnsupportedProblem,
         "no derivatives"),
        (lambda: torch.func.grad(lambda x: ut.matmul(x, B, quantize_out="row")[1].sum())(A),
         UnsupportedProblem, "no derivatives"),
        (lambda: torch.func.jvp(lambda x: ut.matmul(x, B, quantize_out="row")[1], (A,), (A,)),
         UnsupportedProblem, "no derivatives"),
        (lambda: ut.matmul(A, B, out=C, quantize_out="row"), UnsupportedProblem, "pass a pair"),
        (lambda: ut.linear(A.int(), weight.int(), dtype=torch.float32, **gate), UnsupportedDtype,
         "int32"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            wrong()
    with torch.no_grad():
        assert len(ut.matmul(recorded, B, quantize_out="row")) == 2


@pytest.mark.parametrize("block", BLOCKS)
def test_autocast_casts_what_is_quantised(block):
    a, b = draw(4, 40, dtype=torch.float32), draw(40, 300, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = ut.matmul(a, b, quantize_out=block)
    same(got, ut.matmul(a.bfloat16(), b.bfloat16(), quantize_out=block))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_operators_refuse_what_has_no_such_scales_with_data_and_without(device):
    a, b = (x.to(device) for x in (A, B))
    grouped = [x.to(device) for x in STACKS]
    for sharing in ("rows", "", "1x64"):
        with pytest.raises(UnsupportedProblem, match=r"sharing is .*use one of tensor, row"):
            ops.quantize(a, dtype=E4M3, sharing=sharing)
    for word in ("rows", "", "tensor", "128x128"):
        for run in (
            lambda word=word: ops.matmul_quantized(a, b, quantize_out=word),
            lambda word=word: ops.grouped_mm_quantized(*grouped, quantize_out=word),
        ):
            with pytest.raises(UnsupportedProblem, match=r"quantize_out is .*use one of 1x128"):
                run()
    half = torch.float16
    for run in (
        lambda: ops.quantize(a, dtype=half),
        lambda: ops.matmul_quantized(a, b, quantize_out="row", dtype=half),
        lambda: ops.grouped_mm_quantized(*grouped, quantize_out="row", out_dtype=half),
    ):
        with pytest.raises(UnsupportedDtype, match="float16, and results are quantised to"):
            run()


def test_the_name_of_one_scale_for_all_means_what_leaving_it_out_means():
    for mapped in (lambda f: f(A), lambda f: torch.vmap(f)(torch.stack([STACKS[0]] * 2))):
        one, other = (
            mapped(lambda x, how=how: ops.quantize(x, dtype=E4M3, sharing=how))
            for how in ("tensor", None)
        )
        assert torch.equal(one[0].float(), other[0].float())
        assert torch.equal(one[1], other[1])
