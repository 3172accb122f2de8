"""What the pages of the site show of the examples' output."""

from __future__ import annotations

import re
from pathlib import Path

import unigemm

ROOT = Path(unigemm.__file__).parent.parent
OUTPUTS = ROOT / "docs" / "site" / "outputs"


def check_output(path, output):
    """Check that an example prints what its page shows, but for the numbers."""
    if unigemm.capabilities().devices:
        return  # the pages show what is printed where there is no GPU
    shown = OUTPUTS / f"{path.stem}.txt"
    same = re.sub(r"\d+", "0", output) == re.sub(r"\d+", "0", shown.read_text())
    command = f"python examples/{path.name} > {shown.relative_to(ROOT)}"
    assert same, f"{command}  brings the page up to date; the example prints\n{output}"
