"""Instructions that move data: loads, stores, atomic operations and cp.async."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.arithmetic import INSTRUCTIONS, instruction, number_of
from ..core.dependency import after_wait
from ..core.grid import RANK_SHIFT
from ..core.memory import carrier, words_of
from ..core.order import load_shared, store_shared
from ..core.program import DTYPES, Builder, Op, width_of
from ..core.updates import NAMES, update_of
from ..ptx.faults import Fault
from ..ptx.ptx import Address, Immediate, Instruction, Register, Symbol, Vector

__all__ = ["INSTRUCTIONS", "address_of", "elements_of", "flat_shared"]

GENERIC_SHARED = 0x7E00_0000_0000_0000  # windows of the generic address space
GENERIC_PARAM = 0x7D00_0000_0000_0000
_WINDOW = 1 << 40

#: Hints about caches and ordering: all accesses are ordered here.
_HINTS = {
    "volatile", "relaxed", "acquire", "release", "weak", "gpu", "sys", "cta", "cluster", "nc",
    "ca", "cg", "cs", "cv", "lu", "wb", "wt", "noftz", "acq_rel",
}  # fmt: skip
_HINT_STARTS = ("L1::", "L2::")
_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "param", "local", "const")


def _modifiers(b: Builder, i: Instruction, more: tuple[str, ...] = ()) -> tuple[str, str, int]:
    """Return (state space, type, elements of the vector) of a load or store."""
    space, count = "generic", 1
    for part in i.parts[1:-1]:
        if part in _SPACES:
            space = part
        elif part in ("v2", "v4", "v8"):
            count = int(part[1:])
        elif part not in _HINTS and part not in more and not part.startswith(_HINT_STARTS):
            raise b.error(f"the modifier .{part} is not implemented")
    if i.parts[-1] not in DTYPES:
        raise b.error(f"the type .{i.parts[-1]} is not implemented")
    return space, i.parts[-1], count


def address_of(b: Builder, operand: Any, kind: str = "u32") -> Any:
    """Compile an address: a function of the registers that returns it for all lanes.

    Parameters
    ----------
    kind
        ``"u32"`` for shared memory, whose addresses may also lie in 64-bit registers, or ``"u64"``.
    """
    if not isinstance(operand, Address):
        raise b.error("an address in [ ] is expected")
    base, offset = operand.base, operand.offset
    dtype = DTYPES[kind]
    if isinstance(base, Symbol) and base.name in b.shared_offsets:
        held = kind
    elif isinstance(base, (Symbol, Immediate)):
        offset += base.value if isinstance(base, Immediate) else b.address_of(base)
        constant = np.array(offset % (1 << 8 * width_of(kind)), dtype)
        return lambda V: constant
    elif isinstance(base, Register):
        held = "u64" if b.storage(base) == 8 else "u32"
    else:
        raise b.error("an address must be a register, a name or a number")
    slot, step = b.source(base, held), np.array(offset % (1 << 8 * width_of(kind)), dtype)
    if held == kind and not offset:
        return lambda V: V[slot]
    if held == kind:
        return lambda V: V[slot] + step
    return lambda V: V[slot].astype(dtype) + step


def elements_of(b: Builder, operand: Any, count: int) -> tuple[Any, ...]:
    """Return the elements of a vector, which are this many, or what stands alone."""
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count:
        raise b.error(f"{count} registers are expected")
    return elements


def active(values: Any, m: Any, g: Any) -> Any:
    """Return the values of the active lanes, flat."""
    if values.shape != (g.n, 32):
        values = np.broadcast_to(values, (g.n, 32))
    return values.reshape(-1) if m is True else values[m]


def scattered(target: Any, m: Any, values: Any) -> None:
    """Write flat values of the active lanes to a register."""
    if m is True:
        target[...] = values.reshape(target.shape)
    else:
        target[m] = values


def flat_shared(addresses: Any, bases: Any, g: Any, width: int, *, cluster: bool = False) -> Any:
    """Return byte offsets in all shared memories, of flat addresses of active lanes.

    Raises
    ------
    Fault
        Out of bounds, not aligned, not in this cluster, or of a CTA that has ended.
    """
    shared = g.machine.shared
    ranks = addresses >> np.uint32(RANK_SHIFT)
    if g.machine.geometry.cluster_size > 1 or ranks.any():
        named = g.machine.cluster_bases(bases, ranks)
        away = named != bases
        if away.any():
            if not cluster:
                text = "an address in another CTA's shared memory needs .shared::cluster"
                raise Fault(text, int(np.argmax(away)))
            for base in np.unique(named[away]).tolist():
                if g.machine.has_ended(base // shared.pitch):
                    text = "the CTA whose shared memory an address is in has ended"
                    g.machine.mistake(text, int(np.argmax(named == base)))
        bases = named
        addresses = addresses & np.uint32((1 << RANK_SHIFT) - 1)
    shared.check(addresses, width)
    return addresses + bases


@instruction("ld", "ldu")
def load(b: Builder, i: Instruction) -> Op:
    """Load, from any state space."""
    space, kind, count = _modifiers(b, i)
    to, where = i.operands
    elements = elements_of(b, to, count)
    if space == "param":
        return _load_parameter(b, elements, where, kind)
    width = width_of(kind)
    targets = [_wide_register(b, e, kind, target=True) for e in elements]
    chunk = min(width * count, 16)
    chunks = width * count // chunk
    reader = _reader(b, space, where, chunk, _ordered(i))
    each = chunk // width
    native = DTYPES[kind]

    def op(V: Any, m: Any, g: Any) -> None:
        for c in range(chunks):
            raw = reader(V, m, g, c * chunk)
            parts = raw.view(native).reshape(-1, each)
            for n in range(each):
                scattered(V[targets[c * each + n]], m, parts[:, n])

    return op


def _wide_register(b: Builder, operand: Any, kind: str, *, target: bool) -> int:
    """Return the slot of a register that may be wider than what is loaded or stored."""
    held = kind
    if isinstance(operand, Register) and operand.type not in ("sink", "special"):
        storage = b.storage(operand)
        if storage > width_of(kind):
            held = f"{'s' if kind[0] == 's' else 'u'}{8 * storage}"
    elif width_of(kind) == 1:
        held = "u16"
    return b.target(operand, held) if target else b.source(operand, held)


def _load_parameter(b: Builder, elements: Any, where: Any, kind: str) -> Op:
    if not isinstance(where, Address) or not isinstance(where.base, Symbol):
        raise b.error("parameters are read by their names only")
    if where.base.name not in b.params:
        raise b.error(f"there is no parameter {where.base.name}")
    parameter = b.params[where.base.name]
    width = width_of(kind)
    first = where.offset
    if first < 0 or first + width * len(elements) > parameter.size:
        raise b.error(f"{parameter.name} has {parameter.size} bytes")
    pairs = [
        (_wide_register(b, e, kind, target=True),
         b.parameter(parameter.offset + first + n * width, kind))
        for n, e in enumerate(elements)
    ]  # fmt: skip

    def op(V: Any, m: Any, g: Any) -> None:
        for d, x in pairs:
            np.copyto(V[d], V[x], where=m)

    return op


def _ordered(i: Instruction) -> bool:
    """Whether something else must order an access: it is no part of a protocol of its own."""
    return not {"volatile", "relaxed", "acquire", "release"} & set(i.parts)


def _reader(b: Builder, space: str, where: Any, width: int, ordered: bool) -> Any:
    """Return a function that loads `width` bytes for each active lane."""
    if space in ("shared", "shared::cta", "shared::cluster"):
        address = address_of(b, where)
        cluster = space == "shared::cluster"

        def shared(V: Any, m: Any, g: Any, ahead: int) -> Any:
            flat = active(address(V), m, g) + np.uint32(ahead)
            offsets = flat_shared(flat, active(g.base, m, g), g, width, cluster=cluster)
            g.machine.counts.access(offsets, m, (g.n, 32), width)
            return load_shared(g, m, offsets, width, ordered)

        return shared
    address = address_of(b, where, "u64")
    if space == "local":

        def local(V: Any, m: Any, g: Any, ahead: int) -> Any:
            view, indices = g.machine.local_elements(active(address(V), m, g), m, g, ahead, width)
            return view[indices]

        return local
    if space == "const":
        raise b.error("constant memory is not implemented")
    generic = space == "generic"

    def plain(V: Any, m: Any, g: Any, ahead: int) -> Any:
        flat = active(address(V), m, g) + np.uint64(ahead)
        if generic and (flat >= GENERIC_PARAM).any():
            return load_shared(g, m, _generic_shared(flat, m, g, width), width, ordered)
        after_wait(g, m)
        return g.machine.memory.load(flat, width)

    return plain


def _generic_shared(flat: Any, m: Any, g: Any, width: int) -> Any:
    inside = (flat >= GENERIC_SHARED) & (flat < GENERIC_SHARED + _WINDOW)
    if not inside.all():
        raise Fault("a generic address is neither in device memory nor in shared memory")
    low = (flat - np.uint64(GENERIC_SHARED)).astype(np.uint32)
    return flat_shared(low, active(g.base, m, g), g, width, cluster=True)


@instruction("st")
def store(b: Builder, i: Instruction) -> Op:
    """Store, to any state space."""
    space, kind, count = _modifiers(b, i)
    where, what = i.operands
    width = width_of(kind)
    sources = [_wide_register(b, e, kind, target=False) for e in elements_of(b, what, count)]
    chunk = min(width * count, 16)
    each = chunk // width
    writer = _writer(b, space, where, chunk, _ordered(i))
    native = DTYPES[kind]
    raw = np.dtype(f"u{width}")

    def op(V: Any, m: Any, g: Any) -> None:
        for c in range(width * count // chunk):
            pieces = []
            for n in range(each):
                value = active(V[sources[c * each + n]], m, g)
                if value.dtype.itemsize != width:
                    value = value.astype(raw)
                pieces.append(value.view(native))
            whole = np.stack(pieces, axis=-1) if each > 1 else np.ascontiguousarray(pieces[0])
            writer(V, m, g, c * chunk, whole.view(carrier(chunk)).reshape(-1))

    return op


def _writer(b: Builder, space: str, where: Any, width: int, ordered: bool) -> Any:
    if space in ("shared", "shared::cta", "shared::cluster"):
        address = address_of(b, where)
        cluster = space == "shared::cluster"

        def shared(V: Any, m: Any, g: Any, ahead: int, values: Any) -> None:
            flat = active(address(V), m, g) + np.uint32(ahead)
            offsets = flat_shared(flat, active(g.base, m, g), g, width, cluster=cluster)
            g.machine.counts.access(offsets, m, (g.n, 32), width)
            store_shared(g, m, offsets, width, values, ordered)

        return shared
    address = address_of(b, where, "u64")
    if space == "local":

        def local(V: Any, m: Any, g: Any, ahead: int, values: Any) -> None:
            view, indices = g.machine.local_elements(active(address(V), m, g), m, g, ahead, width)
            view[indices] = values

        return local
    if space in ("param", "const"):
        raise b.error("it cannot be written")
    generic = space == "generic"

    def plain(V: Any, m: Any, g: Any, ahead: int, values: Any) -> None:
        flat = active(address(V), m, g) + np.uint64(ahead)
        if generic and (flat >= GENERIC_PARAM).any():
            store_shared(g, m, _generic_shared(flat, m, g, width), width, values, ordered)
        else:
            after_wait(g, m)
            g.machine.memory.store(flat, values, width)

    return plain


@instruction("cvta")
def cvta(b: Builder, i: Instruction) -> Op:
    """Between the generic address space and the others."""
    back = "to" in i.parts
    window = 0
    if any(part.startswith("shared") for part in i.parts):
        window = GENERIC_SHARED
    elif "param" in i.parts:
        window = GENERIC_PARAM
    elif "global" not in i.parts:
        raise b.error("only global, shared and param addresses are implemented")
    if i.parts[-1] != "u64":
        raise b.error("only 64-bit addresses are implemented")
    d, x = b.target(i.operands[0], "u64"), b.source(i.operands[1], "u64")
    step = np.array((-window if back else window) % (1 << 64), np.uint64)

    def op(V: Any, m: Any, g: Any) -> None:
        np.add(V[x], step, V[d], where=m)

    return op


# -- atomic operations -----------------------------------------------------------------------------


@instruction("atom", "red")
def atomic(b: Builder, i: Instruction) -> Op:
    """Read-modify-write, the lanes one after the other in the order of their numbers.

    The elements of a vector are each an operation of its own.
    """
    names = [part for part in i.parts[1:-1] if part in (*NAMES, "exch", "cas")]
    if len(names) != 1:
        raise b.error(f"one of {', '.join((*NAMES, 'exch', 'cas'))} is expected")
    space, kind, count = _modifiers(b, i, (names[0],))
    name = names[0]
    returns = i.parts[0] == "atom"
    update = update_of(name, kind)
    if update is None and (name not in ("exch", "cas") or not returns):
        raise b.error(f"there is no {i.parts[0]}.{name}.{kind}")
    sources = [elements_of(b, x, count) for x in i.operands[2 if returns else 1 :]]
    if len(sources) != (2 if name == "cas" else 1):
        raise b.error("the number of operands is wrong")
    d = [b.target(x, kind) for x in elements_of(b, i.operands[0], count)] if returns else None
    slots = [[b.source(x, kind) for x in elements] for elements in sources]
    where = i.operands[1 if returns else 0]
    accessed = _accessed(b, space, where, width_of(kind), count)
    native = DTYPES[kind]

    def op(V: Any, m: Any, g: Any) -> None:
        view, indices = accessed(V, m, g)
        view = view.view(native)
        for n in range(count):
            values = [active(V[each[n]], m, g) for each in slots]
            if d is None and isinstance(update, np.ufunc):
                update.at(view, indices + n, values[0])
                continue
            before = _one_by_one(view, indices + n, values, name, update)
            if d is not None:
                scattered(V[d[n]], m, before)

    return op


def _one_by_one(view: Any, indices: Any, values: Any, name: str, update: Any) -> Any:
    """Update elements in order; return what was there before each."""
    before = np.empty(len(indices), view.dtype)
    for n, index in enumerate(indices):
        old = before[n] = view[index]
        if name == "cas":
            view[index] = values[1][n] if old == values[0][n] else old
        else:
            view[index] = values[0][n] if update is None else update(old, values[0][n])
    return before


def _accessed(b: Builder, space: str, where: Any, width: int, count: int) -> Any:
    if space in ("global", "generic"):
        address = address_of(b, where, "u64")

        def outside(V: Any, m: Any, g: Any) -> Any:
            flat = active(address(V), m, g)
            after_wait(g, m)
            if count > 1:
                g.machine.memory.elements(flat, width * count)  # all of it is there, and aligned
            return g.machine.memory.elements(flat, width)

        return outside
    if not space.startswith("shared") or count > 1:
        raise b.error(f"atomic operations in .{space} are not implemented")
    near = address_of(b, where)
    cluster = space == "shared::cluster"

    def inside(V: Any, m: Any, g: Any) -> Any:
        shared = g.machine.shared
        flat = active(near(V), m, g)
        offsets = flat_shared(flat, active(g.base, m, g), g, width, cluster=cluster)
        if g.machine.reached is not None:
            g.machine.reached.changes(g, m, offsets)
        shared.readable(shared.words.take(words_of(offsets, width)))
        return shared.views[width], offsets // width

    return inside


# -- cp.async --------------------------------------------------------------------------------------


@instruction("cp.async.ca", "cp.async.cg")
def copy_async(b: Builder, i: Instruction) -> Op:
    """``cp.async``: to shared memory, zeros behind the bytes that exist.

    The data is there at once, as early as hardware could bring it; it must not be read before the
    group that it is part of is waited for.
    """
    if i.parts[3:5] not in (("shared", "global"), ("shared::cta", "global")):
        raise b.error("only copies from global to shared memory are implemented")
    for part in i.parts[5:]:
        if not part.startswith("L2::"):
            raise b.error(f"the modifier .{part} is not implemented")
    hinted = "L2::cache_hint" in i.parts
    operands = i.operands[:-1] if hinted else i.operands
    size = operands[2]
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise b.error("the size must be 4, 8 or 16")
    width = size.value
    to, what = address_of(b, operands[0]), address_of(b, operands[1], "u64")
    have = b.source(operands[3], "u32") if len(operands) > 3 else None

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        offsets = flat_shared(active(to(V), m, g), active(g.base, m, g), g, width)
        far = active(what(V), m, g)
        after_wait(g, m)
        if have is None:
            data = machine.memory.load(far, width)
        else:
            data = _partial(machine.memory, far, active(V[have], m, g), width)
        store_shared(g, m, offsets, width, data, True, active(g.copy_tickets(), m, g))

    return op


def _partial(memory: Any, far: Any, have: Any, width: int) -> Any:
    """Load the first `have` bytes of each element; the rest is zero."""
    if (have == width).all():
        return memory.load(far, width)
    if (have > width).any():
        raise Fault(f"more than {width} bytes are to be copied", int(np.argmax(have > width)))
    data = np.zeros((len(far), width), np.uint8)
    full = np.flatnonzero(have == width)
    if len(full):
        data[full] = memory.load(far[full], width).view(np.uint8).reshape(-1, width)
    if np.bitwise_or.reduce(far) & np.uint64(width - 1):
        raise Fault(f"a source is not aligned to {width} bytes")
    for n in range(width - 1):
        some = np.flatnonzero((have > n) & (have < width))
        if len(some):
            data[some, n] = memory.load(far[some] + np.uint64(n), 1)
    return data.view(carrier(width)).reshape(-1)


@instruction("cp.async.commit_group")
def commit_group(b: Builder, i: Instruction) -> Op:
    """Close the group of the copies before."""

    def op(V: Any, m: Any, g: Any) -> None:
        g.machine.converged(g, m, "cp.async.commit_group")
        g.machine.writes.commit(g.lo, g.hi)

    return op


@instruction("cp.async.wait_group", "cp.async.wait_all")
def wait_group(b: Builder, i: Instruction) -> Op:
    """Wait for all groups but the last few."""
    everything = i.parts[2] == "wait_all"
    keep = 0 if everything else number_of(b, i)

    def op(V: Any, m: Any, g: Any) -> None:
        g.machine.converged(g, m, "cp.async.wait_group")
        if everything:
            g.machine.writes.commit(g.lo, g.hi)
        g.machine.writes.wait(g.lo, g.hi, keep)

    return op
