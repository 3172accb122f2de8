"""Plant each mutant in a copy of the tree, and tell which test finds it and after how many seconds.

python tests/mutants/run.py                    all of them, one after the other
python tests/mutants/run.py NAME ...           those whose names contain one of the words
python tests/mutants/run.py --list             what there is
python tests/mutants/run.py NAME --by "a_test.py -k word"    other tests than those it names
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
from dataclasses import dataclass
from pathlib import Path

from catalogue import MUTANTS
from planting import ROOT, Mutant


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


def tried(mutant: Mutant, tree: Path, tests: list[str]) -> Verdict:
    """Plant a mutant in the tree, run tests until one fails, and take it out again."""
    path = tree / mutant.path
    sound = path.read_bytes()
    path.write_text(mutant.planted(), encoding="utf-8")
    began = time.monotonic()
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    finally:
        path.write_bytes(sound)
    seconds = time.monotonic() - began
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    if run.returncode == 0:
        return Verdict(mutant, None, seconds)
    if failed is None:
        raise RuntimeError(f"{mutant.name}: pytest ran no test\n{run.stdout[-2000:]}{run.stderr}")
    return Verdict(mutant, failed.group(1), seconds)


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
    parser.add_argument("--by", help="arguments of pytest in place of the tests that it names")
    given = parser.parse_args()
    chosen = [
        each
        for each in MUTANTS
        if not given.words or any(word in each.name for word in given.words)
        if given.list or not each.equivalent
    ]
    if given.list or not chosen:
        for each in chosen:
            why = f" (equivalent: {each.equivalent})" if each.equivalent else ""
            print(f"{each.name:40} {each.path}: {each.harm}{why}")
        return 0 if chosen else 2
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="unigemm-mutants-") as folder:
        copied(Path(folder))
        for each in chosen:
            verdicts.append(
                verdict := tried(each, Path(folder), shlex.split(given.by or "") or [*each.tests])
            )
            outcome = verdict.found_by or "SURVIVED"
            print(f"{each.name:40} {verdict.seconds:5.0f} s  {outcome}", flush=True)
    if given.table:
        given.table.write_text(table(verdicts), encoding="utf-8")
    survived = [each.mutant.name for each in verdicts if each.found_by is None]
    print(f"{len(verdicts) - len(survived)} of {len(verdicts)} found", *survived)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
