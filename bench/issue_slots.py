"""Where the issue slots of a float32 kernel go: ``python -m bench.issue_slots 4096 4096 4096``.

Compiles what the planner picks of `cute_simt`, or all tiles that it offers (``--all``), and counts
in the main loop's SASS what costs an H200 more than one slot
(docs/lab-notes/2026-11-21-float32-issue-slots.md): FMAs that read three registers, and those whose
two reads are both of even or both of odd ones. An operand that the FMA before has marked
``.reuse`` is not read again. Needs no GPU.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import unigemm
from bench.command import command
from unigemm.backends.cute_simt.schedules import FEW_ROWS
from unigemm.cache.sass import disassemble
from unigemm.planning.plan import Plan

_KERNEL = re.compile(r"^\s*Function : .*$", re.MULTILINE)
_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;")
_BRANCH = re.compile(r"^BRA\S*\s.*?0x([0-9a-f]+)")
_REGISTER = re.compile(r"^-?R(\d+)(\.reuse)?$")
_KEEPS = ("LDS", "LDGSTS")  # what does not clear the operands that are kept


@dataclass(frozen=True)
class Loop:
    """Counts of a main loop: instructions, FMAs, and those that cost more than a slot."""

    instructions: int
    fmas: int
    three_reads: int
    same_parity: int

    @property
    def share(self) -> float:
        """FMAs a slot: a third read costs one more, two of the same parity some 0.6."""
        slots = self.instructions + self.three_reads + 0.6 * self.same_parity
        return self.fmas / slots


def main_loop(sass: str) -> list[str]:
    """Return the instructions of the loop with the most FMAs: of several the innermost one."""
    found = [loop for kernel in _KERNEL.split(sass) for loop in _loops(kernel)]
    return max(found, key=lambda each: (sum(text.startswith("FFMA") for text in each), -len(each)))


def _loops(kernel: str) -> Iterator[list[str]]:
    """Yield the instructions of each loop of a kernel; addresses of another are others."""
    lines = [(int(m[1], 16), m[2]) for m in map(_LINE.match, kernel.splitlines()) if m]
    for last, branch in lines:
        target = _BRANCH.match(branch)
        if target and int(target[1], 16) < last:
            yield [text for at, text in lines if int(target[1], 16) <= at <= last]


def reads(loop: list[str]) -> Iterator[list[int]]:
    """Yield the registers that each FMA reads."""
    kept: dict[int, int] = {}
    for text in loop:
        name, *rest = text.split(None, 1)
        if not name.startswith("FFMA"):
            kept = kept if name.split(".")[0] in _KEEPS else {}
            continue
        operands = [_REGISTER.match(x.strip()) for x in rest[0].split(",")[1:4]]
        found = {slot: m for slot, m in enumerate(operands) if m}
        yield [int(m[1]) for slot, m in found.items() if kept.get(slot) != int(m[1])]
        kept = {slot: int(m[1]) for slot, m in found.items() if m[2]}


def counted(plan: Plan) -> Loop:
    """Compile a plan and count its main loop."""
    entry = unigemm.compile(plan).entry
    loop = main_loop(disassemble(entry.read()["kernel.cubin"]))
    each = list(reads(loop))
    same = sum(len(r) == 2 and (r[0] - r[1]) % 2 == 0 for r in each)
    return Loop(len(loop), len(each), sum(len(r) == 3 for r in each), same)


def main() -> None:
    """Count what the options name."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("m", "n", "k"):
        parser.add_argument(name, type=int, metavar=name.upper())
    parser.add_argument("--layout", default="nn")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--all", action="store_true", help="every tile, not only the pick")
    args = parser.parse_args()
    m, n, k = args.m, args.n, args.k
    a, b = (
        unigemm.ArraySpec(shape, "float32", "C" if letter == "n" else "F")
        for shape, letter in zip(((m, k), (k, n)), args.layout, strict=True)
    )
    pick = unigemm.plan(a, b, backend="cute_simt", target=args.target, tuned=False)
    configs = [pick.config]
    if args.all:
        from unigemm.backends.cute_simt.candidates import base_configs

        configs += base_configs(pick.problem, pick.target)
    for config in dict.fromkeys(configs):
        if config.schedule in FEW_ROWS:
            print(f"{config}: not a loop of tiles")
            continue
        loop = counted(replace(pick, config=config))
        print(
            f"{config}: {loop.instructions} instructions, {loop.fmas} FMAs, {loop.three_reads} of "
            f"three reads, {loop.same_parity} of the same parity: {loop.share:.3f} a slot"
        )


if __name__ == "__main__":
    command(main)
