"""Scales of lines and of blocks in `unigemm.torch`: recipes, transforms, PyTorch's own kernel."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from block_factors import drawn
from needed import needed

torch = needed("torch")

import unigemm  # noqa: E402
import unigemm.torch as ut  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
ONE, ROWS, BLOCKS, SQUARES = "TensorWise", "RowWise", "BlockWise1x128", "BlockWise128x128"
NAMED = {1: BLOCKS, 128: SQUARES}


def draw(*shape, dtype=E4M3, seed=0):
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(shape, generator=generator).to(dtype)


def tensor(x):
    kinds = {"float8_e4m3fn": E4M3, "float8_e5m2": E5M2, "float8_e8m0fnu": E8M0}
    if x.dtype.name in kinds:
        return torch.from_numpy(x.view("u1").copy()).view(kinds[x.dtype.name])
    return torch.from_numpy(x.copy())


def product(sizes, lines, **how):
    """Return a drawn product, and its arrays as tensors."""
    x = drawn(sizes, lines, **how)
    return x, [tensor(each) for each in (x.a, x.b, x.scale_a, x.scale_b)]


def as_pytorch_has(scale, lines, of_a, *, padded):
    """Return scales of blocks as PyTorch lays them out."""
    if lines == 1:
        return scale if of_a else scale.t()
    scale = scale.t() if of_a else scale
    more = -scale.shape[0] % 4 if padded else 0
    rest = torch.full((more, scale.shape[1]), 9).to(scale.dtype)
    return torch.cat([scale.float(), rest.float()]).to(scale.dtype)


@pytest.mark.parametrize("output", [torch.bfloat16, torch.float32, torch.float16, E5M2, None])
@pytest.mark.parametrize("shape", [(33, 300, 70), (1, 16, 1), (3, 5, 7)])
def test_scales_of_the_whole_and_of_lines_give_what_pytorchs_own_give(shape, output):
    m, k, n = shape
    a, b = draw(m, k), draw(n, k).t()
    bias = torch.randn(n).to(torch.bfloat16 if output is not torch.float16 else output)
    rows, columns = torch.rand(m, 1) + 0.5, torch.rand(1, n) + 0.5
    for of_a, of_b, recipe in ((rows, columns, ROWS), (rows[:1], torch.tensor(0.25), ONE)):
        named = getattr(F.ScalingType, recipe)
        for added in (None, bias):
            given = (a, b, of_a, named, [of_b], [named])
            options = {"bias": added, "output_dtype": output}
            theirs, ours = F.scaled_mm(*given, **options), ut.scaled_mm(*given, **options)
            assert ours.dtype is theirs.dtype
            bits = {E4M3: 2**-3, E5M2: 2**-2}.get(ours.dtype, 2**-7)
            torch.testing.assert_close(ours.float(), theirs.float(), rtol=bits, atol=1e-5)


@pytest.mark.parametrize("of_a", [1, 128])
@pytest.mark.parametrize("of_b", [1, 128])
@pytest.mark.parametrize("sizes", [(33, 200, 300), (130, 3, 128), (5, 4, 17)])
def test_scales_of_blocks_are_read_as_pytorch_lays_them_out(sizes, of_a, of_b):
    for exponents, padded in ((False, False), (False, True), (True, True)):
        if exponents and sizes[2] < 33:
            continue  # Blackwell's, of 32 elements
        x, (a, b, scale_a, scale_b) = product(sizes, (of_a, of_b), exponents=exponents)
        own = as_pytorch_has(scale_a, of_a, True, padded=padded)
        other = as_pytorch_has(scale_b, of_b, False, padded=padded)
        recipes = NAMED[of_a], F.ScalingType.__members__[NAMED[of_b]]
        got = ut.scaled_mm(a, b, own, recipes[0], other, recipes[1], output_dtype=torch.float32)
        assert x.error(got) < 1e-6


def test_recipes_stay_in_a_graph_of_any_sizes():
    kinds = F.ScalingType

    @partial(torch.compile, backend="aot_eager", fullgraph=True, dynamic=True)
    def compiled(a, b, scale_a, scale_b):
        options = {"output_dtype": torch.float32, "swizzle_a": F.SwizzleType.NO_SWIZZLE}
        recipes = kinds.BlockWise1x128, kinds.BlockWise128x128
        return ut.scaled_mm(a, b, scale_a, recipes[0], scale_b, recipes[1], **options)

    torch._dynamo.reset()
    for sizes in ((33, 200, 300), (40, 300, 600)):
        x, (a, b, scale_a, scale_b) = product(sizes, (1, 128))
        scale_b = as_pytorch_has(scale_b, 128, False, padded=True)
        assert x.error(compiled(a, b, scale_a, scale_b)) < 1e-6


#: Products by name, of E5M2 by E4M3.
FIVES = {
    "scaled_mm": partial(ut.scaled_mm, draw(4, 32, dtype=E5M2), draw(32, 8)),
    "scaled_grouped_mm": partial(ut.scaled_grouped_mm, draw(2, 4, 32, dtype=E5M2), draw(2, 32, 8)),
}


@pytest.mark.parametrize("name", FIVES)
def test_quantised_results_have_the_type_that_is_given(name):
    of_none = {"scaled_mm": E5M2, "scaled_grouped_mm": E4M3}[name]  # as without quantize_out
    torch._dynamo.reset()
    one = torch.tensor(0.5)
    run = partial(FIVES[name], one, ONE, one, ONE, quantize_out="row")
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for given, dtype in (
        ({}, E4M3),
        ({"output_dtype": None}, of_none),
        ({"output_dtype": E5M2}, E5M2),
        ({"output_dtype": E4M3}, E4M3),
    ):
        assert [x.dtype for x in run(**given)] == [dtype, torch.float32]
    assert compiled(output_dtype=E5M2)[0].dtype is E5M2
    assert compiled()[0].dtype is E4M3
    for wrong in (torch.bfloat16, torch.float16, torch.float32):
        with pytest.raises(unigemm.UnsupportedDtype, match=f"output_dtype is {str(wrong)[6:]}"):
            run(output_dtype=wrong)
    with pytest.raises(unigemm.UnsupportedDtype, match=r"pass a torch\.dtype"):
        run(output_dtype="float8_e4m3fn")


SQUARE = draw(16, 16)
OF_ROWS = {"scale_recipe_a": ROWS, "scale_recipe_b": ROWS}
OPERANDS = {
    ut.scaled_mm: {"mat_a": SQUARE, "mat_b": SQUARE},
    ut.scaled_grouped_mm: {"mat_a": SQUARE, "mat_b": SQUARE, "offs": torch.tensor([16])},
    ut.grouped_mm: {"mat_a": SQUARE, "mat_b": SQUARE, "offs": torch.tensor([16])},
}


@pytest.mark.parametrize("wrong", [None, 1.0, [[1.0]]], ids=str)
@pytest.mark.parametrize("function", OPERANDS, ids=lambda x: x.__name__)
def test_an_operand_that_is_no_tensor_is_refused_by_its_name(function, wrong):
    scales = OF_ROWS | {"scale_a": torch.ones(16), "scale_b": torch.ones(16)}
    scales = {} if function is ut.grouped_mm else scales
    for name in OPERANDS[function]:
        if name == "offs" and wrong is None:
            continue
        with pytest.raises(unigemm.LibraryMismatch, match=f"{name} is a {type(wrong).__name__}"):
            function(**{**OPERANDS[function], **scales, name: wrong})


def test_what_is_no_recipe_of_this_kind_is_refused_in_words():
    a, b, one = draw(4, 256), draw(256, 8), torch.tensor(1.0)
    rows, blocks, squares = torch.ones(4, 1), torch.ones(4, 2), torch.ones(2, 1)
    call = ut.scaled_mm
    wrong = unigemm.UnsupportedProblem
    for recipe in ("BlockWise1x32", "BlockWise1x16"):
        with pytest.raises(wrong, match="Blackwell"):
            call(a, b, one, F.ScalingType.__members__[recipe], one, ONE)
    for error, words, run in (
        (wrong, "Blackwell", lambda: call(a, b, [one, one], [ONE, ONE], one, ONE)),
        (wrong, "Blackwell", lambda: call(a, b, one, ONE, one, ONE, F.SwizzleType.SWIZZLE_32_4_4)),
        (wrong, "use one of TensorWise", lambda: call(a, b, one, "Rows", one, ONE)),
        (wrong, "use one of TensorWise", lambda: call(a, b, one, 17, one, ONE)),
        (wrong, "both operands", lambda: call(a, b, blocks, BLOCKS, one, ONE)),
        (wrong, "no gradients", lambda: call(a, b, one.clone().requires_grad_(), ONE, one, ONE)),
        (wrong, "transpose", lambda: call(a, b, one, ONE, one, ONE, contraction_dim=(1, 1))),
        (unigemm.ShapeMismatch, r"it is one element", lambda: call(a, b, rows, ONE, one, ONE)),
        (unigemm.ShapeMismatch, r"\(4, 1\)", lambda: call(a, b, blocks, ROWS, one, ONE)),
        (unigemm.ShapeMismatch, r"\(8, 2\)",
         lambda: call(a, b, blocks, BLOCKS, torch.ones(2, 8), BLOCKS)),
        (unigemm.ShapeMismatch, r"\(2, 1\) or \(4, 1\)",
         lambda: call(a, b, blocks, BLOCKS, squares.t(), SQUARES)),
        (unigemm.ShapeMismatch, "2 are needed", lambda: call(a[0], b, one, ONE, one, ONE)),
        (unigemm.UnsupportedDtype, "float32", lambda: call(a, b, one.double(), ONE, one, ONE)),
        (unigemm.UnsupportedDtype, "float8", lambda: call(a.int(), b, one, ONE, one, ONE)),
        (unigemm.UnsupportedDtype, "torch.dtype",
         lambda: call(a, b, one, ONE, one, ONE, output_dtype="bfloat16")),
        (unigemm.LibraryMismatch, "torch.Tensor", lambda: call(a, b, 1.0, ONE, one, ONE)),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            run()


def test_pytorchs_scaled_products_are_ours_inside_use_and_give_the_same():
    a, b, one = draw(16, 32), draw(48, 32).t(), torch.tensor(0.5)
    rows, columns = torch.rand(16, 1), torch.rand(1, 48)
    bias = torch.rand(48).bfloat16()
    out = torch.empty(16, 48)
    tensor_wise, row_wise = F.ScalingType.TensorWise, F.ScalingType.RowWise
    for run in (
        lambda: torch._scaled_mm(a, b, one, one),
        lambda: torch._scaled_mm(a, b, rows, columns, bias, out_dtype=torch.bfloat16),
        lambda: torch._scaled_mm(a, b, one, one, scale_result=one, out_dtype=torch.float32),
        lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.float32, out=out).clone(),
        lambda: F.scaled_mm(a, b, one, tensor_wise, one, tensor_wise),
        lambda: F.scaled_mm(a, b, rows, row_wise, columns, row_wise, bias=bias),
    ):
        theirs = run()
        with ut.use(device="cpu") as used:
            ours = run()
        assert (used.calls, used.fallbacks) == (1, 0)
        assert ours.dtype is theirs.dtype
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-3, atol=1e-6)


def test_use_multiplies_with_blocks_which_pytorchs_kernel_for_cpus_does_not():
    x, (a, b, scale_a, scale_b) = product((33, 200, 300), (1, 128))
    padded = as_pytorch_has(scale_b, 128, False, padded=True)
    kinds = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
    with ut.use(device="cpu") as used:
        first = torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.float32)
        recipes = (scale_a, kinds[0], padded, kinds[1])
        second = F.scaled_mm(a, b, *recipes, output_dtype=torch.float32)
    assert used.calls == 2
    assert max(map(x.error, (first, second))) < 1e-6


def test_use_leaves_to_pytorch_what_means_something_else_there():
    a, b, one = draw(16, 32), draw(48, 32).t(), torch.tensor(0.5)
    with ut.use(device="cpu") as used:
        torch._scaled_mm(a, b, one, one, scale_result=one)
        assert used.fallbacks == 1
        with pytest.raises(ValueError, match="Invalid scaling") as caught:
            torch._scaled_mm(a.float(), b.float(), one, one)
    assert not isinstance(caught.value, unigemm.UnigemmError)
    assert used.fallbacks == 1


@pytest.mark.parametrize("lines", [(1, 128), (1, 1), (128, 1)])
def test_stacks_layers_and_graphs_take_scales_of_blocks(lines):
    x, (a, b, scale_a, scale_b) = product((33, 140, 300), lines, stack=(2,))
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    assert x.error(ut.bmm(a, b, **scales)) < 1e-6
    torch._dynamo.reset()
    compiled = torch.compile(partial(ut.matmul, **scales), backend="aot_eager", fullgraph=True)
    assert x.error(compiled(a, b)) < 1e-6
    x, (a, b, scale_a, scale_b) = product((33, 140, 300), lines)
    layer = partial(ut.linear, a, b.t().contiguous(), scale_a=scale_a, scale_b=scale_b)
    assert x.error(layer()) < 1e-6
    biased = layer(bias=torch.ones(140).bfloat16(), dtype=torch.bfloat16)
    expected = torch.from_numpy(x.expected + 1).bfloat16()
    torch.testing.assert_close(biased, expected, rtol=2**-7, atol=1e-3)
    out = torch.empty(33, 140)
    ut.matmul(a, b, out=out, scale_a=scale_a, scale_b=scale_b)
    assert x.error(out) < 1e-6


@pytest.mark.parametrize("mask", range(1, 16))
@pytest.mark.parametrize("kind", ["blocks", "lines", "whole", "int8"])
def test_vmap_maps_operands_and_scales(kind, mask):
    m, k, n = 5, 200, 9
    dtype = torch.int8 if kind == "int8" else E4M3
    shapes = {"blocks": ((m, 2), (2, 1)), "whole": ((), (1,))}.get(kind, ((m, 1), (1, n)))
    plain = [(3 * draw(*s, dtype=torch.float32)).to(dtype) for s in ((m, k), (k, n))]
    plain += [torch.rand(s, generator=torch.Generator().manual_seed(i)) + 1
              for i, s in enumerate(shapes)]  # fmt: skip
    dims = tuple((x.dim() and i % 2) if mask >> i & 1 else None for i, x in enumerate(plain))
    args = [
        x if d is None else torch.stack([x.float(), 2 * x.float(), x.float() / 4], d).to(x.dtype)
        for x, d in zip(plain, dims, strict=True)
    ]

    def multiply(a, b, scale_a, scale_b):
        return ut.matmul(a, b, scale_a=scale_a, scale_b=scale_b)

    mapped = torch.vmap(multiply, dims)(*args)
    for i in range(3):
        one = [x if d is None else x.select(d, i) for x, d in zip(args, dims, strict=True)]
        torch.testing.assert_close(mapped[i], multiply(*one), rtol=1e-5, atol=1e-4)


def test_tensors_without_data_have_scaled_products_of_their_shape():
    a, b = (torch.empty(s, dtype=E4M3, device="meta") for s in ((4, 256), (256, 6)))
    scales = [torch.empty(s, device="meta") for s in ((4, 2), (6, 2))]
    got = ut.scaled_mm(a, b, scales[0], BLOCKS, scales[1], BLOCKS, output_dtype=None)
    assert (got.shape, got.dtype) == ((4, 6), E4M3)
    eights = [x.to(torch.int8) for x in (a, b)]
    assert ut.matmul(*eights, scale_a=torch.empty(4, 1, device="meta")).dtype is torch.float32


def test_layers_of_eight_bits_have_a_bias_and_its_gradient():
    a, weight = (draw(*s, dtype=torch.float32).mul(9).to(torch.int8) for s in ((4, 16), (6, 16)))
    bias, rows, columns = torch.randn(6), torch.rand(4, 1), torch.rand(1, 6)

    def theirs(bias):
        return F.silu((a.float() @ weight.t().float()) * rows * columns / 64 + bias)

    scales = {"scale_a": rows / 64, "scale_b": columns}
    ours = partial(ut.linear, a, weight, activation="silu", **scales)
    torch._dynamo.reset()
    for run in (ours, torch.compile(ours, backend="aot_eager", fullgraph=True)):
        torch.testing.assert_close(run(bias), theirs(bias))
        half = run(bias.bfloat16(), dtype=torch.bfloat16)
        torch.testing.assert_close(half, theirs(bias.bfloat16()).bfloat16(), rtol=2**-6, atol=1e-3)
        own, other = (bias.clone().requires_grad_() for _ in range(2))
        run(own).sum().backward()
        theirs(other).sum().backward()
        torch.testing.assert_close(own.grad, other.grad)
    one = torch.ones(6)
    torch.testing.assert_close(
        torch.func.jvp(ours, (bias,), (one,)), torch.func.jvp(theirs, (bias,), (one,))
    )
    with pytest.raises(unigemm.UnsupportedDtype, match="floating-point products"):
        ut.linear(a, weight, bias)


#: Shapes of operands, offsets, and how many scales of lines each operand has, as PyTorch has them.
GROUPS = {
    "rows": ((10, 32), (3, 32, 8), (3, 3, 9), (10,), (3, 8)),
    "columns": ((3, 8, 32), (32, 10), (3, 3, 9), (3, 8), (10,)),
    "K": ((8, 40), (40, 6), (7, 7, 30), (24,), (18,)),
    "stacks": ((3, 5, 32), (3, 32, 8), None, (3, 5), (3, 8)),
}


def by_group(a, b, ends, of_a, of_b):
    """Multiply group by group, in float64."""
    a, b = a.double(), b.double()
    ends = [0, *(ends or ())]
    parts = [slice(*each) for each in pairwise(ends)]
    if a.dim() == b.dim() == 3:
        return (a * of_a[..., None]) @ (b * of_b[:, None])
    if a.dim() == 2 and b.dim() == 2:
        rows, columns = of_a.view(len(parts), -1), of_b.view(len(parts), -1)
        return torch.stack([a[:, p] @ b[p] * rows[i, :, None] * columns[i]
                            for i, p in enumerate(parts)])  # fmt: skip
    if a.dim() == 2:
        result = torch.zeros(a.shape[0], b.shape[-1], dtype=torch.float64)
        for i, p in enumerate(parts):
            result[p] = (a[p] @ b[i]) * of_a[p, None] * of_b[i]
        return result
    return by_group(b.mT, a.mT, ends[1:], of_b, of_a).mT


@pytest.mark.parametrize("name", GROUPS)
def test_groups_have_scales_of_rows_as_pytorch_lays_them_out(name):
    of_a, of_b, ends, rows, columns = GROUPS[name]
    a, b = draw(*of_a), draw(*of_b)
    scale_a, scale_b = torch.rand(rows) + 0.5, torch.rand(columns) + 0.5
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    row_wise = F.ScalingType.RowWise
    multiply = partial(ut.scaled_grouped_mm, output_dtype=torch.float32)
    expected = by_group(a, b, ends, scale_a, scale_b).float()
    torch._dynamo.reset()
    for run in (multiply, torch.compile(multiply, backend="aot_eager", fullgraph=True)):
        got = run(a, b, scale_a, row_wise, [scale_b], [row_wise], offs=offs)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
    halves = ut.scaled_grouped_mm(a, b, scale_a, ROWS, torch.tensor(2.0), ONE, offs=offs)
    expected = by_group(a, b, ends, scale_a, torch.full(columns, 2.0)).bfloat16()
    torch.testing.assert_close(halves, expected, rtol=2**-7, atol=1e-3)
    meta = [x.to("meta") for x in (a, b, scale_a, scale_b)]
    offs = None if offs is None else offs.to("meta")
    assert ut.scaled_grouped_mm(*meta[:3], ROWS, meta[3], ROWS, offs=offs).shape == halves.shape


def test_groups_of_experts_have_a_bias_and_no_gradients():
    a, b, offs = draw(10, 32), draw(3, 32, 8), torch.tensor([3, 3, 9], dtype=torch.int32)
    scales = torch.rand(10), ROWS, torch.rand(3, 8), ROWS
    bias = torch.randn(3, 8).bfloat16()
    multiply = partial(ut.scaled_grouped_mm, offs=offs, output_dtype=torch.float32)
    plain, biased = (multiply(a, b, *scales, bias=x) for x in (None, bias))
    for row, group in enumerate([0, 0, 0, 2, 2, 2, 2, 2, 2]):
        torch.testing.assert_close(biased[row], plain[row] + bias[group])
    mapped = torch.vmap(lambda s: multiply(a, b, s, *scales[1:]))(torch.stack([scales[0]] * 2))
    torch.testing.assert_close(mapped, torch.stack([plain] * 2))
    for error, words, given in (
        (unigemm.UnsupportedProblem, "over the groups", (torch.ones(10, 1), BLOCKS, *scales[2:])),
        (unigemm.UnsupportedProblem, "Blackwell", (torch.ones(10), "BlockWise1x32", *scales[2:])),
        (unigemm.ShapeMismatch, r"it is \(10,\)", (torch.ones(10, 1), *scales[1:])),
        (unigemm.UnsupportedProblem, "no gradients", (scales[0].requires_grad_(), *scales[1:])),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            ut.scaled_grouped_mm(a, b, *given, offs=offs)
