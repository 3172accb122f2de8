"""Launches to fit to and to judge by are sampled evenly, repeatably, and share no shape."""

from __future__ import annotations

import argparse
import json
import lzma
import random
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from processes import output_of, python

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import collect
from bench.group_sizes import NAMES as GROUP_NAMES
from bench.group_sizes import random_groups
from bench.model_sizes import FAMILIES, WIDTHS, family, is_held_out
from bench.suites import SUITES, shapes_of
from unigemm.errors import UnsupportedProblem
from unigemm.planning.registry import backend_named
from unigemm.planning.target import named_target
from unigemm.problem.dtypes import DType
from unigemm.tuning.launch_draw import Amounts, LaunchDraw, kernel_of, varied
from unigemm.tuning.measure import Workload
from unigemm.tuning.sweep import contenders, key_of, planned, record_of

ROOT = Path(__file__).parents[2]


def offered(m=384, n=5120, k=2880, dtype=DType.BFLOAT16):
    work = Workload(m, n, k, dtype, "nt")
    plans = [
        planned(work, backend=name, target="h100", keep=0, tuned=False)
        for name in ("cute_wgmma", "cutile")
    ]
    return contenders(plans, sys.maxsize)


def test_what_a_fit_sees_is_never_judged_by_whatever_the_seeds():
    fitted = {shape for seed in range(40) for shape in shapes_of(f"models:{seed}")}
    judged = {
        shape
        for seed in range(40)
        for name in ("heldout", "families")
        for shape in shapes_of(f"{name}:{seed}")
    }
    assert len(fitted) > 500 < len(judged)
    assert not any(is_held_out(x) for x in fitted)
    assert all(is_held_out(x) for x in judged)
    assert not (fitted | judged) & {shape for shapes in SUITES.values() for shape in shapes}


def test_families_have_the_same_number_of_shapes():
    shapes = shapes_of("families:3")[:21]
    assert [family(shape) for shape in shapes] == [*FAMILIES] * 3
    few = collect.problems("families:3", {"float8_e4m3fn": 12})
    assert not any(todo.work.batch > 1 for todo in few)  # PyTorch has no such stacks


def test_sizes_of_models_are_drawn_anew_by_a_seed():
    first = shapes_of("models:1")
    assert first == shapes_of("models:1") != shapes_of("models:2")
    assert len(set(first)) == len(first)
    layers = [shape for shape in first if len(shape) == 3 and {*shape[1:]} <= {*WIDTHS}]
    assert len(layers) > len(first) / 2
    for wrong in ("models", "models:x", "heldout:-1"):
        with pytest.raises(UnsupportedProblem, match="heldout:SEED and families:SEED"):
            shapes_of(wrong)


def test_grouped_products_to_fit_to_and_to_judge_by_share_no_shape():
    def drawn(name, seed):
        return list(islice(random_groups(name, seed), 60))

    fitted, judged = (
        {(x.groups, x.m, x.n, x.k) for seed in range(8) for x in drawn(name, seed)}
        for name in GROUP_NAMES
    )
    assert not fitted & judged
    some = drawn("groups", 3)
    assert some == drawn("groups", 3) != drawn("groups", 4)
    assert {x.along for x in some} == {"m", "k", "rows"}
    for x in some:
        assert not x.each or sum(x.each) == (x.k if x.along == "k" else x.m)
        assert len(x.each) in (0, x.groups)
    assert any(0 in x.each for x in some)


def test_a_grouped_suite_has_its_layouts_and_sizes():
    todo = collect.problems("heldout-groups:2", {"bfloat16": 12, "float8_e4m3fn": 8})
    works = [each.work for each in todo]
    assert all(work.groups for work in works)
    assert {work.layout for work in works if work.along == "k"} <= {"tn"}
    assert all(work.layout == "nt" for work in works if work.dtype.itemsize == 1)
    plans = contenders([planned(works[0], target="h100", keep=0, tuned=False)], 3)
    assert plans[0].problem.groups is not None
    with pytest.raises(UnsupportedProblem, match="write groups:1"):
        collect.problems("groups", {"bfloat16": 1})


def test_a_run_that_is_cut_short_has_every_kind():
    todo = collect.problems("models:3", {"bfloat16": 8, "float64": 4, "float8_e4m3fn": 4})
    whole, half = (Counter(each.kind for each in some) for some in (todo, todo[:8]))
    assert whole == {"bfloat16": 8, "float64": 4, "float8_e4m3fn": 4}
    assert half == {"bfloat16": 4, "float64": 2, "float8_e4m3fn": 2}
    eight = [each.work for each in todo if each.kind == "float8_e4m3fn"]
    assert all(work.n % 16 == work.k % 16 == 0 and work.layout == "nt" for work in eight)


def test_launches_are_the_best_then_others_of_every_tile():
    plans = offered()
    draw = LaunchDraw("models:1", Amounts(6, 40, 5))
    found = draw("bfloat16", plans)
    assert [each.plan for each in found[:6]] == plans[:6]
    assert Counter(each.how for each in found) == {"best": 6, "evenly": 40, "varied": 5}
    assert len({(each.plan.backend, each.plan.config) for each in found}) == len(found)
    slow = 4 * plans[0].predicted_us
    tiles = Counter(tile_of(plan) for plan in plans[6:] if plan.predicted_us <= slow)
    taken = Counter(tile_of(each.plan) for each in found if each.how == "evenly")
    assert len(taken) == min(40, len(tiles))  # none twice before each once
    again = LaunchDraw("models:1", Amounts(6, 40, 5))("bfloat16", plans)
    assert found == again != draw("bfloat16", plans)


