"""The consumers' main loop of float64 on tensor cores, of k_tiles that TMA brings (Hopper).

The products are those of `mainloop_dmma.py`; the reads are other ones. TMA leaves 16 elements a row
and exchanges their eight units of 16 bytes: unit u of row r lies where u ^ (r % 8) would. A K-major
operand has a row for each M or N and K along it; another one has boxes of 16 M or N, one after the
other, a row for each K. So that the words a warp reads at once lie in a bank each, lanes
t of four do not take K t and t + 4 of each eight, but those of `k_of`: which K an instruction adds
first does not matter, as long as A and B agree.

    sixteen rows side by side (not K-major)   rows 2 g and 2 g + 1 of a K: 16 bytes a lane
    eight rows, K-major                       two K of row g: 16 bytes, where the sixteen lie so
    all else                                  8 bytes

A stage is left as soon as its last fragments are in registers, before they are multiplied.
tests/backends/test_simt_dmma_tma.py counts the bank conflicts of these reads.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Float64, Int32

from ...cute.kernels.device import arrive_once_read, read, shared_vector
from ...cute.kernels.tile_scheduler import advance
from ..geometry import Geometry
from ..geometry_operands import OperandTile
from ..schedules import DMMA_K, DMMA_K_TILE, FRAGMENT_K, FRAGMENT_ROWS, SWIZZLE_ROWS
from .mainloop_dmma import FRAGMENTS, add_products, hold
from .records import Barriers, Stages, Thread
from .spec import Spec, stage_at

STEPS = DMMA_K_TILE // DMMA_K  # of a k_tile: a row of TMA's
UNIT = 2  # elements of what TMA exchanges
BOX = SWIZZLE_ROWS * DMMA_K_TILE  # elements


def in_pairs(geo: Geometry) -> bool:
    """Whether lanes take two K that lie side by side, in one read: of eight K-major rows."""
    sixteen, eight = (geo.b, geo.a) if geo.lanes_down else (geo.a, geo.b)
    return eight.k_major and not sixteen.k_major


def k_of(pairs: bool, t: Int32, step: int, which: int) -> Int32:
    """Return the K of a k_tile that lanes t of four take in a step, the first or the second.

    Their middle two bits differ in all lanes, and so do the upper two (in pairs) or the outer two:
    with `unit_of` they meet different banks.
    """
    low, high = t % 2, t // 2
    if pairs:
        return 8 * high + 4 * low + 2 * (high ^ step) + which
    return 8 * high + 4 * (high ^ step) + 2 * (low ^ which) + low


def unit_of(unit: Int32, row: Int32) -> Int32:
    """Return where in a row TMA leaves a unit of it, in elements."""
    return (unit ^ row % 8) * UNIT


class Side:
    """Where a lane reads the rows that it has of one operand's stage."""

    def __init__(
        self, tile: OperandTile, sixteen: bool, pairs: bool, first: Int32, lane: Int32
    ) -> None:
        """Take a warp's `first` row; `sixteen` if an instruction has 16 rows of it."""
        self.tile = tile
        self.row_pairs = sixteen and not tile.k_major
        self.k_pairs = pairs and tile.k_major
        g, t = lane // FRAGMENT_K, lane % FRAGMENT_K
        self.offsets = [
            [self._offsets(k_of(pairs, t, step, which), first, g) for which in range(FRAGMENTS)]
            for step in range(STEPS)
        ]

    def _offsets(self, k: Int32, first: Int32, g: Int32) -> tuple[Int32, Int32]:
        """Return a lane's offsets in an even and in an odd eight rows; the same twice of sixteen.

        Eight rows are half of a box; the swizzle exchanges the halves where K says so.
        """
        if self.tile.k_major:
            offset = (first + g) * DMMA_K_TILE + unit_of(k // UNIT, g) + k % UNIT
            return offset, offset + FRAGMENT_ROWS * DMMA_K_TILE
        box = first // SWIZZLE_ROWS * BOX + k * SWIZZLE_ROWS
        if self.row_pairs:
            offset = box + unit_of(g, k)
            return offset, offset
        half = first % SWIZZLE_ROWS // FRAGMENT_ROWS  # 1 where warps have eight rows alone
        units = [(half ^ odd) * (FRAGMENT_ROWS // UNIT) + g // UNIT for odd in range(2)]
        even, odd = (box + unit_of(unit, k) + g % UNIT for unit in units)
        return even, odd

    def rows(self, stage: cute.Pointer, step: int, extent: int) -> list[list]:
        """Read each eighth row of a warp's `extent`, a value for each four K."""
        found = []
        of_step, double = self.offsets[step], SWIZZLE_ROWS * DMMA_K_TILE
        for first in range(0, extent, FRAGMENT_ROWS):
            whole, odd = divmod(first // FRAGMENT_ROWS, 2)
            if self.row_pairs:
                if not odd:
                    found += self._of_sixteen(stage, of_step, whole * double)
                continue
            count = UNIT if self.k_pairs else 1
            offsets = of_step[:1] if self.k_pairs else of_step
            values = [
                read(shared_vector(stage, offset[odd] + whole * double, count), count)
                for offset in offsets
            ]
            found.append([each[x] for each in values for x in range(count)])
        return found

    def one_of_each(self, rows: list[list]) -> list:
        """Return one value of each read that `rows` has made."""
        if self.k_pairs:
            return [row[0] for row in rows]
        return [value for row in rows[:: 1 + self.row_pairs] for value in row]

    def _of_sixteen(self, stage: cute.Pointer, offsets: list, box: int) -> list[list]:
        pairs = [read(shared_vector(stage, offset[0] + box, UNIT), UNIT) for offset in offsets]
        return [[pair[x] for pair in pairs] for x in range(UNIT)]


def sides_of(geo: Geometry, warps: tuple[int, int], warp: Int32, lane: Int32) -> tuple[Side, Side]:
    """Return where a lane reads of A and of B."""
    pairs = in_pairs(geo)
    first_m = warp // warps[1] * geo.warp_tile[0]
    first_n = warp % warps[1] * geo.warp_tile[1]
    return (
        Side(geo.a, not geo.lanes_down, pairs, first_m, lane),
        Side(geo.b, geo.lanes_down, pairs, first_n, lane),
    )


@cute.jit
def sum_k_tiles(
    spec: cutlass.Constexpr, acc: cute.Tensor, shared: Stages, barriers: Barriers,
    thread: Thread, count: Int32, stage: Int32, phase: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Sum the products of `count` k_tiles; see `mainloop_fma_consumer.sum_k_tiles`."""
    geo, config = spec.geometry, spec.config
    full, empty = barriers
    sides = sides_of(geo, config.warps, *thread)
    held = tuple(
        cute.make_rmem_tensor(FRAGMENTS * extent // FRAGMENT_ROWS, Float64)
        for extent in geo.warp_tile
    )
    acc.fill(Float64(0.0))
    if count > 0:
        cute.arch.mbarrier_wait(full + stage, phase)
        hold_both(held, fragments(geo, sides, stage_at(spec, shared, stage), 0))
        for _ in cutlass.range(count - 1, unroll=1):
            next_stage, next_phase = advance(stage, phase, config.stages)
            multiply_rest(spec, acc, held, sides, stage_at(spec, shared, stage), empty + stage)
            cute.arch.mbarrier_wait(full + next_stage, next_phase)
            ahead = fragments(geo, sides, stage_at(spec, shared, next_stage), 0)
            add_products(geo, acc, *held)
            hold_both(held, ahead)
            stage, phase = next_stage, next_phase
        multiply_rest(spec, acc, held, sides, stage_at(spec, shared, stage), empty + stage)
        add_products(geo, acc, *held)
        stage, phase = advance(stage, phase, config.stages)
    return stage, phase


def multiply_rest(
    spec: Spec, acc: cute.Tensor, held: tuple[cute.Tensor, cute.Tensor], sides: tuple[Side, Side],
    stages: Stages, empty: cute.Pointer,
) -> None:  # fmt: skip
    """Multiply all steps of a k_tile but the last, which is held then, and leave the stage."""
    geo = spec.geometry
    for step in range(1, STEPS):
        ahead = fragments(geo, sides, stages, step)
        add_products(geo, acc, *held)
        hold_both(held, ahead)
    reads = zip(sides, ahead, strict=True)
    # Each lane, as in `mainloop_fma_consumer`.
    arrive_once_read(empty, [x for side, rows in reads for x in side.one_of_each(rows)])


def fragments(
    geo: Geometry, sides: tuple[Side, Side], stages: Stages, step: int
) -> tuple[list, ...]:
    """Read what a lane multiplies in a step of a k_tile."""
    return tuple(
        side.rows(stage, step, extent)
        for side, stage, extent in zip(sides, stages, geo.warp_tile, strict=True)
    )


def hold_both(held: tuple[cute.Tensor, cute.Tensor], found: tuple[list, ...]) -> None:
    """Hold what was read of A and of B."""
    for into, values in zip(held, found, strict=True):
        hold(into, values)
