"""What is priced and what is kept: shortlists, breakdowns, and the models' invariants."""

from __future__ import annotations

from dataclasses import astuple, replace
from math import gcd, inf

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import unigemm
from unigemm.backends.common.top_k import Shortlist, cheapest_first
from unigemm.backends.common.workspace import parts_per_thread, workspace_bytes
from unigemm.backends.cute_simt.backend import BACKEND as SIMT
from unigemm.backends.cute_simt.legality import unsupported_dmma
from unigemm.backends.cute_simt.legality import unsupported_reason as simt_illegal
from unigemm.backends.cute_simt.schedules import FEW_ROWS
from unigemm.backends.cute_tcgen05.backend import BACKEND as TCGEN05
from unigemm.backends.cute_tcgen05.legality import unsupported_reason as tcgen05_unsupported
from unigemm.backends.cute_wgmma.backend import BACKEND as WGMMA
from unigemm.backends.cute_wgmma.legality import unsupported_reason as wgmma_unsupported
from unigemm.backends.cute_wgmma.tiles import family_of
from unigemm.backends.cute_wgmma.traffic import work_of
from unigemm.backends.cutile.backend import BACKEND as CUTILE
from unigemm.backends.cutile.cost import FLOAT64_FLOPS
from unigemm.backends.cutile.legality import unsupported_reason as cutile_unsupported
from unigemm.planning.backend import Backend
from unigemm.planning.config import Config
from unigemm.planning.plan import BOUNDS, PARTS, Plan
from unigemm.planning.planner import choose
from unigemm.planning.prediction import Breakdown, Candidate, Prediction
from unigemm.planning.target import ARCHITECTURES, named_target
from unigemm.problem.dtypes import INPUTS, DType, output_dtypes
from unigemm.problem.problem import Extents, MatrixType, Problem

H200 = named_target("sm_90a")
ILLEGAL = {
    "cute_simt": simt_illegal,
    "cute_tcgen05": tcgen05_unsupported,
    "cute_wgmma": wgmma_unsupported,
    "cutile": cutile_unsupported,
}
targets = st.just(H200) | st.sampled_from([named_target(arch) for arch in ARCHITECTURES])


@st.composite
def problems(draw):
    dtype = draw(st.sampled_from(INPUTS))
    precision = "ieee"
    if dtype is DType.FLOAT32:
        precision = draw(st.sampled_from(["ieee", "tf32", "3xtf32"]))

    def matrix(kind, majors):
        major = draw(st.sampled_from(majors))
        options = [x for x in (1, 2, 4, 8, 16) if x >= kind.itemsize]
        alignment = kind.itemsize if major == "strided" else draw(st.sampled_from(options))
        return MatrixType(kind, major, alignment)

    out = draw(st.sampled_from(output_dtypes(dtype)))
    return Problem(
        matrix(dtype, ["k", "m", "strided"]),
        matrix(dtype, ["k", "n", "strided"]),
        matrix(out, ["n"]),
        precision,
    )


sizes = st.one_of(st.integers(1, 300), st.integers(1, 20000))
extents = st.builds(Extents, sizes, sizes, st.integers(1, 70000), st.integers(1, 5))


def takers(problem, size, target):
    return [
        b
        for b in (SIMT, WGMMA, TCGEN05, CUTILE)
        if b.unsupported_reason(problem, size, target) is None
    ]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans())),
    st.integers(1, 5),
    st.sampled_from([10, inf]),
)
def test_a_shortlist_keeps_the_cheapest_and_whoever_costs_the_same(entries, most, above):
    short = Shortlist(most, above)
    for i, (price, legal) in enumerate(entries):
        short.add(price, i, None if legal else f"reason {i % 2}")
    legal = sorted((price, i) for i, (price, fine) in enumerate(entries) if fine)
    bar = min(above, legal[most - 1][0]) if len(legal) >= most else above
    assert short.bar == bar
    assert sorted(short.kept()) == sorted(i for price, i in legal if price <= bar)
    prices = [entries[i][0] for i in short.kept()]
    assert prices == sorted(prices)
    dear = [i for i, (price, fine) in enumerate(entries) if not fine and price <= bar]
    assert sum(1 + others for _, _, others in short.refused()) == len(dear)
    for i, reason, _ in short.refused():
        assert reason == f"reason {i % 2}"
        same = [entries[j][0] for j in dear if j % 2 == i % 2]
        assert entries[i][0] == min(same)


