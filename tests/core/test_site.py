"""The site: it builds without a warning, fetches nothing, has no dead link, and its code runs."""

from __future__ import annotations

import ast
import html
import inspect
import json
import os
import posixpath
import re
import subprocess
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from urllib.parse import unquote, urlsplit

import pytest
from example_pages import OUTPUTS, check_output, masked, tabs
from processes import output_of

import unigemm

ROOT = Path(unigemm.__file__).parent.parent
DOCS = ROOT / "docs"
GUIDE = sorted((DOCS / "guide").glob("*.md"))
RUN = [*GUIDE, *(DOCS / f"{name}.md" for name in ("coming-from", "ladder", "questions"))]
EXAMPLES = sorted(
    path
    for path in (ROOT / "examples").glob("*.py")
    if not path.stem.startswith(("torch_", "jax_"))  # tests/frameworks runs these
)
pytestmark = pytest.mark.skipif(not GUIDE, reason="installed without its pages")


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks(page)), page.name, "exec"), {"__name__": page.stem})


def test_the_start_page_prints_what_it_shows(capsys):
    code, output = tabs(DOCS / "index.md")["NumPy"]
    exec(compile(code, "index.md", "exec"), {"__name__": "index"})
    assert capsys.readouterr().out == output


def test_the_start_page_has_a_tab_for_each_library():
    assert [*tabs(DOCS / "index.md")] == ["PyTorch", "NumPy", "CuPy", "JAX"]


@pytest.mark.parametrize("page", ["index.md", "guide/quick-start.md"])
def test_the_first_install_of_a_page_is_from_a_clone_and_can_be_copied(page):
    lines = [line.strip() for line in (DOCS / page).read_text().splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("pip install"))
    assert lines[first - 1].startswith("git clone")
    assert lines[first] == 'pip install -e ".[all]"'  # a name needs an index that has it


@pytest.mark.parametrize("page", ["index.md", "guide/quick-start.md"])
def test_a_page_shows_the_plan_that_the_command_prints(page):
    text = (DOCS / page).read_text()
    words = re.search(r"unigemm (plan 4096 [^`\n]+)", text)[1].split()
    found = output_of("-m", "unigemm", *words, PYTHONPATH=ROOT, UNIGEMM_TUNING=os.devnull)
    shown = next(x for x in re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S) if "->" in x)
    printed = masked(found)
    assert [line for line in shown.splitlines() if masked(line) not in printed] == []
    told, now = (float(re.search(r"([\d.]+) us$", x, re.M)[1]) for x in (shown, found))
    assert told == pytest.approx(now, rel=0.1)


#: Characters of code that a window of 1280 pixels shows between navigation and contents.
SHOWN = 80
#: The start page has neither beside it; the ladder shows code of the tree.
WIDER = {"index.md", "ladder.md"}


@pytest.mark.parametrize(
    "page", [x for x in [*DOCS.glob("*.md"), *GUIDE] if x.name not in WIDER], ids=lambda x: x.stem
)
def test_a_comment_in_code_is_not_cut(page):
    shown = "\n".join(re.findall(r"^ *```py(?:thon)?\n(.*?)^ *```$", page.read_text(), re.M | re.S))
    assert [x for x in shown.splitlines() if "# " in x and len(x) > SHOWN] == []


def test_the_guide_has_python_to_run():
    assert sum(len(blocks(page)) for page in GUIDE) > 20


def test_every_public_name_has_its_place_in_the_reference():
    pages = [page.read_text() for page in (DOCS / "reference").glob("*.md")]
    named = re.findall(r"^::: unigemm\.(\w+)$", "\n".join(pages), re.MULTILINE)
    assert sorted(named) == sorted(unigemm.__all__)


@pytest.mark.parametrize("room", ["unigemm/torch", "unigemm/jax", "unigemm/emulator"])
def test_the_names_of_a_room_that_is_imported_by_name_are_there_too(room):
    text = (ROOT / room / "__init__.py").read_text()
    public = re.findall(r'"(\w+)"', text[text.index("__all__") :])
    page = "emulator" if room.endswith("emulator") else "frameworks"
    reference = (DOCS / "reference" / f"{page}.md").read_text()
    where = room.replace("/", ".")
    assert [name for name in public if f"::: {where}.{name}\n" not in reference] == []


