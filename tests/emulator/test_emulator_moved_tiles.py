"""The last tiles move back over their neighbours instead of sticking out of the operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_products import COMPILED, configured
from test_emulator_wgmma import GPU, chosen

import unigemm
from unigemm.backends.cute_simt.schedules import DMMA
from unigemm.emulator import device
from unigemm.planning.config import Config
from unigemm.problem.dtypes import DType, numpy_dtype, output_dtypes

pytestmark = COMPILED


def random_operands(dtype, layout, sizes, seed):
    """Return operands whose products are rounded: their order shows."""
    rng = np.random.default_rng(seed)
    native = numpy_dtype(dtype)
    m, n, k = sizes

    def one(rows, columns, transposed):
        shape = (columns, rows) if transposed else (rows, columns)
        values = rng.standard_normal(shape)
        values = rng.integers(-120, 120, shape) if dtype is DType.INT8 else values
        return values.astype(native).T if transposed else values.astype(native)

    return one(m, k, layout[0] == "t"), one(k, n, layout[1] == "t")


def padded(matrix, rows, columns):
    """Return a matrix with zeros behind it, in the same order."""
    order = "F" if matrix.strides[0] < matrix.strides[1] else "C"
    found = np.zeros((rows, columns), matrix.dtype, order=order)
    found[: matrix.shape[0], : matrix.shape[1]] = matrix
    return found


def launched(a, b, wanted, precision="ieee", seed=0, dtype=None, pitch=0):
    """Return a product in a kind of configuration, it, and what the kernel's launch reports."""
    out = numpy_dtype(output_dtypes(dtype)[0])
    buffer = np.full((a.shape[0], b.shape[1] + pitch), 77, out)
    d = buffer[:, : b.shape[1]]
    with device(**GPU, seed=seed, lockstep=seed == 0) as gpu:
        plan = unigemm.plan(a, b, d, backend="cute_wgmma", precision=precision)
        plan = chosen(plan, {"swap_ab": False} | wanted)
        unigemm.matmul(a, b, d, plan=plan, precision=precision)
    assert (buffer[:, b.shape[1] :] == 77).all()
    (report,) = [report for launch, report in gpu.launches if launch.kernel.startswith("wgmma")]
    return d, plan.config, report


# Dtype, layout, kind of configuration, elements between the rows of D, and at multiples of how many
# rows or columns the last tiles begin: lines of shared memory, where operands lie along them.
SMALL, TALL = (64, 64, 64), (128, 64, 64)
OF_TF32 = (64, 64, 32)
MOVED = [
    (DType.FLOAT16, "nt", {"store": "tma", "tile": TALL, "schedule": "pingpong"}, 0, (8, 8)),
    (DType.BFLOAT16, "nt", {"store": "tma", "tile": SMALL, "cluster": (2, 1)}, 0, (8, 8)),
    (DType.FLOAT16, "nt", {"store": "tma", "tile": (64, 80, 64), "cluster": (1, 2)}, 0, (8, 8)),
    (DType.FLOAT16, "nt", {"store": "rows", "tile": SMALL, "split": False}, 1, (8, 8)),
    (DType.FLOAT16, "nt", {"tile": SMALL, "cluster_k": 2, "slice_k": 2, "split": False}, 0, (8, 8)),
    (DType.BFLOAT16, "nt", {"tile": SMALL, "cluster_k": 2}, 0, (8, 8)),
    (DType.BFLOAT16, "tn", {"tile": SMALL, "cluster_k": 4, "cluster": (2, 1)}, 0, (64, 64)),
    (DType.FLOAT16, "nt", {"tile": SMALL, "slice_k": 2, "cluster_k": 1, "split": False}, 0, (8, 8)),
    (DType.BFLOAT16, "nt", {"tile": SMALL, "schedule": "pingpong", "split": True}, 0, (8, 8)),
    (DType.FLOAT16, "nn", {"store": "tma", "tile": TALL}, 0, (8, 64)),
    (DType.BFLOAT16, "nn", {"store": "tma", "tile": (64, 96, 64)}, 0, (8, 32)),
    (DType.FLOAT32, "nt", {"tile": OF_TF32, "split": False, "cluster_k": 1}, 0, (8, 8)),
    (DType.FLOAT32, "tt", {"fragments": True, "tile": OF_TF32, "cluster_k": 2}, 0, (32, 8)),
    (DType.INT8, "nt", {"tile": (64, 64, 128), "cluster_k": 4, "split": False}, 0, (8, 8)),
    (DType.FLOAT16, "nt", {"tile": (32, 64, 64), "split": False}, 0, (8, 8)),
]


