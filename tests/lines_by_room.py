"""Print how large each room of the code is: python tests/lines_by_room.py [COMMIT to compare with]

Lines are those of the files; statements are counted too, since these stay when lines are joined.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What a call goes through, of which less is better.
CALL_PATH = ("unigemm/api.py", "unigemm/runtime", "unigemm/arrays", "unigemm/torch", "unigemm/jax")


def room_of(path: str) -> str:
    """Return the folder of a module below the package; one in none is a room of its own."""
    first, second, *rest = Path(path).parts
    return f"{first}/{second}" if rest or first == "unigemm" else first


def sizes(sources: dict[str, str]) -> tuple[Counter[str], Counter[str]]:
    """Return the lines and the statements of each room."""
    lines, statements = Counter[str](), Counter[str]()
    for path, source in sources.items():
        lines[room_of(path)] += source.count("\n")
        tree = ast.walk(ast.parse(source))
        statements[room_of(path)] += sum(isinstance(node, ast.stmt) for node in tree)
    return lines, statements


def here() -> dict[str, str]:
    """Return the modules as they are in the folder."""
    paths = (p for folder in ("unigemm", "backends") for p in (ROOT / folder).rglob("*.py"))
    found = {p.relative_to(ROOT): p for p in paths}
    return {str(name): p.read_text() for name, p in found.items() if name.parts[1] != "backends"}


def of_commit(commit: str) -> dict[str, str]:
    """Return the modules as a commit has them."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    names = git("ls-tree", "-r", "--name-only", commit, "unigemm/", "backends/").splitlines()
    return {name: git("show", f"{commit}:{name}") for name in names if name.endswith(".py")}


def table(now: dict[str, str], before: dict[str, str] | None) -> str:
    """Return a line for each room, with what changed."""
    lines, statements = sizes(now)
    old_lines, old_statements = (lines, statements) if before is None else sizes(before)
    rows = [(room, [room]) for room in sorted(lines.keys() | old_lines.keys())]
    rows += [("the call path", list(CALL_PATH)), ("all", [*lines.keys() | old_lines.keys()])]
    text = [f"{'room':28} {'lines':>7} {'change':>7} {'statements':>11} {'change':>7}"]
    for name, rooms in rows:
        counts = [sum(each[room] for room in rooms) for each in (lines, old_lines)]
        counts += [sum(each[room] for room in rooms) for each in (statements, old_statements)]
        after, was, of_all, of_old = counts
        text.append(f"{name:28} {after:7} {after - was:+7} {of_all:11} {of_all - of_old:+7}")
    return "\n".join(text)


if __name__ == "__main__":
    print(table(here(), of_commit(sys.argv[1]) if sys.argv[1:] else None))
