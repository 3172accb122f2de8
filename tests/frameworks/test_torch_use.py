"""`unigemm.torch.use`: PyTorch's own products, computed by unigemm."""

from __future__ import annotations

import logging
import threading

import pytest

# PyTorch's own samples import it, and it refuses once another test has let in Python's distutils.
import setuptools  # noqa: F401
from needed import needed
from torch_operations import torch_operations

torch = needed("torch")

import unigemm  # noqa: E402
import unigemm.torch as ut  # noqa: E402

F = torch.nn.functional
CPU = torch.device("cpu")


def draw(*shape, dtype=torch.float32, seed=None):
    generator = torch.Generator().manual_seed(sum(shape) if seed is None else seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def use(**options):
    return ut.use(device="cpu", **options)


def floating(x):
    return isinstance(x, torch.Tensor) and x.requires_grad


NAMES = ["mm", "bmm", "addmm", "baddbmm", "matmul", "__rmatmul__", "nn.functional.linear"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.complex64]


def passed_samples(op, dtype):
    """Compare what an operation gives for its samples, and its gradients; count the products."""
    count = 0
    for sample in op.sample_inputs(CPU, dtype, requires_grad=dtype == torch.float64):
        given = (sample.input, *sample.args)

        def run(sample=sample, given=given):
            y = op(sample.input, *sample.args, **sample.kwargs)
            tensors = [x for x in given if floating(x)]
            more = torch.autograd.grad(y.sum(), tensors) if y.requires_grad else ()
            return y.detach(), *more

        theirs = run()
        with use() as used:
            ours = run()
        # Numbers reach 9, so that what cancels in a sum of ten products was up to 810.
        near = {"rtol": 1.3e-6, "atol": 1e-4} if dtype == torch.float32 else {}
        torch.testing.assert_close(ours, theirs, **near, msg=lambda m: f"{op.name} {dtype}: {m}")
        count += used.calls
        if dtype.is_complex:
            assert used.calls == 0
        else:
            assert used.fallbacks == 0, used.reasons
    return count


def test_pytorchs_own_samples_pass():
    chosen = [op for op in torch_operations() if op.name in NAMES]
    assert {op.name for op in chosen} == set(NAMES)
    for op in chosen:
        for dtype in DTYPES:
            assert passed_samples(op, dtype) or dtype.is_complex, (op.name, dtype)


def test_what_unigemm_refuses_is_torchs_counted_and_logged_once(caplog):
    a = torch.arange(6).reshape(2, 3)
    with caplog.at_level(logging.WARNING, "unigemm"), use() as used:
        for _ in range(3):
            assert torch.equal(torch.mm(a, a.t()), torch.tensor([[5, 14], [14, 50]]))
        assert (used.calls, used.fallbacks) == (0, 3)
        torch.mm(draw(2, 3), draw(3, 2))
    assert (used.calls, used.fallbacks) == (1, 3)
    assert sum(used.reasons.values()) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "int64" in caplog.text


def test_errors_are_torchs_own_and_not_counted():
    with use() as used:
        for wrong in (
            lambda: torch.mm(draw(2, 3), draw(2, 3)),
            lambda: torch.mm(draw(3), draw(3, 2)),
            lambda: torch.mm(draw(2, 3), draw(3, 2).double()),
            lambda: torch.bmm(draw(1, 2, 3), draw(2, 3, 2)),
            lambda: torch.addmm(draw(7), draw(2, 3), draw(3, 2)),
        ):
            with pytest.raises(RuntimeError) as caught:
                wrong()
            assert not isinstance(caught.value, unigemm.UnigemmError)
    assert (used.calls, used.fallbacks) == (0, 0)


def probe():
    return torch.mm(draw(2, 3), draw(3, 2))


def test_contexts_nest_and_end_with_exceptions():
    with use() as outer:
        probe()
        with pytest.raises(RuntimeError), use(deterministic=True) as inner:
            torch.mm(probe(), draw(3, 2))  # whose shapes do not fit
        probe()
        with outer:
            probe()
        probe()
    probe()
    assert (outer.calls, inner.calls) == (4, 1)
    with use() as again:
        probe()
    assert again.calls == 1


def test_contexts_of_threads_may_end_in_any_order():
    first, second = use(), use()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    probe()
    assert (first.calls, second.calls) == (0, 1)
    thread = threading.Thread(target=probe)
    thread.start()
    thread.join()
    assert second.calls == 2
    second.__exit__(None, None, None)
    probe()
    assert second.calls == 2


def test_results_may_be_written_into_arrays_that_fit_and_torch_resizes_others():
    a, b = draw(2, 3), draw(3, 4)
    with use() as used:
        fits, other = torch.empty(2, 4), torch.empty(0)
        assert torch.mm(a, b, out=fits) is fits
        assert (used.calls, used.fallbacks) == (1, 0)
        torch.mm(a, b, out=other)
        assert (used.calls, used.fallbacks) == (1, 1)
        torch.addmm(draw(4), a, b, alpha=2.0, out=other)
    torch.testing.assert_close(fits, a @ b)
    torch.testing.assert_close(other, torch.addmm(draw(4), a, b, alpha=2.0))


def test_options_that_no_context_can_have_are_refused():
    with pytest.raises(unigemm.UnsupportedProblem, match="use one of cuda, cpu"):
        ut.use(device="mps")
    with pytest.raises(unigemm.UnsupportedProblem, match="BLAS"):
        use(batch_invariant=True)
    if not torch.cuda.is_available():
        with pytest.raises(unigemm.BackendUnavailable, match="no CUDA device"):
            ut.use()


def test_transforms_tangents_and_compiled_code_are_computed_too():
    a, b = draw(2, 3), draw(3, 4)
    stack = draw(5, 2, 3)
    with use() as used:
        torch.testing.assert_close(torch.vmap(torch.mm, (0, None))(stack, b), stack @ b)
        assert used.calls
        before = used.calls
        value, tangent = torch.func.jvp(lambda x: torch.mm(x, b), (a,), (2 * a,))
        torch.testing.assert_close(tangent, 2 * value)
        assert used.calls >= before + 2
        assert used.fallbacks == 0, used.reasons
        compiled = torch.compile(torch.mm, backend="aot_eager", fullgraph=True)
        before = used.calls
        torch.testing.assert_close(compiled(a, b), torch.mm(a, b))
        assert used.calls == before + 2


def error_against(exact, got):
    return float((got.double() - exact).abs().max())


@pytest.mark.parametrize("way", ["use", "replace_linear"])
def test_a_small_llama_agrees_with_torchs(way):
    from bench.llama import Llama, Sizes

    sizes = Sizes(layers=2, width=64, hidden=128, heads=4, kv_heads=2, vocabulary=50, context=8)
    torch.manual_seed(0)
    model = Llama(sizes, batch=2).requires_grad_(False)
    tokens = torch.arange(12).reshape(2, 6)

    def decode(model):
        model.cache.zero_()
        prompt = model(tokens[:, :5], torch.arange(5))
        return torch.cat((prompt, model(tokens[:, 5:], torch.tensor([5]))), 1)

    model.bfloat16()
    theirs = decode(model)
    exact = decode(model.double())
    model.bfloat16()
    if way == "use":
        with use() as used:
            ours = decode(model)
        assert used.calls == 2 * (2 * 7 + 1)
        assert used.fallbacks == 0
    else:
        assert ut.replace_linear(model) == 2 * 7 + 1
        ours = decode(model)
    assert ours.dtype == torch.bfloat16
    assert error_against(exact, theirs) > 0
    assert error_against(exact, ours) <= 2 * error_against(exact, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_training_step_agrees_with_torchs(dtype):
    def network():
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)
        ).to(dtype)

    def with_bias():
        first, second = ut.Linear(32, 64, activation="gelu"), ut.Linear(64, 10)
        model = torch.nn.Sequential(first, torch.nn.Identity(), second).to(dtype)
        model.load_state_dict(network().state_dict())
        return model

    def step(model, dtype):
        model = model.to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loss = F.cross_entropy(model(draw(16, 32, dtype=dtype)), torch.arange(16) % 10)
        loss.backward()
        optimizer.step()
        return torch.cat([x.detach().flatten() for x in model.parameters()])

    exact, theirs = step(network(), torch.float64), step(network(), dtype)
    with use() as used:
        within = step(network(), dtype)
    assert used.calls == 5  # two forward; of the second layer two more, of the first one
    assert used.fallbacks == 0
    for ours in (within, step(with_bias(), dtype)):
        assert error_against(exact, ours) <= 2 * error_against(exact, theirs)


