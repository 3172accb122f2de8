"""What cannot be tuned, or is no amount or file: refused before anything is measured."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

pytest.importorskip("cupy")

from odd_values import ODD, refused
from stopwatch import TILES, arrays, timed_calls
from test_tuning_epilogues import FLOAT8, autotune, multiplied, spec

import unigemm
from unigemm.arrays import types
from unigemm.planning.tuned_plans import read
from unigemm.problem.dtypes import numpy_dtype

NEEDS = {
    "beta": {"c": unigemm.ArraySpec((32, 8), "float32")},
    "preact": {"activation": "drelu"},
    "preact_out": {"activation": "relu"},
    "gate_layout": {"activation": "swiglu"},
}

BUDGETS = (None, "1", True, float("nan"), float("inf"), -1, 0, -0.0, b"1", np.float32("nan"))
COUNTS = (None, "8", True, 0, float("nan"), b"8", [8], 2.0)
FILES = (b"tuning.json", 3, True, 1.5, "", "a\0b", "\ud800", ["tuning.json"], object())


@pytest.fixture
def stopwatch(monkeypatch, tmp_path):
    yield from timed_calls(monkeypatch, tmp_path)


def all_refused(stopwatch, name, values, match, *others):
    a, b = arrays(stopwatch.driver)
    for call in (partial(autotune, stopwatch, a, b), *others):
        for value in values:
            with pytest.raises(unigemm.UnsupportedProblem, match=match):
                call(**{name: value})
    assert not stopwatch.launched


def test_a_budget_that_is_no_time_is_refused(stopwatch):
    others = unigemm.autotuning, partial(unigemm.calibrate, stopwatch)
    all_refused(stopwatch, "budget", BUDGETS, "budget is .* some seconds", *others)


def test_what_counts_no_candidates_is_refused(stopwatch):
    all_refused(stopwatch, "candidates", COUNTS, "candidates is .* from 1 on", unigemm.autotuning)


def test_what_names_no_file_is_refused_before_anything_is_measured(stopwatch):
    calibrate = partial(unigemm.calibrate, stopwatch)
    all_refused(stopwatch, "file", FILES, "file is .* a str or a pathlib", calibrate)


OF_EPILOGUE = {*types.EpilogueOptions.__annotations__} - {"epilogue_args"}


@pytest.mark.parametrize("name", sorted(OF_EPILOGUE | {"scale_a"}))
def test_an_argument_of_an_epilogue_of_a_wrong_kind_is_refused_in_words(stopwatch, name):
    a, b = arrays(stopwatch.driver)
    for value in ODD:
        if not isinstance(value, int | float) or name == "scale_a":
            refused(lambda **x: autotune(stopwatch, a, b, **x), name, value, **NEEDS.get(name, {}))
    assert not stopwatch.launched


def test_an_open_file_and_other_odd_arguments_are_refused(stopwatch, tmp_path):
    a, b = arrays(stopwatch.driver)
    with (tmp_path / "x").open("w") as file:
        for tune in (lambda **x: autotune(stopwatch, a, b, **x), unigemm.calibrate):
            with pytest.raises(unigemm.UnsupportedProblem, match="file is"):
                tune(file=file)
            with pytest.raises(unigemm.UnsupportedProblem, match="report is 3"):
                tune(report=3)
    with pytest.raises(unigemm.UnsupportedProblem, match="device is 'cuda:0'"):
        unigemm.autotune(a, b, device="cuda:0")


def test_numbers_of_other_libraries_and_names_of_files_are_taken(stopwatch, tmp_path):
    a, b = arrays(stopwatch.driver)
    for i, name in enumerate((str, lambda x: x)):
        path = tmp_path / f"{i}.json"
        given = {"budget": np.float32(0.01), "candidates": np.int64(3), "file": name(path)}
        autotune(stopwatch, a, b, **given)
        assert len(read(path)) == 1
    with unigemm.autotuning(candidates=np.int8(2), budget=1):
        assert TILES["third"] not in multiplied(stopwatch, "bias")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"activation": "gelo"}, "not known"),
        ({"preact": spec((32, 8))}, "no meaning"),
        ({"bias": spec((7,))}, "does not broadcast"),
        ({"bias": spec((8,), strides=(2,))}, "make the arrays compact"),
        ({"epilogue": 3}, "pass a function"),
        ({"scale_a": 2.0}, "for float8"),
        ({"amax_out": spec((2,))}, "one float32"),
    ],
    ids=lambda x: "+".join(x) if isinstance(x, dict) else "",
)
def test_an_epilogue_that_is_none_is_refused_as_matmul_does(stopwatch, given, said):
    with pytest.raises(unigemm.UnsupportedProblem, match=said):
        autotune(stopwatch, *arrays(stopwatch.driver), **given)
    with pytest.raises(TypeError, match="biass"):
        autotune(stopwatch, *arrays(stopwatch.driver), biass=1.0)
    assert not stopwatch.launched


def test_vectors_and_scales_of_blocks_are_refused_with_what_would_work(stopwatch):
    ones, kind = stopwatch.driver.ones, numpy_dtype(FLOAT8)
    with pytest.raises(unigemm.ShapeMismatch, match="matrix of one row or column"):
        autotune(stopwatch, ones((16,)), ones((16, 8)), alpha=2.0)
    scales = {"scale_a": spec((32, 4), "float8_e8m0fnu"), "scale_b": spec((4, 8), "float8_e8m0fnu")}
    with pytest.raises(unigemm.UnsupportedProblem, match="of 16 or 32 elements"):
        autotune(stopwatch, ones((32, 128), kind), ones((128, 8), kind), **scales)
    assert not stopwatch.launched
