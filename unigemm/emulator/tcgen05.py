"""tcgen05.mma: products of one CTA or of a pair, out of shared memory into tensor memory.

One thread issues products; they are done in its order, some time later. Addresses and descriptors
are checked when an instruction is issued; its operands are read, and the sums written, just before
the mbarrier of the ``tcgen05.commit`` behind it is signalled: as late as hardware may. What is
overwritten or freed in between, and sums that are read before, are errors.

Where the sums lie: PTX ISA, "tcgen05: data path layout organization". Sums are exact before they
are rounded, once for each instruction; hardware keeps fewer bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .arithmetic import instruction
from .faults import Fault, KernelFault, Site
from .fragments import BYTES, numbers
from .machine import DONE
from .mbarriers import arrive, barrier_at
from .memory import carrier
from .mma_descriptors import InstructionDescriptor, instruction_of, matrix_of
from .program import Builder, Op
from .ptx import Address, Instruction, Vector
from .tensor_memory import (
    LANES,
    TensorMemory,
    check_target,
    cta_group,
    memory_of,
    of_thread,
    pair_of,
    split_address,
)
from .tma import explain, unready
from .transfer import active, address_of, flat_shared

__all__ = ["Queue", "Region"]

_KINDS = ("f16", "tf32", "f8f6f4", "i8")
_I8_TARGETS = ("sm_100a", "sm_101a", "sm_110a")  # not sm_103, not the family sm_100f


@dataclass(frozen=True)
class Region:
    """A rectangle of a CTA's tensor memory: some lanes by neighbouring columns."""

    cta: int
    lanes: Any
    first: int
    count: int

    def meets(self, cta: int, lanes: Any, columns: slice) -> bool:
        """Whether another rectangle has words of this one."""
        return (
            self.cta == cta
            and self.first < columns.stop
            and columns.start < self.first + self.count
            and bool(np.isin(lanes, self.lanes).any())
        )


@dataclass(frozen=True)
class Matrix:
    """An operand's share of a CTA in shared memory: its 16-byte units, and who wrote them."""

    units: Any
    words: Any


@dataclass(frozen=True)
class Product:
    """A product that has been issued; `a`, `b` and `sums` have an element for each CTA.

    `disabled` has a bit for each lane of tensor memory that is left as it is.
    """

    descriptor: InstructionDescriptor
    a: tuple[Matrix | Region, ...]
    b: tuple[Matrix, ...]
    sums: tuple[Region, ...]
    keep: bool
    disabled: int
    line: int


@dataclass(frozen=True)
class Commit:
    """A commit: the mbarriers that it signals."""

    signals: tuple[int, ...]
    line: int


@dataclass
class Queue:
    """What a warp has issued and is not done, in order."""

    waiting: list[Product | Commit] = field(default_factory=list)


def _queues(machine: Any) -> dict[int, Queue]:
    if "tcgen05" not in machine.extra:
        machine.extra["tcgen05"] = {}
        machine.extra.setdefault("tensor_users", []).append(
            lambda *region: _unused(machine, *region)
        )
        if machine.options.strict:
            machine.finishing.append(lambda: _check_end(machine))
    return machine.extra["tcgen05"]


def _unused(machine: Any, cta: int, lanes: Any, columns: slice, what: str) -> None:
    """Check that no product that is not complete uses words.

    Raises
    ------
    Fault
        One does.
    """
    for queue in machine.extra["tcgen05"].values():
        for item in queue.waiting:
            if isinstance(item, Product):
                regions = [*item.sums, *(x for x in item.a if isinstance(x, Region))]
                if any(region.meets(cta, lanes, columns) for region in regions):
                    raise Fault(
                        f"{what} before the product of line {item.line}, which uses this tensor "
                        "memory, was waited for"
                    )


def _check_end(machine: Any) -> None:
    for row, queue in machine.extra["tcgen05"].items():
        for item in queue.waiting:
            site = Site(item.line, machine.cta_of(row), row % machine.geometry.warps)
            text = "the kernel ends and no tcgen05.commit of this warp follows"
            raise KernelFault(text, site, machine.program.module.line(item.line))


# -- operands --------------------------------------------------------------------------------------


