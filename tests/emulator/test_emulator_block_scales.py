"""cute_tcgen05 multiplies MXFP8 and NVFP4 right on an emulated Blackwell GPU of a few SMs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from block_scaled import (
    E4M3,
    E5M2,
    E8M0,
    NAN,
    Operand,
    assert_near,
    dequantised,
    draw,
    product,
)
from emulated_products import COMPILED, kernels
from sampling import ALL
from tcgen05_plans import sampled_plan, with_config

import unigemm
from unigemm.backends.cute_tcgen05.backend import BACKEND
from unigemm.emulator import device
from unigemm.problem.dtypes import DType, output_dtypes

pytestmark = COMPILED
# Few SMs: each CTA has several tiles.
GPU = {"target": replace(unigemm.named_target("sm_100a"), sm_count=4), "leftovers": True}
KIND = DType.FLOAT8_E4M3FN


def multiply(given, wanted=None, seed=0):
    """Multiply with a configuration of a kind, sampled from those that are offered."""
    options = {"backend": "cute_tcgen05", **given.scales}
    plan = unigemm.plan(given.left, given.right, given.d, **options)
    if wanted is not None:
        plan = sampled_plan(plan, wanted, seed)
    unigemm.matmul(given.left, given.right, given.d, plan=plan, **given.scales)
    return plan.config


@pytest.mark.parametrize(
    ("sizes", "orders", "layout", "out", "unit", "d_start", "nvfp4"),
    [
        ((129, 71, 200), ("blocked", "blocked"), "nt", "bfloat16", 16, 0, False),
        ((131, 65, 75), ("plain", "plain"), "nt", "float32", 1, 3, False),
        ((16, 137, 330), ("plain", "blocked"), "tn", "float16", 16, 1, False),
        ((130, 200, 31), ("blocked", "plain"), "nn", "float32", 16, 0, False),
        ((129, 71, 212), ("blocked", "blocked"), "nt", "bfloat16", 16, 0, True),
        ((131, 65, 75), ("plain", "plain"), "nn", "float32", 1, 3, True),
        ((16, 137, 331), ("plain", "blocked"), "tn", "float16", 16, 1, True),
    ],
    ids=str,
)
@pytest.mark.sample(3)
def test_products_at_awkward_sizes(sizes, orders, layout, out, unit, d_start, nvfp4):
    given = product(sum(sizes), sizes, orders=orders, layout=layout, out=out, unit=unit,
                    d_start=d_start, nvfp4=nvfp4)  # fmt: skip
    with device(**GPU, seed=sizes[0], lockstep=unit == 1) as gpu:
        multiply(given)
    given.check()
    names = kernels(gpu)
    assert names.count("scale_tiles") == orders.count("plain")
    # float4 is multiplied K-major only.
    assert ("repack" in names) == (unit == 1 or (nvfp4 and layout != "nt"))


KINDS = [
    # Several tiles each, the second and fourth of which begin in the middle of a tile of scales.
    ((300, 270, 264), {"schedule": "single", "tile": (128, 64, 128), "split_k": 1}),
    ((300, 400, 136), {"schedule": "pair", "tile": (128, 192, 128), "cluster": (2, 1)}),
    ((257, 520, 200), {"schedule": "pair", "tile": (128, 256, 128), "cluster": (2, 1)}),
    ((257, 300, 136), {"schedule": "single-dynamic", "tile": (128, 256, 128), "split_k": 1}),
    ((300, 130, 500), {"schedule": "pair", "split_k": 2, "cluster": (2, 1), "swap_ab": False}),
    ((9, 600, 264), {"schedule": "pair", "swap_ab": True}),
    ((9, 300, 500), {"schedule": "single", "swap_ab": True, "split_k": 2}),
    ((700, 150, 136), {"schedule": "pair-dynamic", "cluster": (4, 1), "split_k": 1}),
    ((300, 500, 264), {"schedule": "pair", "cluster": (2, 2), "split_k": 1}),
    # The second part of K is empty: zeros, not what tensor memory held.
    ((130, 64, 100), {"schedule": "single", "split_k": 2, "swap_ab": False}),
]


@pytest.mark.parametrize(
    ("sizes", "wanted", "nvfp4"),
    [
        (*kind, nvfp4)
        for i, kind in enumerate(KINDS)
        for nvfp4 in (False, True)
        if ALL or nvfp4 == bool(i % 2)
    ],
    ids=str,
)
@pytest.mark.sample(5)
def test_every_way_of_sharing(sizes, wanted, nvfp4):
    seed = sum(sizes)
    draw_from = random.Random(seed)
    orders = draw_from.choices(["plain", "blocked"], k=2)
    if wanted.get("swap_ab"):
        orders = ["plain", "blocked"]  # they are swapped
    layout = draw_from.choice(["nn", "nt", "tn", "tt"])
    given = product(seed, sizes, orders=orders, layout=layout, exact=True, nvfp4=nvfp4,
                    out=draw_from.choice(output_dtypes(KIND)).value)  # fmt: skip
    with device(**GPU, seed=seed):
        config = multiply(given, wanted, seed)
    assert all(getattr(config, name) == value for name, value in wanted.items())
    given.check(exact=True)


@pytest.mark.parametrize(
    ("nvfp4", "split"), [(False, 1), (False, 2), (False, 3), (True, 1), (True, 2)]
)
@pytest.mark.sample(2)
def test_k_may_end_anywhere_in_a_k_tile(nvfp4, split):
    """In its first and last block, and between; with parts of K that no k_tile ends in."""
    whole = {"schedule": "single", "tile": (128, 64, 128), "split_k": min(split, 2)}
    for k in (8 if nvfp4 else 16, 32, 96, 120, 128, 160, 256, 288, 480):
        given = product(k, (130, 70, k), orders=("blocked", "plain"), exact=True, nvfp4=nvfp4)
        with device(**GPU, seed=k):
            plan = unigemm.plan(
                given.left, given.right, given.d, backend="cute_tcgen05", **given.scales
            )
            config = replace(
                sampled_plan(plan, {**whole, "swap_ab": False}, 1).config, split_k=split
            )
            plan = with_config(plan, config)
            unigemm.matmul(given.left, given.right, given.d, plan=plan, **given.scales)
        given.check(exact=True)


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("k", [512, 424])
@pytest.mark.sample(2)
def test_tiles_may_begin_anywhere_along_k(monkeypatch, k, split):
    """With the k_tile that K ends in first, last, and between: of four k_tiles, or two."""
    # Turns along M, of 128: a tile's first k_tile is 0, 1, 2 or 3 of four.
    monkeypatch.setitem(vars(BACKEND), "arguments", lambda plan: (4, 32, 0))
    given = product(k, (500, 70, k), orders=("blocked", "blocked"), exact=True)
    wanted = {"schedule": "single", "tile": (128, 64, 128), "split_k": split, "swap_ab": False}
    with device(**GPU, seed=k):
        multiply(given, wanted, k)
    given.check(exact=True)


@pytest.mark.parametrize("nvfp4", [False, True])
def test_whole_operands_have_scales_too(nvfp4):
    given = product(4, (70, 66, 88), exact=True, nvfp4=nvfp4)
    whole = np.array(0.5, np.float32)
    given.scales = {"scale_a": (given.scales["scale_a"], whole),
                    "scale_b": (given.scales["scale_b"], 4.0)}  # fmt: skip
    given.a.values *= 2
    with device(**GPU):
        multiply(given)
    given.check(exact=True)


@pytest.mark.parametrize("orders", [("plain", "blocked"), ("blocked", "plain")])
def test_stacks_share_operands_and_their_scales(orders):
    stack = ((3, 1), (1, 2))
    given = product(5, (70, 66, 168), orders=orders, stack=stack, exact=True)
    with device(**GPU):
        multiply(given)
    given.check(exact=True)


def test_a_result_that_runs_down_its_columns_is_the_transpose():
    given = product(6, (70, 130, 104), orders=("plain", "blocked"), exact=True)
    down = np.full((130, 70), np.nan, np.float32).T
    with device(**GPU):
        unigemm.matmul(given.left, given.right, down, backend="cute_tcgen05", **given.scales)
    np.testing.assert_array_equal(down, given.a.values @ given.b.values.T)


def test_a_scale_that_is_no_number_spoils_its_row_alone():
    given = product(7, (70, 66, 168), orders=("plain", "blocked"))
    codes = given.scales["scale_a"].view(np.uint8)
    codes[37, 2] = NAN[E8M0]
    with device(**GPU):
        multiply(given)
    assert np.isnan(given.d[37]).all()
    assert not np.isnan(np.delete(given.d, 37, 0)).any()


def test_rows_are_the_same_whatever_their_number():
    rng = np.random.default_rng(8)
    a, b = draw(rng, (150, 160), E4M3), draw(rng, (80, 160), E5M2)
    results = []
    with device(**GPU):
        for rows in (1, 5, 150):
            part = Operand(a.elements[:rows], a.codes[:rows], a.values[:rows])
            got = unigemm.matmul(
                part.elements, b.elements.T, batch_invariant=True, backend="cute_tcgen05",
                scale_a=part.scales("blocked"), scale_b=b.scales("plain").T,
            )  # fmt: skip
            assert_near(got, part, b)
            results.append(got)
    for got in results:
        np.testing.assert_array_equal(got, results[-1][: len(got)])


def test_other_architectures_and_scales_of_any_stride():
    """Negative steps, and one scale for all rows."""
    rng = np.random.default_rng(9)
    a, b = draw(rng, (40, 96), E4M3), draw(rng, (30, 96), E4M3)
    back = np.ascontiguousarray(a.codes[::-1, ::-1])[::-1, ::-1].view(E8M0)
    one = np.broadcast_to(b.codes[:1].view(E8M0), (30, 3))
    b = Operand(b.elements, one, dequantised(b.elements, np.array(one)))
    for arch in ("sm_103a", "sm_110a"):
        with device(arch):
            got = unigemm.matmul(a.elements, b.elements.T, scale_a=back, scale_b=one.T)
        assert_near(got, a, b)
