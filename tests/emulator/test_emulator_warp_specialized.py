"""cute_simt's tiles with warps that only copy, on an emulated GPU: the product is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated_products import (
    COMPILED,
    configured,
    framed_launches,
    kernels,
    on_fewer_sms,
    views_of,
)
from gpu_cases import matrix
from reference import NUMPY, Case, check_case, lay_out

from unigemm.backends.cute_simt.schedules import PRODUCER_WARPS, WARP_SPECIALIZED_STAGES
from unigemm.emulator import device
from unigemm.planning.config import Config, Raster
from unigemm.problem.dtypes import DType

pytestmark = COMPILED
# K_tiles of 8 are compiled in half the time, and rings of stages turn more often. Those of 16 are
# brought by TMA below and in test_emulator_moved_tiles.py, and read as SASS in
# test_simt_compile.py.
WIDE = Config(
    (128, 256, 8), stages=WARP_SPECIALIZED_STAGES, warps=(2, 4), thread=(8, 16),
    producers=PRODUCER_WARPS, occupancy=1, raster=Raster("m", 2),
)  # fmt: skip
TALL = replace(WIDE, tile=(256, 128, 8), warps=(4, 2))
PARTS, TAIL = replace(WIDE, split_k=3), replace(TALL, split_k=2, schedule="tail")
AFTER = {PARTS: ["split_reduce"], TAIL: ["simt_tail"]}


@pytest.mark.parametrize("repacked", [False, True])
@pytest.mark.parametrize("config", [WIDE, PARTS, TAIL], ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(4)
def test_every_schedule_gives_the_product_of_every_layout(layout, config, repacked):
    """Of odd sizes among not-a-numbers; tiles that move back, K that ends within a k_tile."""
    number = ["nn", "nt", "tn", "tt"].index(layout)
    sizes = [(133, 259, 117), (260, 131, 100), (119, 262, 67), (257, 300, 35)][number]
    pad = [1, 4, 3, 0][(number + (config is TAIL)) % 4]
    if repacked:
        config, pad = replace(config, repacked=True), 1
    options = {"seed": number, "lockstep": number % 2 == 0}
    gpu, _ = framed_launches(layout, sizes, pad, config, 3, **options)
    product = ["simt_warp_specialized", *AFTER.get(replace(config, repacked=False), [])]
    assert kernels(gpu) == ["repack"] * repacked + product


def test_what_tma_brings_needs_no_copies_by_threads():
    """More k_tiles than stages: the ring turns; whole tiles, and stores straight from registers."""
    config = replace(WIDE, tile=(128, 256, 16))
    gpu, plan = framed_launches("tn", (128, 256, 200), 0, config, 5, seed=1)
    assert (plan.problem.a.alignment, plan.problem.b.alignment) == (16, 16)
    assert kernels(gpu) == ["simt_warp_specialized"]


def test_a_part_of_k_may_be_empty():
    """Two k_tiles in three parts: the CTA of the last one has no copies to wait for."""
    gpu, _ = framed_launches("nn", (133, 259, 9), 1, PARTS, 12, seed=4)
    assert gpu.launches[0][0].grid == (12, 1, 1)


@pytest.mark.parametrize("config", [PARTS, TAIL], ids=str)
def test_stacks_and_operands_that_repeat_give_the_products(config):
    """A lies in aligned rows along M (TMA), and is the same for all of the inner index."""
    a = lay_out((2, 3, 70, 90), (2, 3, 1, 0), (2, 4, 0, 4), 1, 0)
    a = replace(a, strides=(a.strides[0], 0, *a.strides[2:]))
    b = lay_out((2, 3, 90, 60), (2, 3, 1, 0), (1, 4, 0, 0), 1, 1)
    d = lay_out((2, 3, 70, 60), (3, 2, 1, 0), (0, 4, 0, 0), 1, 0)
    case = Case(a, b, d, d.shape, DType.FLOAT32, DType.FLOAT32, False, 1)
    with device("sm_90a", seed=2) as gpu:
        check_case(NUMPY, case, plan=on_fewer_sms(configured(*views_of(case), config), 4))
    assert any(name.startswith("simt_warp_specialized") for name in kernels(gpu))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(1)
def test_drawn_operands_in_poison_give_the_product(layout):
    m, n, k = 130, 67, 171
    case = Case(
        matrix(m, k, layout[0] == "t", 3, 1), matrix(k, n, layout[1] == "t", 4, 0),
        matrix(m, n, False, 1, 1), (m, n), DType.FLOAT32, DType.FLOAT32, False, 5,
    )  # fmt: skip
    with device("sm_90a", seed=3) as gpu:
        plan = configured(*views_of(case), WIDE if layout[0] == "n" else TALL)
        check_case(NUMPY, case, plan=plan)
    assert kernels(gpu) == ["simt_warp_specialized"]
