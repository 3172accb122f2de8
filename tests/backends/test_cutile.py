"""cutile without a GPU: what it takes and offers, what is planned, what a kernel is passed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unigemm
from bench.suites import SUITES
from unigemm.backends.common.workspace import workspace_bytes
from unigemm.backends.cutile.backend import BACKEND
from unigemm.backends.cutile.candidates import offered, scratch_bytes
from unigemm.backends.cutile.geometry import (
    copied_bytes,
    features,
    k_major,
    kernel_problem,
)
from unigemm.backends.cutile.launch_arguments import (
    Call,
    CallArgument,
    Divisor,
    calls,
    order_of,
    tail_of,
)
from unigemm.backends.cutile.legality import unsupported_reason
from unigemm.backends.cutile.tiles import NARROW, transposed_tf32
from unigemm.planning.backend import unsupported_by
from unigemm.planning.config import Config, Raster
from unigemm.planning.plan import Plan
from unigemm.planning.target import ARCHITECTURES, named_target
from unigemm.problem.canonical import Layout, canonical
from unigemm.problem.dtypes import FLOAT8, INPUTS, DType, output_dtypes
from unigemm.problem.problem import Extents, MatrixType, Problem

EXTENTS = Extents(512, 512, 512)
LAYOUTS = ("nn", "nt", "tn", "tt")
SIXTEEN = (DType.BFLOAT16, DType.FLOAT16)
KINDS = [(dtype, "tf32" if dtype is DType.FLOAT32 else "ieee") for dtype in INPUTS]
H200 = named_target("sm_90a")


def problem_of(dtype, layout="nt", out=None, d_alignment=16, alignment=16, precision="ieee"):
    a = MatrixType(dtype, {"n": "k", "t": "m", "s": "strided"}[layout[0]], alignment)
    b = MatrixType(dtype, {"n": "n", "t": "k", "s": "strided"}[layout[1]], alignment)
    out = out or output_dtypes(dtype)[0]
    return Problem(a, b, MatrixType(out, "n", max(d_alignment, out.itemsize)), precision)


def taken(target):
    """Return a problem of every type and layout that the target's tensor cores multiply."""
    return [
        problem
        for dtype, precision in KINDS
        for layout in LAYOUTS
        if BACKEND.unsupported_reason(
            problem := problem_of(dtype, layout, precision=precision), EXTENTS, target
        )
        is None
    ]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_architecture_multiplies_the_types_that_its_tensor_cores_have(arch):
    found = {problem.a.dtype for problem in taken(named_target(arch))}
    expected = {*SIXTEEN, DType.FLOAT32}
    if arch != "sm_103a":
        expected |= {DType.INT8}
    if named_target(arch).capability >= (9, 0):
        expected |= set(FLOAT8)
    if arch in ("sm_80", "sm_90a", "sm_100a"):
        expected |= {DType.FLOAT64}
    assert found == expected


def refused(arch="sm_90a", extents=EXTENTS, **options):
    dtype = options.pop("dtype", DType.BFLOAT16)
    return unsupported_by(BACKEND, problem_of(dtype, **options), extents, named_target(arch))


def test_what_it_cannot_do_well_is_refused_with_what_would_do():
    assert refused() is None
    assert "precision='tf32'" in refused(dtype=DType.FLOAT32)
    assert "tenth of cuBLAS" in refused(dtype=DType.FLOAT32)
    assert "precision='tf32'" in refused(dtype=DType.FLOAT32, precision="3xtf32")
    assert refused(dtype=DType.FLOAT32, precision="tf32") is None
    assert "use cute_simt" in refused("sm_89", dtype=DType.FLOAT64)
    for dtype in (DType.INT8, *FLOAT8):
        assert refused("sm_100a", dtype=dtype) is None
    assert "convert it to float16" in refused("sm_89", dtype=DType.FLOAT8_E5M2)
    assert "convert it to float16" in refused("sm_103a", dtype=DType.INT8)
    assert refused("sm_90a", dtype=DType.INT8, layout="nt") is None
    assert "copy them to K-major" in refused("sm_90a", dtype=DType.INT8, layout="nn")
    assert "backend='numpy'" in refused("cpu")
    mixed = problem_of(DType.FLOAT8_E4M3FN)
    mixed = replace(mixed, b=replace(mixed.b, dtype=DType.FLOAT8_E5M2))
    assert "convert one of them" in BACKEND.unsupported_reason(mixed, EXTENTS, H200)
    assert "blocks" in refused(extents=Extents(2**31, 8, 8))


