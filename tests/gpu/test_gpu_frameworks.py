"""unigemm.torch and unigemm.jax on a GPU: what tests/frameworks promises on the CPU."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch_operations import torch_operations

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import unigemm  # noqa: E402
import unigemm.torch as ut  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]
ROOT = Path(__file__).parents[2]
F = torch.nn.functional
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def draw(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(shape, generator=generator).to("cuda", dtype)


def near(ours, exact, theirs):
    """Compare with float64: no worse than twice the error of PyTorch's own."""
    error = float((ours.double() - exact).abs().max())
    bound = float((theirs.double() - exact).abs().max())
    assert error <= 2 * bound + 1e-6 * float(exact.abs().max()), (error, bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [None, "gelu_tanh", "silu", "relu"])
def test_a_linear_layer_and_its_gradients(dtype, activation):
    apply = {
        None: lambda x: x,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "relu": F.relu,
    }[activation]

    def run(linear, dtype):
        x, w, b = (
            draw(*shape, dtype=torch.float32).to(dtype).requires_grad_()
            for shape in ((3, 64, 256), (128, 256), (128,))
        )
        y = linear(x, w, b)
        (y * draw(*y.shape, seed=1).to(dtype)).sum().backward()
        return y.detach(), x.grad, w.grad, b.grad

    ours = run(lambda *xs: ut.linear(*xs, activation=activation), dtype)
    theirs = run(lambda *xs: apply(F.linear(*xs)), dtype)
    exact = run(lambda *xs: apply(F.linear(*xs)), torch.float64)
    for one, two, three in zip(ours, theirs, exact, strict=True):
        assert one.dtype == two.dtype
        near(one, three, two)


@pytest.mark.parametrize("name", ["mm", "addmm", "linear"])
def test_an_operator_passes_what_pytorch_checks_of_one(name):
    shapes = {"mm": ((32, 64), (64, 48)), "linear": ((32, 64), (48, 64), (48,))}
    shapes["addmm"] = ((48,), (32, 64), (64, 48))
    args = [draw(*shape).requires_grad_() for shape in shapes[name]]
    torch.library.opcheck(getattr(torch.ops.unigemm, name).default, args, atol=1e-3, rtol=1e-3)


def test_a_compiled_layer_takes_new_sizes_without_a_recompile():
    layer = ut.Linear(256, 128, activation="gelu", device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    x = draw(64, 256, dtype=torch.bfloat16)
    torch.testing.assert_close(compiled(x), layer(x))
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in (32, 7):
            torch.testing.assert_close(compiled(x[:rows]), layer(x[:rows]))


@pytest.fixture(scope="module")
def operations():
    return torch_operations()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "matmul", "nn.functional.linear"])
def test_pytorchs_own_samples_pass(operations, name, dtype):
    count = 0
    for op in (op for op in operations if op.name == name):
        for sample in op.sample_inputs(torch.device("cuda"), dtype, requires_grad=False):
            theirs = op(sample.input, *sample.args, **sample.kwargs)
            with ut.use() as used:
                ours = op(sample.input, *sample.args, **sample.kwargs)
            rounding = {"rtol": 2e-2, "atol": 2.0} if dtype == torch.bfloat16 else {}
            rounding = rounding or {"rtol": 1.3e-6, "atol": 1e-4}
            torch.testing.assert_close(ours, theirs, **rounding)
            assert used.fallbacks == 0, used.reasons
            count += used.calls
    assert count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_bitwise_the_same_whatever_the_batch(dtype):
    layer = torch.nn.Linear(1024, 512, device="cuda", dtype=dtype)
    x = draw(300, 1024, dtype=dtype)
    with torch.inference_mode(), ut.use(batch_invariant=True) as used:
        whole = layer(x)
        for rows in (1, 7, 64, 200):
            assert torch.equal(layer(x[:rows]), whole[:rows])
    assert (used.calls, used.fallbacks) == (5, 0)


