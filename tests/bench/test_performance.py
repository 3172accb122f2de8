"""The page of what was measured holds nothing that was not."""

from __future__ import annotations

import json
import lzma
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.measured import DATA, files, launches
from bench.model_sizes import family
from bench.performance import counted, drawn, fitted_files, fresh, judged, measured
from bench.performance_page import Facts, by_kind_and_family, page
from unigemm.problem.dtypes import DType
from unigemm.tuning.measure import Workload
from unigemm.tuning.sweep import planned

CARD = "NVIDIA H200"
FIRST, SECOND, THIRD = (
    Workload(512, 768, 1024, DType.BFLOAT16, "nt"),
    Workload(96, 640, 512),
    Workload(96, 648, 512),
)


def launch(work, rank, us, cublas_us=None):
    plan = planned(work, target="h200", tuned=False)
    if rank:
        plan = plan.taking(plan.alternatives[rank - 1])
    record = {"device": CARD, "us": us, "backend": plan.backend, "plan": plan.to_dict()}
    return record | ({"cublas_us": cublas_us} if cublas_us else {})


@pytest.fixture
def data(tmp_path):
    def write(name, *records):
        with lzma.open(tmp_path / name, "wt") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    write(
        "h200_some.jsonl.xz",
        launch(FIRST, 0, 10.0, 8.0),
        launch(FIRST, 0, 11.0, 8.0),
        launch(FIRST, 0, 9.0, 8.0),
        launch(FIRST, 1, 4.0, 8.0),
        launch(SECOND, 1, 4.0, 8.0),  # the pick itself was not measured
        launch(SECOND, 2, 5.0, 8.0),
        launch(THIRD, 0, 4.0),  # beside which cuBLAS was not measured
    )
    write("h200_heldout1.jsonl.xz", launch(FIRST, 0, 10.0, 12.0))
    return tmp_path


def facts_of(data):
    found = [x for kind in (True, False) for x in measured(launches(files(kind, data)), kind)]
    counts = [counted(path) for path in sorted(data.glob("*.xz"))]
    return Facts(found, counts, {"small": "some"}, {}, "abc1234")


def test_picks_are_looked_up_among_launches(data):
    held_out, *fitted = facts_of(data).found
    picked, other = sorted(fitted, key=lambda x: not x.plan)
    assert (held_out.held_out, held_out.ratio, held_out.best) == (True, 1.2, 1.2)
    assert (picked.held_out, picked.ratio, picked.us, picked.best) == (False, 0.8, 10.0, 2.0)
    assert (picked.kind, picked.family) == ("bfloat16", "small")
    assert (other.kind, other.plan, other.best) == ("float32", None, 2.0)


def test_the_page_tells_what_was_fitted_from_what_was_not(data):
    text = page(facts_of(data))
    held_out, _, rest = text.partition("## Shapes that the cost models were fitted to")
    assert "| bfloat16 | 1 | **1.200** | 1.200 | 100% | 1 | 1.200 |" in held_out
    assert "| bfloat16 | 1 | **0.800** | 0.800 | 0% | 1 | 2.000 |" in rest
    assert "| float32 | 0 | | | | 1 | 2.000 |" in rest  # its pick has no ratio
    assert "2 problems were measured on it; of 1 the launch" in rest
    assert "| `h200_some.jsonl.xz` | H200 | not noted | 3, 5 (1 with no time" in text


def test_a_fit_sees_no_file_that_is_held_out(data):
    assert [path.name for path in files(data=data)] == ["h200_some.jsonl.xz"]
    assert [path.name for path in files(True, data)] == ["h200_heldout1.jsonl.xz"]
    assert "h200.jsonl.xz" in fitted_files()
    assert not any("heldout" in name for name in fitted_files())
    assert "| `h200_heldout1.jsonl.xz` | H200 | not noted | 1, 1 | no |" in page(facts_of(data))


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 4096, 4096), "few rows"),
        ((1023, 1025, 1027), "odd"),
        ((256, 256, 65536), "large K"),
        ((4104, 4096, 4096), "large"),
        ((4096, 4096, 4096), "ordinary"),
        ((1024, 1024, 1024), "small"),
        ((1, 1024, 1024, 1024), "small"),
        ((8, 64, 128, 128), "stacks"),
    ],
)
def test_a_shape_has_one_family(shape, name):
    assert family(shape) == name