def stuck_out(extents, config, lines):
    """Return how many rows and columns of all tiles lie outside."""
    tiles = [
        -(-extent // (tile * cluster)) * cluster
        for extent, tile, cluster in zip(extents, config.tile[:2], config.cluster, strict=True)
    ]
    found = 0
    for mode, (extent, tile, line) in enumerate(zip(extents, config.tile[:2], lines, strict=True)):
        last = -(-(extent - tile) // line) * line
        outside = sum(max(0, min(i * tile, last) + tile - extent) for i in range(tiles[mode]))
        found += outside * tiles[1 - mode]
    return found


@pytest.mark.parametrize(("dtype", "layout", "wanted", "pitch", "lines"), MOVED, ids=str)
def test_they_compute_again_bit_for_bit_what_their_neighbours_do(
    dtype, layout, wanted, pitch, lines
):
    """As tiles of larger operands do that do not move, whoever stores last.

    TMA fills with zeros what sticks out all the same, and nothing else.
    """
    precision = "tf32" if dtype is DType.FLOAT32 else "ieee"
    m, n, k = 168, 168, 256
    a, b = random_operands(dtype, layout, (m, n, k), 1)
    large = padded(a, 256, k), padded(b, k, 320)  # whole tiles of clusters over all of D
    first, config, _ = launched(*large, wanted, precision, dtype=dtype, pitch=pitch)
    results = []
    for seed in range(2):
        d, own, report = launched(a, b, wanted, precision, seed, dtype, pitch)
        assert own == config
        results.append(d.tobytes())
        assert report.tma_filled == k * dtype.itemsize * stuck_out((m, n), config, lines)
    assert results[0] == results[1]
    assert results[0] == first[:m, :n].tobytes()


def test_one_tile_of_fewer_rows_and_columns_stays_where_it_is():
    a, b = random_operands(DType.FLOAT16, "nt", (40, 24, 128), 2)
    wanted = {"store": "tma", "tile": (64, 64, 64), "cluster": (1, 1), "split": False}
    d, _, report = launched(a, b, wanted, dtype=DType.FLOAT16)
    exact = a.astype("f8") @ b.astype("f8")
    np.testing.assert_allclose(d.astype("f8"), exact, rtol=2e-3, atol=2e-2)
    assert report.tma_filled == (24 + 40) * 128 * 2


def test_tiles_that_take_their_k_tiles_in_turns_stay_where_they_are():
    """One that a cluster has beyond the last: it would begin elsewhere along K than that did."""
    a, b = random_operands(DType.FLOAT16, "nt", (32, 448, 2048), 3)
    wanted = {"tile": (32, 64, 64), "cluster": (1, 4), "split": False}
    results = [launched(a, b, wanted, seed=seed, dtype=DType.FLOAT16) for seed in range(2)]
    assert results[0][0].tobytes() == results[1][0].tobytes()
    assert results[0][2].tma_filled == 64 * 2048 * 2


@pytest.mark.parametrize("layout", ["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT32], ids=str)
def test_tiles_of_cuda_cores_and_float64_are_copied_without_checks(dtype, layout):
    """Four tiles that lie over each other issue hardly more than four that do not."""
    tile = {"tile": (64, 64, 16), "stages": 4}
    config = Config(**tile, warps=(2, 2), thread=(8, 4), schedule=DMMA)
    if dtype is DType.FLOAT64 and layout[1] == "t":
        config = replace(config, thread=(4, 8))
    if dtype is DType.FLOAT32:
        config = Config(**tile, warps=(2, 2), thread=(8, 4))
    issued = []
    for sizes in ((128, 128, 160), (72, 100, 160)):
        a, b = random_operands(dtype, layout, sizes, 4)
        d = np.full(sizes[:2], np.nan, a.dtype)
        with device("sm_90a") as gpu:
            unigemm.matmul(a, b, d, plan=configured(a, b, d, config))
        exact = a.astype("f8") @ b.astype("f8")
        np.testing.assert_allclose(d, exact, rtol=1e-4, atol=1e-4)
        issued.append(sum(gpu.launches[0][1].instructions.values()))
    assert issued[1] < 1.1 * issued[0]


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_what_tma_brings_to_cuda_cores_stays_where_it_is(layout):
    """Of aligned rows that end within a tile: a moved one would be read from the wrong address."""
    tall = layout != "nn"
    config = Config(
        (256, 128, 16) if tall else (128, 256, 16), stages=5, warps=(4, 2) if tall else (2, 4),
        thread=(8, 16), occupancy=1, producers=4,
    )  # fmt: skip
    a, b = random_operands(DType.FLOAT32, layout, (416, 200, 40) if tall else (200, 416, 40), 6)
    d = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    with device("sm_90a") as gpu:
        unigemm.matmul(a, b, d, plan=configured(a, b, d, config))
    assert gpu.launches[0][0].kernel.startswith("simt_warp_specialized")
    assert gpu.launches[0][1].tma_loaded > 0
    np.testing.assert_allclose(d, a.astype("f8") @ b.astype("f8"), rtol=1e-4, atol=1e-4)
