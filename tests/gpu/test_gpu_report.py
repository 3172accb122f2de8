"""`unigemm report` on a CUDA device: picks are timed beside cuBLAS, and right."""

from __future__ import annotations

import pytest

from unigemm.tuning.report import report_of
from unigemm.tuning.report_page import page

pytestmark = pytest.mark.gpu

PRODUCTS = [
    {"m": 512, "n": 256, "k": 1024, "dtype": "float32"},
    {"m": 16, "n": 2048, "k": 2048, "dtype": "bfloat16", "layout": "nt"},
    {"m": 64, "n": 64, "k": 64, "dtype": "float32", "epilogue": "relu"},
]


def test_picks_are_measured_beside_cublas():
    found = report_of(PRODUCTS, budget_ms=5.0)
    assert found.measured
    *plain, fused = found.lines
    assert all(line.ratio and not line.note for line in plain), [line.note for line in plain]
    assert fused.us is None
    assert f"{plain[0].ratio:.2f}" in page(found)