def test_fresh_picks_count_as_they_were_measured_and_families_weigh_the_same(tmp_path):
    path = tmp_path / "h200_heldout_families5.jsonl.xz"
    few = Workload(16, 4096, 4096, DType.BFLOAT16, "nt")
    records = [
        launch(FIRST, 1, 10.0, 8.0),  # no pick of today
        launch(replace(FIRST, m=520), 0, 10.0, 8.0),
        launch(few, 0, 10.0, 20.0),
    ]
    with lzma.open(path, "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    text = page(Facts([], [], {}, {}, "abc1234", fresh=[fresh(path)]))
    assert "| **1.265** | 2.00 / 2.00 (1) | 0.80 / 0.80 (2) |" in text  # (2.0 * 0.8) ** 0.5
    assert "H200, not noted: 3 problems" in text
    with lzma.open(path, "at") as file:
        file.write(json.dumps(launch(few, 1, 9.0, 20.0)) + "\n")
    with pytest.raises(ValueError, match="too many"):  # which of the two was picked?
        fresh(path)


def test_grouped_products_stand_beside_what_others_took_for_them(tmp_path):
    def record(way, us, seed, plan=""):
        return {"case": "4 experts", "form": "m", "groups": 4, "tokens": 512, "n": 64, "k": 32,
                "seed": seed, "way": way, "us": us, "plan": plan}  # fmt: skip

    records = [
        record("torch", 20.0, 1), record("dense", 5.0, 1), record("auto", 10.0, 1, "a launch"),
        record("torch", 80.0, 2), record("copy", 20.0, 2), record("auto", 10.0, 2, "a launch"),
        {"case": "4 experts", "seed": 1, "way": "jax.lax", "us": 123.4, "plan": ""},
        {"case": "4 experts", "seed": 1, "way": "unigemm.jax", "us": 12.6, "plan": ""},
    ]  # fmt: skip
    found = {"device": CARD, "torch": "2.11", "records": records}
    facts = Facts([], [], {}, {"grouped1.json": {"commits": "abc, 2026"}}, "abc1234")
    assert "Grouped products" not in page(facts)
    text = page(replace(facts, grouped={"grouped1.json": found}))
    assert "### H200, PyTorch 2.11, abc, 2026" in text
    assert "| 4 experts | rows | 512 | 64x32 | 10 | 4.00 | 0.50 | 2.00 |" in text
    assert "4 experts takes 123 us by `jax.lax` and 13 us by `unigemm.jax`." in text


def test_the_chart_of_families_is_of_fresh_picks_where_there_are_some(data, tmp_path):
    pytest.importorskip("matplotlib")
    facts = facts_of(data)
    (held_out,) = (x for x in facts.found if x.held_out)
    assert by_kind_and_family(judged(facts, CARD)) == {"bfloat16": {"small": [held_out.ratio]}}
    path = tmp_path / "h200_heldout_families5.jsonl.xz"
    with lzma.open(path, "wt") as file:
        file.write(json.dumps(launch(FIRST, 1, 10.0, 8.0)) + "\n")
    facts = replace(facts, fresh=[fresh(path)])
    assert by_kind_and_family(judged(facts, CARD)) == {"bfloat16": {"small": [0.8]}}
    facts = replace(facts, found=[x for x in facts.found if not x.held_out and not x.plan])
    pictures = drawn(facts, tmp_path / "performance.md")
    assert pictures == {("families", CARD): "performance-families-h200.svg"}
    picture = (tmp_path / "performance-families-h200.svg").read_text()
    assert "small" in picture
    assert "bfloat16" in picture
    assert "](performance-families-h200.svg)" in page(replace(facts, pictures=pictures))


def test_what_is_told_of_a_file_of_launches_leads_somewhere():
    origins = json.loads((DATA / "origins.json").read_text())
    notes = DATA.parents[1] / "docs" / "lab-notes"
    assert all(entry["commits"] for entry in origins.values())
    assert all((notes / entry["note"]).is_file() for entry in origins.values() if "note" in entry)
