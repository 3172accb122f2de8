"""tcgen05.mma: products of one CTA or of a pair, out of shared memory into tensor memory.

One thread issues products, which wait in its warp's queue (`tensor_queue`). Where the accumulators
lie: PTX ISA, "tcgen05: data path layout organization". They are exact before they are rounded, once
for each instruction; hardware keeps fewer bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..async_copy.proxy import Source
from ..core.arithmetic import instruction
from ..core.memory import carrier
from ..core.program import Builder, Op
from ..ptx.faults import Fault, of_thread
from ..ptx.ptx import Address, Instruction, Vector
from .fragments import BYTES, numbers, round_acc
from .mma_descriptors import InstructionDescriptor, instruction_of, matrix_of
from .narrow import BITS, elements, scale_region, scales
from .tensor_memory import LANES, cta_group, memory_of, split_address
from .tensor_queue import (
    Pending,
    Region,
    active_pair,
    find_matrix,
    issue,
    issuers,
    read_matrix,
    read_region,
)

__all__: list[str] = []

_KINDS = ("f16", "tf32", "f8f6f4", "i8")
#: Elements along K that share a scale, by the kind and how the instruction says it.
_BLOCKS = {
    "mxf8f6f4": {"": 32, "scale_vec::1X": 32, "block32": 32},
    "mxf4": {"": 32, "scale_vec::2X": 32, "block32": 32},
    "mxf4nvf4": {"scale_vec::2X": 32, "block32": 32, "scale_vec::4X": 16, "block16": 16},
}


@dataclass(frozen=True)
class Kind:
    """``.kind`` of an instruction, and how many elements share a scale (0 without scales)."""

    name: str
    block: int = 0


@dataclass(frozen=True)
class Product:
    """A product that has been issued; its operands have an element for each CTA.

    `scales` are those of A and B, if there are any; `disabled` has a bit for each lane of tensor
    memory that is left as it is.
    """

    descriptor: InstructionDescriptor
    a: tuple[Source | Region, ...]
    b: tuple[Source, ...]
    acc: tuple[Region, ...]
    scales: tuple[tuple[Region, Region], ...]
    keep: bool
    disabled: int
    line: int

    @property
    def regions(self) -> tuple[Region, ...]:
        """The tensor memory that it uses."""
        inside = (x for x in self.a if isinstance(x, Region))
        return (*self.acc, *(x for both in self.scales for x in both), *inside)


# -- operands --------------------------------------------------------------------------------------


def _rows(m: int, lane: int) -> Any:
    """Return the lanes that a CTA's part of a matrix of `m` rows takes, from `lane` on.

    M = 64 leaves out every second half of a warp's lanes. Of M = 128 in a pair, a CTA has 64 rows:
    the upper lanes have the second half of the accumulators' columns, or A once more.
    """
    if m == 64:
        if lane not in (0, 16):
            raise Fault(f"a matrix of 64 rows cannot begin at lane {lane} of tensor memory")
        return lane + (np.arange(64) // 16 * 32 + np.arange(64) % 16)
    if lane:
        raise Fault(f"a matrix of {m} rows cannot begin at lane {lane} of tensor memory")
    return np.arange(LANES)


def _matrix(machine: Any, who: tuple[int, int], cta: int, word: int, rows: int, kind: str,
            k_major: bool) -> Source:  # fmt: skip
    """Find an operand's share of a CTA, and check that it may be read."""
    units = matrix_of(word).units(rows, BYTES.get(kind, 1), k_major=k_major)
    return find_matrix(machine, who, cta, units, "tcgen05.mma")


def _read(machine: Any, matrix: Source, rows: int, kind: str, k_major: bool, line: int) -> Any:
    """Return an operand's share of a CTA, (rows, K)."""
    units = read_matrix(machine, matrix, "product", line)
    if kind in BITS:
        return elements(units, kind)
    raw = units.view(carrier(BYTES[kind]))
    return numbers(raw if k_major else raw.T[:rows], kind)


