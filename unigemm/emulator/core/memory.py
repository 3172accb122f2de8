"""Device memory and the shared memory of CTAs that run together.

Every access is checked: inside a registered buffer, and aligned to its width. Shared memory keeps,
for each word of four bytes, a ticket: who wrote it last, and whether it may be read by now.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ptx.faults import EmulatorError, Fault

__all__ = [
    "Buffer",
    "Memory",
    "SharedMemory",
    "Tickets",
    "bank_passes",
    "carrier",
    "span_of",
    "words_of",
]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: The NumPy types that move 1, 2, 4, 8 or 16 bytes as one element; numbers do not matter here.
_CARRIERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
_FIRST = 0x7000_0000_0000  # fake addresses begin here, one terabyte apart
_APART = 1 << 40
_PAGE = 256
_WORDS = np.arange(4)


def carrier(width: int) -> Any:
    """Return the dtype that moves `width` bytes at once."""
    return np.dtype(_CARRIERS[width])


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that a kernel may use: `size` bytes from `address` on.

    Attributes
    ----------
    bytes
        The memory, from the last multiple of 16 at or below the address on.
    start
        The address of the first of `bytes`.
    keep
        The array that owns it.
    """

    address: int
    size: int
    bytes: Bytes
    start: int
    writable: bool
    keep: Any

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.address + self.size

    def view(self, width: int) -> Any:
        """Return the memory as elements of `width` bytes."""
        return self.bytes.view(carrier(width))

    def indices(self, addresses: Any, width: int) -> Any:
        """Return the indices of addresses in `view`."""
        return ((addresses - np.uint64(self.start)) // np.uint64(width)).view(np.int64)


def span_of(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the address and the bytes of what an array touches."""
    reaches = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low = sum(min(reach, 0) for reach in reaches)
    high = sum(max(reach, 0) for reach in reaches) + array.itemsize
    return array.ctypes.data + low, high - low if array.size else 0


class Memory:
    """Device memory: NumPy arrays at addresses.

    Examples
    --------
    >>> memory = Memory()
    >>> x = np.zeros(8, np.float32)
    >>> address = memory.add(x)  # a fake one; kernels that store there change x
    """

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._starts: list[int] = []
        self._next = _FIRST

    def add(self, array: np.ndarray[Any, Any], address: int | None = None) -> int:
        """Register all that an array touches.

        Parameters
        ----------
        array
            Any strides; bytes between its elements become valid too.
        address
            Address of its lowest byte. By default a new one, as far from a multiple of 256 as
            the array's own.

        Returns
        -------
        int
            The address.

        Raises
        ------
        EmulatorError
            Other memory is registered there.
        """
        real, size = span_of(array)
        if address is None:
            address = self._next + real % _PAGE
            self._next += _APART
        if (address - real) % 16:
            raise EmulatorError("an address must be aligned, to 16 bytes, as its array is")
        return self.add_raw(real, size, address, array, array.flags.writeable)

    def add_raw(
        self, real: int, size: int, address: int, keep: Any = None, writable: bool = True
    ) -> int:
        """Register `size` bytes at a real address of this process; see `add`."""
        before = real % 16
        whole = -(-(before + size) // 16) * 16
        raw = (ctypes.c_uint8 * whole).from_address(real - before)
        data = np.ctypeslib.as_array(raw)
        index = bisect_right(self._starts, address)
        new = Buffer(address, size, data, address - before, writable, keep)
        if (index and self._buffers[index - 1].end > address) or (
            index < len(self._buffers) and self._buffers[index].address < new.end
        ):
            raise EmulatorError(f"there is memory at {address:#x} already")
        self._starts.insert(index, address)
        self._buffers.insert(index, new)
        return address

    def remove(self, address: int) -> None:
        """Forget the buffer at an address.

        Raises
        ------
        EmulatorError
            There is none.
        """
        if address not in self._starts:
            raise EmulatorError(f"there is no memory at {address:#x}")
        index = self._starts.index(address)
        del self._starts[index], self._buffers[index]

    def find(self, low: int, high: int) -> Buffer | None:
        """Return the buffer that holds all bytes from `low` to `high`, if there is one."""
        index = bisect_right(self._starts, low)
        if index and high <= self._buffers[index - 1].end:
            return self._buffers[index - 1]
        return None

    def buffer(self, low: int, high: int, *, write: bool = False) -> Buffer:
        """Return the buffer that holds all bytes from `low` to `high`.

        Raises
        ------
        Fault
            There is none, or it is written and must not be.
        """
        found = self.find(low, high)
        if found is None:
            raise Fault(f"{high - low} bytes of device memory at {low:#x} are {self._near(low)}")
        if write and not found.writable:
            raise Fault(f"device memory at {low:#x} is read-only")
        return found

    def _near(self, address: int) -> str:
        index = bisect_right(self._starts, address)
        if not index:
            return "not registered"
        below = self._buffers[index - 1]
        return f"not registered: {address - below.end} bytes behind a buffer of {below.size} bytes"

    def _parts(self, addresses: Any, width: int, write: bool) -> list[tuple[Buffer, Any]]:
        """Split accesses by buffer; the second of each pair indexes `addresses`."""
        if np.bitwise_or.reduce(addresses) & np.uint64(width - 1):
            lane = int(np.flatnonzero(addresses & np.uint64(width - 1))[0])
            raise Fault(f"address {int(addresses[lane]):#x} is not aligned to {width} bytes", lane)
        low, high = int(addresses.min()), int(addresses.max()) + width
        whole = self.find(low, high)
        if whole is not None and (whole.writable or not write):
            return [(whole, slice(None))]
        parts = []
        left = np.ones(len(addresses), bool)
        while left.any():
            lane = int(np.argmax(left))
            first = int(addresses[lane])
            try:
                found = self.buffer(first, first + width, write=write)
            except Fault as error:
                raise Fault(str(error), lane) from None
            inside = (addresses >= found.address) & (addresses <= found.end - width) & left
            parts.append((found, np.flatnonzero(inside)))
            left &= ~inside
        return parts

    def load(self, addresses: Any, width: int) -> Any:
        """Return elements of `width` bytes from flat uint64 addresses.

        Raises
        ------
        Fault
            An address is not aligned, or not registered.
        """
        parts = self._parts(addresses, width, False)
        if len(parts) == 1:
            found, _ = parts[0]
            return found.view(width).take(found.indices(addresses, width))
        out = np.empty(len(addresses), carrier(width))
        for found, chosen in parts:
            out[chosen] = found.view(width)[found.indices(addresses[chosen], width)]
        return out

    def store(self, addresses: Any, values: Any, width: int) -> None:
        """Write elements of `width` bytes; see `load`."""
        for found, chosen in self._parts(addresses, width, True):
            found.view(width)[found.indices(addresses[chosen], width)] = values[chosen]

    def elements(self, addresses: Any, width: int) -> tuple[Any, Any]:
        """Return a view and the indices in it of accesses that all lie in one buffer.

        For read-modify-write operations; see `load`.
        """
        parts = self._parts(addresses, width, True)
        if len(parts) > 1:
            raise Fault("an atomic operation of one warp touches two buffers")
        found, _ = parts[0]
        return found.view(width), found.indices(addresses, width)


def bank_passes(offsets: Any, width: int) -> int:
    """Return how many times the 32 banks are used for an access of each of some warps.

    Parameters
    ----------
    offsets
        In bytes, (warps, 32); negative for lanes that are not active.
    width
        Bytes of each lane. 128 bytes are served at once: all lanes, a half or a quarter of them.

    Notes
    -----
    A pass serves one word of each bank, to any number of lanes. An access without conflicts takes
    one pass for each 128 bytes that it could serve at once.
    """
    lanes = min(128 // max(width, 4), 32)
    parts = offsets.reshape(-1, lanes)
    words = (parts[:, :, None] >> 2) + np.arange(max(width // 4, 1))
    words = np.where(parts[:, :, None] < 0, -1, words).reshape(len(parts), -1)
    words = np.sort(words, -1)
    first = np.ones(words.shape, bool)
    first[:, 1:] = words[:, 1:] != words[:, :-1]
    first &= words >= 0
    rows = np.nonzero(first)[0]
    used = np.bincount(rows * 32 + words[first] % 32, minlength=len(parts) * 32)
    return int(used.reshape(-1, 32).max(-1).sum())


class Tickets:
    """Tickets: numbers of writes, with who may read the memory that each one wrote.

    Attributes
    ----------
    readable
        By ordinary instructions.
    fenced
        By the asynchronous proxy (TMA, wgmma).
    who, when
        The thread that wrote, and its epoch; see `order`.
    """

    NEVER = 0  # nothing wrote it
    ALWAYS = 1  # a write that needs no wait and no fence

    def __init__(self) -> None:
        self.readable = np.zeros(1024, bool)
        self.fenced = np.zeros(1024, bool)
        self.who, self.when = np.zeros(1024, np.int32), np.zeros(1024, np.int32)
        self.count = 2
        self.readable[1] = self.fenced[1] = True

    def new(self, readable: bool, fenced: bool) -> int:
        """Return a new number."""
        number = self.block(1)
        self.readable[number], self.fenced[number] = readable, fenced
        return number

    def block(self, count: int) -> int:
        """Return the first of some new numbers, of ordinary writes."""
        number = self.count
        self.count += count
        while self.count > len(self.readable):
            for name in ("readable", "fenced", "who", "when"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        self.readable[number : self.count] = True
        return number

    def belongs(self, number: int, who: int, when: int) -> None:
        """Say that a ticket is of a copy or product: its number, and which of them it is."""
        self.who[number], self.when[number] = who, when


class SharedMemory:
    """The shared memories of several CTAs, one behind the other.

    Attributes
    ----------
    size
        Bytes of each CTA, from address `base` on.
    pitch
        Bytes between the memories of two CTAs.
    mistake
        Reports a mistake, by its message and the thread among those that are active.
    """

    base = 1024  # address of a CTA's first byte; the system keeps those below on sm_90

    def __init__(self, ctas: int, size: int, mistake: Callable[..., None]) -> None:
        self.size, self.mistake = size, mistake
        self.pitch = -(-(self.base + size) // 1024) * 1024
        # Bytes that nothing wrote: a NaN in most types.
        self.bytes = np.full(ctas * self.pitch, 0xFF, np.uint8)
        self.words = np.zeros(ctas * self.pitch // 4, np.int32)
        self.tickets = Tickets()
        self.views = {width: self.bytes.view(carrier(width)) for width in _CARRIERS}

    def check(self, addresses: Any, width: int) -> None:
        """Check addresses within a CTA.

        Raises
        ------
        Fault
            One is not aligned, or not in shared memory.
        """
        if np.bitwise_or.reduce(addresses) & np.uint32(width - 1):
            lane = int(np.flatnonzero(addresses & np.uint32(width - 1))[0])
            raise Fault(
                f"shared address {int(addresses[lane]):#x} is not aligned to {width} bytes", lane
            )
        low, high = int(addresses.min()), int(addresses.max()) + width
        if low < self.base or high > self.base + self.size:
            bad = (addresses < self.base) | (addresses > self.base + self.size - width)
            lane = int(np.argmax(bad))
            raise Fault(
                f"shared address {int(addresses[lane]) - self.base} (of {self.size} bytes) is out "
                "of bounds",
                lane,
            )

    def load(self, offsets: Any, width: int) -> Any:
        """Return elements of `width` bytes from flat byte offsets, checked before.

        Raises
        ------
        Fault
            Nothing wrote them, or what wrote them is not waited for.
        """
        self.readable(self.words.take(words_of(offsets, width)))
        return self.views[width].take(offsets // width)

    def readable(self, found: Any) -> None:
        """Check that ordinary instructions may read words with tickets, (accesses, words)."""
        seen = self.tickets.readable.take(found)
        if not seen.all():
            lane, word = (int(x[0]) for x in np.nonzero(~seen))
            self.mistake(_unreadable(int(found[lane, word])), lane)

    def store(self, offsets: Any, values: Any, width: int, tickets: Any) -> None:
        """Write elements of `width` bytes; `tickets` is one number, or one for each element."""
        self.views[width][offsets // width] = values
        self.words[words_of(offsets, width)] = np.reshape(tickets, (-1, 1))


def words_of(offsets: Any, width: int) -> Any:
    """Return the words of four bytes that accesses at byte offsets have, (accesses, words)."""
    first = (offsets >> 2)[..., None]
    return first if width <= 4 else first + _WORDS[: width // 4]


def _unreadable(ticket: int) -> str:
    if ticket == Tickets.NEVER:
        return "it reads shared memory that nothing wrote"
    return "it reads shared memory that an asynchronous copy writes and that was not waited for"