def _matrix(machine: Any, cta: int, word: int, rows: int, kind: str, k_major: bool) -> Matrix:
    """Find an operand's share of a CTA, and check that it may be read."""
    shared = machine.shared
    places = matrix_of(word).units(rows, BYTES[kind], k_major=k_major)
    if places.min() < shared.base or places.max() + 16 > shared.base + shared.size:
        raise Fault("a matrix descriptor reaches out of shared memory")
    units = places + cta * shared.pitch
    words, bad = unready(machine, units)
    if machine.options.strict and bad.any():
        raise Fault(f"tcgen05.mma reads {explain(machine, words, bad)}")
    return Matrix(units, words)


def _read(machine: Any, matrix: Matrix, rows: int, kind: str, k_major: bool, line: int) -> Any:
    """Return an operand's share of a CTA, (rows, K)."""
    now, _ = unready(machine, matrix.units)
    if machine.options.strict and (now != matrix.words).any():
        raise Fault(
            f"shared memory was overwritten while the product of line {line} could still read it"
        )
    raw = machine.shared.views[16].take(matrix.units // 16).view(carrier(BYTES[kind]))
    return numbers(raw if k_major else raw.T[:rows], kind)


def _rows(m: int, lane: int) -> Any:
    """Return the lanes that a CTA's part of a matrix of `m` rows takes, from `lane` on.

    M = 64 leaves out every second half of a warp's lanes. Of M = 128 in a pair, a CTA has 64 rows:
    the upper lanes have the second half of the columns of the sums, or A once more.
    """
    if m == 64:
        if lane not in (0, 16):
            raise Fault(f"a matrix of 64 rows cannot begin at lane {lane} of tensor memory")
        return lane + (np.arange(64) // 16 * 32 + np.arange(64) % 16)
    if lane:
        raise Fault(f"a matrix of {m} rows cannot begin at lane {lane} of tensor memory")
    return np.arange(LANES)


def _region(machine: Any, cta: int, address: int, d: InstructionDescriptor,
            columns: int) -> Region:  # fmt: skip
    lane, first = split_address(address)
    memory_of(machine, cta).check(first, columns)
    return Region(cta, _rows(d.m, lane), first, columns)


def _load(machine: Any, region: Region) -> Any:
    memory: TensorMemory = memory_of(machine, region.cta)
    memory.check(region.first, region.count)
    columns = np.arange(region.first, region.first + region.count)
    return memory.read(region.lanes[:, None], columns, strict=machine.options.strict)


# -- products --------------------------------------------------------------------------------------


@instruction("tcgen05.mma")
def mma(b: Builder, i: Instruction) -> Op:
    """Issue one product."""
    kind, group = _kind_of(b, i), cta_group(b, i)
    d_operand, a_operand, *rest = i.operands
    d_slot, d_ahead = _tensor_address(b, d_operand)
    in_tensor, a_ahead = isinstance(a_operand, Address), 0
    if in_tensor:
        a_slot, a_ahead = _tensor_address(b, a_operand)
    else:
        a_slot = b.source(a_operand, "b64")
    b_slot, word_slot = b.source(rest[0], "b64"), b.source(rest[1], "b32")
    masks: tuple[int, ...] = ()
    if isinstance(rest[2], Vector):
        masks = tuple(b.source(x, "b32") for x in rest[2].elements)
        if len(masks) != 4 * group:
            raise b.error(f"the lanes to leave out are {4 * group} registers")
        del rest[2]
    if len(rest) != 3:
        raise b.error("operands as of scale-input-d are not implemented")
    keep_slot, line = b.source(rest[2], "pred"), i.line

    def product(V: list[Any], g: Any, row: int, lane: int) -> Product:
        machine = g.machine

        def value(slot: int) -> int:
            return int(np.broadcast_to(V[slot], (g.n, 32))[row - g.lo, lane])

        disabled = sum(value(x) << 32 * n for n, x in enumerate(masks))
        if disabled and group == 2:
            raise Fault("lanes to leave out are not implemented for a pair of CTAs")
        d = instruction_of(value(word_slot), kind, group)
        ctas = _active_pair(machine, row, group)
        columns = d.n // 2 if (group, d.m) == (2, 128) else d.n
        a: list[Any]
        if in_tensor:
            a = [_region(machine, cta, value(a_slot) + a_ahead, d, 8) for cta in ctas]
        else:
            rows = d.m // group
            a = [_matrix(machine, cta, value(a_slot), rows, d.a, d.a_k_major) for cta in ctas]
        rows = d.n // group
        right = [_matrix(machine, cta, value(b_slot), rows, d.b, d.b_k_major) for cta in ctas]
        sums = [_region(machine, cta, value(d_slot) + d_ahead, d, columns) for cta in ctas]
        keep = bool(value(keep_slot))
        return Product(d, tuple(a), tuple(right), tuple(sums), keep, disabled, line)

    def op(V: list[Any], m: Any, g: Any) -> None:
        for row, lane in _issuers(m, g, "tcgen05.mma"):
            with of_thread(m, g, row - g.lo, lane):
                made = product(V, g, row, lane)
            g.machine.record("multiply", f"to column {made.sums[0].first}", line, row)
            _queues(g.machine).setdefault(row, Queue()).waiting.append(made)

    return op


def _kind_of(b: Builder, i: Instruction) -> str:
    """Return the kind; refuse what is not known."""
    kind = ""
    for part in i.parts[2:]:
        if part.startswith("kind::") and part[6:] in _KINDS:
            kind = part[6:]
        elif not part.startswith(("cta_group::", "collector::a")) and part not in (
            "discard", "lastuse", "fill", "use",
        ):  # fmt: skip
            raise b.error(f"the modifier .{part} is not implemented")
    if not kind:
        raise b.error("a .kind is expected")
    if kind == "i8":
        check_target(b, _I8_TARGETS)
    return kind


def _tensor_address(b: Builder, operand: Any) -> tuple[int, int]:
    """Return the slot of an address in tensor memory, and what is added to it."""
    if not isinstance(operand, Address):
        raise b.error("an address in tensor memory is expected")
    return b.source(operand.base, "b32"), operand.offset


def _issuers(m: Any, g: Any, name: str) -> list[tuple[int, int]]:
    """Return warp and lane of the threads that issue: one of a warp, as its `elect.sync` chose."""
    rows, lanes = np.nonzero(np.broadcast_to(m, (g.n, 32)))
    if len(set(rows.tolist())) != len(rows):
        raise Fault(f"{name} is issued by several threads of a warp, once for each")
    return list(zip((rows + g.lo).tolist(), lanes.tolist(), strict=True))


def _ended(machine: Any, cta: int) -> bool:
    warps = machine.geometry.warps
    return all(machine.status[row] == DONE for row in range(cta * warps, (cta + 1) * warps))


def _active_pair(machine: Any, row: int, group: int) -> tuple[int, ...]:
    ctas = pair_of(machine, row // machine.geometry.warps, group)
    for cta in ctas:
        if memory_of(machine, cta).group not in (0, group):
            raise Fault("a kernel uses one .cta_group for all tcgen05 instructions")
        if _ended(machine, cta):
            raise Fault("the other CTA of the pair has ended")
    return ctas


def _perform(machine: Any, product: Product) -> None:
    """Multiply, and write the sums to tensor memory."""
    d, ctas = product.descriptor, len(product.sums)
    right = [_read(machine, x, d.n // ctas, d.b, d.b_k_major, product.line) for x in product.b]
    b = d.b_sign * np.concatenate(right)  # (N, K)
    folded = ctas == 2 and d.m == 128
    for a, sums in zip(product.a, product.sums, strict=True):
        if isinstance(a, Region):
            raw = np.ascontiguousarray(_load(machine, a)).view(carrier(BYTES[d.a]))
            left = d.a_sign * numbers(raw, d.a)
        else:
            left = d.a_sign * _read(machine, a, d.m // ctas, d.a, d.a_k_major, product.line)
            left = np.concatenate([left, left]) if folded else left
        if folded:  # the upper lanes have the second half of the columns
            half = d.n // 2
            added = np.concatenate([left[:64] @ b[:half].T, left[64:] @ b[half:].T])
        else:
            added = left @ b.T
        if product.disabled:
            chosen = np.array([not product.disabled >> int(lane) & 1 for lane in sums.lanes])
            sums, added = replace(sums, lanes=sums.lanes[chosen]), added[chosen]
        _add(machine, sums, added, d, keep=product.keep)


def _add(machine: Any, sums: Region, added: Any, d: InstructionDescriptor, *, keep: bool) -> None:
    memory = memory_of(machine, sums.cta)
    if keep:
        added = _from_word(_load(machine, sums), d.sums) + added
    else:
        memory.check(sums.first, sums.count)
    columns = np.arange(sums.first, sums.first + sums.count)
    memory.write(sums.lanes[:, None], columns, _to_word(added, d))


def _from_word(words: Any, kind: str) -> Any:
    if kind == "f16":
        return words.astype(np.uint16).view(np.float16).astype(np.float64)
    return words.view(np.float32 if kind == "f32" else np.int32).astype(np.float64)


def _to_word(values: Any, d: InstructionDescriptor) -> Any:
    """Round to the type of the sums; a float16 takes the low half of a word."""
    if d.sums == "f32":
        return values.astype(np.float32).view(np.uint32)
    if d.sums == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    if d.saturate:
        values = np.clip(values, -(2.0**31), 2.0**31 - 1)
    return values.astype(np.int64).astype(np.uint32)


# -- commits ---------------------------------------------------------------------------------------


@instruction("tcgen05.commit")
def commit(b: Builder, i: Instruction) -> Op:
    """Have an mbarrier signalled when the products before are complete."""
    known = {"mbarrier::arrive::one", "shared::cluster", "multicast::cluster", "b64"}
    for part in i.parts[2:]:
        if part not in known and not part.startswith("cta_group::"):
            raise b.error(f"the modifier .{part} is not implemented")
    group, line = cta_group(b, i), i.line
    signal = address_of(b, i.operands[0])
    mask = b.source(i.operands[1], "u16") if "multicast::cluster" in i.parts else None

    def op(V: list[Any], m: Any, g: Any) -> None:
        machine = g.machine
        places = flat_shared(active(signal(V), m, g), active(g.base, m, g), g, 8, cluster=True)
        masks = None if mask is None else active(V[mask], m, g)
        for n, (row, _) in enumerate(_issuers(m, g, "tcgen05.commit")):
            _active_pair(machine, row, group)
            signals: tuple[int, ...] = (int(places[n]),)
            if masks is not None:
                signals = _all(machine, row, int(masks[n]), signals[0])
            queue = _queues(machine).setdefault(row, Queue())
            queue.waiting.append(Commit(signals, line))
            machine.events.append(lambda queue=queue: _progress(machine, queue))

    return op


def _all(machine: Any, row: int, mask: int, place: int) -> tuple[int, ...]:
    """Return the places of an mbarrier in all CTAs of a mask."""
    size, pitch = machine.geometry.cluster_size, machine.shared.pitch
    if not mask or mask >> size:
        raise Fault(f"the multicast mask {mask:#x} does not fit a cluster of {size}")
    own = row // machine.geometry.warps
    first = own - (machine.first + own) % size
    return tuple((first + n) * pitch + place % pitch for n in range(size) if mask >> n & 1)


def _progress(machine: Any, queue: Queue) -> None:
    """Do the products in front of a warp's first commit, and signal its mbarriers."""
    while True:
        item = queue.waiting[0]
        machine.line = item.line
        if isinstance(item, Commit):
            break
        _perform(machine, item)
        del queue.waiting[0]
    del queue.waiting[0]
    for place in item.signals:
        if machine.options.strict and _ended(machine, place // machine.shared.pitch):
            raise Fault("the CTA whose mbarrier is signalled has ended")
        barrier = barrier_at(machine, place)
        at = barrier.cta * machine.geometry.warps
        detail = f"for mbarrier {barrier.address}"
        machine.record("multiplied", detail, item.line, at, hardware=True)
        arrive(machine, barrier, 1)


@instruction("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def fence(b: Builder, i: Instruction) -> Op:
    """Order accesses of threads: they are in the order in which they are run here."""
    return lambda V, m, g: None
