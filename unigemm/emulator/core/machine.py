"""CTAs that run together: their registers, their warps, divergence, and the scheduler.

All warps of some CTAs are rows of the same arrays. Neighbouring warps that are at the same segment
run it together, as one NumPy operation for each instruction; each warp still has a segment, a
mask and a stack of divergent paths of its own. A warp that must wait leaves the scheduler's choice
until what it waits for has happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ptx.faults import MALFORMED, Fault, KernelFault, Site, fail, overlook
from ..ptx.flow import EXIT
from .barriers import ClusterBarrier, NamedBarriers
from .divergence import Path
from .grid import Geometry, cta_coordinates, special, threads_of
from .memory import Memory, SharedMemory, carrier
from .order import Order, joined
from .program import Program, Step
from .progress import Watch
from .reached import Reached
from .rows import Rows
from .timeline import Event
from .writes import Counts, Writes

__all__ = ["Machine", "Options", "at_end"]

READY, BLOCKED, DONE = 0, 1, 2
WARPGROUP = 4
EARLY = 0.05  # how often a transfer completes before anyone waits for it
AT_END: list[Callable[[Machine], Iterator[tuple[str, int, int]]]] = []


def at_end(check: Any) -> Any:
    """Enter a function that yields what is left over at the end: a message, a line and a warp."""
    AT_END.append(check)
    return check


@dataclass(frozen=True)
class Options:
    """How a launch is run; see `launch`."""

    strict: bool = True
    lockstep: bool = True
    conflicts: bool = False
    events: bool = False
    trace: tuple[tuple[int, int, int], int] | None = None
    leftovers: bool = False  # arrivals at a named barrier may be left over at the end
    budget: int = 1 << 62  # warp instructions that may be run
    dependent: bool = False  # launched dependently: see `dependency`


def _senseless(error: Exception) -> str:
    """Return the message for an instruction whose operands make no sense."""
    return f"its operands make no sense here ({type(error).__name__}: {error})"


class Machine:
    """Some CTAs of a grid (whole clusters), run from their start to their end."""

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        first: int,
        count: int,
        params: bytes,
        memory: Memory,
        rng: random.Random,
        options: Options,
    ) -> None:
        self.program, self.geometry, self.memory = program, geometry, memory
        self.rng, self.options = rng, options
        self.first, self.count = first, count
        self.params = params
        warps = geometry.warps
        self.warps = total = warps * count
        self.mistake = fail if options.strict else overlook
        self.shared = SharedMemory(
            count, program.static_shared + geometry.dynamic_shared, self.mistake
        )
        pitch = self.shared.pitch
        ctas = np.arange(total) // warps
        self.bases = np.broadcast_to((ctas * pitch)[:, None], (total, 32)).copy()
        self.alive = threads_of(geometry, count) < geometry.threads
        self.mask = self.alive.copy()
        self.full = [bool(row.all()) for row in self.mask]
        self.at = [0] * total
        self.status = [READY] * total
        self.reason: list[object] = [""] * total
        self.waits_at = [0] * total
        self.line = 0  # of the instruction that ends the segment being run
        self.stack: list[list[Path]] = [[] for _ in range(total)]
        size = geometry.cluster_size * warps
        self.order = Order(self.shared, total, warps, size)
        self.reached = Reached(self.order, count) if geometry.cluster_size > 1 else None
        if options.dependent:
            self.order.ran = np.zeros((total, 32), bool)
        self.writes = Writes(self.shared.tickets, total, self.order)
        self.counts = Counts(options.conflicts)
        self.local = np.zeros((total * 32, -(-program.local_bytes // 16) * 16), np.uint8)
        self.barriers = NamedBarriers(warps, self.wake, self.order)
        self.clusters = [ClusterBarrier(range(i, i + size)) for i in range(0, total, size)]
        self.cluster_phases: dict[int, int] = {}  # of warps between arrive and wait
        self._together = [step.together for step in program.steps]
        self.events: list[tuple[int, int, Callable[[], None]]] = []  # see `later`
        self.extra: dict[str, Any] = {}  # state of the Hopper and Blackwell parts
        self.log: list[Event] = []
        self.traced: list[tuple[int, int]] = []  # (segment, lanes) of the warp that is traced
        self._traced_row = self._row_of(options.trace)
        self.ran = 0
        self.executed = [0] * len(program.steps)
        self._rows: dict[tuple[int, int], Rows] = {}
        shapes = {0: np.bool_, 2: np.uint16, 4: np.uint32, 8: np.uint64}
        self.registers: dict[int, Any] = {
            width: np.zeros((program.registers[width], total, 32), dtype)
            for width, dtype in shapes.items()
        }
        self._watch = Watch(options.budget)
        self.specials = [special(geometry, first, count, *each) for each in program.specials]

    def rows(self, lo: int, hi: int) -> Rows:
        """Return the group of some warps, the same object each time."""
        key = (lo, hi)
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = Rows(self, lo, hi)
        return found

    # -- the scheduler

    def run(self) -> None:
        """Run all warps to their end.

        Raises
        ------
        KernelFault
            The kernel did what it must not, or its warps wait for each other.
        """
        steps = self.program.steps
        with np.errstate(all="ignore"):
            while True:
                if self.events and self.rng.random() < EARLY:
                    self.deliver()
                group = self.pick()
                if group is None:
                    if self.events:
                        self.deliver()
                        continue
                    if all(status == DONE for status in self.status):
                        break
                    raise self.deadlock()
                self.step(steps[self.at[group.lo]], group)
            self.finish()

    def deliver(self) -> None:
        """Let one of the things happen that hardware does in its own time."""
        row, self.line, action = self.events.pop(self.rng.randrange(len(self.events)))
        try:
            action()
        except Fault as fault:
            raise self.blamed(str(fault), self.line, row) from None
        except MALFORMED as error:
            raise self.blamed(_senseless(error), self.line, row) from error

    def later(self, row: int, line: int, action: Callable[[], None]) -> None:
        """Have something happen in the hardware's own time, that a warp started."""
        self.events.append((row, line, action))

    def blamed(self, message: str, line: int, row: int) -> KernelFault:
        """Return the fault of a line of a warp."""
        site = Site(line, self.cta_of(row), row % self.geometry.warps)
        return KernelFault(message, site, self.program.module.line(line))

    def pick(self) -> Rows | None:
        """Choose the warps that run next: mostly those furthest behind, so that warps meet."""
        status, at = self.status, self.at
        together = self._together
        ready = [
            w for w, s in enumerate(status)
            if s == READY and (not together[at[w]] or self.gathered(w))
        ]  # fmt: skip
        if not ready:
            return None
        if self.options.lockstep and self.rng.random() < 0.9:
            first = min(ready, key=at.__getitem__)
        else:
            first = self.rng.choice(ready)
        segment = at[first]
        lo = hi = first
        if self.options.lockstep:
            here = {w for w in ready if at[w] == segment}
            while lo - 1 in here:
                lo -= 1
            while hi + 1 in here:
                hi += 1
        elif together[segment]:
            lo = first - first % self.geometry.warps % WARPGROUP
            hi = lo + WARPGROUP - 1
        return self.rows(lo, hi + 1)

    def gathered(self, row: int) -> bool:
        """Whether all four warps of a warpgroup are ready at the same segment.

        Raises
        ------
        KernelFault
            The CTA has fewer threads than would fill the warpgroup.
        """
        first = row - row % self.geometry.warps % WARPGROUP
        if 32 * (first % self.geometry.warps + WARPGROUP) > self.geometry.threads:
            text = f"a block of {self.geometry.threads} threads has no whole warpgroup here"
            raise self.blamed(text, self.program.steps[self.at[row]].lines[0], row)
        return all(
            self.status[w] == READY and self.at[w] == self.at[row]
            for w in range(first, first + WARPGROUP)
        )

    def step(self, step: Step, g: Rows) -> None:
        """Run one segment."""
        lo, hi = g.lo, g.hi
        m: Any = True if all(self.full[lo:hi]) else self.mask[lo:hi].copy()
        self.executed[self.at[lo]] += hi - lo
        self.ran += (hi - lo) * (step.segment.last - step.segment.first)
        if lo <= self._traced_row < hi:
            lanes = self.mask[self._traced_row]
            self.traced.append((self.at[lo], int((lanes * (1 << np.arange(32))).sum())))
        V, i = g.V, -1
        try:
            if self.ran > self._watch.due:
                self._watch.look(self.ran, self.registers, self.program.kernel.name)
            for i, op in enumerate(step.ops):  # noqa: B007
                op(V, m, g)
            i = len(step.ops)
            self.line = step.lines[-1]
            if step.stop is None:
                self.go(g, step.next)
            else:
                step.stop(V, m, g)
        except Fault as fault:
            raise self.located(fault, step, i, g, m) from None
        except MALFORMED as error:
            raise self.located(Fault(_senseless(error)), step, max(i, 0), g, m) from error

    def located(self, fault: Fault, step: Step, i: int, g: Rows, m: Any) -> KernelFault:
        """Say where a fault happened."""
        line = fault.line or step.lines[i]
        row, lane = g.lo, None
        if fault.thread is not None:
            lanes = np.flatnonzero(np.broadcast_to(m, (g.n, 32)))
            thread = int(lanes[fault.thread]) if fault.thread < len(lanes) else 0
            row, lane = g.lo + thread // 32, thread % 32
        site = Site(line, self.cta_of(row), row % self.geometry.warps, lane)
        return KernelFault(str(fault), site, self.program.module.line(line))

    def cta_of(self, row: int) -> tuple[int, int, int]:
        """Return the coordinates of a warp's CTA in the grid."""
        x, y, z = cta_coordinates(self.geometry, self.first + row // self.geometry.warps)
        return int(x), int(y), int(z)

    def _row_of(self, trace: tuple[tuple[int, int, int], int] | None) -> int:
        """Return the row of the warp to trace; -1 where it is not here."""
        if trace is not None:
            for n in range(self.count):
                if self.cta_of(n * self.geometry.warps) == tuple(trace[0]):
                    return n * self.geometry.warps + trace[1]
        return -1

    def record(
        self, what: str, detail: str, line: int, row: int, *, hardware: bool = False
    ) -> None:
        """Keep an event, if events are requested; `row` is a warp of the CTA where it happens."""
        if self.options.events:
            warp = None if hardware else row % self.geometry.warps
            self.log.append(Event(self.cta_of(row), warp, what, detail, line))

    def deadlock(self) -> KernelFault:
        """Return the fault of a deadlock: who waits for what, the smallest groups first."""
        blocked = [w for w, s in enumerate(self.status) if s != DONE]
        for w in blocked:
            if self.status[w] == READY:
                self.reason[w] = "wgmma waits for the other warps of the warpgroup"
                self.waits_at[w] = self.program.steps[self.at[w]].lines[0]
        seen: dict[tuple[int, str], list[int]] = {}
        for w in blocked:
            seen.setdefault((self.waits_at[w], str(self.reason[w])), []).append(w)
        parts = []
        groups = sorted(seen.items(), key=lambda group: (len(group[1]), group[0]))
        for (line, reason), rows in groups:
            names = ", ".join(f"{self.cta_of(w)}/{w % self.geometry.warps}" for w in rows[:8]) + (
                ", ..." if len(rows) > 8 else ""
            )
            parts.append(f"line {line}: {reason} (CTA/warp {names})")
        done = sum(status == DONE for status in self.status)
        row = groups[0][1][0]
        text = f"deadlock, {done} of {self.warps} warps have ended; " + "; ".join(parts)
        return self.blamed(text, self.waits_at[row], row)

    def finish(self) -> None:
        """Check that nothing is left over.

        Raises
        ------
        KernelFault
            A barrier that some came to and others did not, a copy that nobody waited for.
        """
        if not self.options.leftovers:
            for number, barrier in self.barriers.unbalanced():
                raise self.blamed(
                    f"barrier {number} is left unbalanced: {barrier.arrived} of "
                    f"{barrier.expected} threads came to it after it was last complete",
                    barrier.line,
                    barrier.row,
                )
        for check in AT_END:
            for mistake in check(self):
                if self.options.strict:
                    raise self.blamed(*mistake)

    # -- segments, masks and divergence

    def go(self, g: Rows, segment: int) -> None:
        """Send warps to a segment."""
        for row in range(g.lo, g.hi):
            self.send(row, segment)

    def send(self, row: int, segment: int) -> None:
        """Send a warp to a segment; paths that meet there are joined, or the next one is begun."""
        stack = self.stack[row]
        while stack and segment == stack[-1].meet:
            top = stack[-1]
            if top.waiting:
                segment, mask = top.waiting.pop()
            else:
                stack.pop()
                mask = top.mask
            mask = mask & self.alive[row]
            if mask.any():
                self.activate(row, mask)
            elif stack:  # all lanes of this path have ended: it is over
                segment = stack[-1].meet
            else:
                segment = EXIT
        if segment == EXIT:
            self.end(row)
            return
        self.at[row] = segment
        self.status[row] = READY

    def activate(self, row: int, mask: Any) -> None:
        """Let these lanes of a warp run."""
        self.mask[row] = mask
        self.full[row] = bool(mask.all())

    def end(self, row: int) -> None:
        """End a warp.

        Raises
        ------
        KernelFault
            It did not wait for its copies, or its CTA ends while others use its shared memory.
        """
        self.status[row] = DONE
        self.alive[row] = False
        if self.options.strict and self.writes.unwaited(row):
            text = "the warp ends and did not wait for its cp.async copies"
            raise self.blamed(text, self.line, row)
        if self.reached is not None and self.has_ended(cta := row // self.geometry.warps):
            try:
                self.reached.check_end(cta)
            except Fault as fault:
                raise self.blamed(str(fault), self.line, row) from None
        self.cluster_arrived(self.cluster_of(row))

    def converged(self, g: Rows, m: Any, name: str) -> None:
        """Check that all lanes that have not ended are here.

        Raises
        ------
        Fault
            One is on another path.
        """
        if m is True:
            return
        missing = (g.alive & ~np.broadcast_to(m, (g.n, 32))).any(-1)
        if missing.any():
            here = np.broadcast_to(m, (g.n, 32))[: int(np.argmax(missing))]
            raise Fault(f"{name} is reached by a part of a warp only", int(here.sum()))

    # -- waiting

    def block(self, row: int, reason: object) -> None:
        """Take a warp out of the choice until `wake`."""
        self.status[row] = BLOCKED
        self.reason[row] = reason
        self.waits_at[row] = self.line

    def wake(self, rows: list[int]) -> None:
        """Put warps back into the choice."""
        for row in rows:
            if self.status[row] == BLOCKED:
                self.status[row] = READY

    def cluster_of(self, row: int) -> ClusterBarrier:
        """Return the barrier of a warp's cluster."""
        return self.clusters[row // (self.geometry.cluster_size * self.geometry.warps)]

    def cluster_arrived(self, cluster: ClusterBarrier) -> None:
        """Complete a cluster's barrier if all its warps that have not ended are there."""
        running = {row for row in cluster.warps if self.status[row] != DONE}
        if cluster.arrived and cluster.arrived >= running:
            cluster.arrived = set()
            cluster.phase += 1
            waiting, cluster.waiting = cluster.waiting, []
            cluster.known, cluster.told = joined(cluster.known, cluster.told), None
            for row in waiting:
                self.order.acquire(row, cluster.known)
            self.wake(waiting)

    def has_ended(self, cta: int) -> bool:
        """Whether all warps of a CTA have ended, and its shared memory is gone."""
        warps = self.geometry.warps
        return all(status == DONE for status in self.status[cta * warps : (cta + 1) * warps])

    def cluster_bases(self, bases: Any, ranks: Any) -> Any:
        """Return where the shared memories of CTAs of the cluster begin, by their ranks.

        Raises
        ------
        Fault
            There is no such CTA in the cluster.
        """
        size, pitch = self.geometry.cluster_size, self.shared.pitch
        if (ranks >= size).any():
            raise Fault(f"an address names a CTA that is not in this cluster of {size}")
        return (bases // pitch // size * size + ranks.astype(np.int64)) * pitch

    def cluster_ctas(self, cta: int, mask: int | None = None) -> list[int]:
        """Return the CTAs of a CTA's cluster, or those of a multicast mask.

        Raises
        ------
        Fault
            The mask names none, or one that is not in the cluster.
        """
        size = self.geometry.cluster_size
        mask = (1 << size) - 1 if mask is None else mask
        if not mask or mask >> size:
            raise Fault(f"the multicast mask {mask:#x} does not fit a cluster of {size}")
        return [cta // size * size + n for n in range(size) if mask >> n & 1]

    # -- other memories, counts

    def local_elements(self, addresses: Any, m: Any, g: Rows, ahead: int, width: int) -> Any:
        """Return a view of all local memories, and the indices in it of accesses.

        Raises
        ------
        Fault
            Out of bounds.
        """
        flat = addresses.astype(np.int64) + ahead
        if (flat < 0).any() or (flat + width > self.program.local_bytes).any():
            raise Fault("an address in local memory is out of bounds")
        if (flat % width).any():
            raise Fault(f"an address in local memory is not aligned to {width} bytes")
        pitch = self.local.shape[1]
        threads = np.arange(g.lo * 32, g.hi * 32).reshape(g.n, 32)
        mine = threads.reshape(-1) if m is True else threads[m]
        return self.local.reshape(-1).view(carrier(width)), (mine * pitch + flat) // width
