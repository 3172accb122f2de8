"""Epilogues in compiled kernels, on emulated GPUs: whichever way a product is computed."""

from __future__ import annotations

from dataclasses import replace

import call_path
import numpy as np
import pytest
from activation_values import X as FAR_OUT
from activation_values import checked
from crossings import Crossed
from emulated_products import POISONED
from epilogue_cases import (
    WithEpilogue,
    check_epilogue,
    check_planned,
    drawn_cases,
    plan_of,
    ways_of,
)
from operator_table import EXACT, FUNCTIONS, VALUES, as_numpy, differing
from reference import NUMPY
from sampling import ALL

import unigemm
from unigemm.activations import ACTIVATIONS, GRADIENTS
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.legality import unsupported_reason
from unigemm.backends.cute_wgmma.geometry import geometry
from unigemm.emulator import device
from unigemm.errors import UnsupportedProblem
from unigemm.planning.registry import backend_named
from unigemm.problem.dtypes import DType, numpy_dtype

pytestmark = POISONED
ARCHITECTURES = {"cute_simt": "sm_90a", "cute_wgmma": "sm_90a", "cute_tcgen05": "sm_100a"}
TARGETS = {
    name: replace(unigemm.named_target(arch), sm_count=6) for name, arch in ARCHITECTURES.items()
}
DTYPES = {
    "cute_simt": [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT64, DType.FLOAT16],
    "cute_wgmma": [DType.BFLOAT16, DType.FLOAT16, DType.INT8],
    "cute_tcgen05": [DType.BFLOAT16, DType.FLOAT16],
}


@pytest.mark.parametrize("backend", sorted(TARGETS))
def test_drawn_epilogues_are_those_of_the_host(backend):
    for case in drawn_cases(DTYPES[backend], 140, 2500, 60 if ALL else 1, backend):
        check_epilogue(case, NUMPY, device(target=TARGETS[backend]), backend=backend)


class _Loaded(Exception):
    """What a call loads, instead of loading it."""


@pytest.mark.parametrize("backend", ["cute_simt", "cute_wgmma"])
def test_drawn_cases_are_planned_as_they_are_computed(backend, monkeypatch):
    """So the kernels that are compiled ahead for a device are those that it runs."""

    def load(plan):
        raise _Loaded(plan)

    call_path.load_by(monkeypatch, load)
    cases = drawn_cases(DTYPES[backend], 300, 9000, 12, backend)
    kernel = backend_named(backend).key
    for case in (x for x in cases if x.name != "function"):  # a plan names one result
        with pytest.raises(_Loaded) as loaded:
            check_epilogue(case, NUMPY, device(target=TARGETS[backend]), backend=backend)
        planned = plan_of(case, backend, TARGETS[backend])
        assert kernel(loaded.value.args[0]).digest == kernel(planned).digest, case


#: A backend, a problem, and in how many of its ways it is computed by default. Gates in halves and
#: row reductions are in `test_emulator_crossings`.
CASES = [
    ("cute_wgmma", WithEpilogue((72, 112, 192), DType.BFLOAT16, "nt", "all"), 2),
    ("cute_wgmma", WithEpilogue((24, 136, 640), DType.BFLOAT16, "nt", "bias, gelu_tanh"), 1),
    ("cute_simt", WithEpilogue((65, 72, 300), DType.FLOAT32, "nt", "all"), 2),
    ("cute_simt", WithEpilogue((4, 136, 300), DType.BFLOAT16, "nt", "all"), 1),
    ("cute_tcgen05", WithEpilogue((136, 72, 192), DType.BFLOAT16, "nt", "all"), 1),
]


@pytest.mark.parametrize(("backend", "case", "some"), CASES, ids=lambda x: getattr(x, "name", x))
def test_every_way_of_computing_a_product_carries_out_its_epilogue(backend, case, some):
    ways = ways_of(case, backend, TARGETS[backend])
    assert len(ways) > 1
    for plan in ways if ALL else ways[:some]:
        check_planned(case, plan, NUMPY, device(target=plan.target))


