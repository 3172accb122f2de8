"""mbarrier objects: phases, pending arrivals and bytes of transfers that are still to come.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". A phase is complete
when no arrivals are pending and the transaction count is zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.arithmetic import instruction
from ..core.control import stop, unguarded
from ..core.grid import RANK_SHIFT
from ..core.machine import at_end
from ..core.memory import Tickets
from ..core.order import joined
from ..core.program import Builder, Op
from ..ptx.faults import Fault, at_thread
from ..ptx.flow import Segment
from ..ptx.ptx import Instruction, Register
from .transfer import GENERIC_SHARED, active, address_of, flat_shared, scattered

__all__ = ["Mbarrier", "barrier_at", "known_number", "tell"]

_MAX_COUNT = (1 << 20) - 1
_HINTS = {
    "shared", "shared::cta", "shared::cluster", "b64", "release", "acquire", "relaxed", "cta",
    "cluster", "noComplete", "parity", "expect_tx",
}  # fmt: skip


@dataclass
class Mbarrier:
    """An mbarrier object.

    Attributes
    ----------
    count
        Arrivals of a phase.
    number
        That of what transfers bring; see `order`.
    pending, transactions
        Arrivals and bytes that the current phase still lacks.
    phase
        Phases that are complete.
    waiting
        Warps that wait for a phase.
    transfer
        Line and warp of the last transfer that the current phase counts.
    unseen
        Those of a transfer of the phase before that no one has waited for yet.
    announced
        Those of the last instruction that announced bytes.
    told, known
        What the arrivals of the current phase tell, and what those learn who wait for the last.
    """

    cta: int
    address: int
    count: int
    number: int
    pending: int
    transactions: int = 0
    phase: int = 0
    waiting: list[int] = field(default_factory=list)
    transfer: tuple[int, int] | None = None
    unseen: tuple[int, int] | None = None
    announced: tuple[int, int] | None = None
    told: Any = None
    known: Any = None

    def __str__(self) -> str:
        lacks = []
        if self.pending:
            lacks.append(f"{self.pending} of {self.count} arrivals")
        if self.transactions:
            lacks.append(f"{self.transactions} bytes of transfers")
        return f"mbarrier at shared address {self.address} lacks {' and '.join(lacks)}"


def _barriers(machine: Any) -> dict[int, Mbarrier]:
    return machine.extra.setdefault("mbarriers", {})


def barrier_at(machine: Any, offset: int) -> Mbarrier:
    """Return the mbarrier at a byte offset in all shared memories.

    Raises
    ------
    Fault
        None was initialised there, or its CTA has ended.
    """
    found = _barriers(machine).get(offset)
    if machine.has_ended(offset // machine.shared.pitch):
        machine.mistake("the CTA whose mbarrier is signalled has ended")
    if found is None:
        address = offset % machine.shared.pitch
        raise Fault(f"there is no mbarrier at shared address {address}: it was not initialised")
    return found


def advance(machine: Any, barrier: Mbarrier) -> None:
    """Complete the phase if nothing is missing.

    Raises
    ------
    Fault
        The phase before brought data that no one waited for.
    """
    if barrier.pending or barrier.transactions:
        return
    if barrier.transfer:
        if barrier.unseen:
            machine.mistake(_unseen(barrier))
        barrier.unseen = barrier.transfer
    barrier.transfer = None
    row = barrier.cta * machine.geometry.warps
    detail = f"phase {barrier.phase} of mbarrier {barrier.address}"
    machine.record("complete", detail, machine.line, row, hardware=True)
    barrier.phase += 1
    told, barrier.told = joined(barrier.known, barrier.told), None
    barrier.known = known_number(machine, barrier.number, barrier.phase, told)
    barrier.pending = barrier.count
    waiting, barrier.waiting = barrier.waiting, []
    machine.wake(waiting)


def _unseen(barrier: Mbarrier) -> str:
    assert barrier.unseen is not None
    return (
        f"no one waited for the transfer of line {barrier.unseen[0]} to the mbarrier at shared "
        f"address {barrier.address}"
    )


def known_number(machine: Any, number: int, which: int, known: Any = None) -> Any:
    """Return what is known, and that a copy or product with a number has ended."""
    more = np.zeros(machine.order.width, np.int32)
    more[number] = which
    return joined(known, more)


def arrive(
    machine: Any, barrier: Mbarrier, count: int, transactions: int = 0, told: Any = None
) -> int:
    """Count arrivals, after adding to the transaction count; return the phase's number.

    `told` is what those know who arrive.

    Raises
    ------
    Fault
        More arrive than the phase still lacks.
    """
    if count > barrier.pending:
        raise Fault(
            f"{count} arrive at the mbarrier at shared address {barrier.address} and its phase "
            f"lacks {barrier.pending}"
        )
    phase = barrier.phase
    barrier.told = joined(barrier.told, told)
    barrier.transactions += transactions
    barrier.pending -= count
    advance(machine, barrier)
    return phase


def complete(machine: Any, barrier: Mbarrier, size: int, line: int, row: int) -> None:
    """Count the bytes of a transfer that is done, and that a line of a warp had started.

    Raises
    ------
    Fault
        The CTA that it goes to has ended.
    """
    if machine.has_ended(barrier.cta):
        machine.mistake(f"no one waited for the transfer of line {line}: its CTA has ended")
    barrier.transactions -= size
    barrier.transfer = line, row
    advance(machine, barrier)


@at_end
def _unwaited(machine: Any) -> Iterator[tuple[str, int, int]]:
    """Yield transfers that are not waited for, and phases that lack bytes."""
    warps = machine.geometry.warps
    for barrier in _barriers(machine).values():
        if barrier.transactions:
            text = f"the kernel ends and the {barrier}"
        elif barrier.unseen:
            text = f"the kernel ends and {_unseen(barrier)}"
        else:
            continue
        last = machine.program.kernel.body[-1].line, barrier.cta * warps
        yield text, *(barrier.unseen or barrier.transfer or barrier.announced or last)


def _offsets(b: Builder, i: Instruction, operand: Any) -> Any:
    """Compile the address of an mbarrier: to flat byte offsets of the active lanes."""
    address = address_of(b, operand)
    cluster = "shared::cluster" in i.parts
    tells = "relaxed" not in i.parts  # else it orders nothing, but whoever sees it is behind it

    def offsets(V: Any, m: Any, g: Any) -> Any:
        near = active(address(V), m, g)
        found = flat_shared(near, active(g.base, m, g), g, 8, cluster=cluster)
        if g.machine.reached is not None and tells:
            g.machine.reached.changes(g, m, found)
        return found.tolist()

    return offsets


@instruction("mbarrier.init")
def init(b: Builder, i: Instruction) -> Op:
    """Make an mbarrier."""
    b.known(i.parts[2:], *_HINTS)
    offsets, count = _offsets(b, i, i.operands[0]), b.source(i.operands[1], "u32")

    def op(V: Any, m: Any, g: Any) -> None:
        shared = g.machine.shared
        numbers = active(V[count], m, g).tolist()
        for n, (offset, arrivals) in enumerate(zip(offsets(V, m, g), numbers, strict=True)):
            if not 0 < arrivals <= _MAX_COUNT:
                raise Fault(f"an mbarrier cannot be for {arrivals} arrivals", n)
            cta, address = divmod(offset, shared.pitch)
            number = g.machine.order.number(cta * g.machine.geometry.warps)
            _barriers(g.machine)[offset] = Mbarrier(cta, address, arrivals, number, arrivals)
            shared.words[offset // 4 : offset // 4 + 2] = Tickets.ALWAYS

    return op


@instruction("mbarrier.inval")
def inval(b: Builder, i: Instruction) -> Op:
    """Unmake an mbarrier."""
    b.known(i.parts[2:], *_HINTS)
    offsets = _offsets(b, i, i.operands[0])

    def op(V: Any, m: Any, g: Any) -> None:
        for n, offset in enumerate(offsets(V, m, g)):
            with at_thread(n):
                barrier_at(g.machine, offset)
            del _barriers(g.machine)[offset]

    return op


@instruction("mbarrier.arrive", "mbarrier.arrive_drop")
def mbarrier_arrive(b: Builder, i: Instruction) -> Op:
    """Arrive, maybe several times, maybe announcing bytes; the result is the phase.

    With ``_drop`` the phases behind it expect these arrivals no more.
    """
    b.known(i.parts[2:], *_HINTS)
    expects, drops = "expect_tx" in i.parts, i.parts[1] == "arrive_drop"
    tells = "relaxed" not in i.parts
    operands = i.operands
    result = operands[0] if isinstance(operands[0], Register) else None
    if result is not None:
        operands = operands[1:]
    d = None if result is None or result.type == "sink" else b.target(result, "b64")
    offsets = _offsets(b, i, operands[0])
    number = b.source(operands[1], "u32") if len(operands) > 1 else b.constant(1, "u32")
    line = i.line

    def op(V: Any, m: Any, g: Any) -> None:
        phases = []
        numbers = active(V[number], m, g).tolist()
        rows, flat = warps_of(m, g), offsets(V, m, g)  # in the epoch that `tell` ends
        told = tell(g, m) if tells else {}
        for n, (row, offset, given) in enumerate(zip(rows, flat, numbers, strict=True)):
            with at_thread(n):
                barrier = barrier_at(g.machine, offset)
                g.machine.record("arrive", f"at mbarrier {barrier.address}", line, row)
                count, more = (1, given) if expects else (given, 0)
                if expects:
                    barrier.announced = line, row
                if drops:
                    barrier.count -= count
                phases.append(arrive(g.machine, barrier, count, more, told.get(row)))
        if d is not None:
            scattered(V[d], m, np.array(phases, np.uint64))

    return op


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx")
def transactions(b: Builder, i: Instruction) -> Op:
    """Change the transaction count."""
    b.known(i.parts[2:], *_HINTS)
    sign = 1 if i.parts[1] == "expect_tx" else -1
    offsets, number = _offsets(b, i, i.operands[0]), b.source(i.operands[1], "u32")
    line = i.line

    def op(V: Any, m: Any, g: Any) -> None:
        threads = zip(warps_of(m, g), offsets(V, m, g), active(V[number], m, g), strict=True)
        for n, (row, offset, value) in enumerate(threads):
            with at_thread(n):
                barrier = barrier_at(g.machine, offset)
                barrier.transactions += sign * int(value)
                barrier.announced = line, row
                if sign < 0:
                    advance(g.machine, barrier)

    return op


def tell(g: Any, m: Any) -> dict[int, Any]:
    """Return what the active lanes of each warp can tell, and begin new epochs."""
    told = {}
    lanes = np.broadcast_to(m, (g.n, 32))
    whole = (lanes | ~g.alive).all(-1)
    for n, row in enumerate(range(g.lo, g.hi)):
        if lanes[n].any():
            told[row] = g.machine.order.release(row, None if whole[n] else lanes[n])
    g.machine.writes.epoch(g.lo, g.hi)
    return told


def warps_of(m: Any, g: Any) -> list[int]:
    """Return the warp of each active lane."""
    return (np.nonzero(np.broadcast_to(m, (g.n, 32)))[0] + g.lo).tolist()


def _done(i: Instruction) -> tuple[str, Callable[[Mbarrier, int], bool]]:
    """Return the type of a wait's operand, and its condition: of an mbarrier and the operand."""
    if "parity" in i.parts:
        return "u32", lambda barrier, parity: barrier.phase & 1 != parity & 1
    return "u64", lambda barrier, state: barrier.phase != state


