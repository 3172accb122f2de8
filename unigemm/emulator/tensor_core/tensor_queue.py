"""The queues of tcgen05: work that a warp has issued, done in order some time later.

Products (`tcgen05`) and copies (`tensor_copies`) wait in a queue of the warp whose thread issued
them. Addresses and descriptors are checked when an instruction is issued; its operands are read,
and its results written, just before the mbarrier of the ``tcgen05.commit`` behind it is signalled:
as late as hardware may. Overwriting or freeing operands in between is an error, and so is reading
results before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..async_copy.mbarriers import arrive, barrier_at, known_number, tell
from ..async_copy.proxy import Source, threads_of, units_of
from ..async_copy.transfer import active, address_of, flat_shared
from ..core.arithmetic import instruction
from ..core.machine import at_end
from ..core.program import Builder, Op
from ..ptx.faults import Fault, of_thread
from ..ptx.ptx import Instruction
from .tensor_memory import TensorMemory, cta_group, memory_of, pair_of

__all__ = [
    "Pending",
    "Region",
    "active_pair",
    "find_matrix",
    "issue",
    "issuers",
    "read_matrix",
    "read_region",
]


@dataclass(frozen=True)
class Region:
    """A rectangle of a CTA's tensor memory: some lanes by neighbouring columns."""

    cta: int
    lanes: Any
    first: int
    count: int

    def meets(self, cta: int, lanes: Any, columns: slice) -> bool:
        """Whether another rectangle has words of this one."""
        return (
            self.cta == cta
            and self.first < columns.stop
            and columns.start < self.first + self.count
            and bool(np.isin(lanes, self.lanes).any())
        )


@dataclass(frozen=True, eq=False)
class Pending:
    """A product or a copy that has been issued.

    Attributes
    ----------
    what
        ``"product"`` or ``"copy"``.
    regions
        The tensor memory that it reads and writes.
    perform
        Performs the work.
    changes
        How many of the regions it writes, the first ones.
    """

    what: str
    regions: tuple[Region, ...]
    perform: Callable[[], None]
    line: int
    changes: int


@dataclass(frozen=True)
class Commit:
    """A commit: the mbarriers that it signals, and what it tells those that wait; see `order`."""

    signals: tuple[int, ...]
    line: int
    told: Any
    regions: tuple[Region, ...] = ()  # it uses no tensor memory


@dataclass
class Queue:
    """The work that a warp has issued and that is not done yet, in order.

    `number` is that of its work (see `order`), `commits` how many commits were issued, and `ticket`
    that of the work since the last.
    """

    number: int = 0
    commits: int = 0
    ticket: int = 0
    waiting: list[Pending | Commit] = field(default_factory=list)


def _queues(machine: Any) -> dict[int, Queue]:
    return machine.extra.setdefault("tcgen05", {})


def issue(machine: Any, row: int, item: Pending) -> None:
    """Append work to the queue of a warp.

    Raises
    ------
    Fault
        The warp is not behind all accesses of the tensor memory that the work uses.
    """
    queue = _queues(machine).setdefault(row, Queue())
    queue.waiting.append(item)
    if not queue.number:
        queue.number = machine.order.number(row)
        machine.order.products.append(queue.number)
    if not queue.ticket:
        queue.ticket = machine.shared.tickets.new(readable=True, fenced=True)
        machine.shared.tickets.belongs(queue.ticket, queue.number, queue.commits + 1)
    for n, region in enumerate(item.regions):
        memory = memory_of(machine, region.cta)
        cells = region.lanes[:, None], np.arange(region.first, region.first + region.count)
        if n < item.changes:
            what = f"the {item.what} writes"
            machine.order.tensor(row, memory.last[cells], what, "used", queue.number)
            memory.written[cells] = queue.ticket
        else:
            what = f"the {item.what} reads"
            machine.order.tensor(row, memory.written[cells], what, "wrote", queue.number)
        memory.last[cells] = queue.ticket


@at_end
def _uncommitted(machine: Any) -> Iterator[tuple[str, int, int]]:
    for row, queue in _queues(machine).items():
        for item in queue.waiting:
            yield "the kernel ends and no tcgen05.commit of this warp follows", item.line, row


# -- operands --------------------------------------------------------------------------------------


def find_matrix(machine: Any, who: tuple[int, int], cta: int, addresses: Any, name: str) -> Source:
    """Find what lies at addresses of 16-byte units, and check that it may be read.

    Raises
    ------
    Fault
        It lies out of bounds, or was not made visible to the asynchronous proxy.
    """
    found = Source.of(machine, units_of(machine, cta, addresses), name)
    machine.order.operand(*who, found.words[..., 0], name)
    return found


