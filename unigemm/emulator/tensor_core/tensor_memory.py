"""Tensor memory: 128 lanes by 512 columns of 32 bits for each CTA, its allocation, its addresses.

PTX ISA, "Tensor Memory" and "tcgen05: memory allocation". An address has the lane above bit 16 and
the column below. With ``.cta_group::2`` the two CTAs of a pair allocate and free the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..async_copy.transfer import address_of, flat_shared
from ..core.arithmetic import instruction
from ..core.control import stop, unguarded
from ..core.machine import at_end
from ..core.program import Builder, Op
from ..ptx.faults import Fault, of_thread
from ..ptx.flow import Segment
from ..ptx.ptx import Instruction

__all__ = [
    "COLUMNS",
    "LANES",
    "UNWAITED",
    "WRITTEN",
    "TensorMemory",
    "cta_group",
    "memory_of",
    "of_warp",
    "pair_of",
    "split_address",
    "unused",
]

LANES, COLUMNS = 128, 512
_FEWEST = 32  # columns of an allocation
#: States of a word; UNWAITED: stored, but nobody has waited for it.
NEVER, WRITTEN, UNWAITED = range(3)


@dataclass
class TensorMemory:
    """The tensor memory of a CTA.

    Attributes
    ----------
    mistake
        Reports a mistake.
    words
        The words, (lanes, columns).
    state
        State of each word: never written, written, or stored but not waited for.
    written, last
        The tickets of the last write and of the last access of each word; see `order`.
    allocated
        Columns of each allocation by the first, and the line and warp that made it.
    group
        CTAs that allocate together, as the first allocation said; 0 before.
    wanted, granted
        Columns that this CTA of a pair requests (0: none), and what it got.
    asker
        The warp that waits for columns.
    relinquished
        Whether the CTA has said that it will allocate no more.
    """

    mistake: Callable[..., None]
    words: Any = field(default_factory=lambda: np.zeros((LANES, COLUMNS), np.uint32))
    state: Any = field(default_factory=lambda: np.zeros((LANES, COLUMNS), np.uint8))
    written: Any = field(default_factory=lambda: np.zeros((LANES, COLUMNS), np.int32))
    last: Any = field(default_factory=lambda: np.zeros((LANES, COLUMNS), np.int32))
    allocated: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    group: int = 0
    wanted: int = 0
    granted: int | None = None
    asker: int | None = None
    relinquished: bool = False

    def room(self) -> Any:
        """Return which columns are free."""
        free = np.ones(COLUMNS, bool)
        for first, (count, _, _) in self.allocated.items():
            free[first : first + count] = False
        return free

    def take(self, first: int, count: int, line: int) -> None:
        """Allocate columns; what they hold is not known."""
        self.allocated[first] = (count, line, self.asker or 0)
        columns = slice(first, first + count)
        self.state[:, columns] = NEVER
        self.written[:, columns] = self.last[:, columns] = 0

    def check(self, column: int, count: int) -> None:
        """Check that columns are allocated.

        Raises
        ------
        Fault
            They are not.
        """
        inside = ~self.room()
        if column + count > COLUMNS or not inside[column : column + count].all():
            raise Fault(
                f"columns {column} to {column + count - 1} of tensor memory are not allocated"
            )

    def read(self, lanes: Any, columns: Any) -> Any:
        """Return words; `lanes` and `columns` are broadcast together.

        Raises
        ------
        Fault
            Nothing wrote them, or a store that no one waited for.
        """
        state = self.state[lanes, columns]
        if (state == NEVER).any():
            self.mistake("it reads tensor memory that nothing wrote")
        if (state == UNWAITED).any():
            self.mistake("it reads tensor memory written by tcgen05.st with no tcgen05.wait::st")
        return self.words[lanes, columns]

    def write(self, lanes: Any, columns: Any, values: Any, state: int = WRITTEN) -> None:
        """Write words; see `read`."""
        self.words[lanes, columns] = values
        self.state[lanes, columns] = state


def memory_of(machine: Any, cta: int) -> TensorMemory:
    """Return the tensor memory of a CTA of the machine."""
    memories = machine.extra.get("tensor_memory")
    if memories is None:
        memories = [TensorMemory(machine.mistake) for _ in range(machine.count)]
        machine.extra["tensor_memory"] = memories
    return memories[cta]


@at_end
def _allocated(machine: Any) -> Iterator[tuple[str, int, int]]:
    for memory in machine.extra.get("tensor_memory", ()):
        for first, (count, line, row) in memory.allocated.items():
            text = f"the kernel ends and columns {first} to {first + count - 1} were not freed"
            yield text, line, row


def unused(machine: Any, cta: int, lanes: Any, columns: slice, what: str) -> None:
    """Check that nothing that is issued and not complete uses words; see `tensor_queue`.

    Raises
    ------
    Fault
        Something does.
    """
    for queue in machine.extra.get("tcgen05", {}).values():
        for item in queue.waiting:
            if any(region.meets(cta, lanes, columns) for region in item.regions):
                raise Fault(
                    f"{what} before the {item.what} of line {item.line}, which uses this tensor "
                    "memory, was waited for"
                )


def split_address(address: int) -> tuple[int, int]:
    """Return (lane, column) of an address in tensor memory."""
    return address >> 16, address & 0xFFFF


def cta_group(b: Builder, i: Instruction) -> int:
    """Return 1 or 2: the CTAs that an instruction is for."""
    for part in i.parts:
        if part in ("cta_group::1", "cta_group::2"):
            return int(part[-1])
    raise b.error("a .cta_group is expected")


def pair_of(machine: Any, cta: int, group: int) -> tuple[int, ...]:
    """Return the CTAs that an instruction of a CTA is for, the even one first.

    Raises
    ------
    Fault
        The CTA has no neighbour in its cluster.
    """
    if group == 1:
        return (cta,)
    if machine.geometry.cluster_size % 2:
        raise Fault(f"in a cluster of {machine.geometry.cluster_size} there are no pairs of CTAs")
    return (cta & ~1, cta | 1)


def of_warp(values: Any, m: Any, g: Any, n: int, name: str) -> int:
    """Return a value in which the active lanes of warp `n` of a group agree.

    Raises
    ------
    Fault
        They do not.
    """
    lanes = np.broadcast_to(values, (g.n, 32))[n]
    if m is not True:
        lanes = lanes[np.broadcast_to(m, (g.n, 32))[n]]
    if (lanes != lanes[0]).any():
        raise Fault(f"the lanes of a warp give {name} different operands")
    return int(lanes[0])


def _columns(count: int) -> int:
    if not _FEWEST <= count <= COLUMNS or count & (count - 1):
        raise Fault(f"{count} columns are no power of two from {_FEWEST} to {COLUMNS}")
    return count


def _find(free: Any, count: int) -> int | None:
    for first in range(0, COLUMNS - count + 1, _FEWEST):
        if free[first : first + count].all():
            return first
    return None


def _grant(machine: Any, ctas: tuple[int, ...], line: int) -> bool:
    """Allocate if all CTAs have requested it and there is room; wake those that waited."""
    memories = [memory_of(machine, cta) for cta in ctas]
    wanted = {memory.wanted for memory in memories}
    if 0 in wanted:
        return False
    if len(wanted) > 1:
        raise Fault(f"the CTAs of a pair allocate {min(wanted)} and {max(wanted)} columns")
    (count,) = wanted
    first = _find(np.logical_and.reduce([memory.room() for memory in memories]), count)
    if first is None:
        return False
    for memory in memories:
        memory.take(first, count, line)
        memory.wanted, memory.granted = 0, first
        _wake(machine, memory)
        memory.asker = None
    return True


def _wake(machine: Any, memory: TensorMemory) -> None:
    machine.wake([] if memory.asker is None else [memory.asker])


@stop("tcgen05.alloc")
def alloc(b: Builder, i: Instruction, segment: Segment, follow: int) -> Op:
    """Allocate columns, waiting for them; their address goes to shared memory."""
    unguarded(b, i)
    group, line = cta_group(b, i), i.line
    to, count = address_of(b, i.operands[0]), b.source(i.operands[1], "u32")

    def one(V: Any, m: Any, g: Any, n: int, row: int) -> None:
        machine = g.machine
        cta = row // machine.geometry.warps
        memory = memory_of(machine, cta)
        if memory.granted is None:
            columns = _columns(of_warp(V[count], m, g, n, "tcgen05.alloc"))
            _ask(memory, row, columns, group)
            if not _grant(machine, pair_of(machine, cta, group), line):
                machine.block(row, f"tcgen05.alloc waits for {memory.wanted} columns")
                return
        address, memory.granted = memory.granted, None
        near = np.array([of_warp(to(V), m, g, n, "tcgen05.alloc")], np.uint32)
        value = np.array([address], np.uint32)
        machine.shared.store(flat_shared(near, g.base[n, :1], g, 4), value, 4, g.tickets[n, :1])
        machine.order.met(row, slice(None))
        machine.writes.epoch(row, row + 1)
        machine.send(row, follow)

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        machine.converged(g, m, "tcgen05.alloc")
        for n, row in enumerate(range(g.lo, g.hi)):
            with of_thread(m, g, n):
                one(V, m, g, n, row)

    return op


def _ask(memory: TensorMemory, row: int, count: int, group: int) -> None:
    if memory.relinquished:
        raise Fault("the CTA allocates tensor memory after it gave up its permit to")
    if memory.group not in (0, group):
        raise Fault("a kernel uses one .cta_group for all tcgen05 instructions")
    if memory.asker not in (None, row):
        raise Fault("two warps of a CTA allocate tensor memory at the same time")
    memory.group, memory.wanted, memory.asker = group, count, row


def _free(machine: Any, row: int, first: int, columns: int, group: int) -> None:
    cta = row // machine.geometry.warps
    memory = memory_of(machine, cta)
    if memory.group not in (0, group):
        raise Fault("a kernel uses one .cta_group for all tcgen05 instructions")
    if memory.allocated.get(first, (0,))[0] != columns:
        raise Fault(f"there is no allocation of {columns} columns from {first} on")
    unused(machine, cta, np.arange(LANES), slice(first, first + columns), "it is freed")
    for each in pair_of(machine, cta, group):
        used = memory_of(machine, each).last[:, first : first + columns]
        machine.order.tensor(row, used, "it frees", "used")
    del memory.allocated[first]
    for other in pair_of(machine, cta, group):
        _wake(machine, memory_of(machine, other))


@instruction("tcgen05.dealloc")
def dealloc(b: Builder, i: Instruction) -> Op:
    """Free columns."""
    group = cta_group(b, i)
    where, count = b.source(i.operands[0], "u32"), b.source(i.operands[1], "u32")

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        machine.converged(g, m, "tcgen05.dealloc")
        for n, row in enumerate(range(g.lo, g.hi)):
            with of_thread(m, g, n):
                first, columns = (of_warp(V[x], m, g, n, "tcgen05.dealloc") for x in (where, count))
                _free(machine, row, first & 0xFFFF, columns, group)

    return op


@instruction("tcgen05.relinquish_alloc_permit")
def relinquish(b: Builder, i: Instruction) -> Op:
    """Promise to allocate no more."""
    cta_group(b, i)

    def op(V: Any, m: Any, g: Any) -> None:
        g.machine.converged(g, m, "tcgen05.relinquish_alloc_permit")
        for row in range(g.lo, g.hi):
            memory_of(g.machine, row // g.machine.geometry.warps).relinquished = True

    return op
