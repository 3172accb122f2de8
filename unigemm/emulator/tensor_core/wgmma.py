"""wgmma: products of a warpgroup, out of shared memory.

The operands' addresses are checked when an instruction is issued; they are read, and the
accumulators written, when its group is waited for: as late as hardware may. What is overwritten in
between is an error. Layouts: PTX ISA, "Asynchronous warpgroup-level matrix instructions"; what the
descriptor's two strides mean, also the comments on canonical layouts in CUTLASS's
``mma_sm90_desc.hpp``.

Accumulators keep the bits that Hopper keeps, few of float8 products: see `accumulation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from ..async_copy.proxy import explain, units_of, unready
from ..async_copy.tma import swizzled
from ..async_copy.transfer import elements_of
from ..core.arithmetic import instruction, number_of
from ..core.held import names
from ..core.machine import at_end
from ..core.memory import carrier
from ..core.order import joined
from ..core.program import Builder, Op
from ..ptx.faults import Fault, of_thread
from ..ptx.ptx import Immediate, Instruction, Vector
from .accumulation import accumulated
from .fragments import BYTES, acc_kinds, acc_registers, factor, numbers, read_acc, write_acc

__all__ = ["pattern"]

WARPGROUP = 4  # warps
_SWIZZLES = (0, 128, 64, 32)  # by the descriptor's last two bits
_FEWEST = 8  # rows of A that every tile has; later rows may be unused


@dataclass(frozen=True)
class Kind:
    """The shape and types of an instruction."""

    n: int
    k: int
    acc: str
    a: str
    b: str
    saturate: bool


@dataclass
class Matrix:
    """An operand in shared memory: where its 16-byte units are, and who wrote them.

    `units` is (lines, units of a line); a line is a row (K-major) or one K (MN-major). At least the
    first `fewest` rows must be good, which are `across` units of a line if it is MN-major. `bad`
    are rows behind them that must not be read.
    """

    units: Any
    words: Any
    k_major: bool
    fewest: int
    bad: Any
    across: int

    def of_use(self, each: Any) -> Any:
        """Return the units, or what there is of each, of the rows that must be good."""
        return each[: self.fewest] if self.k_major else each[:, : self.across]


@dataclass
class Product:
    """An instruction that has been issued; it holds its accumulators, and reads A's registers."""

    kind: Kind
    acc: tuple[int, ...]
    a: Matrix | tuple[int, ...]
    b: Matrix
    keep: bool
    signs: tuple[int, int]
    line: int
    holds: frozenset[str]
    reads: frozenset[str]


@dataclass
class Queue:
    """Products of a warpgroup that are not complete: groups, of which the last is open.

    `number` is that of its products, `ticket` that of what the open group reads, `done` how many
    groups are complete, and `told` what the warps knew who committed each group; see `order`. A
    product is one of all four warps: whoever has waited for it is behind what each of them did
    before.
    """

    groups: list[list[Product]] = field(default_factory=lambda: [[]])
    number: int = 0
    ticket: int = 0
    done: int = 0
    told: list[Any] = field(default_factory=list)

    def waiting(self) -> Iterator[Product]:
        """Yield the products that are not complete."""
        return (product for group in self.groups for product in group)


def _queue(machine: Any, first: int) -> Queue:
    return machine.extra.setdefault("wgmma", {}).setdefault(first, Queue())


@at_end
def _unwaited(machine: Any) -> Iterator[tuple[str, int, int]]:
    for first, queue in machine.extra.get("wgmma", {}).items():
        for product in queue.waiting():
            yield "the kernel ends and no one waited for this product", product.line, first


def _warpgroups(g: Any, m: Any, name: str) -> range:
    g.machine.converged(g, m, name)
    if (g.lo % g.machine.geometry.warps) % WARPGROUP or g.n % WARPGROUP:
        raise Fault(f"{name} must be run by a whole warpgroup")
    return range(g.lo, g.hi, WARPGROUP)


