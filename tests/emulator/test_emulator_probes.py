"""The emulator gives bit for bit what a Hopper GPU gives, instruction by instruction."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpu_cases import needs_hopper
from matrix_probes import MATRIX_PROBES
from memory_probes import MAP_PROBES, MEMORY_PROBES, QUESTIONS, TYPES
from probes import (
    MAP_ADDRESS,
    NAMES,
    PROBES,
    RESULTS,
    all_measured,
    canonical,
    digest,
    emulated,
    matrix_digest,
    matrix_emulated,
    matrix_on_device,
    memory_digest,
    on_device,
    unpacked,
)

import unigemm
from unigemm.emulator import device
from unigemm.emulator.async_copy.tma import decode
from unigemm.emulator.launch.host import missing
from unigemm.emulator.tensor_core.accumulation import accumulated

KINDS = ("digests", "values", "maps", "answers")
KEPT = json.loads(RESULTS.read_text())


def kept(kind, name):
    """Return what the device gave for a probe; skip where it has not run there."""
    if name in KEPT["failed"]:
        pytest.skip(f"it did not run on {KEPT['device']}: {KEPT['failed'][name]}")
    return KEPT[kind][name]


def first(probe):
    return probe[0]


def test_every_probe_is_there_once():
    assert len(set(NAMES)) == len(NAMES) > 290
    there = {name for kind in KINDS for name in KEPT[kind]}
    assert there <= set(NAMES) <= there | set(KEPT["failed"]), "probes.py writes them again"


@pytest.mark.parametrize("probe", PROBES, ids=first)
def test_a_probe_gives_what_the_device_gave(probe):
    wanted, found = kept("digests", probe[0]), emulated(*probe)
    assert digest(probe[0], found) == wanted
    assert len(np.unique(found)) > 1


@pytest.mark.parametrize("name", MATRIX_PROBES)
def test_products_of_the_tensor_cores_are_right_and_those_of_the_device(name):
    """Against float64, too, with operands laid out element by element."""
    probe = MATRIX_PROBES[name]
    d = matrix_emulated(probe)
    assert len(np.unique(d)) > 8
    if probe.exact:
        np.testing.assert_array_equal(d, probe.expected())
        assert matrix_digest(d) == kept("digests", name)
    else:
        error = np.abs(d.astype("f8") - probe.expected().astype("f8"))
        assert (error <= probe.bound()).all(), float((error / probe.bound()).max())
        np.testing.assert_array_equal(d, unpacked(kept("values", name), probe))


@pytest.mark.parametrize("name", MEMORY_PROBES)
def test_memory_is_what_the_device_made_of_it(name):
    probe = MEMORY_PROBES[name]
    found = probe.emulated()
    assert memory_digest(found) == kept("digests", name)
    assert found != b"".join(x.tobytes() for x in probe.arrays)


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_the_isa_leaves_open_is_as_on_the_device(name):
    wanted = bytes.fromhex(kept("answers", name))
    assert QUESTIONS[name].emulated() == wanted


def check_map(wanted, raw):
    """Check what the emulator reads in a descriptor."""
    found = decode(bytes(raw))
    assert (found.address, found.swizzle, found.coarse) == (MAP_ADDRESS, wanted.swizzle, False)
    assert (found.kind, found.itemsize) == (
        {"u8": ""}.get(wanted.kind, wanted.kind), np.dtype(TYPES[wanted.kind]).itemsize,
    )  # fmt: skip
    assert (found.extents, found.box) == (wanted.extents, wanted.box)
    assert found.strides == wanted.strides


@pytest.mark.parametrize("name", MAP_PROBES)
def test_descriptors_are_read_as_they_are_written(name):
    check_map(MAP_PROBES[name], MAP_PROBES[name].written(MAP_ADDRESS))


@pytest.mark.parametrize("name", MAP_PROBES)
def test_descriptors_of_the_driver_are_read(name):
    check_map(MAP_PROBES[name], bytes.fromhex(kept("maps", name)))


def some_fail(connection, first):
    """Answer as a device that one probe breaks, one hurts, and one brings down with its process."""
    for name in NAMES[first:]:
        if name in (NAMES[2], NAMES[5]):
            connection.send((name, "failed", "no such instruction"))
            if name == NAMES[2]:
                break
        elif name in (NAMES[7], NAMES[-1]):
            return
        else:
            connection.send((name, "digests", name))
    connection.send(None)


def test_probes_that_fail_on_a_device_do_not_stop_the_others():
    found = all_measured(some_fail)
    down = dict.fromkeys((NAMES[7], NAMES[-1]), "the process ended")
    failed = dict.fromkeys((NAMES[2], NAMES[5]), "no such instruction") | down
    assert found["failed"] == failed
    assert list(found["digests"]) == [name for name in NAMES if name not in failed]


@pytest.mark.gpu
@pytest.mark.parametrize("probe", PROBES, ids=first)
def test_a_probe_gives_the_same_here_and_on_the_device(probe):
    needs_hopper()
    mine, real = (canonical(probe[0], x) for x in (emulated(*probe), on_device(*probe)))
    wrong = np.flatnonzero(mine != real)
    assert not len(wrong), [(int(i), hex(mine[i]), hex(real[i])) for i in wrong[:4]]


@pytest.mark.gpu
@pytest.mark.parametrize("name", MATRIX_PROBES)
def test_products_are_the_same_here_and_on_the_device(name):
    needs_hopper()
    probe = MATRIX_PROBES[name]
    np.testing.assert_array_equal(matrix_emulated(probe), matrix_on_device(probe))


@pytest.mark.gpu
@pytest.mark.parametrize("name", MEMORY_PROBES)
def test_memory_is_the_same_here_and_on_the_device(name):
    needs_hopper()
    assert MEMORY_PROBES[name].emulated() == MEMORY_PROBES[name].on_device()


def check_on_both(a, b, backend):
    """Multiply NumPy arrays on the device and in the emulator: to the same bits."""
    cupy = pytest.importorskip("cupy")
    needs_hopper()
    if missing() is not None:
        pytest.skip(missing())
    real = unigemm.matmul(cupy.asarray(a), cupy.asarray(b), backend=backend)
    with device(unigemm.capabilities().devices[0].target):
        mine = unigemm.matmul(a, b, backend=backend)
    np.testing.assert_array_equal(mine, cupy.asnumpy(real))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_cuda_core_kernels_give_the_same_bits_as_on_the_device(dtype):
    """Sums of fused multiply-adds in a fixed order: nothing may differ."""
    rng = np.random.default_rng(3)
    for m, n, k in ((100, 90, 70), (3, 200, 1000), (33, 65, 257)):
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        check_on_both(a, b, "cute_simt")


@pytest.mark.parametrize("kinds", [("f16", "f32"), ("e4m3", "f32"), ("f16", "f16")])
def test_infinities_and_nan_reach_their_sums_and_zeros_do_not_matter(kinds):
    a, b, c = np.ones((4, 16)), np.ones((8, 16)), np.zeros((4, 8))
    a[0, 3], a[1, 2], a[2] = np.inf, np.nan, 0
    found = accumulated(c, a, b, *kinds)
    assert (found[0] == np.inf).all()
    assert np.isnan(found[1]).all()
    assert (found[2] == 0).all()
    assert (found[3] == 16).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_tensor_core_kernels_give_the_same_bits_as_on_the_device(dtype):
    rng = np.random.default_rng(4)
    a, b = ((3 * rng.standard_normal(x)).astype(dtype) for x in ((130, 200), (72, 200)))
    check_on_both(a, b.T, "cute_wgmma")
