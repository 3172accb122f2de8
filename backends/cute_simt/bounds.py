"""Times that no launch of a tile is under, of all tiles and parts of K at once.

To measure a tile for a class takes longer than to price it, and to price a launch longer than an
element of an array: what cannot be among the cheapest is neither measured nor priced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from unigemm.forks import cached_property
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import MatrixType

from ..common.device_limits import MAX_CLUSTER
from ..common.workspace import LINE_BYTES
from .coefficients import H200
from .cost import Floor, Work
from .geometry_operands import has_aligned_rows, may_transpose
from .geometry_resources import SCHEDULERS
from .launch_costs import BELOW, traffic_us
from .schedules import WARP, is_big

__all__ = ["FULL", "SHARE_SLABS", "Bounds", "Table", "Tiles", "bounds", "table_of"]

Array = npt.NDArray[Any]
FULL = 3  # CTAs of an SM, at most, for which parts are made to measure
SHARE_SLABS = 16  # of a CTA at least, where CTAs have equally many
_ENDLESS = 1e30  # microseconds


class Table(NamedTuple):
    """The floors of some tiles as arrays, an element for each tile and number of parts of K.

    Attributes
    ----------
    shape
        How many tiles, and columns of parts.
    stay
        As in `Tiles`.
    parts
        Of K, one and those that any tile may have; ones in the columns behind them.
    alone
        What to add where so many parts of a tile are not added up in a cluster.
    m, n, k, warps, big
        Sizes, warps that multiply, and whether a tile is big.
    warp_clocks, cta_clocks, ...
        As in `Floor`.
    """

    shape: tuple[int, int]
    stay: bool
    parts: Array
    alone: Array
    m: Array
    n: Array
    k: Array
    warps: Array
    big: Array
    warp_clocks: Array
    cta_clocks: Array
    slots: Array
    wait_clocks: Array
    waits_us: Array
    copy_clocks: Array
    boxed_clocks: Array
    single_clocks: Array
    single_us: Array
    lone_warps: Array
    round_us: Array
    l2_to_dram: Array
    rest: Array
    reduce_us: Array
    resident: Array
    tails: Array
    shares: Array
    in_clusters: Array
    edges: Array
    reach: Array
    dram: Array


@dataclass(frozen=True, eq=False)
class Tiles:
    """Some tiles, whose arrays are made when they are asked for.

    Attributes
    ----------
    floors
        The tiles.
    splits
        Parts of K that they may have, beside one.
    stay
        Whether their CTAs stay, and take tiles in turn, K whole.
    """

    floors: tuple[Floor, ...]
    splits: tuple[int, ...]
    stay: bool = False

    @cached_property
    def table(self) -> Table:
        """Their arrays."""
        return table_of(self.floors, self.splits, self.stay)

    @cached_property
    def big(self) -> Tiles:
        """Return the big ones of them."""
        return Tiles(tuple(x for x in self.floors if is_big(x.config)), self.splits)

    @cached_property
    def persistent(self) -> Tiles:
        """Return the big persistent ones, once for each number of CTAs that an SM may hold.

        Loads hide what a CTA ends with.
        """
        found = []
        for x in self.big.floors:
            alone = x._replace(round_us=0.0, tails=inf, shares=0)
            hidden = alone._replace(cta_clocks=H200.persistent * x.cta_clocks)
            found += [hidden._replace(resident=count) for count in range(1, x.resident + 1)]
        return Tiles(tuple(found), (), stay=True)


class Bounds(NamedTuple):
    """What no launch of some tiles is under: a row for each of them.

    Attributes
    ----------
    parts, of_parts
        Parts of K that a tile may have in the plain schedules, a column for each number, and the
        times; endless where there are no two slabs for each part.
    least
        In any schedule.
    """

    parts: Array
    of_parts: Array
    least: Array


def table_of(floors: Sequence[Floor], splits: Sequence[int], stay: bool = False) -> Table:
    """Return the arrays of some tiles, and of parts of K beside one that they may have."""
    rows = [(*x.config.tile, x.warps, is_big(x.config), *x[1:]) for x in floors]
    columns = (1,) if stay else (1, *splits, *[1] * FULL)
    numbers = np.repeat(np.array(rows, dtype=np.float64).T, len(columns), axis=1)
    parts = np.tile(np.array(columns, dtype=np.float64), len(floors))
    table = Table((len(floors), len(columns)), stay, parts, parts, *numbers)
    return table._replace(alone=_ENDLESS * (1.0 - table.in_clusters * (parts <= MAX_CLUSTER)))


def bounds(table: Table, work: Work) -> Bounds:
    """Return what no launch of some tiles is under: persistent ones of `Tiles.persistent` alone."""
    sizes, sms = work.extents, work.target.sm_count
    tiles = np.ceil(sizes.m / table.m) * np.ceil(sizes.n / table.n) * sizes.batch
    slabs = np.ceil(sizes.k / table.k)
    parts = table.parts if table.stay else _with_measured(table, tiles, sms)
    each, ctas = np.ceil(slabs / parts), parts * tiles
    busiest, enough = np.ceil(ctas / sms), np.maximum(ctas, sms)
    if table.stay:  # all of an SM take as many tiles
        held = np.minimum(busiest, table.resident)
        busiest = held * np.ceil(ctas / (held * sms))

    clocks, least_us = _slab(table, work)
    sm_us = _sm_us(table, work, clocks, least_us, each, busiest)
    if work.problem.a.dtype is not DType.FLOAT32:
        sm_us += _edge_us(table, work) * (each * parts == slabs)
    dram_us, l2_us = _dram_us(table, work), _l2_us(table, work)
    idle = np.maximum(1.0, sms / (table.reach * ctas))  # few CTAs cannot draw all the bandwidth
    uneven = 1 - H200.uneven + busiest * (H200.uneven * sms) / enough
    us = _joined(table, work, sm_us, dram_us * idle, ctas * each * l2_us * uneven * idle)
    us += _adding_us(table, work, tiles, parts) + _ENDLESS * ((parts > 1) & (slabs < 2 * parts))

    of_parts = (BELOW * (work.begin_us + us)).reshape(table.shape)
    least, shared = of_parts.min(axis=1), _may_be_shared(table, tiles, slabs, sms)
    if shared.any():
        evenly = clocks * slabs * tiles + table.cta_clocks * np.minimum(sms, tiles)
        evenly *= 1 + table.lone_warps / (table.resident * table.warps)
        evenly /= sms * work.target.clock_mhz
        us = _joined(table, work, evenly, dram_us, tiles * slabs * l2_us)
        in_shares = BELOW * (work.begin_us + us) + _ENDLESS * ~shared
        least = np.minimum(least, in_shares.reshape(table.shape)[:, 0])
    return Bounds(parts.reshape(table.shape), of_parts, least)


def _slab(table: Table, work: Work) -> tuple[Array, Array]:
    """Return an SM's clocks for one slab of a CTA, and the time that it takes one alone."""
    a_clocks, a_us = _copies(work.problem.a, table.m, table)
    b_clocks, b_us = _copies(work.problem.b, table.n, table)
    of_warp = table.warp_clocks + a_clocks + b_clocks
    alone_us = (of_warp + table.wait_clocks) / work.target.clock_mhz + a_us + b_us
    return of_warp * table.slots, alone_us


