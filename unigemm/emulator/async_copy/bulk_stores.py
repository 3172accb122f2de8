"""Stores of TMA: shared memory is read, and device memory written, when its group is waited for.

That is as late as hardware may; what is overwritten in between is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..core.arithmetic import instruction, number_of
from ..core.machine import at_end
from ..core.program import Builder, Op
from ..ptx.faults import at_thread
from ..ptx.ptx import Instruction
from .proxy import Source, threads_of

__all__ = ["start_store"]


@dataclass(frozen=True, eq=False)
class Store:
    """A store that has been started.

    Attributes
    ----------
    what
        Where to, for events.
    source
        What is stored.
    write
        Takes the units and writes them.
    """

    what: str
    source: Source
    write: Callable[[Any], None]
    line: int


def start_store(machine: Any, who: tuple[int, int], what: str, units: Any,
                write: Callable[[Any], None], line: int) -> None:  # fmt: skip
    """Put a store into the open group of a thread.

    Raises
    ------
    Fault
        Its source is not there yet.
    """
    machine.record("store", what, line, who[0])
    source = Source.of(machine, units, "the store")
    machine.order.taken(*who, source.words[..., 0], "the store")
    open_group = _stores(machine).setdefault(who, [[]])[-1]
    open_group.append(Store(what, source, write, line))
    machine.counts.tma_stored += 16 * units.size


def _stores(machine: Any) -> dict[tuple[int, int], list[list[Store]]]:
    """Return the groups of stores of each thread; the last is open."""
    return machine.extra.setdefault("stores", {})


def _perform(machine: Any, who: tuple[int, int], store: Store) -> None:
    early = f"before the store of line {store.line} had read it"
    store.write(store.source.read(machine, machine.writes.stores[who], early))


@at_end
def _unwaited(machine: Any) -> Iterator[tuple[str, int, int]]:
    for who, groups in _stores(machine).items():
        for store in (store for group in groups for store in group):
            yield "the kernel ends and no one waited for this store", store.line, who[0]
            _perform(machine, who, store)


@instruction("cp.async.bulk.commit_group")
def commit(b: Builder, i: Instruction) -> Op:
    """Close the group of the stores before."""

    def op(V: Any, m: Any, g: Any) -> None:
        for who in threads_of(m, g):
            groups = _stores(g.machine).get(who)
            if groups is not None:
                groups.append([])

    return op


@instruction("cp.async.bulk.wait_group")
def wait(b: Builder, i: Instruction) -> Op:
    """Wait for all groups of stores but the last few; with .read only until they have read."""
    count = number_of(b, i)

    def op(V: Any, m: Any, g: Any) -> None:
        for n, who in enumerate(threads_of(m, g)):
            groups = _stores(g.machine).get(who, [])
            done = len(groups) - 1 - count
            for group in groups[: max(done, 0)]:
                for store in group:
                    g.machine.record("stored", store.what, store.line, who[0])
                    with at_thread(n):
                        _perform(g.machine, who, store)
            if done > 0:
                del groups[:done]

    return op
