"""cp.async.bulk and cp.reduce.async.bulk of plain memory: no tensor map, multiples of 16 bytes.

What goes to shared memory is there at once and may be read when its mbarrier has counted it; what
comes from shared memory is read as late as hardware may.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.arithmetic import instruction
from ..core.dependency import after_wait
from ..core.memory import carrier
from ..core.program import DTYPES, Builder, Op, width_of
from ..core.updates import NAMES, update_of
from ..ptx.faults import Fault, at_thread
from ..ptx.ptx import Instruction
from .bulk_stores import start_store
from .mbarriers import barrier_at
from .tma import arrival, bring, explain, multicast_places, threads_of, unready
from .transfer import active, address_of, flat_shared

__all__: list[str] = []

_INTEGERS = ("u32", "s32", "u64", "s64", "b32", "b64")


def _known(b: Builder, parts: tuple[str, ...], *known: str) -> None:
    for part in parts:
        if part not in (*known, "L2::cache_hint"):
            raise b.error(f"the modifier .{part} is not implemented")


def _reduction(b: Builder, i: Instruction, after: int) -> tuple[str, Any]:
    """Return the type and the function of a reduction."""
    names = [part for part in i.parts[after:] if part in NAMES]
    kind = i.parts[-1]
    update = update_of(names[0], kind) if len(names) == 1 and kind in DTYPES else None
    if update is None or kind.endswith("x2"):
        raise b.error("there is no such reduction")
    return kind, update


def _units(places: Any, size: int) -> Any:
    return places + 16 * np.arange(size // 16, dtype=np.int64)


def _shared_units(machine: Any, place: int, size: int) -> Any:
    """Return the 16-byte units of a piece of shared memory.

    Raises
    ------
    Fault
        It is out of bounds, or its size is no multiple of 16.
    """
    shared = machine.shared
    if size % 16 or not size:
        raise Fault(f"a bulk copy of {size} bytes is no multiple of 16")
    if place % shared.pitch + size > shared.base + shared.size:
        raise Fault(f"{size} bytes from shared address {place % shared.pitch} on are out of bounds")
    return _units(place, size)


# -- to shared memory ------------------------------------------------------------------------------


@instruction("cp.async.bulk.shared::cluster", "cp.async.bulk.shared::cta")
def load(b: Builder, i: Instruction) -> Op:
    """Bring memory, from the device's or from the CTA's own, counted by an mbarrier."""
    outside = i.parts[4] == "global"
    if not outside and i.parts[3:5] != ("shared::cluster", "shared::cta"):
        raise b.error("this direction is not known")
    more = ("multicast::cluster",) if outside else ()
    _known(b, i.parts[5:], "mbarrier::complete_tx::bytes", *more)
    start = _load_global if outside else _load_shared
    return _counted(b, i, start)


@instruction("cp.reduce.async.bulk.shared::cluster")
def reduce_shared(b: Builder, i: Instruction) -> Op:
    """Add the CTA's own memory to that of another CTA, or another of the operations."""
    kind, update = _reduction(b, i, 6)
    if i.parts[5] != "shared::cta" or kind not in _INTEGERS:
        raise b.error("this direction or type is not known")
    _known(b, i.parts[6:], "mbarrier::complete_tx::bytes", kind, *NAMES)

    def start(machine: Any, source: int, size: int, targets: Any, line: int,
              who: tuple[int, int]) -> None:  # fmt: skip
        ((place, signal),) = targets
        units = _shared_units(machine, place, size)
        words, bad = unready(machine, units)
        if machine.options.strict and bad.any():
            raise Fault(f"the reduction updates {explain(machine, words, bad)}")

        def join(new: Any) -> Any:
            native = DTYPES[kind]
            old = machine.shared.views[16].take(units // 16)
            return update(old.view(native), new.view(native)).view(carrier(16))

        _later(machine, source, size, place, signal, line, who, join)

    return _counted(b, i, start)


def _counted(b: Builder, i: Instruction, start: Any) -> Op:
    """Compile ``[to], [from], size, [mbarrier], mask``, each copy of a warp started once."""
    outside = "global" in i.parts
    to, signal = address_of(b, i.operands[0]), address_of(b, i.operands[3])
    source = address_of(b, i.operands[1], "u64" if outside else "u32")
    count, line = b.source(i.operands[2], "u32"), i.line
    mask = b.source(i.operands[4], "u16") if "multicast::cluster" in i.parts else None

    def op(V: list[Any], m: Any, g: Any) -> None:
        machine, bases = g.machine, active(g.base, m, g)
        if outside:
            after_wait(g, m)
        places = flat_shared(active(to(V), m, g), bases, g, 16, cluster=True)
        signals = flat_shared(active(signal(V), m, g), bases, g, 8, cluster=True)
        sources = active(source(V), m, g)
        if not outside:
            sources = flat_shared(sources, bases, g, 16)
        sizes = active(V[count], m, g)
        masks = None if mask is None else active(V[mask], m, g)
        requested = set()
        for n, who in enumerate(threads_of(m, g)):
            row, place, size = who[0], int(places[n]), int(sizes[n])
            key = (row, place, int(sources[n]), size)
            if key in requested:
                continue
            requested.add(key)
            targets = [(place, int(signals[n]))]
            where = place % machine.shared.pitch
            machine.record("load", f"{size} bytes to shared address {where}", line, row)
            with at_thread(n):
                if masks is not None:
                    chosen = int(masks[n])
                    targets = multicast_places(machine, chosen, int(bases[n]), *targets[0], False)
                for end, barrier in targets:
                    if end // machine.shared.pitch != barrier // machine.shared.pitch:
                        raise Fault("the mbarrier is not in the CTA that the data goes to")
                start(machine, int(sources[n]), size, targets, line, who)

    return op


def _load_global(machine: Any, source: int, size: int, targets: Any, line: int,
                 who: tuple[int, int]) -> None:  # fmt: skip
    for place, signal in targets:
        units = _shared_units(machine, place, size)
        data = machine.memory.load(np.uint64(source) + _units(0, size).astype("u8"), 16)
        ticket = bring(machine, who, units, data)
        machine.counts.tma_loaded += size
        arrival(machine, barrier_at(machine, signal), size, ticket, line, who[0])


def _load_shared(machine: Any, source: int, size: int, targets: Any, line: int,
                 who: tuple[int, int]) -> None:  # fmt: skip
    ((place, signal),) = targets
    _later(machine, source, size, place, signal, line, who, lambda data: data)


def _later(machine: Any, source: int, size: int, place: int, signal: int, line: int,
           who: tuple[int, int], join: Any) -> None:  # fmt: skip
    """Start a copy between CTAs: both ends are as if in use until it is complete."""
    shared, units = machine.shared, _shared_units(machine, source, size)
    words, bad = unready(machine, units)
    if machine.options.strict and bad.any():
        raise Fault(f"the copy reads {explain(machine, words, bad)}")
    to = _shared_units(machine, place, size)
    if machine.order is not None:
        machine.order.taken(*who, words[..., 0], "the copy")
    ticket = bring(machine, who, to, shared.views[16].take(to // 16))

    def done() -> None:
        now, _ = unready(machine, units)
        if machine.options.strict and (now != words).any():
            raise Fault(f"shared memory was overwritten before the copy of line {line} had read it")
        if machine.order is not None:
            machine.order.used(units, ticket)
        shared.store(to, join(shared.views[16].take(units // 16)), 16, ticket)

    arrival(machine, barrier_at(machine, signal), size, ticket, line, who[0], done)


# -- from shared memory ----------------------------------------------------------------------------


@instruction("cp.async.bulk.global")
def store(b: Builder, i: Instruction) -> Op:
    """Store a piece of shared memory."""
    _known(b, i.parts[4:], "shared::cta", "bulk_group")
    return _store(b, i, "", None)


@instruction("cp.reduce.async.bulk.global")
def reduce_global(b: Builder, i: Instruction) -> Op:
    """Add a piece of shared memory to device memory, or another of the operations."""
    kind, update = _reduction(b, i, 5)
    _known(b, i.parts[5:], "shared::cta", "bulk_group", "noftz", kind, *NAMES)
    return _store(b, i, kind, update)


def _store(b: Builder, i: Instruction, kind: str, update: Any) -> Op:
    to, source = address_of(b, i.operands[0], "u64"), address_of(b, i.operands[1])
    count, line = b.source(i.operands[2], "u32"), i.line

    def op(V: list[Any], m: Any, g: Any) -> None:
        machine = g.machine
        after_wait(g, m)
        places = flat_shared(active(source(V), m, g), active(g.base, m, g), g, 16)
        there, sizes = active(to(V), m, g), active(V[count], m, g)
        requested = set()
        for n, who in enumerate(threads_of(m, g)):
            key = (who[0], int(there[n]), int(places[n]), int(sizes[n]))
            if key in requested:
                continue
            requested.add(key)
            with at_thread(n):
                units = _shared_units(machine, key[2], key[3])
                write = _writer(machine, key[1], kind, update)
                what = f"{key[3]} bytes from shared address {key[2] % machine.shared.pitch}"
                start_store(machine, who, what, units, write, line)

    return op


def _writer(machine: Any, address: int, kind: str, update: Any) -> Any:
    width = width_of(kind) if kind else 16

    def write(units: Any) -> None:
        values = units.view(carrier(width))
        there = np.uint64(address) + width * np.arange(len(values), dtype=np.uint64)
        if address % 16:
            raise Fault(f"the address {address:#x} of a bulk copy is no multiple of 16")
        if update is not None:
            native = DTYPES[kind]
            old = machine.memory.load(there, width).view(native)
            values = update(old, values.view(native)).view(carrier(width))
        machine.memory.store(there, values, width)

    return write


@instruction("cp.async.bulk.prefetch.L2.global")
def prefetch(b: Builder, i: Instruction) -> Op:
    """Check that memory is there: caches are not modelled."""
    _known(b, i.parts[6:])
    source, count = address_of(b, i.operands[0], "u64"), b.source(i.operands[1], "u32")

    def op(V: list[Any], m: Any, g: Any) -> None:
        threads = zip(active(source(V), m, g), active(V[count], m, g), strict=True)
        for n, (address, size) in enumerate(threads):
            with at_thread(n):
                if size % 16:
                    raise Fault(f"a bulk copy of {size} bytes is no multiple of 16")
                g.machine.memory.load(address + _units(0, int(size)).astype("u8"), 16)

    return op
