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
from .proxy import Source, arrival, bring, explain, requests, unready
from .tma import multicast_offsets
from .transfer import active, address_of, flat_shared

__all__: list[str] = []

_HINT = "L2::cache_hint"
_INTEGERS = ("u32", "s32", "u64", "s64", "b32", "b64")


def _reduction(b: Builder, i: Instruction, after: int) -> tuple[str, Any]:
    """Return the type and the function of a reduction."""
    names = [part for part in i.parts[after:] if part in NAMES]
    kind = i.parts[-1]
    update = update_of(names[0], kind) if len(names) == 1 and kind in DTYPES else None
    if update is None or kind.endswith("x2"):
        raise b.error("there is no such reduction")
    return kind, update


def _units(first: int, size: int) -> Any:
    return first + 16 * np.arange(size // 16, dtype=np.int64)


def _shared_units(machine: Any, offset: int, size: int) -> Any:
    """Return the 16-byte units of a piece of shared memory.

    Raises
    ------
    Fault
        It is out of bounds, or its size is no multiple of 16.
    """
    shared = machine.shared
    if size % 16 or not size:
        raise Fault(f"a bulk copy of {size} bytes is no multiple of 16")
    address = offset % shared.pitch
    if address + size > shared.base + shared.size:
        raise Fault(f"{size} bytes from shared address {address} on are out of bounds")
    return _units(offset, size)


# -- to shared memory ------------------------------------------------------------------------------


@instruction("cp.async.bulk.shared::cluster", "cp.async.bulk.shared::cta")
def load(b: Builder, i: Instruction) -> Op:
    """Bring memory, from the device's or from the CTA's own, counted by an mbarrier."""
    outside = i.parts[4] == "global"
    if not outside and i.parts[3:5] != ("shared::cluster", "shared::cta"):
        raise b.error("this direction is not known")
    more = ("multicast::cluster",) if outside else ()
    b.known(i.parts[5:], "mbarrier::complete_tx::bytes", _HINT, *more)
    return _counted(b, i, _load_global if outside else _load_shared)


@instruction("cp.reduce.async.bulk.shared::cluster")
def reduce_shared(b: Builder, i: Instruction) -> Op:
    """Add the CTA's own memory to that of another CTA, or another of the operations."""
    kind, update = _reduction(b, i, 6)
    if i.parts[5] != "shared::cta" or kind not in _INTEGERS:
        raise b.error("this direction or type is not known")
    b.known(i.parts[6:], "mbarrier::complete_tx::bytes", kind, *NAMES, _HINT)

    def start(machine: Any, source: int, size: int, targets: Any, line: int,
              who: tuple[int, int]) -> None:  # fmt: skip
        ((offset, signal),) = targets
        units = _shared_units(machine, offset, size)
        words, bad = unready(machine, units)
        if bad.any():
            machine.mistake(f"the reduction updates {explain(machine, words, bad)}")

        def join(new: Any) -> Any:
            native = DTYPES[kind]
            old = machine.shared.views[16].take(units // 16)
            return update(old.view(native), new.view(native)).view(carrier(16))

        _later(machine, source, size, offset, signal, line, who, join)

    return _counted(b, i, start)


def _counted(b: Builder, i: Instruction, start: Any) -> Op:
    """Compile ``[to], [from], size, [mbarrier], mask``, each copy of a warp started once."""
    outside = "global" in i.parts
    to, signal = address_of(b, i.operands[0]), address_of(b, i.operands[3])
    source = address_of(b, i.operands[1], "u64" if outside else "u32")
    count, line = b.source(i.operands[2], "u32"), i.line
    mask = b.source(i.operands[4], "u16") if "multicast::cluster" in i.parts else None

    def op(V: Any, m: Any, g: Any) -> None:
        machine, bases = g.machine, active(g.base, m, g)
        if outside:
            after_wait(g, m)
        offsets = flat_shared(active(to(V), m, g), bases, g, 16, cluster=True)
        signals = flat_shared(active(signal(V), m, g), bases, g, 8, cluster=True)
        sources = active(source(V), m, g)
        if not outside:
            sources = flat_shared(sources, bases, g, 16)
        sizes = active(V[count], m, g)
        masks = 0 * sizes if mask is None else active(V[mask], m, g)
        given = (x.tolist() for x in (offsets, signals, sources, sizes, masks))
        for n, who, offset, barrier, address, size, chosen in requests(m, g, *given):
            where = offset % machine.shared.pitch
            machine.record("load", f"{size} bytes to shared address {where}", line, who[0])
            with at_thread(n):
                targets = [(offset, barrier)]
                if mask is not None:
                    own = who[0] // machine.geometry.warps
                    targets = multicast_offsets(machine, own, chosen, offset, barrier, False)
                for end, at in targets:
                    if end // machine.shared.pitch != at // machine.shared.pitch:
                        raise Fault("the mbarrier is not in the CTA that the data goes to")
                start(machine, address, size, targets, line, who)

    return op


def _load_global(machine: Any, source: int, size: int, targets: Any, line: int,
                 who: tuple[int, int]) -> None:  # fmt: skip
    for offset, signal in targets:
        units = _shared_units(machine, offset, size)
        data = machine.memory.load(_units(source, size).astype("u8"), 16)
        ticket = bring(machine, who, units, data)
        machine.counts.tma_loaded += size
        arrival(machine, barrier_at(machine, signal), size, ticket, line, who[0])


def _load_shared(machine: Any, source: int, size: int, targets: Any, line: int,
                 who: tuple[int, int]) -> None:  # fmt: skip
    ((offset, signal),) = targets
    _later(machine, source, size, offset, signal, line, who, lambda data: data)


def _later(machine: Any, source: int, size: int, offset: int, signal: int, line: int,
           who: tuple[int, int], join: Any) -> None:  # fmt: skip
    """Start a copy between CTAs: both ends are as if in use until it is complete."""
    shared = machine.shared
    copied = Source.of(machine, _shared_units(machine, source, size), "the copy")
    to = _shared_units(machine, offset, size)
    machine.order.taken(*who, copied.words[..., 0], "the copy")
    ticket = bring(machine, who, to, shared.views[16].take(to // 16))

    def done() -> None:
        early = f"before the copy of line {line} had read it"
        shared.store(to, join(copied.read(machine, ticket, early)), 16, ticket)

    arrival(machine, barrier_at(machine, signal), size, ticket, line, who[0], done)


# -- from shared memory ----------------------------------------------------------------------------


@instruction("cp.async.bulk.global")
def store(b: Builder, i: Instruction) -> Op:
    """Store a piece of shared memory."""
    b.known(i.parts[4:], "shared::cta", "bulk_group", _HINT)
    return _store(b, i, "", None)


@instruction("cp.reduce.async.bulk.global")
def reduce_global(b: Builder, i: Instruction) -> Op:
    """Add a piece of shared memory to device memory, or another of the operations."""
    kind, update = _reduction(b, i, 5)
    b.known(i.parts[5:], "shared::cta", "bulk_group", "noftz", kind, *NAMES, _HINT)
    return _store(b, i, kind, update)


def _store(b: Builder, i: Instruction, kind: str, update: Any) -> Op:
    to, source = address_of(b, i.operands[0], "u64"), address_of(b, i.operands[1])
    count, line = b.source(i.operands[2], "u32"), i.line

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        after_wait(g, m)
        offsets = flat_shared(active(source(V), m, g), active(g.base, m, g), g, 16)
        given = (x.tolist() for x in (active(to(V), m, g), offsets, active(V[count], m, g)))
        for n, who, address, offset, size in requests(m, g, *given):
            with at_thread(n):
                units = _shared_units(machine, offset, size)
                write = _writer(machine, address, kind, update)
                what = f"{size} bytes from shared address {offset % machine.shared.pitch}"
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
    b.known(i.parts[6:], _HINT)
    source, count = address_of(b, i.operands[0], "u64"), b.source(i.operands[1], "u32")

    def op(V: Any, m: Any, g: Any) -> None:
        threads = zip(active(source(V), m, g), active(V[count], m, g), strict=True)
        for n, (address, size) in enumerate(threads):
            with at_thread(n):
                if size % 16:
                    raise Fault(f"a bulk copy of {size} bytes is no multiple of 16")
                g.machine.memory.load(_units(int(address), int(size)).astype("u8"), 16)

    return op