def _region(machine: Any, cta: int, address: int, d: InstructionDescriptor,
            columns: int) -> Region:  # fmt: skip
    lane, first = split_address(address)
    memory_of(machine, cta).check(first, columns)
    return Region(cta, _rows(d.m, lane), first, columns)


# -- products --------------------------------------------------------------------------------------


@instruction("tcgen05.mma")
def mma(b: Builder, i: Instruction) -> Op:
    """Issue one product."""
    kind, group = _kind_of(b, i), cta_group(b, i)
    d_operand, a_operand, *rest = i.operands
    d_address = _tensor_address(b, d_operand)
    in_tensor = isinstance(a_operand, Address)
    a_address = _tensor_address(b, a_operand) if in_tensor else (b.source(a_operand, "b64"), 0)
    b_slot, word_slot = b.source(rest[0], "b64"), b.source(rest[1], "b32")
    del rest[:2]
    scale_addresses = [_tensor_address(b, rest.pop(0)) for _ in range(2 if kind.block else 0)]
    masks: tuple[int, ...] = ()
    if isinstance(rest[0], Vector) and not kind.block:
        masks = tuple(b.source(x, "b32") for x in rest[0].elements)
        if len(masks) != 4 * group:
            raise b.error(f"the lanes to leave out are {4 * group} registers")
        del rest[0]
    if len(rest) != 1:
        raise b.error("operands as of scale-input-d are not implemented")
    keep_slot, line = b.source(rest[0], "pred"), i.line

    def product(V: Any, g: Any, row: int, lane: int) -> Product:
        machine, who = g.machine, (row, lane)

        def value(slot: int, ahead: int = 0) -> int:
            return int(np.broadcast_to(V[slot], (g.n, 32))[row - g.lo, lane]) + ahead

        disabled = sum(value(x) << 32 * n for n, x in enumerate(masks))
        if disabled and group == 2:
            raise Fault("lanes to leave out are not implemented for a pair of CTAs")
        d = instruction_of(value(word_slot), kind.name, group, kind.block)
        ctas = active_pair(machine, row, group)
        columns = d.n // 2 if (group, d.m) == (2, 128) else d.n
        a: list[Any]
        if in_tensor:
            if d.a in BITS:
                raise Fault(f"a matrix of .{d.a} in tensor memory is not implemented")
            a = [_region(machine, cta, value(*a_address), d, 8) for cta in ctas]
        else:
            rows = d.m // group
            word = value(*a_address)
            a = [_matrix(machine, who, cta, word, rows, d.a, d.a_k_major) for cta in ctas]
        rows, word = d.n // group, value(b_slot)
        right = [_matrix(machine, who, cta, word, rows, d.b, d.b_k_major) for cta in ctas]
        acc = [_region(machine, cta, value(*d_address), d, columns) for cta in ctas]
        to = [value(*address) for address in scale_addresses]
        scaled = tuple(_scales_of(machine, cta, to, d, group) for cta in ctas if d.scaling)
        keep = bool(value(keep_slot))
        return Product(d, tuple(a), tuple(right), tuple(acc), scaled, keep, disabled, line)

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        for row, lane in issuers(m, g, "tcgen05.mma"):
            with of_thread(m, g, row - g.lo, lane):
                made = product(V, g, row, lane)
                perform = partial(_perform, machine, made)
                work = Pending("product", made.regions, perform, line, len(made.acc))
                issue(machine, row, work)
            machine.record("multiply", f"to column {made.acc[0].first}", line, row)

    return op


