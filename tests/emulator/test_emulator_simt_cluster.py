"""cute_simt's clusters along K on an emulated GPU: CTAs add up in each other's shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_products import COMPILED, configured, framed_launches, framed_product

import unigemm
from unigemm.emulator import device
from unigemm.planning.config import Config, Raster
from unigemm.problem.dtypes import DType, numpy_dtype

pytestmark = COMPILED
# K_tiles of 8 are compiled in half the time; the smaller tiles have 16.
BIG = Config((128, 64, 8), stages=3, warps=(2, 2), thread=(8, 8), raster=Raster("m", 2))
SMALL = Config((32, 64, 16), stages=4, warps=(2, 2), thread=(4, 4))
LEAST = Config((32, 32, 16), stages=4, warps=(2, 2), thread=(2, 4))
FLAT = Config((8, 128, 16), stages=4, warps=(1, 4), thread=(2, 4))


@pytest.mark.parametrize(
    ("config", "count", "layout", "sizes", "pad"),
    [
        (SMALL, 2, "nn", (33, 65, 70), 1),
        (SMALL, 3, "nt", (64, 64, 96), 4),
        (LEAST, 8, "tn", (45, 37, 300), 3),
        (LEAST, 5, "tt", (33, 130, 81), 2),
        (FLAT, 3, "nt", (9, 129, 50), 1),
        (BIG, 3, "nn", (131, 67, 77), 3),
        (BIG, 5, "tt", (128, 130, 160), 4),
        (BIG, 8, "nt", (150, 66, 131), 1),
        (BIG, 7, "tn", (60, 190, 300), 2),
        (BIG, 6, "nn", (129, 64, 30), 4),  # parts without a k_tile
        (SMALL, 4, "tn", (20, 70, 5), 1),
    ],
    ids=str,
)
@pytest.mark.sample(4)
def test_a_cluster_adds_up_the_parts_of_its_tiles(config, count, layout, sizes, pad):
    """Of odd sizes among not-a-numbers; nothing else is written, and no second kernel runs."""
    options = {"seed": count, "lockstep": count % 2 == 0}
    gpu, plan = framed_launches(layout, sizes, pad, replace(config, cluster_k=count), **options)
    ((launch, *_),) = gpu.launches
    assert launch.kernel.startswith("simt_gemm")
    assert launch.grid[2] == count
    assert plan.workspace_bytes == 0


@pytest.mark.parametrize(
    ("dtype", "tile", "thread"),
    [
        (DType.FLOAT64, (64, 64, 16), (4, 8)),
        (DType.BFLOAT16, (64, 64, 16), (4, 8)),
        (DType.FLOAT16, (64, 64, 16), (4, 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.sample(3)
def test_other_types_are_added_up_in_stacks(dtype, tile, thread, layout):
    rng, native = np.random.default_rng(3), numpy_dtype(dtype)
    m, n, k = 67, 75, 90
    x = rng.integers(-3, 4, (2, m, k)).astype(native)
    y = rng.integers(-3, 4, (2, k, n)).astype(native)
    a = np.swapaxes(np.swapaxes(x, 1, 2).copy(), 1, 2) if layout[0] == "t" else x
    b = np.swapaxes(np.swapaxes(y, 1, 2).copy(), 1, 2) if layout[1] == "t" else y
    d = np.full((2, m, n + 1), 77, native)
    config = Config(tile, stages=3, warps=(2, 2), thread=thread, cluster_k=3)
    with device("sm_90a", seed=1):
        unigemm.matmul(a, b, d[..., :n], plan=configured(a, b, d[..., :n], config))
    expected = (x.astype("f8") @ y.astype("f8")).astype(native)
    np.testing.assert_array_equal(d[..., :n].astype("f8"), expected.astype("f8"))
    assert (d[..., n] == 77).all(), "nothing else was written"


def test_columns_of_d_that_are_apart_are_written_one_by_one():
    a, b, _, _ = framed_product("nn", (70, 67, 50), 1)
    d = np.full((72, 2 * 67), np.nan, np.float32)
    out = d[1:71, ::2]
    for config in (BIG, SMALL):
        out[...] = np.nan
        with device("sm_90a"):
            plan = configured(a, b, out, replace(config, cluster_k=3))
            unigemm.matmul(a, b, out, plan=plan)
        np.testing.assert_array_equal(out, a @ b)
    out[...] = np.nan
    assert np.isnan(d).all(), "nothing else was written"


def test_copied_operands_may_have_a_cluster():
    config = replace(BIG, cluster_k=3, repacked=True)
    gpu, _ = framed_launches("nt", (131, 67, 77), 1, config)
    assert gpu.launches[1][0].kernel.startswith("simt_gemm")


def test_sums_are_the_same_bits_whatever_the_order_of_the_warps():
    """Tiles that have moved back add up in the order of ranks, as those do that they lie over."""
    rng = np.random.default_rng(9)
    a = rng.standard_normal((150, 131)).astype(np.float32)
    b = rng.standard_normal((131, 75)).astype(np.float32)
    exact, scale = a.astype("f8") @ b.astype("f8"), np.abs(a).astype("f8") @ np.abs(b).astype("f8")
    results = []
    for seed in range(3):
        d = np.full((150, 75), np.nan, np.float32)
        with device("sm_90a", seed=seed, lockstep=seed == 1):
            unigemm.matmul(a, b, d, plan=configured(a, b, d, replace(BIG, cluster_k=5)))
        assert (np.abs(d - exact) <= 131 * 2.0**-23 * scale).all()
        results.append(d.tobytes())
    assert len(set(results)) == 1