@given(st.lists(st.integers(0, 40), max_size=300), st.booleans())
def test_all_prices_come_in_their_order_and_equal_ones_in_theirs(prices, endless):
    found = np.array(prices, dtype=float)
    if endless:
        found[found > 20] = inf
    assert list(cheapest_first(found)) == found.argsort(kind="stable").tolist()


@given(problems(), extents, targets, st.integers(1, 12), st.sampled_from([0.5, 1.0, 1.2, inf]))
def test_a_short_ranking_is_the_top_of_the_whole_one(problem, size, target, most, above):
    for backend in takers(problem, size, target):
        whole = backend.candidates(problem, size, target)
        prices = sorted(c.prediction.us for c in whole)
        short = backend.ranking(problem, size, target, most, above * prices[0])
        bar = min(above * prices[0], prices[:most][-1])
        expected = [c for c in whole if c.prediction.us <= bar]
        assert sorted(map(str, short.candidates)) == sorted(map(str, expected))
        for each in short.rejected:
            config = each.config
            reason = ILLEGAL[backend.name](config.oriented(problem), config, target)
            assert reason == each.reason


@given(problems(), extents, targets)
def test_no_candidate_is_estimated_below_the_lower_bound(problem, size, target):
    if CUTILE.unsupported_reason(problem, size, target) is None:
        prices = [c.prediction.us for c in CUTILE.candidates(problem, size, target)]
        assert CUTILE.lower_bound_us(problem, size, target) <= min(prices)


class Bounded(Backend):
    """A backend of one estimate and one lower bound, which notes each cutoff that it is given."""

    compiles = True

    def __init__(self, name, us, lower_bound):
        self.name, self.us, self.lower_bound, self.cutoffs = name, us, lower_bound, []

    def unsupported_reason(self, problem, extents, target):
        return None

    def lower_bound_us(self, problem, extents, target):
        return self.lower_bound

    def candidates(self, problem, extents, target):
        parts = Breakdown(launch=self.us)
        return [Candidate(Config((8, 8, 8)), Prediction(self.us, "launch", parts), 0)]

    def ranking(self, problem, extents, target, most, cutoff_us):
        self.cutoffs.append(cutoff_us)
        return super().ranking(problem, extents, target, most, cutoff_us)

    def bind(self, plan, gemm, kernel):
        raise AssertionError("nothing is launched here")


@pytest.mark.parametrize(
    ("lower_bound", "keep", "cutoffs"),
    [(0.0, 0, [inf]), (4.0, 0, [5.0]), (6.0, 0, []), (6.0, 1, [inf]), (6.0, 2, [inf])],
)
def test_a_backend_is_ranked_in_the_order_of_bounds_and_never_where_it_cannot_win(
    lower_bound, keep, cutoffs
):
    first, second = Bounded("first", 7.0, lower_bound), Bounded("second", 5.0, 0.0)
    kind = MatrixType(DType.FLOAT32, "k", 16)
    problem = Problem(kind, kind, replace(kind, major="n"))
    plan = choose(problem, Extents(8, 8, 8), H200, (first, second), keep=keep)
    assert (plan.backend, plan.predicted_us) == ("second", 5.0)
    assert first.cutoffs == cutoffs
    assert len(plan.alternatives) == min(keep, 1)


@given(problems(), extents, targets)
def test_the_parts_of_a_prediction_add_up_and_none_is_negative(problem, size, target):
    for backend in takers(problem, size, target):
        for each in backend.ranking(problem, size, target, 20, inf).candidates:
            made, prediction = each.prediction.parts, each.prediction
            assert sum(getattr(made, name) for name in PARTS) == pytest.approx(prediction.us)
            assert min(astuple(made)) >= -1e-9 * prediction.us
            assert prediction.limiter == made.limiter
            if prediction.limiter in BOUNDS:
                assert getattr(made, prediction.limiter) == max(
                    getattr(made, name) for name in BOUNDS
                )


