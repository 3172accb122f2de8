"""What the emulator's README says that it executes is what it executes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import unigemm.emulator
from unigemm.emulator.core import control
from unigemm.emulator.launch import launching

README = Path(unigemm.emulator.__file__).parent / "README.md"


def told():
    """Return the opcodes of the first table."""
    text = README.read_text()
    table = text[text.index("## What it executes") : text.index("## What it refuses")]
    rows = [line.split("|")[1] for line in table.split("\n") if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def known():
    return {*launching.transfer.INSTRUCTIONS, *control.STOPS}


def begins(name, opcode):
    return opcode == name or opcode.startswith((name + ".", name + "::"))


@pytest.mark.skipif(not README.exists(), reason="installed without its README")
def test_the_table_names_every_instruction_and_no_other():
    names = told()
    assert len(names) == len(set(names)) > 60
    for name in names:
        assert any(begins(name, opcode) for opcode in known()), f"{name} is not executed"
    for opcode in known():
        assert any(begins(name, opcode) for name in names), f"{opcode} is not in the table"
