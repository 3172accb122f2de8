"""cute_simt's remainders without a GPU: who may have them, estimates, plans, SASS."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import made
from test_simt_geometry import EVERY_PROBLEM, problem_of

import unigemm
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_simt.legality import unsupported_launch, unsupported_reason
from unigemm.backends.cute_simt.schedules import is_big
from unigemm.backends.cute_simt.work_split import extents_of_tiles, scratch_bytes, split_remainders
from unigemm.cache.sass import instruction_mix
from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.target import named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents

H200 = named_target("sm_90a")
DOT = Config((1, 8, 1), warps=(1, 4), slice_k=2, schedule="dot")
AXPY = Config((1, 64, 1), warps=(1, 2), thread=(1, 4), slice_k=4, stages=8, schedule="axpy")
TILE = Config((128, 256, 16), stages=3, warps=(2, 4), thread=(8, 16), remainder=(DOT,))
SIZES = (2049, 2047, 2050)
LAYOUTS = ("kn", "kk", "mn", "mk")
ODD = problem_of(DType.FLOAT32, "k", "k", 4)


def of(remainder, **change):
    """Return a change of a configuration: another remainder."""
    return {"remainder": (replace(remainder, **change),)}


@pytest.mark.parametrize(
    ("problem", "change", "arch", "reason"),
    [
        (problem_of(DType.FLOAT32, "k", "n", 4), {}, "sm_90a", "K-major B"),
        (ODD, of(AXPY), "sm_90a", "N-major B"),
        (problem_of(DType.FLOAT32, "strided", "k"), {}, "sm_90a", "contiguous rows"),
        (problem_of(DType.FLOAT32, "m", "k"), of(DOT, swap_ab=True), "sm_90a", "K-major B"),
        (problem_of(DType.FLOAT64, "k", "k"), {"thread": (8, 8), "warps": (2, 8)}, "sm_90a", "32"),
        (problem_of(DType.BFLOAT16, "k", "k"), {"thread": (8, 8), "warps": (2, 8)}, "sm_90a", "32"),
        (replace(ODD, batch_invariant=True), {}, "sm_90a", "depends on M"),
        (
            ODD,
            {"tile": (32, 64, 16), "warps": (2, 2), "thread": (4, 4)},
            "sm_90a",
            "64 accumulators",
        ),
        (ODD, {"schedule": "dot"}, "sm_90a", "no rows over"),
        (ODD, of(replace(TILE, remainder=())), "sm_90a", "schedule for few rows"),
        (ODD, of(DOT, split_k=2), "sm_90a", "K whole"),
        (ODD, of(TILE, schedule="dot"), "sm_90a", "of its own"),
        (ODD, of(DOT, repacked=True), "sm_90a", "where they lie"),
        (ODD, of(DOT, tile=(3, 8, 1)), "sm_90a", "no tile of 3x8"),
        (ODD, {"remainder": (DOT, DOT)}, "sm_90a", "one remainder launch of rows"),
        (ODD, {}, "sm_80", "not on sm_80"),
        (ODD, {}, "sm_100a", "not on sm_100a"),
    ],
)
def test_what_has_no_remainders_is_told_why(problem, change, arch, reason):
    assert reason in unsupported_reason(problem, replace(TILE, **change), named_target(arch))


def test_every_schedule_of_big_tiles_may_have_remainders():
    for schedule, more in (
        ("", {}), ("", {"split_k": 3}), ("", {"repacked": True}),
        ("tail", {"occupancy": 1, "split_k": 2}),
    ):  # fmt: skip
        config = replace(TILE, schedule=schedule, **more)
        assert unsupported_reason(ODD, config, H200) is None
        both = replace(config, remainder=(DOT, replace(AXPY, swap_ab=True)))
        assert unsupported_reason(problem_of(DType.FLOAT32, "m", "k", 4), both, H200) is None
    for problem in EVERY_PROBLEM:
        assert not any(config.remainder for config in base_configs(problem, H200))


sizes = st.integers(1, 9000)


@given(
    st.builds(Extents, sizes, sizes, sizes, st.integers(1, 5)),
    st.permutations([DOT, replace(AXPY, swap_ab=True)]),
    st.integers(1, 2),
)
def test_remainders_and_tiles_have_every_element_once(extents, remainders, count):
    config = replace(TILE, remainder=tuple(remainders[:count]))
    found, tiles = split_remainders(extents, config)
    assert tiles == extents_of_tiles(extents, config)
    assert len(found) == count
    every = [*found, tiles]
    assert sum(x.m * x.n for x in every) == extents.m * extents.n
    assert {(x.k, x.batch) for x in every} == {(extents.k, extents.batch)}
    for remainder, rows in zip(config.remainder, found, strict=True):
        assert rows.m < config.tile[remainder.swap_ab]
        assert (tiles.m, tiles.n)[remainder.swap_ab] % config.tile[remainder.swap_ab] == 0


@pytest.mark.parametrize(
    ("extents", "rows", "problem", "fits"),
    [
        (Extents(129, 10, 10), 1, ODD, True),
        (Extents(*SIZES), 1, ODD, True),
        (Extents(2056, 2047, 2050), 8, ODD, True),
        (Extents(2053, 2047, 2050), 8, ODD, True),
        (Extents(2048, 2047, 2050), 1, ODD, False),  # none left over
        (Extents(2050, 2047, 2050), 1, ODD, False),  # too many
        (Extents(1, 2047, 2050), 1, ODD, False),  # none for the tiles
        (Extents(2051, 2047, 2050), 4, problem_of(DType.FLOAT32, "m", "k"), False),  # four at once
        (Extents(2052, 2047, 2050), 4, problem_of(DType.FLOAT32, "m", "k"), True),
        (Extents(2051, 2047, 2050), 4, problem_of(DType.FLOAT32, "m", "k", 4), True),
    ],
)
def test_a_remainder_is_for_as_many_rows_as_it_holds(extents, rows, problem, fits):
    remainder = replace(DOT, tile=(rows, 8, 1))
    rows_of = replace(TILE, remainder=(remainder,))
    transposed = replace(TILE, tile=(256, 128, 16), warps=(4, 2))
    columns_of = replace(transposed, remainder=(replace(remainder, swap_ab=True),))
    cases = [(problem, extents, rows_of), (problem.transposed, extents.transposed, columns_of)]
    for each, its, config in cases:
        assert (unsupported_launch(each, its, config) is None) == fits
        if not fits:
            with pytest.raises(UnsupportedProblem, match="a remainder launch"):
                BACKEND.estimate(each, its, H200, config)
            with pytest.raises(UnsupportedProblem, match="plan again"):
                BACKEND.arguments(Plan("cute_simt", config, each, its, H200))


def offers(problem, *extents):
    """Return what is offered with remainders, and without, the cheapest first."""
    found = BACKEND.candidates(problem, Extents(*extents), H200)
    return [[x for x in found if bool(x.config.remainder) == have] for have in (True, False)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_remainders_are_offered_for_rows_and_columns_that_are_left_over(layout):
    problem = problem_of(DType.FLOAT32, *layout, 4)
    for m, n in ((2049, 2047), (1025, 1024), (2047, 2049), (2049, 2049), (4100, 520)):
        found, _ = offers(problem, m, n, 1000)
        kinds = {tuple(remainder.swap_ab for remainder in x.config.remainder) for x in found}
        rows = 0 < m % 32 <= (8 if layout[1] == "k" else 1)
        columns = 0 < n % 32 <= (8 if layout[0] == "k" else 1)
        wanted = [((False,), rows), ((True,), columns), ((False, True), rows and columns)]
        assert kinds == {kind for kind, there in wanted if there}
        assert all(is_big(x.config) for x in found)
        for each in found:
            assert unsupported_reason(problem, each.config, H200) is None
    for m, n in ((2048, 2048), (2060, 2060), (8, 2048), (1, 1)):
        assert offers(problem, m, n, 1000)[0] == []


def test_no_remainders_are_offered_where_they_were_not_estimated():
    extents = Extents(*SIZES)
    for problem, arch in (
        (ODD, "sm_80"), (ODD, "sm_100a"), (problem_of(DType.FLOAT64, "k", "k"), "sm_90a"),
        (problem_of(DType.BFLOAT16, "k", "k"), "sm_90a"),
        (replace(ODD, batch_invariant=True), "sm_90a"),
    ):  # fmt: skip
        assert not any(
            x.config.remainder for x in BACKEND.candidates(problem, extents, named_target(arch))
        )


@given(
    st.sampled_from(LAYOUTS), st.sampled_from([4, 16]),
    st.builds(
        Extents, st.integers(1, 40).map(lambda x: 64 * x + 1), st.integers(1, 3000),
        st.integers(1, 5000), st.integers(1, 3),
    ),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_a_ranking_is_the_top_of_all_and_estimates_a_named_one_alike(layout, alignment, extents):
    problem = problem_of(DType.FLOAT32, *layout, alignment)
    every = sorted(BACKEND.candidates(problem, extents, H200), key=lambda x: x.prediction.us)
    known = {x.config: x for x in every}
    for most in (1, 9):
        top = BACKEND.ranking(problem, extents, H200, most).candidates
        assert all(known[x.config] == x for x in top)
    stripped = [x for x in every if x.config.remainder]
    assert stripped or extents.batch * extents.m < 64
    for each in stripped[:40]:
        assert BACKEND.estimate(problem, extents, H200, each.config) == each
        whole = extents_of_tiles(extents, each.config)
        bare = replace(each.config, remainder=())
        assert each.workspace_bytes == scratch_bytes(problem, whole, bare, H200)


def plan_of(layout, m, n, k):
    orders = [{"n": "C", "t": "F"}[letter] for letter in layout]
    return unigemm.plan(
        unigemm.ArraySpec((m, k), "float32", orders[0]),
        unigemm.ArraySpec((k, n), "float32", orders[1]),
        target="sm_90a",
    )


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_one_row_more_than_2048_is_a_remainder_and_twelve_are_not(layout):
    plan = plan_of(layout, *SIZES)
    (remainder,) = plan.config.remainder
    assert remainder.schedule == ("axpy" if layout[1] == "n" else "dot")
    assert remainder.tile[0] == 1
    assert 0 < plan.parts.remainder < 0.05 * plan.predicted_us
    _, (bare, *_) = offers(plan.problem, *SIZES)
    assert plan.predicted_us < 0.98 * bare.prediction.us
    for m in (2048, 2060):
        found = plan_of(layout, m, 2047, 2050)
        assert not any(x.config.remainder for x in (found, *found.alternatives))


def test_a_plan_with_remainders_reads_well_and_comes_back_from_json():
    plan = plan_of("nt", 2049, 2049, 2049)
    rows, columns = plan.config.remainder
    assert (rows.swap_ab, columns.swap_ab) == (False, True)
    bare = replace(plan.config, remainder=())
    assert str(plan.config) == f"{bare} + {rows} + {columns}"
    assert "  remainder  " in plan.explain()
    assert Plan.from_json(plan.to_json()) == plan
    assert [x["schedule"] for x in plan.to_dict()["remainder"]] == ["dot", "dot"]
    old = plan_of("nt", 2048, 2048, 2048)
    text = old.to_json()
    assert '"remainder": [], ' in text
    assert Plan.from_json(text.replace('"remainder": [], ', "")) == old, "plans of before have none"


def test_remainders_are_in_the_key_of_a_kernel_and_no_others_key_has_changed():
    plan = Plan("cute_simt", TILE, ODD, Extents(*SIZES), H200)
    others = [
        replace(TILE, remainder=()), replace(TILE, remainder=(replace(DOT, swap_ab=True),)),
        replace(TILE, remainder=(replace(DOT, tile=(2, 8, 1)),)),
        replace(TILE, remainder=(replace(DOT, slice_k=1),)),
        replace(TILE, remainder=(DOT, replace(DOT, swap_ab=True))),
    ]  # fmt: skip
    keys = [BACKEND.key(replace(plan, config=config)) for config in (TILE, *others)]
    assert len({key.digest for key in keys}) == len(keys)
    assert ["remainder" in key.kernel for key in keys] == [True, False, True, True, True, True]
    assert BACKEND.key(replace(plan, extents=Extents(4097, 64, 64))).digest == keys[0].digest


@pytest.mark.sample(2)
@pytest.mark.compile
@pytest.mark.parametrize(("layout", "sizes"), [
    ("nn", (2049, 2047, 2050)), ("nt", (2049, 2049, 2049)), ("tn", (2047, 2049, 2050)),
    ("tt", (2049, 2047, 2050)),
])  # fmt: skip
def test_what_is_planned_with_remainders_compiles_without_spills(layout, sizes):
    """And every kernel waits for the one before it: else a third would not wait for the first."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    from test_dependent_launches import kernels

    plan = plan_of(layout, *sizes)
    assert plan.config.remainder
    artifact = made(plan)
    assert artifact.info.spill_bytes == 0
    assert {"LDL", "STL"}.isdisjoint(instruction_mix(artifact.files))
    found = kernels("cute_simt", "float32", layout, sizes)
    assert {f"simt_{remainder.schedule}" for remainder in plan.config.remainder} < set(found)
    for code in found.values():
        assert any("ACQBULK" in text for text in code)
