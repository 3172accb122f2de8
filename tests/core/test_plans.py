"""Plans, targets and the public planning functions."""

from __future__ import annotations

import pickle
import random
from dataclasses import astuple, fields, replace

import call_path
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import output_of
from reference import EVERYWHERE

import unigemm
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import BOUNDS
from unigemm.planning.registry import backend_named
from unigemm.planning.target import ARCHITECTURES
from unigemm.problem.dtypes import INPUTS, DType, dtype_named
from unigemm.problem.problem import PRECISIONS

spec = unigemm.ArraySpec
SQUARE = spec((256, 256), "float32")


@given(
    m=st.integers(1, 5000),
    n=st.integers(1, 5000),
    k=st.integers(1, 5000),
    dtype=st.sampled_from(EVERYWHERE),
    orders=st.tuples(st.sampled_from("CF"), st.sampled_from("CF")),
    target=st.sampled_from([*ARCHITECTURES, "cpu"]),
    coarse=st.sampled_from(PRECISIONS),
)
def test_a_plan_comes_back_from_json_and_the_same_inputs_give_the_same_plan(
    m, n, k, dtype, orders, target, coarse
):
    a, b = spec((m, k), dtype, orders[0]), spec((k, n), dtype, orders[1])
    precision = coarse if dtype is DType.FLOAT32 else "ieee"
    plan = unigemm.plan(a, b, target=target, precision=precision)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.alternatives == plan.alternatives
    assert again.rejected == plan.rejected
    assert again.problem.precision == precision
    assert unigemm.plan(a, b, target=target, precision=precision) == plan
    assert str(plan).startswith(str(plan.extents))
    assert plan.backend == ("numpy" if target == "cpu" else plan.backend)


@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
@pytest.mark.parametrize(
    ("dtype", "result"), [("e4m3", "float32"), ("fp8_e5m2", "float32"), ("int8", "int32")]
)
def test_eight_bits_are_planned_with_a_wider_result(target, dtype, result):
    a = spec((256, 256), dtype)
    plan = unigemm.plan(a, a, target=target)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.problem.a.dtype is dtype_named(dtype)
    assert plan.problem.d.dtype is dtype_named(result)


@pytest.mark.parametrize("options", [{}, {"backend": "cute_simt"}], ids=["auto", "cute_simt"])
def test_float8_is_refused_with_reasons_where_no_instruction_takes_it(options):
    a = spec((256, 256), "fp8_e4m3")
    with pytest.raises(unigemm.UnsupportedProblem, match=r"cute_simt: .*float8_e4m3fn; convert"):
        unigemm.plan(a, a, target="sm_80", **options)


@pytest.mark.parametrize("dtype", [d for d in INPUTS if d is not DType.FLOAT32], ids=str)
@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
def test_a_coarser_precision_is_for_float32_only(dtype, target):
    a = spec((64, 64), dtype)
    with pytest.raises(unigemm.UnsupportedProblem, match=f"these are {dtype}; leave precision out"):
        unigemm.plan(a, a, precision="tf32", target=target)


def test_alternatives_are_never_predicted_faster():
    plan = unigemm.plan(SQUARE, SQUARE, target="sm_90a")
    times = [plan.predicted_us, *(other.predicted_us for other in plan.alternatives)]
    assert times == sorted(times)


def test_text_that_is_no_plan_is_refused():
    for text in ("", "[]", "{}", '{"backend": 3}'):
        with pytest.raises(unigemm.UnsupportedProblem, match="not a plan"):
            Plan.from_json(text)


def test_a_plan_for_arrays_is_taken_by_matmul():
    a, b = (np.random.default_rng(0).random(shape) for shape in ((30, 20), (20, 10)))
    plan = Plan.from_json(unigemm.plan(a, b).to_json())
    np.testing.assert_allclose(unigemm.matmul(a, b, plan=plan), a @ b)


def test_a_plan_for_another_call_is_refused_with_what_differs():
    a, b = (np.random.default_rng(0).random(shape) for shape in ((30, 20), (20, 10)))
    plan = unigemm.plan(a, b)
    with pytest.raises(unigemm.UnsupportedProblem, match="size is 30x10x20"):
        unigemm.matmul(a[:20], b, plan=plan)
    with pytest.raises(unigemm.UnsupportedProblem, match="architecture"):
        unigemm.matmul(a, b, plan=replace(plan, target=unigemm.named_target("sm_80")))


def test_an_empty_product_needs_no_plan():
    with pytest.raises(unigemm.UnsupportedProblem, match="multiplies nothing"):
        unigemm.plan(spec((0, 4), "float32"), spec((4, 4), "float32"), target="sm_90a")