def tile_of(plan):
    return plan.backend, plan.config.tile, plan.config.warps, plan.config.schedule


def test_tiles_that_were_drawn_least_come_first():
    plans, draw = offered(), LaunchDraw("models:1", Amounts(0, 5, 0))
    taken = [tile_of(each.plan) for _ in range(6) for each in draw("bfloat16", plans)]
    assert len(set(taken)) == len(taken) == 30


def test_what_is_varied_can_run_and_differs():
    plans, rng = offered(), random.Random(5)
    configs = {plan.config for plan in plans}
    found = [new for _ in range(120) if (new := varied(rng.choice(plans), rng)) is not None]
    assert len(found) > 20
    for plan in found:
        backend = backend_named(plan.backend)
        assert (
            backend.unsupported_config_reason(plan.problem, plan.extents, plan.target, plan.config)
            is None
        )
    assert {plan.config for plan in found} - configs


class Pool:
    """Makes all kernels but some, in no time."""

    def __init__(self, missing=()):
        self.missing, self.requested = set(missing), []

    def ask(self, plans, until):
        self.requested += [name for name, _ in plans]

    def made(self, until):
        return Counter(map(self.state, self.requested))

    def state(self, name):
        return "late" if name in self.missing or name not in self.requested else "made"


class Measurer:
    """Measures by a function, in this process."""

    def __init__(self, measure):
        self.measure = measure

    def ready(self):
        pass

    def __call__(self, work, plans):
        return self.measure(work, plans)


def collected(tmp_path, measure, pool, seconds=1e6):
    todo = collect.problems("models:1", {"bfloat16": 3, "int8": 3})
    draw = LaunchDraw("models:1", Amounts(2, 3, 1))
    args = argparse.Namespace(
        seconds=seconds, rounds=2, suite="models:1", out=tmp_path / "x.jsonl.xz"
    )
    target, now, measurer = named_target("h100"), time.monotonic(), Measurer(measure)
    names = ("cute_wgmma", "cutile")
    summary = collect.collect(
        todo, lambda some: collect.draw_all(some, draw, names, target), pool, measurer, args, now
    )
    if not args.out.exists():
        return summary, []
    return summary, [json.loads(line) for line in lzma.open(args.out, "rt")]


def measured(work, plans):
    return [
        {**record_of(work, plan), "us": 2.0 + i, "cublas_us": 1.0} for i, plan in enumerate(plans)
    ]


def test_each_launch_is_written_once_with_how_it_was_drawn(tmp_path):
    summary, records = collected(tmp_path, measured, Pool())
    assert len(records) == len(set(map(key_of, records))) == 6 * 6
    assert Counter(record["drawn"] for record in records) == {"best": 12, "evenly": 18, "varied": 6}
    assert {record["suite"] for record in records} == {"models:1"}
    assert summary.launches == {"bfloat16": 18, "int8": 18}
    assert "| bfloat16 | 3 | 18 | 0 | 0.0 % | 0 | 0 | 0.500 | 0.500 |" in str(summary)


def test_kernels_that_were_not_made_in_time_are_not_measured(tmp_path):
    _, everything = collected(tmp_path, measured, Pool())
    (tmp_path / "x.jsonl.xz").unlink()
    missing = kernel_of_record(everything[0])
    _, records = collected(tmp_path, measured, Pool({missing}))
    assert missing not in set(map(kernel_of_record, records))
    assert 0 < len(records) < len(everything)


def test_a_problem_whose_pick_was_not_made_in_time_is_left_out(tmp_path):
    _, everything = collected(tmp_path, measured, Pool())
    (tmp_path / "x.jsonl.xz").unlink()
    first = everything[0]
    _, records = collected(tmp_path, measured, Pool({kernel_of_record(first)}))
    left_out = [x for x in everything if x["problem"] == first["problem"]]
    assert len(left_out) == 6
    assert not [x for x in records if x["problem"] == first["problem"]]


def kernel_of_record(record):
    from unigemm.planning.plan import Plan

    return kernel_of(Plan.from_dict(record["plan"]))


def test_what_breaks_a_measuring_process_loses_only_its_launches(tmp_path):
    def breaks(work, plans):
        if work.dtype is DType.INT8 or len(plans) == 6:  # with the varied ones
            raise RuntimeError("illegal address")
        return measured(work, plans)

    summary, records = collected(tmp_path, breaks, Pool())
    assert summary.launches == {"bfloat16": 15}
    assert {record["drawn"] for record in records} == {"best", "evenly"}


def test_nothing_is_measured_after_the_time(tmp_path):
    summary, records = collected(tmp_path, measured, Pool(), seconds=-1.0)
    assert not records
    assert not summary.launches


def test_a_dry_run_says_what_would_be_measured():
    command = ("-m", "bench.collect", "--dry-run", "--kinds")
    found = output_of(*command, "float8_e4m3fn=2", cwd=ROOT)
    assert "float8_e4m3fn: 2 problems, 16 best, " in found
    failed = python(*command, "float8_e4m3fn", cwd=ROOT)
    assert failed.returncode == 2
    assert "write float8_e4m3fn=24" in failed.stderr