# -- operands --------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def pattern(lines: int, units: int, k_major: bool, swizzle: int, leading: int, stride: int) -> Any:
    """Return offsets of an operand's 16-byte units from its start, before they are swizzled."""
    line = np.arange(lines)[:, None]
    unit = np.arange(units)[None, :]
    if not swizzle:  # core matrices of eight lines of 16 bytes
        over, along = (stride, leading) if k_major else (leading, stride)
        return (line // 8) * over + (line % 8) * 16 + unit * along
    wide = swizzle // 16
    if k_major:
        return (line // 8) * stride + (line % 8) * swizzle + unit * 16
    return (line // 8) * stride + (line % 8) * swizzle + (unit // wide) * leading + unit % wide * 16


def _operand(machine: Any, row: int, word: int, rows: int, kind: str, k: int, k_major: bool,
             fewest: int) -> Matrix:  # fmt: skip
    """Find an operand by its descriptor, and check that it may be read.

    Parameters
    ----------
    rows, k
        Extents in elements.
    fewest
        How many rows must be good; products of those behind that are not become NaN.
    """
    start = (word & 0x3FFF) << 4
    leading, stride = (word >> 16 & 0x3FFF) << 4, (word >> 32 & 0x3FFF) << 4
    if word >> 49 & 7:
        raise Fault("a matrix descriptor with a base offset is not implemented")
    swizzle = _SWIZZLES[word >> 62]
    size = BYTES[kind]
    if not k_major and size != 2:
        raise Fault(f"operands of .{kind} must be K-major")
    lines, across = (rows, k * size // 16) if k_major else (k, rows * size // 16)
    addresses = swizzled(start + pattern(lines, across, k_major, swizzle, leading, stride), swizzle)
    units = units_of(machine, row // machine.geometry.warps, addresses)
    words, bad = unready(machine, units)
    found = Matrix(units, words, k_major, fewest, np.zeros(rows, bool), -(-fewest * size // 16))
    if machine.options.strict and bad.any():
        found.bad = _rows(found, bad, size)
        if found.bad[:fewest].any():
            part = explain(machine, found.of_use(words), found.of_use(bad))
            raise Fault(f"wgmma reads {part}")
    machine.order.taken(row, None, found.of_use(words)[..., 0], "wgmma")
    return found


def _rows(matrix: Matrix, units: Any, size: int) -> Any:
    """Return which rows of an operand have a unit that is marked."""
    if matrix.k_major:
        return units.any(-1)
    return np.repeat(units.any(0), 16 // size)


def _read(machine: Any, matrix: Matrix, kind: str, line: int) -> Any:
    """Return an operand as float64, (rows, K); NaN in rows that are of no use.

    Raises
    ------
    Fault
        It was overwritten after its product was issued.
    """
    values = machine.shared.views[16].take(matrix.units // 16).view(carrier(BYTES[kind]))
    values = numbers(values if matrix.k_major else values.T, kind)
    if machine.options.strict:
        now, _ = unready(machine, matrix.units)
        lost = _rows(matrix, (now != matrix.words).any(-1), BYTES[kind])
        if lost[: matrix.fewest].any():
            raise Fault(
                f"shared memory was overwritten while wgmma of line {line} could still read it"
            )
        useless = lost | matrix.bad
        if useless.any() and kind not in ("s8", "u8"):
            values = np.where(useless[:, None], np.nan, values)
    return values


# -- instructions ----------------------------------------------------------------------------------


def _kind_of(b: Builder, i: Instruction) -> Kind:
    found = re.fullmatch(
        r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)(\.satfinite)?\.(\w+)\.(\w+)\.(\w+)",
        i.opcode,
    )
    if found is None or found[4] not in acc_kinds(found[5], found[6]) or found[5] == "f64":
        raise b.error("this kind of wgmma is not implemented")
    kind = Kind(int(found[1]), int(found[2]), found[4], found[5], found[6], bool(found[3]))
    if kind.k * BYTES[kind.a] != 32 or kind.n % 8 or not 0 < kind.n <= 256:
        raise b.error("this shape of wgmma is not known")
    return kind


@instruction("wgmma.mma_async")
def mma_async(b: Builder, i: Instruction) -> Op:
    """Start one product."""
    kind = _kind_of(b, i)
    target, a_operand, b_operand, *rest = i.operands
    count = acc_registers(kind.acc, 16, kind.n)
    held = "b32" if kind.acc == "f16" else kind.acc
    acc = tuple(b.target(x, held) for x in elements_of(b, target, count))
    fragment = isinstance(a_operand, Vector)
    a_slots: tuple[int, ...]
    if isinstance(a_operand, Vector):
        a_slots = tuple(b.source(x, "b32") for x in a_operand.elements)
    else:
        a_slots = (b.source(a_operand, "b64"),)
    b_slot, keep = b.source(b_operand, "b64"), b.source(rest[0], "pred")
    for x in elements_of(b, target, count):
        b.source(x, held, where=keep)
    flags = [x.value for x in rest[1:] if isinstance(x, Immediate)]
    signs = (flags[0], flags[1]) if len(flags) >= 2 else (1, 1)
    majors = flags[2:]
    if len(majors) != (0 if BYTES[kind.a] != 2 else 1 if fragment else 2):
        raise b.error("the number of operands is wrong")
    a_k = fragment or not majors or majors[0] == 0
    b_k = not majors or majors[-1] == 0
    holds = frozenset(names(target))
    reads = frozenset(names(a_operand)) if fragment else frozenset()
    line = i.line

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        for first in _warpgroups(g, m, "wgmma.mma_async"):
            at = slice(first - g.lo, first - g.lo + WARPGROUP)

            def word(slot: int, at: slice = at) -> int:
                values = np.broadcast_to(V[slot], (g.n, 32))[at]
                if (values != values[0, 0]).any():
                    raise Fault("the threads of a warpgroup have different operands")
                return int(values[0, 0])

            a: Any = a_slots
            with of_thread(m, g, first - g.lo):
                if not fragment:
                    a = _operand(machine, first, word(a_slots[0]), 64, kind.a, kind.k, a_k, _FEWEST)
                other = _operand(machine, first, word(b_slot), kind.n, kind.b, kind.k, b_k, kind.n)
                product = Product(kind, acc, a, other, bool(word(keep)), signs, line, holds, reads)
                queue = _queue(machine, first)
                if any(not each.holds.isdisjoint(reads) for each in queue.waiting()):
                    raise Fault("a fragment of A is in accumulators that nobody waited for")
            queue.groups[-1].append(product)
            _reading(machine, first, queue, product)

    return op


def _reading(machine: Any, first: int, queue: Queue, product: Product) -> None:
    """Note what a product reads from now on, until its group is waited for."""
    order = machine.order
    queue.number = queue.number or order.number(first)
    if not queue.ticket:
        queue.ticket = machine.shared.tickets.new(readable=True, fenced=True)
        number = queue.done + len(queue.groups)
        machine.shared.tickets.belongs(queue.ticket, queue.number, number)
    for matrix in (product.a, product.b):
        if isinstance(matrix, Matrix):
            order.used(matrix.of_use(matrix.units), queue.ticket)


def _perform(machine: Any, first: int, product: Product) -> None:
    """Multiply, and write the accumulators."""
    kind = product.kind
    V = machine.rows(first, first + WARPGROUP).V
    if isinstance(product.a, Matrix):
        left = _read(machine, product.a, kind.a, product.line)
    else:
        left = factor(V, product.a, kind.a, WARPGROUP, 2).reshape(64, kind.k)
    right = _read(machine, product.b, kind.b, product.line)
    before = np.zeros((64, kind.n))
    if product.keep:
        before = read_acc(V, product.acc, kind.acc, WARPGROUP, 2).reshape(before.shape)
    left, right = product.signs[0] * left, product.signs[1] * right
    total = accumulated(before, left, right, kind.a, kind.acc).reshape(WARPGROUP, 16, kind.n)
    write_acc(V, product.acc, total, kind.acc, True, saturate=kind.saturate)


def _ended(machine: Any, first: int, count: int) -> None:
    """Let the warps of a warpgroup know that its first groups are complete, and what they tell."""
    order, queue = machine.order, _queue(machine, first)
    queue.done += count
    told = reduce(joined, queue.told[:count])
    del queue.told[:count]
    for row in range(first, first + WARPGROUP):
        order.acquire(row, told)
        if queue.number:  # else the groups were empty
            order.known[row, queue.number] = queue.done


@instruction("wgmma.fence")
def fence(b: Builder, i: Instruction) -> Op:
    """Order registers before wgmma: they are read and written in order here."""

    def op(V: Any, m: Any, g: Any) -> None:
        _warpgroups(g, m, "wgmma.fence")

    return op


@instruction("wgmma.commit_group")
def commit(b: Builder, i: Instruction) -> Op:
    """Close the group of the products before."""
    line = i.line

    def op(V: Any, m: Any, g: Any) -> None:
        for first in _warpgroups(g, m, "wgmma.commit_group"):
            queue = _queue(g.machine, first)
            rows = range(first, first + WARPGROUP)
            queue.told.append(reduce(joined, map(g.machine.order.release, rows)))
            queue.ticket = 0
            g.machine.writes.epoch(first, first + WARPGROUP)
            for row in rows:
                g.machine.record("multiply", f"{len(queue.groups[-1])} products", line, row)
            queue.groups.append([])

    return op


@instruction("wgmma.wait_group")
def wait(b: Builder, i: Instruction) -> Op:
    """Wait for all groups but the last few."""
    keep, line = number_of(b, i), i.line

    def op(V: Any, m: Any, g: Any) -> None:
        for first in _warpgroups(g, m, "wgmma.wait_group"):
            groups = _queue(g.machine, first).groups
            done = len(groups) - 1 - keep
            for group in groups[: max(done, 0)]:
                with of_thread(m, g, first - g.lo):
                    for product in group:
                        _perform(g.machine, first, product)
                for row in range(first, first + WARPGROUP):
                    g.machine.record("multiplied", f"{len(group)} products", line, row)
            if done > 0:
                _ended(g.machine, first, done)
                del groups[:done]

    return op
