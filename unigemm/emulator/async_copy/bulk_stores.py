"""Stores of TMA: shared memory is read, and device memory written, when its group is waited for.

That is as late as hardware may; what is overwritten in between is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.arithmetic import instruction, number_of
from ..core.program import Builder, Op
from ..ptx.faults import Fault, at_thread
from ..ptx.ptx import Instruction
from .tma import explain, threads_of, unready

__all__ = ["start_store"]


@dataclass(frozen=True, eq=False)
class Store:
    """A store that has been started.

    Attributes
    ----------
    what
        Where to, for events.
    units, words
        The 16-byte units of shared memory, and who wrote them.
    write
        Takes the units and writes them.
    """

    what: str
    units: Any
    words: Any
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
    words, bad = unready(machine, units)
    if machine.options.strict and bad.any():
        raise Fault(f"the store reads {explain(machine, words, bad)}")
    if machine.order is not None:
        machine.order.taken(*who, words[..., 0], "the store")
    open_group = _stores(machine).setdefault(who, [[]])[-1]
    open_group.append(Store(what, units, words, write, line))
    machine.counts.tma_stored += 16 * units.size


def _stores(machine: Any) -> dict[tuple[int, int], list[list[Store]]]:
    """Return the groups of stores of each thread; the last is open."""
    if "stores" not in machine.extra:
        machine.extra["stores"] = {}
        machine.finishing.append(lambda: _check_end(machine))
    return machine.extra["stores"]


def _perform(machine: Any, who: tuple[int, int], store: Store) -> None:
    words, _ = unready(machine, store.units)
    if machine.options.strict and (words != store.words).any():
        raise Fault(
            f"shared memory was overwritten before the store of line {store.line} had read it"
        )
    if machine.order is not None:
        machine.order.used(store.units, machine.writes.stores[who])
    store.write(machine.shared.views[16].take(store.units // 16))


def _check_end(machine: Any) -> None:
    for (row, lane), groups in _stores(machine).items():
        for store in (store for group in groups for store in group):
            if machine.options.strict:
                text = "the kernel ends and no one waited for this store"
                raise machine.blamed(text, store.line, row)
            _perform(machine, (row, lane), store)


@instruction("cp.async.bulk.commit_group")
def commit(b: Builder, i: Instruction) -> Op:
    """Close the group of the stores before."""

    def op(V: list[Any], m: Any, g: Any) -> None:
        for who in threads_of(m, g):
            groups = _stores(g.machine).get(who)
            if groups is not None:
                groups.append([])

    return op


@instruction("cp.async.bulk.wait_group")
def wait(b: Builder, i: Instruction) -> Op:
    """Wait for all groups of stores but the last few; with .read only until they have read."""
    count = number_of(b, i)

    def op(V: list[Any], m: Any, g: Any) -> None:
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
