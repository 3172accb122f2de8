"""How processes hand parts of matrices to each other while they multiply.

`Symmetric` is for GPUs of one host: each maps the others' buffers (PyTorch's symmetric memory), and
copy engines move what is ready on a stream of its own, so that no multiprocessor waits. `Messages`
sends and receives, on any device that a process group can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import DeviceMismatch, ShapeMismatch, UnsupportedProblem
from ..support.arguments import is_one_of, shown

__all__ = ["Direct", "Messages", "Symmetric", "checked_group", "exchange_of"]

_FIRST_CHANNEL = 2  # of signals; barriers have those before


def exchange_of(way: str, group: Any, x: Tensor, shape: tuple[int, ...]) -> Messages | Symmetric:
    """Return a way for the processes of a group to exchange parts, with a buffer on each.

    Parameters
    ----------
    way
        "symmetric", "direct" or "messages".
    group
        A process group; None for all processes.
    x
        What has the device and the dtype.
    shape
        Of the buffer; the same on all.

    Raises
    ------
    UnsupportedProblem
        Another way, or there is no group.
    DeviceMismatch
        The tensor is not on a GPU, whose memory others could map.
    ShapeMismatch
        Shapes or dtypes differ between processes.
    """
    group = checked_group(group)
    if not is_one_of(way, _ways()):
        raise UnsupportedProblem(f"way {shown(way)} is not known; use one of {', '.join(_ways())}")
    kind = _ways()[way]
    if kind is not Messages and not x.is_cuda:
        raise DeviceMismatch(
            f"way {way!r} is for GPUs and the operands are on {x.device}; pass way='messages'"
        )
    key = (group, kind, shape, x.dtype, x.device)
    found = _EXCHANGES.get(key)
    if found is None:
        _agree(group, shape, x.dtype)
        if len(_EXCHANGES) >= _MOST:  # the same one on every process, since they call alike
            _EXCHANGES.pop(next(iter(_EXCHANGES)))
        found = _EXCHANGES[key] = kind(group, shape, x)
    return found


def checked_group(group: Any) -> Any:
    """Return a process group: the given one, or that of all processes.

    Raises
    ------
    UnsupportedProblem
        There is no process group, or this process is not in it.
    """
    if not dist.is_initialized():
        raise UnsupportedProblem(
            "there is no process group; call torch.distributed.init_process_group first"
        )
    if group is None:
        return dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise UnsupportedProblem(
            "this process is not in the group; call the function on its members alone"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise UnsupportedProblem(
            f"group is {shown(group)}; pass a ProcessGroup (mesh.get_group() of a DeviceMesh), or "
            "None for all processes"
        )
    return group


def _ways() -> dict[str, type[Messages] | type[Symmetric]]:
    return {"symmetric": Symmetric, "direct": Direct, "messages": Messages}


_EXCHANGES: dict[Any, Messages | Symmetric] = {}
_MOST = 8


def _agree(group: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Check that all processes request the same: else they would wait for each other forever."""
    requested: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(requested, (shape, str(dtype)), group=group)
    if any(each != requested[0] for each in requested):
        said = ", ".join(f"{dtype} {shape}" for shape, dtype in requested)
        raise ShapeMismatch(f"processes pass parts of different kinds ({said}); make them equal")