@instruction("mbarrier.test_wait")
def test_wait(b: Builder, i: Instruction) -> Op:
    """Ask whether a phase is complete."""
    b.known(i.parts[2:], *_HINTS)
    kind, done = _done(i)
    p, offsets = b.target(i.operands[0], "pred"), _offsets(b, i, i.operands[1])
    value = b.source(i.operands[2], kind)

    def op(V: Any, m: Any, g: Any) -> None:
        found = []
        numbers = active(V[value], m, g).tolist()
        for n, (row, offset) in enumerate(zip(warps_of(m, g), offsets(V, m, g), strict=True)):
            with at_thread(n):
                barrier = barrier_at(g.machine, offset)
            found.append(done(barrier, numbers[n]))
            if found[-1]:
                barrier.unseen = None
                g.machine.order.acquire(row, barrier.known)
        scattered(V[p], m, np.array(found))

    return op


@stop("mbarrier.try_wait")
def try_wait(b: Builder, i: Instruction, segment: Segment, follow: int) -> Op:
    """Wait until a phase is complete: it never gives up, so its answer is always true."""
    unguarded(b, i)
    b.known(i.parts[2:], *_HINTS)
    kind, done = _done(i)
    p, offsets = b.target(i.operands[0], "pred"), _offsets(b, i, i.operands[1])
    value = b.source(i.operands[2], kind)
    line = i.line

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        numbers = active(V[value], m, g).tolist()
        rows = warps_of(m, g)
        requested = dict.fromkeys(zip(rows, offsets(V, m, g), numbers, strict=True))
        waits: dict[int, Mbarrier] = {}
        for row, offset, number in requested:
            with at_thread(rows.index(row)):
                barrier = barrier_at(machine, offset)
            if done(barrier, number):
                barrier.unseen = None
                machine.order.acquire(row, barrier.known)
                machine.record("waited", f"for mbarrier {barrier.address}", line, row)
            else:
                waits.setdefault(row, barrier)
        np.copyto(V[p], True, where=m)
        for row in range(g.lo, g.hi):
            if row not in waits:
                machine.send(row, follow)
            else:
                waits[row].waiting.append(row)
                machine.block(row, waits[row])

    return op