def grows(backend, config, size, dimension, target):
    """Whether a configuration's price cannot fall as one size grows.

    By design it may with M and N, while: TMA fills rows of wgmma's only tile along M with zeros,
    which takes it longer than rows of A do; fewer CTAs than SMs draw a part of the bandwidth; or
    copies of the slab that K ends within check the lines of CUDA cores' only tile, too. Strips are
    for just so many lines more than whole tiles.
    """
    if dimension in ("k", "batch"):
        return True
    if config.remainder:
        return False
    seen = config.oriented(size)
    (m, n, k), along_m = config.tile, (dimension == "m") != config.swap_ab
    tiles = -(-seen.m // m) * -(-seen.n // n) * seen.batch * config.split_k
    if backend is WGMMA:
        return tiles >= target.sm_count and (not along_m or seen.m >= m)
    if backend is TCGEN05:
        return True
    if config.schedule in FEW_ROWS:
        return True
    checked = seen.k % k and (seen.m < m if along_m else seen.n < n)
    return tiles >= target.sm_count and not checked


@given(
    problems(), extents, targets, st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 10000)
)
def test_more_work_never_takes_a_configuration_less_time(problem, size, target, dimension, more):
    larger = replace(size, **{dimension: getattr(size, dimension) + more})
    for backend in takers(problem, size, target):
        if backend.unsupported_reason(problem, larger, target) is not None:
            continue
        for each in backend.ranking(problem, size, target, 3, inf).candidates:
            if lines_lie_better(backend, problem, each.config, size, larger, target):
                continue
            if grows(backend, each.config, size, dimension, target):
                after = backend.estimate(problem, larger, target, each.config).prediction
                before = each.prediction
                if dimension == "k":
                    whole = in_whole_slabs(backend, each.config, size)
                    if whole.k:
                        before = backend.estimate(problem, whole, target, each.config).prediction
                    elif larger.k >= each.config.tile[2]:
                        continue
                assert after.us >= before.us * (1 - 1e-9), each.config


def in_whole_slabs(backend, config, size):
    """Return a size without the slab of CUDA cores that K ends within, if any.

    The copies of such a slab are checked, which takes longer than a whole one: the price falls
    where K comes to fill it, but never below that of the whole slabs before.
    """
    if backend is not SIMT or config.schedule in FEW_ROWS:
        return size
    return replace(size, k=size.k - size.k % config.tile[2])


