"""The pages in docs/ name files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import unigemm

ROOT = Path(unigemm.__file__).parent.parent
PAGES = sorted(
    page for under in (".", "guide", "reference") for page in (ROOT / "docs" / under).glob("*.md")
)
pytestmark = pytest.mark.skipif(not PAGES, reason="installed without its pages")


def named(page):
    """Return the paths from the top of the tree that a page names; `*` stands for any name."""
    code = re.findall(r"`([^`\s]+)`", page.read_text())
    tops = ("unigemm/", "backends/", "tests/", "bench/", "docs/")
    return sorted({each for each in code if each.startswith(tops)})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_paths_that_pages_name_are_there(page):
    assert [path for path in named(page) if not any(ROOT.glob(path.rstrip("/")))] == []


def test_a_backend_of_each_kind_has_the_files_of_all():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("the same files for the same jobs") : page.index("## The way of one")]
    names = re.findall(r"`(\w+(?:\.py|/))`", table)
    assert len(names) == 7
    for backend in ("cute_simt", "cute_wgmma", "cute_tcgen05", "cutile"):
        folder = ROOT / "backends" / backend
        assert [name for name in names if not (folder / name).exists()] == [], backend


def test_the_architecture_can_be_read_at_one_sitting():
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) < 200


def test_the_walk_finds_the_paths_that_the_architecture_names():
    found = named(ROOT / "docs" / "architecture.md")
    assert "backends/*/legality.py" in found
    assert "unigemm/planning/planner.py" in found
    assert len(found) > 30
