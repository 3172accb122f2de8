"""`batch_invariant=True`: one configuration for every M and batch, and rows of the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_cli import run_json

import unigemm
from unigemm.backends.cute_wgmma.candidates import turns
from unigemm.planning import tuned_plans as tuning
from unigemm.planning.batch_invariance import INVARIANT_M
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Alternative
from unigemm.planning.registry import backend_named
from unigemm.planning.tuned_plans import Tuned
from unigemm.problem.dtypes import numpy_dtype

spec = unigemm.ArraySpec
ROWS = (1, 2, 7, 8, 16, 64, 100, 128, 130, 1000, 8192)
PRODUCTS = [
    ("sm_90a", "auto", "bfloat16", "F", 4096, 4096),
    ("sm_90a", "cute_wgmma", "float8_e4m3fn", "F", 512, 7168),
    ("sm_90a", "cute_simt", "float32", "C", 333, 1001),
    ("sm_90a", "cute_simt", "float16", "F", 2, 5000),  # the dot schedule, with A and B changed
    ("sm_80", "auto", "bfloat16", "C", 1024, 256),
    ("sm_100a", "auto", "bfloat16", "F", 7168, 2048),
]


def planned(target, backend, dtype, order, m, n, k, batch=(), **options):
    a, b = spec((*batch, m, k), dtype), spec((*batch, k, n), dtype, order)
    return unigemm.plan(
        a, b, target=target, backend=backend, batch_invariant=True, **options
    )  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_every_m_and_every_batch_have_one_configuration(product):
    *kind, n, k = product
    plans = [planned(*kind, m, n, k) for m in ROWS]
    plans += [planned(*kind, m, n, k, (3,)) for m in (1, 200)]
    assert len({(plan.backend, plan.config, plan.problem) for plan in plans}) == 1
    assert [plan.extents.m for plan in plans] == [*ROWS, 1, 200]
    assert plans[-1].extents.batch == 3
    rankings = {tuple((x.backend, x.config) for x in plan.alternatives) for plan in plans}
    assert len(rankings) == 1


def test_the_configuration_is_the_best_for_so_many_rows_and_the_estimate_that_of_the_product():
    kind = ("sm_90a", "cute_wgmma", "bfloat16", "F")
    a, b = spec((INVARIANT_M, 4096), "bfloat16"), spec((4096, 1024), "bfloat16", "F")
    free = unigemm.plan(a, b, target="sm_90a", backend="cute_wgmma")
    same = planned(*kind, INVARIANT_M, 1024, 4096)
    assert (same.config, same.predicted_us) == (free.config, free.predicted_us)
    assert "batch-invariant" in same.explain()
    few, many = (planned(*kind, m, 1024, 4096) for m in (64, 8192))
    assert len({few.predicted_us, same.predicted_us, many.predicted_us}) == 3
    assert max(few.predicted_us, same.predicted_us) < many.predicted_us
    split = planned("sm_90a", "cute_simt", "float32", "C", 1, 64, 65536)
    assert split.split_k > 1
    wide = planned("sm_90a", "cute_simt", "float32", "C", 1000, 64, 65536)
    assert wide.workspace_bytes == 1000 * split.workspace_bytes


def test_the_order_of_addition_does_not_start_elsewhere_for_few_rows():
    options = {"target": "sm_90a", "backend": "cute_wgmma"}
    a, b = spec((1, 4096), "bfloat16"), spec((4096, 4096), "bfloat16", "F")
    free, same = (unigemm.plan(a, b, batch_invariant=each, **options) for each in (False, True))
    assert turns(free.problem, free.extents, free.config) == (0, 1)
    for plan in (same, replace(same, config=free.config)):
        assert turns(plan.problem, plan.extents, plan.config) == (0, 0)


def test_the_flag_is_in_plans_and_their_json_but_not_in_the_key_of_a_kernel():
    same = planned("sm_90a", "auto", "bfloat16", "F", 64, 512, 512)
    assert Plan.from_json(same.to_json()) == same
    assert same.problem.batch_invariant
    free = replace(same, problem=replace(same.problem, batch_invariant=False))
    backend = backend_named(same.backend)
    assert backend.key(free) == backend.key(same)


def test_what_was_tuned_for_one_m_is_left_aside(monkeypatch):
    plan = planned("sm_90a", "auto", "bfloat16", "F", 64, 512, 512)
    other = replace(plan, config=plan.alternatives[0].config, measured_us=1.0)
    source = backend_named(other.backend).key(other).source
    entry = Tuned(other, "auto", source, "", 2.0)
    monkeypatch.setattr(tuning, "lookup", lambda *product: entry)
    assert planned("sm_90a", "auto", "bfloat16", "F", 64, 512, 512) == plan
    free = unigemm.plan(spec((64, 512), "bfloat16"), spec((512, 512), "bfloat16"), target="sm_90a")
    assert free.measured_us == 1.0


@pytest.mark.parametrize(("m", "k", "n"), [(1, 8, 8), (5, 12, 1), (1, 1, 3), (4, 7, 6)])
@pytest.mark.parametrize("batch", [(), (2,), (3, 2)])
def test_the_classes_of_a_and_d_do_not_depend_on_how_many_rows_there_are(m, k, n, batch):
    def problem(rows, lead):
        a, b = spec((*lead, rows, k), "float16"), spec((*lead, k, n), "float16")
        return unigemm.plan(a, b, target="sm_80", batch_invariant=True).problem

    assert problem(m, batch) == problem(129, ())


def test_a_stack_that_shares_its_left_operand_does_not_become_wide():
    a, b = spec((16, 64), "float16"), spec((5, 64, 32), "float16")
    shared = unigemm.plan(a, b, target="sm_80", batch_invariant=True)
    assert (shared.extents.n, shared.extents.batch) == (32, 5)
    alone = unigemm.plan(a, spec((64, 32), "float16"), target="sm_80", batch_invariant=True)
    assert shared.config == alone.config


@pytest.mark.parametrize(
    ("a", "out", "reason"),
    [
        (spec((16, 64), "float16", "F"), None, "contiguous rows.* and a has"),
        (spec((16, 64), "float16", strides=(0, 1)), None, "contiguous rows"),
        (spec((16, 64), "float16", strides=(-64, 1)), None, "contiguous rows"),
        (spec((16, 64), "float16", strides=(65, 1)), None, "to 16 bytes, and those of a are not"),
        (spec((16, 64), "float16", alignment=4), None, "pass a compact copy"),
        (spec((16, 64), "float16"), spec((16, 32), "float16", "F"), "and out has"),
    ],
    ids=["columns", "repeated", "backwards", "unaligned rows", "unaligned", "out of columns"],
)
def test_operands_whose_class_would_depend_on_m_are_refused(a, out, reason):
    b = spec((64, 32), "float16")
    with pytest.raises(unigemm.UnsupportedProblem, match=reason):
        unigemm.plan(a, b, out, target="sm_90a", batch_invariant=True)
    unigemm.plan(a, b, out, target="sm_90a")


def test_the_host_and_plans_without_the_promise_are_refused():
    x = np.ones((4, 4), np.float32)
    with pytest.raises(unigemm.UnsupportedProblem, match="order that may depend on M"):
        unigemm.matmul(x, x, batch_invariant=True)
    plan = unigemm.plan(x, x)
    with pytest.raises(unigemm.UnsupportedProblem, match="batch_invariant is False in the plan"):
        unigemm.matmul(x, x, plan=plan, batch_invariant=True)


def test_a_backend_that_does_not_promise_it_is_left_out_with_a_reason(monkeypatch):
    pytest.importorskip("cupy")
    from fake_gpu import install

    driver, _ = install(monkeypatch)
    a = driver.ones((8, 8))
    unigemm.matmul(a, a)
    with pytest.raises(unigemm.UnsupportedProblem, match="fake: it does not promise"):
        unigemm.matmul(a, a, batch_invariant=True)


def test_sizes_that_only_the_product_has_are_refused():
    with pytest.raises(unigemm.UnsupportedProblem, match=r"does not take .*2\*\*31"):
        planned("sm_90a", "cute_simt", "float16", "C", 2**31, 8, 8)


def test_the_command_line_asks_for_it(tmp_path):
    options = ("512", "512", "--dtype", "bf16", "--target", "sm_90a", "--batch-invariant")
    few, many = (run_json("plan", m, *options, cache=tmp_path) for m in (1, 4096))
    assert few["problem"]["batch_invariant"]
    assert (few["tile"], few["stages"]) == (many["tile"], many["stages"])


# -- bits ------------------------------------------------------------------------------------------

DRAWN = [
    ("cute_simt", "float32", "C", 72, 200),
    ("cute_simt", "float32", "C", 8, 3000),  # split-K
    ("cute_simt", "float16", "F", 40, 333),
    ("cute_simt", "bfloat16", "F", 2, 1500),  # the dot schedule
    ("cute_wgmma", "bfloat16", "F", 72, 520),
    ("cute_wgmma", "float16", "C", 136, 1000),
    ("cute_wgmma", "float16", "F", 40, 331),  # repacked
    ("cute_wgmma", "float8_e4m3fn", "F", 48, 640),
]


def emulated():
    """Return what emulates a GPU; skip the test where kernels cannot be compiled or run there."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    from unigemm.emulator import device
    from unigemm.emulator.launch.host import missing

    if missing() is not None:
        pytest.skip(missing())
    return device