def test_what_tma_cannot_read_is_refused():
    for layout, alignment in (("nt", 8), ("tn", 2), ("ss", 2)):
        reason = refused(layout=layout, alignment=alignment)
        assert reason.startswith("A is ")
        assert "copy it to an aligned array" in reason
    assert refused(d_alignment=2) is None
    strided = replace(problem_of(DType.BFLOAT16), d=MatrixType(DType.BFLOAT16, "strided", 2))
    assert "D has no contiguous index" in BACKEND.unsupported_reason(strided, EXTENTS, H200)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_without_tma_lines_must_be_whole_vectors(arch):
    whole = features(named_target(arch)).tma
    for layout, extents in (
        ("nt", Extents(64, 64, 1027)),
        ("tt", Extents(63, 64, 64)),
        ("nn", Extents(64, 63, 64)),
    ):
        reason = refused(arch, extents, layout=layout)
        assert (reason is None) == whole
        assert whole or "pad them with zeros" in reason
    # A line along an index that no 16-byte vector runs along may have any length.
    assert refused(arch, Extents(63, 65, 64), layout="nt") is None


def test_an_architecture_that_tileiras_does_not_know_is_refused():
    other = replace(H200, arch="sm_75")
    assert "sm_75" in BACKEND.unsupported_reason(problem_of(DType.BFLOAT16), EXTENTS, other)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_offered_configuration_is_legal(arch):
    target = named_target(arch)
    for problem in taken(target):
        for d_alignment in (16, problem.d.dtype.itemsize):
            given_ = replace(problem, d=replace(problem.d, alignment=d_alignment))
            configs = list(offered(given_, target))
            assert len({config.tile for config in configs}) >= 5
            for config in configs:
                own = config.oriented(kernel_problem(given_))
                assert unsupported_reason(own, config, target) is None
                wide = config.tile[1] > NARROW and config.swap_ab
                assert not wide or transposed_tf32(given_, target) == (False, True)


def test_loops_over_tiles_that_spill_are_not_offered():
    """Those that store an unaligned D element by element."""
    for kind, precision in KINDS:
        problem = problem_of(kind, d_alignment=kind.itemsize, precision=precision)
        assert all(config.schedule == "plain" for config in offered(problem, H200))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schedule": "pingpong"}, "none of plain, persistent, tail"),
        ({"cluster_k": 2}, "split-K"),
        ({"split_k": 0}, "at least 1"),
        ({"schedule": "tail", "split_k": 2}, "K whole"),
        ({"tile": (128, 256, 64), "warps": (4, 1)}, "known not to spill"),
        ({"tile": (96, 256, 64)}, "known not to spill"),
        ({"occupancy": 7}, "known not to spill"),
        ({"stages": 8}, "known not to spill"),
    ],
)
def test_an_illegal_configuration_is_refused_with_its_reason(change, reason):
    problem = problem_of(DType.BFLOAT16)
    config = Config((128, 256, 64), warps=(8, 1), schedule="plain")
    assert unsupported_reason(problem, config, H200) is None
    wrong = replace(config, **change)
    assert reason in unsupported_reason(problem, wrong, H200)
    with pytest.raises(unigemm.UnsupportedProblem, match="plan again"):
        BACKEND.compile(Plan("cutile", wrong, problem, EXTENTS, H200))


SIZES = st.one_of(st.integers(1, 80), st.integers(1, 20000))