def _sm_us(
    table: Table, work: Work, clocks: Array, least_us: Array, each: Array, busiest: Array
) -> Array:
    """Return what the busiest SM takes, whose CTAs have so many slabs each."""
    rounds = np.ceil(busiest / table.resident)
    at_once = np.minimum(busiest, table.resident)
    # Two CTAs of six warps take as long as of eight: schedulers have two warps or one. Those that
    # stay are so many in each round; of others some begin as some end.
    together, times = (at_once, rounds) if table.stay else (busiest, 1)
    level = np.ceil(together * table.warps / SCHEDULERS) * SCHEDULERS * times
    level += table.lone_warps * rounds
    us = (clocks * each + table.cta_clocks) * level / (table.warps * work.target.clock_mhz)
    waits_us = table.waits_us / at_once
    us = np.maximum(us, rounds * each * np.maximum(waits_us, least_us))
    return us + table.round_us * (rounds - 1)


def _edge_us(table: Table, work: Work) -> Array:
    """Return what a CTA takes more for the slab that K ends within: see `OperandTile.checked`.

    Not of float32, whose slabs some tiles turn, and others have by TMA.
    """
    sizes = work.extents
    us = _checks_us(work.problem.a, table.m, sizes.m, table)
    us = us + _checks_us(work.problem.b, table.n, sizes.n, table)
    return us * table.edges * np.minimum(1.0, sizes.k / table.k) * (sizes.k % table.k > 0)


