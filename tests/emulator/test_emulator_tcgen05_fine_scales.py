"""Scales of 128 elements of K in cute_tcgen05, in the emulator, against float64."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from block_factors import drawn
from call_path import kernel_entry
from emulated_products import COMPILED
from grouped_scales import drawn_groups
from tcgen05_plans import sampled_plan

import unigemm
from unigemm.backends.cute_tcgen05.geometry import geometry, is_repacked
from unigemm.backends.cute_tcgen05.legality import unsupported_reason
from unigemm.emulator import device

pytestmark = COMPILED
# Few SMs: each CTA has several tiles.
TARGETS = {
    arch: replace(unigemm.named_target(arch), sm_count=4)
    for arch in ("sm_100a", "sm_103a", "sm_110a")
}
#: Sums of 128 products are float32, and so are those of blocks.
NEAR = {"float32": 2.0**-21, "bfloat16": 2.0**-8}
LINES = list(itertools.product((1, 128), repeat=2))


def device_of(seed, arch="sm_100a"):
    return device(TARGETS[arch], seed=seed, lockstep=seed % 2 > 0, leftovers=True)


def check(x, seed, out="float32", wanted=None, arch="sm_100a", **more):
    """Multiply by the planner's pick, or by one of those that are `wanted`."""
    given = {"scale_a": x.scale_a, "scale_b": x.scale_b, "dtype": out, **more}
    with device_of(seed, arch) as gpu:
        plan = unigemm.plan(x.a, x.b, **given, backend="cute_tcgen05")
        plan = sampled_plan(plan, wanted, seed) if wanted is not None else plan
        got = unigemm.matmul(x.a, x.b, **given, plan=plan)
    assert x.error(got) < NEAR[out], plan.config
    own = plan.config.oriented(plan.problem)
    if not any(is_repacked(own, name) for name in "ab"):  # else that of the copy counts, too
        assert kernel_entry(plan).info.spill_bytes == 0, plan.config
    (launched,) = [launch for launch, _ in gpu.launches if launch.kernel.startswith("tcgen05")]
    assert launched.shared_bytes == geometry(own, plan.config).smem_bytes


@pytest.mark.parametrize("lines", LINES, ids=str)
def test_sums_of_blocks_are_multiplied_by_their_scales(lines):
    """Of any size, wherever the operands and the scales lie."""
    rng = random.Random(f"{lines}")
    stack = rng.choice([(), (2,)])
    most = 150 if stack else 290
    sizes = rng.randint(1, most), rng.randint(1, most), rng.choice([130, 256, 385])
    x = drawn(
        sizes, lines, stack=stack, seed=1, exponents=rng.random() < 0.5, apart=rng.random() < 0.5,
        major=rng.choice("kn"), major_a=rng.choice("km"),
        types=rng.choices(("float8_e4m3fn", "float8_e5m2"), k=2),
    )  # fmt: skip
    check(x, rng.randrange(8), rng.choice([*NEAR]), arch=rng.choice([*TARGETS]))


@pytest.mark.parametrize("majors", ["kk", "kn", "mk", "mn"])
def test_operands_are_read_where_they_lie_in_every_majorness(majors):
    x = drawn((144, 272, 400), (1, 128), major_a=majors[0], major=majors[1], seed=3)
    given = {"scale_a": x.scale_a, "scale_b": x.scale_b, "dtype": "bfloat16"}
    with device_of(0) as gpu:
        got = unigemm.matmul(x.a, x.b, **given, backend="cute_tcgen05")
    assert x.error(got) < NEAR["bfloat16"]
    assert len(gpu.launches) == 1  # nothing is copied before


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(24))
def test_any_configuration_that_is_offered(seed):
    rng = random.Random(seed)
    sizes = rng.randint(1, 300), rng.randint(1, 300), rng.randint(1, 600)
    x = drawn(
        sizes, rng.choice(LINES), seed=seed, exponents=rng.random() < 0.3,
        major=rng.choice("kn"), major_a=rng.choice("km"),
    )  # fmt: skip
    check(x, seed, rng.choice([*NEAR]), wanted={})


WAYS = [
    # The second part of K is empty: zeros, not what tensor memory held.
    ((130, 64, 64), (1, 1), {"schedule": "single", "split_k": 2}),
    ((40, 264, 700), (1, 128), {"schedule": "pair", "split_k": 2}),
    ((8, 520, 264), (1, 128), {"swap_ab": True, "split_k": 1}),
    ((600, 264, 390), (1, 1), {"schedule": "pair-dynamic", "split_k": 1}),
    ((300, 400, 264), (1, 128), {"cluster": (2, 2), "split_k": 1}),
]


