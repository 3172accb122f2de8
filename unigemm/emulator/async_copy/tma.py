"""Tensor copies by TMA: the 128-byte descriptor that CuTe's host code makes, boxes, and loads.

A box of a tensor of up to five dimensions goes to or from shared memory, its first dimension
contiguous there, its 16-byte units mixed by a swizzle of the shared address. Elements outside the
tensor are read as zeros, and not written; but a store fills the 16 bytes that a row ends in. Loads
of float32 as TF32 are rounded.

The descriptor (read off what CuTe DSL 4.8 writes, one input varied at a time, and off what the
driver of an H200 wrote, see tests/emulator/probe_results.json):

    bytes 0-7    address of the tensor
    8-11         flags: 0-3 the kind (tiled: 2 from CuTe DSL, 0 from the driver), 4-6 dimensions
                 minus one, 7-10 element type (11 and 12: four bits, packed and padded in shared
                 memory; 13: six bits),
                 13-14 swizzle (0 none, 1 of 32, 2 of 64, 3 of 128 bytes), 16 float32 that loads
                 round to TF32, 19-20 units of the swizzle (0 of 16, 1 of 32 bytes)
    12-27        strides of dimensions 1 to 4 in units of 16 bytes (28-31: their high four bits)
    32-51        extents minus one
    52-54        steps between elements minus one, three bits each
    55-59        extents of the box minus one
    60-127       not looked at: sizes of the box, from the driver
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ..core.arithmetic import instruction
from ..core.dependency import after_wait
from ..core.memory import carrier
from ..core.program import Builder, Op
from ..core.rounding import tf32
from ..ptx.faults import Fault, at_thread
from ..ptx.ptx import Address, Instruction
from .mbarriers import barrier_at
from .proxy import arrival, bring, requests
from .transfer import GENERIC_PARAM, active, address_of, flat_shared

__all__ = [
    "Descriptor",
    "box_elements",
    "box_units",
    "check_corner",
    "coordinates_of",
    "decode",
    "multicast_offsets",
    "rounded_to_tf32",
    "swizzled",
    "tensor_at",
]

# Element type numbers to bytes and types. Up to 7 they are those of CUtensorMapDataType; the others
# are from descriptors that the driver made.
_ITEMS = {
    0: (1, ""), 1: (2, ""), 2: (4, "u32"), 3: (4, "s32"), 4: (8, "u64"), 5: (8, "s64"),
    6: (2, "f16"), 7: (4, "f32"), 9: (8, "f64"), 10: (2, "bf16"),
}  # fmt: skip
# Bits of narrow elements; and whether sixteen of them take 16 bytes of shared memory.
_NARROW = {11: (4, False), 12: (4, True), 13: (6, True)}
_TF32 = 1 << 16  # float32 that loads round
# Bits 18 and 21 are hints: a constant, and a tensor of at least 128 KiB.
_IGNORED = (1 << 18) | (1 << 21)
_MOST_BYTES = 256 << 10  # of a box
_FIELDS = 0x7F | 0xF << 7 | 3 << 13 | _TF32 | 1 << 19


@dataclass(frozen=True)
class Descriptor:
    """A tensor map: all sizes in elements, strides in bytes, the contiguous dimension first.

    `kind` is the type of its elements, empty where reductions have none of it. Elements of fewer
    than 8 `bits` are taken as the bytes that hold them; with `padded`, those of sixteen elements
    begin each 16 bytes of shared memory. With `tf32` loads round to TF32.
    """

    address: int
    itemsize: int
    kind: str
    swizzle: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    coarse: bool = False  # the swizzle mixes units of 32 bytes instead of 16
    bits: int = 8
    padded: bool = False
    tf32: bool = False

    @property
    def moved_bytes(self) -> int:
        """Bytes of a box as an mbarrier counts them: without padding."""
        return self.itemsize * prod(self.box)

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory."""
        return self.moved_bytes * 8 // self.bits if self.padded else self.moved_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the box in shared memory."""
        size = self.box[0] * self.itemsize
        return size * 8 // self.bits if self.padded else size