#: Where tiles have many accumulators a thread, in one block of rows or in two, an epilogue takes a
#: few columns at a time: from registers, or box by box.
WIDE = [
    (Crossed((70, 200, 160), DType.INT8, "nt", "rows"), (128, 256, 128), "direct"),
    (Crossed((70, 200, 160), DType.INT8, "nt", "columns"), (256, 128, 128), "direct"),
    (Crossed((70, 200, 96), DType.BFLOAT16, "nt", "halves"), (128, 256, 64), "direct"),
    (Crossed((70, 200, 96), DType.BFLOAT16, "nt", "neighbours"), (256, 128, 64), "direct"),
    (Crossed((70, 200, 96), DType.BFLOAT16, "nt", "rows"), (256, 144, 64), "tma"),
    (Crossed((70, 203, 96), DType.FLOAT16, "nt", "rows", spacing="narrow"), (256, 152, 64), "rows"),
]


@pytest.mark.parametrize(
    ("case", "tile", "store"), WIDE if ALL else WIDE[::2], ids=lambda x: getattr(x, "name", x)
)
def test_a_wide_tile_has_its_epilogue_a_few_columns_at_a_time(case, tile, store):
    plan = plan_of(case, "cute_wgmma", TARGETS["cute_wgmma"])
    config = replace(
        plan.config, tile=tile, cluster=(1, 1), stages=2, warps=(8, 1), split_k=1, cluster_k=1,
        slice_k=1, swap_ab=False, schedule="cooperative",
    )  # fmt: skip
    geo = geometry(plan.problem, config)
    assert geo.store == store
    assert 0 < geo.epilogue_blocks * 8 < tile[1]
    plan = replace(plan, config=config, workspace_bytes=0, alternatives=())
    check_epilogue(case, NUMPY, device(target=plan.target), plan=plan)


@pytest.mark.parametrize("columns", [False, True])
def test_c_in_place_is_added_once_where_tiles_overlap(columns):
    """The last tile along M and N moves back over its neighbours."""
    case = WithEpilogue((68, 132, 40), DType.FLOAT32, "nt", "in place", columns=columns)
    plan = plan_of(case, "cute_simt", TARGETS["cute_simt"])
    offered = base_configs(plan.problem, plan.target)
    config = next(x for x in offered if x.tile == (32, 64, 16) and x.schedule != "tail")
    config = replace(config, swap_ab=plan.config.swap_ab)
    plan = replace(plan, config=config, workspace_bytes=0, alternatives=())
    check_epilogue(case, NUMPY, device(target=plan.target), plan=plan)


def test_whole_tiles_and_those_of_a_tail_have_the_same_epilogue():
    """Two tiles with more rows than D, one of which runs at once: the other's K is in parts."""
    case = WithEpilogue((20, 130, 70), DType.FLOAT32, "nn", "halves")
    target = replace(TARGETS["cute_simt"], sm_count=1)
    plan = ways_of(case, "cute_simt", target)[0]
    offered = base_configs(plan.problem, target)
    tile = next(x for x in offered if x.schedule == "tail" and x.tile == (32, 128, 16))
    config = replace(tile, occupancy=1, split_k=2)
    size = BACKEND.workspace_bytes(plan.problem, plan.extents, target, config)
    assert size > 0
    plan = replace(plan, config=config, workspace_bytes=size)
    check_planned(case, plan, NUMPY, device(target=target))
    largest = replace(plan.problem.epilogue, largest=plan.problem.epilogue.result)
    refused = unsupported_reason(replace(plan.problem, epilogue=largest), config, target)
    assert "added up in another order" in str(refused)


def test_scales_of_blocks_are_of_neighbouring_columns():
    spec = unigemm.ArraySpec
    a, b = spec((128, 128), "float8_e4m3fn"), spec((128, 128), "float8_e4m3fn", order="F")
    of_a, of_b = (spec(shape, "float8_e8m0fnu") for shape in ((128, 4), (4, 128)))
    with pytest.raises(UnsupportedProblem, match="blocks' scales lie in tiles of neighbouring"):
        unigemm.plan(
            a, b, dtype="bfloat16", backend="cute_tcgen05", target="sm_100a", scale_a=of_a,
            scale_b=of_b, activation="swiglu", gate_layout="halves",
        )  # fmt: skip