@pytest.mark.parametrize(("sizes", "lines", "wanted"), WAYS, ids=str)
def test_every_way_of_sharing(sizes, lines, wanted):
    check(drawn(sizes, lines), 1, wanted=wanted)


def test_special_scales_are_what_they_are_in_float64_and_stay_in_their_blocks():
    x = drawn((135, 136, 256), (1, 128))
    scale = x.scale_a.copy()
    scale[0], scale[1, 0], scale[2, 1] = 0, np.inf, np.nan
    with device_of(1):
        got = unigemm.matmul(
            x.a, x.b, scale_a=scale, scale_b=x.scale_b, backend="cute_tcgen05", dtype="float32"
        )
    assert not got[0].any()
    assert not np.isfinite(got[1]).any()
    assert np.isnan(got[2]).all()
    others = abs(got[3:] - x.expected[3:]) / x.magnitude[3:]
    assert others.max() < NEAR["float32"]


def test_bytes_of_scales_are_powers_of_two_or_nan():
    """The least is subnormal as a float32; 255 is no number."""
    x = drawn((3, 16, 256), (1, 1), exponents=True)
    scale = x.scale_a.view(np.uint8).copy()
    scale[0], scale[1] = 0, [255, 127]
    given = {"scale_a": scale.view(x.scale_a.dtype), "scale_b": x.scale_b, "dtype": "float32"}
    with device_of(0):
        got = unigemm.matmul(x.a, x.b, **given, backend="cute_tcgen05")
    least = unigemm.matmul(x.a, x.b, **given)[0]
    assert least.any()
    np.testing.assert_allclose(got[0], least, rtol=1e-4, atol=2.0**-140)
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[2]).all()


@pytest.mark.parametrize("lines", [(1, 1), (1, 128)], ids=str)
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_an_epilogue_takes_what_was_scaled(layout, lines):
    """Pairs of a gate have scales of their own columns, wherever these are."""
    x = drawn((70, 264, 300), lines, seed=2)
    bias = np.linspace(-1, 1, 264, dtype=np.float32)
    given = {"scale_a": x.scale_a, "scale_b": x.scale_b, "bias": bias, "dtype": "float32"}
    given |= {"activation": "swiglu", "gate_layout": layout}
    with device_of(0):
        got = unigemm.matmul(x.a, x.b, **given, backend="cute_tcgen05")
    np.testing.assert_allclose(got, unigemm.matmul(x.a, x.b, **given), rtol=1e-3, atol=1e-2)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("form", "lines"),
    [("m", (1, 128)), ("n", (128, 1)), ("rows", (128, 128)), ("rows", (1, 128)), ("m", (1, 1))],
)
def test_groups_have_scales_of_blocks(form, lines):
    rng = random.Random(f"{form} {lines}")
    sizes = [rng.randint(0, 140), 0, rng.randint(1, 40)]
    total = sum(sizes) + 9 if form != "rows" else max(sizes) + 3
    n, k = rng.choice([136, 203]), rng.choice([130, 300])
    x = drawn_groups(form, sizes, total, n, k, lines, 1)
    offsets, more = x.ends.get("offsets"), {"scale_a": x.scale_a, "scale_b": x.scale_b}
    more["rows"] = x.ends.get("rows")
    with device_of(rng.randrange(8)):
        got = unigemm.grouped_matmul(
            x.a, x.b, offsets, dtype="float32", backend="cute_tcgen05", **more
        )
    assert x.error(got) < NEAR["float32"]


def test_an_explanation_names_the_scales_of_a_product_for_blackwell():
    x = drawn((512, 1024, 2048), (1, 128))
    given = {"scale_a": x.scale_a, "scale_b": x.scale_b, "target": "sm_100a"}
    plan = unigemm.plan(x.a, x.b, **given)
    assert plan.backend == "cute_tcgen05"
    assert "A scaled per 1x128, B per 128x128" in plan.explain()


@pytest.mark.parametrize(
    ("lines", "columns", "why"), [((1, 1), 144, "up to 128"), ((1, 128), 96, "does not divide")]
)
def test_tiles_that_cannot_be_promoted_are_refused_with_the_reason(lines, columns, why):
    x = drawn((512, 1024, 512), lines)
    given = {"scale_a": x.scale_a, "scale_b": x.scale_b, "target": "sm_100a"}
    plan = unigemm.plan(x.a, x.b, **given)
    config = replace(plan.config, tile=(128, columns, 128), swap_ab=False)
    assert why in unsupported_reason(plan.problem, config, plan.target)
