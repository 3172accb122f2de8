"""Tensor stores by TMA, and reductions: boxes from shared memory to a tensor."""

from __future__ import annotations

from typing import Any

from ..async_copy.bulk_stores import start_store
from ..async_copy.proxy import requests
from ..async_copy.tma import (
    Descriptor,
    box_elements,
    box_units,
    check_corner,
    coordinates_of,
    tensor_at,
)
from ..async_copy.transfer import active, address_of, flat_shared
from ..core.arithmetic import instruction
from ..core.dependency import after_wait
from ..core.memory import carrier
from ..core.program import DTYPES, Builder, Op
from ..core.updates import NAMES, update_of
from ..ptx.faults import Fault, at_thread
from ..ptx.ptx import Instruction

__all__: list[str] = []

_RANKS = range(1, 6)


@instruction(*(f"cp.async.bulk.tensor.{n}d.global" for n in _RANKS))
def store_box(b: Builder, i: Instruction) -> Op:
    """Store a box."""
    return _store(b, i, 4, "")


@instruction(*(f"cp.reduce.async.bulk.tensor.{n}d.global" for n in _RANKS))
def reduce_box(b: Builder, i: Instruction) -> Op:
    """Combine a box with the elements in memory, by adding or another operation."""
    names = [part for part in i.parts[6:] if part in NAMES]
    if len(names) != 1:
        raise b.error(f"one of {', '.join(NAMES)} is expected")
    return _store(b, i, 5, names[0])


def _store(b: Builder, i: Instruction, at_rank: int, name: str) -> Op:
    rank = int(i.parts[at_rank].rstrip("d"))
    if i.parts[at_rank + 2] != "shared::cta":
        raise b.error("this direction is not known")
    b.known(i.parts[at_rank + 3 :], "tile", "bulk_group", "L2::cache_hint", name)
    tensor, source = coordinates_of(b, i.operands[0]), address_of(b, i.operands[1])
    line = i.line

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        after_wait(g, m)
        offsets = flat_shared(active(source(V), m, g), active(g.base, m, g), g, 16).tolist()
        for n, who, (address, at), offset in requests(m, g, tensor(V, m, g), offsets):
            with at_thread(n):
                d = tensor_at(machine, address, at, rank)
                check_corner(d, at, stored=True)
                if d.padded:
                    raise Fault("elements that are padded in shared memory cannot be stored")
                units = box_units(machine, d, offset, "come from")
                what = f"{at} from shared address {offset % machine.shared.pitch}"
                write = _writer(machine, d, at, name)
                start_store(machine, who, what, units, write, line)

    return op


def _writer(machine: Any, d: Descriptor, at: tuple[int, ...], name: str) -> Any:
    """Return a function that writes the 16-byte units of a box."""
    update = update_of(name, d.kind) if name and d.kind else None
    # On an H200, other operations than min and max on signed 64-bit elements are illegal.
    if name and (update is None or (d.kind == "s64" and name not in ("min", "max"))):
        raise Fault(f"there is no reduction .{name} of these elements")

    def write(units: Any) -> None:
        addresses, inside = box_elements(d, at, stored=True)
        if not inside.any():
            return
        there, size = addresses[inside].astype("u8"), d.itemsize
        values = units.view(carrier(size)).reshape(inside.shape)[inside]
        if update is not None:
            native = DTYPES[d.kind]
            old = machine.memory.load(there, size).view(native)
            values = update(old, values.view(native)).view(carrier(size))
        machine.memory.store(there, values, size)

    return write