def _scales_of(machine: Any, cta: int, addresses: list[int], d: InstructionDescriptor,
               group: int) -> tuple[Region, Region]:  # fmt: skip
    """Find the scales of A and B in a CTA: those of its rows, and of all columns."""
    assert d.scaling is not None
    return (
        scale_region(machine, cta, addresses[0], d.m // group, d.scaling.a_byte),
        scale_region(machine, cta, addresses[1], d.n, d.scaling.b_byte),
    )


def _kind_of(b: Builder, i: Instruction) -> Kind:
    """Return the kind; refuse what is not known."""
    name = sizes = ""
    scaled = False
    for part in i.parts[2:]:
        if part.startswith("kind::") and part[6:] in (*_KINDS, *_BLOCKS):
            name = part[6:]
        elif part.startswith(("scale_vec::", "block1", "block3")):
            sizes = part
        elif part == "block_scale":
            scaled = True
        elif not part.startswith(("cta_group::", "collector::a")) and part not in (
            "discard", "lastuse", "fill", "use",
        ):  # fmt: skip
            raise b.error(f"the modifier .{part} is not implemented")
    if not name:
        raise b.error("a .kind is expected")
    if scaled != (name in _BLOCKS) or (sizes and not scaled):
        raise b.error(f".block_scale and .kind::{name} do not go together")
    if not scaled:
        return Kind(name)
    if sizes not in _BLOCKS[name]:
        raise b.error(f".kind::{name} needs one of {', '.join(filter(None, _BLOCKS[name]))}")
    return Kind(name, _BLOCKS[name][sizes])


def _tensor_address(b: Builder, operand: Any) -> tuple[int, int]:
    """Return the slot of an address in tensor memory, and what is added to it."""
    if not isinstance(operand, Address):
        raise b.error("an address in tensor memory is expected")
    return b.source(operand.base, "b32"), operand.offset


def _perform(machine: Any, product: Product) -> None:
    """Multiply, and write the accumulators to tensor memory."""
    d, ctas = product.descriptor, len(product.acc)
    right = [_read(machine, x, d.n // ctas, d.b, d.b_k_major, product.line) for x in product.b]
    right_whole = d.b_sign * np.concatenate(right)  # (N, K)
    folded = ctas == 2 and d.m == 128
    for n, (a, acc) in enumerate(zip(product.a, product.acc, strict=True)):
        b = right_whole
        if isinstance(a, Region):
            raw = np.ascontiguousarray(read_region(machine, a)).view(carrier(BYTES[d.a]))
            left = d.a_sign * numbers(raw, d.a)
        else:
            left = d.a_sign * _read(machine, a, d.m // ctas, d.a, d.a_k_major, product.line)
            left = np.concatenate([left, left]) if folded else left
        if d.scaling is not None:
            to_a, to_b = product.scales[n]
            left = left * scales(machine, to_a, len(left), d.scaling.a_byte, d.scaling)
            b = b * scales(machine, to_b, d.n, d.scaling.b_byte, d.scaling)
        if folded:  # the upper lanes have the second half of the columns
            half = d.n // 2
            added = np.concatenate([left[:64] @ b[:half].T, left[64:] @ b[half:].T])
        else:
            added = left @ b.T
        if product.disabled:
            chosen = np.array([not product.disabled >> int(lane) & 1 for lane in acc.lanes])
            acc, added = replace(acc, lanes=acc.lanes[chosen]), added[chosen]
        _add(machine, acc, added, d, keep=product.keep)


def _add(machine: Any, acc: Region, added: Any, d: InstructionDescriptor, *, keep: bool) -> None:
    memory = memory_of(machine, acc.cta)
    if keep:
        added = _from_word(read_region(machine, acc), d.acc) + added
    else:
        memory.check(acc.first, acc.count)
    columns = np.arange(acc.first, acc.first + acc.count)
    rounded = round_acc(added, d.acc, d.saturate)
    words = rounded.view(f"u{rounded.itemsize}").astype(np.uint32)  # float16: the low half
    memory.write(acc.lanes[:, None], columns, words)


def _from_word(words: Any, kind: str) -> Any:
    if kind == "f16":
        return words.astype(np.uint16).view(np.float16).astype(np.float64)
    return words.view(np.float32 if kind == "f32" else np.int32).astype(np.float64)