@given(
    m=SIZES,
    n=SIZES,
    k=st.integers(1, 40000),
    batch=st.integers(1, 9),
    kind=st.sampled_from(KINDS),
    layout=st.sampled_from(LAYOUTS),
    arch=st.sampled_from(ARCHITECTURES),
    narrow=st.booleans(),
)
def test_every_candidate_is_legal_and_its_parts_are_never_empty(
    m, n, k, batch, kind, layout, arch, narrow
):
    target, extents = named_target(arch), Extents(m, n, k, batch)
    problem = problem_of(kind[0], layout, d_alignment=1 if narrow else 16, precision=kind[1])
    if BACKEND.unsupported_reason(problem, extents, target) is not None:
        return
    found = BACKEND.candidates(problem, extents, target)
    assert found
    for each in found:
        config = each.config
        own = config.oriented(problem)
        assert unsupported_reason(config.oriented(kernel_problem(problem)), config, target) is None
        k_tiles = -(-k // config.tile[2])
        of_part = -(-k_tiles // config.split_k)
        assert of_part * (config.split_k - 1) < k_tiles
        sizes = config.oriented(extents)
        scratch = scratch_bytes(problem, extents, target, config)
        assert each.workspace_bytes == scratch
        if config.schedule != "tail":
            copied = copied_bytes(own, sizes, config)
            assert scratch == copied + workspace_bytes(own, sizes, config.split_k)
        assert each.prediction.us > extents.bytes_moved(problem) / target.dram_gbs / 1e3


def best(m, n, k, arch="sm_90a", dtype=DType.BFLOAT16, batch=1, layout="nt"):
    target, extents = named_target(arch), Extents(m, n, k, batch)
    found = BACKEND.candidates(problem_of(dtype, layout), extents, target)
    return min(found, key=lambda each: each.prediction.us).config


def test_few_rows_or_columns_are_the_narrow_side_of_a_tile():
    for rows in (1, 8, 16, 31):
        config = best(rows, 4096, 4096)
        assert config.swap_ab
        assert rows <= config.tile[1] <= NARROW
        config = best(4096, rows, 4096)
        assert not config.swap_ab
        assert rows <= config.tile[1] <= NARROW
    assert not best(4096, 4096, 4096).swap_ab
    # Tiles of eight columns do not take an N-major B of eight bits: the next ones are for it.
    assert best(4096, 4, 512, "sm_100a", DType.INT8, layout="nn").tile[1] == 16


def test_large_products_get_large_tiles_and_few_tiles_get_split_k():
    m, n, _ = best(8192, 8192, 8192).tile
    assert m * n >= 128 * 128
    assert best(8192, 8192, 8192).split_k == 1
    assert best(128, 128, 65536).split_k > 8


def chosen(target, m, n, k, dtype, layout="nt", precision="ieee", batch=(), **options):
    a = unigemm.ArraySpec((*batch, m, k), dtype, "C" if layout[0] == "n" else "F", **options)
    b = unigemm.ArraySpec((*batch, k, n), dtype, "C" if layout[1] == "n" else "F", **options)
    return unigemm.plan(a, b, target=target, precision=precision)


SHAPES = [
    shape for suite in ("squares", "layers", "tall-wide", "batched") for shape in SUITES[suite]
]


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_120a"])
@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_auto_takes_it_for_sixteen_bits_where_no_other_backend_has_tensor_cores(arch, dtype):
    """Except where CUDA cores keep up: the few rows and the small matrices left out here.

    Both types take as long: each shape has one layout of the one and another of the other.
    """
    for number, (*batch, m, n, k) in enumerate(SHAPES):
        if min(m, n) >= 16 and max(m, n) > 256:
            layout = ("nt", "tn")[(number + SIXTEEN.index(dtype)) % 2]
            plan = chosen(arch, m, n, k, dtype, layout, batch=tuple(batch))
            assert plan.backend == "cutile", str(plan)


def test_auto_takes_it_beside_other_tensor_core_backends_where_it_was_faster():
    for dtype in ("bfloat16", "float16"):
        assert chosen("sm_100a", 4096, 4096, 4096, dtype).backend == "cute_tcgen05"
        for size in (1536, 4096):  # of 8192 and more either may be ahead by a few percent
            assert chosen("sm_90a", size, size, size, dtype).backend == "cute_wgmma"
    # TF32 of both kinds turned: 6.3 us (cuBLAS 6.5), and 632 against 377.
    turned = {"layout": "tn", "precision": "tf32"}
    assert chosen("sm_90a", 128, 128, 128, "float32", batch=(64,), **turned).backend == "cutile"
    assert chosen("sm_90a", 4096, 4096, 4096, "float32", **turned).backend == "cute_wgmma"
    assert chosen("sm_80", 2048, 2048, 2048, "float32", precision="tf32").backend == "cutile"
    assert chosen("sm_80", 2048, 2048, 2048, "float32").backend == "cute_simt"
    # On Hopper cute_simt multiplies by 16x8x8 at once.
    for arch, backend in (("sm_80", "cutile"), ("sm_90a", "cute_simt")):
        assert chosen(arch, 2048, 2048, 2048, "float64").backend == backend


def test_what_it_refuses_goes_elsewhere_with_the_reason():
    plan = chosen("sm_120a", 1024, 1024, 1024, "bfloat16", alignment=2)
    assert plan.backend == "cute_simt"
    assert any(x.backend == "cutile" and "16 bytes" in x.reason for x in plan.rejected)


# Copies of operands.

TURNED = {layout: problem_of(DType.FLOAT32, layout, precision="tf32") for layout in LAYOUTS}
COPIED = Config((192, 128, 32), warps=(8, 1), schedule="plain", repacked=True)


def copied(layout, *sizes, **change):
    """Return the candidates whose operands are copied first."""
    problem = replace(TURNED[layout], **change)
    return [c for c in BACKEND.candidates(problem, Extents(*sizes), H200) if c.config.repacked]


def test_copies_are_offered_for_tf32_that_hopper_would_turn_and_nothing_else():
    for arch in ARCHITECTURES:
        target = named_target(arch)
        for problem in taken(target):
            found = [config for config in offered(problem, target) if config.repacked]
            is_turned = problem in TURNED.values() and problem.layout != "nt"
            assert bool(found) == (is_turned and target.capability[0] == 9)
            if found:
                bare = {replace(config, repacked=False) for config in found}
                assert bare <= set(offered(k_major(problem), target))
                assert {config.schedule for config in found} == {"plain", "persistent", "tail"}
                assert all(config.tile[1] > NARROW for config in found)


@pytest.mark.parametrize(
    ("problem", "arch", "reason"),
    [
        (TURNED["nt"], "sm_90a", "nothing to copy"),
        (problem_of(DType.BFLOAT16, "nn"), "sm_90a", "in TF32 only"),
        (problem_of(DType.INT8, "nt"), "sm_90a", "in TF32 only"),
        (TURNED["nn"], "sm_80", "not on sm_80"),
        (TURNED["nn"], "sm_100a", "not on sm_100a"),
        (TURNED["tt"], "sm_120a", "known not to spill"),
    ],
)
def test_what_has_no_copies_is_told_why(problem, arch, reason):
    target = named_target(arch)
    assert reason in unsupported_reason(problem, COPIED, target)
    with pytest.raises(unigemm.UnsupportedProblem, match=reason):
        BACKEND.estimate(problem, EXTENTS, target, COPIED)


def test_spans_are_not_offered_where_an_operand_of_tf32_is_turned():
    """They took 1.35 to 5.4 times as long as the best launch of each of 17 products."""
    for layout, slow in (("nn", True), ("tt", True), ("tn", True), ("nt", False)):
        reason = unsupported_reason(TURNED[layout], replace(COPIED, repacked=False), H200)
        assert (reason is not None) == slow
        assert layout == "nt" or unsupported_reason(TURNED[layout], COPIED, H200) is None
        found = {c.tile[0] for c in offered(TURNED[layout], H200) if not c.repacked}
        assert (192 not in found) == slow


def test_copies_may_have_the_tiles_of_k_major_operands():
    assert unsupported_reason(TURNED["tn"], COPIED, H200) is None
    looped = replace(COPIED, tile=(128, 128, 32), warps=(4, 1), schedule="persistent")
    assert unsupported_reason(TURNED["tn"], looped, H200) is None
    assert "known not to spill" in unsupported_reason(
        TURNED["tn"], replace(looped, repacked=False), H200
    )
    # Elsewhere than on Hopper they are not offered, but may be named.
    tile = replace(COPIED, tile=(64, 64, 32), warps=(4, 1), occupancy=2)
    assert unsupported_reason(TURNED["tn"], tile, named_target("sm_120a")) is None


def test_a_last_round_that_is_hardly_filled_is_avoided():
    for m, n, k in ((1536, 1536, 1536), (2048, 2048, 2048), (3000, 3000, 3000), (512, 7168, 2048)):
        config = best(m, n, k)
        tiles, at_once = -(-m // config.tile[0]) * -(-n // config.tile[1]), 132 // config.cluster[0]
        assert -tiles % at_once < 0.1 * at_once, config
    assert best(5120, 5120, 5120).schedule == "tail"


@given(m=SIZES, n=SIZES, k=SIZES, batch=st.integers(1, 9))
def test_copies_take_as_long_as_they_are_large_and_the_product_as_long_as_that_of_them(
    m, n, k, batch
):
    for layout in ("nn", "tn", "tt"):
        problem, extents = TURNED[layout], Extents(m, n, 32 * k, batch)
        own = BACKEND.estimate(problem, extents, H200, COPIED).prediction.parts
        plain = replace(COPIED, repacked=False)
        bare = BACKEND.estimate(TURNED["nt"], extents, H200, plain).prediction.parts
        assert bare.repack == 0 < own.repack
        rows = (problem.a.major != "k") * m + (problem.b.major != "k") * n
        moved = 2 * 4 * rows * extents.k * batch / H200.dram_gbs / 1e3
        assert own.repack > moved
        assert replace(own, repack=0.0, correction=1.0) == replace(bare, correction=1.0)


def test_copies_are_estimated_where_they_may_pay():
    assert copied("nn", 4096, 4096, 4096)
    assert copied("tn", 2048, 2048, 2048)
    assert copied("tt", 1536, 1536, 1536)
    assert copied("tn", 8192, 8192, 8192)
    assert not copied("nt", 4096, 4096, 4096)
    for sizes in ((64, 4096, 4096), (128, 128, 128)):  # to read B once takes less
        found = BACKEND.candidates(TURNED["nn"], Extents(*sizes), H200)
        assert not min(found, key=lambda each: each.prediction.us).config.repacked
    assert copied("tn", 16384, 16384, 16384)
    assert not copied("tn", 20000, 20000, 20000), "copies of more than 2 GiB"
    assert copied("nn", 2048, 2048, 512, 8)
    assert copied("tn", 1024, 1024, 1024)
    for invariant in (False, True):
        found = copied("nn", 3000, 3000, 3000, batch_invariant=invariant)
        assert any(c.config.schedule == "tail" for c in found) != invariant


def test_a_plan_says_that_operands_are_copied():
    found = chosen("sm_90a", 4096, 4096, 4096, "float32", "tn", "tf32")
    names = [x for x in found.alternatives if x.backend == "cutile"]
    assert all(x.config.repacked for x in names)
    a = unigemm.ArraySpec((4096, 4096), "float32")
    plan = unigemm.plan(a, a, target="sm_90a", precision="tf32", backend="cutile")
    assert plan.config.repacked
    assert " repacked" in str(plan.config)
    assert plan.workspace_bytes >= 64 << 20
    assert 0 < plan.parts.repack < 0.2 * plan.predicted_us
    assert Plan.from_json(plan.to_json()) == plan


# Keys.


def plan_of(problem=None, extents=EXTENTS, arch="sm_90a", **change):
    problem = problem or problem_of(DType.BFLOAT16)
    config = Config((128, 128, 64), warps=(4, 1), schedule="plain")
    return Plan("cutile", replace(config, **change), problem, extents, named_target(arch))


def test_a_key_holds_what_is_compiled_in_and_nothing_else():
    key = BACKEND.key(plan_of())
    same = [
        plan_of(extents=Extents(3, 5, 7, 9)),
        plan_of(raster=Raster("n", 4)),
        plan_of(replace(problem_of(DType.BFLOAT16), deterministic=True)),
    ]
    assert {BACKEND.key(plan).digest for plan in same} == {key.digest}
    parts = BACKEND.key(plan_of(split_k=2))
    assert BACKEND.key(plan_of(split_k=5)) == parts
    others = [
        plan_of(split_k=2),
        plan_of(arch="sm_100a"),
        plan_of(schedule="persistent"),
        plan_of(schedule="tail"),
        plan_of(occupancy=2),
        plan_of(cluster=(2, 1)),
        plan_of(warps=(8, 1)),
        plan_of(tile=(64, 128, 64)),
        plan_of(swap_ab=True),
        plan_of(repacked=True),
        plan_of(problem_of(DType.FLOAT16)),
        plan_of(problem_of(DType.BFLOAT16, "nn")),
        plan_of(problem_of(DType.BFLOAT16, d_alignment=2)),
        plan_of(problem_of(DType.BFLOAT16, out=DType.FLOAT32)),
    ]
    digests = {key.digest, *(BACKEND.key(plan).digest for plan in others)}
    assert len(digests) == 1 + len(others)
    # Two narrow alignments of D are one kernel.
    eight, two = (plan_of(problem_of(DType.BFLOAT16, d_alignment=x)) for x in (8, 2))
    assert BACKEND.key(eight) == BACKEND.key(two)


# Arguments.


def gemm_of(m, n, k, layout="nt", batch=(), shared=False, dtype=DType.BFLOAT16, pads=(0, 0, 0)):
    """State a product of arrays with padded lines; `shared` repeats B along the batch."""

    def lay(shape, turned, pad, batch=batch):
        rows, columns = shape
        line = (rows if turned else columns) + pad
        pair = (1, line) if turned else (line, 1)
        size = (columns if turned else rows) * line
        steps = []
        for extent in reversed(batch):
            steps.insert(0, size)
            size *= extent
        return Layout((*batch, *shape), (*steps, *pair), dtype)

    a = lay((m, k), layout[0] == "t", pads[0])
    b = lay((k, n), layout[1] == "t", pads[1], () if shared else batch)
    d = lay((m, n), False, pads[2])
    return canonical(a, b, d)


def test_arguments_follow_the_documented_layout():
    gemm = gemm_of(100, 72, 200, "nn", batch=(3,), pads=(8, 16, 24))
    plan = Plan("cutile", plan_of(raster=Raster("n", 4)).config, gemm.problem, gemm.extents, H200)
    (call,) = calls(plan, gemm)
    assert call == Call(
        "gemm",
        3,
        (
            CallArgument("a"), 1, 3, 100, 200, 8, 100 * 208, 208, 1,
            CallArgument("b"), 1, 3, 200, 72, 8, 200 * 88, 88, 1,
            CallArgument("d"), 1, 3, 100, 72, 8, 100 * 96, 96, 1,
            3, 3, 1, 4, Divisor(1), Divisor(3), Divisor(4), Divisor(4), Divisor(1),
        ),
    )  # fmt: skip


def test_lines_lie_along_the_contiguous_index():
    gemm = gemm_of(96, 72, 200, "tt")
    plan = Plan("cutile", plan_of().config, gemm.problem, gemm.extents, H200)
    (call,) = calls(plan, gemm)
    assert call.arguments[:9] == (CallArgument("a"), 1, 1, 200, 96, 8, 8, 96, 1)
    assert call.arguments[9:18] == (CallArgument("b"), 1, 1, 72, 200, 8, 8, 200, 1)
    # Swapped, the kernel's A is the product's B, and D has its lines turned.
    swapped = replace(plan, config=replace(plan.config, swap_ab=True))
    (call,) = calls(swapped, gemm)
    assert call.arguments[:9] == (CallArgument("a"), 1, 1, 72, 200, 8, 8, 200, 1)
    assert call.arguments[9:18] == (CallArgument("b"), 1, 1, 200, 96, 8, 8, 96, 1)
    assert call.arguments[18:27] == (CallArgument("d"), 1, 1, 96, 72, 8, 8, 72, 1)


def test_an_operand_that_a_batch_shares_is_there_once():
    a, b, d = ((5, 2, 32, 64), (2, 64, 48), (5, 2, 32, 48))
    layouts = [Layout(x, dense(x), DType.BFLOAT16) for x in (a, b, d)]
    gemm = canonical(*layouts)
    assert gemm.batch == (2, 5)
    plan = Plan("cutile", plan_of().config, gemm.problem, gemm.extents, H200)
    (call,) = calls(plan, gemm)
    assert call.arguments[:5] == (CallArgument("a"), 5, 2, 32, 64)
    assert call.arguments[9:14] == (CallArgument("b"), 1, 2, 64, 48)
    assert call.arguments[18:23] == (CallArgument("d"), 5, 2, 32, 48)


def dense(shape):
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.insert(0, steps[0] * extent)
    return tuple(steps)


def test_split_k_writes_parts_with_padded_lines_and_reduces_them():
    gemm = gemm_of(100, 70, 4096)
    plan = Plan("cutile", plan_of(split_k=3).config, gemm.problem, gemm.extents, H200)
    main, reduction = calls(plan, gemm)
    parts = (CallArgument("workspace"), 3, 1, 100, 72, 7200, 7200, 72, 1)
    assert main.arguments[18:] == (*parts, 1, 3, *order_of(plan.config, 1, 1, 1))
    assert main.blocks == 3
    assert reduction.symbol == "reduce"
    assert reduction.arguments[:9] == parts
    assert reduction.arguments[9:] == (CallArgument("d"), 1, 1, 100, 70, 2, 2, 70, 1)
    assert reduction.blocks == 25
    seen = workspace_bytes(gemm.problem, gemm.extents, 3)
    assert seen == 3 * 7200 * 4


def test_copies_are_launched_first_and_lie_before_the_parts():
    gemm = gemm_of(100, 72, 331, "tn", batch=(3,), shared=True, dtype=DType.FLOAT32, pads=(4, 8, 4))
    config = plan_of(tile=(64, 64, 32), split_k=3, repacked=True).config
    plan = Plan("cutile", config, gemm.problem, gemm.extents, H200)
    of_a, of_b, main, reduction = calls(plan, gemm)
    assert [call.symbol for call in (of_a, of_b, main, reduction)] == [
        "transpose", "transpose", "gemm", "reduce",
    ]  # fmt: skip
    # Lines of 331 elements are padded to 352, eleven lines of the L2.
    at_a, at_b = CallArgument("workspace"), CallArgument("workspace", 3 * 100 * 352 * 4)
    steps_a, steps_b = (3 * 100 * 352, 100 * 352, 352, 1), (72 * 352, 72 * 352, 352, 1)
    assert of_a.arguments[:9] == (CallArgument("a"), 1, 3, 331, 100, 4, 331 * 104, 104, 1)
    assert of_a.arguments[9:] == (at_a, 1, 3, 100, 352, *steps_a)
    assert of_a.blocks == 3 * 2 * 6
    # What a batch shares is copied once.
    assert of_b.arguments[:9] == (CallArgument("b"), 1, 1, 331, 72, 4, 4, 80, 1)
    assert of_b.arguments[9:] == (at_b, 1, 1, 72, 352, *steps_b)
    assert of_b.blocks == 2 * 6
    assert main.arguments[:9] == (at_a, 1, 3, 100, 331, *steps_a)
    assert main.arguments[9:18] == (at_b, 1, 1, 72, 331, *steps_b)
    begin = main.arguments[18].offset
    assert begin == 3 * 100 * 352 * 4 + 72 * 352 * 4
    assert reduction.arguments[0] == CallArgument("workspace", begin)
    parts = workspace_bytes(gemm.problem, gemm.extents, 3)
    assert begin + parts <= scratch_bytes(gemm.problem, gemm.extents, H200, config)


def test_a_persistent_kernel_has_a_block_for_each_slot():
    gemm = gemm_of(4096, 4096, 64)
    for change, blocks in (({}, 132), ({"cluster": (2, 1)}, 66), ({"occupancy": 2}, 264)):
        config = plan_of(schedule="persistent", **change).config
        (call,) = calls(Plan("cutile", config, gemm.problem, gemm.extents, H200), gemm)
        assert call.blocks == blocks
        assert call.arguments[-8] == 1024  # units


def test_tiles_that_do_not_fill_a_round_are_cut_into_parts_that_do():
    gemm = gemm_of(1536, 1536, 1536)
    config = plan_of(schedule="tail").config
    plan = Plan("cutile", config, gemm.problem, gemm.extents, H200)
    main, tail, join = calls(plan, gemm)
    order = order_of(config, 12, 12, 1)
    assert order == (0, 1, Divisor(144), Divisor(1), Divisor(12), Divisor(1), Divisor(1))
    # 144 tiles: one for each of 132 blocks, and twelve of 24 k_tiles, each in parts of three.
    assert (main.symbol, main.blocks, main.arguments[-9:]) == ("gemm", 132, (1, 132, *order))
    assert (tail.symbol, tail.blocks, tail.arguments[-9:]) == ("tail", 96, (8, 132, *order))
    assert (join.symbol, join.blocks, join.arguments[-9:]) == ("join", 192, (8, 132, *order))
    pieces = (CallArgument("workspace"), 1, 132, 128, 128, 132 * 16384, 16384, 128, 1)
    assert tail.arguments[27:36] == join.arguments[:9] == pieces
    assert scratch_bytes(gemm.problem, gemm.extents, H200, config) == 132 * 16384 * 4
    # A product of whole waves has none left.
    (main,) = calls(replace(plan, target=replace(H200, sm_count=12)), gemm)
    assert (main.blocks, main.arguments[-9:]) == (12, (1, 144, *order))


@given(st.integers(1, 2000), st.integers(1, 300), st.integers(1, 200))
def test_parts_of_a_tail_fit_on_the_device_and_none_is_empty(tiles, k_tiles, slots):
    rest = tail_of(plan_of(schedule="tail").config, 64 * k_tiles, tiles, slots)
    assert rest.begin % slots == 0
    assert rest.begin + rest.tiles == tiles
    assert rest.tiles * rest.parts <= slots
    assert (rest.parts - 1) * -(-k_tiles // rest.parts) < k_tiles


def test_sums_that_no_number_of_rows_may_change_are_not_shared():
    problem = replace(problem_of(DType.BFLOAT16), batch_invariant=True)
    assert all(config.schedule != "tail" for config in offered(problem, H200))
    config = plan_of(schedule="tail").config
    with pytest.raises(unigemm.UnsupportedProblem, match="name another schedule"):
        BACKEND.estimate(problem, EXTENTS, H200, config)
    assert BACKEND.estimate(problem_of(DType.BFLOAT16), EXTENTS, H200, config).workspace_bytes > 0


def test_wide_steps_between_products_become_launches_of_their_own():
    wide = 2**31 + 8
    layouts = [
        Layout((2, 3, 64, 64), (3 * wide, wide, 64, 1), DType.BFLOAT16),
        Layout((64, 64), (64, 1), DType.BFLOAT16),
        Layout((2, 3, 64, 64), (3 * 4096, 4096, 64, 1), DType.BFLOAT16),
    ]
    gemm = canonical(*layouts)
    plan = Plan("cutile", plan_of().config, gemm.problem, gemm.extents, H200)
    found = calls(plan, gemm)
    assert [call.arguments[0].offset for call in found] == [2 * wide * i for i in range(6)]
    assert [call.arguments[18].offset for call in found] == [8192 * i for i in range(6)]
    assert {call.blocks for call in found} == {1}
    assert all(call.arguments[1:9] == (1, 1, 64, 64, 8, 8, 64, 1) for call in found)


def test_lines_that_lie_too_far_apart_are_refused():
    layouts = [
        Layout((64, 64), (2**31, 1), DType.BFLOAT16),
        Layout((64, 64), (64, 1), DType.BFLOAT16),
        Layout((64, 64), (64, 1), DType.BFLOAT16),
    ]
    gemm = canonical(*layouts)
    plan = Plan("cutile", plan_of().config, gemm.problem, gemm.extents, H200)
    with pytest.raises(unigemm.UnsupportedProblem, match="cute_simt"):
        calls(plan, gemm)
