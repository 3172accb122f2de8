"""The configurations that `cute_wgmma` offers, and what each is expected to cost.

Hundreds are priced for one plan, so `_times` works on bare numbers: what does not depend on the
extents is in a `Tile`, made once. A new term of the price belongs there if extents, cluster and
parts of K leave it as it is, else in `_times`; in `total` once, and in `_prediction` where a plan
is to show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf
from typing import Any, Literal, NamedTuple

from unigemm.plans import Breakdown, Candidate, Config, Prediction, Ranking, Raster, Rejection
from unigemm.problem import Extents, Problem
from unigemm.target import Target

from ..near import is_near
from ..shortlist import Shortlist
from ..workspace import ROW_BYTES, packed_bytes, parts_in_turn, workspace_bytes
from .choices import (
    SHAPES,
    Choice,
    Family,
    Shape,
    divisions,
    families,
    family_of,
    is_idle,
    slices,
    tiles,
)
from .figures import Figures
from .geometry import (
    FEW_ROWS,
    MMA_M,
    SWIZZLE_BYTES,
    TMA_BYTES,
    Geometry,
    from_registers,
    geometry,
    illegal,
    is_repacked,
    products,
    shared_major,
)

__all__ = ["candidates", "offered", "predict", "price", "ranking", "scratch_bytes", "turns"]


_MOST_STAGES = 12
_LEAST_STAGES = 3
# A launch on so many of the SMs, or copies of so many bytes, have the other ones wait for SMs.
_CROWDED, _CROWDED_BYTES = 0.75, 3 << 19
_WAVE = 0.7  # of the L2: with more, pairs that share loads gain more than they cost (float8)
_BELOW = 1 - 1e-9  # of a least time: it is rounded otherwise than the price
# CTAs that have pairs of SMs to themselves, a part of the pairs: in larger clusters not all of them
# (a cluster lies within a GPC; 16 of three and 15 of four have, 22 and 16 take half as long again).
_SPREAD = 0.92
_MANY = 48  # clusters that read the same lines at once: the L2 then serves several by one access
_SECTOR = 32  # bytes, of the L2
_IN_STEP = 96  # slabs in which the CTAs of one round come to read the same lines at once
_TURNED_BYTES = 8 << 20  # of the rows that all tiles read: well within the L2

_RATE = {1: 2.0, 2: 1.0, 4: 0.5}  # of a type, by its bytes, against 16-bit types (data sheet)


@dataclass(frozen=True, eq=False)
class Work:
    """What a price owes to the extents alone.

    Attributes
    ----------
    family, extents
        What it is; the extents as the kernel sees them.
    slabs
        Slabs of K in all passes over it.
    moved, a_bytes, b_bytes
        Bytes that must be moved, and those of the operands.
    fixed_us
        Of the kernel, until its first slab is there.
    dram_us
        Least time of the device memory's traffic.
    part_bytes
        Bytes of the partial sums of one part of K.
    repack_us
        Of copying operands before, by the rows of a tile: few, or 64 and more.
    copied
        Bytes of these copies, for the last.
    split_sectors
        Whether every other line of A, and of B, begins within a sector of the L2.
    """

    family: Family
    extents: Extents
    slabs: int
    moved: int
    a_bytes: int
    b_bytes: int
    fixed_us: float
    dram_us: float
    part_bytes: int
    repack_us: Mapping[int, float]
    copied: int
    split_sectors: tuple[bool, bool]


@dataclass(frozen=True, eq=False)
class Tile:
    """What a price owes to neither the extents nor the cluster nor the parts of K.

    Attributes
    ----------
    problem, target, figures, config
        What it is: `config` has no cluster, the least stages, and parts of K only to say that there
        are sums to add up.
    geo
        Its geometry.
    tensor_us, issue_us
        Least times of a slab: by the tensor cores' rate, and by the instructions.
    line
        Bytes of a slab for each row and column.
    """

    problem: Problem
    target: Target
    figures: Figures
    config: Config
    geo: Geometry
    tensor_us: float
    issue_us: float
    line: int


class Times(NamedTuple):
    """The price of one launch in microseconds, and what it is made of.

    Attributes
    ----------
    total
        All of it.
    launch
        Until the first slab is there.
    rounds, needed
        Rounds of work units, and how many they would be if units could be cut.
    main
        The slabs of one round.
    tensor, latency, l2
        What bounds a round, each alone.
    dram
        What bounds all rounds.
    store, adding, repack
        Stores that nothing hides, adding up parts of K, and a kernel before.
    """

    total: float
    launch: float
    rounds: int
    needed: float
    main: float
    tensor: float
    latency: float
    l2: float
    dram: float
    store: float
    adding: float
    repack: float


@lru_cache(maxsize=8192)
def _tile(family: Family, shape: Shape, columns: int, slice_k: int, adding: bool) -> Tile:
    config = Config(
        tile=(shape.rows, columns, SWIZZLE_BYTES // family.problem.a.dtype.itemsize),
        stages=_LEAST_STAGES,
        warps=(shape.warps, 1),
        split_k=2 if adding else 1,
        slice_k=slice_k,
        raster=Raster("m", 8),
        schedule=shape.schedule,
    )
    return _measured(family, config)


def _measured(family: Family, config: Config) -> Tile:
    """Return the tile of a configuration."""
    m, _, k = config.tile
    geo = geometry(family.problem, config)
    tensor = _tensor_us(family, m, geo.mma_n, geo.wg_m * geo.slices) * geo.wg_n
    issue = _issue_us(family.figures, geo.wg_m * geo.wg_n, geo.slices, geo.repeats_m)
    line = k * family.problem.a.dtype.itemsize
    return Tile(family.problem, family.target, family.figures, config, geo, tensor, issue, line)


def _tensor_us(family: Family, m: int, n: int, warpgroups: int) -> float:
    """Return the least time of a slab by the tensor cores' rate, in wgmma of n columns."""
    f, target, size = family.figures, family.target, family.problem.a.dtype.itemsize
    rate = f.tensor_tflops * 1e6 * _speed(target) * _RATE[size]
    rate *= _efficiency(f, n, from_registers(family.problem, m))
    rate *= {1: f.single, 3: f.three}.get(warpgroups, 1.0)
    return 2 * max(m, MMA_M) * n * (SWIZZLE_BYTES // size) * target.sm_count / rate


def _tile_of(family: Family, choice: Choice) -> Tile:
    adding = choice.split_k * choice.cluster_k * choice.slice_k > 1
    return _tile(family, choice.shape, choice.columns, choice.slice_k, adding)


@lru_cache(maxsize=16384)
def _config(
    tile: Tile, cluster: tuple[int, int], cluster_k: int, split: bool
) -> tuple[Config, str | None]:
    """Return a tile's configuration with as many stages as fit, and why it cannot run."""
    stage = tile.geo.a_bytes + tile.geo.b_bytes
    room = tile.target.smem_per_block - (tile.geo.smem_bytes - tile.config.stages * stage)
    config = replace(
        tile.config,
        cluster=cluster,
        stages=max(_LEAST_STAGES, min(_MOST_STAGES, room // stage)),
        split_k=2 if split else 1,
        cluster_k=cluster_k,
    )
    return config, illegal(tile.problem, config, tile.target)


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return the legal configurations worth considering, priced."""
    return list(ranking(problem, extents, target, None).candidates)


def ranking(
    problem: Problem, extents: Extents, target: Target, most: int | None, bar: float = inf
) -> Ranking:
    """Price what may be among the cheapest and under the bar, the likely tiles first."""
    short: Shortlist[tuple[Family, Choice, Times]] = Shortlist(most, bar)
    works = [
        _work(f, extents.transposed if f.swap_ab else extents) for f in families(problem, target)
    ]
    likely = [
        (_least_us(work, *tile), work, tile)
        for work in works
        for tile in tiles(work.family, work.extents)
    ]
    for least, work, of_tile in sorted(likely, key=lambda entry: entry[0]):
        if least > short.bar:
            break
        for choice in _promising(work, *of_tile, short):
            _, _, cluster, split_k, cluster_k, _ = choice
            tile = _tile_of(work.family, choice)
            times = _times(work, tile, cluster, split_k, cluster_k, short.bar)
            if times is not None:
                _, reason = _config(tile, cluster, cluster_k, split_k > 1)
                short.add(times.total, (work.family, choice, times), reason)
    kept = []
    for family, choice, times in short.kept():
        config = _finished(family, choice, extents)
        sizes = config.oriented(extents)
        scratch = scratch_bytes(family.problem, sizes, config)
        kept.append(Candidate(config, _prediction(times, family.figures), scratch))
    refused = [
        Rejection("cute_wgmma", reason, _finished(family, choice, extents), others)
        for (family, choice, _), reason, others in short.refused()
    ]
    return Ranking(tuple(kept), tuple(refused))


def _promising(work: Work, shape: Shape, columns: int, short: Shortlist[Any]) -> Iterator[Choice]:
    """Yield how a tile may be shared, but not what is certainly above the bar."""
    f, family = work.family.figures, work.family
    slab = _least_slab(family, shape, columns, work.extents.m)
    repack = work.repack_us[min(shape.rows, MMA_M)]
    for division in divisions(family, work.extents, shape, columns):
        cluster, cluster_k, splits, groups, at_once = division
        of_tile = slices(shape, columns, division)
        for split_k in splits:
            if is_idle(cluster_k, split_k, of_tile[-1]):
                continue
            rounds = -(-groups * split_k // at_once)
            loop = rounds * -(-work.slabs // (split_k * cluster_k)) * slab
            beside = _least_beside(work, split_k, cluster_k) + repack + f.round_us * (rounds - 1)
            if _BELOW * (beside + max(loop, work.dram_us)) <= short.bar:
                for slice_k in of_tile:
                    if not is_idle(cluster_k, split_k, slice_k):
                        yield Choice(shape, columns, cluster, split_k, cluster_k, slice_k)


def _finished(family: Family, choice: Choice, extents: Extents) -> Config:
    """Return the configuration of a choice for some extents."""
    tile = _tile_of(family, choice)
    config, _ = _config(tile, choice.cluster, choice.cluster_k, choice.split_k > 1)
    swap = family.swap_ab
    order = raster(extents.transposed if swap else extents, config)
    return replace(config, split_k=choice.split_k, swap_ab=swap, raster=order)


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every legal configuration that some sizes may get, K whole or in two parts."""
    for family in families(problem, target):
        for shape in SHAPES:
            for columns in range(family.unit, shape.widest + 1, family.unit):
                for cluster, cluster_k, slice_k, split_k in product(
                    shape.clusters, shape.cluster_k, shape.slices, (1, 2)
                ):
                    if is_idle(cluster_k, split_k, slice_k):
                        continue
                    choice = Choice(shape, columns, cluster, split_k, cluster_k, slice_k)
                    tile = _tile_of(family, choice)
                    config, reason = _config(tile, cluster, cluster_k, split_k > 1)
                    if reason is None:
                        yield replace(config, swap_ab=family.swap_ab)


def raster(extents: Extents, config: Config) -> Raster:
    """Return the order of the tiles: bands of eight along the shorter side of D in tiles."""
    tall = extents.m * config.tile[1] >= extents.n * config.tile[0]
    return Raster("m" if tall else "n", 8)


def turns(problem: Problem, extents: Extents, config: Config) -> tuple[int, int]:
    """Whether tiles start at different places along K, for (M, N).

    Where all tiles along N read the same few rows of A, those that run at once then read different
    ones (11.3 against 11.8 us at 1x4096x4096 on an H200). Not where B is N-major: there they
    read neighbours in device memory as long as they keep step (11.4 against 11.2 us). Not where
    results are to be the same for every M: the start decides the order of the sums.
    """
    if problem.batch_invariant:
        return 0, 0
    size = extents.k * problem.a.dtype.itemsize * extents.batch
    few_m = extents.m <= config.tile[0] * config.cluster[0] and extents.m * size <= _TURNED_BYTES
    few_n = extents.n <= config.tile[1] * config.cluster[1] and extents.n * size <= _TURNED_BYTES
    along_n = few_m and shared_major(problem, "b", config.tile[0]) == "k"
    along_m = few_n and shared_major(problem, "a", config.tile[0]) == "k"
    return int(along_m and not along_n), int(along_n)


def scratch_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the workspace of a plan: repacked operands, then partial sums."""
    return repacked_bytes(problem, extents, config.tile[0]) + workspace_bytes(
        problem, extents, config.split_k
    )


def repacked_bytes(problem: Problem, extents: Extents, tile_m: int) -> int:
    """Return the bytes of the operands' copies."""
    total = 0
    copies = 2 if products(problem) > 1 else 1
    names: tuple[tuple[Literal["a", "b"], int], ...] = (("a", extents.m), ("b", extents.n))
    for name, rows in names:
        if is_repacked(problem, name, tile_m):
            lines, size = _lines(problem, name, rows, extents.k, tile_m)
            total += packed_bytes(lines, size, extents.batch, copies)
    return total


def _lines(
    problem: Problem, name: Literal["a", "b"], rows: int, k: int, tile_m: int
) -> tuple[int, int]:
    """Return how many lines the kernel reads an operand of so many rows in, and their bytes."""
    lines, along = (rows, k) if shared_major(problem, name, tile_m) == "k" else (k, rows)
    return lines, along * getattr(problem, name).dtype.itemsize


def predict(
    problem: Problem,
    extents: Extents,
    target: Target,
    config: Config,
    figures: Figures | None = None,
) -> Prediction:
    """Price one configuration; problem and extents as the kernel sees them.

    By other figures than its own where they are given.
    """
    family = family_of(problem, target, figures=figures)
    tile, work = _measured(family, config), _work(family, extents)
    times = _times(work, tile, config.cluster, config.split_k, config.cluster_k, inf)
    assert times is not None, "nothing is above infinity"
    return _prediction(times, family.figures)


def price(problem: Problem, extents: Extents, target: Target, config: Config) -> Candidate:
    """Return a configuration as a candidate; problem and extents as the caller sees them."""
    seen, sizes = config.oriented(problem), config.oriented(extents)
    scratch = scratch_bytes(seen, sizes, config)
    return Candidate(config, predict(seen, sizes, target, config), scratch)


def _work(family: Family, extents: Extents) -> Work:
    problem, f = family.problem, family.figures
    copied = {rows: repacked_bytes(problem, extents, rows) for rows in (*FEW_ROWS, MMA_M)}
    size = problem.a.dtype.itemsize
    each = extents.k * extents.batch * size
    moved = extents.bytes_moved(problem)
    near = is_near(moved)
    return Work(
        family,
        extents,
        slabs=-(-extents.k * size // SWIZZLE_BYTES) * products(problem),
        moved=moved,
        a_bytes=extents.m * each,
        b_bytes=extents.n * each,
        fixed_us=f.fixed_us - (f.near_us if near else 0.0),
        dram_us=moved / (family.target.dram_gbs * f.dram_efficiency * 1e3),
        part_bytes=workspace_bytes(problem, extents, 2) // 2,
        repack_us={rows: _repack_us(family, size, near) for rows, size in copied.items()},
        copied=copied[MMA_M],
        split_sectors=(
            _splits_sectors(problem, "a", extents),
            _splits_sectors(problem, "b", extents),
        ),
    )


def _splits_sectors(problem: Problem, name: Literal["a", "b"], extents: Extents) -> bool:
    """Whether every other line of an operand begins within a sector; those of copies do not."""
    if is_repacked(problem, name, MMA_M):
        return False
    rows = extents.m if name == "a" else extents.n
    _, size = _lines(problem, name, rows, extents.k, MMA_M)
    return -(-size // ROW_BYTES) * ROW_BYTES % _SECTOR != 0


def _repack_us(family: Family, copied: int, near: bool) -> float:
    """Return the time of copying so many bytes of operands."""
    f = family.figures
    if not copied:
        return 0.0
    # What the L2 does not hold is written to device memory, too.
    passes = 1 if 2 * copied < family.target.l2_bytes else 2
    fixed = f.repack_us - (f.near_copy_us if near else 0.0)
    return fixed + passes * copied / f.repack_gbs / 1e3


def _least_us(work: Work, shape: Shape, columns: int) -> float:
    """Return a time that no launch of a tile is under, however it is shared."""
    f, extents, sm_count = work.family.figures, work.extents, work.family.target.sm_count
    down, across = -(-extents.m // shape.rows), -(-extents.n // columns)
    units = down * across * extents.batch
    room = sm_count // units
    dram = work.dram_us
    main = work.slabs * _least_slab(work.family, shape, columns, extents.m)
    rounds = -(-units // sm_count)
    least = _joined(f, rounds * main, dram) + f.round_us * (rounds - 1)
    if room > 1:
        split = f.reduce_us + 2 * f.part_us + 4 * work.part_bytes / f.reduce_gbs / 1e3
        least = min(least, _joined(f, main / room, dram) + split)
    for cluster_k in shape.cluster_k[1:]:
        if cluster_k <= room:
            sent = 4 * shape.rows * columns / max(shape.slices) * units * (cluster_k - 1)
            exchange = f.exchange_us + f.peer_us * (cluster_k - 2) + sent / f.exchange_gbs / 1e3
            least = min(least, _joined(f, main / cluster_k, dram) + exchange)
    least += work.fixed_us + work.repack_us[min(shape.rows, MMA_M)]
    return _BELOW * least


@lru_cache(maxsize=64)  # works are compared by identity: those of the plan that is being made
def _least_beside(work: Work, split_k: int, cluster_k: int) -> float:
    """Return the least time of what is beside the loop over K."""
    f, us = work.family.figures, work.fixed_us
    if cluster_k > 1:
        us += f.exchange_us + f.peer_us * (cluster_k - 2)
    if split_k > 1:
        us += _parts_us(work, split_k)
    return us


def _parts_us(work: Work, split_k: int) -> float:
    """Return the time of adding up split-K's parts."""
    f, problem = work.family.figures, work.family.problem
    parts = parts_in_turn(problem, work.part_bytes, split_k)
    written = 2 * split_k * work.part_bytes / f.reduce_gbs / 1e3
    return f.reduce_us + f.part_us * parts + written


@lru_cache(maxsize=8192)
def _least_slab(family: Family, shape: Shape, columns: int, m: int) -> float:
    """Return the least time of a slab of one of M rows, the L2 left out."""
    warpgroups = shape.warps // 4
    repeats = -(-shape.rows // (MMA_M * warpgroups))
    slices = max(shape.slices)
    tensor = _tensor_us(family, shape.rows, columns, warpgroups * slices)
    issue = _issue_us(family.figures, warpgroups, slices, repeats)
    issue += family.figures.zero_row_us * max(0, shape.rows - m)
    return _BELOW * _joined(family.figures, tensor, issue)


def _times(
    work: Work, tile: Tile, cluster: tuple[int, int], split_k: int, cluster_k: int, bar: float
) -> Times | None:
    """Price one launch: rounds of work units against tensor cores, L2 and DRAM.

    None where the price is above the bar.
    """
    f, extents, target, geo = tile.figures, work.extents, tile.target, tile.geo
    m, n, _ = tile.config.tile
    together = cluster[0] * cluster[1] * cluster_k
    down, across = -(-extents.m // (m * cluster[0])), -(-extents.n // (n * cluster[1]))
    units = down * across * extents.batch * together * split_k
    room = work.family.at_once[together] * together
    at_once = min(units, room)
    rounds = -(-units // at_once)
    slabs = -(-work.slabs // (split_k * cluster_k))
    rows, columns = min(m, extents.m), min(n, extents.n)
    latency = tile.issue_us + f.zero_row_us * (m - rows)
    if geo.b_swizzle < SWIZZLE_BYTES:
        latency += f.narrow_us * n
    if geo.a_swizzle < SWIZZLE_BYTES and shared_major(tile.problem, "b", m) == "n":
        latency += f.thin_us
    rows_read, columns_read = rows / cluster[1], columns / cluster[0]
    if down == 1 and across >= _MANY and cluster[1] == 1:
        rows_read *= f.common
    if across == 1 and down >= _MANY and cluster[0] == 1:
        columns_read *= f.common
    if work.split_sectors[0]:
        rows_read *= f.split_sectors
    if work.split_sectors[1]:
        columns_read *= f.split_sectors
    bytes_read = (rows_read + columns_read) * tile.line
    # Clusters that are not offered, only swept, are taken to be like the dearest that was measured.
    multicast = f.multicast.get(cluster) or max(f.multicast.values())
    rate = min(f.l2_gbs, f.sm_gbs * at_once * 132 / target.sm_count) * _speed(target)
    l2 = bytes_read * at_once / rate / 1e3 * multicast
    alone = together * split_k * geo.slices == 1 and m == MMA_M and n >= 128
    if alone and rounds == 1 and slabs >= _IN_STEP and min(down, across) > 1:
        l2 *= f.in_step
    if geo.slices > 1 and cluster == (2, 1) and n <= 64:
        streamed = work.b_bytes > target.l2_bytes and shared_major(tile.problem, "b", m) == "k"
        l2 *= f.sliced_streams if streamed else f.sliced_pairs
    store = _store_us(tile, cluster_k)
    exposed = f.store_exposed * store if geo.groups == 2 else rounds * store
    adding = _adding_us(work, tile, split_k, cluster_k, at_once)
    repack = work.repack_us[min(m, MMA_M)]
    if repack and (at_once > _CROWDED * target.sm_count or work.copied > _CROWDED_BYTES):
        repack += f.crowded_us
    beside = work.fixed_us + f.round_us * (rounds - 1) + exposed + adding + repack
    if beside + max(rounds * slabs * max(tile.tensor_us, latency, l2), work.dram_us) > bar:
        return None

    tensor = tile.tensor_us
    if geo.promote:  # CUDA cores add beside them
        tensor *= f.promoted_turns if geo.groups == 2 else 1.0
        if together > 1 and _wave_bytes(work, tile, at_once) < _WAVE * target.l2_bytes:
            tensor *= f.promoted_pair
    main = slabs * _joined(f, tensor, latency, l2)
    if geo.groups == 2:  # one group stores while the other multiplies
        main = max(main, (main + store) / 2)
    dram = _dram_us(work, tile, across > 1, down > 1)
    apart = target.sm_count * (_SPREAD if together > 2 else 1.0)
    if 2 * at_once > apart:  # SMs lie in pairs: some have half of what a pair can draw
        dram *= max(1.0, target.sm_count / (at_once * f.pair_draw))
    main *= 1 + f.hot * rounds * main / (rounds * main + f.hot_us)
    total = beside + _joined(f, rounds * main, dram)
    if total > bar:
        return None
    return Times(
        total, work.fixed_us, rounds, units / room, main, slabs * tensor, slabs * latency,
        slabs * l2, dram, exposed, adding, repack,
    )  # fmt: skip


def _wave_bytes(work: Work, tile: Tile, at_once: int) -> int:
    """Return the bytes of the operands that tiles which run at once read, in bands of eight."""
    (m, n, _), e = tile.config.tile, work.extents
    lines = min(8 * m, e.m) + min(-(-at_once // 8) * n, e.n)
    return lines * e.k * tile.problem.a.dtype.itemsize


def _prediction(times: Times, f: Figures) -> Prediction:
    """Say what a price is made of."""
    loop = _joined(f, times.rounds * times.main, times.dram)
    full = _joined(f, min(times.needed, times.rounds) * times.main, times.dram)
    made = Breakdown(
        launch=times.launch,
        mainloop=full,
        waves=f.round_us * (times.rounds - 1) + loop - full,
        epilogue=times.store,
        reduction=times.adding,
        repack=times.repack,
        tensor=times.rounds * times.tensor,
        latency=times.rounds * times.latency,
        l2=times.rounds * times.l2,
        dram=times.dram,
    )
    return Prediction(times.total, made.limiter, made)


@lru_cache(maxsize=16384)
def _store_us(tile: Tile, cluster_k: int) -> float:
    """Return the time that a tile's store takes its warpgroups."""
    f, geo, d = tile.figures, tile.geo, tile.problem.d
    m, n, _ = tile.config.tile
    how = "words" if geo.store == "rows" and d.dtype.itemsize == 4 else geo.store
    us = f.store_us[how] * (max(m, MMA_M) * n / (128 * 256) / geo.wg_m)
    if geo.store == "rows" and geo.groups == 2 and geo.repeats_m > 1:
        us *= f.store_tall_rows
    if geo.store == "tma" and geo.store_columns > 64:
        us *= f.store_long
    if geo.store == "direct":
        us /= geo.slices * cluster_k
        us *= min(1.0, m / MMA_M)
        if d.dtype.itemsize == 4:
            us *= f.store_wide
            us *= f.store_sliced if geo.slices > 1 and d.alignment < TMA_BYTES else 1.0
        if d.major == "m":
            us *= f.store_down
            us *= f.store_quads if geo.fragments and geo.repeats_m > 1 else 1.0
        broad = n / 128
        if geo.groups == 1:  # all warps of a CTA store at once
            broad = max(broad, geo.accumulators / 64)
        us *= 1 + f.store_broad * max(0.0, broad - 1)
    return us


def _adding_us(work: Work, tile: Tile, split_k: int, cluster_k: int, at_once: int) -> float:
    """Return the time of adding up partial sums: in a CTA, in a cluster, by a second kernel."""
    f, slices = tile.figures, tile.geo.slices
    total = f.slices_us if slices > 1 else 0.0
    if cluster_k > 1:
        others = (cluster_k - 1) / cluster_k
        sent = 4 * tile.config.tile[0] * tile.config.tile[1] / slices * at_once * others
        total += f.exchange_us + f.peer_us * (cluster_k - 2) + sent / f.exchange_gbs / 1e3
    if split_k > 1:
        total += _parts_us(work, split_k)
    return total


def _dram_us(work: Work, tile: Tile, a_again: bool, b_again: bool) -> float:
    """Return the time of the device memory's traffic; whether several clusters read A, and B."""
    f = tile.figures
    moved = work.moved + f.shared_read * (a_again * work.a_bytes + b_again * work.b_bytes)
    line = tile.geo.b_bytes // tile.config.tile[2]  # of an N-major B
    if tile.geo.b_swizzle < SWIZZLE_BYTES and line < SWIZZLE_BYTES:
        moved += f.short_lines * work.b_bytes
    us = moved / (tile.target.dram_gbs * f.dram_efficiency * 1e3)
    extents = work.extents
    written = extents.batch * extents.m * extents.n * tile.problem.d.dtype.itemsize
    if tile.geo.store == "rows":
        us += written * (1 + f.store_ends / min(tile.geo.mma_n, 128)) / f.store_rows_gbs / 1e3
    elif tile.geo.store == "direct":
        us += written / f.store_direct_gbs / 1e3
    return us


def _issue_us(f: Figures, warpgroups: int, slices: int, repeats: int) -> float:
    """Return the least time of a slab, however few its columns."""
    return (f.sliced_slab_us if slices > 1 else f.slab_us[warpgroups]) * repeats


def _speed(target: Target) -> float:
    """Return the speed of all SMs against an H200's."""
    return target.sm_count / 132 * target.clock_mhz / 1980


def _joined(f: Figures, *times: float) -> float:
    """Return the time of what overlaps but for the ends: near the longest, a norm of them all."""
    total = 0.0
    for us in times:
        total += us**f.overlap
    return total ** (1 / f.overlap)


@lru_cache(maxsize=4096)
def _efficiency(f: Figures, columns: int, held: bool) -> float:
    """Interpolate the part of the tensor cores' rate that a wgmma of so many columns reaches."""
    known = f.efficiency_held if held else f.efficiency
    low = min(known)
    for high in known:
        if columns <= high:
            part = (columns - low) / max(1, high - low)
            return known[low] + part * (known[high] - known[low])
        low = high
    return known[low]
