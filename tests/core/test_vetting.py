"""Plans from outside: each gives a typed error, or the right result."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from plan_mutations import mutate, originals, specs

import unigemm
from unigemm.emulator import device
from unigemm.planning.config import Config, Raster
from unigemm.planning.plan import Plan
from unigemm.planning.registry import backend_named
from unigemm.planning.target import CPU, named_target
from unigemm.planning.validation import on_device
from unigemm.problem.dtypes import numpy_dtype

SEED = 40
ARRAYS = np.arange(12.0, dtype=np.float32).reshape(3, 4), np.ones((4, 5), np.float32)


def on_host(**changes):
    return {**unigemm.plan(*ARRAYS, tuned=False).to_dict(), **changes}


def on_hopper(**changes):
    a, b = specs((256, 512, 1024), "bfloat16", "nt")
    return {**unigemm.plan(a, b, target="sm_90a", backend="cute_wgmma").to_dict(), **changes}


def accepted(data):
    """Return a plan if it is one, or None: any other error fails the test."""
    try:
        return Plan.from_json(data) if isinstance(data, str) else Plan.from_dict(data)
    except unigemm.UnigemmError:
        return None


def mutations(count, rng, begun_with):
    """Return the plans of a number of mutations that are taken."""
    plain = [plan.to_dict() for plan in begun_with]
    return [p for _ in range(count) if (p := accepted(mutate(rng.choice(plain), rng)))]


def test_a_mutated_plan_is_refused_or_is_one_that_the_planner_could_have_made():
    found = mutations(2000, random.Random(SEED), originals())
    assert 100 < len(found) < 1000
    assert len({plan.backend for plan in found}) == 5
    for plan in found:
        backend, product = backend_named(plan.backend), (plan.problem, plan.extents, plan.target)
        assert backend.unsupported_reason(*product) is None
        assert backend.unsupported_config_reason(*product, plan.config) is None
        assert plan.workspace_bytes == backend.workspace_bytes(*product, plan.config)
        assert Plan.from_json(plan.to_json()) == plan


def operands(plan):
    """Return arrays that a plan is for."""
    problem, e = plan.problem, plan.extents
    made = []
    for kind, shape, turned in (
        (problem.a, (e.m, e.k), problem.a.major == "m"),
        (problem.b, (e.k, e.n), problem.b.major == "k"),
    ):
        stack = () if e.batch == 1 else (e.batch,)
        numbers = np.random.default_rng(1).integers(-3, 4, (*stack, *shape))
        x = numbers.astype(numpy_dtype(kind.dtype))
        made.append(np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if turned else x)
    return made


def check(plan):
    """Multiply as a plan says; returns whether the arrays were taken for it."""
    a, b = operands(plan)
    problem = plan.problem
    options = {"precision": problem.precision, "dtype": str(problem.d.dtype)}
    options |= {"deterministic": problem.deterministic, "batch_invariant": problem.batch_invariant}
    try:
        found = unigemm.matmul(a, b, plan=plan, **options)
    except unigemm.UnsupportedProblem:
        return False  # compact arrays are not of its class
    exact = a.astype(float) @ b.astype(float)
    np.testing.assert_array_equal(found.astype(float), exact.astype(found.dtype).astype(float))
    return True


def is_small(plan):
    e = plan.extents
    return plan.problem.blocks is None and e.m * e.n * e.k * e.batch < 1 << 22


def test_mutated_plans_that_are_taken_are_right_on_the_host():
    known = originals()
    taken = mutations(600, random.Random(SEED), [plan for plan in known if plan.target == CPU])
    assert sum(check(p) for p in taken if p not in known and is_small(p)) >= 13


def of_few_kernels(plans, most):
    """Return plans of as few kernels as will do: what takes long is to compile."""
    groups = defaultdict(list)
    for plan in plans:
        groups[backend_named(plan.backend).key(plan).digest].append(plan)
    largest = sorted(groups.values(), key=len, reverse=True)
    return [plan for group in largest for plan in group[:4]][:most]


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_mutated_plans_that_are_taken_are_right_on_a_gpu(arch):
    known = [x for x in originals((70, 72, 96)) if x.target.arch == arch and x.backend != "cutile"]
    taken = mutations(300, random.Random(SEED), known)
    done, new = 0, {p: p for p in taken if p not in known and is_small(p)}
    for plan in of_few_kernels(new, 8):
        with device(plan.target):
            done += check(plan)
    assert done >= 6


WRONG = {
    "None": None,
    "a number": 5,
    "a list": [1],
    "a plan": unigemm.plan(*specs((8, 8, 8), "float32", "nn"), target="cpu"),
    "nothing": {},
    "no names": {1: 2},
    "no parts of K": on_hopper(split_k=0),
    "fewer parts of K": on_hopper(split_k=-2),
    "more parts of K than partial sums may take": on_hopper(split_k=1000),
    "a group of none": on_hopper(raster={"order": "m", "group": 0}),
    "a group backwards": on_hopper(raster={"order": "m", "group": -1}),
    "another order": on_hopper(raster={"order": "z", "group": 1}),
    "a tile of nothing": on_host(tile=[200, 0, 200]),
    "a tile backwards": on_host(tile=[200, -1, 200]),
    "two sides": on_host(tile=[4, 4]),
    "a truth value": on_host(tile=[True, 4, 4]),
    "a float": on_host(tile=[4.0, 4, 4]),
    "a string": on_host(tile=["4", 4, 4]),
    "a string for a tile": on_host(tile="444"),
    "a huge number": on_host(tile=[10**5000, 4, 4]),
    "parameters without meaning": on_host(stages=3),
    "a parameter of another backend": on_hopper(producers=4),
    "an unknown parameter": on_hopper(turbo=True),
    "an unknown name inside": on_hopper(extents={**on_hopper()["extents"], "z": 1}),
    "a configuration inside": on_hopper(config={}),
    "another backend": on_hopper(backend="numpy"),
    "no backend": on_hopper(backend="somebody's"),
    "half a surrogate": on_hopper(backend="\ud800"),
    "a terminal's codes": on_hopper(limiter="\x1b[2J"),
    "no extents": on_host(extents={"m": 0, "n": 1, "k": 1, "batch": 1}),
    "endless extents": on_host(extents={"m": 2**62, "n": 2**62, "k": 2**62, "batch": 1}),
    "a time that is none": on_host(predicted_us=float("nan")),
    "an endless time": on_host(measured_us=10**400),
    "remainders without end": on_hopper(remainder=[on_hopper(), on_hopper()]),
    "a target of two words": on_hopper(target="sm_90a sm_80"),
    "a target in other digits": on_hopper(target="sm_9\N{SUPERSCRIPT TWO}"),
    "a target of many digits": on_hopper(target="sm_" + "9" * 5000),
    "a host with SMs": on_host(target={"arch": "cpu", "name": "host", "sm_count": 3}),
    "an alignment of three": on_host(
        problem={**on_host()["problem"], "a": {"dtype": "float32", "major": "k", "alignment": 3}}
    ),
    "a result in columns": on_host(
        problem={**on_host()["problem"], "d": {"dtype": "float32", "major": "m", "alignment": 4}}
    ),
    "types that are not multiplied": on_host(
        problem={**on_host()["problem"], "a": {"dtype": "int8", "major": "k", "alignment": 16}}
    ),
}
for name, value in {
    "sm_count": 0, "smem_per_block": 2**40, "clock_mhz": -5, "dram_gbs": 0, "fp32_lanes": True,
    "l2_bytes": 2**62, "arch": "sm_20", "name": 5, "smem_per_sm": 1,
}.items():  # fmt: skip
    WRONG[f"{name} of {value}"] = on_hopper(target={**on_hopper()["target"], name: value})


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_plan_gives_a_typed_error(kind):
    with pytest.raises(unigemm.UnigemmError):
        Plan.from_dict(WRONG[kind])


@pytest.mark.parametrize(
    "text",
    [
        *(5, None, [], b"\xff", "", "5", "null", "[" * 100_000, '{"a":' * 100_000),
        '{"backend": "numpy", "backend": "numpy"}',
        json.dumps(on_host())[:-1] + ', "backend": "cutile"}',
        json.dumps(on_host(predicted_us=1.5)).replace("1.5", "Infinity"),
        json.dumps(on_host(split_k=77)).replace("77", "9" * 5000),
        " " * (17 << 20),
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_text_that_is_no_plan_gives_a_typed_error(text):
    with pytest.raises(unigemm.UnsupportedProblem, match="not a plan"):
        Plan.from_json(text)


CHANGES = {
    "no parts of K": {"config": Config((3, 5, 4), split_k=0)},
    "a tile backwards": {"config": Config((3, -1, 4))},
    "a raster backwards": {"config": Config((3, 5, 4), raster=Raster("m", -1))},
    "no configuration": {"config": None},
    "a float": {"config": Config((3.5, 5, 4))},
    "no problem": {"problem": None},
    "no extents": {"extents": (3, 5, 4)},
    "no target": {"target": None},
    "a list of backends": {"backend": ["numpy"]},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_plan_that_a_caller_has_changed_is_checked_where_it_is_used(kind):
    wrong = replace(unigemm.plan(*ARRAYS, tuned=False), **CHANGES[kind])
    for use in (lambda: unigemm.matmul(*ARRAYS, plan=wrong), lambda: unigemm.compile(wrong)):
        with pytest.raises(unigemm.UnigemmError):
            use()


def test_integers_of_numpy_are_integers():
    plan = unigemm.plan(*ARRAYS, tuned=False)
    same = replace(plan, config=Config((np.int64(3), np.int32(5), np.uint8(2)), stages=np.int64(1)))
    np.testing.assert_array_equal(unigemm.matmul(*ARRAYS, plan=same), ARRAYS[0] @ ARRAYS[1])


def test_what_is_compiled_is_no_plan_gives_a_typed_error():
    with pytest.raises(unigemm.UnsupportedProblem, match="plan= is a int"):
        unigemm.compile(5)


def test_a_workspace_is_computed_not_believed():
    plan = Plan.from_dict(on_hopper())
    split = replace(plan, config=replace(plan.config, split_k=3, cluster_k=1, slice_k=1))
    for claimed in (0, 16, 2**40):
        again = Plan.from_json(replace(split, workspace_bytes=claimed).to_json())
        assert again.workspace_bytes == 3 * 256 * 512 * 4


def test_a_plan_runs_with_the_sizes_of_the_device_that_is_there():
    """One for many SMs, or for much shared memory, would ask for what there is not."""
    plan = Plan.from_dict(on_hopper())
    here = named_target("sm_90a")
    other = replace(here, sm_count=999, smem_per_sm=200_000, smem_per_block=190_000, name="x")
    seen = on_device(replace(plan, target=other), here)
    assert seen.target == here
    few = on_device(replace(plan, target=replace(here, sm_count=6)), here)
    assert few.target == replace(here, sm_count=6)


@pytest.mark.parametrize("backend", ["cute_simt", "cute_wgmma"])
def test_other_shared_memory_is_another_kernel(backend):
    a, b = specs((256, 512, 1024), "bfloat16", "nt")
    plan = unigemm.plan(a, b, target="sm_90a", backend=backend)
    other = replace(plan, target=replace(plan.target, smem_per_sm=200_000, smem_per_block=1 << 17))
    own = backend_named(backend)
    assert own.key(plan).digest != own.key(other).digest
    assert "smem_per_sm" not in own.key(plan).kernel
    renamed = replace(plan, target=replace(plan.target, name="another", sm_count=7))
    assert own.key(plan).digest == own.key(renamed).digest


def test_a_target_with_absurd_sizes_is_not_planned_for():
    hopper = named_target("sm_90a")
    for wrong in ({"sm_count": 0}, {"clock_mhz": 2**70}, {"arch": "sm_10"}, {"dram_gbs": 0.5}):
        with pytest.raises(unigemm.UnsupportedProblem, match="target"):
            unigemm.plan(*specs((8, 8, 8), "float32", "nn"), target=replace(hopper, **wrong))
    for name in (5, b"sm_90a", "sm_9\N{SUPERSCRIPT TWO}", "sm_" + "9" * 5000, ""):
        with pytest.raises(unigemm.UnsupportedProblem, match="target"):
            unigemm.named_target(name)


class Eight:
    def __index__(self):
        return 8


@pytest.mark.parametrize(
    "shape",
    [
        *(8, None, "88", b"\x08\x08", {8: 8}, {8}, (8.9, 8.9), (8.0, 8), ("8", 8), (True, 8)),
        *((None, 8), ((8,), 8), (-1, 8), (2**63, 1), (2**40, 2**40), (10**5000, 1), [1] * 65),
        *((float("nan"), 8), (float("inf"), 8), (np.float32(8), 8), (np.bool_(True), 8)),
        iter((8, 8)),
    ],
    ids=lambda shape: ascii(type(shape).__name__),
)
def test_extents_that_are_no_counts_are_refused(shape):
    with pytest.raises(unigemm.ShapeMismatch):
        unigemm.ArraySpec(shape, "float32")
    if shape not in (None, (-1, 8), (2**40, 2**40)):
        with pytest.raises(unigemm.ShapeMismatch):
            unigemm.ArraySpec((8, 8), "float32", strides=shape)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"order": x} for x in (None, 1, "c", ["C"], np.array(["C", "F"]))),
        *({"alignment": x} for x in (None, 8.0, True, "8", 3, 32, 2**70, [8])),
        *({"dtype": x} for x in (None, 5, "", "\ud800", object(), [1], {"a": 1}, (1, 2), "O")),
        *({"dtype": x} for x in ("x" * 10**6, np.dtype("f4,f8"), np.dtype(">f4"))),
    ],
    ids=lambda wrong: f"{next(iter(wrong))}-{ascii(next(iter(wrong.values())))[:20]}",
)
def test_specs_of_the_wrong_types_are_refused(wrong):
    with pytest.raises(unigemm.UnsupportedProblem) as caught:
        unigemm.ArraySpec(**{"shape": (8, 8), "dtype": "float32", **wrong})
    assert len(str(caught.value)) < 1000


def test_integers_of_any_library_are_extents():
    plain = unigemm.ArraySpec((8, 8), "float32")
    for shape in (
        [8, 8],
        np.array([8, 8]),
        (np.int64(8), np.uint8(8)),
        (Eight(), 8),
    ):
        made = unigemm.ArraySpec(shape, np.float32, alignment=np.int64(16))
        assert made == plain
        assert all(type(extent) is int for extent in made.shape)