def test_specs_are_checked():
    for wrong in (
        {"shape": (2, -1), "dtype": "float32"},
        {"shape": (2, 2), "dtype": "object"},
        {"shape": (2, 2), "dtype": "float32", "order": "K"},
        {"shape": (2, 2), "dtype": "float32", "strides": (1,)},
        {"shape": (2, 2), "dtype": "float64", "alignment": 4},
    ):
        with pytest.raises(unigemm.UnsupportedProblem):
            spec(**wrong)


def test_a_strided_spec_plans_as_the_array_would():
    a = np.zeros((40, 64), np.float32)[:, 1::2]
    like = spec((40, 32), "float32", strides=(64, 2), alignment=4)
    b = np.zeros((32, 8), np.float32)
    for x in (a, like):
        assert unigemm.plan(x, b, target="sm_90a").problem.a.major == "strided"


@pytest.mark.parametrize("name", ["sm_90a", "sm_90", "90", "90a"])
def test_targets_are_known_by_their_usual_names(name):
    assert unigemm.named_target(name).arch == "sm_90a"


def test_an_unknown_target_names_the_nearest():
    with pytest.raises(unigemm.UnsupportedProblem, match="name sm_120a"):
        unigemm.named_target("sm_120b")


def test_a_compiled_host_plan_has_no_kernel():
    made = unigemm.compile(unigemm.plan(SQUARE, SQUARE, target="cpu"))
    assert made.entry is None
    assert made.cached


def test_the_workspace_of_a_plan_from_outside_is_computed_and_not_believed():
    plan = unigemm.plan(SQUARE, SQUARE, target="sm_90a", keep=2)
    other = replace(plan, workspace_bytes=77, alternatives=())
    assert Plan.from_json(other.to_json()) == plan


def test_a_problem_is_the_same_key_in_another_process():
    """Its hash is kept, and dtypes hash to something else there."""
    problem = unigemm.plan(SQUARE, SQUARE, target="cpu").problem
    assert problem.transposed is problem.transposed
    again = pickle.loads(pickle.dumps(problem))
    assert (again, hash(again)) == (problem, hash(problem))
    assert set(again.__getstate__()) == {each.name for each in fields(problem)}
    code = (
        "import pickle, sys, unigemm\n"
        "a = unigemm.ArraySpec((64, 64), 'float32')\n"
        "problem = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "assert {problem: 1}[unigemm.plan(a, a, target='cpu').problem] == 1"
    )
    output_of("-c", code, pickle.dumps(problem).hex())


def test_a_kernel_is_looked_up_by_what_it_is_made_of():
    """Extents are not in it: `loader._digest` is of any."""
    for sizes in ((64, 64), (640, 64)):
        a, b = unigemm.ArraySpec(sizes, "float32"), unigemm.ArraySpec((64, 64), "float32")
        plan = unigemm.plan(a, b, target="sm_90a", backend="cute_simt")
        own = backend_named(plan.backend).key(plan).digest
        assert call_path.digest_of(plan) == own


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("dtype", "size", "k"), [("bfloat16", 1 << 29, 1 << 29), ("float64", 1 << 30, 1)]
)
def test_the_largest_products_have_times(target, dtype, size, k):
    a, b = unigemm.ArraySpec((size, k), dtype), unigemm.ArraySpec((k, size), dtype)
    plan = unigemm.plan(a, b, target=target, keep=100)
    for parts in (plan.parts, *(each.parts for each in plan.alternatives)):
        assert np.isfinite(astuple(parts)).all()
        assert min(parts.l2, parts.reduction) >= 0


@pytest.mark.parametrize("seed", range(3))
def test_lower_bounds_are_of_the_main_loop_and_its_waves_as_is_said(seed):
    draw = random.Random(seed)
    above = 0
    for _ in range(40):
        m, n, k = (int(2 ** draw.uniform(4, 13)) for _ in range(3))
        dtype = draw.choice(("float16", "bfloat16", "float32", "float64"))
        target = draw.choice(ARCHITECTURES)
        plan = unigemm.plan(spec((m, k), dtype), spec((k, n), dtype), target=target)
        for each in (plan, *plan.alternatives):
            most = max(each.parts.used(BOUNDS).values(), default=0)
            assert most <= (each.parts.mainloop + each.parts.waves) * (1 + 1e-9)
            above += most > each.parts.mainloop
        if any(us >= 0.05 for us in plan.parts.used(BOUNDS).values()):
            assert "lower bounds of the main loop and its waves:" in " ".join(str(plan).split())
    assert above  # else the main loop alone would be the right word