class Messages:
    """Sends and receives: see the functions of `Symmetric`, which have the same meaning."""

    def __init__(self, group: Any, shape: tuple[int, ...], like: Tensor) -> None:
        self.group, self.shape, self.like = group, shape, like.new_empty(0)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._sent: list[Any] = []
        self._coming: dict[int, tuple[Any, Tensor]] = {}

    def gather(self, part: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield whose part comes and the part, this process's first, as they arrive."""
        part = part.contiguous()
        for step in range(1, self.size):
            source = (self.rank + step) % self.size
            x = self.like.new_empty(self.shape)
            self._coming[source] = (self._receive(x, source), x)
            self._sent.append(self._send(part, (self.rank - step) % self.size))
        yield self.rank, part
        for step in range(1, self.size):
            source = (self.rank + step) % self.size
            yield source, self._arrived(source)

    def begin(self) -> None:
        """Start to pass parts on, to the next process from the one before."""
        before = (self.rank - 1) % self.size
        for slot in range(self.shape[0]):
            x = self.like.new_empty(self.shape[1:])
            self._coming[slot] = (self._receive(x, before), x)

    def outgoing(self, slot: int) -> Tensor:
        """Return where a part that is to be sent is written."""
        return self.like.new_empty(self.shape[1:])

    def send(self, slot: int, part: Tensor) -> None:
        """Send a part to its slot in the next process's buffer."""
        self._sent.append(self._send(part, (self.rank + 1) % self.size))

    def arrived(self, slot: int) -> Tensor:
        """Return what the process before has sent."""
        return self._arrived(slot)

    def end(self) -> None:
        """Wait for what this process sends."""
        for work in self._sent:
            work.wait()
        self._sent.clear()

    def _send(self, x: Tensor, to: int) -> Any:
        return dist.isend(x, group=self.group, group_dst=to)

    def _receive(self, x: Tensor, source: int) -> Any:
        return dist.irecv(x, group=self.group, group_src=source)

    def _arrived(self, which: int) -> Tensor:
        work, x = self._coming.pop(which)
        work.wait()
        return x


class Symmetric:
    """A buffer on each GPU that the others have mapped, and a stream for copies.

    Parameters
    ----------
    group, shape, like
        As in `exchange_of`.
    """

    def __init__(self, group: Any, shape: tuple[int, ...], like: Tensor) -> None:
        import torch.distributed._symmetric_memory as memory

        self.shape, self.dtype, device = shape, like.dtype, like.device
        with torch.cuda.device(device):
            self.buffer = memory.empty(*shape, dtype=like.dtype, device=device)
            self.handle = memory.rendezvous(self.buffer, group)
            self.copies = torch.cuda.Stream(priority=-1)
        self.rank, self.size = self.handle.rank, self.handle.world_size
        self._others = [self._of(rank) for rank in range(self.size)]
        self._room: Tensor | None = None
        self._in_place = False

    def room(self, *shape: int) -> Tensor:
        """Return memory that copies read or write; calls use it one after the other."""
        if self._room is None:
            self._room = torch.empty(shape, dtype=self.dtype, device=self.buffer.device)
        return self._room

    def gather(self, part: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield whose part comes and the part, this process's first, as they arrive."""
        main = torch.cuda.current_stream()
        room = self.room(self.size - 1, *self.shape)
        self._in_place = part.data_ptr() == self.buffer.data_ptr()
        if not self._in_place:
            self.handle.barrier(channel=0)  # nobody reads what the buffers held before
            self.buffer.copy_(part)
        self.handle.barrier(channel=1)  # all buffers hold their parts
        self.copies.wait_stream(main)
        events = []
        for step in range(1, self.size):  # before any product, whose CTAs leave no room for others
            with torch.cuda.stream(self.copies):
                room[step - 1].copy_(self._others[(self.rank + step) % self.size])
                events.append(self.copies.record_event())
        yield self.rank, self.buffer
        for step, event in enumerate(events, 1):
            main.wait_event(event)
            yield (self.rank + step) % self.size, room[step - 1]

    def begin(self) -> None:
        """Start to pass parts on, to the next process from the one before."""
        self.handle.barrier(channel=0)  # what came before has been read

    def outgoing(self, slot: int) -> Tensor:
        """Return where a part that is to be sent is written."""
        return self.room(*self.shape)[slot]

    def send(self, slot: int, part: Tensor) -> None:
        """Send a part to its slot in the next process's buffer."""
        after = (self.rank + 1) % self.size
        self.copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.copies):
            self._others[after][slot].copy_(part)
            self.handle.put_signal(after, channel=_FIRST_CHANNEL + slot)

    def arrived(self, slot: int) -> Tensor:
        """Return what the process before has sent, after the current stream has waited for it."""
        self.handle.wait_signal((self.rank - 1) % self.size, channel=_FIRST_CHANNEL + slot)
        return self.buffer[slot]

    def end(self) -> None:
        """Let the current stream wait for what this process sends, and for who reads its buffer."""
        torch.cuda.current_stream().wait_stream(self.copies)
        if self._in_place:
            self.handle.barrier(channel=0)

    def _of(self, rank: int) -> Tensor:
        return self.handle.get_buffer(rank, self.shape, self.dtype)


class Direct(Symmetric):
    """Products write what is sent into the next process's buffer themselves."""

    def outgoing(self, slot: int) -> Tensor:
        """Return the next process's memory."""
        return self._others[(self.rank + 1) % self.size][slot]

    def send(self, slot: int, part: Tensor) -> None:
        """Say that a part has been written."""
        self.handle.put_signal((self.rank + 1) % self.size, channel=_FIRST_CHANNEL + slot)