def _checks_us(kind: MatrixType, side: Array, rows: int, table: Table) -> Array:
    """Return what a thread takes to check its copies of an operand of so many rows, if it does."""
    single, size = _is_single(kind), kind.dtype.itemsize
    held = single and size == 2
    copies = np.ceil(side * table.k / (table.warps * (WARP * (1 if single else kind.vector))))
    us = (H200.edge_held_us if held else H200.edge_us) * copies
    return us if held or not single else us * (rows < side)


def _may_be_shared(table: Table, tiles: Array, slabs: Array, sms: int) -> Array:
    """Whether a tile may have a tail, or slabs that are shared out: see `configs`."""
    in_shares = (tiles < sms * table.shares) & (tiles * slabs >= sms * SHARE_SLABS)
    return (tiles > sms * table.tails) | in_shares


def _with_measured(table: Table, tiles: Array, sms: int) -> Array:
    """Return parts of K, also those with which few tiles fill all SMs with so many CTAs each."""
    parts = table.parts.copy()
    columns = parts.reshape(table.shape)
    made = np.arange(1, FULL + 1) * sms // tiles.reshape(table.shape)[:, :1]
    columns[:, -FULL:] = np.maximum(1, made)
    return parts


def _is_single(kind: MatrixType) -> bool:
    """Whether an operand is copied by single elements."""
    return kind.vector == 1 or kind.major == "strided"


def _copies(kind: MatrixType, side: Array, table: Table) -> tuple[Array, Array | float]:
    """Return what copies of an operand's slab cost a warp, in clocks and microseconds at least."""
    elements = side * table.k
    if _is_single(kind):
        if may_transpose(kind):  # in as many instructions, but not alone
            alone = elements * (1.0 - table.big)
            clocks = alone * table.single_clocks + (elements - alone) * table.copy_clocks
            return clocks, alone * table.single_us
        return elements * table.single_clocks, elements * table.single_us
    copies = elements / kind.vector
    if may_transpose(kind):
        copies += (elements - copies) * table.big
    return copies * (table.boxed_clocks if has_aligned_rows(kind) else table.copy_clocks), 0.0


def _dram_us(table: Table, work: Work) -> Array:
    """Return what the device memory takes."""
    us = table.dram * work.dram_us
    for kind, of_kind in zip((work.problem.a, work.problem.b), work.operand_us, strict=True):
        if may_transpose(kind):  # slabs with halves of lines
            us = us + H200.halves * of_kind * (table.k < LINE_BYTES // kind.dtype.itemsize)
    return us


def _l2_us(table: Table, work: Work) -> Array:
    """Return what the L2 takes for a slab."""
    of_k = table.m * work.problem.a.dtype.itemsize + table.n * work.problem.b.dtype.itemsize
    return traffic_us(table.k * of_k, work.target.dram_gbs * table.l2_to_dram)


def _joined(table: Table, work: Work, sm_us: Array, dram_us: Array, l2_us: Array) -> Array:
    """Return what times take that overlap, at least: see `prices`."""
    same = H200.same_bytes if work.problem.a.dtype is DType.FLOAT32 else table.rest
    memory_us = np.maximum(dram_us, l2_us)
    longest, shorter = np.maximum(sm_us, memory_us), np.minimum(sm_us, memory_us)
    return longest + table.rest * shorter + same * np.minimum(dram_us, l2_us)


def _adding_us(table: Table, work: Work, tiles: Array, parts: Array) -> Array:
    """Return what it takes to add parts of K, by a kernel or in clusters."""
    us = table.reduce_us + parts * work.part_us
    if work.target.capability[0] == 9:
        sums = table.m * table.n * tiles * work.problem.accumulator.itemsize
        exchange_us = traffic_us(sums * (parts - 1), H200.exchange_gbs)
        us = np.minimum(us, H200.cluster_us + exchange_us + table.alone)
    return us * (parts > 1)
