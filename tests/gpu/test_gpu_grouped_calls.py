"""`unigemm.grouped_matmul` and what frameworks have of it, on a GPU: from call to result."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from gpu_cases import needs_hopper
from grouped_cases import FORMS, Sizes, ends, operands, reference, shapes

import unigemm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.gpu

S = Sizes((70, 0, 1, 133, 8), rest=30, other=80, inner=144)
BACKENDS = ("auto", "cute_simt", "cute_wgmma", "cutile")


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "cute_wgmma":
        needs_hopper()
    return request.param


def on_gpu(x, dtype=torch.bfloat16):
    return torch.from_numpy(np.ascontiguousarray(x)).cuda().to(dtype)


def multiply(form, a, b, found, *more, **options):
    if form == "rows":
        return unigemm.grouped_matmul(a, b, None, *more, rows=found, **options)
    return unigemm.grouped_matmul(a, b, found, *more, **options)


def drawn(form, s=S, backend="auto", dtype=torch.bfloat16):
    """Return operands and ends on the GPU, and their numbers; of lines that the backend takes."""
    a, b = operands(form, s, np.float32)
    found = ends(form, s).astype(np.int32)
    x, y = on_gpu(a, dtype), on_gpu(b, dtype)
    if backend == "cutile":  # no group begins within a line
        x = x.mT.contiguous().mT if form == "k" else x
        y = y.mT.contiguous().mT if form == "n" or dtype.itemsize == 1 else y
    return x, y, on_gpu(found, torch.int32), (a, b, found)


def bias_of(form):
    rng = np.random.default_rng(5)
    n = shapes(form, S)[2][-1]
    bias = rng.integers(-9, 9, (S.count, n) if form != "n" else (S.count, S.other, 1))
    return bias.astype("f4")


@pytest.mark.parametrize("rest", ["zeros", "untouched"])
@pytest.mark.parametrize("form", FORMS)
def test_epilogues_are_of_each_group_and_not_behind_them(backend, form, rest):
    a, b, found, numbers = drawn(form, backend=backend)
    bias = bias_of(form)
    shape = shapes(form, S)[2]
    out, preact = (torch.full(shape, 7, device="cuda", dtype=torch.float32) for _ in range(2))
    amax = torch.full((1,), 7, device="cuda", dtype=torch.float32)
    multiply(
        form, a, b, found, out, bias=on_gpu(bias, torch.float32), activation="relu",
        preact_out=preact, amax_out=amax, rest=rest, backend=backend,
    )  # fmt: skip
    kept = np.full(shape, 7.0) if rest == "untouched" else None

    def before(acc, g, at):
        return acc + bias[g]

    def after(acc, g, at):
        return np.maximum(acc + bias[g], 0)

    np.testing.assert_array_equal(preact.cpu(), reference(form, *numbers, before, kept))
    np.testing.assert_array_equal(out.cpu(), reference(form, *numbers, after, kept))
    assert amax.item() == reference(form, *numbers, after).max()


@pytest.mark.parametrize("by_group", [True, False])
@pytest.mark.parametrize("form", ["m", "k", "rows"])
def test_sums_of_results_are_of_each_group_or_of_all(backend, form, by_group):
    if backend == "cutile":
        pytest.skip("its kernels add up no results")
    a, b, found, numbers = drawn(form)
    n = shapes(form, S)[2][-1]
    total = torch.full((S.count, n) if by_group else (n,), 7, device="cuda", dtype=torch.float32)
    sums = np.zeros((S.count, n))

    def added_up(part, g, at):
        sums[g] = part.sum(0)
        return part

    result = multiply(
        form, a, b, found, bias_grad_out=total, alpha=1.0, dtype=torch.float32, backend=backend
    )
    np.testing.assert_array_equal(result.cpu(), reference(form, *numbers, added_up))
    np.testing.assert_array_equal(total.cpu(), sums if by_group else sums.sum(0))


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_all_dtypes_are_grouped_from_poisoned_memory(form, dtype, layout):
    a, b = operands(form, S, np.float32, (layout, "padded"), seed=3)
    found = ends(form, S)
    x = torch.from_numpy(np.ascontiguousarray(a.base if a.base is not None else a)).cuda()
    x = x.to(dtype).mT if layout == "columns" else x.to(dtype)
    y = on_gpu(b, dtype)
    result = multiply(form, x, y, on_gpu(found, torch.int64))
    assert result.dtype is dtype
    np.testing.assert_array_equal(result.double().cpu(), reference(form, a, b, found))


@pytest.mark.parametrize("gate_layout", ["interleaved", "halves"])
@pytest.mark.parametrize("form", ["m", "rows"])
def test_gated_activations_are_of_each_group(backend, form, gate_layout):
    a, b, found, numbers = drawn(form)
    a, b = a / 8, b / 8
    result = multiply(
        form, a, b, found, activation="swiglu", gate_layout=gate_layout, dtype=torch.float32,
        backend=backend,
    )  # fmt: skip

    def gated(acc, g, at):
        acc = acc / 64
        one, two = np.split(acc, 2, -1)
        if gate_layout == "interleaved":
            one, two = acc[..., ::2], acc[..., 1::2]
        return one / (1 + np.exp(-one)) * two

    expected = reference(form, *numbers, gated)
    np.testing.assert_allclose(result.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "cutile"])
@pytest.mark.parametrize("form", FORMS)
def test_float8_has_a_scale_for_each_group(form, backend):
    needs_hopper()
    if (form, backend) == ("k", "cutile"):
        pytest.skip("of 8 bits it takes K-major operands, whose lines groups of K would divide")
    a, b, found, numbers = drawn(form, backend=backend, dtype=torch.float8_e4m3fn)
    scales = np.array([0.5, 8, 2, 4, 1], "f4")
    of = on_gpu(scales, torch.float32)
    expected = reference(form, *numbers, lambda acc, g, at: acc * 2 * scales[g])
    for given in ({"scale_a": of, "scale_b": 2.0}, {"scale_b": of, "scale_a": of[1:2] / 4}):
        result = multiply(form, a, b, found, backend=backend, **given)
        np.testing.assert_array_equal(result.cpu(), expected)


@pytest.mark.parametrize("form", FORMS)
def test_cupy_arrays_are_grouped(form):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    a, b = operands(form, S, np.float32)
    found = ends(form, S)
    result = multiply(form, cupy.asarray(a), cupy.asarray(b), cupy.asarray(found))
    np.testing.assert_array_equal(result.get(), reference(form, a, b, found))
    with pytest.raises(unigemm.LibraryMismatch):
        multiply(form, cupy.asarray(a), cupy.asarray(b), found)


def test_no_call_waits_for_the_device():
    import unigemm.torch as ut

    a, b, offs, _ = drawn("m")
    x, w = a.nan_to_num().requires_grad_(), b.clone().requires_grad_()
    ut.grouped_mm(x, w, offs=offs).sum().backward()  # plans and compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        ut.grouped_mm(x, w, offs=offs).sum().backward()
        unigemm.grouped_matmul(a, b, offs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_offsets_on_another_device_are_refused():
    a, b, offs, _ = drawn("m")
    with pytest.raises(unigemm.DeviceMismatch, match="offsets is on cpu"):
        unigemm.grouped_matmul(a, b, offs.cpu())


def looped(a, b, offs):
    ends = [0, *offs.tolist()]
    rows = [a[i:j] @ b[g] for g, (i, j) in enumerate(pairwise(ends))]
    return torch.cat([*rows, a.new_zeros(len(a) - ends[-1], b.shape[-1])])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_are_those_of_a_loop(dtype, compiled):
    import unigemm.torch as ut

    a, b, offs, _ = drawn("m")
    a = a.nan_to_num()

    def ours(a, b, offs):
        return ut.grouped_mm(a, b, offs=offs)

    found = []
    for function in (looped, torch.compile(ours, fullgraph=True) if compiled else ours):
        x, w = (t.to(dtype).requires_grad_() for t in (a, b))
        result = function(x, w, offs)
        result.backward(torch.ones_like(result) / 4)
        found.append((result, x.grad, w.grad))
    for theirs, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.05)


def test_use_computes_pytorchs_grouped_product_and_its_gradients():
    import unigemm.torch as ut

    function = getattr(torch.nn.functional, "grouped_mm", None)
    if function is None:
        pytest.skip("this version of PyTorch has none")
    s = Sizes((16, 0, 24, 8), other=64, inner=32)  # what PyTorch's takes
    a, b, offs, _ = drawn("m", s)
    found = []
    for device in (None, "cuda"):
        x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
        if device is None:
            result = function(x, w, offs=offs)
            result.backward(torch.ones_like(result))  # PyTorch's takes no strides of 0
        else:
            with ut.use(device=device) as used:
                result = function(x, w, offs=offs)
                result.backward(torch.ones_like(result))
            assert (used.calls, used.fallbacks) == (3, 0), used.reasons
        found.append((result, x.grad, w.grad))
    for theirs, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_layer_of_experts_in_a_graph_follows_its_router():
    import unigemm.torch as ut

    a, b, offs, _ = drawn("m")
    a = a.nan_to_num()
    down = torch.randn(S.count, S.other, 64, device="cuda").bfloat16()

    def layer():
        return ut.grouped_mm(torch.relu(ut.grouped_mm(a, b, offs=offs)), down, offs=offs)

    with torch.no_grad():
        layer()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = layer()
        rng = np.random.default_rng(0)
        for _ in range(20):
            new = np.sort(rng.integers(0, S.total + 1, S.count)).astype(np.int32)
            offs.copy_(torch.from_numpy(new))
            graph.replay()
            expected = looped(torch.relu(looped(a, b, offs)), down, offs)
            torch.testing.assert_close(result, expected, rtol=0.02, atol=0.05)
            assert not result[new[-1] :].any()


@pytest.mark.parametrize("way", ["autotune", "autotuning"])
def test_groups_with_an_epilogue_are_tuned(way, monkeypatch, tmp_path):
    from unigemm.planning import tuned_plans
    from unigemm.planning.tuned_plans import read
    from unigemm.support.env import own_tuning_file

    monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path))
    tuned_plans.forget()
    a, b, offs, numbers = drawn("m")
    bias = on_gpu(bias_of("m"), torch.float32)
    given = {"bias": bias, "activation": "relu", "dtype": torch.float32}
    if way == "autotune":
        unigemm.autotune(a, b, offsets=offs, candidates=2, budget=0.02, **given)
    else:
        with unigemm.autotuning(candidates=2, budget=0.02):
            unigemm.grouped_matmul(a, b, offs, **given)
    (entry,) = read(own_tuning_file())
    assert entry.plan.problem.groups is not None
    found = unigemm.grouped_matmul(a, b, offs, **given)
    expected = reference("m", *numbers, lambda acc, g, at: np.maximum(acc + bias_of("m")[g], 0))
    np.testing.assert_array_equal(found.cpu(), expected)
    tuned_plans.forget()
