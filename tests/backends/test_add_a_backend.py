"""docs/add-a-backend.md: the code on the page is installed as a package would be, and computes."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

import pytest
from processes import python

import unigemm

ROOT = Path(unigemm.__file__).parent.parent
PAGE = ROOT / "docs" / "add-a-backend.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is not where unigemm is")

#: Runs behind the page's own lines, in a process that knows the package from its path alone.
CHECKS = """
import contextlib, io, json, math
from unigemm import cli, UnsupportedProblem

rng = np.random.default_rng(0)
found = {"backends": [[x.name, x.available] for x in unigemm.backend_info()]}


def agrees(a, b, out=None, **options):
    expected = np.matmul(a.astype("float64"), b.astype("float64"))
    given = unigemm.matmul(a, b, out, backend="wide_sums", **options)
    # Sums of float64 in another order, then one rounding: half a unit in the last place, and a bit.
    gap = abs(given.astype("float64") - expected)
    room = np.spacing(abs(expected).astype(given.dtype)).astype("float64") * 0.501
    return bool((gap <= room).all()) and (out is None or given is out)


def random_array(*shape):
    return rng.standard_normal(shape).astype("float32")


x, y = random_array(150, 70), random_array(70, 90)
found["agrees"] = {
    "plain": agrees(x, y),
    "transposed": agrees(y.T, x.T),
    "backwards": agrees(x[::-1, ::-1], y[::-1]),
    "columns of D": agrees(x, y, np.empty((90, 150), "float32").T),
    "vectors": agrees(x[0], y[:, 0]) and agrees(x, y[:, 0]) and agrees(x[0], y),
    "stacks": agrees(random_array(2, 3, 20, 30), random_array(3, 30, 40)),
    "stacks of many dimensions": agrees(
        random_array(2, 1, 3, 2, 4, 5), random_array(2, 2, 1, 2, 5, 6)
    ),
    "float16": agrees(x.astype("float16"), y.astype("float16")),
    "float16 into float32": agrees(x.astype("float16"), y.astype("float16"), dtype="float32"),
}
made = unigemm.plan(x, y, backend="wide_sums")
by_name = unigemm.Plan.from_json(made.to_json())
found["plan"] = [made.backend, by_name == made, str(made)]
found["tiles"] = sorted(p.config.tile for p in (made, *made.alternatives))
other = made.taking(made.alternatives[0])
found["runs its other tile"] = bool(
    np.array_equal(unigemm.matmul(x, y, plan=other), unigemm.matmul(x, y, plan=by_name))
)
auto = unigemm.plan(x, y)
found["auto"] = [auto.backend, [each.backend for each in auto.alternatives]]
ones = np.ones((4, 4), "int8")
try:
    unigemm.matmul(ones, ones, backend="wide_sums")
except UnsupportedProblem as error:
    found["refused"] = str(error)
gpu = unigemm.plan(*[unigemm.ArraySpec((64, 64), "float32")] * 2, target="sm_90a")
found["on a GPU"] = {each.backend: each.reason for each in gpu.rejected}
print(json.dumps(found))
"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def project():
    (text,) = blocks("toml")
    return tomllib.loads(text)


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """Return a function that runs code where the page's package is installed."""
    site = tmp_path_factory.mktemp("site")
    about = project()["project"]
    (module,) = project()["tool"]["setuptools"]["py-modules"]
    (site / f"{module}.py").write_text(blocks("python")[0])
    info = site / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    (info / "METADATA").write_text(head)
    lines = []
    for group, entries in about["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {where}" for name, where in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    def run(*arguments, **variables):
        path = os.pathsep.join((str(site), str(ROOT)))
        return python(*arguments, cwd=site, PYTHONPATH=path, **variables)

    return run


@pytest.fixture(scope="module")
def seen(process):
    """Return what the page's own example printed, and what the checks behind it found."""
    _, example = blocks("python")
    done = process("-c", example + CHECKS)
    assert done.returncode == 0, done.stderr
    *printed, found = done.stdout.splitlines()
    return "\n".join(printed), json.loads(found)


def test_the_backend_on_the_page_is_complete_in_under_a_hundred_lines():
    code, example = blocks("python")
    assert len(code.splitlines()) < 100
    compile(example, "the example", "exec")


def test_the_page_names_the_group_that_unigemm_reads(seen):
    _, found = seen
    assert ["wide_sums", True] in found["backends"]
    assert found["backends"][-1][0] == "wide_sums", "backends from outside come last"


def test_the_example_prints_what_the_page_says(seen):
    printed, _ = seen
    assert printed.startswith("[[1.]]\n")
    assert "wide_sums" in printed.partition("\n")[2]


def test_the_backend_multiplies_all_layouts_and_rounds_once(seen):
    _, found = seen
    assert len(found["agrees"]) == 9
    assert [name for name, right in found["agrees"].items() if not right] == []


def test_its_plans_are_plans(seen):
    _, found = seen
    name, round_trip, text = found["plan"]
    assert name == "wide_sums"
    assert round_trip
    assert "wide_sums" in text
    assert found["tiles"] == [[64, 90, 70], [150, 90, 70]]
    assert found["runs its other tile"]


def test_auto_weighs_it_and_takes_what_is_expected_to_be_faster(seen):
    _, found = seen
    name, others = found["auto"]
    assert name == "numpy"
    assert "wide_sums" in others


def test_what_it_does_not_take_is_refused_in_its_own_words(seen):
    _, found = seen
    assert "it multiplies float32 and float16, not int8; use backend='numpy'" in found["refused"]
    assert found["on a GPU"]["wide_sums"] == "runs on the CPU only"


def test_the_command_line_and_the_environment_know_it(process):
    command = ("-m", "unigemm", "plan", "8", "8", "8", "--target", "cpu", "--json")
    done = process(*command, UNIGEMM_BACKEND="wide_sums")
    assert done.returncode == 0, done.stderr
    assert '"backend": "wide_sums"' in done.stdout
