"""Tiles of the transposed product on an emulated Hopper, with every epilogue."""

from __future__ import annotations

import random
from dataclasses import replace

from emulated_products import POISONED
from epilogue_cases import EPILOGUES, WithEpilogue, check_epilogue, plan_of
from reference import NUMPY
from sampling import ALL, SEED

import unigemm
from unigemm.backends.cute_wgmma.candidates import is_offered_transposed, offered
from unigemm.backends.cute_wgmma.copies import scratch_bytes
from unigemm.emulator import device
from unigemm.errors import UnsupportedProblem
from unigemm.problem.dtypes import DType

pytestmark = POISONED
TARGET = replace(unigemm.named_target("sm_90a"), sm_count=6)


class Aligned(WithEpilogue):
    """A case whose result TMA can store."""

    def guard(self, dtype):
        return 8


def transposed(plan, rng):
    """Return the plan with one of the small tiles of the transposed product, or None."""
    found = [
        x
        for x in offered(plan.problem, plan.target)
        if x.swap_ab and x.tile[0] * x.tile[1] <= 128 * 96 and x.cluster[0] * x.cluster[1] <= 4
    ]
    if not found:
        return None
    config = rng.choice(found)
    scratch = scratch_bytes(plan.problem, plan.extents, config)
    return replace(plan, config=config, workspace_bytes=scratch, alternatives=())


def test_the_transposed_product_has_every_epilogue():
    rng = random.Random(f"transposed:{SEED}")
    ran = 0
    names = list(EPILOGUES)
    rng.shuffle(names)
    for name in names if ALL else names[:6]:
        dtype, layout = rng.choice([DType.BFLOAT16, DType.FLOAT16]), rng.choice(["nn", "nt", "tn"])
        case = Aligned((rng.choice([70, 131]), rng.choice([136, 200]), 160), dtype, layout, name)
        try:
            plan = plan_of(case, "cute_wgmma", TARGET)
        except UnsupportedProblem:
            continue
        plan = transposed(plan, rng)
        if plan is not None:
            check_epilogue(case, NUMPY, device(target=TARGET), plan=plan)
            ran += 1
    assert ran >= 3


def test_they_are_offered_where_tma_stores_them():
    def taken(a, b, **options):
        plan = unigemm.plan(a, b, backend="cute_wgmma", target=TARGET, **options)
        return is_offered_transposed(plan.problem, plan.extents)

    spec = unigemm.ArraySpec
    eight = spec((280, 512), "float8_e4m3fn"), spec((512, 2048), "float8_e4m3fn", "F")
    assert taken(spec((280, 512), "bfloat16"), spec((512, 2048), "bfloat16"))
    assert taken(*eight, dtype="bfloat16")
    assert not taken(spec((40, 512), "bfloat16"), spec((512, 2048), "bfloat16"))  # few rows
    assert not taken(spec((280, 512), "bfloat16"), spec((512, 2047), "bfloat16"))  # odd lines