@pytest.mark.parametrize("name", unigemm.__all__)
def test_a_power_in_a_docstring_is_code_and_not_bold_type(name):
    text = re.sub(r"``.*?``", "", inspect.getdoc(getattr(unigemm, name)) or "")
    assert re.findall(r"\d\*\*\S+", text) == []


# -- examples --------------------------------------------------------------------------------------

#: What compiles a kernel, and what it needs for that.
COMPILING = {"absent_gpu", "batch_invariance", "tune_and_bundle"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_its_page_shows(path, tmp_path):
    if path.stem in COMPILING:
        pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    check_output(path, output_of(path, cwd=tmp_path, PYTHONPATH=ROOT))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda x: x.stem)
def test_an_example_says_which_extra_brings_what_it_imports(path):
    tree = ast.parse(path.read_text())
    imported = {x.name for each in tree.body if isinstance(each, ast.Import) for x in each.names}
    for library in sorted({name.partition(".")[0] for name in imported} & {"torch", "jax"}):
        assert f'pip install "unigemm[{library}]"' in ast.get_docstring(tree)


def test_each_example_has_output_for_its_page():
    assert {path.stem for path in OUTPUTS.glob("*.txt")} == {
        path.stem for path in (ROOT / "examples").glob("*.py")
    }
    assert len(EXAMPLES) >= 9


def test_a_card_of_the_gallery_says_what_the_example_does(site):
    text = (site[0] / "examples.html").read_text()
    inside = text.partition('class="grid cards"')[2].partition("<footer")[0]
    cards = inside.split('<a href="examples/')[1:]
    assert len(cards) >= 20
    for card in cards:
        first = re.search(r"</p>\s*<p>(.*?)</p>", card.partition("<pre")[0], re.DOTALL)[1]
        assert re.match(r"[A-Z<]", first), first
        assert not re.match(r"(It|These) needs? |.*torchrun", first), first


# -- the pages -------------------------------------------------------------------------------------


