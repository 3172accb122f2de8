"""cutile's kernels for groups, block by block on the CPU, launched as a driver would."""

from __future__ import annotations

import ctypes
import random
import re
from dataclasses import replace
from importlib import import_module
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from grouped_launches import Arrays, GroupedCase, wanted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import made
from test_cutile_compile import multiplies
from tile_machine import Machine, take_array

import unigemm
from unigemm.backends.cutile import launch, toolchain
from unigemm.backends.cutile.backend import BACKEND
from unigemm.backends.cutile.candidates import offered
from unigemm.backends.cutile.geometry import features, kernel_problem
from unigemm.backends.cutile.launch_arguments import calls
from unigemm.cache.sass import instruction_mix
from unigemm.planning.backend import unsupported_by
from unigemm.planning.config import Config, Raster
from unigemm.planning.plan import Plan
from unigemm.planning.select import plan_gemm
from unigemm.planning.target import named_target
from unigemm.problem.dtypes import DType

pytest.importorskip("cuda.tile", reason="cuda-tile is not installed")

from unigemm.backends.cutile.kernels.epilogue_signature import program_of
from unigemm.backends.cutile.kernels.records import (
    GroupRanges,
    Options,
    Order,
    Scales,
    Tile,
    TileEpilogue,
)

BF16, F16, F32, F8 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT8_E4M3FN
UNEVEN = (20, 0, 1, 37, 9)  # of 67, and of a rest
CASES = [
    GroupedCase("m", UNEVEN, 67, (24, 40)),
    GroupedCase("m", UNEVEN, 80, (24, 40), layout="nn", epilogue="stored", values="nan"),
    GroupedCase("m", (3, 5, 0, 8, 1), 24, (16, 24), layout="nn", offsets=DType.INT64),
    GroupedCase("m", UNEVEN, 90, (40, 72), dtype=F16, rest="untouched", epilogue="bias"),
    GroupedCase("m", UNEVEN, 80, (24, 32), dtype=F8, scaled="groups", epilogue="bias"),
    GroupedCase("m", UNEVEN, 80, (24, 32), dtype=F8, scaled="tensor"),
    GroupedCase("m", (0, 0, 0), 77, (40, 24)),
    GroupedCase("m", tuple([1, 0, 3] * 44), 200, (8, 16)),  # more groups than are read together
    GroupedCase("n", UNEVEN, 80, (24, 40), epilogue="bias", values="nan"),
    GroupedCase("n", UNEVEN, 80, (24, 40), layout="tt", rest="untouched"),
    GroupedCase("k", UNEVEN, 72, (24, 40), layout="tn", values="nan"),
    GroupedCase(
        "k", UNEVEN, 72, (24, 40), dtype=F32, precision="tf32", layout="tn", epilogue="bias"
    ),
    GroupedCase("rows", UNEVEN, 40, (24, 16), layout="nn", values="nan"),
    GroupedCase("rows", (3, 0, 9), 17, (40, 72), rest="untouched", epilogue="bias"),
    GroupedCase("columns", UNEVEN, 40, (24, 16), offsets=DType.INT64),
]  # fmt: skip
TILES = [(16, 8, 16), (8, 16, 32), (24, 16, 16), (8, 24, 16)]


@pytest.fixture
def kernels(monkeypatch):
    """Return the functions of all device code, which run on a `Machine`."""
    found = {}
    for name in ("tile_coords", "mainloop", "operations", "epilogue_steps", "epilogue", "grouped"):
        module = import_module(f"unigemm.backends.cutile.kernels.{name}")
        monkeypatch.setattr(module, "ct", Machine)
        found |= vars(module)
    return SimpleNamespace(**found)


