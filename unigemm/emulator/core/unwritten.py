"""Registers that nothing wrote: what they hold is not defined, and here it would be 0.

What is computed from them counts as not written either, and a read is a fault where anything else
is done with a value: as a guard, an address, in memory, in a product. For compilers move arithmetic
to where its operands need not exist, if the results are not used there either. ``selp``,
``shfl`` and a ``prmt`` of fixed bytes are computed from what they take, and a ``mov`` of several
pieces from those that exist.

Over the flow of a kernel nearly every read is known to come behind a write. Only the registers of
the other reads are watched while the kernel runs: a predicate says in which lanes they were
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from ..ptx.faults import Fault
from ..ptx.flow import block_starts, successors
from ..ptx.ptx import Immediate, Instruction, Kernel, Operand, Vector
from .held import names

__all__ = ["Uses", "watch"]

#: Instructions that do nothing but compute results, of the same lane but for ``shfl``.
_COMPUTING = frozenset((
    "abs", "add", "and", "bfe", "bfi", "bfind", "brev", "clz", "copysign", "cvt", "div", "dp2a",
    "dp4a", "ex2", "fma", "lop3", "mad", "max", "min", "mov", "mul", "neg", "not", "or", "popc",
    "prmt", "rcp", "rem", "selp", "setp", "shf", "shfl", "shl", "shr", "sqrt", "sub", "tanh", "xor",
))  # fmt: skip


@dataclass
class Uses:
    """The registers that an instruction reads and writes.

    Attributes
    ----------
    reads
        The slot of a predicate where the register is read only if that holds, else None.
    writes
        The results.
    taken
        Of an instruction that takes one of its sources: a function (V, g, where each source is
        written) that returns where what it takes is. By default all sources must be.
    """

    reads: dict[str, int | None] = field(default_factory=dict)
    writes: set[str] = field(default_factory=set)
    taken: Callable[..., Any] | None = None


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
        if i.parts[0] == "prmt":
            inputs = {name for operand in (*_inputs(i), i.predicate) for name in names(operand)}
            use.reads = {name: slot for name, slot in use.reads.items() if name in inputs}
    doubtful = _doubtful_reads(builder.kernel, uses)
    flags = _flags(builder, frozenset().union(*doubtful.values()), uses)
    for index, (i, use) in enumerate(zip(body, uses, strict=True)):
        reads = doubtful.get(index, frozenset())
        sources = _sources(i)
        guarding = frozenset() if i.predicate is None else {i.predicate.name}
        used = reads - (frozenset().union(*sources) - guarding)
        written = {flags[name] for name in use.writes if name in flags}
        if written or used:
            guard = None if i.predicate is None else builder.slot_of(i.predicate, "pred")
            found = {(flags[x], use.reads[x]): x for x in sorted(used, reverse=True)}
            slots = [[flags[x] for x in source] if source <= reads else [] for source in sources]
            where = _where(slots, use.taken)
            made[index] = _watched(made[index], i, guard, found, written, where)


def _sources(i: Instruction) -> list[frozenset[str]]:
    """Return the registers that results are computed from, by operand; one piece is enough.

    Of an operand that is always written there are none.
    """
    if i.parts[0] not in _COMPUTING:
        return []
    found = []
    for operand in i.operands[1:2] if i.parts[0] == "shfl" else _inputs(i):
        pieces = operand.elements if isinstance(operand, Vector) else (operand,)
        registers = [frozenset(names(piece)) for piece in pieces]
        found.append(frozenset().union(*registers) if all(registers) else frozenset())
    return found


def _inputs(i: Instruction) -> tuple[Operand, ...]:
    """Return the operands that the results depend on; ``prmt`` may take no byte of an operand."""
    sources = i.operands[1:]
    if i.parts != ("prmt", "b32") or not isinstance(sources[2], Immediate):
        return sources
    picks = [int(sources[2].value) >> 4 * n & 7 for n in range(4)]
    return tuple(x for n, x in enumerate(sources[:2]) if any(pick // 4 == n for pick in picks))


def _flags(builder: Any, watched: frozenset[str], uses: Sequence[Uses]) -> dict[str, int]:
    """Return the slots of predicates that say where registers were written.

    Registers that the same instructions write, such as accumulators, share one.
    """
    writers: dict[str, list[int]] = {name: [] for name in watched}
    for index, use in enumerate(uses):
        for name in use.writes & watched:
            writers[name].append(index)
    return {name: builder.flag(f"what {by} write") for name, by in writers.items()}


def _where(slots: list[list[int]], taken: Any) -> Any:
    """Return a function (V, g) of where results count as written, given the sources' flags."""

    def where(V: Any, g: Any) -> Any:
        each = [reduce(np.logical_or, [V[flag] for flag in flags] or [True]) for flags in slots]
        return reduce(np.logical_and, each) if taken is None else taken(V, g, *each)

    return where if any(slots) else lambda V, g: True


def _watched(op: Any, i: Instruction, guard: int | None, reads: dict[tuple[int, int | None], str],
             written: Iterable[int], where_written: Any) -> Any:  # fmt: skip
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
        is_written = where_written(V, g)
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
        (mask(use.writes), [mask(x) for x in _sources(i) if x], i.predicate is not None)
        for i, use in zip(kernel.body, uses, strict=True)
    ]

    def behind(written: int, index: int) -> int:
        results, sources, is_guarded = effects[index]
        if not all(written & source for source in sources):
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
