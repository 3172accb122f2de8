"""Programmatic dependent launch: a kernel that begins before the kernels before it have ended.

What came before on the stream is not known here, and may be anything: until a thread has run
``griddepcontrol.wait``, or is behind one that has, all of device memory may still be written, or
read, by an earlier kernel. PTX ISA, "griddepcontrol"; only what is prefetched is free of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ptx.ptx import Instruction
from .arithmetic import instruction
from .program import Builder, Op

__all__ = ["after_wait", "all_ended"]


def after_wait(g: Any, m: Any) -> None:
    """Check that the active lanes may touch device memory.

    Raises
    ------
    Fault
        The kernel is launched dependently, and one of them has not waited yet.
    """
    order = g.machine.order
    if order.ran is not None:
        here = np.broadcast_to(m, (g.n, 32))
        told = order.known[g.lo : g.hi, order.waited, None] > 0
        wrong = ~(order.ran[g.lo : g.hi] | told)[here]
        if wrong.any():
            order.mistake(
                "the kernel is launched dependently, and touches device memory before "
                "griddepcontrol.wait: an earlier kernel may still use it",
                int(np.argmax(wrong)),
            )


@instruction("griddepcontrol.wait")
def wait(b: Builder, i: Instruction) -> Op:
    """Wait until the kernels before this one have ended, and what they wrote can be read."""

    def op(V: Any, m: Any, g: Any) -> None:
        order = g.machine.order
        if order.ran is not None:
            order.ran[g.lo : g.hi][np.broadcast_to(m, (g.n, 32))] = True
            g.machine.extra["waited"] = True

    return op


def all_ended(machine: Any, waited: bool) -> None:
    """Check, behind the last CTA of a grid, that some thread of it has waited.

    Raises
    ------
    KernelFault
        None has: the kernel behind takes the end of this one for the end of all before.
    """
    if machine.options.strict and machine.options.dependent and not waited:
        body = machine.program.kernel.body
        raise machine.blamed(
            "the kernel is launched dependently, and none of its threads runs griddepcontrol.wait: "
            "it may end before an earlier kernel does, which the next one then does not wait for",
            body[-1].line,
            0,
        )