class Links(HTMLParser):
    """The anchors of a page, where it leads, and what a browser fetches for it."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.leads, self.fetched = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = {name: value for name, value in attrs if value is not None}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.leads.add(given["href"])
        if tag == "link" and "href" in given:
            self.fetched.add(given["href"])
        if "src" in given:
            self.fetched.add(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if find_spec("material") is None or find_spec("mkdocstrings") is None:
        if os.environ.get("CI") == "true":
            pytest.fail('the pages cannot be built; pip install "unigemm[docs]"')
        pytest.skip('mkdocs is not installed; pip install "unigemm[docs]"')
    folder = tmp_path_factory.mktemp("site")
    config = ["--config-file", str(DOCS / "site" / "mkdocs.yml"), "--site-dir", str(folder)]
    output_of("-m", "mkdocs", "build", "--strict", *config, NO_MKDOCS_2_WARNING=1)
    pages = {
        path.relative_to(folder).as_posix(): Links(path.read_text())
        for path in folder.rglob("*.html")
    }
    return folder, pages


def test_no_link_inside_the_site_is_dead(site):
    folder, pages = site
    dead = []
    for name, page in pages.items():
        for link in page.leads | page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            base = "" if link.startswith("/") else posixpath.dirname(name)
            path = posixpath.normpath(posixpath.join(base, unquote(parts.path).lstrip("/")))
            target = name if not parts.path else path
            if (folder / target).is_dir():
                target = posixpath.normpath(f"{target}/index.html")
            anchor = unquote(parts.fragment)
            if not (folder / target).is_file():
                dead.append(f"{name}: {link}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                dead.append(f"{name}: {link} has no such anchor")
    assert dead == []
    assert len(pages) > 60


def test_what_is_printed_is_told_from_code_and_wrapped(site):
    folder, _ = site
    assert 'class="language-text highlight"' in (folder / "guide" / "quick-start.html").read_text()
    style = (folder / "assets" / "site.css").read_text()
    assert re.search(r"\.language-text pre > code \{\s*white-space: pre-wrap", style)
    assert "white-space: pre;" not in style
    narrow = style.partition("@media screen and (max-width: 44.984375em)")[2]
    assert re.search(r"\.md-code__nav \{\s*display: none", narrow)  # it would lie on the code


def test_a_theme_is_that_of_the_system_until_one_is_chosen(site):
    text = (site[0] / "index.html").read_text()
    medias = re.findall(r'data-md-color-media="([^"]*)"', text)
    assert medias[0] == "(prefers-color-scheme)"
    assert len(medias) == 3


def test_a_page_says_of_what_date_and_version_the_report_is_that_it_links():
    linked = [
        part
        for page in DOCS.rglob("*.md")
        for part in page.read_text().split("\n\n")
        if "report-h100.html" in part
    ]
    assert linked
    for part in linked:
        assert re.search(r"\b20\d\d-\d\d-\d\d\b.*\b\d+\.\d+\.\d+\b", part), part


def test_a_page_fetches_nothing_from_elsewhere(site):
    folder, pages = site
    outside = {f"{n}: {x}" for n, page in pages.items() for x in page.fetched if urlsplit(x).netloc}
    for sheet in folder.rglob("*.css"):
        fetched = re.findall(
            r"(?:url\(|@import\s)['\"]?((?:https?:)?//[^'\")\s]+)", sheet.read_text()
        )
        outside.update(f"{sheet.name}: {link}" for link in fetched)
    assert outside == set()


def test_names_of_the_reference_have_anchors_and_examples_pages(site):
    _, pages = site
    found = set().union(*(p.anchors for n, p in pages.items() if n.startswith("reference/")))
    assert {f"unigemm.{name}" for name in unigemm.__all__} - found == set()
    assert {f"examples/{path.stem}.html" for path in EXAMPLES} - {*pages} == set()


def test_every_argument_has_a_type_in_the_reference(site):
    folder, _ = site
    text = (folder / "reference" / "matmul.html").read_text()
    shown = re.sub(r"<[^>]+>", "", text[text.index('id="unigemm.matmul"') :])
    for name, each in inspect.signature(unigemm.matmul).parameters.items():
        assert re.search(rf"\b{name}: \w", shown) or each.kind is each.VAR_KEYWORD, name
    functions = [f for name in unigemm.__all__ if inspect.isfunction(f := getattr(unigemm, name))]
    lacking = [
        (function.__name__, name)
        for function in functions
        for name, each in inspect.signature(function).parameters.items()
        if each.annotation is each.empty
    ]
    assert lacking == []
    assert len(functions) > 10


def shown_parameters(site, function):
    """Return what the reference says of each parameter of a function."""
    folder, _ = site
    anchor = f'id="unigemm.{function.__name__}"'
    page = next(x for x in (folder / "reference").glob("*.html") if anchor in x.read_text())
    text = page.read_text().partition(anchor)[2]
    text = re.split(r'<h2 id="unigemm\.', text)[0]
    found = re.findall(r"<li[^>]*>\s*<b><code>\**(\w+)</code></b>(.*?)</li>", text, re.DOTALL)
    return {n: " ".join(html.unescape(re.sub(r"<[^>]+>", "", said)).split()) for n, said in found}


def test_a_default_in_the_reference_is_that_of_the_code(site):
    functions = [f for name in unigemm.__all__ if inspect.isfunction(f := getattr(unigemm, name))]
    told = 0
    for function in functions:
        for name, said in shown_parameters(site, function).items():
            default = re.search(r"^\(.*?, default: (.+?) ?\)", said)
            if default is not None:
                own = inspect.signature(function).parameters[name].default
                shown = default[1].strip("'\"")
                # A name of a constant stands for what it holds.
                assert shown == str(own) or shown.isupper(), (function.__name__, name)
                told += 1
    assert told > 30


def test_no_two_parameters_of_a_function_repeat_a_text(site):
    for function in (unigemm.matmul, unigemm.grouped_matmul, unigemm.quantize):
        texts = [x.partition("\N{EN DASH}")[2] for x in shown_parameters(site, function).values()]
        assert len(texts) > 2
        assert [x for x in texts if len(x) > 40 and texts.count(x) > 1] == []
    said = shown_parameters(site, unigemm.matmul)
    assert said["scale_b"].endswith("Described with scale_a.")


SOUGHT = {
    "tf32": "guide/precision.html",
    "float8": "guide/precision.html",
    "graph": "guide/streams.html",
    "out": "guide/arrays.html",
    "bias": "epilogues.html",
}
RECORDS = ("lab-notes/", "measurements.html", "changelog.html")


def test_a_search_finds_the_guide_before_the_lab_notes(site):
    folder, _ = site
    index = json.loads((folder / "search" / "search_index.json").read_text())["docs"]
    boosts = {each["location"]: each.get("boost", 1) for each in index}
    notes = [boost for page, boost in boosts.items() if page.startswith("lab-notes/")]
    assert len(notes) > 30
    assert max(notes) < 1e-3  # even where the word is in a heading, which counts 1000 times
    assert {boost for page, boost in boosts.items() if page.startswith("guide/")} == {1}
    found = {each["location"]: each["tags"] for each in index if "tags" in each}
    for word, page in SOUGHT.items():
        assert word in found[page]


def test_pages_opened_from_a_folder_can_be_searched(site):
    folder, _ = site
    start = (folder / "index.html").read_text()
    assert '<script src="assets/iframe-worker.js">' in start  # files may start no worker
    assert (folder / "assets" / "iframe-worker.js").is_file()
    assert (folder / "search" / "search_index.js").read_text().startswith("var __index = {")


@pytest.mark.parametrize("word", SOUGHT)
@pytest.mark.sample(2)
def test_a_browser_finds_a_word_in_the_guide_first(site, word, tmp_path):
    browser = which("chromium") or which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    how = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    folder, _ = site
    start = f"{(folder / 'index.html').as_uri()}?q={word}"
    done = subprocess.run(
        [browser, *how, "--virtual-time-budget=20000", "--dump-dom", start],
        capture_output=True,
        text=True,
        check=True,
    )
    links = re.findall(r'<a href="([^"#]*)" class="md-search-result__link"', done.stdout)
    pages = [urlsplit(link).path.removeprefix(f"{folder}/") for link in links]
    assert len(pages) > 5
    assert pages[0] == SOUGHT[word]
    assert "reference/matmul.html" in pages
    records = [i for i, page in enumerate(pages) if page.startswith(RECORDS)]
    assert min(records, default=len(pages)) + len(records) == len(pages)  # behind all others


# -- pictures --------------------------------------------------------------------------------------

PICTURES = sorted(DOCS.glob("*.svg"))
TELEPHONE, WIDE, MOVED = 358, 420, 688  # pixels of text at 390; see docs/site/hooks.py and site.css


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_fits_both_themes_and_can_be_read_on_a_telephone(path):
    svg = path.read_text()
    assert re.search(r'<svg [^>]*color="#767676"', svg)  # where it stands alone, as on GitHub
    assert "currentColor" in svg
    assert not re.search(r"#000\b|#000000|fill: #ffffff; opacity|<rect[^>]*#ffffff", svg)
    width = float(re.search(r'viewBox="0 0 (\S+)', svg)[1])
    sizes = [float(x) for x in re.findall(r'font(?:-size)?(?:: |=")([\d.]+)', svg)]
    shown = TELEPHONE if width <= WIDE else MOVED
    assert len(sizes) > 3
    assert min(sizes) * shown / width >= 11


def test_pictures_are_parts_of_their_pages(site):
    folder, pages = site
    shown = {
        name for name, page in pages.items() if 'class="picture' in (folder / name).read_text()
    }
    assert {"architecture.html", "performance.html"} <= shown
    assert [x for page in pages.values() for x in page.fetched if x.endswith(".svg")] == []
