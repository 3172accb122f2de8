"""The page of what was measured holds nothing that was not."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.performance import DATA, config_of, family, measured
from bench.performance_page import Facts, page
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Extents
from unigemm.tuning.measure import Workload
from unigemm.tuning.sweep import planned

CARD = "NVIDIA H200"
FIRST, SECOND = Workload(512, 768, 1024, DType.BFLOAT16, "nt"), Workload(96, 640, 512)


def launch(work, place, us, cublas_us=None):
    plan = planned(work, target="h200", tuned=False)
    if place:
        plan = plan.taking(plan.alternatives[place - 1])
    record = {"device": CARD, "us": us, "backend": plan.backend, "plan": plan.to_dict()}
    return record | ({"cublas_us": cublas_us} if cublas_us else {})


@pytest.fixture
def data(tmp_path):
    def write(name, *records):
        with lzma.open(tmp_path / name, "wt") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    write(
        "h200_some.jsonl.xz",
        launch(FIRST, 0, 10.0, 5.0),
        launch(FIRST, 0, 10.0, 15.0),
        launch(FIRST, 0, 10.0, 8.0),
        launch(FIRST, 1, 4.0, 8.0),
        launch(SECOND, 1, 4.0, 8.0),  # the pick itself was not measured
        launch(SECOND, 0, 4.0),  # nor was cuBLAS, here
    )
    write("h200_heldout1.jsonl.xz", launch(FIRST, 0, 10.0, 12.0))
    return tmp_path


def test_picks_are_looked_up_among_launches_and_others_are_counted(data):
    found, left_out, counts = measured(sorted(data.glob("*.xz")))
    by_file = {count.file: (count.problems, count.launches, count.alone) for count in counts}
    assert by_file == {"h200_some.jsonl.xz": (2, 6, 1), "h200_heldout1.jsonl.xz": (1, 1, 0)}
    assert left_out == {(CARD, False): 1}
    fitted, held_out = sorted(found, key=lambda x: x.held_out)
    assert (fitted.held_out, fitted.ratio, fitted.us, fitted.best) == (False, 0.8, 10.0, 2.0)
    assert (held_out.held_out, held_out.ratio) == (True, 1.2)
    assert (fitted.kind, fitted.family) == ("bfloat16", "small")


def test_the_page_tells_what_was_fitted_from_what_was_not(data):
    found, left_out, counts = measured(sorted(data.glob("*.xz")))
    text = page(Facts(found, left_out, counts, {"small": "some"}, {}, {}, "abc1234"))
    held_out, _, rest = text.partition("## Shapes that the cost models were fitted to")
    assert "| bfloat16 | 1 | **1.200** | 1.200 | 100% |" in held_out
    assert "| bfloat16 | 1 | **0.800** | 0.800 | 0% |" in rest
    assert "2 problems were measured on it; of 1 the launch" in rest
    assert "| float32 |" not in text
    assert "| `bench/data/h200_some.jsonl.xz` | H200 | not noted | 2, 6 (1 with no time" in text


def test_a_configuration_of_a_former_version_is_the_same():
    plan = planned(FIRST, target="h200", tuned=False).to_dict()
    former = {name: value for name, value in plan.items() if name not in ("remainder", "producers")}
    assert config_of(plan) == config_of(former | {"strips": []})
    assert config_of(plan) != config_of(plan | {"stages": plan["stages"] + 1})


@pytest.mark.parametrize(
    ("extents", "name"),
    [
        (Extents(1, 4096, 4096), "few rows"),
        (Extents(1023, 1025, 1027), "odd"),
        (Extents(256, 256, 65536), "large K"),
        (Extents(4096, 4096, 4096), "large"),
        (Extents(1024, 1024, 1024), "small"),
        (Extents(64, 128, 128, 8), "stacks"),
    ],
)
def test_a_shape_has_one_family(extents, name):
    assert family(extents) == name


def test_each_file_of_launches_says_where_it_is_from():
    origins = json.loads((DATA / "origins.json").read_text())
    notes = DATA.parents[1] / "docs" / "lab-notes"
    assert all(entry["commits"] for entry in origins.values())
    assert all((notes / entry["note"]).is_file() for entry in origins.values() if "note" in entry)
    assert {*origins} <= {path.name for path in DATA.iterdir()}