@pytest.mark.parametrize(("backend", "name"), [("cute_simt", "e5m2"), ("cute_wgmma", "e4m3fn")])
def test_float8_is_read_and_the_nearest_number_is_stored(backend, name):
    """NaN stays; infinities, and what is too large, become the largest number."""
    float8, bfloat16 = (numpy_dtype(DType(x)) for x in (f"float8_{name}", "bfloat16"))
    rng = np.random.default_rng(1)
    a, b = (rng.normal(0, 9, (40, 40)).astype(bfloat16) for _ in range(2))
    a[0, 0], a[1, 0], c = np.nan, np.inf, rng.normal(0, 9, (40, 40)).astype(float8)
    options = {"c": c, "beta": 8.0, "dtype": float8, "scale_d": 2.0}
    wanted = unigemm.matmul(a, b, backend="numpy", **options)
    with device(target=TARGETS[backend]):
        got = unigemm.matmul(a, b, backend=backend, **options)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(got[there].view(np.uint8), wanted[there].view(np.uint8))


@pytest.mark.parametrize(("dtype", "columns"), [("bfloat16", 48), ("float32", 45), ("int32", 48)])
def test_products_of_int8_have_their_epilogue_whichever_way_they_are_stored(dtype, columns):
    """By TMA, row by row, and from registers: they are no longer integers behind an epilogue."""
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-9, 9, shape).astype(np.int8) for shape in ((72, 64), (columns, 64)))
    options = {"alpha": 0.5, "bias": rng.normal(0, 9, columns).astype(np.float32), "dtype": dtype}
    wanted = unigemm.matmul(a, b.T, backend="numpy", **options)
    with device(target=TARGETS["cute_wgmma"]):
        got = unigemm.matmul(a, b.T, backend="cute_wgmma", **options)
    np.testing.assert_array_equal(got, wanted)


def test_rows_with_an_epilogue_are_the_same_however_many_there_are():
    """One kernel: it does not depend on M."""
    rng = np.random.default_rng(2)
    bfloat16 = numpy_dtype(DType.BFLOAT16)
    a, b = (rng.normal(0, 1, shape).astype(bfloat16) for shape in ((72, 64), (64, 48)))
    c = rng.normal(0, 1, (72, 48)).astype(bfloat16)
    options = {"bias": b[0], "activation": "gelu_tanh", "batch_invariant": True}
    options["backend"] = "cute_wgmma"
    grads = [np.full((m, 1), np.nan, np.float32) for m in (72, 40)]
    with device(target=TARGETS["cute_wgmma"]):
        whole = unigemm.matmul(a, b, c=c, bias_grad_out=grads[0], **options)
        some = unigemm.matmul(a[:40], b, c=c[:40], bias_grad_out=grads[1], **options)
    np.testing.assert_array_equal(whole[:40].view(np.uint16), some.view(np.uint16))
    np.testing.assert_array_equal(grads[0][:40], grads[1])


def test_bias_gradients_are_sums_over_whichever_dimensions_they_lack():
    """Also where a stack takes several launches, each of which adds to what there is."""
    rng = np.random.default_rng(5)
    a = rng.normal(0, 1, (2, 3, 4, 17, 10)).astype(np.float32).transpose(1, 2, 0, 3, 4)
    b = rng.normal(0, 1, (2, 3, 4, 10, 12)).astype(np.float32).transpose(1, 2, 0, 3, 4)
    wanted = -np.matmul(a.astype(np.float64), b)
    sums = np.full((2, 17, 1), np.nan, np.float32)
    with device(target=TARGETS["cute_simt"]):
        unigemm.matmul(a, b, alpha=-1.0, bias_grad_out=sums, backend="cute_simt")
    np.testing.assert_allclose(sums[..., 0], wanted.sum(axis=(0, 1, 4)), rtol=1e-5, atol=1e-4)


def test_sums_of_columns_take_every_row_and_write_no_column_more():
    """47 rows: each of a CTA's 16 warps adds some; 45 columns: those of the last CTA end early."""
    case = WithEpilogue((47, 45, 20), DType.FLOAT32, "nn", "column sums")
    check_epilogue(case, NUMPY, device(target=TARGETS["cute_simt"]), backend="cute_simt")


