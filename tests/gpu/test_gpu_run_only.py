"""A node that only runs: kernels of a bundle, with the compilers hidden and none for C in PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import run_only_on_gpu
from gpu_cases import needs_hopper
from processes import output_of, python
from threads import in_threads

import unigemm

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BACKENDS = ("cute_simt", "cute_wgmma", "cutile")


def kernels(backends):
    m, n, k = run_only_on_gpu.SIZES
    for backend in backends:
        dtype = "float32" if backend == "cute_simt" else "float16"
        a, b = unigemm.ArraySpec((m, k), dtype), unigemm.ArraySpec((k, n), dtype)
        made = unigemm.compile(unigemm.plan(a, b, backend=backend))
        yield made.entry.digest


def alone(script, *arguments, tmp_path, bundle=None, **environment):
    """Run a script in a process that has no kernels but those of a bundle, if there is one."""
    if bundle is not None:
        environment |= {
            "PATH": str(tmp_path / "none"),
            "UNIGEMM_CACHE_DIR": str(tmp_path / "own"),
            "UNIGEMM_CACHE_BUNDLES": str(bundle),
        }
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return python(script, *arguments, CUDA_HOME=None, PYTHONPATH=path, **environment)


def test_every_backend_multiplies_where_nothing_compiles(tmp_path):
    pytest.importorskip("torch")
    needs_hopper()
    from unigemm.cache import default_cache

    bundle = tmp_path / "bundle"
    default_cache().export_bundle(bundle, digests=list(kernels(BACKENDS)))
    done = alone(run_only_on_gpu.__file__, *BACKENDS, tmp_path=tmp_path, bundle=bundle)
    assert done.stdout.split() == ["ok"], done.stderr


def test_a_llama_reads_and_decodes_from_a_bundle_and_compiles_nothing(tmp_path):
    pytest.importorskip("torch")
    needs_hopper()
    script, products, bundle = HERE / "llama_from_bundle.py", tmp_path / "products", tmp_path / "b"
    done = alone(script, "record", products, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    output_of("-m", "unigemm", "cache", "export", "--from", products, bundle, cwd=ROOT)
    done = alone(script, "run", tmp_path=tmp_path, bundle=bundle, UNIGEMM_COMPILE="never")
    assert done.stdout.split() == ["0"], done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_threads_and_streams_get_right_results(backend):
    """16 threads with 4 streams each: 1,000 calls of a function that was prepared, and plain."""
    torch = pytest.importorskip("torch")
    needs_hopper()
    dtype = torch.float32 if backend == "cute_simt" else torch.float16
    m, n, k = 64, 128, 96
    draw = torch.randint(-2, 3, (16, m, k), device="cuda").to(dtype)
    b = torch.randint(-2, 3, (k, n), device="cuda").to(dtype)
    expected = draw.double() @ b.double()
    prepared = unigemm.prepare(draw[0], b, torch.empty(m, n, device="cuda", dtype=dtype),
                               backend=backend)  # fmt: skip
    torch.cuda.synchronize()
    wrong = []

    def work(number):
        a = draw[number]
        streams = [torch.cuda.Stream() for _ in range(4)]
        outs = [torch.zeros(m, n, device="cuda", dtype=dtype) for _ in streams]
        torch.cuda.synchronize()
        for i in range(1000):
            with torch.cuda.stream(streams[i % 4]):
                if i % 8 < 4:
                    prepared(a, b, outs[i % 4])
                else:
                    unigemm.matmul(a, b, outs[i % 4], backend=backend)
            if i % 250 == 249:
                torch.cuda.synchronize()
                wrong.extend(
                    (number, i) for out in outs if not torch.equal(out.double(), expected[number])
                )
                for out in outs:
                    out.fill_(float("nan"))
                torch.cuda.synchronize()

    in_threads(work, [(number,) for number in range(16)])
    assert not wrong, wrong[:4]


def test_many_calls_do_not_grow_the_memory():
    torch = pytest.importorskip("torch")
    a, b = (torch.randn(64, 64, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    prepared = unigemm.prepare(a, b, out)

    def used():
        torch.cuda.synchronize()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(2000):
        prepared(a, b, out)
        unigemm.matmul(a, b)
    before, on_device = used(), torch.cuda.memory_allocated()
    for _ in range(50_000):
        prepared(a, b, out)
        unigemm.matmul(a, b)
    assert used() - before < 4 << 20
    assert torch.cuda.memory_allocated() == on_device


def test_a_device_is_described_as_cuda_core_describes_it():
    core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    from unigemm.planning.target import device_target

    found, device = device_target(0), core.Device(0)
    told = device.properties
    assert found.name == str(device.name)
    assert found.capability == tuple(device.compute_capability)
    assert found.sm_count == told.multiprocessor_count
    assert found.smem_per_sm == told.max_shared_memory_per_multiprocessor
    assert found.smem_per_block == told.max_shared_memory_per_block_optin
    assert found.l2_bytes == told.l2_cache_size