@pytest.mark.parametrize("way", ["use", "replace_linear"])
@pytest.mark.parametrize("batch", [1, 8])
def test_a_small_llama_agrees_with_torchs_eager_and_captured(way, batch):
    from bench.llama import Llama, Sizes, captured

    sizes = Sizes(layers=2, width=512, hidden=1024, heads=8, kv_heads=2, vocabulary=1000)
    torch.manual_seed(0)
    model = Llama(sizes, batch).to("cuda", torch.bfloat16).requires_grad_(False)
    tokens = torch.arange(batch, device="cuda")[:, None] * 7 + 1
    at = torch.zeros(1, dtype=torch.int64, device="cuda")
    theirs = model(tokens, at)
    exact = model.double()(tokens, at)
    model.bfloat16()
    if way == "replace_linear":
        ut.replace_linear(model)
        near(model(tokens, at), exact, theirs)
        run, result = captured(lambda: model(tokens, at))
    else:
        with ut.use() as used:
            near(model(tokens, at), exact, theirs)
            run, result = captured(lambda: model(tokens, at))
        assert used.fallbacks == 0, used.reasons
    result.fill_(0)
    run()
    near(result, exact, theirs)


def jax_on_gpu():
    if not all(importlib.util.find_spec(name) for name in ("jax", "jax_tvm_ffi")):
        return False
    return any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13))


def missing(script):
    """Say what a script needs that is not here."""
    if "many" in script and torch.cuda.device_count() < 2:
        return "fewer than two GPUs"
    if "jax" in script and not jax_on_gpu():
        return "no JAX for GPUs with jax-tvm-ffi"
    return None


@pytest.fixture(scope="module")
def started(request, tmp_path_factory):
    """Start the scripts of all tests that run, at once: most of the time each compiles kernels."""
    path_of_python = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    more = {"NCCL_NVLS_ENABLE": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    requested = {
        item.callspec.params["script"]
        for item in request.session.items
        if item.path == request.path and "started" in item.fixturenames
    }
    running = {}
    for script in sorted(script for script in requested if not missing(script)):
        said = tmp_path_factory.mktemp("script") / "said"
        with said.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / script)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path_of_python, **more},
                start_new_session=True,  # a script may have started processes of its own
            )
        running[script] = said, process
    yield running
    for _, process in running.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def check_script(script, started):
    if reason := missing(script):
        pytest.skip(reason)
    said, process = started[script]
    assert process.wait() == 0, said.read_text()[-4000:]


ON_ONE = ("tests/gpu/jax_on_gpu.py", "examples/jax_train.py", "examples/jax_experts.py")
ON_TWO = tuple(f"examples/{x}_many_{y}.py" for x in ("torch", "jax") for y in ("gpus", "experts"))


@pytest.mark.parametrize("script", ON_ONE)
def test_jax_multiplies_on_the_gpu(script, started):
    check_script(script, started)


@pytest.mark.parametrize("script", ON_TWO)
def test_an_example_runs_on_two_gpus(script, started):
    check_script(script, started)


def outcomes(layer, shapes):
    """Return what a layer gives forward and backward for inputs of each shape, or its error."""
    compiled = torch.compile(layer, backend="cudagraphs")
    found = []
    for shape in shapes:
        x = draw(*shape)
        layer.zero_grad()
        try:
            y = compiled(x)
            y.sum().backward()
        except RuntimeError as error:
            found.append(str(error))
            continue
        found.append((y.detach().clone(), [p.grad.clone() for p in layer.parameters()]))
    return found


