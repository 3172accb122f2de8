"""What the cost model is worth: the shipped one on a card's random launches, and a fit held out."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.measured import DATA, launches
from bench.regret import by_shape, joined, mean, regrets, shipped, tables

#: Mean regret in percent of picks among all backends on an H100's random launches: of the model as
#: it is shipped, which has seen them, and of fits to other sizes of them alone (bench.regret).
SHIPPED = {"bfloat16": 1.9, "float32": 1.2, "tf32": 1.1, "float64": 1.0, "float8_e4m3fn": 0.9}
HELD_OUT = 5.1  # a quarter of the sizes, of all kinds of numbers together
HALF_A_POINT = 0.5


@pytest.fixture(scope="module")
def of_h100():
    return tables(launches([DATA / "h100_models1.jsonl.xz"]))


@pytest.mark.parametrize("kind", SHIPPED)
def test_the_shipped_model_picks_as_well_as_when_it_was_fitted(of_h100, kind):
    of = of_h100[kind]
    found = joined(of, {name: shipped(each, name, kind) for name, each in of.items()})
    assert mean(regrets(found)) < SHIPPED[kind] + HALF_A_POINT


def test_fits_pick_as_well_as_they_did_for_sizes_that_they_have_not_seen(of_h100):
    pytest.importorskip("scipy", reason="the fit extra is not installed")
    found = []
    for of in of_h100.values():
        held_out = {name: by_shape(each, folds=1) for name, each in of.items()}
        found.append(regrets(joined(of, held_out)))
    assert mean(np.concatenate(found)) < HELD_OUT + HALF_A_POINT


def test_a_fit_is_the_same_again(of_h100):
    pytest.importorskip("scipy", reason="the fit extra is not installed")
    of = of_h100["tf32"]["cutile"]
    assert np.array_equal(by_shape(of, folds=1), by_shape(of, folds=1), equal_nan=True)