@lru_cache(maxsize=64)
def decode(raw: bytes) -> Descriptor:
    """Read a descriptor.

    Raises
    ------
    Fault
        It is none, or uses what is not known here.
    """
    address, flags = struct.unpack_from("<QI", raw)
    if flags & 15 not in (0, 2) or not any(raw) or flags & ~(_FIELDS | _IGNORED):
        raise Fault(f"these 128 bytes are no tensor map that is known here (flags {flags:#x})")
    rank = (flags >> 4 & 7) + 1
    number = flags >> 7 & 15
    itemsize, kind = _ITEMS.get(number, (1 if number in _NARROW else 0, ""))
    if rank > 5 or not itemsize:
        raise Fault(f"a tensor map has unknown flags {flags:#x}")
    lows = struct.unpack_from("<4I", raw, 12)
    (highs,) = struct.unpack_from("<I", raw, 28)
    strides = [(low | (highs >> 4 * n & 15) << 32) * 16 for n, low in enumerate(lows)]
    extents = [extent + 1 for extent in struct.unpack_from("<5I", raw, 32)]
    if any(raw[52:55]):
        raise Fault("a tensor map with steps between elements is not implemented")
    box = [extent + 1 for extent in raw[55:60]]
    bits, padded = _NARROW.get(number, (8, False))
    if extents[0] * bits % 8 or box[0] * bits % 8 or (padded and box[0] % 16):
        raise Fault(f"a tensor of elements of {bits} bits has rows of whole bytes")
    extents[0], box[0] = extents[0] * bits // 8, box[0] * bits // 8
    swizzle = (0, 32, 64, 128)[flags >> 13 & 3]
    found = Descriptor(
        address, itemsize, kind, swizzle, tuple(extents[:rank]), (itemsize, *strides[: rank - 1]),
        tuple(box[:rank]), bool(flags >> 19 & 1), bits, padded, bool(flags & _TF32),
    )  # fmt: skip
    if found.tf32 and kind != "f32":
        raise Fault("a tensor map that rounds to TF32 has other elements than float32")
    if address % 16 or found.row_bytes % 16:
        raise Fault("a tensor map needs an address and rows of its box that are 16-byte multiples")
    if swizzle and found.row_bytes > swizzle:
        raise Fault(f"rows of {found.row_bytes} bytes do not fit a swizzle of {swizzle}")
    if found.box_bytes > _MOST_BYTES:
        raise Fault(f"a box of {found.box_bytes} bytes does not fit into any shared memory")
    if found.coarse and swizzle != 128:
        raise Fault("a swizzle in units of 32 bytes must be of 128 bytes")
    return found


def swizzled(addresses: Any, swizzle: int, *, coarse: bool = False) -> Any:
    """Mix the 16-byte units of shared addresses: bits 4-6 with bits 7-9, as wide as the swizzle.

    With `coarse` units of 32 bytes are mixed: bits 5 and 6 with bits 7 and 8.
    """
    if not swizzle:
        return addresses
    if coarse:
        return addresses ^ (((addresses >> 7) & 3) << 5)
    mask = swizzle // 16 - 1
    return addresses ^ (((addresses >> 7) & mask) << 4)


def _descriptor(machine: Any, address: int) -> Descriptor:
    if GENERIC_PARAM <= address < GENERIC_PARAM + (1 << 40):
        offset = address - GENERIC_PARAM
        raw = machine.params[offset : offset + 128]
    else:
        buffer = machine.memory.buffer(address, address + 128)
        raw = buffer.bytes[address - buffer.start :][:128].tobytes()
    if len(raw) != 128 or address % 64:
        raise Fault("a tensor map must be 128 bytes, aligned to 64")
    return decode(raw)


def check_corner(d: Descriptor, at: tuple[int, ...], *, stored: bool = False) -> None:
    """Check the first element of a box.

    Raises
    ------
    Fault
        An H200 answers with an illegal instruction. (Blackwell's padded elements have other rules.)
    """
    bits = at[0] * d.itemsize * d.bits
    if bits % 8:
        raise Fault(f"the box begins within a byte: at element {at[0]} of {d.bits} bits")
    if bits % 128 and not d.padded:
        text = f"the box begins at byte {bits // 8} of a row, which is no multiple of 16"
        raise Fault(text)
    if stored and min(at) < 0:
        raise Fault(f"a box that is stored cannot begin before the tensor, at {at}")


