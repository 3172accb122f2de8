"""`unigemm report`: a page and JSON about a device, measured where it is at hand."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from commands import forked
from test_demo import HostDevice

import unigemm
from unigemm.planning.target import ARCHITECTURES, device_count, named_target
from unigemm.tuning import autotune, call_arrays
from unigemm.tuning import report as module
from unigemm.tuning.report import PRODUCTS, report_of
from unigemm.tuning.report_page import page

EVIL = "</td><script>alert(1)</script><img src=x onerror='a()'>&\""


class Page(HTMLParser):
    """The cells of the table of products, and all tags, attributes and text."""

    in_cell = False

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.rows, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
            self.in_cell = True

    def handle_data(self, data):
        self.text += data
        if self.in_cell:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag):
        self.in_cell &= tag != "td"


@pytest.fixture(scope="module")
def estimated():
    return report_of(target="h100")


@pytest.fixture
def at_hand(monkeypatch):
    """Let the CPU play an H100, on which picks are right unless a test says otherwise."""
    monkeypatch.setattr(module, "calibrated_target", lambda index: named_target("h100"))
    monkeypatch.setattr(autotune, "compile_many", lambda plans, report: [])
    multiply, multiply_groups = unigemm.matmul, unigemm.grouped_matmul

    def without_plan(*arrays, plan, **options):
        multiply(*arrays, **options)

    def groups_without_plan(*arrays, plan, **options):
        multiply_groups(*arrays, **options)

    monkeypatch.setattr(call_arrays.api, "matmul", without_plan)
    monkeypatch.setattr(call_arrays, "grouped_matmul", groups_without_plan)
    return HostDevice()


PLAIN = {"m": 64, "n": 32, "k": 128, "dtype": "float32", "layout": "nn"}
SMALL = [PLAIN, {**PLAIN, "epilogue": "relu"}]


@pytest.mark.parametrize("target", ARCHITECTURES)
def test_every_product_of_the_default_list_is_planned_or_refused_with_a_reason(target):
    found = report_of(target=target)
    assert len(found.lines) + len(found.refused) == len(PRODUCTS)
    assert len(found.lines) >= 15
    assert all(" " in reason for reason in found.refused)
    assert not found.measured
    assert all(line.us is None and line.rate(line.plan.predicted_us) > 0 for line in found.lines)


def test_the_page_shows_every_product_and_fetches_nothing(estimated):
    text = page(estimated)
    shown = Page(text)
    for line in estimated.lines:
        assert any(f"{line.plan.backend} {line.plan.config}" in row for row in shown.rows)
        assert line.plan.limiter in shown.text
    assert {"link", "img", "iframe"}.isdisjoint(shown.tags)
    assert not [x for x in shown.attributes if x[0] in ("src", "href")]
    assert (
        "content",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
    ) in shown.attributes
    assert shown.tags.count("svg") == len({line.kind for line in estimated.lines})
    assert "prefers-color-scheme: dark" in text


def test_estimates_are_called_so(estimated):
    assert "all times are estimates" in Page(page(estimated)).text
    assert "measured us" not in Page(page(estimated)).text
    assumed = report_of(SMALL[:1], "b200")
    assert "all times are assumed" in Page(page(assumed)).text
    assert any("assumed" in cell for row in Page(page(assumed)).rows for cell in row)
    assert assumed.to_dict()["products"][0]["assumed"]


def test_whatever_is_read_is_escaped(estimated):
    target = replace(estimated.target, name=EVIL)
    lines = tuple(
        replace(line, note=EVIL, plan=replace(line.plan, target=target, limiter=EVIL))
        for line in estimated.lines[:3]
    )
    found = replace(estimated, target=target, lines=lines, refused=(EVIL,), versions={EVIL: EVIL})
    before, after = (Page(page(x)) for x in (estimated, found))
    assert after.tags.count("script") == before.tags.count("script") == 1
    assert "img" not in after.tags
    assert not [name for name, _ in after.attributes if name.startswith("on")]
    assert after.text.count(EVIL) >= 6


def test_at_hand_picks_are_measured_beside_cublas_if_they_are_right(at_hand):
    (plain,) = report_of([PLAIN], device=at_hand, budget_ms=1.0).lines
    assert plain.us > 0
    assert plain.ratio == plain.cublas_us / plain.us
    assert plain.note == ""
    data = json.loads(json.dumps(report_of(SMALL, device=at_hand, budget_ms=1.0).to_dict()))
    assert data["measured"]
    assert data["products"][0]["measured_us"] > 0
    assert unigemm.Plan.from_dict(data["products"][0]["plan"]).target == named_target("h100")


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"epilogue": "bias,gelu_tanh"}, "cuBLAS: the product alone"),
        ({"epilogue": "c,alpha", "batch": 2}, "cuBLAS: the product alone"),
        ({"epilogue": "swiglu"}, "cuBLAS: the product alone"),
        ({"dtype": "int8", "out_dtype": "float32", "scale_a": "row"}, "cuBLAS: the product alone"),
        ({"groups": 4}, "no groups"),
        ({"groups": 4, "epilogue": "bias"}, "no groups"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_epilogues_scales_and_groups_are_measured_and_checked_too(more, note, at_hand, monkeypatch):
    product = {**PLAIN, **more}
    found = report_of([product], device=at_hand, budget_ms=1.0)
    (line,) = found.lines
    assert line.us > 0, line.note
    assert line.plan.problem.features
    assert any(line.plan.problem.features in row for row in Page(page(found)).rows)
    assert note in line.note
    assert (line.ratio is None) == ("groups" in more)
    for name in ("api.matmul", "grouped_matmul"):
        monkeypatch.setattr(f"{call_arrays.__name__}.{name}", lambda a, b, *more, **_: None)
    (wrong,) = report_of([product], device=at_hand).lines  # the result still holds NaN
    assert wrong.us is None
    assert wrong.note.startswith("WRONG")


def test_a_plan_alone_with_an_epilogue_says_how_it_could_be_measured(at_hand):
    plan = report_of(SMALL[1:], "h100").lines[0].plan
    (line,) = report_of([plan], device=at_hand).lines
    assert line.us is None
    assert "give the product in words" in line.note


def test_what_is_wrong_or_does_not_compile_has_no_time(at_hand, monkeypatch):
    monkeypatch.setattr(call_arrays.api, "matmul", lambda a, b, out, **_: out.fill(1e9))
    (wrong,) = report_of(SMALL[:1], device=at_hand).lines
    assert wrong.us is None
    assert wrong.note.startswith("WRONG")
    error = unigemm.CompilationError("it does not compile; try another")
    monkeypatch.setattr(autotune, "compile_many", lambda plans, report: [(plans[0], error)])
    (failed,) = report_of(SMALL[:1], device=at_hand).lines
    assert (failed.us, failed.note) == (None, str(error))


def test_what_is_beside_no_baseline_is_measured_alone(at_hand, monkeypatch):
    def refuse(*_):
        raise unigemm.UnsupportedProblem("there is no such product; measure without")

    monkeypatch.setattr(at_hand, "baseline", refuse, raising=False)
    (line,) = report_of(SMALL[:1], device=at_hand, budget_ms=1.0).lines
    assert line.us > 0
    assert line.ratio is None
    assert "no such product" in line.note


def test_no_rate_is_above_the_roof_that_it_is_drawn_below(estimated):
    assert [x for x in estimated.lines if x.rate(x.plan.predicted_us) > x.roof] == []


def run(tmp_path, *words, code=0):
    done = forked([*words], {"UNIGEMM_CACHE_DIR": str(tmp_path), "NO_COLOR": "1"})
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_the_command_writes_a_page_or_prints_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    products = tmp_path / "products.jsonl"
    products.write_text("\n".join(map(json.dumps, SMALL)) + "\n")
    done = run(tmp_path, "report", str(products), "--target", "a100")
    assert "2 products on sm_80 (NVIDIA A100 80GB), estimated" in done.stdout
    assert "64x32x128" in Path("unigemm-report.html").read_text()
    data = json.loads(run(tmp_path, "report", str(products), "--target", "a100", "--json").stdout)
    assert [each["kind"] for each in data["products"]] == ["float32", "float32"]
    assert data["versions"]["numpy"]
    assert {path.name for path in tmp_path.glob("*.html")} == {"unigemm-report.html"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "cpu"), "about a GPU"),
        (("--target", "h100", "--out", "x.pdf"), ".html"),
        (("--target", "h100", "--budget", "0"), "above 0"),
        (("empty", "--target", "h100"), "no product"),
        (("bytes", "--target", "h100"), "no text in UTF-8"),
        (("deep", "--target", "h100"), "line 1 of deep"),
        (("no-such-file", "--target", "h100"), "no-such-file"),
        *([] if device_count() else [((), "no CUDA device")]),
    ],
    ids=str,
)
def test_what_cannot_be_reported_on_is_one_sentence(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in (("empty", b""), ("bytes", b"\xff\xfe"), ("deep", b"[" * 100_000)):
        Path(name).write_bytes(content)
    done = run(tmp_path, "report", *words, code=2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
