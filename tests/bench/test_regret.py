"""What the cost model is worth: the shipped one on a card's drawn launches, and a fit held out."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.fitting import Fitted
from bench.measured import DATA, launches
from bench.regret import by_shape, regrets, tables
from unigemm.backends.common.coefficients import model_of

#: Mean regret in percent, in the file of an H100's drawn launches (bench.regret --shipped).
SHIPPED = {
    "cute_wgmma/bfloat16": 1.4,
    "cute_wgmma/tf32": 0.2,
    "cute_wgmma/float8_e4m3fn": 0.9,
    "cute_simt/float32": 0.7,
    "cute_simt/float64": 1.0,
    "cutile/bfloat16": 1.1,
    "cutile/float8_e4m3fn": 0.1,
}
HALF_A_POINT = 0.5


@pytest.fixture(scope="module")
def of_h100():
    return dict(tables(launches([DATA / "h100_models1.jsonl.xz"])))


def mean(found):
    return 100 * np.expm1(np.log(found).mean())


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_model_picks_as_well_as_when_it_was_fitted(of_h100, name):
    of = of_h100[name]
    model = model_of(*name.split("/"), of.names[0][2])
    us = Fitted(*model[:2]).estimate(of)
    assert mean(regrets(of, us, np.ones(len(of.names), bool))) < SHIPPED[name] + HALF_A_POINT


def test_a_fit_is_judged_by_products_that_it_has_not_seen_and_is_the_same_again(of_h100):
    pytest.importorskip("scipy", reason="the fit extra is not installed")
    of = of_h100["cute_wgmma/float8_e4m3fn"]
    found = by_shape(of, folds=1)
    assert mean(found) < 4.5
    assert (by_shape(of, folds=1) == found).all()
