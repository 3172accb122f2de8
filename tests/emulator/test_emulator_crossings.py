"""Every two features of a CuTe backend in one kernel, on emulated GPUs, against the host."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from crossings import ASKED, Backend, covering, crossings, drawn, is_small, pairs_of
from emulated_products import POISONED
from epilogue_cases import check_epilogue
from reference import NUMPY
from sampling import ALL
from test_emulator_remainders import AXPY, dot

from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.geometry import geometry
from unigemm.backends.cute_simt.schedules import FEW_ROWS
from unigemm.backends.cute_tcgen05 import candidates as tcgen05
from unigemm.backends.cute_tcgen05.geometry import store_of
from unigemm.backends.cute_wgmma import candidates as wgmma
from unigemm.backends.cute_wgmma.geometry import is_adding
from unigemm.backends.cute_wgmma.geometry import store_of as store_of_wgmma
from unigemm.backends.cute_wgmma.geometry_operands import from_registers
from unigemm.emulator import device
from unigemm.planning.registry import backend_named
from unigemm.problem.dtypes import DType


def of_wgmma(problem, config):
    own, rows = config.oriented(problem), config.tile[0]
    parts = {
        "split-K": config.split_k > 1, "slice-K": config.slice_k > 1,
        "cluster along K": config.cluster_k > 1, "multicast": config.cluster != (1, 1),
    }  # fmt: skip
    return {
        "store": store_of_wgmma(own, rows, is_adding(config)),
        "fragments": from_registers(own, rows),
        "schedule": config.schedule,
        "parts": next((name for name, there in parts.items() if there), "whole"),
        "few rows": rows < 64,
    }


def of_tcgen05(problem, config):
    return {
        "store": store_of(config.oriented(problem), config.split_k > 1)[0],
        "schedule": config.schedule,
        "split": config.split_k > 1,
        "cluster": config.cluster != (1, 1),
    }


def of_simt(problem, config):
    few = config.schedule in FEW_ROWS
    parts = {"split-K": config.split_k > 1, "cluster along K": config.cluster_k > 1}
    swapped = {x.swap_ab != config.swap_ab for x in config.remainder}
    return {
        "schedule": config.schedule,
        "parts": next((name for name, there in parts.items() if there), "whole"),
        "copies apart": config.producers > 0,
        "stores directly": not few and geometry(config.oriented(problem), config).stores_directly,
        "remainder": {False: "rows", True: "columns"}[swapped.pop()] if swapped else "none",
        "repacked": config.repacked,
    }


def simt_configs(plan):
    """Yield its tiles whole, in two parts of K, and with what is beyond them in a launch apart."""
    for swap_ab in (False, True):
        problem = plan.problem.transposed if swap_ab else plan.problem
        m, n = (plan.extents.n, plan.extents.m) if swap_ab else (plan.extents.m, plan.extents.n)
        for config in base_configs(problem, plan.target):
            whole = replace(config, swap_ab=swap_ab)
            yield whole
            yield replace(whole, split_k=2)
            left = m % config.tile[0], n % config.tile[1]
            rows = problem.b.major == "k", problem.a.major == "k"
            for columns in (False, True):
                if 1 <= left[columns] <= 8:
                    few = next(x for x in (1, 2, 4, 8) if x >= left[columns])
                    launch = dot(few) if rows[columns] else AXPY
                    yield replace(whole, remainder=(replace(launch, swap_ab=swap_ab != columns),))


INPUTS = (
    (DType.BFLOAT16, "ieee"), (DType.FLOAT32, "tf32"), (DType.FLOAT8_E4M3FN, "ieee"),
    (DType.INT8, "ieee"),
)  # fmt: skip
PLACES = ("wide", "narrow", "apart")
SIZES = ((72, 136), (67, 130))
BACKENDS = {
    of.name: of
    for of in (
        Backend(
            "cute_wgmma", "sm_90a", INPUTS, PLACES, SIZES, lambda dtype: 128 // dtype.itemsize,
            lambda plan: wgmma.offered(plan.problem, plan.target, is_small), of_wgmma,
        ),
        Backend(
            "cute_tcgen05", "sm_100a", INPUTS, PLACES, SIZES, lambda dtype: 128 // dtype.itemsize,
            lambda plan: filter(is_small, tcgen05.offered(plan.problem, plan.target)), of_tcgen05,
        ),
        Backend(
            "cute_simt", "sm_90a",
            tuple((x, "ieee") for x in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT64)),
            PLACES, SIZES, lambda dtype: 16, lambda plan: filter(is_small, simt_configs(plan)),
            of_simt,
        ),
    )
}  # fmt: skip
#: How many cases an ordinary run takes: nearly all pairs are in them.
MOST = 20

pytestmark = POISONED


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_two_features_go_together(name, part):
    of, failed = BACKENDS[name], []
    for case in crossings(of)[: None if ALL else MOST][part::2]:
        precision = case.product.options["precision"]
        on = device(target=of.target)
        try:
            check_epilogue(case.product, NUMPY, on, plan=case.plan, precision=precision)
        except Exception as error:
            failed.append(f"{case.factors}\n{case.plan.config}\n{error!r}")
    assert not failed, "\n\n".join(failed)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_the_cases_have_every_pair_that_is_legal(name):
    """Those of another drawing too, but for some that are rare."""
    of = BACKENDS[name]
    chosen = crossings(of)
    covered = {pair for case in chosen for pair in pairs_of(case.factors)}
    ordinary = {pair for case in chosen[:MOST] for pair in pairs_of(case.factors)}
    others = {pair for case in drawn(of, 100, "others") for pair in pairs_of(case.factors)}
    assert {each.factors["name"] for each in chosen} == set(ASKED)
    assert len(others - covered) <= 0.02 * len(others)
    assert len(ordinary) >= 0.85 * len(covered)
    assert all(
        backend_named(name).unsupported_config_reason(
            case.plan.problem, case.plan.extents, of.target, case.plan.config
        )
        is None
        for case in chosen
    )


def test_a_covering_array_has_every_pair_and_is_small():
    cases = [dict(zip("abcd", x, strict=True)) for x in product(range(3), repeat=4)]
    legal = [case for case in cases if (case["a"], case["b"]) != (0, 0)]
    found = covering(legal, "four")
    assert found == covering(legal, "four")
    pairs = {pair for number in found for pair in pairs_of(legal[number])}
    assert len(pairs) == 6 * 9 - 1
    assert 9 <= len(found) <= 15
    assert covering([], "none") == []