class Tiles:
    """A device whose launches run on the CPU; addresses are 2**32 times the number of a memory."""

    def __init__(self, monkeypatch, kernels, plan, gemm, memories):
        from cuda.bindings import driver

        self.kernels, self.plan, self.memories = kernels, plan, memories
        self.problem = BACKEND.oriented(plan)
        self.calls = list(calls(plan, gemm))
        monkeypatch.setattr(driver, "cuLaunchKernelEx", self.start)
        self.launch = launch.launcher(
            self.calls,
            {call.symbol: call for call in self.calls},
            swapped=gemm.swapped != plan.config.swap_ab,
            overlap=False,
            scaled=plan.problem.scaled,
            epilogue=plan.problem.epilogue,
            groups=gemm.batch[0],
        )

    def array(self, left, dtype, dimensions=4, promised=None):
        return take_array(left, self.memories, dtype.itemsize, dtype, dimensions, promised)

    def start(self, config, call, pointers, extra):
        count = len(call.arguments)
        pointed = (ctypes.c_uint64 * count).from_address(pointers)
        left = [int.from_bytes(ctypes.string_at(x, 8), "little") for x in pointed]
        assert config.gridDimX == call.blocks
        getattr(self, call.symbol)(call.blocks, left)
        assert not left
        return (0,)

    def ends(self, left):
        return self.array(left, self.problem.groups.dtype, 1)

    def schedule(self, blocks, left):
        p, groups = self.problem, self.problem.groups
        along = "mn".index(groups.along)
        ends, table = self.ends(left), self.array(left, DType.INT32, 1)
        arrays, axes = [], []
        while len(left) > 2:
            kind = p.d if not arrays else p.epilogue.stored[0].matrix
            arrays.append(self.array(left, kind.dtype, 4, kind.alignment))
            axes.append(3 if (kind.major == "m") == (along == 0) else 2)
        total, shares = left.pop(0), left.pop(0)
        for block in range(blocks):
            self.kernels.schedule_block(
                block, blocks, ends, table, tuple(arrays), total, shares,
                self.plan.config.tile[along], tuple(axes), groups.stacked,
            )  # fmt: skip

    def gemm(self, blocks, left):
        p, groups = self.problem, self.problem.groups
        along = "mnk".index(groups.along)
        a, b, d = (self.array(left, x.dtype, 4, x.alignment) for x in (p.a, p.b, p.d))
        scales, epilogue, steps = None, None, ()
        if p.scaled:
            scales = Scales(*(self.array(left, F32, 1) for _ in "ab"), np.float64(1))
            assert left.pop(0) == np.float64(1).view(np.int64)
        if p.epilogue is not None:
            arrays = tuple(
                self.array(left, x.matrix.dtype, 4, x.matrix.alignment) for x in p.epilogue.aux
            )
            epilogue = TileEpilogue(arrays, (), (), (), program_of(p, by_lines=False))
        ends = self.ends(left)
        table = () if along == 2 else self.array(left, DType.INT32, 1)
        if p.scaled:
            steps = (left.pop(0), left.pop(0))
        total, units, *order = left
        left.clear()
        options = Options(
            a_transposed=p.a.major == "m", b_transposed=p.b.major == "k",
            d_transposed=p.d.major == "m", rounded=False, direct=False, latency=1,
            persistent=True, overlap=False,
        )  # fmt: skip
        ranges = GroupRanges(ends, table, steps, total, along, groups.stacked)
        tile = Tile(*self.plan.config.tile)
        if along != 2:
            units *= int(table.memory[0])
        for block in range(blocks):
            for unit in range(block, units, blocks):
                self.kernels.multiply_group(
                    unit, a, b, d, scales, epilogue, ranges, Order(*order), tile, options,
                )  # fmt: skip


def whole(x):
    """Return all of the memory that an array is a view of."""
    while x.base is not None:
        x = x.base
    return x.reshape(-1)


