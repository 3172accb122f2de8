"""Registers that products in flight hold: nothing else may touch them before they are waited for.

``wgmma.mma_async`` reads its registers and writes its accumulators some time later (PTX ISA,
"Asynchronous wgmma operations"): until ``wgmma.wait_group`` these may not be read or written, and a
fragment of A may not be written. What a product holds changes only at wgmma instructions, so that
one check stands for all instructions from one of them to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..ptx.faults import Fault
from ..ptx.ptx import Address, Instruction, Kernel, Operand, Pair, Register, Vector

__all__ = ["Touches", "checking", "names", "of_products", "touches", "unheld"]

_PRODUCT = "wgmma.mma_async"
_WARPGROUP = 4


@dataclass(frozen=True)
class Touches:
    """The registers, of those that any product uses, that an instruction reads and writes."""

    line: int
    read: frozenset[str]
    written: frozenset[str]


def names(operand: Operand) -> Iterator[str]:
    """Yield the registers of an operand but special ones."""
    if isinstance(operand, Register) and operand.type not in ("sink", "special"):
        yield operand.name
    elif isinstance(operand, Vector):
        for element in operand.elements:
            yield from names(element)
    elif isinstance(operand, Pair):
        yield from names(operand.first)
        yield from names(operand.second)
    elif isinstance(operand, Address):
        yield from names(operand.base)
        if operand.coordinates is not None:
            yield from names(operand.coordinates)


def of_products(kernel: Kernel) -> frozenset[str]:
    """Return the accumulators and fragments of all products of a kernel."""
    return frozenset(
        name
        for i in kernel.body if i.opcode.startswith(_PRODUCT)
        for operand in i.operands[:2]
        for name in names(operand)
    )  # fmt: skip


def touches(i: Instruction, registers: frozenset[str]) -> Touches | None:
    """Return which of the registers an instruction touches; None where it is none of them."""
    if not registers or not i.operands or i.opcode.startswith("wgmma."):
        return None
    stores = i.parts[0] in ("st", "red", "stmatrix")
    written = frozenset() if stores else registers.intersection(names(i.operands[0]))
    sources = i.operands if stores else i.operands[1:]
    read = registers.intersection(name for operand in sources for name in names(operand))
    return Touches(i.line, read, written) if read or written else None


def unheld(found: list[Touches]) -> Any:
    """Return an operation that checks that no product in flight holds what is touched.

    The list may grow until the operation is first run.
    """
    every: list[frozenset[str]] = []

    def op(V: Any, m: Any, g: Any) -> None:
        queues = g.machine.extra.get("wgmma")
        if not queues or not g.machine.options.strict:
            return
        if not every:
            every.append(frozenset().union(*(each.read | each.written for each in found)))
            every.append(frozenset().union(*(each.written for each in found)))
        in_group = g.lo % g.machine.geometry.warps % _WARPGROUP
        for first in range(g.lo - in_group, g.hi, _WARPGROUP):
            queue = queues.get(first)
            for product in queue.waiting() if queue is not None else ():
                if not (product.holds.isdisjoint(every[0]) and product.reads.isdisjoint(every[1])):
                    raise _fault(product, found)

    return op


def checking(make: Any, found: Touches) -> Any:
    """Have the operations that `make` returns check first what they touch."""

    def made(b: Any, i: Instruction) -> Any:
        check, inner = unheld([found]), make(b, i)

        def op(V: Any, m: Any, g: Any) -> None:
            check(V, m, g)
            inner(V, m, g)

        return op

    return made


def _fault(product: Any, found: list[Touches]) -> Fault:
    for each in found:
        for name in sorted(each.read | each.written):
            if name in product.holds or (name in product.reads and name in each.written):
                what = (
                    "holds the accumulator" if name in product.holds else "still reads the factors"
                )
                text = f"the wgmma of line {product.line} {what} in {name}: nobody waited for it"
                return Fault(text, line=each.line)
    raise AssertionError
