"""Instructions that end a segment (branches, exits, barriers), and those that do nothing here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..ptx.faults import Fault, of_thread
from ..ptx.flow import EXIT, Segment
from ..ptx.ptx import Immediate, Instruction, Operand, Symbol
from .arithmetic import instruction
from .divergence import branch, leave
from .machine import at_end
from .order import joined
from .program import Builder, Op

__all__ = ["STOPS", "stop"]

Stop = Callable[[Builder, Instruction, Segment, int], Op]
STOPS: dict[str, Stop] = {}


def stop(*names: str) -> Callable[[Stop], Stop]:
    """Register a builder of an instruction that ends a segment."""

    def enter(make: Stop) -> Stop:
        for name in names:
            STOPS[name] = make
        return make

    return enter


def guard(b: Builder, i: Instruction) -> Any:
    """Compile a guard: a function that returns where it holds."""
    if i.predicate is None:
        return None
    p = b.source(i.predicate, "pred")
    if i.negated:
        return lambda V: ~V[p]
    return lambda V: V[p]


def unguarded(b: Builder, i: Instruction) -> None:
    """Refuse a guard.

    Raises
    ------
    PtxError
        There is one.
    """
    if i.predicate is not None:
        raise b.error("a guard on this instruction is not supported")


@stop("bra")
def bra(b: Builder, i: Instruction, segment: Segment, follow: int) -> Op:
    """Jump, in the lanes where the guard holds."""
    (where,) = i.operands
    assert isinstance(where, Symbol)
    target = b.flow.at.get(b.kernel.labels[where.name], EXIT)
    holds, meet = guard(b, i), segment.meet
    if holds is None:
        return lambda V, m, g: g.machine.go(g, target)

    def op(V: Any, m: Any, g: Any) -> None:
        taken = holds(V)
        here = taken if m is True else taken & m
        if not here.any():
            g.machine.go(g, follow)
        elif (here if m is True else here | ~m).all():
            g.machine.go(g, target)
        else:
            branch(g, taken, m, target, follow, meet)

    return op


@stop("ret", "exit")
def ret(b: Builder, i: Instruction, segment: Segment, follow: int) -> Op:
    """End the lanes where the guard holds."""
    holds = guard(b, i)
    if holds is None:
        return lambda V, m, g: leave(g, m, follow)
    return lambda V, m, g: leave(g, holds(V) & m, follow)


@stop("trap")
def trap(b: Builder, i: Instruction, segment: Segment, follow: int) -> Op:
    """Fail, where the guard holds."""
    holds = guard(b, i)

    def op(V: Any, m: Any, g: Any) -> None:
        if holds is None or (holds(V) & m).any():
            raise Fault("the kernel traps")
        g.machine.go(g, follow)

    return op


def _barrier(b: Builder, operands: Sequence[Operand]) -> Any:
    """Compile the operands of a barrier: (number, threads) of a group of warps."""
    number = b.source(operands[0], "u32")
    count = b.source(operands[1], "u32") if len(operands) > 1 else None

    def read(V: Any, m: Any, g: Any) -> tuple[Any, Any]:
        shape = (g.n, 32)
        threads = g.machine.geometry.warps * 32
        numbers = np.broadcast_to(V[number], shape)
        counts = np.broadcast_to(threads if count is None else V[count], shape)
        for values in (numbers, counts):
            if (np.where(m, values, 0) != np.where(m, values.max(-1, keepdims=True), 0)).any():
                raise Fault("the lanes of a warp name different barriers")
        numbers, counts = numbers.max(-1), counts.max(-1)
        if (numbers > 15).any():
            raise Fault("there are barriers 0 to 15")
        if (counts % 32).any() or (counts > threads).any() or (counts == 0).any():
            raise Fault(f"a barrier cannot be for {int(counts.max())} of {threads} threads")
        return numbers, counts

    return read


@stop("bar.sync", "barrier.sync", "bar.cta.sync", "barrier.cta.sync")
def bar_sync(b: Builder, i: Instruction, segment: Segment, follow: int) -> Op:
    """Wait at a named barrier until all its threads are there."""
    unguarded(b, i)
    read, line = _barrier(b, i.operands), i.line

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        machine.converged(g, m, "bar.sync")
        numbers, counts = read(V, m, g)
        for n, row in enumerate(range(g.lo, g.hi)):
            machine.record("barrier", str(numbers[n]), line, row)
        waits = []
        for n, row in enumerate(range(g.lo, g.hi)):
            with of_thread(m, g, n):
                waits.append(
                    machine.barriers.arrive(row, int(numbers[n]), int(counts[n]), True, line)
                )
        machine.writes.epoch(g.lo, g.hi)
        machine.go(g, follow)
        for n, row in enumerate(range(g.lo, g.hi)):
            # One that came early in this group may have been let go by one that came later.
            if waits[n] and machine.barriers.is_waiting(row, int(numbers[n])):
                machine.block(row, f"bar.sync {int(numbers[n])} waits for other threads")

    return op


@stop("bar.red", "barrier.red", "bar.cta.red", "barrier.cta.red")
def bar_reduce(b: Builder, i: Instruction, segment: Segment, follow: int) -> Op:
    """Wait at a named barrier, and learn in how many, any or all of its threads something holds."""
    unguarded(b, i)
    names = [part for part in i.parts if part in ("popc", "and", "or")]
    if len(names) != 1:
        raise b.error("one of .popc, .and and .or is expected")
    target, *numbered, requested = i.operands
    d = b.target(target, "u32" if names[0] == "popc" else "pred")
    read, line, p = _barrier(b, numbered), i.line, b.source(requested, "pred")

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        machine.converged(g, m, "bar.red")
        numbers, counts = read(V, m, g)
        here, holds = np.broadcast_to(m, (g.n, 32)), np.broadcast_to(V[p] & m, (g.n, 32))
        votes = machine.extra.setdefault("votes", {})
        machine.go(g, follow)
        for n, row in enumerate(range(g.lo, g.hi)):
            number = int(numbers[n])
            told = votes.setdefault((row // machine.geometry.warps, number), [])
            told.append((row, here[n].copy(), holds[n].copy()))
            with of_thread(m, g, n):
                waits = machine.barriers.arrive(row, number, int(counts[n]), True, line)
            if waits:
                machine.block(row, f"bar.red {number} waits for other threads")
                continue
            whole, true = (sum(int(vote[k].sum()) for vote in told) for k in (1, 2))
            found = {"popc": true, "and": true == whole, "or": true > 0}[names[0]]
            for other, lanes, _ in told:
                np.copyto(machine.rows(other, other + 1).V[d][0], found, where=lanes)
            told.clear()
        machine.writes.epoch(g.lo, g.hi)

    return op


@instruction("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive")
def bar_arrive(b: Builder, i: Instruction) -> Op:
    """Count at a named barrier, and go on."""
    if len(i.operands) != 2:
        raise b.error("the number of threads is expected")
    read, line = _barrier(b, i.operands), i.line

    def op(V: Any, m: Any, g: Any) -> None:
        g.machine.converged(g, m, "bar.arrive")
        numbers, counts = read(V, m, g)
        for n, row in enumerate(range(g.lo, g.hi)):
            g.machine.record("barrier", f"{numbers[n]}, not waiting", line, row)
            with of_thread(m, g, n):
                g.machine.barriers.arrive(row, int(numbers[n]), int(counts[n]), False, line)
        g.machine.writes.epoch(g.lo, g.hi)

    return op


@instruction("barrier.cluster.arrive")
def cluster_arrive(b: Builder, i: Instruction) -> Op:
    """Count at the cluster's barrier, and go on: all lanes of a warp where the guard holds.

    ``.relaxed`` tells of what was loaded, but nothing of what was stored before.
    """
    tells = "relaxed" not in i.parts

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        machine.converged(g, m, "barrier.cluster.arrive")
        for row in range(g.lo, g.hi):
            cluster = machine.cluster_of(row)
            if row in machine.cluster_phases:
                text = "a second barrier.cluster.arrive comes before the wait for the first"
                raise Fault(text, 32 * (row - g.lo))
            machine.cluster_phases[row] = cluster.phase
            cluster.arrived.add(row)
            more = machine.order.release(row) if tells else machine.order.relaxed(row)
            cluster.told = joined(cluster.told, more)
            machine.cluster_arrived(cluster)
        machine.writes.epoch(g.lo, g.hi)

    return op


@stop("barrier.cluster.wait")
def cluster_wait(b: Builder, i: Instruction, segment: Segment, follow: int) -> Op:
    """Wait until all threads of the cluster have arrived."""
    unguarded(b, i)

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        machine.converged(g, m, "barrier.cluster.wait")
        machine.go(g, follow)
        for row in range(g.lo, g.hi):
            phase = machine.cluster_phases.pop(row, None)
            if phase is None:
                text = "barrier.cluster.wait comes without an arrive before it"
                raise Fault(text, 32 * (row - g.lo))
            cluster = machine.cluster_of(row)
            if cluster.phase == phase:
                cluster.waiting.append(row)
                machine.block(row, "barrier.cluster.wait waits for other threads")
            else:
                machine.order.acquire(row, cluster.known)

    return op


def _nothing(b: Builder, i: Instruction) -> Op:
    return lambda V, m, g: None


#: Memory is always up to date here, the next launch begins behind this one, and caches are not
#: modelled.
instruction(
    "fence.mbarrier_init",
    "griddepcontrol.launch_dependents", "prefetch", "prefetchu", "nanosleep", "discard",
    "applypriority",
)(_nothing)  # fmt: skip


@instruction("createpolicy")
def createpolicy(b: Builder, i: Instruction) -> Op:
    """Write a policy of the caches, which are not modelled."""
    d = b.target(i.operands[0], "b64")
    return lambda V, m, g: np.copyto(V[d], np.uint64(0), where=m)


@instruction("membar", "fence.acq_rel", "fence.sc")
def fence(b: Builder, i: Instruction) -> Op:
    """Order these warps behind every fence before: memory itself is always up to date here."""

    def op(V: Any, m: Any, g: Any) -> None:
        for row in range(g.lo, g.hi):
            g.machine.order.fence(row)
        g.machine.writes.epoch(g.lo, g.hi)

    return op


@instruction("setmaxnreg.inc", "setmaxnreg.dec")
def setmaxnreg(b: Builder, i: Instruction) -> Op:
    """Check the number, and that all warps of a warpgroup agree; registers are not modelled."""
    (count,) = i.operands
    if not isinstance(count, Immediate) or not 24 <= count.value <= 256 or count.value % 8:
        raise b.error("the number must be a multiple of 8 from 24 to 256")
    line, wanted, more = i.line, count.value, i.parts[1] == "inc"

    def op(V: Any, m: Any, g: Any) -> None:
        g.machine.converged(g, m, "setmaxnreg")
        for row in range(g.lo, g.hi):
            told = g.machine.extra.setdefault("setmaxnreg", {}).setdefault(row, [])
            if told and (told[-1][0] > wanted if more else told[-1][0] < wanted):
                way = "increase" if more else "decrease"
                text = f"the warp has {told[-1][0]} registers, and {wanted} are no {way}"
                raise Fault(text, 32 * (row - g.lo))
            told.append((wanted, line))

    return op


@at_end
def _check_registers(machine: Any) -> Iterator[tuple[str, int, int]]:
    """Yield warpgroups whose warps did not all run the same setmaxnreg."""
    told = machine.extra.get("setmaxnreg", {})
    for row, mine in told.items():
        warp = row % machine.geometry.warps
        first = row - warp % 4
        others = range(first, first + 4)
        if warp - warp % 4 + 4 > machine.geometry.warps or any(
            told.get(other, []) != mine for other in others
        ):
            text = "the other warps of the warpgroup did not run this setmaxnreg"
            yield text, mine[-1][1], row
