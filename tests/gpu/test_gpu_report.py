"""`unigemm report` on a CUDA device: picks are timed beside cuBLAS, and right."""

from __future__ import annotations

import pytest

from unigemm.tuning.report import report_of
from unigemm.tuning.report_page import page

pytestmark = pytest.mark.gpu

PRODUCTS = [
    {"m": 512, "n": 256, "k": 1024, "dtype": "float32"},
    {"m": 16, "n": 2048, "k": 2048, "dtype": "bfloat16", "layout": "nt"},
    {"m": 512, "n": 256, "k": 1024, "dtype": "bfloat16", "layout": "nt", "epilogue": "bias,gelu"},
    {"m": 512, "n": 256, "k": 1024, "dtype": "float8_e4m3fn", "layout": "nt", "scale_a": "row",
     "scale_b": "column", "out_dtype": "bfloat16"},
    {"m": 512, "n": 256, "k": 512, "dtype": "bfloat16", "layout": "nt", "groups": 4},
]  # fmt: skip


def test_picks_are_measured_beside_cublas():
    found = report_of(PRODUCTS, budget_ms=5.0)
    assert found.measured
    plain, (relu, scaled, grouped) = found.lines[:2], found.lines[2:]
    assert all(line.ratio and not line.note for line in plain), [line.note for line in plain]
    assert relu.ratio, relu.note
    assert scaled.us, scaled.note
    assert grouped.us, grouped.note
    assert f"{plain[0].ratio:.2f}" in page(found)