def lines_lie_better(backend, problem, config, size, larger, target):
    """Whether lines come to lie where they are read faster: all these are measured.

    Of float8 also where clusters gain more than they cost: where waves outgrow the L2.
    """
    problem, size, larger = (config.oriented(each) for each in (problem, size, larger))
    if backend is SIMT:  # of the parts of K: on vectors (`odd_scratch`)
        vector = 16 // problem.accumulator.itemsize
        return config.split_k > 1 and size.n % vector != 0 and larger.n % vector == 0
    if backend is WGMMA:  # of operands: on lines of the L2, on its sectors, or neither
        family = family_of(problem, target)
        before, after = (work_of(family, each) for each in (size, larger))
        outgrows = 2 * (larger.m + larger.n) * larger.k > target.l2_bytes  # a wave reads less
        if before.promoted and config.cluster != (1, 1) and outgrows:
            return True
        return any(less < now for now, less in zip(before.row_us, after.row_us, strict=True))
    if backend is CUTILE:
        long, of_a, of_b = problem.a.dtype.itemsize, problem.a.major, problem.b.major
        lines = [(e.k if of_a == "k" else e.m, e.k if of_b == "k" else e.n) for e in (size, larger)]
        before, after = ([gcd(line * long, 128) // 32 for line in each] for each in lines)
        return any(now < then for now, then in zip(before, after, strict=True))
    return False


def roofline_us(backend, problem, size, target):
    """The least time by the data sheet: of the multiply-adds, and of the device memory."""
    if backend is SIMT:
        double = problem.accumulator is DType.FLOAT64
        rate = target.fp64_lanes if double else target.fp32_lanes
        if double and unsupported_dmma(problem, target) is None:
            rate = 2 * target.fp64_lanes  # of tensor cores
    elif problem.a.dtype is DType.FLOAT64:
        rate = FLOAT64_FLOPS[target.capability[0]]
    else:
        rate = target.tensor_flops * 2 / problem.a.dtype.itemsize
    multiply = size.flops / 2 / rate / target.sm_count / target.clock_mhz
    return max(multiply, size.bytes_moved(problem) / target.dram_gbs / 1e3)


def aligned(dtype):
    out = output_dtypes(dtype)[0]
    return Problem(
        *[MatrixType(t, major, 16) for t, major in ((dtype, "k"), (dtype, "k"), (out, "n"))]
    )


@given(problems(), extents, targets)
@example(aligned(DType.FLOAT64), Extents(4, 2713, 991, 11), named_target("sm_103a"))
def test_no_prediction_is_under_the_roofline(problem, size, target):
    for backend in takers(problem, size, target):
        best = backend.ranking(problem, size, target, 1, inf).candidates[0]
        assert best.prediction.us > roofline_us(backend, problem, size, target)


@given(problems(), extents, targets)
@example(aligned(DType.INT8), Extents(2170, 37, 1134, 40), H200)
def test_a_backend_that_takes_a_problem_offers_what_can_run(problem, size, target):
    able = takers(problem, size, target)
    dtype = problem.a.dtype
    if dtype.itemsize > 1:  # by CUDA cores
        assert SIMT in able
    if target is H200 and (dtype.itemsize < 4 or problem.precision != "ieee"):
        assert WGMMA in able
    for backend in able:
        plan = choose(problem, size, target, [backend])
        seen = plan.config.oriented(problem)
        assert ILLEGAL[backend.name](seen, plan.config, target) is None


def test_few_tiles_are_said_to_be_the_limit():
    size = Extents(64, 64, 8192)
    problem = aligned(DType.FLOAT64)
    found = SIMT.candidates(problem, size, H200)
    whole = [c for c in found if c.config.split_k == c.config.cluster_k == 1]
    assert {c.prediction.limiter for c in whole} == {"waves"}
    assert Breakdown(launch=2, dram=1).limiter == "launch"
    assert Breakdown(launch=1, mainloop=9, waves=2, dram=8, l2=9).limiter == "l2"


def test_a_thread_of_the_reduction_adds_the_parts_of_its_slice_alone():
    problem = aligned(DType.BFLOAT16)

    def in_turn(problem, m, n, split):
        part = workspace_bytes(problem, Extents(m, n, 8192), split) // split
        return parts_per_thread(problem, part, split)

    assert in_turn(problem, 64, 64, 66) == 5  # 16 slices
    assert in_turn(problem, 64, 64, 3) == 3
    assert in_turn(problem, 256, 256, 33) == 17  # two: twice as many would be too large a grid
    assert in_turn(problem, 512, 512, 8) == 8
    assert in_turn(replace(problem, batch_invariant=True), 64, 64, 66) == 66


def test_what_few_ctas_draw_depends_on_where_they_lie():
    def parts(size, tile, cluster_k):
        """Of a configuration with that tile, its K in a cluster alone."""
        found = WGMMA.candidates(aligned(DType.BFLOAT16), size, H200)
        return next(
            c.prediction.parts
            for c in found
            if (c.config.tile[:2], c.config.cluster_k) == (tile, cluster_k)
            if (c.config.cluster, c.config.split_k) == ((1, 1), 1)
        )

    row = Extents(1, 2048, 7168)  # 64 CTAs, in clusters of four some of them share a pair of SMs
    assert parts(row, (8, 128), 4).dram > 1.5 * parts(row, (8, 64), 2).dram
    square = Extents(128, 128, 16384)  # 32 and 8 CTAs: each SM has a share of the L2's rate at most
    assert parts(square, (64, 64), 2).l2 == pytest.approx(4 * parts(square, (64, 64), 8).l2)


def test_larger_clusters_are_offered_where_all_their_tiles_share_something():
    def large(m, n, k, problem=None):
        found = WGMMA.candidates(problem or aligned(DType.BFLOAT16), Extents(m, n, k), H200)
        return [c.config for c in found if c.config.cluster[0] * c.config.cluster[1] > 2]

    for config in large(256, 256, 65536):  # a few tiles
        down, across = -(-256 // config.tile[0]), -(-256 // config.tile[1])
        assert config.cluster[0] <= down
        assert config.cluster[1] <= across
        assert down * across <= 8 or down == 1
        assert config.slice_k == config.cluster_k == 1
    assert {config.cluster for config in large(256, 256, 65536)} > {(4, 2), (2, 4), (2, 2)}
    for config in large(64, 14336, 4096):  # all tiles read all of A
        assert config.cluster == (1, 4)
        assert config.split_k == 1
    assert large(64, 14336, 4096)
    assert not large(4096, 4096, 4096)
    copied = replace(aligned(DType.BFLOAT16), b=MatrixType(DType.BFLOAT16, "n", 2))
    assert not large(256, 256, 65536, copied)
    assert not large(256, 256, 65536, aligned(DType.FLOAT8_E4M3FN))
    assert plan_of(256, 256, 65536).config.cluster == (4, 2)
    assert plan_of(64, 14336, 4096).config.cluster == (1, 4)


def test_clusters_of_cuda_cores_are_offered_where_all_of_them_run_at_once():
    def clusters(m, n, k, problem=None, target=H200):
        found = SIMT.candidates(problem or aligned(DType.FLOAT32), Extents(m, n, k), target)
        return [c for c in found if c.config.cluster_k > 1]

    of_tile = [c.config for c in clusters(333, 777, 555) if c.config.tile == (128, 64, 16)]
    assert {c.cluster_k for c in of_tile} == {2, 3, 4, 5, 7}, (
        "6 x 39 are two an SM, but thrice 17 clusters"
    )
    for each in clusters(512, 512, 512):
        config = each.config
        assert each.workspace_bytes == 0
        assert config.split_k == 1
        assert config.schedule == ""
        assert not config.producers
        assert -(-512 // config.tile[2]) >= 2 * config.cluster_k
    assert clusters(4096, 4096, 4096) == []
    assert clusters(512, 512, 48) == [], "less than two slabs of each part"
    for arch in ("sm_80", "sm_100a"):
        assert clusters(333, 777, 555, target=named_target(arch)) == []


def test_a_cluster_of_cuda_cores_costs_what_its_parts_do_but_for_adding_them_up():
    problem, size = aligned(DType.FLOAT32), Extents(333, 777, 555)
    found = {c.config: c.prediction for c in SIMT.candidates(problem, size, H200)}
    pairs = 0
    for config, price in found.items():
        if config.cluster_k > 1:
            split = found[replace(config, cluster_k=1, split_k=config.cluster_k)]
            assert 0 < price.parts.reduction != split.parts.reduction
            spared = split.parts.reduction - price.parts.reduction
            assert price.us == pytest.approx(split.us - spared)
            assert price.parts.mainloop == split.parts.mainloop
            assert price.parts.waves == split.parts.waves
            (again,) = SIMT.estimate_all(problem, size, H200, [config])
            assert again.prediction == price
            pairs += 1
    assert pairs > 10


def test_a_grid_has_the_clusters_that_run_at_once():
    """Of four or eight CTAs not all SMs are taken: a cluster lies within a GPC."""
    plan = plan_of(256, 256, 65536)
    for cluster, sms in (((1, 1), 132), ((2, 1), 132), ((2, 2), 120), ((4, 2), 120)):
        one = replace(plan, config=replace(plan.config, cluster=cluster))
        assert WGMMA.arguments(one)[0] == sms


def test_six_warps_of_an_sm_take_as_long_as_eight():
    def fma(count):
        """Of so many CTAs of two warps on each SM."""
        size = Extents(32, 128 * count * H200.sm_count, 4096)
        found = SIMT.candidates(aligned(DType.FLOAT32), size, H200)
        configs = {(c.config.tile[:2], c.config.split_k): c.prediction.parts for c in found}
        return configs[(32, 128), 1].fma

    assert fma(3) == fma(4)
    assert fma(5) == fma(6) > 1.25 * fma(4)


def test_pairs_in_slices_gain_nothing_where_memory_streams_a_k_major_b():
    def l2(major, k):
        problem = aligned(DType.BFLOAT16)
        problem = replace(problem, b=replace(problem.b, major=major))
        found = WGMMA.candidates(problem, Extents(128, 4096, k), H200)
        return next(
            c.prediction.parts.l2
            for c in found
            if (c.config.tile[:2], c.config.cluster, c.config.slice_k) == ((64, 64), (2, 1), 2)
            if c.config.split_k == c.config.cluster_k == 1
        )

    assert l2("n", 4096) == l2("k", 4096)
    assert l2("n", 14336) < 0.95 * l2("k", 14336)


def plan_of(m, n, k, dtype="bfloat16", order="C", **options):
    a, b = unigemm.ArraySpec((m, k), dtype), unigemm.ArraySpec((k, n), dtype, order)
    return unigemm.plan(a, b, target="sm_90a", **options)


def test_an_explanation_ranks_with_the_parts_of_each_time():
    plan = plan_of(256, 2048, 7168, keep=3)
    assert len(plan.alternatives) == 3
    text = plan.explain()
    table = [line for line in text.splitlines() if " | " in line]
    names = table[0].replace("|", "").split()
    for line, each in zip(table[1:], (plan, *plan.alternatives), strict=True):
        cells = line.replace("|", "").split()
        assert cells[names.index("us")] == f"{each.predicted_us:.1f}"
        assert cells[names.index("limiter")] == each.limiter
        for part in (*PARTS, *BOUNDS):
            if part in names:
                assert cells[names.index(part)] == f"{getattr(each.parts, part):.1f}"
        assert line.endswith(f"{each.backend} {each.config}")
    assert "fma" in names or all(x.parts.fma == 0 for x in plan.alternatives)
    assert "not numpy: " in text


def test_a_configuration_that_cannot_run_is_named_with_its_reason():
    plan = plan_of(1, 4096, 4096, keep=1000)
    refused = [each for each in plan.rejected if each.config is not None]
    reason = "the dot schedule reads a K-major B, and an A with contiguous rows or columns"
    assert reason in {each.reason for each in refused}
    for each in refused:
        assert f"not {each.backend} {each.config}: {each.reason}" in plan.explain()
    assert Plan.from_json(plan.to_json()).rejected == plan.rejected
    assert Plan.from_json(plan.to_json()).parts == plan.parts


def test_a_plan_on_the_host_has_no_parts_to_show():
    plan = unigemm.plan(*[unigemm.ArraySpec((8, 8), "float32")] * 2, target="cpu")
    assert plan.parts == Breakdown()
    assert "host" in plan.explain()


def test_all_candidates_are_kept_where_all_are_asked_for():
    plan = plan_of(300, 4096, 4096, keep=100000)
    takers = (SIMT, WGMMA, CUTILE)
    count = sum(len(b.candidates(plan.problem, plan.extents, H200)) for b in takers)
    assert len(plan.alternatives) == count - 1
    few = plan_of(300, 4096, 4096, keep=2)
    assert few == plan
    assert few.alternatives == plan.alternatives[:2]
    assert replace(few, alternatives=()) == plan
    assert plan_of(300, 4096, 4096, keep=0).alternatives == ()
    with pytest.raises(unigemm.UnsupportedProblem, match="keep counts candidates and is -1"):
        plan_of(300, 4096, 4096, keep=-1)
