"""The emulator gives bit for bit what a Hopper GPU gives, instruction by instruction."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpu_cases import needs_hopper
from probes import PROBES, RESULTS, canonical, digest, emulated, on_device

import unigemm
from unigemm.emulator import device
from unigemm.emulator.host import missing

KEPT = json.loads(RESULTS.read_text())["digests"] if RESULTS.exists() else {}


def name(probe):
    return probe[0]


def test_every_probe_is_there_once():
    texts = [text for text, *_ in PROBES]
    assert len(set(texts)) == len(texts) > 120
    assert set(KEPT) <= set(texts), "results of probes that are gone: write them again"


@pytest.mark.parametrize("probe", PROBES, ids=name)
def test_a_probe_runs_and_gives_what_the_device_gave(probe):
    found = emulated(*probe)
    assert digest(probe[0], found) == digest(probe[0], emulated(*probe)), "the same each time"
    assert len(np.unique(found)) > 1
    if KEPT:
        assert digest(probe[0], found) == KEPT.get(probe[0]), "python tests/probes.py writes it"


@pytest.mark.gpu
@pytest.mark.parametrize("probe", PROBES, ids=name)
def test_a_probe_gives_the_same_here_and_on_the_device(probe):
    needs_hopper()
    mine, real = (canonical(probe[0], x) for x in (emulated(*probe), on_device(*probe)))
    wrong = np.flatnonzero(mine != real)
    assert not len(wrong), [(int(i), hex(mine[i]), hex(real[i])) for i in wrong[:4]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_cuda_core_kernels_give_the_same_bits_as_on_the_device(dtype):
    """Sums of fused multiply-adds in a fixed order: nothing may differ."""
    cupy = pytest.importorskip("cupy")
    needs_hopper()
    if missing() is not None:
        pytest.skip(missing())
    rng = np.random.default_rng(3)
    for m, n, k in ((100, 90, 70), (3, 200, 1000), (33, 65, 257)):
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        real = unigemm.matmul(cupy.asarray(a), cupy.asarray(b), backend="cute_simt")
        target = unigemm.capabilities().devices[0].target
        with device(target):
            mine = unigemm.matmul(a, b, backend="cute_simt")
        np.testing.assert_array_equal(mine, cupy.asnumpy(real))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_tensor_core_kernels_agree_with_the_device_on_small_integers(dtype):
    cupy = pytest.importorskip("cupy")
    needs_hopper()
    if missing() is not None:
        pytest.skip(missing())
    rng = np.random.default_rng(4)
    a, b = rng.integers(-4, 5, (130, 200)).astype(dtype), rng.integers(-4, 5, (72, 200))
    b = b.astype(dtype).T
    real = unigemm.matmul(cupy.asarray(a), cupy.asarray(b), backend="cute_wgmma")
    with device(unigemm.capabilities().devices[0].target):
        mine = unigemm.matmul(a, b, backend="cute_wgmma")
    np.testing.assert_array_equal(mine, cupy.asnumpy(real))
