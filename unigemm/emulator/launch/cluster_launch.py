"""Cluster launch control: a running cluster takes over the work of one that has not begun.

PTX ISA, "clusterlaunchcontrol". Clusters begin in the order of their numbers; a request cancels the
next that has not begun, and answers with its first CTA. A request may fail at any time: then that
cluster is launched after all. The 16 bytes of the answer are opaque to kernels.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..async_copy.mbarriers import barrier_at
from ..async_copy.proxy import arrival, bring, threads_of
from ..async_copy.transfer import active, address_of, flat_shared
from ..core.arithmetic import instruction
from ..core.grid import cta_coordinates
from ..core.memory import carrier
from ..core.program import Builder, Op
from ..ptx.faults import Fault, at_thread
from ..ptx.ptx import Instruction, Register, Vector

__all__ = ["Clusters", "asks"]

_FAILS = 1 / 16  # how often a request fails though a cluster is left
_AXES = ("x", "y", "z")


@dataclass
class Clusters:
    """The clusters of a grid: the number of the next CTA that has not begun.

    Attributes
    ----------
    failed
        CTAs that have had the answer that nothing was cancelled.
    """

    total: int
    size: int
    next: int = 0
    failed: set[int] = field(default_factory=set)

    def take(self, ctas: int) -> tuple[int, int]:
        """Begin some CTAs: return the first and how many there are."""
        first, self.next = self.next, min(self.next + ctas, self.total)
        return first, self.next - first

    def cancel(self, rng: random.Random) -> int | None:
        """Cancel a cluster and return its first CTA; None where the request fails."""
        if self.next >= self.total or rng.random() < _FAILS:
            return None
        return self.take(self.size)[0]


def asks(kernel: Any) -> bool:
    """Whether a kernel may cancel clusters."""
    return any(i.opcode.startswith("clusterlaunchcontrol.try_cancel") for i in kernel.body)


def _halves(b: Builder, operand: Any, *, target: bool = False) -> tuple[int, int]:
    """Return the slots of the 64-bit halves of a 128-bit register."""
    if not isinstance(operand, Register) or operand.type != "b128":
        raise b.error("a register of 128 bits is expected")
    low, high = (b.half(operand, name, target=target) for name in ("low", "high"))
    return low, high


@instruction("mov.b128")
def move(b: Builder, i: Instruction) -> Op:
    """Between a 128-bit register and two of 64 bits."""
    to, what = i.operands
    if isinstance(what, Vector) == isinstance(to, Vector):
        raise b.error("128-bit registers are only packed and unpacked")
    if isinstance(what, Vector):
        targets = _halves(b, to, target=True)
        sources = tuple(b.source(x, "b64") for x in what.elements)
    else:
        assert isinstance(to, Vector)
        targets = tuple(b.target(x, "b64") for x in to.elements)  # type: ignore[assignment]
        sources = _halves(b, what)
    if len(targets) != 2 or len(sources) != 2:
        raise b.error("two registers of 64 bits are expected")

    def op(V: Any, m: Any, g: Any) -> None:
        values = [np.copy(V[x]) for x in sources]
        for d, value in zip(targets, values, strict=True):
            np.copyto(V[d], value, where=m)

    return op


@instruction("clusterlaunchcontrol.try_cancel")
def try_cancel(b: Builder, i: Instruction) -> Op:
    """Request the work of a cluster; the answer goes to shared memory, of one CTA or of all."""
    known = "async", "shared::cta", "mbarrier::complete_tx::bytes", "b128"
    b.known(i.parts[2:], *known, "multicast::cluster::all")
    if "shared::cta" not in i.parts:
        raise b.error("generic addresses are not implemented here")
    everyone = "multicast::cluster::all" in i.parts
    to, signal, line = address_of(b, i.operands[0]), address_of(b, i.operands[1]), i.line

    def op(V: Any, m: Any, g: Any) -> None:
        bases = active(g.base, m, g)
        offsets = flat_shared(active(to(V), m, g), bases, g, 16)
        signals = flat_shared(active(signal(V), m, g), bases, g, 8)
        threads = zip(threads_of(m, g), offsets.tolist(), signals.tolist(), strict=True)
        for n, (who, offset, at) in enumerate(threads):
            with at_thread(n):
                _ask(g.machine, offset, at, everyone, line, who)

    return op


def _ask(machine: Any, offset: int, signal: int, everyone: bool, line: int,
         who: tuple[int, int]) -> None:  # fmt: skip
    clusters: Clusters = machine.extra["clusters"]
    pitch = machine.shared.pitch
    own = offset // pitch
    ctas = machine.cluster_ctas(own) if everyone else [own]
    if any(machine.first + cta in clusters.failed for cta in ctas):
        raise Fault("a request to cancel a cluster comes after the answer that none was cancelled")
    found = clusters.cancel(machine.rng)
    words = np.full(4, 0xFFFFFFFF, np.uint32)
    if found is not None:
        words[:3] = cta_coordinates(machine.geometry, found)
    words[3] = found is not None
    for cta in ctas:
        barrier = barrier_at(machine, cta * pitch + signal % pitch)
        units = np.array([cta * pitch + offset % pitch])
        machine.order.behind_fence(units)
        ticket = bring(machine, who, units, words.view(carrier(16)))
        failed = partial(clusters.failed.add, machine.first + cta) if found is None else None
        arrival(machine, barrier, 16, ticket, line, who[0], failed)


@instruction("clusterlaunchcontrol.query_cancel.is_canceled")
def is_canceled(b: Builder, i: Instruction) -> Op:
    """Whether an answer says that a cluster was cancelled."""
    p = b.target(i.operands[0], "pred")
    _, high = _halves(b, i.operands[1])
    return lambda V, m, g: np.copyto(V[p], V[high] >> np.uint64(32) != 0, where=m)


@instruction(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid",
    *(f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}" for axis in _AXES),
)
def first_cta(b: Builder, i: Instruction) -> Op:
    """Return the coordinates of the cancelled cluster's first CTA in the grid, or one of them.

    Where none was cancelled the results are of no use: all ones here.
    """
    target, answer = i.operands
    if i.parts[2] == "get_first_ctaid":
        if i.parts[3] != "v4" or not isinstance(target, Vector) or len(target.elements) != 4:
            raise b.error("four results are expected")
        found = list(zip(range(3), target.elements[:3], strict=True))
    else:
        found = [(_AXES.index(i.parts[2][-1]), target)]
    targets = [(axis, b.target(x, "b32")) for axis, x in found]
    halves = _halves(b, answer)

    def op(V: Any, m: Any, g: Any) -> None:
        for axis, d in targets:
            word = V[halves[axis // 2]] >> np.uint64(32 * (axis % 2))
            np.copyto(V[d], word.astype(np.uint32), where=m)

    return op
