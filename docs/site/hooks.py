"""What mkdocs cannot do by its configuration: pages and links outside docs/.

The README, the changelog and others stay where people who read the tree look for them. Here they
become pages, as each example does, and links between all of them are turned into links of the site.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
#: Files of the tree outside docs/, and the pages that show them or say the same.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "benchmarks.md",
    "bench/NOTES.md": "measurements.md",
    "unigemm/emulator/README.md": "emulator-coverage.md",
}
ELSEWHERE = {
    "README.md": "index.md",
    "examples": "examples.md",
    "unigemm/planning/backend.py": "reference/backend.md",
}
#: Files that are no pages of the site, and where it has them.
ASSETS = {"docs/site/report-h100.html": "assets/report-h100.html"}
#: Examples that come before the others.
FIRST = (
    *("numpy_drop_in", "attention_scores", "lora_layer", "own_epilogue", "reading_a_plan"),
    *("plan_read_aloud", "backend_by_name", "batch_invariance", "torch_float8_layers", "mxfp8"),
)
#: What users look for, where its page has another word in its headings.
SOUGHT = {
    "guide/precision.md": "tf32 3xtf32 float8 fp8 int8 mxfp8 nvfp4 scale accuracy",
    "guide/streams.md": "graph cudagraph stream capture workspace latency",
    "guide/arrays.md": "out dtype strides transpose einsum complex broadcast",
    "epilogues.md": "bias activation gelu relu silu swiglu alpha beta fused",
    "guide/determinism.md": "deterministic reproducible invariant",
    "guide/cache.md": "bundle ship warmup offline compile",
    "guide/tuning.md": "autotune tune slow",
    "guide/grouped.md": "moe experts ragged grouped",
    "many-gpus.md": "multigpu distributed dtensor nccl",
    "questions.md": "windows macos first slow memory",
    "reference/matmul.md": "matmul out bias precision",
}
SHOWN = 5  # lines of output in the gallery
#: Pages of what was once measured or changed: a search finds the guide and the reference first.
RECORDS = ("lab-notes/", "measurements.md", "changelog.md")
BEHIND = 1e-5  # their boost: a word in a heading counts a thousand times as much as one in a text
OUTPUTS = ROOT / "docs" / "site" / "outputs"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)((?:#[^)]*)?)\)")
PICTURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<src>[^":]+\.svg)" ?/?>')
#: Pictures wider than that are not made smaller on telephones: there they can be moved.
WIDE = 420
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def examples() -> list[Path]:
    """Return the example files: the first ones, the others, those of frameworks."""

    def rank(path: Path) -> tuple[int, bool, str]:
        first = FIRST.index(path.stem) if path.stem in FIRST else len(FIRST)
        return first, path.stem.startswith(("torch_", "jax_")), path.stem

    return sorted((ROOT / "examples").glob("*.py"), key=rank)


def example_page(path: Path) -> str:
    """Return the page of one example: what it says of itself, its code and its output."""
    text = path.read_text()
    tree = ast.parse(text)
    said = ast.get_docstring(tree) or path.stem
    code = "".join(text.splitlines(keepends=True)[tree.body[0].end_lineno or 0 :]).strip("\n")
    title, _, more = said.partition("\n")
    lines = [f"# {title.rstrip('.')}", more.strip("\n"), f"`python examples/{path.name}`"]
    lines.append(f"```python\n{code}\n```")
    output = OUTPUTS / f"{path.stem}.txt"
    if output.exists():
        lines.append(f"It prints, where there is no GPU:\n\n```text\n{output.read_text()}```")
    return "\n\n".join(lines) + "\n"


def gallery() -> str:
    """Return the page that shows every example with the first lines of its output."""
    cards = []
    for path in examples():
        title, _, more = (ast.get_docstring(ast.parse(path.read_text())) or path.stem).partition(
            "\n"
        )
        first = more.strip().partition("\n\n")[0].replace("\n", " ")
        lines = (OUTPUTS / f"{path.stem}.txt").read_text().splitlines()
        shown = [*lines[:SHOWN], *(["..."] if len(lines) > SHOWN else [])]
        card = [f"[**{title.rstrip('.')}**](examples/{path.stem}.md)", first]
        card.append("\n".join(("```text", *shown, "```")))
        text = "\n\n".join(each for each in card if each)
        cards.append("-   " + text.replace("\n", "\n    "))
    head = (
        "Single files that run on a CPU and on a GPU, each with what it prints where there is none."
    )
    listed = "\n\n".join(cards)
    return f'# Examples\n\n{head}\n\n<div class="grid cards" markdown>\n\n{listed}\n\n</div>\n'


def on_config(config: Any) -> Any:
    """List the examples and the notes in the navigation."""
    config.watch.extend(str(ROOT / name) for name in (*PAGES, "examples", "unigemm"))
    tabs = {name: entries for each in config.nav for name, entries in each.items()}
    tabs["Examples"].append("examples.md")
    tabs["Examples"].extend(f"examples/{path.stem}.md" for path in examples())
    notes = sorted((ROOT / "docs" / "lab-notes").glob("2*.md"), reverse=True)
    inner = next(each for each in tabs["Measured"] if isinstance(each, dict))["Lab notes"]
    inner.append("lab-notes/README.md")
    inner.extend(f"lab-notes/{path.name}" for path in notes)
    inner.append("lab-notes/changelog-history.md")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for source, asset in ASSETS.items():
        files.append(File.generated(config, asset, content=(ROOT / source).read_text()))
    for asset in ("site.css", "iframe-worker.js"):
        content = (ROOT / "docs" / "site" / asset).read_text()
        files.append(File.generated(config, f"assets/{asset}", content=content))
    files.append(File.generated(config, "examples.md", content=gallery()))
    for path in examples():
        page = f"examples/{path.stem}.md"
        files.append(File.generated(config, page, content=example_page(path)))
    return files


def page_of(path: str) -> str | None:
    """Return the page that shows a file of the tree; None if none does."""
    if path in PAGES or path in ELSEWHERE:
        return PAGES.get(path) or ELSEWHERE[path]
    if path.startswith("examples/"):
        return path.removesuffix(".py") + ".md"
    inside = path.removeprefix("docs/")
    return inside if inside != path and Path(path).suffix in (".md", ".svg") else None


def on_page_content(html: str, page: Page, config: Any, **_: Any) -> str:
    """Put pictures into the page, where black ones take the colour of its text."""

    def inside(found: re.Match[str]) -> str:
        source = posixpath.join(posixpath.dirname(page.file.src_uri), found["src"])
        svg = (ROOT / "docs" / posixpath.normpath(source)).read_text()
        start = svg.index("<svg")
        box = re.search(r'viewBox="[^"]+"', svg)
        if box is None:
            raise ValueError(f"{source} has no viewBox, without which it keeps its size")
        body = re.sub(
            r' id="\w+_\d+"', "", svg[svg.index(">", start) + 1 :]
        )  # of other pictures too
        wide = " wide" if float(box[0].split()[2]) > WIDE else ""
        return (
            f'<div class="picture{wide}"><svg xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} '
            f'role="img" aria-label="{found["alt"]}">{body}</div>'
        )

    return PICTURE.sub(inside, html)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links to files of the tree into links to their pages, or into plain text."""
    if page.file.src_uri.startswith(RECORDS):
        page.meta["search"] = {"boost": BEHIND}
    if page.file.src_uri in SOUGHT:
        page.meta["tags"] = SOUGHT[page.file.src_uri].split()
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]  # there is only itself
    source = next((s for s, p in PAGES.items() if p == page.file.src_uri), None)
    source = source or f"docs/{page.file.src_uri}"

    def mended(found: re.Match[str]) -> str:
        text, link, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        if path in ASSETS:
            there = posixpath.dirname(page.file.src_uri) or "."
            return f"[{text}]({posixpath.relpath(ASSETS[path], there)})"
        if path.startswith("docs/") and source.startswith("docs/"):
            return found[0]  # mkdocs checks these
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{source} links to {link}, which is not there")
        target = page_of(path)
        if target is None:
            return text
        where = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{text}]({where}{anchor})"

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(mended, part) for part in parts)
