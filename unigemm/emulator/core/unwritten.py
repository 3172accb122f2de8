"""Registers that nothing wrote: what they hold is not defined, and here it would be 0.

Over the flow of a kernel nearly every read is known to come behind a write. Only the registers of
the other reads are watched while the kernel runs: a predicate says in which lanes they were
written. A ``mov`` of what nothing wrote does no harm, and its result counts as not written; one of
several pieces counts as written where any piece is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ptx.faults import Fault
from ..ptx.flow import block_starts, successors
from ..ptx.ptx import Instruction, Kernel, Vector
from .held import names

__all__ = ["Uses", "watch"]


@dataclass
class Uses:
    """The registers that an instruction reads and writes.

    Attributes
    ----------
    reads
        The slot of a predicate where the register is read only if that holds, else None.
    writes
        The results.
    """

    reads: dict[str, int | None] = field(default_factory=dict)
    writes: set[str] = field(default_factory=set)


def watch(builder: Any, made: list[Any], uses: Sequence[Uses]) -> None:
    """Have operations fail that read what nothing wrote.

    Parameters
    ----------
    builder
        The `Builder` of the kernel.
    made
        The operations of its instructions, of which some are replaced.
    uses
        The registers that these use.
    """
    body = builder.kernel.body
    for i, use in zip(body, uses, strict=True):  # also of what does nothing here: a prefetch, say
        for name in (name for operand in i.operands for name in names(operand)):
            if name not in use.writes:
                use.reads.setdefault(name)
    doubtful = _doubtful_reads(builder.kernel, uses)
    flags = _flags(builder, frozenset().union(*doubtful.values()), uses)
    for index, (i, use) in enumerate(zip(body, uses, strict=True)):
        reads = doubtful.get(index, frozenset())
        copied = _copied(i)
        written = {flags[name] for name in use.writes if name in flags}
        if written or reads - copied:
            guard = None if i.predicate is None else builder.slot_of(i.predicate, "pred")
            found = {(flags[x], use.reads[x]): x for x in sorted(reads - copied, reverse=True)}
            sources = [flags[name] for name in copied] if copied <= reads else ()
            made[index] = _watched(made[index], i, guard, found, written, sources)


def _copied(i: Instruction) -> frozenset[str]:
    """Return the registers that a ``mov`` copies; none if it takes anything else."""
    if i.parts[0] != "mov" or len(i.operands) != 2:
        return frozenset()
    source = i.operands[1]
    pieces = source.elements if isinstance(source, Vector) else (source,)
    found = [frozenset(names(piece)) for piece in pieces]
    return frozenset().union(*found) if all(found) else frozenset()


def _flags(builder: Any, watched: frozenset[str], uses: Sequence[Uses]) -> dict[str, int]:
    """Return the slots of predicates that say where registers were written.

    Registers that the same instructions write, such as accumulators, share one.
    """
    writers: dict[str, list[int]] = {name: [] for name in watched}
    for index, use in enumerate(uses):
        for name in use.writes & watched:
            writers[name].append(index)
    flags = {}
    for name, by in writers.items():
        is_copy = any(_copied(builder.kernel.body[index]) for index in by)
        flags[name] = builder.flag(name if is_copy else f"what {by} write")
    return flags


def _watched(op: Any, i: Instruction, guard: int | None, reads: dict[tuple[int, int | None], str],
             written: Iterable[int], copied: Sequence[int]) -> Any:  # fmt: skip
    """Have an operation look at the flags of what it reads, and set those of its results."""
    guard_name = "" if i.predicate is None else i.predicate.name

    def run(V: Any, m: Any, g: Any) -> None:
        if not g.machine.options.strict:
            op(V, m, g)
            return
        active = m if guard is None else (V[guard] != i.negated) & m
        for (flag, where), name in reads.items():
            lanes = m if name == guard_name else active
            wrong = ~V[flag] & (lanes if where is None else V[where] & lanes)
            if wrong.any():
                thread = np.broadcast_to(m, wrong.shape).reshape(-1)[: int(wrong.argmax())].sum()
                raise Fault(f"{name.partition('@')[0]} is read, and nothing wrote it", int(thread))
        is_written = np.logical_or.reduce([V[flag] for flag in copied]) if copied else True
        op(V, m, g)
        for flag in written:
            np.copyto(V[flag], is_written, where=active)

    return run


def _doubtful_reads(kernel: Kernel, uses: Sequence[Uses]) -> dict[int, frozenset[str]]:
    """Return the instructions that may read a register before anything wrote it, and which."""
    bits: dict[str, int] = {}

    def mask(registers: Iterable[str]) -> int:
        return sum(bits.setdefault(name, 1 << len(bits)) for name in registers)

    effects = [
        (mask(use.writes), mask(_copied(i)), i.predicate is not None)
        for i, use in zip(kernel.body, uses, strict=True)
    ]

    def behind(written: int, index: int) -> int:
        results, copied, is_guarded = effects[index]
        if copied and not written & copied:
            return written & ~results
        return written if is_guarded else written | results

    starts = block_starts(kernel)
    ends = [*starts[1:], len(kernel.body)]
    follows = successors(kernel, starts)
    before = {0: 0}  # by block: what every way to it writes
    waiting = [0]
    while waiting:
        block = waiting.pop()
        written = before[block]
        for index in range(starts[block], ends[block]):
            written = behind(written, index)
        for other in follows[block]:
            met = before.get(other, -1) & written
            if other < len(starts) and before.get(other) != met:
                before[other] = met
                waiting.append(other)
    found = {}
    for block, written in before.items():
        for index in range(starts[block], ends[block]):
            reads = frozenset(x for x in uses[index].reads if not bits.get(x, 0) & written)
            if reads:
                found[index] = reads
            written = behind(written, index)
    return found
