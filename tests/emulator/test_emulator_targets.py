"""What a `.target` lacks is refused: the table is held to the instructions and to ptxas."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest
from emulated import kernel, line_of, run
from target_probes import PROBES, module_of

from unigemm.emulator import PtxError
from unigemm.emulator.core import control
from unigemm.emulator.core.targets import RULES, lacking
from unigemm.emulator.launch import launching
from unigemm.emulator.ptx.parser import parse
from unigemm.emulator.ptx.ptx import Register
from unigemm.planning.target import ARCHITECTURES

TARGETS = (*ARCHITECTURES, "sm_75", "sm_90", "sm_100", "sm_100f", "sm_110f", "sm_120f")


@cache
def instructions():
    """Return each probe's instructions but the last, as the emulator reads them."""
    kernels = parse(module_of("sm_100a", PROBES)).kernels.values()
    return {line: each.body[:-1] for line, each in zip(PROBES, kernels, strict=True)}


def names(line):
    """Return what `lacking` is asked about a probe."""
    for i in instructions()[line]:
        yield f"{i.opcode} {len(i.operands)}"
        yield from (x.name for x in i.operands if isinstance(x, Register) and x.type == "special")


def lacks(target, line):
    return any(lacking(target, name) for name in names(line))


def ptxas():
    """Return the ptxas of this environment, or the system's; None without any."""
    found = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/ptxas"))
    return found[-1] if found else shutil.which("ptxas")


def test_every_instruction_has_a_probe_and_every_probe_is_taken():
    known = {*launching.transfer.INSTRUCTIONS, *control.STOPS}
    opcodes = {i.opcode for body in instructions().values() for i in body}
    assert {name for name in known if not any(f"{x}.".startswith(f"{name}.") for x in opcodes)} == (
        set()
    )
    for line in PROBES:
        target = next(x for x in ("sm_100a", "sm_90a") if not lacks(x, line))
        launching.compiled(module_of(target, (line,)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.pattern)
def test_every_rule_is_of_instructions_and_refuses_some_that_no_other_rule_does(rule):
    needed = {
        target
        for line in PROBES
        for name in names(line)
        if re.match(rule.pattern, name)
        for target in TARGETS
        if lacking(target, name) == rule.words
    }
    assert needed
    if isinstance(rule.needs, int):
        assert all(int(re.search(r"\d+", target)[0]) < rule.needs for target in needed)
    else:
        assert needed.isdisjoint(rule.needs)


@pytest.mark.parametrize("target", TARGETS)
def test_each_instruction_is_refused_for_the_targets_for_which_ptxas_refuses_it(target, tmp_path):
    program = ptxas()
    if program is None:
        pytest.skip("ptxas is not installed")
    text = module_of(target, PROBES)
    (tmp_path / "k.ptx").write_text(text)
    command = [program, f"-arch={target}", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if "is not defined for option" in said.stderr:
        pytest.skip(f"this ptxas does not know {target}")
    lines = {int(n) for n in re.findall(r"line (\d+); error", said.stderr)}
    refused = {line for n, line in enumerate(PROBES, 4) if n in lines}
    assert refused or said.returncode == 0, said.stderr
    assert {line for line in PROBES if lacks(target, line)} == refused


@pytest.mark.parametrize(
    ("target", "line", "needs"),
    [
        ("sm_80", "griddepcontrol.wait;", "sm_90 or a newer one"),
        ("sm_80", "griddepcontrol.launch_dependents;", "sm_90 or a newer one"),
        ("sm_80", "tcgen05.fence::before_thread_sync;", "sm_100a or sm_100f"),
        ("sm_90", "wgmma.fence.sync.aligned;", "needs sm_90a "),
        ("sm_100a", "wgmma.fence.sync.aligned;", "needs sm_90a "),
        ("sm_89", "mov.u32 %r1, %cluster_ctarank;", "sm_90 or a newer one"),
        ("sm_80", "@%p1 elect.sync %r1|%p2, -1;", "sm_90 or a newer one"),
        ("sm_75", "cp.async.commit_group;", "sm_80 or a newer one"),
    ],
)
def test_the_error_names_the_line_the_target_and_what_is_needed(target, line, needs):
    text = kernel(f"\nbra skip;\n{line}\nskip:", params=()).replace("sm_90a", target)
    with pytest.raises(PtxError, match=f"the target {target} has no such .*{needs}") as error:
        run(text)
    assert error.value.line == line_of(text, line)
    assert "PTX ISA" in str(error.value)