def box_elements(d: Descriptor, at: tuple[int, ...], *, stored: bool = False) -> tuple[Any, Any]:
    """Return device addresses of a box's elements, (rows, columns), and which of them exist.

    What is `stored` goes to all of the 16 bytes that a row of the tensor ends in.
    """
    addresses = np.full((1,), d.address, np.int64)
    inside = np.ones((1,), bool)
    at = (at[0] * d.bits // 8, *at[1:])
    unit = 16 // d.itemsize if stored else 1
    extents = (-(-d.extents[0] // unit) * unit, *d.extents[1:])
    for n in range(len(d.box) - 1, -1, -1):
        index = at[n] + np.arange(d.box[n], dtype=np.int64)
        good = (index >= 0) & (index < extents[n])
        addresses = (addresses[:, None] + index * d.strides[n]).reshape(-1)
        inside = (inside[:, None] & good).reshape(-1)
    return addresses.reshape(-1, d.box[0]), inside.reshape(-1, d.box[0])


def box_units(machine: Any, d: Descriptor, offset: int, goes: str) -> Any:
    """Return the byte offsets of a box's 16-byte units in shared memory, in the box's order.

    Raises
    ------
    Fault
        A box cannot be there.
    """
    shared = machine.shared
    address = offset % shared.pitch
    if offset % 128 or address + d.box_bytes > shared.base + shared.size:
        raise Fault(f"a box of {d.box_bytes} bytes cannot {goes} shared address {address}")
    units = offset + 16 * np.arange(d.box_bytes // 16, dtype=np.int64)
    return swizzled(units, d.swizzle, coarse=d.coarse)


def coordinates_of(b: Builder, operand: Any) -> Any:
    """Compile ``[map, {coordinates}]``: a list of both for the active lanes."""
    if not isinstance(operand, Address) or operand.coordinates is None:
        raise b.error("a tensor and its coordinates are expected")
    base = b.source(operand.base, "u64")
    slots = [b.source(x, "s32") for x in operand.coordinates.elements]

    def read(V: Any, m: Any, g: Any) -> list[tuple[int, tuple[int, ...]]]:
        columns = [active(V[s], m, g).tolist() for s in slots]
        return list(zip(active(V[base], m, g).tolist(), zip(*columns, strict=True), strict=True))

    return read


def tensor_at(machine: Any, address: int, at: tuple[int, ...], rank: int) -> Descriptor:
    """Return the tensor map at an address.

    Raises
    ------
    Fault
        There is none, or of other dimensions.
    """
    d = _descriptor(machine, address)
    if len(d.box) != rank or len(at) != rank:
        raise Fault(f"the tensor map has {len(d.box)} dimensions and the instruction {rank}")
    return d


@instruction("cp.async.bulk.tensor")
def load_box(b: Builder, i: Instruction) -> Op:
    """Copy a box of a tensor to shared memory."""
    rank = int(i.parts[4].rstrip("d"))
    pair = "cta_group::2" in i.parts
    parts = [part for part in i.parts if not part.startswith("cta_group::")]
    if parts[5] not in ("shared::cta", "shared::cluster") or parts[6] != "global":
        raise b.error("this direction is not known")
    multicast = "multicast::cluster"
    b.known(parts[7:], "tile", "mbarrier::complete_tx::bytes", multicast, "L2::cache_hint")
    to, tensor = address_of(b, i.operands[0]), coordinates_of(b, i.operands[1])
    signal = address_of(b, i.operands[2])
    mask_slot = b.source(i.operands[3], "u16") if multicast in parts else None
    line = i.line

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        after_wait(g, m)
        bases = active(g.base, m, g)
        near = active(to(V), m, g)
        offsets = flat_shared(near, bases, g, 16, cluster=True).tolist()
        signals = flat_shared(active(signal(V), m, g), bases, g, 8, cluster=True).tolist()
        masks = [None] * len(near) if mask_slot is None else active(V[mask_slot], m, g).tolist()
        given = requests(m, g, tensor(V, m, g), offsets, signals, masks)
        for n, who, (address, at), offset, barrier, mask in given:
            targets = [(offset, barrier)]
            with at_thread(n):
                d = tensor_at(machine, address, at, rank)
                check_corner(d, at)
                machine.record("load", f"{at} to shared address {near[n]}", line, who[0])
                if mask is not None:
                    own = who[0] // machine.geometry.warps
                    targets = multicast_offsets(machine, own, mask, offset, barrier, pair)
                _check_signals(machine, targets, pair)
                _load(machine, d, at, targets, line, who)

    return op


def multicast_offsets(machine: Any, own: int, mask: int, offset: int, signal: int,
                      pair: bool) -> list[tuple[int, int]]:  # fmt: skip
    """Return the offsets in all CTAs of the mask, of data and its mbarrier.

    The mbarrier is at the same address in each CTA; in a pair, in the even or the odd CTA of each,
    as the one that was named.
    """
    pitch = machine.shared.pitch
    first, odd = machine.cluster_ctas(own)[0], signal // pitch & 1
    found = []
    for cta in machine.cluster_ctas(own, mask):
        to = first + (cta - first & ~1 | odd) if pair else cta
        found.append((cta * pitch + offset % pitch, to * pitch + signal % pitch))
    return found


def _check_signals(machine: Any, targets: Any, pair: bool) -> None:
    """Check that each mbarrier is where the data goes: in the same CTA, or in its pair."""
    pitch = machine.shared.pitch
    for offset, signal in targets:
        cta, other = offset // pitch, signal // pitch
        if cta != other and not (pair and cta ^ 1 == other):
            text = "the mbarrier is not in the CTA that the data goes to, nor in its pair"
            raise Fault(text)


def _load(machine: Any, d: Descriptor, at: tuple[int, ...], targets: Any, line: int,
          who: tuple[int, int]) -> None:  # fmt: skip
    """Bring a box at once; it may be read when the transfer is complete, which comes later."""
    addresses, inside = box_elements(d, at)
    data = np.zeros(addresses.shape, carrier(d.itemsize))
    if inside.any():
        wanted = addresses[inside].astype(np.uint64)
        data[inside] = machine.memory.load(wanted, d.itemsize)
    if d.tf32:
        data = rounded_to_tf32(data)
    machine.counts.tma_filled += int((~inside).sum()) * d.itemsize * len(targets)
    if d.padded:  # the padding may hold anything
        groups = data.reshape(-1, 2 * d.bits)
        data = np.full((len(groups), 16), 0xFF, np.uint8)
        data[:, : 2 * d.bits] = groups
    units = data.reshape(-1).view(carrier(16))
    for offset, signal in targets:
        to = box_units(machine, d, offset, "go to")
        barrier = barrier_at(machine, signal)
        ticket = bring(machine, who, to, units)
        arrival(machine, barrier, d.moved_bytes, ticket, line, who[0])
        machine.counts.tma_loaded += d.moved_bytes


def rounded_to_tf32(bits: Any) -> Any:
    """Round float32 to TF32 as TMA does; both are bits.

    As seen on an H200: the nearest, ties to even; infinity of what is too large; and 0x7fffffff of
    a NaN, tried with one whose payload TF32 does not hold.
    """
    number = bits.view(np.float32)
    return np.where(np.isnan(number), np.uint32(0x7FFFFFFF), tf32(number, "rn"))


@instruction("cp.async.bulk.prefetch.tensor")
def prefetch_box(b: Builder, i: Instruction) -> Op:
    """Check that a box can be brought: caches are not modelled."""
    rank = int(i.parts[5].rstrip("d"))
    b.known(i.parts[6:], "L2", "global", "tile", "L2::cache_hint")
    tensor = coordinates_of(b, i.operands[0])

    def op(V: Any, m: Any, g: Any) -> None:
        for n, (address, at) in enumerate(tensor(V, m, g)):
            with at_thread(n):
                tensor_at(g.machine, address, at, rank)

    return op


@instruction("prefetch.tensormap")
def prefetch_tensormap(b: Builder, i: Instruction) -> Op:
    """Check that a tensor map is there."""
    if not isinstance(i.operands[0], Address):
        raise b.error("an address is expected")
    address = address_of(b, i.operands[0], "u64")

    def op(V: Any, m: Any, g: Any) -> None:
        for n, one in enumerate(active(address(V), m, g).tolist()):
            with at_thread(n):
                _descriptor(g.machine, one)

    return op
