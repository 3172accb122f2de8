"""Products with groups on an emulated GPU: each row, column or K in its group, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from emulated_products import POISONED
from grouped_cases import Sizes, ends, operands, shapes
from grouped_launches import Arrays, GroupedCase, check, ends_of, launched, plan_for, with_config
from sampling import ALL

import unigemm
from unigemm.backends.cute_simt.candidates import base_configs
from unigemm.backends.cute_tcgen05.candidates import offered as of_tcgen05
from unigemm.backends.cute_wgmma.candidates import offered as of_wgmma
from unigemm.emulator import device
from unigemm.planning.registry import backend_named
from unigemm.planning.select import plan_gemm
from unigemm.problem.dtypes import DType

pytestmark = POISONED
# Few SMs: each CTA has several tiles.
TARGETS = {
    arch: replace(unigemm.named_target(arch), sm_count=6) for arch in ("sm_80", "sm_90a", "sm_100a")
}
BF16, F16, F32, F64 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64
F8 = DType.FLOAT8_E4M3FN
UNEVEN = (70, 0, 1, 130, 9)  # of 230

WGMMA = [
    GroupedCase("m", UNEVEN, 230, (136, 200)),
    GroupedCase("m", UNEVEN, 210, (133, 72), layout="nn", epilogue="stored", values="nan"),
    GroupedCase("m", (3, 5, 0, 8, 1), 24, (72, 264), layout="nn", offsets=DType.INT64),
    GroupedCase("m", UNEVEN, 230, (40, 72), layout="tn", pad=1, rest="untouched"),
    GroupedCase("m", UNEVEN, 230, (72, 160), dtype=F8, scaled="groups", epilogue="bias"),
    GroupedCase("m", UNEVEN, 230, (72, 136), dtype=F32, precision="tf32"),
    GroupedCase("m", UNEVEN, 230, (72, 100), dtype=F32, precision="3xtf32", layout="nn"),
    GroupedCase("m", UNEVEN, 230, (72, 160), dtype=DType.INT8),
    GroupedCase("m", (0, 0, 0), 77, (40, 64)),
    GroupedCase("m", tuple([1, 0, 3] * 14), 70, (40, 64)),  # more groups than lanes
    GroupedCase("n", UNEVEN, 230, (136, 72), layout="nn", epilogue="bias"),
    GroupedCase("n", UNEVEN, 230, (136, 72), layout="tt", dtype=F8, scaled="groups"),
    GroupedCase("k", UNEVEN, 230, (136, 72), layout="tn", values="nan"),
    GroupedCase("k", UNEVEN, 230, (72, 136), layout="nt", pad=1),
    GroupedCase("k", (33, 0, 129, 1, 40), 210, (136, 40), dtype=F8, scaled="tensor", layout="nt"),
    GroupedCase("k", UNEVEN, 210, (72, 40), dtype=F32, precision="3xtf32", layout="tn"),
    GroupedCase("k", UNEVEN, 230, (72, 136), dtype=F32, precision="tf32", epilogue="bias"),
    GroupedCase("rows", UNEVEN, 131, (136, 72), layout="nn", values="nan"),
    GroupedCase("rows", (3, 0, 9), 17, (40, 72), layout="tt", rest="untouched", pad=2),
    GroupedCase("columns", UNEVEN, 131, (72, 136), layout="nn", offsets=DType.INT64),
]
TCGEN05 = [
    GroupedCase("m", UNEVEN, 230, (136, 200)),
    GroupedCase("m", UNEVEN, 210, (133, 72), layout="tn", epilogue="stored", values="nan"),
    GroupedCase("m", UNEVEN, 230, (72, 160), dtype=F8, scaled="groups", epilogue="bias"),
    GroupedCase("m", UNEVEN, 230, (72, 40), dtype=F32, precision="tf32", pad=1),
    GroupedCase("n", UNEVEN, 230, (136, 72), layout="nn", epilogue="bias", rest="untouched"),
    GroupedCase("rows", UNEVEN, 131, (136, 72), layout="nn", values="nan"),
]
SIMT = [
    GroupedCase("m", UNEVEN, 230, (136, 70), dtype=F32, epilogue="stored", values="nan"),
    GroupedCase("m", UNEVEN, 210, (71, 33), dtype=F16, layout="tt", offsets=DType.INT64),
    GroupedCase("m", (3, 5, 0, 8, 1), 24, (72, 264), layout="nn", rest="untouched"),
    GroupedCase("m", (0, 0, 0), 77, (40, 64), dtype=F32),
    GroupedCase("n", UNEVEN, 230, (136, 70), dtype=F32, layout="tn", epilogue="bias"),
    GroupedCase("n", UNEVEN, 230, (37, 41), dtype=BF16, layout="nn", pad=1),
    GroupedCase("n", UNEVEN, 210, (33, 30), dtype=F64, layout="nt"),
    GroupedCase("k", UNEVEN, 230, (136, 70), dtype=F32, layout="tn", values="nan"),
    GroupedCase("k", UNEVEN, 230, (37, 70), dtype=BF16, layout="nt", pad=3),
    GroupedCase("k", UNEVEN, 210, (66, 35), dtype=F64, layout="nn", epilogue="bias"),
    GroupedCase("rows", UNEVEN, 131, (40, 33), dtype=F16, layout="nn", epilogue="bias"),
    GroupedCase("columns", UNEVEN, 131, (40, 33), dtype=F32, layout="nt", rest="untouched"),
]


def run(case, arch, backend, seed, config=None):
    with device(TARGETS[arch], seed=seed) as gpu:
        x = Arrays(case)
        plan = plan_for(case, x, gpu.target, backend)
        if config is not None:
            plan = with_config(plan, config)
        return launched(case, gpu, backend, plan)


@pytest.mark.parametrize("case", WGMMA, ids=str)
@pytest.mark.sample(12)
def test_groups_on_hopper(case):
    run(case, "sm_90a", "cute_wgmma", len(str(case)))


@pytest.mark.parametrize("case", TCGEN05, ids=str)
@pytest.mark.sample(3)
def test_groups_on_blackwell(case):
    run(case, "sm_100a", "cute_tcgen05", len(str(case)))


def test_groups_of_k_are_refused_on_blackwell_by_name():
    gemm = Arrays(GroupedCase("k", UNEVEN, 230, (136, 72))).gemm()
    with pytest.raises(unigemm.UnsupportedProblem, match="use cute_simt"):
        plan_gemm(gemm, TARGETS["sm_100a"], "cute_tcgen05", usable=False)
    assert plan_gemm(gemm, TARGETS["sm_100a"], usable=False).backend == "cute_simt"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("case", SIMT, ids=str)
@pytest.mark.sample(10)
def test_groups_on_cuda_cores(case, arch):
    run(case, arch, "cute_simt", len(str(case)))


OFFERED = {"cute_wgmma": of_wgmma, "cute_tcgen05": of_tcgen05, "cute_simt": base_configs}


def kinds_of(configs):
    """Return a configuration of each kind: schedule, warps, rows and cluster."""
    found = {}
    for config in configs:
        if config.tile[0] * config.tile[1] <= 1 << 14:
            few = config.tile[0] if config.tile[0] < 64 else 64
            kind = config.schedule, config.warps, few, config.cluster, config.producers
            found.setdefault(kind, []).append(config)
    return found


def of_another_kind(plan, seed):
    """Return a plan with a configuration that is drawn from those of its backend."""
    own, draw = backend_named(plan.backend), random.Random(seed)
    every = OFFERED[plan.backend](plan.problem, plan.target)
    legal = kinds_of(
        x
        for x in every
        if own.unsupported_config_reason(plan.problem, plan.extents, plan.target, x) is None
    )
    return with_config(plan, draw.choice(legal[draw.choice(sorted(legal))]))


@pytest.mark.parametrize("seed", range(40 if ALL else 5))
def test_drawn_groups_and_configurations(seed):
    """Every schedule, cluster and number of rows, whatever the sizes of the groups."""
    draw = random.Random(f"groups {seed}")
    along = draw.choice(["m", "n", "k", "rows"])
    sizes = tuple(draw.choice([0, 1, 7, 64, 65, 129, draw.randrange(200)]) for _ in range(4))
    total = max(sum(sizes), 1) + draw.choice([0, 0, 13])
    backend, arch, types = (
        ("cute_simt", "sm_90a", [BF16, F32, F64]),
        ("cute_tcgen05", "sm_100a", [BF16, F8, F32]),
    )[seed % 5 - 3] if seed % 5 > 2 else ("cute_wgmma", "sm_90a", [BF16, F8, F32])  # fmt: skip
    along = "m" if backend == "cute_tcgen05" and along == "k" else along
    case = GroupedCase(
        along, sizes, max(*sizes, 1) if along == "rows" else total,
        (draw.randrange(1, 150), draw.randrange(1, 150)),
        dtype=draw.choice(types),
        precision="tf32", layout=draw.choice(["nn", "nt", "tn", "tt"]),
        pad=draw.choice([0, 0, 1]), values=draw.choice(["integers", "nan"]),
        epilogue=draw.choice(["", "", "bias", "stored"] if along == "m" else ["", "bias"]),
        seed=seed,
    )  # fmt: skip
    plan = plan_for(case, Arrays(case), TARGETS[arch], backend)
    run(case, arch, backend, seed, of_another_kind(plan, seed).config)


@pytest.mark.parametrize(
    ("along", "ends"),
    [
        ("m", (70, 40, 500, 3, 90)),
        ("m", (-7, 130, -(2**31), 20, 2**31 - 1)),
        ("k", (70, 40, 500, -3, 90)),
        ("rows", (500, -3, 131, 0, 2**31 - 1)),
        ("n", (20, 10, 300, 229, -1)),
    ],
)
@pytest.mark.parametrize("backend", ["cute_wgmma", "cute_simt"])
@pytest.mark.sample(5)
def test_offsets_that_are_none_stay_inside_of_the_arrays(along, ends, backend):
    """Ends are cut to what there is, and those of rows never descend."""
    case = GroupedCase(along, UNEVEN, 131 if along == "rows" else 230, (40, 72))
    with device(TARGETS["sm_90a"]) as gpu:
        x = launched(case, gpu, backend)
        x.a[...], x.b[...] = 1, 1  # what was poison belongs to a group now
        x.ends[:] = np.clip(ends, -(2**31), 2**31 - 1)
        x.d[...] = np.nan
        check(case, x, x.launch, x.workspace)


@pytest.mark.parametrize("along", ["m", "k"])
@pytest.mark.parametrize("backend", ["cute_wgmma", "cute_simt"])
def test_offsets_change_between_launches_of_one_call(along, backend):
    case = GroupedCase(along, UNEVEN, 210, (40, 72))
    with device(TARGETS["sm_90a"]) as gpu:
        x = launched(case, gpu, backend)
        x.a[...], x.b[...] = 1, 1
        for sizes in ((0, 0, 0, 0, 210), (42,) * 5, (1, 2, 3, 4, 5)):
            x.ends[:] = ends_of(case, sizes)
            x.d[...] = np.nan
            check(case, x, x.launch, x.workspace)


@pytest.mark.parametrize("along", ["m", "k"])
def test_kernels_of_groups_do_not_spill(along):
    """A few of each schedule; `UNIGEMM_TEST_ALL=1` compiles one of every kind."""
    case = GroupedCase(along, UNEVEN, 210, (40, 72), layout="tn" if along == "k" else "nn")
    x = Arrays(case)
    target = TARGETS["sm_90a"]
    plan = plan_for(case, x, target, "cute_wgmma")
    wide = {}
    for config in of_wgmma(plan.problem, target):
        wide[config.schedule, config.warps, config.tile[0] < 64] = config  # the widest is last
    some = sorted(wide.items())
    for _, config in some if ALL else random.Random(along).sample(some, 2):
        own = with_config(plan, config)
        assert backend_named("cute_wgmma").compile(own).info.spill_bytes == 0


EPILOGUES = {
    "all": {"alpha": 2.0, "beta": 0.5, "c": "full", "bias": "groups", "activation": "silu",
            "preact_out": "written", "amax_out": "largest", "scale_d": 0.5},
    "in place": {"c": "out", "bias": "row"},
    "swiglu": {"activation": "swiglu", "gate_layout": "interleaved", "bias": "groups",
               "amax_out": "largest"},
    "halves": {"activation": "swiglu", "gate_layout": "halves", "bias": "row",
               "preact_out": "written"},
    "gradient": {"activation": "dgelu_tanh", "preact": "full"},
    "sums of groups": {"bias": "row", "activation": "relu", "scale_d": 0.5,
                       "bias_grad_out": "sums of groups"},
    "sums of all": {"bias": "groups", "preact": "full", "activation": "dsilu",
                    "bias_grad_out": "sums of all"},
}  # fmt: skip


@pytest.mark.parametrize("backend", ["cute_wgmma", "cute_simt"])
@pytest.mark.parametrize("form", ["m", "k", "rows"])
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.sample(8)
def test_epilogues_of_groups_are_those_of_numpy(name, form, backend):
    """Rows of no group are zeros in D and in auxiliary arrays, and count nowhere."""
    sizes = Sizes((70, 0, 1, 67), rest=9, other=72, inner=40)
    a, b = operands(form, sizes, ml_dtypes.bfloat16, seed=5)
    rng, shape = np.random.default_rng(6), shapes(form, sizes)[2]
    gated = name in ("swiglu", "halves")
    where = (*shape[:-1], shape[-1] // 2) if gated else shape
    drawn = {
        "full": rng.integers(-3, 4, shape), "out": rng.integers(-3, 4, where),
        "groups": rng.integers(-3, 4, (sizes.count, shape[-1])),
        "row": rng.integers(-3, 4, shape[-1]), "written": np.full(shape, np.nan),
        "largest": np.zeros(1), "sums of groups": np.zeros((sizes.count, shape[-1])),
        "sums of all": np.zeros(shape[-1]),
    }  # fmt: skip

    def computed(**more):
        given = {x: drawn[x].astype(np.float32) for x in EPILOGUES[name].values() if x in drawn}
        out = given.setdefault("out", np.full(where, np.nan, np.float32))
        options = {key: given.get(x, x) for key, x in EPILOGUES[name].items()}
        ends_are = {"rows": found} if form == "rows" else {}
        offsets = () if ends_are else (found,)
        if "backend" in more:
            named = ends_are or {"offsets": found}
            plan = unigemm.plan(a, b, out, **named, **options, **more)
            more = {"plan": of_another_kind(plan, f"{name} {form}")}
        unigemm.grouped_matmul(a, b, *offsets, out=out, **ends_are, **options, **more)
        auxiliary = ("written", "largest", "sums of groups", "sums of all")
        return [out, *(given[x] for x in auxiliary if x in given)]

    found = ends(form, sizes).astype(np.int32)
    wanted = computed()
    with device(TARGETS["sm_90a"], seed=3) as gpu:
        got = computed(backend=backend)
        assert gpu.launches
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=3e-2)