@instruction("cp.async.mbarrier.arrive")
def copies_arrive(b: Builder, i: Instruction) -> Op:
    """Have each thread arrive when its cp.async copies before are complete.

    The copies of a warp complete together. Without ``.noinc`` the phase lacks one arrival more.
    """
    b.known(i.parts[4:], "noinc", "shared", "shared::cta", "b64")
    offsets, more = _offsets(b, i, i.operands[0]), "noinc" not in i.parts
    line = i.line

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        rows = warps_of(m, g)
        counts = Counter(zip(rows, offsets(V, m, g), strict=True))
        for (row, offset), count in counts.items():
            with at_thread(rows.index(row)):
                barrier = barrier_at(machine, offset)
            barrier.pending += count * more
            tickets = machine.writes.track(row)

            def done(
                barrier: Mbarrier = barrier, tickets: Any = tickets, count: int = count,
                row: int = row,
            ) -> None:  # fmt: skip
                machine.shared.tickets.readable[tickets] = True
                told = machine.writes.ended(row, tickets)
                arrive(machine, barrier, count, told=told)

            machine.later(row, line, done)

    return op


@instruction("mapa")
def mapa(b: Builder, i: Instruction) -> Op:
    """Return the same address in another CTA of the cluster.

    The CTA need not exist: CUTLASS has lanes that do not use the address take one all the same.
    """
    if i.parts[1:] not in (("shared::cluster", "u32"), ("u64",)):
        raise b.error("this form is not implemented")
    generic = i.parts[1] == "u64"
    kind = "u64" if generic else "u32"
    d, x = b.target(i.operands[0], kind), b.source(i.operands[1], kind)
    rank = b.source(i.operands[2], "u32")

    def op(V: Any, m: Any, g: Any) -> None:
        low = V[x] - np.uint64(GENERIC_SHARED) if generic else V[x]
        inside = low & low.dtype.type((1 << RANK_SHIFT) - 1)
        found = inside + (
            (V[rank] & np.uint32(0xFF)).astype(low.dtype) << low.dtype.type(RANK_SHIFT)
        )
        np.copyto(V[d], found + np.uint64(GENERIC_SHARED) if generic else found, where=m)

    return op


@instruction("fence.proxy.async")
def fence_proxy(b: Builder, i: Instruction) -> Op:
    """Let TMA and wgmma see the ordinary stores of these warps."""
    return lambda V, m, g: g.machine.writes.fence(g.lo, g.hi)
