"""Plant each mutant in a copy of the tree, and tell which test finds it and after how many seconds.

python tests/mutants/run.py                    all of them, one after the other
python tests/mutants/run.py NAME ...           those whose names contain one of the words
python tests/mutants/run.py --list             what there is
python tests/mutants/run.py NAME --by "a_test.py -k word"    other tests than those it names
python tests/mutants/run.py --jobs 8           eight at a time (seconds are then longer)
python tests/mutants/run.py --table FILE       also writes a Markdown table of the results

Exit code 0: every mutant was found; 1: one survived; 2: nothing was run. Kernels are kept in the
folder of the tests, or in the one that UNIGEMM_CACHE_DIR names.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from catalogue import MUTANTS
from planting import ROOT, Mutant

_LONGEST_S = 900.0
_OPTIONS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant: the test that failed, or None, and the seconds it took."""

    mutant: Mutant
    found_by: str | None
    seconds: float


def copied(into: Path) -> None:
    """Copy the files that git knows, links as links; uncommitted edits come along."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name, follow_symlinks=False)


def failing(tree: Path, arguments: str) -> str | None:
    """Return the first test that fails in the tree, or None."""
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, *shlex.split(arguments)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
        )
    except subprocess.TimeoutExpired:  # threads that wait for each other, most likely
        return f"{arguments} (no end)"
    if run.returncode == 0:
        return None
    if failed := re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", run.stdout, re.MULTILINE):
        return failed.group(1)
    raise RuntimeError(f"pytest ran no test of {arguments}\n{run.stdout[-2000:]}{run.stderr}")


def tried(mutant: Mutant, tree: Path, tests: Sequence[str]) -> Verdict:
    """Plant a mutant in the tree, run tests until one fails, and take it out again."""
    path = tree / mutant.path
    sound = path.read_bytes()
    path.write_text(mutant.planted(), encoding="utf-8")
    began = time.monotonic()
    try:
        found = next(filter(None, (failing(tree, each) for each in tests)), None)
    finally:
        path.write_bytes(sound)
    return Verdict(mutant, found, time.monotonic() - began)


def verdicts_of(chosen: list[Mutant], by: str | None, jobs: int) -> list[Verdict]:
    """Try mutants, some at a time, each in a tree of its own; print a line for each."""
    with tempfile.TemporaryDirectory(prefix="unigemm-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copied(Path(folder, str(number)))
            trees.put(Path(folder, str(number)))

        def one(mutant: Mutant) -> Verdict:
            tree = trees.get()
            try:
                verdict = tried(mutant, tree, [by] if by else mutant.tests)
            finally:
                trees.put(tree)
            outcome = verdict.found_by or "SURVIVED"
            print(f"{mutant.name:40} {verdict.seconds:5.0f} s  {outcome}", flush=True)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, chosen))


def named(words: list[str]) -> list[Mutant]:
    """Return the mutants of these names, or with a word in their names that is the name of none."""
    names = {each.name for each in MUTANTS}
    return [
        each
        for each in MUTANTS
        if not words or any(w == each.name or (w not in names and w in each.name) for w in words)
    ]


def table(verdicts: list[Verdict]) -> str:
    """Return the results as Markdown."""
    rows = ["| mutant | harm | found by | s |", "|---|---|---|---|"]
    for each in verdicts:
        found = f"`{each.found_by}`" if each.found_by else "**survived**"
        rows.append(f"| {each.mutant.name} | {each.mutant.harm} | {found} | {each.seconds:.0f} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Run the mutants that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="parts of names")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--table", type=Path, help="a file that gets the results as Markdown")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: 1)")
    parser.add_argument("--by", help="arguments of pytest in place of the tests that it names")
    given = parser.parse_args()
    chosen = [x for x in named(given.words) if given.list or not x.equivalent]
    if given.list or not chosen:
        for each in chosen:
            why = f" (equivalent: {each.equivalent})" if each.equivalent else ""
            print(f"{each.name:40} {each.path}: {each.harm}{why}")
        return 0 if chosen else 2
    verdicts = verdicts_of(chosen, given.by, given.jobs)
    if given.table:
        given.table.write_text(table(verdicts), encoding="utf-8")
    survived = [each.mutant.name for each in verdicts if each.found_by is None]
    print(f"{len(verdicts) - len(survived)} of {len(verdicts)} found", *survived)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
