"""Each rung of bench/ladder.py gives the product, compiles without spills, and is what it says."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import call_path
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from gpu_cases import matrix
from reference import NUMPY, Case, check_case, flat_poison, strided_view

import unigemm
from bench import ladder
from bench.ladder_backends import BY_SHIPPED, SIMT_LADDER
from bench.ladder_counts import COUNTED, count, counts_of
from bench.ladder_options import OPTIONS
from bench.ladder_page import excerpt, filled
from bench.ladder_rungs import LADDERS, RUNGS, offered, plan_of
from unigemm.cache.sass import instruction_mix
from unigemm.emulator import device
from unigemm.emulator.launch.host import missing
from unigemm.errors import BackendUnavailable
from unigemm.planning.config import Config
from unigemm.planning.target import device_count

pytestmark = pytest.mark.compile
runs = pytest.mark.skipif(missing() is not None, reason=missing() or "")

OURS = [rung for rung in RUNGS if rung.config is not None]
BY_NAME = {rung.name: rung for rung in RUNGS}
TEACHING = [
    pytest.param(rung, COUNTED[ladder][0], id=f"{ladder}-{rung.name}")
    for ladder in ("wgmma", "tcgen05")
    for rung in LADDERS[ladder]
    if rung.config is not None and rung.config.schedule in BY_SHIPPED[rung.backend].schedules
]


def name_of(rung):
    return rung.name


@pytest.fixture(autouse=True)
def taken():
    call_path.forget_kernels()  # plans among other backends
    with offered():
        yield
    call_path.forget_kernels()


def compiled(rung, arch="sm_90a"):
    """Compile a rung as it is measured."""
    specs = (
        unigemm.ArraySpec((2048, 2048), str(rung.dtype), "CF"[letter == "t"])
        for letter in rung.layout
    )
    return unigemm.compile(plan_of(rung, *specs, target=arch)).entry


def run(rung, size, pitch, shift=0, arch="sm_90a"):
    """Multiply among poison on an emulated GPU; rows are `pitch` elements apart, or a multiple."""
    m, n, k = size
    placed = [
        matrix(rows, columns, turned, -(rows if turned else columns) % pitch, shift)
        for rows, columns, turned in (
            (m, k, rung.layout[0] == "t"), (k, n, rung.layout[1] == "t"), (m, n, False)
        )
    ]  # fmt: skip
    dtype = rung.dtype
    case = Case(*placed, (m, n), dtype, dtype, exact=False, seed=k)
    with device(arch, seed=m, conflicts=True) as gpu:
        arrays = [strided_view(flat_poison(where.length, dtype), where) for where in placed]
        check_case(NUMPY, case, plan=plan_of(rung, *arrays))
        return gpu.launches[-1][1]


@runs
@pytest.mark.parametrize("rung", OURS, ids=name_of)
@pytest.mark.sample(5)
def test_a_rung_gives_the_product_at_odd_sizes_and_spills_nothing(rung):
    artifact = compiled(rung)
    ops = instruction_mix(artifact.files)
    assert artifact.info.spill_bytes == 0
    assert not {"LDL", "STL"} & set(ops)
    assert ops["FFMA"] > 0
    run(rung, (131, 68, 35), pitch=4)  # the kernel that was compiled: all vectors, K and M odd


@runs
@pytest.mark.parametrize(("rung", "arch"), TEACHING)
def test_a_rung_on_tensor_cores_gives_the_product_at_odd_sizes_and_spills_nothing(rung, arch):
    artifact = compiled(rung, arch)
    assert artifact.info.spill_bytes == 0
    run(rung, (131, 75, 203), pitch=8, arch=arch)  # K ends within a k_tile, M and N in a tile


def test_rungs_on_tensor_cores_refuse_what_they_do_not_take():
    spec = unigemm.ArraySpec((512, 512), "bfloat16")
    turned = unigemm.ArraySpec((512, 512), "bfloat16", "F")
    rung = LADDERS["wgmma"][0]
    good = plan_of(rung, spec, turned, target="sm_90a")
    for plan, reason in (
        (plan_of(rung, spec, spec, target="sm_90a"), "column-major B"),
        (replace(good, config=replace(good.config, stages=2)), "have one stage"),
        (replace(good, config=replace(good.config, schedule="upside down")), "no rung"),
        (replace(good, config=replace(good.config, cluster=(2, 1))), "no clusters"),
    ):
        with pytest.raises(unigemm.UnsupportedProblem, match=reason):
            BY_SHIPPED["cute_wgmma"].compile(plan)


@runs
@pytest.mark.parametrize("name", ["naive", "pipelined", "64 bits, in turn"])
def test_operands_at_odd_addresses_give_the_product_too(name):
    run(BY_NAME[name], (3, 133, 31), pitch=7, shift=1)


@runs
def test_padding_is_what_keeps_stores_out_of_each_others_banks():
    report = {name: run(BY_NAME[name], (20, 20, 20), 4) for name in ("tiled", "conflict-free")}
    assert report["conflict-free"].shared_passes == report["conflict-free"].shared_accesses
    assert report["tiled"].shared_accesses == report["conflict-free"].shared_accesses
    assert report["tiled"].shared_passes > 1.2 * report["tiled"].shared_accesses


#: Accesses of PTX: elements of 4 bytes, if several, and the bytes of a copy.
ACCESS = re.compile(r"\b(?:(?:ld|st)\.(?:shared|global)(?:\.v(\d))?\.b32|cp\.async.*?\], (\d+))")


@pytest.mark.parametrize("rung", [r for r in OURS if r.config.schedule in OPTIONS], ids=name_of)
def test_accesses_are_as_wide_as_they_may_be_and_copies_start_when_they_should(rung):
    options = OPTIONS[rung.config.schedule]
    ptx = Path(compiled(rung).files["kernel.ptx"]).read_text()
    widths = {
        int(x[1] or 1) * 32 if x[1] or not x[2] else int(x[2]) * 8 for x in ACCESS.finditer(ptx)
    }
    assert max(widths) == options.bits
    products = [x.start() for x in re.finditer(r"\bfma\.rn\.f32", ptx)]
    copies = [x.start() for x in re.finditer(r"\bcp\.async\.c", ptx)]
    between = [x for x in copies if products[0] < x < products[-1]]
    assert bool(between) == options.pipelined


def test_no_plan_but_the_ladders_own_takes_a_rung():
    spec = unigemm.ArraySpec((512, 512), "float32")
    plan = unigemm.plan(spec, spec, target="sm_90a")
    assert plan.backend != SIMT_LADDER.name
    assert any("bench.ladder" in each.reason for each in plan.rejected)
    rung = plan_of(BY_NAME["128 bits, in turn"], spec, spec, target="sm_90a")
    for change, reason in (
        ({"schedule": "upside down"}, "no rung"),
        ({"stages": 3}, "two stages"),
        ({"split_k": 2}, "no split"),
        ({"thread": (3, 8)}, "powers of two"),
    ):
        with pytest.raises(unigemm.UnsupportedProblem, match=reason):
            SIMT_LADDER.compile(replace(rung, config=replace(rung.config, **change)))


class SlowDevice:
    """A measuring device whose clock goes one second a call, with NumPy as its cuBLAS."""

    name, l2_bytes = "slow", 1

    def operand(self, shape, dtype, transposed, offset):
        x = np.random.default_rng(1).standard_normal(shape[::-1] if transposed else shape)
        return (x.T if transposed else x).astype(np.float32, order="K")

    def empty(self, shape, dtype):
        return np.full(shape, np.nan, np.float32)

    def baseline(self, a, b, out, precision="ieee"):
        return lambda: np.matmul(a, b, out)

    def capture(self, calls):
        return lambda: [call() for call in calls]

    def seconds(self, run):
        run()
        return 1.0

    def worst_ratio(self, a, b, out, factor, rounding):
        x, y = a.astype(np.float64), b.astype(np.float64)
        return float((np.abs(out - x @ y) / (factor * (np.abs(x) @ np.abs(y)))).max())


@runs
def test_rungs_are_checked_and_measured_beside_cublas_in_their_layout():
    wrong = replace(BY_NAME["tiled"], name="wrong", config=Config((3, 3, 3), schedule="gone"))
    again = replace(BY_NAME["naive"], name="again")
    rungs = (BY_NAME["naive"], BY_NAME["B column-major"], again, wrong)
    with device("sm_90a"):
        records = ladder.measure_ladder((20, 20, 20), SlowDevice(), rungs)
    names = ["cuBLAS nn", "cuBLAS nt", "naive", "B column-major", "again", "wrong"]
    assert [record["rung"] for record in records] == names
    *timed, refused = records
    assert all(record["us"] == 1e6 and record["ratio"] == 1 for record in timed)
    assert all(0 < record["error_of_bound"] <= 1 for record in timed[2:])
    assert "no rung" in refused["error"]
    assert "us" not in refused


def test_the_table_has_each_rung_beside_what_was_published():
    def record(rung, ratio):
        times = {"us": 100.0, "tflops": 50.0, "ratio": ratio} if ratio else {"error": "broken"}
        published = {"published_consumer": rung.consumer, "published_h100": rung.h100}
        return {"rung": rung.name, "adds": rung.adds, **published, **times}

    records = [record(rung, 0.1 + i / 15) for i, rung in enumerate(RUNGS)]
    text = ladder.markdown(
        [{"rung": "cuBLAS nn", "us": 90.0, "tflops": 55.0, "ratio": 1.0}, *records]
    )
    lines = text.splitlines()
    assert len(lines) == 3 + len(RUNGS)
    assert len({line.count("|") for line in lines}) == 1
    assert lines[3].endswith("| 100.0 | 50.0 | 10.0 | 11.5 |  |")
    published = [rung.consumer for rung in RUNGS if rung.consumer]
    assert published == [11.5, 64.1, 72.5, 64.3, 97.2, 102.8]
    assert [rung.h100 for rung in RUNGS if rung.h100] == [88.4, 65.6]
    assert "the highest here, at 110.0 % of cuBLAS: above" in ladder.verdict(records)
    lower = [*records[:-1], record(RUNGS[-1], 1.0)]
    assert "below planned here, at 100.0 % of cuBLAS: not above" in ladder.verdict(lower)
    assert ladder.verdict([*records[:-1], record(RUNGS[-1], 0)]) == "tuned has no time"
    assert "| broken | - | - |" in ladder.markdown([record(RUNGS[0], 0)])


@pytest.mark.skipif(device_count() > 0, reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_so_and_still_compiles(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["ladder", "--out", str(tmp_path / "x.json")])
    with pytest.raises(BackendUnavailable, match=r"CUDA device; there is none here; --compile"):
        ladder.main()
    assert not (tmp_path / "x.json").exists()
    monkeypatch.setattr(ladder, "RUNGS", RUNGS[:1])
    monkeypatch.setattr(sys, "argv", ["ladder", "--compile", "sm_90a"])
    ladder.main()
    assert "naive: 32 registers, 0 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("rung", ladder.LADDERS["wgmma"], ids=name_of)
def test_each_rung_on_hopper_is_a_configuration_that_can_run(rung):
    specs = ladder.spec_of(ladder.workload(rung, (4096, 4096, 4096)))
    plan = plan_of(rung, *specs, target="h100")
    teaches = rung.config is not None and rung.config.schedule != "cooperative"
    assert plan.backend == ("ladder_wgmma" if teaches else "cute_wgmma")
    assert unigemm.Plan.from_json(plan.to_json()).config == (rung.config or plan.config)


PAGE = Path(__file__).parents[2] / "docs" / "ladder.md"
KEPT = [(ladder, name) for ladder in LADDERS for name in counts_of(ladder)]


def test_the_page_of_the_ladder_shows_the_code_that_runs_and_what_was_measured():
    text = PAGE.read_text()
    assert filled(text) == text, "python -m bench.ladder_page writes it anew"
    assert text.count("<!-- rungs") == 2
    assert text.count("<!-- counts") == 1
    assert excerpt("bench/ladder_kernels.py", "multiply") in text
    shown = set(re.findall(r"<!-- code: bench/(\w+).py (\w+)_kernel", text))
    for name in ("ladder_kernels", "ladder_wgmma_kernels", "ladder_tcgen05_kernels"):
        source = (PAGE.parents[1] / "bench" / f"{name}.py").read_text()
        kernels = re.findall(r"^def (\w+)_kernel\(", source, re.MULTILINE)
        assert len(kernels) > 1
        assert {(name, kernel) for kernel in kernels} <= shown


def test_the_order_of_events_on_the_page_is_what_was_counted():
    orders = [each.order for ladder in LADDERS for each in counts_of(ladder).values()]
    told = re.findall(r"`([LME]{4,})`", PAGE.read_text())
    assert len(told) > 5
    assert [x for x in told if not any(order.startswith(x) for order in orders)] == []
    wgmma = counts_of("wgmma")
    assert wgmma["128x256"].order.startswith("LMELME")  # nothing at the same time
    assert wgmma["pipelined"].order.startswith("LLMLEM")  # a load beside each product
    assert wgmma["specialized"].order.startswith("LLLMME")  # products follow one another


def test_every_rung_with_a_configuration_was_counted():
    told = {(name, rung.name) for name, of in LADDERS.items() for rung in of if rung.config}
    assert set(KEPT) == told
    simt = counts_of("simt")
    assert simt["naive"].passes == 2 * simt["naive"].products  # two loads for each fma
    assert simt["tiled"].passes > simt["conflict-free"].passes
    assert simt["larger thread tiles"].passes < simt["warp-tiled"].passes


@runs
@pytest.mark.parametrize(("ladder", "name"), KEPT, ids=str)
@pytest.mark.sample(2)
def test_the_emulator_counts_what_was_kept(ladder, name):
    rung = next(rung for rung in LADDERS[ladder] if rung.name == name)
    found, kept = count(rung, *COUNTED[ladder]), counts_of(ladder)[name]
    assert (found.products, found.brought) == (kept.products, kept.brought)
    if rung.config.schedule in BY_SHIPPED[rung.backend].upper:  # such kernels change now and then
        assert found.instructions == pytest.approx(kept.instructions, rel=0.1)
    else:
        assert found == kept