def test_a_renamed_function_finds_the_same_kernel_and_another_does_not():
    a, b = unigemm.ArraySpec((64, 64), "bfloat16"), unigemm.ArraySpec((64, 64), "bfloat16")

    def one(acc, x):
        return np.maximum(acc * 2, x)

    def same(total, x):
        return np.maximum(total * 2, x)

    def other(acc, x):
        return np.maximum(acc * 3, x)

    keys = []
    for function in (one, same, other):
        row = unigemm.ArraySpec((64,), "bfloat16")
        plan = unigemm.plan(
            a, b, backend="cute_wgmma", target="sm_90a", epilogue=function,
            epilogue_args={"x": row},
        )  # fmt: skip
        keys.append(backend_named("cute_wgmma").key(plan).digest)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name",
    ["scalars of a gate", "scalars of halves", "no product", "no product in a gate"],
)
@pytest.mark.parametrize("backend", sorted(TARGETS))
def test_scalars_of_the_device_and_gates_and_terms_left_out_go_together(backend, name):
    case = WithEpilogue((40, 72, 64), DType.BFLOAT16, "nt", name)
    check_epilogue(case, NUMPY, device(target=TARGETS[backend]), backend=backend)


#: Whose instructions are not those of the reference, and others in turn.
_OPERATORS = (
    ("//", "// of numbers", "neg", "rint", "floor", "ceil", "sign", "maximum", "fmin", "sqrt",
     "abs", "float_power 0.5", "power -1", "xor"),
    (*FUNCTIONS, "/", "where", "sum of truths", "choice of truths"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "names"),
    [(np.float32, _OPERATORS[0]), (np.float32, _OPERATORS[1]), (np.float64, _OPERATORS[0][:4])],
    ids=["exact", "functions", "float64"],
)
def test_operators_are_those_of_numpy(kind, names):
    table = EXACT | FUNCTIONS
    x = np.array(VALUES, kind)
    ones = np.ones((len(x), 1), kind)

    def function(acc, x, y):
        return tuple(table[name](x, y) for name in names)

    with device(target=TARGETS["cute_simt"]):
        results = unigemm.matmul(
            ones, ones.T, epilogue=function, epilogue_args={"x": x[:, None], "y": x},
            backend="cute_simt",
        )  # fmt: skip
    for name, got in zip(names, results, strict=True):
        units = {"power -8": 16}.get(name, 4) if name in FUNCTIONS else 0
        wrong = differing(got, as_numpy(table[name], kind), units)
        assert not wrong, (name, wrong[:5])


@pytest.mark.parametrize(
    ("kind", "rtol"), [(np.float32, 2e-5), (np.float64, 1e-12)], ids=["float32", "float64"]
)
def test_activations_are_right_in_their_tails_and_at_their_limits(kind, rtol):
    table = {**ACTIVATIONS, **GRADIENTS}
    x = FAR_OUT.astype(kind)
    ones = np.ones((len(x), 1), kind)
    with device(target=TARGETS["cute_simt"]):
        results = unigemm.matmul(
            ones, np.ones((1, 1), kind), epilogue_args={"x": x[:, None]}, backend="cute_simt",
            epilogue=lambda acc, x: tuple(function(x) for function in table.values()),
        )  # fmt: skip
    for name, got in zip(table, results, strict=True):
        checked(name, got.ravel(), x, rtol)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "dgelu", "dgelu_tanh", "dsilu"])
@pytest.mark.sample(2)
def test_limits_of_short_results_are_those_of_long_ones(name):
    """By the quick instructions."""
    x = np.array([-np.inf, -3e38, np.inf, np.nan], np.float32)
    a, b = np.zeros((4, 1), np.float16), np.zeros((1, 1), np.float16)
    function = {**ACTIVATIONS, **GRADIENTS}[name]
    with device(target=TARGETS["cute_simt"]):
        got = unigemm.matmul(
            a, b, epilogue=lambda acc, x: function(x), epilogue_args={"x": x[:, None]},
            backend="cute_simt",
        )  # fmt: skip
    top = 1 if name.startswith("d") else np.inf
    np.testing.assert_array_equal(got.ravel().astype(np.float32), [0, 0, top, np.nan])


def test_exact_gelu_keeps_its_tail_in_short_results():
    kind = numpy_dtype(DType.BFLOAT16)
    x = FAR_OUT.astype(kind).astype(np.float32)
    table = {"gelu": ACTIVATIONS["gelu"], "dgelu": GRADIENTS["dgelu"]}
    with device(target=TARGETS["cute_simt"]):
        results = unigemm.matmul(
            np.ones((len(x), 1), kind), np.ones((1, 1), kind), epilogue_args={"x": x[:, None]},
            backend="cute_simt",
            epilogue=lambda acc, x: tuple(function(x) for function in table.values()),
        )  # fmt: skip
    for name, got in zip(table, results, strict=True):
        checked(name, got.ravel(), x, 2.0**-7)