def random_operands(dtype, order, n, k):
    rng = np.random.default_rng(n + k)
    native = numpy_dtype(unigemm.problem.dtypes.dtype_named(dtype))
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((130, k), (k, n)))
    return a.astype(native), np.asarray(b.astype(native), order=order)


@pytest.mark.compile
@pytest.mark.parametrize("product", DRAWN, ids=str)
def test_rows_are_bitwise_the_same_whatever_m_is(product):
    """On an emulated GPU, where the order of addition decides the last bits."""
    device = emulated()
    backend, *kind = product
    a, b = random_operands(*kind)
    options = {"backend": backend, "batch_invariant": True}
    few_sms = replace(unigemm.named_target("sm_90a"), sm_count=6)
    with device(target=few_sms, leftovers=True):
        whole = unigemm.matmul(a, b, **options)
        exact = a.astype("f8") @ b.astype("f8")
        scale = np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))
        assert (np.abs(whole.astype("f8") - exact) <= 2**-7 * scale).all()
        for first, m in ((0, 1), (64, 7), (3, 64)):
            # Rows of their own, as aligned as those of any compact array are.
            rows = a[first : first + m].copy()
            part = unigemm.matmul(rows, b, **options)
            assert part.tobytes() == whole[first : first + m].tobytes(), m
        stack = unigemm.matmul(np.stack([a[:7], a[7:14]]), np.stack([b, b]), **options)
        assert stack.tobytes() == whole[:14].tobytes()