def read_matrix(machine: Any, matrix: Source, what: str, line: int) -> Any:
    """Return the 16-byte units of a matrix.

    Raises
    ------
    Fault
        They were overwritten after the instruction was issued.
    """
    early = f"while the {what} of line {line} could still read it"
    return matrix.read(machine, machine.extra["tcgen05_ticket"], early)


def read_region(machine: Any, region: Region) -> Any:
    """Return the words of a region."""
    memory: TensorMemory = memory_of(machine, region.cta)
    memory.check(region.first, region.count)
    columns = np.arange(region.first, region.first + region.count)
    return memory.read(region.lanes[:, None], columns)


def issuers(m: Any, g: Any, name: str) -> list[tuple[int, int]]:
    """Return warp and lane of the threads that issue: one of a warp, as its `elect.sync` chose."""
    found = threads_of(m, g)
    if len({row for row, _ in found}) != len(found):
        raise Fault(f"{name} is issued by several threads of a warp, once for each")
    return found


def active_pair(machine: Any, row: int, group: int) -> tuple[int, ...]:
    """Return the CTAs that an instruction of a warp is for; see `pair_of`.

    Raises
    ------
    Fault
        One has ended, or the kernel uses another ``.cta_group`` as well.
    """
    ctas = pair_of(machine, row // machine.geometry.warps, group)
    for cta in ctas:
        if memory_of(machine, cta).group not in (0, group):
            raise Fault("a kernel uses one .cta_group for all tcgen05 instructions")
        if machine.has_ended(cta):
            raise Fault("the other CTA of the pair has ended")
    return ctas


# -- commits ---------------------------------------------------------------------------------------


@instruction("tcgen05.commit")
def commit(b: Builder, i: Instruction) -> Op:
    """Have an mbarrier signalled when the products and copies before are complete."""
    group, line = cta_group(b, i), i.line
    multicast = "multicast::cluster"
    known = "mbarrier::arrive::one", "shared::cluster", multicast, "b64", f"cta_group::{group}"
    b.known(i.parts[2:], *known)
    signal = address_of(b, i.operands[0])
    mask = b.source(i.operands[1], "u16") if multicast in i.parts else None

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        offsets = flat_shared(active(signal(V), m, g), active(g.base, m, g), g, 8, cluster=True)
        masks = None if mask is None else active(V[mask], m, g)
        told = tell(g, m)
        for n, (row, lane) in enumerate(issuers(m, g, "tcgen05.commit")):
            signals = [int(offsets[n])]
            with of_thread(m, g, row - g.lo, lane):
                active_pair(machine, row, group)
                if masks is not None:
                    pitch, own = machine.shared.pitch, row // machine.geometry.warps
                    ctas = machine.cluster_ctas(own, int(masks[n]))
                    signals = [cta * pitch + signals[0] % pitch for cta in ctas]
            queue = _queues(machine).setdefault(row, Queue())
            queue.commits, queue.ticket = queue.commits + 1, 0
            known = told.get(row)
            if queue.number:
                known = known_number(machine, queue.number, queue.commits, known)
            queue.waiting.append(Commit(tuple(signals), line, known))
            machine.later(row, line, partial(_progress, machine, queue))

    return op


def _progress(machine: Any, queue: Queue) -> None:
    """Perform the work before a warp's first commit, and signal the commit's mbarriers."""
    if queue.number:
        tickets = machine.shared.tickets
        ticket = machine.extra["tcgen05_ticket"] = tickets.new(readable=True, fenced=True)
        done = queue.commits - sum(isinstance(item, Commit) for item in queue.waiting)
        tickets.belongs(ticket, queue.number, done + 1)
    while True:
        item = queue.waiting[0]
        machine.line = item.line
        if isinstance(item, Commit):
            break
        item.perform()
        del queue.waiting[0]
    del queue.waiting[0]
    for offset in item.signals:
        barrier = barrier_at(machine, offset)
        at = barrier.cta * machine.geometry.warps
        detail = f"for mbarrier {barrier.address}"
        machine.record("multiplied", detail, item.line, at, hardware=True)
        arrive(machine, barrier, 1, told=item.told)


@instruction("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def fence(b: Builder, i: Instruction) -> Op:
    """Order accesses of tensor memory before what a warp tells, or behind what it is told."""
    before = i.opcode.endswith("before_thread_sync")

    def op(V: Any, m: Any, g: Any) -> None:
        order = g.machine.order
        for row in range(g.lo, g.hi):
            (order.before_sync if before else order.after_sync)(row)

    return op
