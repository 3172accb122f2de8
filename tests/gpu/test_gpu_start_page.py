"""The start page's tab for CuPy prints what it shows, on a device."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_pages import tabs

pytestmark = pytest.mark.gpu


def test_the_start_page_prints_what_it_shows_of_cupy(capsys):
    pytest.importorskip("cupy")
    code, output = tabs(Path(__file__).parents[2] / "docs" / "index.md")["CuPy"]
    exec(compile(code, "index.md", "exec"), {"__name__": "index"})
    assert capsys.readouterr().out == output
