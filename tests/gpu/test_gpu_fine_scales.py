"""Scales of lines and of 128 elements of K on a GPU, against float64."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from block_factors import drawn
from call_path import scales_of_words
from gpu_cases import needs_hopper
from grouped_scales import drawn_groups

import unigemm
from unigemm.planning.tuned_plans import read
from unigemm.support import env
from unigemm.tuning.measure_torch import TorchDevice

pytestmark = pytest.mark.gpu


def on_gpu(torch, x):
    kinds = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e8m0fnu": torch.float8_e8m0fnu}
    if x.dtype.name in kinds:
        as_bytes = torch.from_numpy(np.ascontiguousarray(x).view(np.uint8)).cuda()
        return as_bytes.view(kinds[x.dtype.name])
    return torch.from_numpy(np.ascontiguousarray(x)).cuda()


@pytest.mark.parametrize("lines", itertools.product((1, 128), repeat=2))
@pytest.mark.parametrize("seed", range(4))
def test_blocks_are_multiplied_by_their_scales(lines, seed):
    torch = pytest.importorskip("torch")
    needs_hopper()
    rng = random.Random(seed)
    for _ in range(4):
        stack = rng.choice([(), (3,)])
        sizes = rng.randint(1, 700), rng.randint(1, 700), rng.randint(129, 2500)
        if rng.random() < 0.5:
            sizes = (sizes[0], sizes[1] // 16 * 16 + 16, sizes[2] // 16 * 16)
        x = drawn(sizes, lines, stack=stack, seed=seed, exponents=rng.random() < 0.3)
        a, scale_a, scale_b = (on_gpu(torch, each) for each in (x.a, x.scale_a, x.scale_b))
        b = on_gpu(torch, x.b.swapaxes(-1, -2)).mT  # K-major
        b = b if rng.random() < 0.7 else on_gpu(torch, x.b)
        out = torch.full(x.expected.shape, float("nan"), device="cuda")
        unigemm.matmul(a, b, out, scale_a=scale_a, scale_b=scale_b)
        assert x.error(out.cpu().numpy()) < 2.0**-11, (sizes, stack)


def as_pytorch_has(torch, scale, lines, *, of_a):
    """Return scales as `torch.nn.functional.scaled_mm` takes them: outer-dim-major, or padded."""
    if lines == 1:
        return scale.t().contiguous().t() if of_a else scale.contiguous().t()
    scale = scale.t() if of_a else scale
    padded = torch.zeros(scale.shape[1], -(-scale.shape[0] // 4) * 4, device="cuda")
    padded[:, : scale.shape[0]] = scale.t()
    return padded.t()


@pytest.mark.parametrize("lines", [(1, 128), (1, 1), (128, 1)])
def test_they_agree_with_pytorchs(lines):
    torch = pytest.importorskip("torch")
    needs_hopper()
    import unigemm.torch as ut

    if not hasattr(torch.nn.functional, "scaled_mm"):
        pytest.skip("this PyTorch has no scaled_mm")
    kinds = torch.nn.functional.ScalingType
    named = {1: kinds.BlockWise1x128, 128: kinds.BlockWise128x128}
    x = drawn((256, 512, 1024), lines)
    a, b = on_gpu(torch, x.a), on_gpu(torch, x.b.T).T
    scale_a, scale_b = on_gpu(torch, x.scale_a), on_gpu(torch, x.scale_b)
    given = (
        a, b,
        as_pytorch_has(torch, scale_a, lines[0], of_a=True), named[lines[0]],
        as_pytorch_has(torch, scale_b, lines[1], of_a=False), named[lines[1]],
    )  # fmt: skip
    theirs = torch.nn.functional.scaled_mm(*given)
    with ut.use() as used:
        inside = torch.nn.functional.scaled_mm(*given)
    assert (used.calls, used.fallbacks) == (1, 0)
    direct = unigemm.matmul(a, b, scale_a=scale_a, scale_b=scale_b, dtype="bfloat16")
    for ours in (ut.scaled_mm(*given), inside, direct):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1.0)
    odd = ut.scaled_mm(
        a[:201], b[:, :333], given[2][:201] if lines[0] == 1 else given[2], given[3],
        given[4][:333] if lines[1] == 1 else given[4][:, :3], given[5], output_dtype=torch.float32,
    )  # fmt: skip
    low = x.expected[:201, :333]
    assert (abs(odd.cpu().double().numpy() - low) <= 2.0**-11 * x.magnitude[:201, :333]).all()


def test_pytorchs_recipes_for_the_whole_and_for_lines_are_ours_inside_use():
    torch = pytest.importorskip("torch")
    needs_hopper()
    import unigemm.torch as ut

    a = torch.randn(64, 256, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(128, 256, device="cuda").to(torch.float8_e4m3fn).t()
    rows, columns = torch.rand(64, 1, device="cuda"), torch.rand(1, 128, device="cuda")
    one, bias = torch.tensor(0.5, device="cuda"), torch.rand(128, device="cuda").bfloat16()
    for of_a, of_b in ((rows, columns), (one, one)):
        for added in (None, bias):

            def run(of_a=of_a, of_b=of_b, added=added):
                return torch._scaled_mm(a, b, of_a, of_b, added, out_dtype=torch.bfloat16)

            theirs = run()
            with ut.use() as used:
                ours = run()
                compiled = torch.compile(run)()
            assert (used.calls, used.fallbacks) == (2, 0), used.reasons
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=0.1)
            torch.testing.assert_close(compiled, theirs, rtol=2e-2, atol=0.1)


def test_pytorchs_groups_with_scales_of_rows_are_ours_inside_use():
    torch = pytest.importorskip("torch")
    needs_hopper()
    import unigemm.torch as ut

    if not hasattr(torch.nn.functional, "scaled_grouped_mm"):
        pytest.skip("this PyTorch has no scaled_grouped_mm")
    row_wise = torch.nn.functional.ScalingType.RowWise
    kind, there = torch.float8_e4m3fn, {"device": "cuda"}
    offs = torch.tensor([48, 48, 208], dtype=torch.int32, **there)
    tokens = torch.randn(208, 256, **there).to(kind)
    experts = torch.randn(3, 128, 256, **there).to(kind).mT
    rows, columns = torch.rand(208, **there), torch.rand(3, 128, **there)
    given = tokens, experts, rows, row_wise, columns, row_wise
    theirs = torch.nn.functional.scaled_grouped_mm(*given, offs=offs)
    with ut.use() as used:
        inside = torch.nn.functional.scaled_grouped_mm(*given, offs=offs)
        older = torch._scaled_grouped_mm(
            tokens, experts, rows, columns, offs, out_dtype=torch.bfloat16
        )
    assert (used.calls, used.fallbacks) == (2, 0), used.reasons
    for ours in (inside, older, ut.scaled_grouped_mm(*given, offs=offs)):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=0.1)


@pytest.mark.filterwarnings("error::unigemm.TuningWarning")
@pytest.mark.parametrize(
    "words",
    [("row", "column"), ("1x128", "128x128"), ("128x128:float8_e8m0fnu", "1x128:float8_e8m0fnu")],
)
def test_products_with_scales_are_tuned(words, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    needs_hopper()
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path))
    a = unigemm.ArraySpec((333, 1152), "float8_e4m3fn")
    b = unigemm.ArraySpec((1152, 512), "float8_e4m3fn", "F")
    scales = scales_of_words(*words, a, b)
    plan = unigemm.autotune(a, b, dtype="bfloat16", candidates=3, budget=0.05, **scales)
    assert plan.measured_us > 0
    device = TorchDevice()
    given = {name: device.operand(x.shape, x.dtype, False, 0) for name, x in scales.items()}
    x, y = (device.operand(each.shape, each.dtype, each is b, 0) for each in (a, b))
    with unigemm.autotuning(candidates=3, budget=0.05):
        got = unigemm.matmul(x, y, **given)  # of float32: not what was tuned above
    expected, sizes = device.products(
        x, y, range(333), () if "row" in words else tuple(given.values())
    )
    if "row" in words:
        both = (given["scale_a"] * given["scale_b"]).cpu().numpy()
        expected, sizes = expected * both, sizes * abs(both)
    assert (abs(got.cpu().numpy() - expected) <= 2.0**-11 * sizes).all()
    tuned = read(env.own_tuning_file())
    assert {str(each.plan.problem.d.dtype) for each in tuned} == {"bfloat16", "float32"}


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "int8"])
def test_rows_and_columns_have_scales_of_their_own(kind):
    torch = pytest.importorskip("torch")
    needs_hopper()
    rng = np.random.default_rng(5)
    for m, n, k in ((333, 777, 555), (16, 4096, 1024), (1024, 512, 2048)):
        a = on_gpu(torch, (3 * rng.standard_normal((m, k))).astype(np.float32))
        b = on_gpu(torch, (3 * rng.standard_normal((n, k))).astype(np.float32)).T
        a, b = a.to(getattr(torch, kind)), b.to(getattr(torch, kind))
        rows, columns = torch.rand(m, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda")
        got = unigemm.matmul(a, b, scale_a=rows, scale_b=columns)
        expected = (a.double() @ b.double()) * rows * columns
        bound = 2.0**-11 * (abs(a.double()) @ abs(b.double())) * rows * columns
        assert (abs(got - expected) <= bound).all()


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("m", (1, 128)), ("n", (128, 1)), ("rows", (128, 128)), ("rows", (1, 128)), ("m", (1, 1)),
        ("k", (1, 1)), ("k", (1, 128)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(2))
def test_groups_have_scales_of_blocks(form, lines, seed):
    torch = pytest.importorskip("torch")
    needs_hopper()
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, rng.randint(2, 300)]) for _ in range(9)]
    total = sum(sizes) + 30 if form != "rows" else max(sizes) + 5
    n, k = (768, 1024) if seed else (rng.randint(100, 700), rng.randint(129, 1500))
    x = drawn_groups(form, sizes, total, n, k, lines, seed, exponents=seed == 1)
    a, scale_a, scale_b = (on_gpu(torch, each) for each in (x.a, x.scale_a, x.scale_b))
    b = on_gpu(torch, x.b.swapaxes(-1, -2)).mT
    ends = {name: torch.from_numpy(each).cuda() for name, each in x.ends.items()}
    out = torch.full(x.expected.shape, float("nan"), device="cuda")
    unigemm.grouped_matmul(
        a, b, ends.get("offsets"), out, scale_a=scale_a, scale_b=scale_b, rows=ends.get("rows")
    )
    assert x.error(out.cpu().numpy()) < 2.0**-11, (sizes, n, k)


@pytest.mark.parametrize("lines", [(1, 1), (1, 128)])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_pairs_of_a_gate_have_scales_of_their_own_columns(layout, lines):
    torch = pytest.importorskip("torch")
    needs_hopper()
    x = drawn((500, 1040, 900), lines)
    options = {"activation": "swiglu", "gate_layout": layout, "dtype": "float32"}
    a, scale_a, scale_b = (on_gpu(torch, each) for each in (x.a, x.scale_a, x.scale_b))
    b = on_gpu(torch, x.b.T).T
    got = unigemm.matmul(a, b, scale_a=scale_a, scale_b=scale_b, **options)
    expected = unigemm.matmul(x.a, x.b, scale_a=x.scale_a, scale_b=x.scale_b, **options)
    assert abs(got.cpu().numpy() - expected).max() < 2.0**-10 * abs(expected).max()