def executed(case, kernels, monkeypatch, config, ends=None):
    """Compute a case by the launches of a configuration, and hold D against the reference."""
    x = Arrays(case)
    if ends is not None:
        x.ends = ends
    gemm, target = x.gemm(), replace(named_target("sm_90a"), sm_count=5)
    plan = Plan("cutile", config, gemm.problem, gemm.extents, target)
    size = BACKEND.workspace_bytes(gemm.problem, gemm.extents, target, config)
    aux = [*x.scales] * bool(case.scaled) + [x.bias] * bool(case.epilogue)
    aux += [x.stored] * (case.epilogue == "stored")
    memories = dict(enumerate(map(whole, (x.a, x.b, x.d)), 1))
    memories[4] = np.full(size // 4, -(2**30), np.int32)
    memories |= dict(enumerate([x.ends, *map(whole, aux)], 5))
    addresses = [number << 32 for number in range(6, 6 + len(aux))]
    more = [*addresses[:2], 1.0, *addresses[2:]] if case.scaled else addresses
    more += [int(case.scaled == "groups")] * 2 if case.scaled else []
    before = x.d.copy()
    device = Tiles(monkeypatch, kernels, plan, gemm, memories)
    device.launch(1 << 32, 2 << 32, 3 << 32, 4 << 32, 0, *more, 5 << 32)
    expected = wanted(case, x, before)
    np.testing.assert_array_equal(x.d.astype("f4"), expected.astype("f4"))
    return x


def config_of(tile=(16, 8, 16), schedule="plain", raster=("m", 2), swap_ab=False):
    return Config(
        tile=tile, stages=1, cluster=(1, 1), warps=(4, 1), schedule=schedule,
        raster=Raster(*raster), swap_ab=swap_ab,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_row_column_or_k_is_in_its_group_and_nothing_else_is_written(
    case, kernels, monkeypatch
):
    number = CASES.index(case)
    tile, raster = TILES[number % len(TILES)], ("mn"[number % 2], 1 + number % 3)
    schedule = ("plain", "persistent")[number // 2 % 2]
    for swap_ab in (False, True):
        executed(case, kernels, monkeypatch, config_of(tile, schedule, raster, swap_ab))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    along=st.sampled_from(["m", "n", "k", "rows", "columns"]),
    ends=st.lists(st.integers(-5, 70) | st.sampled_from([2**31 - 1, -(2**31)]), max_size=9),
    others=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    total=st.integers(1, 60),
    tile=st.sampled_from(TILES),
    swap_ab=st.booleans(),
    wide=st.booleans(),
    rest=st.sampled_from(["zeros", "untouched"]),
    schedule=st.sampled_from(["plain", "persistent"]),
)
def test_whatever_offsets_are_nothing_outside_of_the_arrays_is_touched(
    kernels, monkeypatch, along, ends, others, total, tile, swap_ab, wide, rest, schedule
):
    ends = [*ends, total // 2]
    layout = {"k": "tn"}.get(along, "nt")
    if along == "k":  # lines of A and B are whole vectors
        others = tuple(-(-x // 8) * 8 for x in others)
    case = GroupedCase(
        along, tuple(max(0, min(x, total)) for x in ends), total, others, layout=layout, rest=rest,
        offsets=DType.INT64 if wide else DType.INT32, epilogue="bias",
    )  # fmt: skip
    config = config_of(tile, schedule, swap_ab=swap_ab)
    given_ends = np.array(ends, np.int64 if wide else np.int32)
    executed(case, kernels, monkeypatch, config, given_ends)


TYPES = [(BF16, "ieee"), (F32, "tf32"), (F8, "ieee"), (DType.INT8, "ieee"), (DType.FLOAT64, "ieee")]
FORMS = [("m", "nt"), ("m", "nn"), ("n", "nt"), ("k", "tn"), ("rows", "nt"), ("columns", "tt")]


def sampled():
    """Return a few plans of each architecture, the same every time: any type, form and tile."""
    draw, found = random.Random(20261127), []
    for arch in ("sm_80", "sm_90a", "sm_100a", "sm_120a"):
        target, some = named_target(arch), []
        for (along, layout), (dtype, precision) in product(FORMS, TYPES):
            case = GroupedCase(
                along, (200,) * 4, 800, (384, 256), dtype=dtype, layout=layout,
                precision=precision, epilogue="bias",
            )  # fmt: skip
            gemm = gemm_of(case)
            if unsupported_by(BACKEND, gemm.problem, gemm.extents, target) is None:
                some.append((gemm, target))
        for gemm, target in draw.sample(some, 3):
            # With an epilogue tiles may spill as those of the product without groups do.
            problem = replace(gemm.problem, epilogue=None)
            config = draw.choice(list(offered(problem, target)))
            found.append(Plan("cutile", config, problem, gemm.extents, target))
    return found


def gemm_of(case):
    return Arrays(case).gemm()


def name(plan):
    p = plan.problem
    epilogue = "-epilogue" * (p.epilogue is not None)
    return f"{plan.target.arch}-{p.groups}-{p.a.dtype}-{p.layout}-{plan.config}{epilogue}"


@pytest.mark.compile
@pytest.mark.skipif(toolchain.missing() is not None, reason=str(toolchain.missing()))
@pytest.mark.parametrize("plan", sampled(), ids=name)
@pytest.mark.sample(5)
def test_kernels_of_groups_compile_to_tensor_core_code_without_spills(plan):
    artifact = made(plan)
    ops = instruction_mix(artifact.files)
    # tcgen05: where its tensor memory lies is kept once, from the first instruction to the last.
    assert artifact.info.spill_bytes <= (8 if plan.target.capability[0] == 10 else 0)
    assert ops.get("LDL", 0) <= 1
    assert ops[multiplies(plan)] > 0
    assert "FFMA" not in ops
    assert ("schedule.cubin" in artifact.files) == (plan.problem.groups.along != "k")
    if features(plan.target).tma:
        assert ops["UTMALDG"] >= 2  # A and B, also of the part that a group has
        assert ops["ACQBULK"] == len(artifact.files)
    else:
        assert ops["LDGSTS"] > 0


def test_operands_whose_lines_groups_divide_are_refused_with_what_would_do():
    target = named_target("sm_90a")
    for along, layout, words in (
        ("m", "tt", "A is .* pass a K-major copy"),
        ("n", "nn", "B is .* pass a K-major copy"),
        ("k", "nn", "A is .* pass a M-major copy"),
        ("k", "tt", "B is .* pass a N-major copy"),
    ):
        gemm = gemm_of(GroupedCase(along, (64,) * 4, 256, (64, 64), layout=layout))
        reason = unsupported_by(BACKEND, gemm.problem, gemm.extents, target)
        assert re.search(words, reason), reason
    gemm = gemm_of(GroupedCase("m", (64,) * 4, 256, (64, 64)))
    invariant = replace(gemm.problem, batch_invariant=True)
    assert "other groups" in unsupported_by(BACKEND, invariant, gemm.extents, target)
    whole = plan_gemm(gemm, target, "cutile", usable=False).config
    for changed, words in (
        ({"split_k": 2}, "K whole"),
        ({"schedule": "tail"}, "K whole"),
        ({"repacked": True}, "where they lie"),
    ):
        with pytest.raises(unigemm.UnsupportedProblem, match=words):
            BACKEND.estimate(gemm.problem, gemm.extents, target, replace(whole, **changed))


def test_a_stack_that_runs_backwards_is_refused_before_anything_is_launched():
    gemm = gemm_of(GroupedCase("m", (64,) * 4, 256, (64, 64)))
    plan = plan_gemm(gemm, named_target("sm_90a"), "cutile", usable=False)
    row, column, step, _ = gemm.b_strides
    with pytest.raises(unigemm.UnsupportedProblem, match="use backend='cute_simt'"):
        calls(plan, replace(gemm, b_strides=(row, column, -step, 0)))


@pytest.mark.parametrize(
    ("arch", "along", "backend"),
    [
        ("sm_80", "m", "cutile"),
        ("sm_80", "k", "cutile"),
        ("sm_90a", "m", "cute_wgmma"),
        ("sm_90a", "k", "cute_wgmma"),
        ("sm_100a", "k", "cutile"),
        ("sm_120a", "m", "cutile"),
    ],
)
def test_groups_are_planned_where_they_take_least_time(arch, along, backend):
    spec = unigemm.ArraySpec
    shapes = {"m": ((8192, 4096), (64, 4096, 2048)), "k": ((2048, 8192), (8192, 4096))}[along]
    a = spec(shapes[0], "bfloat16", strides=(1, 2048) if along == "k" else None)
    b = spec(shapes[1], "bfloat16")
    plan = unigemm.plan(a, b, offsets=spec((64,), "int32"), target=arch)
    assert plan.backend == backend


@pytest.mark.parametrize("along", ["n", "columns"])
def test_lines_of_d_that_groups_cut_have_tiles_that_store_single_elements(along):
    gemm, target = gemm_of(GroupedCase(along, (64,) * 4, 256, (64, 64))), named_target("sm_100a")
    assert gemm.problem.d.alignment == 16
    assert kernel_problem(gemm.problem).d.alignment == gemm.problem.d.dtype.itemsize
    turned = gemm.problem.transposed
    for config in offered(gemm.problem, target):
        assert config.swap_ab or config.tile[0] * config.tile[1] <= 128 * 128
    assert kernel_problem(turned).d.alignment == turned.d.dtype.itemsize