def test_products_that_are_called_at_once_may_be_measured_first(monkeypatch):
    """`autotuning` tunes each kind of them, and for none behind its block."""
    from unigemm.tuning import online

    tuned = []
    monkeypatch.setattr(
        online, "tune", lambda library, request, options, traced, how: tuned.append(traced)
    )
    x, bias = torch.ones(4, 4), torch.ones(4)
    with torch.no_grad(), unigemm.autotuning():
        ut.matmul(x, x)
        ut.matmul(x, x)
        ut.linear(x, x, bias)
    ut.bmm(x[None], x[None])
    plain, with_bias = tuned
    assert (plain, with_bias.names) == (None, ("bias",))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("added", [torch.float32, torch.float64])
def test_what_is_added_has_the_type_that_torch_wants(dtype, added):
    a, b, c = draw(4, 3, dtype=dtype), draw(3, 5, dtype=dtype), draw(4, 5, dtype=added)
    calls = (
        lambda: torch.addmm(c, a, b),
        lambda: torch.addmm(c, a, b, beta=0.5),
        lambda: torch.baddbmm(c[None], a[None], b[None]),
        lambda: F.linear(a, b.t(), c[0]),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="dtype"):
            call()
        with use() as used, pytest.raises(RuntimeError, match="dtype"):
            call()
        assert used.calls == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_factor_of_zero_leaves_its_term_unread_as_in_torch(dtype):
    bad, c = torch.full((4, 4), float("inf"), dtype=dtype), draw(4, 4, dtype=dtype)
    bad[1] = float("nan")
    with use() as used:
        for alpha, beta in ((0, 1), (0, 0), (0, 2.0)):
            got = torch.addmm(c, bad, bad, alpha=alpha, beta=beta)
            torch.testing.assert_close(got, beta * c)
        torch.testing.assert_close(torch.addmm(bad, c, c, beta=0), c @ c)
    assert used.calls == 5


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_recurrent_layer_that_is_one_kernel_is_counted(kind):
    layer = kind(4, 4)
    x = draw(3, 2, 4)
    theirs, _ = layer(x)
    with use() as used:
        ours, _ = layer(x)
        ours.sum().backward()
    torch.testing.assert_close(ours, theirs)
    if not any("rnn_layer" in reason for reason in used.reasons):  # no oneDNN here
        assert used.calls
        return
    assert any("flags(enabled=False)" in reason for reason in used.reasons)
    with use() as used, torch.backends.mkldnn.flags(enabled=False):
        ours, _ = layer(x)
    torch.testing.assert_close(ours, theirs)
    assert (used.calls > 0, used.fallbacks) == (True, 0)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_operations_that_pytorch_has_not_on_the_cpu_are_computed_and_then_gone():
    row_wise = F.ScalingType.RowWise
    offs = torch.tensor([4, 9, 20], dtype=torch.int32)
    tokens = draw(20, 64, dtype=torch.float8_e4m3fn)
    experts = draw(3, 32, 64, dtype=torch.float8_e4m3fn).mT
    given = tokens, experts, draw(20).abs(), row_wise, draw(3, 32).abs(), row_wise
    expected = ut.scaled_grouped_mm(*given, offs=offs)
    with use() as used:
        found = F.scaled_grouped_mm(*given, offs=offs)
        older = torch._scaled_grouped_mm(*given[:3], given[4], offs=offs, out_dtype=torch.bfloat16)
        with pytest.raises(unigemm.UnsupportedProblem, match="float8"):
            F.scaled_grouped_mm(tokens.float(), *given[1:], offs=offs)
    assert (used.calls, used.fallbacks) == (2, 0), used.reasons
    assert torch.equal(found, expected)
    assert torch.equal(older, expected)
    with pytest.raises(NotImplementedError):
        F.scaled_grouped_mm(*given, offs=offs)