@pytest.mark.parametrize("shape", [(64,), (5, 64)], ids=["2-d", "3-d"])
def test_a_layer_in_pytorchs_graphs_takes_the_sizes_that_pytorchs_own_takes(shape):
    torch._dynamo.reset()
    ours = ut.Linear(64, 32, activation="gelu", device="cuda")
    own = torch.nn.Linear(64, 32, device="cuda")
    own.load_state_dict(ours.state_dict())
    theirs = torch.nn.Sequential(own, torch.nn.GELU())
    shapes = [(rows, *shape) for rows in (16, 33, 16)]
    for shape, one, two in zip(
        shapes, outcomes(ours, shapes), outcomes(theirs, shapes), strict=True
    ):
        print(shape, "ours:", one if isinstance(one, str) else "right", "| PyTorch's:",
              two if isinstance(two, str) else "right")  # fmt: skip
        if not isinstance(two, str):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)


def test_a_recurrent_layer_that_is_one_kernel_is_counted():
    layer, x = torch.nn.LSTM(64, 32, device="cuda"), draw(5, 4, 64)
    theirs, _ = layer(x)
    with ut.use() as used:
        ours, _ = layer(x)
        ours.sum().backward()
    torch.testing.assert_close(ours, theirs)
    assert used.fallbacks >= 2, used.reasons
    assert any("_cudnn_rnn" in reason for reason in used.reasons)
    with ut.use(batch_invariant=True), pytest.raises(unigemm.UnsupportedProblem, match="cudnn"):
        layer(x)


TRANSFORMS = {
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).sin().sum()),
    "jvp of grad": lambda f: (
        lambda x: torch.func.jvp(torch.func.grad(lambda x: f(x).sin().sum()), (x,), (x.cos(),))[1]
    ),
    "grad of grad": lambda f: torch.func.grad(
        lambda x: torch.func.grad(lambda x: f(x).sin().sum())(x).square().sum()
    ),
    "vmap of grad": lambda f: (
        lambda x: torch.vmap(torch.func.grad(lambda x: f(x).sin().sum()))(
            torch.stack([x, 2 * x, -x])
        )
    ),
    "jacfwd": torch.func.jacfwd,
    "backward of jvp": lambda f: (
        lambda x: torch.autograd.grad(
            torch.func.jvp(f, (leaf := x.clone().requires_grad_(),), (leaf.cos(),))[1].sum(), leaf
        )[0]
    ),
}


@pytest.mark.parametrize("transform", sorted(TRANSFORMS))
@pytest.mark.parametrize("name", ["matmul", "addmm", "linear gelu", "swiglu"])
def test_transforms_of_products_give_what_those_of_torchs_give(name, transform):
    w, b = (draw(*shape, seed=2).double() / 4 for shape in ((32, 16), (32,)))
    of_weights = {  # ours and PyTorch's, of rows and weights
        "matmul": (
            lambda x, w, b: ut.matmul(x, w.mT),
            lambda x, w, b: x @ w.mT,
        ),
        "addmm": (
            lambda x, w, b: ut.addmm(b, x, w.mT, alpha=2.0, beta=0.5),
            lambda x, w, b: torch.addmm(b, x, w.mT, alpha=2.0, beta=0.5),
        ),
        "linear gelu": (
            lambda x, w, b: ut.linear(x, w, b, activation="gelu"),
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
        ),
        "swiglu": (
            lambda x, w, b: ut.linear(x, w, b, activation="swiglu", gate_layout="halves"),
            lambda x, w, b: (lambda g, y: F.silu(g) * y)(*F.linear(x, w, b).chunk(2, -1)),
        ),
    }
    results = []
    for f, dtype in zip(of_weights[name], (torch.float32, torch.float64), strict=True):
        weight, bias = w.to(dtype), b.to(dtype)
        of_rows = lambda x, f=f, weight=weight, bias=bias: f(x, weight, bias)  # noqa: E731
        results.append(TRANSFORMS[transform](of_rows)(draw(4, 16).to(dtype)))
    scale = float(results[1].abs().max())
    assert scale > 0
    torch.testing.assert_close(results[0].double(), results[1], rtol=1e-3, atol=1e-4 * scale)
