"""A mutant: a small wrong edit of the code, with what it breaks and which tests should find it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: The tree that the edits are for.
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """One edit of one file.

    Attributes
    ----------
    name
        What names it on the command line and in the table.
    path
        The file, from the root of the tree.
    before, after
        A piece of text that stands exactly once in the file, and what replaces it.
    harm
        What a user would see.
    tests
        Arguments of pytest: files or tests, from the root of the tree, and "-k" with words. They
        are run one after the other, the likeliest first; a default run of them must find it.
    equivalent
        Why no test can find it, if it does no harm: then it is not run.
    """

    name: str
    path: str
    before: str
    after: str
    harm: str
    tests: tuple[str, ...] = ()
    equivalent: str = ""

    def planted(self, root: Path = ROOT) -> str:
        """Return the text of the file with the edit in it.

        Raises
        ------
        ValueError
            The text to replace is missing, or stands more than once.
        """
        text = (root / self.path).read_text(encoding="utf-8")
        if (times := text.count(self.before)) != 1:
            raise ValueError(f"{self.name}: {self.before!r} stands {times} times in {self.path}")
        return text.replace(self.before, self.after)
