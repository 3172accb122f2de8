"""What the base class does for a backend that says only what it must."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import unigemm
from unigemm.errors import UnsupportedProblem
from unigemm.planning import select
from unigemm.planning.backend import Backend, unsupported_by
from unigemm.planning.config import Config
from unigemm.planning.planner import choose
from unigemm.planning.prediction import Candidate, Prediction, Rejection
from unigemm.planning.registry import BUILTIN, backend_named, backend_names
from unigemm.planning.size_buckets import resized, size_class
from unigemm.planning.target import CPU, named_target
from unigemm.planning.validation import checked
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.problem.groups import Groups
from unigemm.problem.problem import BlockScales, Extents, MatrixType, Problem
from unigemm.problem.scales import PER_TENSOR, OperandScales, Scales

ROWS = MatrixType(DType.FLOAT32, "k", 16)
PRODUCT = (Problem(ROWS, replace(ROWS, major="n"), replace(ROWS, major="n")), Extents(96, 64, 32))
OFFERED = Config((32, 32, 32)), Config((64, 64, 32), stages=3)
H200 = named_target("sm_90a")


class Least(Backend):
    """A backend with what is needed, and nothing more."""

    name = "least"

    def unsupported_reason(self, problem, extents, target):
        return None

    def candidates(self, problem, extents, target):
        return [Candidate(each, Prediction(5.0, "host"), 1024) for each in OFFERED]

    def bind(self, plan, gemm, kernel):
        raise AssertionError("nothing is launched here")


class LeastOnGpus(Least):
    """The same on GPUs."""

    compiles = True


def test_what_is_offered_is_ranked_estimated_and_taken_back_and_nothing_else():
    backend, product = Least(), (*PRODUCT, CPU)
    offered = backend.candidates(*product)
    assert backend.ranking(*product, 1).candidates == tuple(offered)
    assert backend.estimate_all(*product, OFFERED) == offered
    for each in offered:
        assert backend.unsupported_config_reason(*product, each.config) is None
        assert backend.workspace_bytes(*product, each.config) == 1024
    other = replace(OFFERED[0], stages=2)
    assert "that least offers" in backend.unsupported_config_reason(*product, other)
    with pytest.raises(UnsupportedProblem, match="that least offers"):
        backend.workspace_bytes(*product, other)
    assert backend.missing() is backend.compiler_missing() is None


def test_a_plan_from_outside_is_held_to_what_is_offered(monkeypatch):
    from unigemm.planning import validation

    monkeypatch.setattr(validation, "backend_named", lambda name: Least())
    plan = choose(*PRODUCT, CPU, (Least(),))
    assert checked(replace(plan, workspace_bytes=0)) == plan
    with pytest.raises(UnsupportedProblem, match="that least offers; plan again"):
        checked(replace(plan, config=replace(plan.config, stages=9)))


@pytest.mark.parametrize(
    ("backend", "target", "words"),
    [(Least(), H200, "on the CPU only"), (LeastOnGpus(), CPU, "on GPUs only")],
)
def test_nobody_asks_a_backend_about_a_target_that_it_does_not_run_on(
    monkeypatch, backend, target, words
):
    monkeypatch.setattr(Least, "unsupported_reason", None)
    assert words in unsupported_by(backend, *PRODUCT, target)
    with pytest.raises(UnsupportedProblem, match=words):
        choose(*PRODUCT, target, (backend,))


def test_a_backend_that_surely_takes_longer_is_not_searched_and_one_that_may_be_kept_is():
    searched = []

    class Slow(Least):
        name = "slow"

        def least_us(self, problem, extents, target):
            return 6.0

        def candidates(self, problem, extents, target):
            searched.append(self.name)
            return [Candidate(OFFERED[0], Prediction(6.0, "host"))]

    for keep in (0, 1):  # the first backend offers two
        plan = choose(*PRODUCT, CPU, (Least(), Slow()), keep=keep)
        assert (plan.backend, len(plan.alternatives), searched) == ("least", keep, [])
        assert plan.rejected == (Rejection("slow", "it takes 6.0 us at least"),)
    plan = choose(*PRODUCT, CPU, (Least(), Slow()), keep=2)
    assert [each.backend for each in plan.alternatives] == ["least", "slow"]
    assert choose(*PRODUCT, CPU, (Slow(), Least()), keep=0).backend == "least"


def test_a_backend_that_may_be_a_little_quicker_is_asked_and_wins():
    class Quicker(Least):
        name = "quicker"

        def least_us(self, problem, extents, target):
            return 4.99

        def candidates(self, problem, extents, target):
            return [Candidate(OFFERED[0], Prediction(4.995, "host"))]

    assert choose(*PRODUCT, CPU, (Least(), Quicker()), keep=0).backend == "quicker"


def test_what_a_backend_offers_in_any_order_is_ranked_by_its_time(monkeypatch):
    offered = [
        Candidate(each, Prediction(us, "host"))
        for each, us in zip(OFFERED, (7.0, 5.0), strict=True)
    ]
    monkeypatch.setattr(Least, "candidates", lambda self, *product: offered)
    assert choose(*PRODUCT, CPU, (Least(),)).config == OFFERED[1]


def test_a_backend_promises_batch_invariance_or_is_not_asked_for_it():
    problem, extents = PRODUCT
    invariant = replace(problem, batch_invariant=True)
    assert unsupported_by(Least(), problem, extents, CPU) is None
    assert "does not promise" in unsupported_by(Least(), invariant, extents, CPU)
    keeping = type("Keeping", (Least,), {"batch_invariant": True})()
    assert unsupported_by(keeping, invariant, extents, CPU) is None


@pytest.mark.parametrize(
    ("requested", "words", "attribute"),
    [
        ({"scales": PER_TENSOR}, "takes no scales", "takes_scales"),
        ({"groups": Groups("m")}, "no groups; use", "takes_groups"),
        (
            {"blocks": BlockScales(DType.FLOAT8_E8M0FNU, 32, "plain", "plain")},
            "takes no scales",
            "takes_scales",
        ),
        ({"epilogue": "any"}, "computes no epilogues", "takes_epilogues"),
        ({"converted": DType.INT64}, "only after they are converted", "takes_conversions"),
    ],
)
def test_what_a_launcher_needs_more_arguments_for_is_offered_only_on_request(
    requested, words, attribute
):
    problem, extents = PRODUCT
    requested = replace(problem, **requested)
    assert words in unsupported_by(Least(), requested, extents, CPU)
    taking = type("Taking", (Least,), {attribute: True})()
    assert unsupported_by(taking, requested, extents, CPU) is None


@pytest.mark.parametrize("name", backend_names())
def test_scales_finer_than_a_tensor_and_groups_are_refused_by_who_does_not_take_them(name):
    backend = backend_named(name)
    target = named_target("sm_100a") if backend.compiles else CPU
    problem, extents = PRODUCT
    for granularity in ("row", "1x128", "128x128"):
        fine = replace(problem, scales=Scales(b=OperandScales(granularity)))
        words = unsupported_by(backend, fine, extents, target)
        assert backend.takes_fine_scales or "a scale per tensor, and here is A scaled" in words
    for along in ("m", "n", "k"):
        grouped = replace(problem, groups=Groups(along))
        words = unsupported_by(backend, grouped, replace(extents, groups=2), target)
        assert backend.takes_groups or "loop over the groups" in words


def test_a_backend_shares_plans_only_if_it_says_so():
    problem = PRODUCT[0]
    sizes = Extents(4095, 4093, 512)
    plan = choose(problem, size_class(problem, sizes), H200, (LeastOnGpus(),))
    assert plan.extents != sizes
    sharing = type("Sharing", (LeastOnGpus,), {"shares_plans": True})()
    assert resized(plan, sizes, lambda _: sharing).extents == sizes
    assert resized(plan, sizes, lambda _: LeastOnGpus()) is None
    m, n, k, batch = plan.extents.m, plan.extents.n, plan.extents.k, plan.extents.batch
    for larger in (Extents(m + 1, n, k, batch), Extents(m, n + 1, k, batch)):
        assert resized(plan, larger, lambda _: sharing) is None


def test_kernels_are_asked_only_of_a_backend_that_compiles():
    plan = choose(*PRODUCT, CPU, (Least(),))
    for ask in (Least().key, Least().compile, lambda plan: Least().load({}, plan)):
        with pytest.raises(NotImplementedError, match="least compiles no kernels"):
            ask(plan)


@pytest.mark.parametrize("name", BUILTIN)
def test_every_backend_of_our_own_is_of_the_base_class_and_of_its_name(name):
    backend = backend_named(name)
    assert isinstance(backend, Backend)
    assert backend.name == name
    assert backend.compiles == (name != "numpy")


def test_a_backend_without_groups_is_named_where_it_is_asked_for():
    problem = replace(PRODUCT[0], groups=Groups("m"))
    with pytest.raises(UnsupportedProblem, match="least: it computes no groups; use another"):
        choose(problem, Extents(96, 64, 32, groups=4), CPU, (Least(),))


ADVICE = 'the package nvidia-cutlass-dsl is not installed; pip install "unigemm[cute]"'


@pytest.fixture
def without_compilers(monkeypatch):
    """Let every backend for GPUs lack its compiler."""
    lacking = {name: ADVICE for name in backend_names() if backend_named(name).compiles}
    monkeypatch.setattr(select, "missing_of", lambda backend: lacking.get(backend.name))
    select._planner.cache_clear()
    yield
    select._planner.cache_clear()


@pytest.mark.parametrize("seed", range(3))
def test_on_the_cpu_no_compiler_is_missed(seed, without_compilers):
    draw = random.Random(seed)
    for _ in range(20):
        m, n, k = (draw.randrange(1, 300) for _ in range(3))
        dtype = draw.choice(("float16", "bfloat16", "float32", "float64", "int8"))
        invariant = draw.random() < 0.5
        arrays = [np.ones(shape, numpy_dtype(DType(dtype))) for shape in ((m, k), (k, n))]
        try:
            said = unigemm.plan(*arrays, batch_invariant=invariant).explain()
        except UnsupportedProblem as error:
            said = str(error)
            assert said.endswith("use a GPU")
            assert len(said) < 400
        assert "pip install" not in said
        assert said.count("GPUs only") == 1


@pytest.mark.parametrize("seed", range(3))
def test_what_several_backends_lack_is_said_once(seed):
    draw = random.Random(seed)
    reasons = (ADVICE, "UNIGEMM_COMPILE is never", "it computes no groups; use another backend")
    missing = {f"backend{n}": draw.choice(reasons) for n in range(draw.randrange(1, 8))}
    with pytest.raises(UnsupportedProblem) as error:
        choose(*PRODUCT, CPU, (), missing=missing)
    plan = choose(*PRODUCT, CPU, (Least(),), missing=missing)
    for said in (str(error.value), plan.explain(), str(plan)):
        said = " ".join(said.split())
        for reason in reasons:
            assert said.count(reason) == (reason in missing.values())
        assert all(name in said for name in missing)
    assert [each.backend for each in plan.rejected] == [*missing]
