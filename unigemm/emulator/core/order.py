"""What happens before what: vector clocks of warps, and races on shared and tensor memory.

Each warp counts epochs; an epoch ends where the warp tells others what it has done (it arrives at
a barrier) or where its lanes meet (``bar.warp.sync``). Writes and reads have tickets (`memory`),
which say whose they are and of which epoch, and each warp knows up to which epoch it is behind
every other thread of its cluster. What a copy or a product does has a number of its own (`number`)
instead of a thread's, known to those that have waited for it. So has ``griddepcontrol.wait``.

Of each word the last write and the last access are kept, so that a race is found between an access
and the one before it, not between all pairs; of accesses of 1 and 2 bytes it is known which bytes
of the word they are. Lanes that wait for a barrier by themselves pass what they learn to their
whole warp. What CTAs of a cluster do in each other's shared memory: see `reached`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import SharedMemory, words_of

__all__ = ["Order", "joined", "load_shared", "store_shared"]

_NEVER = 2**31 - 1
_MORE = 64  # numbers of copies, barriers and products that there is room for at first


class Order:
    """What the warps of some CTAs know of each other.

    Attributes
    ----------
    known
        Up to which epoch a warp is behind each thread, copy and product of its cluster.
    clock
        The epoch of each warp.
    behind
        As `known`, of what the tcgen05 instructions of a warp are behind: ``tcgen05.fence`` takes
        over what the warp knows.
    """

    def __init__(self, shared: SharedMemory, warps: int, of_cta: int, cluster: int) -> None:
        self.shared, self.tickets, self.mistake = shared, shared.tickets, shared.mistake
        self.of_cta, self.cluster = of_cta, cluster  # warps of each
        self.last = np.zeros(len(shared.words), np.int32)
        self.written_part, self.used_part = Parts(self.last), Parts(self.last)
        self.width = 32 * cluster + _MORE
        self.known = np.zeros((warps, self.width), np.int32)
        self.behind = np.zeros_like(self.known)
        self._done: dict[int, list[int]] = {}
        self.clock = np.ones(warps, np.int32)
        self.fences: dict[int, Any] = {}  # what fences of a cluster have made known
        self.waited = 32 * cluster  # known to those that are behind griddepcontrol.wait
        self.ran: Any = None  # which threads have run it; None where nobody need
        self.products: list[int] = []  # the numbers of tcgen05's queues
        self.loads: list[int] = []  # the numbers of what warps load from other CTAs
        self._numbers = [self.waited + 1] * (warps // cluster)
        self.rows = np.repeat(np.arange(warps), 32).reshape(warps, 32)
        self.threads = np.arange(32 * warps).reshape(warps, 32) % (32 * cluster)

    # -- numbers and tickets

    def number(self, row: int) -> int:
        """Return a number, for a copy, a barrier or a product of a warp's cluster."""
        cluster = row // self.cluster
        found = self._numbers[cluster]
        self._numbers[cluster] += 1
        if found == self.width:
            self.width *= 2
            self.known = _wider(self.known, self.width)
            self.behind = _wider(self.behind, self.width)
        return found

    def begin(self, lo: int, hi: int) -> Any:
        """Return new tickets for the threads of some warps, in their epochs, (n, 32)."""
        first = self.tickets.block(32 * (hi - lo))
        found = np.arange(first, first + 32 * (hi - lo), dtype=np.int32).reshape(-1, 32)
        self.tickets.who[found] = self.threads[lo:hi]
        self.tickets.when[found] = self.clock[lo:hi, None]
        return found

    # -- what is known

    def release(self, row: int, lanes: Any = None) -> Any:
        """Return what a warp, or only some of its lanes, can tell by now.

        The caller begins a new epoch: see `Machine.told`.
        """
        told = self.known[row].copy()
        own = self._own(row)
        if lanes is None:
            self.known[row, own] = self.clock[row]
            told[own] = self.clock[row]
        else:
            told[own][lanes] = self.clock[row]
        if self.ran is not None and self.ran[row][slice(None) if lanes is None else lanes].any():
            told[self.waited] = 1
        return told

    def acquire(self, row: int, told: Any) -> None:
        """Let a warp know what it is told."""
        if told is not None:
            mine = self.known[row]
            np.maximum(mine[: len(told)], told, out=mine[: len(told)])

    def met(self, row: int, lanes: Any) -> None:
        """Let the lanes of a warp that have met know of each other."""
        self.known[row, self._own(row)][lanes] = self.clock[row]
        if self.ran is not None and self.ran[row][lanes].any():
            self.known[row, self.waited] = 1

    def fence(self, row: int) -> None:
        """Order a warp behind every fence of its cluster before this one.

        Threads may tell each other in memory, which is not followed.
        """
        cluster = row // self.cluster
        self.acquire(row, self.fences.get(cluster))
        self.fences[cluster] = joined(self.fences.get(cluster), self.release(row))

    def _own(self, row: int) -> slice:
        first = 32 * (row % self.cluster)
        return slice(first, first + 32)

    # -- tensor memory

    def tensor_ticket(self, row: int) -> int:
        """Return a ticket for what a warp does by tcgen05.ld and st, up to its next fence."""
        mine = self._done.setdefault(row, [0, 1, 0])  # number, how many, ticket
        if not mine[2]:
            mine[0] = mine[0] or self.number(row)
            mine[2] = self.tickets.new(readable=True, fenced=True)
            self.tickets.belongs(mine[2], mine[0], mine[1])
        return mine[2]

    def before_sync(self, row: int) -> None:
        """Let what a warp does by tcgen05.ld and st be known to those that it tells next."""
        mine = self._done.get(row)
        if mine is not None and mine[2]:
            self.known[row, mine[0]] = mine[1]
            mine[1:] = mine[1] + 1, 0

    def after_sync(self, row: int) -> None:
        """Order the next tcgen05 instructions of a warp behind all that it knows."""
        self.behind[row] = self.known[row]

    def relaxed(self, row: int) -> Any:
        """Return what a relaxed arrival of a warp tells: of tensor memory, and what was loaded."""
        told = np.zeros(self.width, np.int32)
        numbers = [each[0] for each in self._done.values()] + self.products + self.loads
        told[numbers] = self.known[row, numbers]
        return told

    def tensor(self, row: int, tickets: Any, what: str, before: str, mine: int = 0) -> None:
        """Check that a tcgen05 instruction of a warp is behind the accesses of tickets.

        `mine` is the number of its queue, whose work is done in order.

        Raises
        ------
        Fault
            It is not.
        """
        who = self.tickets.who.take(tickets)
        late = self.behind[row].take(who) < self.tickets.when.take(tickets)
        late &= who != self._done.get(row, (0,))[0]
        if mine:
            late &= who != mine
        if late.any():
            self.mistake(self.race(what, int(np.asarray(tickets)[late][0]), before, "tensor"))

    def operand(self, row: int, lane: int, words: Any, what: str) -> None:
        """Check that a tcgen05 instruction is behind the writes of shared memory that it reads.

        Raises
        ------
        Fault
            The thread waited for nothing, or no fence is behind its wait.
        """
        self.taken(row, lane, words, what)
        who = self.tickets.who.take(words)
        late = self.behind[row].take(who) < self.tickets.when.take(words)
        late &= (who < self._own(row).start) | (who >= self._own(row).stop)
        if late.any():
            self.mistake(
                f"{what} reads shared memory that the thread has waited for, with no "
                "tcgen05.fence::after_thread_sync behind the wait"
            )

    # -- races

    def late(self, tickets: Any, rows: Any, threads: Any) -> Any:
        """Return which tickets are of accesses that threads are not behind."""
        who, when = self.tickets.who.take(tickets), self.tickets.when.take(tickets)
        return (self.known.reshape(-1).take(rows * self.width + who) < when) & (who != threads)

    def read(self, g: Any, m: Any, words: Any, found: Any, part: Any) -> None:
        """Check that the active lanes read what they are behind, and note that they read it.

        Parameters
        ----------
        words, found
            The words of each access, and the tickets under which they were written.
        part
            See `_part`.

        Raises
        ------
        Fault
            Nothing orders a read behind the write before it.
        """
        rows, threads, own = self.active(g, m)
        late = self.late(_distinct(found), rows, threads)
        if part is not None:
            late &= self.written_part.meets(words, found, part)
            self.used_part.note(words, own, part)
        if late.any():
            lane, word = (int(x[0]) for x in np.nonzero(late))
            self.mistake(self.race("reads", int(found[lane, word]), "wrote"), lane)
        self.last[words] = own

    def write(
        self, g: Any, m: Any, offsets: Any, width: int, values: Any, tickets: Any = None
    ) -> None:
        """Check that the active lanes write behind every access before, and note that they do.

        `tickets` are those under which they write; by default those of ordinary accesses.

        Raises
        ------
        Fault
            Nothing orders a write behind the access before it, and it changes what is there.
        """
        rows, threads, own = self.active(g, m)
        words, part = words_of(offsets, width), _part(offsets, width)
        found = self.last.take(words)
        late = self.late(_distinct(found), rows, threads)
        if part is not None:
            late &= self.used_part.meets(words, found, part)
            self.used_part.note(words, own, part)
            self.written_part.note(words, own, part)
        if late.any():
            old = self.shared.views[width].take(offsets // width).view(np.uint8)
            new = np.ascontiguousarray(values).view(np.uint8)
            late = late & (old != new).reshape(-1, width).any(-1, keepdims=True)
        if late.any():
            lane, word = (int(x[0]) for x in np.nonzero(late))
            self.mistake(self.race("writes", int(found[lane, word]), "used"), lane)
        self.last[words] = own if tickets is None else tickets[:, None]

    def active(self, g: Any, m: Any) -> tuple[Any, Any, Any]:
        """Return the warps, the threads and the tickets of the active lanes, (lanes, 1)."""
        if m is True:
            return g.threads
        here = np.broadcast_to(m, (g.n, 32)).reshape(-1)
        rows, threads, tickets = g.threads
        return rows[here], threads[here], tickets[here]

    def matrices(self, g: Any, lines: Any, *, stored: bool) -> None:
        """Check the rows of 8x8 matrices, each as an access of the lane that names it.

        `lines` are the byte offsets of the rows, (warps, matrices, 8).
        """
        n = lines.shape[1] * 8
        lanes = np.zeros((g.n, 32), bool)
        lanes[:, :n] = True
        first = lines.reshape(-1, 1) >> 2
        rows, threads, own = self.active(g, lanes)
        found = (self.last if stored else self.shared.words).take(first)
        late = self.late(found, rows, threads)
        if late.any():
            lane = int(np.argmax(late))
            what, before = ("writes", "used") if stored else ("reads", "wrote")
            text = self.race(what, int(found[lane, 0]), before)
            self.mistake(text, lane // n * 32 + lane % n)
        self.last[first] = own

    def brought(self, who: tuple[int, int], units: Any, ticket: int) -> None:
        """Check that a copy that a thread starts overwrites only what the thread is behind.

        Raises
        ------
        Fault
            It does not.
        """
        row, lane = who
        words = words_of(units, 16)
        found = self.last.take(words)
        late = self.late(found, row, self.threads[row, lane])
        if late.any():
            self.mistake(self.race("overwrites", int(found[late][0]), "used"))
        self.last[words] = ticket

    def in_flight(self, ticket: int) -> None:
        """Let nobody be behind a copy until it has ended."""
        self.tickets.belongs(ticket, self.waited, _NEVER)

    def taken(self, row: int, lane: int | None, words: Any, what: str) -> None:
        """Check that a copy or product reads only what the thread that starts it is behind.

        Without a lane a warpgroup starts it together. `words` are the tickets of what it reads.

        Raises
        ------
        Fault
            The thread is not, or no warp of the warpgroup.
        """
        thread = -1 if lane is None else self.threads[row, lane]
        late = self.late(words, row, thread)
        for each in range(row + 1, row + 4) if lane is None and late.any() else ():
            late &= self.late(words, each, thread)
        if late.any():
            self.mistake(self.race(f"{what} reads", int(words[late][0]), "wrote"))

    def behind_fence(self, units: Any) -> None:
        """Check that whoever used 16-byte units last has a proxy fence behind that.

        Raises
        ------
        Fault
            The asynchronous proxy would overwrite what ordinary instructions may not have read.
        """
        found = self.last.take(words_of(units, 16))
        if (~self.tickets.fenced[found] & (found > 1)).any():
            self.mistake(
                "it overwrites shared memory that ordinary instructions used with no "
                "fence.proxy.async behind them"
            )

    def used(self, units: Any, ticket: int) -> None:
        """Note that a copy or product has read 16-byte units (by their first words)."""
        self.last[units.reshape(-1) >> 2] = ticket

    def race(self, what: str, ticket: int, before: str, memory: str = "shared") -> str:
        """Return the message for an access that is not ordered behind that of a ticket."""
        thread = int(self.tickets.who[ticket])
        other = "a copy or product" if memory == "shared" else "a product or another warp"
        if thread < 32 * self.cluster:
            other = self.who(thread)
        what = what if " " in what else f"it {what}"
        means = "barrier" if memory == "shared" else "barrier between tcgen05.fences"
        return f"race: {what} {memory} memory that {other} {before}, and no {means} orders the two"

    def who(self, thread: int) -> str:
        """Return a thread of a cluster in words."""
        found = f"lane {thread % 32} of warp {thread // 32 % self.of_cta}"
        if self.cluster > self.of_cta:
            found += f" of CTA {thread // 32 // self.of_cta} of the cluster"
        return found


class Parts:
    """Which bytes of a word an access of 1 or 2 bytes was of; any other is of all of them."""

    def __init__(self, words: Any) -> None:
        self.ticket, self.part = np.zeros_like(words), np.zeros(len(words), np.uint8)

    def meets(self, first: Any, tickets: Any, part: Any) -> Any:
        """Return which of the accesses of tickets have bytes of a part of their word."""
        return (self.ticket.take(first) != tickets) | (self.part.take(first) & part != 0)

    def note(self, first: Any, tickets: Any, part: Any) -> None:
        """Note parts of words that are used under tickets."""
        again = self.ticket.take(first) == tickets
        self.part[first] = np.where(again, self.part.take(first) | part, part)
        self.ticket[first] = tickets


def _distinct(found: Any) -> Any:
    """Return the tickets of accesses, of all words or of the first: mostly one wrote all words."""
    first = found[:, :1]
    return first if found.shape[1] == 1 or (found == first).all() else found


def _part(offsets: Any, width: int) -> Any:
    """Return the bytes of its word that each access has, as bits; None where it has them all."""
    return None if width >= 4 else ((1 << width) - 1 << (offsets[:, None] & 3)).astype(np.uint8)


def load_shared(g: Any, m: Any, offsets: Any, width: int, ordered: bool) -> Any:
    """Load from shared memory in the active lanes; nothing else orders what is `ordered`."""
    shared = g.machine.shared
    if g.machine.reached is not None:
        g.machine.reached.loads(g, m, offsets)
    words = words_of(offsets, width)
    found = shared.words.take(words)
    shared.readable(found)
    if ordered:
        g.machine.order.read(g, m, words, found, _part(offsets, width))
    return shared.views[width].take(offsets // width)


def store_shared(
    g: Any, m: Any, offsets: Any, width: int, values: Any, ordered: bool, tickets: Any = None
) -> None:
    """Store to shared memory in the active lanes, by default under the tickets of the lanes."""
    machine = g.machine
    if machine.reached is not None:
        machine.reached.changes(g, m, offsets)
    if ordered:
        machine.order.write(g, m, offsets, width, values, tickets)
    if tickets is None:
        tickets = machine.order.active(g, m)[2]
    machine.shared.store(offsets, values, width, tickets)


def joined(told: Any, more: Any) -> Any:
    """Return all that two can tell."""
    if told is None or more is None:
        return more if told is None else told
    if len(told) < len(more):
        told, more = more, told
    both = told.copy()
    np.maximum(both[: len(more)], more, out=both[: len(more)])
    return both


def _wider(known: Any, width: int) -> Any:
    wide = np.zeros((len(known), width), np.int32)
    wide[:, : known.shape[1]] = known
    return wide