@pytest.mark.compile
@pytest.mark.parametrize(
    "product",
    [("cute_simt", "float32", "C", 264, 1000), ("cute_wgmma", "float16", "F", 264, 2100)],
    ids=str,
)
def test_so_many_parts_that_threads_could_share_them_are_added_in_turn(product):
    """Of a small D a group of threads shares them, of a larger one a smaller group."""
    device = emulated()
    name, *kind = product
    a, b = random_operands(*kind)
    target = unigemm.named_target("sm_90a")
    options = {"backend": name, "batch_invariant": True, "dtype": "float32"}
    backend = backend_named(name)

    def rows(count):
        plan = unigemm.plan(a[:count], b, target=target, **options)
        config = replace(plan.config, split_k=16, cluster_k=1, slice_k=1)
        estimated = backend.estimate(plan.problem, plan.extents, target, config)
        in_parts = plan.taking(Alternative.of(name, estimated))
        loose = replace(in_parts, problem=replace(plan.problem, batch_invariant=False))
        assert backend.key(in_parts) != backend.key(loose)
        return unigemm.matmul(a[:count].copy(), b, plan=in_parts, **options)

    with device(target=target):
        assert rows(1).tobytes() == rows(130)[:1].tobytes()


ON_A_GPU = [
    ("cute_simt", "float32", "C", 72, 5000),
    ("cute_simt", "float16", "F", 2, 5000),
    ("cute_wgmma", "float16", "F", 1000, 4096),
    ("cute_wgmma", "float16", "C", 136, 7168),
    ("cutile", "float16", "F", 520, 4096),
]


@pytest.mark.gpu
@pytest.mark.parametrize("product", ON_A_GPU, ids=str)
def test_rows_are_bitwise_the_same_on_a_gpu(product):
    cupy = pytest.importorskip("cupy")
    backend, dtype, order, n, k = product
    rng = np.random.default_rng(0)
    a = cupy.asarray(rng.standard_normal((4100, k)).astype(dtype))
    b = cupy.asarray(np.asarray(rng.standard_normal((k, n)).astype(dtype), order=order))
    options = {"backend": backend, "batch_invariant": True}
    try:
        whole = unigemm.matmul(a, b, **options)
    except unigemm.UnsupportedProblem as error:
        pytest.skip(str(error))
    for m in (1, 7, 64, 130, 1000):
        part = unigemm.matmul(a[64 : 64 + m], b, **options)
        assert (part == whole[64 : 64 + m]).all(), m
