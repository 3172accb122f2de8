"""tcgen05.cp: rows of 16 or 32 bytes out of shared memory into tensor memory.

A matrix lies in shared memory as a K-major operand of tcgen05.mma does; row r goes to a lane, or to
several. PTX ISA, "tcgen05: data movement shape"; the same maps are in CUTLASS's
``copy_traits_sm100.hpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..async_copy.proxy import Source
from ..core.arithmetic import instruction
from ..core.program import Builder, Op
from ..ptx.faults import Fault, of_thread
from ..ptx.ptx import Address, Instruction
from .mma_descriptors import matrix_of
from .tensor_memory import LANES, cta_group, memory_of, split_address
from .tensor_queue import (
    Pending,
    Region,
    active_pair,
    find_matrix,
    issue,
    issuers,
    read_matrix,
)

__all__: list[str] = []


@dataclass(frozen=True)
class Form:
    """How many bytes a row has, and from which row each lane's words come.

    Attributes
    ----------
    lanes, rows
        Lanes that are written, and the row that goes to each.
    """

    lanes: Any
    rows: Any
    bytes: int

    @property
    def height(self) -> int:
        """Rows in shared memory."""
        return int(self.rows.max()) + 1


_EVERY = np.arange(LANES)
_FORMS = {
    "128x256b": Form(_EVERY, _EVERY, 32),
    "128x128b": Form(_EVERY, _EVERY, 16),
    "4x256b": Form(32 * np.arange(4), np.arange(4), 32),
    "32x128b.warpx4": Form(_EVERY, _EVERY % 32, 16),
    "64x128b.warpx2::02_13": Form(_EVERY, _EVERY % 64, 16),
    "64x128b.warpx2::01_23": Form(_EVERY, _EVERY // 64 * 32 + _EVERY % 32, 16),
}


@instruction("tcgen05.cp")
def copy(b: Builder, i: Instruction) -> Op:
    """Issue one copy, in each CTA of the group from its own shared memory."""
    group, line = cta_group(b, i), i.line
    form = _FORMS.get(".".join(i.parts[3:]))
    if form is None or not i.parts[2].startswith("cta_group::"):
        raise b.error("this form is not implemented")
    target, word_operand = i.operands
    if not isinstance(target, Address):
        raise b.error("an address in tensor memory is expected")
    to, ahead = b.source(target.base, "b32"), target.offset
    word = b.source(word_operand, "b64")

    def op(V: Any, m: Any, g: Any) -> None:
        machine = g.machine
        for row, lane in issuers(m, g, "tcgen05.cp"):
            with of_thread(m, g, row - g.lo, lane):
                address, descriptor = (
                    int(np.broadcast_to(V[slot], (g.n, 32))[row - g.lo, lane])
                    for slot in (to, word)
                )
                who = row, lane
                item = _copy(machine, who, group, form, address + ahead, descriptor, line)
                issue(machine, row, item)
            machine.record("copy", f"to column {item.regions[0].first}", line, row)

    return op


def _copy(machine: Any, who: tuple[int, int], group: int, form: Form, address: int, word: int,
          line: int) -> Pending:  # fmt: skip
    """Check a copy, and return it."""
    lane, first = split_address(address)
    if lane and (len(form.lanes) == LANES or lane >= 32):
        raise Fault(f"this copy cannot begin at lane {lane} of tensor memory")
    units = matrix_of(word).units(form.height, 1, k_major=True)[:, : form.bytes // 16]
    count = form.bytes // 4
    pieces = []
    for cta in active_pair(machine, who[0], group):
        memory_of(machine, cta).check(first, count)
        matrix = find_matrix(machine, who, cta, units, "tcgen05.cp")
        pieces.append((matrix, Region(cta, lane + form.lanes, first, count)))

    def perform() -> None:
        for matrix, region in pieces:
            _write(machine, form, matrix, region, line)

    return Pending("copy", tuple(region for _, region in pieces), perform, line, len(pieces))


def _write(machine: Any, form: Form, matrix: Source, region: Region, line: int) -> None:
    memory = memory_of(machine, region.cta)
    memory.check(region.first, region.count)
    words = read_matrix(machine, matrix, "copy", line).view(np.uint32)  # (rows, columns)
    columns = np.arange(region.first, region.first + region.count)
    memory.write(region.lanes[:, None], columns, words[form.rows])
