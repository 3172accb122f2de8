"""Instructions of a whole warp: shuffles, votes, reductions, elections."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ptx.faults import Fault
from ..ptx.ptx import Instruction, Pair
from .arithmetic import check, instruction
from .program import DTYPES, Builder, Op

__all__: list[str] = []

_LANES = np.arange(32, dtype=np.uint32)
_BITS = np.uint32(1) << _LANES


def mask_bits(m: Any, n: int) -> Any:
    """Return the active lanes of each warp as a word, (n, 1)."""
    if m is True:
        return np.full((n, 1), 0xFFFFFFFF, np.uint32)
    return (np.broadcast_to(m, (n, 32)) * _BITS).sum(-1, dtype=np.uint32)[:, None]


def members(V: Any, slot: int, m: Any, g: Any, name: str) -> Any:
    """Check that the lanes of a membermask are those that are here, and return the mask.

    Raises
    ------
    Fault
        A lane is named that is not here, or is here and not named.
    """
    named = np.broadcast_to(V[slot], (g.n, 32))
    here = mask_bits(m, g.n)
    alive = mask_bits(g.alive, g.n)
    wrong = ((named & alive) != here) if m is True else ((named & alive) != here) & m
    if wrong.any():
        at = int(np.argmax(wrong))
        raise Fault(
            f"{name} names the lanes {int(named.flat[at]):#010x} and those that come are "
            f"{int(here[at // 32, 0]):#010x}",
            at,
        )
    return here


def _last(operands: tuple[Any, ...]) -> Any:
    return operands[-1]


@instruction("shfl.sync")
def shuffle(b: Builder, i: Instruction) -> Op:
    """``shfl.sync``: a register of another lane."""
    mode = i.parts[2]
    check(b, i, {"sync", mode, "b32"}, 5)
    if mode not in ("up", "down", "bfly", "idx"):
        raise b.error(f"the mode .{mode} is not known")
    target = i.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    d = b.target(first, "b32")
    p = None if second is None else b.target(second, "pred")
    x, lane, clamp = (b.source(operand, "u32") for operand in i.operands[1:4])
    mask = b.source(i.operands[4], "u32")

    def lanes(V: Any, g: Any) -> tuple[Any, Any]:
        """Return the lanes that are taken from, and whether they are in range."""
        by = (V[lane] & np.uint32(31)).astype(np.int64)
        last = (V[clamp] & np.uint32(31)).astype(np.int64)
        segment = ((V[clamp] >> np.uint32(8)) & np.uint32(31)).astype(np.int64)
        own = _LANES.astype(np.int64)
        top = (own & segment) | (last & ~segment)
        low = own & segment
        if mode == "up":
            source = own - by
            inside = source >= top
        elif mode == "down":
            source = own + by
            inside = source <= top
        elif mode == "bfly":
            source = own ^ by
            inside = source <= top
        else:
            source = low | (by & ~segment)
            inside = source <= top
        source = np.broadcast_to(np.where(inside, source, own), (g.n, 32))
        return source & 31, inside

    def taken(V: Any, g: Any, value: Any) -> Any:
        return np.take_along_axis(np.broadcast_to(value, (g.n, 32)), lanes(V, g)[0], -1)

    b.uses.taken = taken

    def op(V: Any, m: Any, g: Any) -> None:
        members(V, mask, m, g, "shfl.sync")
        source, inside = lanes(V, g)
        if m is not True:
            here = np.take_along_axis(np.broadcast_to(m, (g.n, 32)), source, -1)
            if (~here & m).any():
                raise Fault("shfl.sync reads a lane that is not here", int(np.argmax(~here & m)))
        value = np.broadcast_to(V[x], (g.n, 32))
        np.copyto(V[d], np.take_along_axis(value, source, -1), where=m)
        if p is not None:
            np.copyto(V[p], np.broadcast_to(inside, (g.n, 32)), where=m)

    return op


@instruction("vote.sync")
def vote(b: Builder, i: Instruction) -> Op:
    """``vote.sync.all``, ``.any``, ``.uni`` and ``.ballot``."""
    mode = i.parts[2]
    check(b, i, {"sync", mode}, 3)
    d = b.target(i.operands[0], "b32" if mode == "ballot" else "pred")
    p, mask = b.source(i.operands[1], "pred"), b.source(i.operands[2], "u32")
    if mode not in ("all", "any", "uni", "ballot"):
        raise b.error(f"the mode .{mode} is not known")

    def op(V: Any, m: Any, g: Any) -> None:
        here = members(V, mask, m, g, "vote.sync")
        ballot = mask_bits(V[p] & m, g.n)
        found: Any = ballot
        if mode == "all":
            found = ballot == here
        elif mode == "any":
            found = ballot != 0
        elif mode == "uni":
            found = (ballot == here) | (ballot == 0)
        np.copyto(V[d], found, where=m)

    return op


@instruction("activemask")
def activemask(b: Builder, i: Instruction) -> Op:
    """Which lanes are here."""
    d = b.target(i.operands[0], "b32")

    def op(V: Any, m: Any, g: Any) -> None:
        np.copyto(V[d], mask_bits(m, g.n), where=m)

    return op


@instruction("elect.sync")
def elect(b: Builder, i: Instruction) -> Op:
    """``elect.sync``: the first lane of those that are here."""
    target = i.operands[0]
    if not isinstance(target, Pair):
        raise b.error("two results are expected")
    d, p = b.target(target.first, "b32"), b.target(target.second, "pred")
    mask = b.source(_last(i.operands), "u32")

    def op(V: Any, m: Any, g: Any) -> None:
        members(V, mask, m, g, "elect.sync")
        here = np.broadcast_to(m, (g.n, 32))
        first = np.argmax(here, -1).astype(np.uint32)[:, None]
        np.copyto(V[d], first, where=m)
        np.copyto(V[p], first == _LANES, where=m)

    return op


@instruction("bar.warp.sync")
def warp_sync(b: Builder, i: Instruction) -> Op:
    """``bar.warp.sync``: check who is here; what they did is known to all of them."""
    mask = b.source(i.operands[0], "u32")

    def op(V: Any, m: Any, g: Any) -> None:
        members(V, mask, m, g, "bar.warp.sync")
        lanes = np.broadcast_to(m, (g.n, 32))
        for n, row in enumerate(range(g.lo, g.hi)):
            g.machine.order.met(row, lanes[n])
        g.machine.writes.epoch(g.lo, g.hi)

    return op


_REDUCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@instruction("redux.sync")
def redux(b: Builder, i: Instruction) -> Op:
    """``redux.sync``: one integer from those of all lanes."""
    name, kind = i.parts[2], i.parts[-1]
    check(b, i, {"sync", name}, 3)
    function = _REDUCTIONS.get(name)
    if function is None or kind not in ("u32", "s32", "b32"):
        raise b.error("this reduction is not implemented")
    d, x = b.target(i.operands[0], kind), b.source(i.operands[1], kind)
    mask = b.source(i.operands[2], "u32")

    def op(V: Any, m: Any, g: Any) -> None:
        members(V, mask, m, g, "redux.sync")
        value = np.broadcast_to(V[x], (g.n, 32))
        info = np.iinfo(DTYPES[kind])
        start = {"min": info.max, "max": info.min, "and": -1 if info.min else info.max}.get(name, 0)
        total = function.reduce(np.where(m, value, DTYPES[kind](start)), axis=-1,
                                dtype=DTYPES[kind])  # fmt: skip
        np.copyto(V[d], total[:, None], where=m)

    return op
