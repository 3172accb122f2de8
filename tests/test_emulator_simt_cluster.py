"""cute_simt's clusters along K on an emulated GPU: CTAs add up in each other's shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from test_emulator_simt import configured, framed_product

import unigemm
from unigemm.emulator import device
from unigemm.emulator.host import missing
from unigemm.plans import Config, Raster

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]
BIG = Config((128, 64, 16), stages=3, warps=(2, 2), thread=(8, 8), raster=Raster("m", 2))
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
        (BIG, 6, "nn", (129, 64, 30), 4),  # parts without a slab
        (SMALL, 4, "tn", (20, 70, 5), 1),
    ],
    ids=str,
)
def test_a_cluster_adds_up_the_parts_of_its_tiles(config, count, layout, sizes, pad):
    """Of odd sizes among not-a-numbers; nothing else is written, and no second kernel runs."""
    a, b, d, buffer = framed_product(layout, sizes, pad)
    config = replace(config, cluster_k=count)
    with device("sm_90a", seed=count, lockstep=count % 2 == 0) as gpu:
        plan = configured(a, b, d, config)
        unigemm.matmul(a, b, d, plan=plan)
    ((launch, *_),) = gpu.launches
    assert launch.kernel.startswith("simt_gemm")
    assert launch.grid[2] == count
    assert plan.workspace_bytes == 0
    np.testing.assert_array_equal(d, a @ b)
    d[...] = np.nan
    assert np.isnan(buffer).all(), "nothing else was written"
