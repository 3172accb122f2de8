"""What the pages of the site show of the examples' output."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import unigemm

ROOT = Path(unigemm.__file__).parent.parent
OUTPUTS = ROOT / "docs" / "site" / "outputs"

#: What another fit of the cost model changes, and other hosts.
_CHANGING = {
    r"\d+": "0",
    r"limited by \w+": "limited by something",
    r"\b(cute_simt|cute_wgmma|cute_tcgen05|cutile)\b": "backend",
    r" +": " ",
}


def check_output(path, output):
    """Check that an example prints what its page shows, but for numbers and what is picked."""
    if unigemm.capabilities().devices:
        return  # the pages show what is printed where there is no GPU
    shown = OUTPUTS / f"{path.stem}.txt"
    same = masked(output) == masked(shown.read_text())
    command = f"python examples/{path.name} > {shown.relative_to(ROOT)}"
    assert same, f"{command}  brings the page up to date; the example prints\n{output}"


def tabs(page):
    """Return the code and the output of each tab of a page."""
    found = {}
    for part in re.split(r"^=== ", page.read_text(), flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        inside = textwrap.dedent("".join(re.findall(r"^(?:    .*)?\n", rest, re.MULTILINE)))
        code, output = (
            re.search(rf"^```{kind}\n(.*?)^```$", inside, re.MULTILINE | re.DOTALL)[1]
            for kind in ("python", "text")
        )
        found[name.strip('"')] = code, output
    return found


def masked(output):
    for pattern, shown in _CHANGING.items():
        output = re.sub(pattern, shown, output)
    return output
