"""The examples of frameworks run, and so does the code of the pages about them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from example_pages import check_output, tabs
from many_processes import free_port
from needed import needed
from processes import output_of

needed("torch")
needed("jax")

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(x for kind in ("torch", "jax") for x in (ROOT / "examples").glob(f"{kind}_*.py"))
PAGES = ["pytorch", "jax", "many-gpus"]
ALSO = ["guide/precision"]  # its code needs neither, and is run by test_docs
pytestmark = [
    pytest.mark.skipif(not EXAMPLES, reason="installed without its examples"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, capsys):
    if "many" not in path.stem:
        runpy.run_path(str(path), run_name="__main__")
        check_output(path, capsys.readouterr().out)
        return
    # What starts processes, or wants devices that JAX has not made here.
    check_output(path, output_of(path, free_port()))


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 2
    exec(compile("\n".join(blocks), f"{page}.md", "exec"), {"__name__": page})


@pytest.mark.parametrize("library", ["PyTorch", "JAX"])
def test_the_start_page_prints_what_it_shows(library, capsys):
    code, output = tabs(ROOT / "docs" / "index.md")[library]
    exec(compile(code, "index.md", "exec"), {"__name__": "index"})
    assert capsys.readouterr().out == output


def test_every_example_is_named_by_a_page():
    text = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in PAGES + ALSO)
    assert [path.name for path in EXAMPLES if f"examples/{path.name}" not in text] == []
    assert len(EXAMPLES) == 11
