"""The configurations that `cutile` offers, and what each is expected to cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from unigemm.dtypes import DType
from unigemm.plans import Candidate, Config, Prediction, Raster
from unigemm.problem import Extents, Problem
from unigemm.target import Target

from ..workspace import workspace_bytes
from .arguments import units_of
from .geometry import config_of, features
from .tiles import ALIGNMENT, NARROW, SCHEDULES, Shape, shapes

__all__ = ["candidates", "offered", "predict"]

_NARROWEST = 8  # columns
_MAX_WORKSPACE = 256 << 20  # bytes of split-K's partial sums
# Tiles of a band: TileGym's GROUP_SIZE_M; on sm_90 that of the quick kernel that was measured.
_GROUP, _HOPPER_GROUP = 8, 16


@dataclass(frozen=True)
class Speed:
    """What an architecture reaches with cuTile.

    Attributes
    ----------
    share
        Part of the tensor cores' peak rate (`Target.tensor_flops`) that the best tiles reach.
    fixed_us
        Launch, descriptors, first slab and last store of one kernel.
    """

    share: float
    fixed_us: float


# FIGURES TO BE MEASURED. Where cuTile was measured beside cuBLAS, the share is that ratio times
# what cuBLAS reaches of the peak:
# - sm_90: 0.95 of cuBLAS at 4096 cubed in bfloat16 (a quick kernel on an H200), and cuBLAS at 787
#   of 1070 TFLOP/s (what `Target` makes of an H200). The fixed time is not known; cute_wgmma's is
#   2.0, fitted, and half a microsecond more is assumed.
# - sm_100, sm_120: 52 to 79 percent of cuBLAS on a B200 and an RTX PRO 6000, over 90 on an RTX 5080
#   (arXiv 2604.23466 and issue 6); 0.79 is taken, and 0.8 of the peak for cuBLAS.
# - sm_80, sm_89: nothing is published; as on sm_120, whose instruction (mma.sync) they share.
# The fixed time of the others is cute_simt's rough 1.4 + 0.7, so that the two compare.
_OTHER = Speed(0.63, 2.1)
_SPEED = {8: _OTHER, 9: Speed(0.70, 2.5), 10: _OTHER, 11: _OTHER, 12: _OTHER}
_RATE = {  # of a type against 16 bits on the same tensor cores (data sheets of A100, H200, B200)
    DType.FLOAT8_E4M3FN: 2.0,
    DType.FLOAT8_E5M2: 2.0,
    DType.INT8: 2.0,
    DType.FLOAT16: 1.0,
    DType.BFLOAT16: 1.0,
    DType.FLOAT32: 0.5,
}
# float64 multiply-adds of one SM per clock on the tensor cores (data sheets: A100 19.5, H200 67,
# B200 40 TFLOP/s).
_FLOAT64_FLOPS = {8: 64, 9: 128, 10: 68}
_SLOW_INT8 = {(10, 3): 0.07}  # on sm_103 it is mma.sync (seen in its code); the rate is assumed
# Part of the best tiles' rate, by the multiply-adds of a tile for each element of A and B that it
# reads, m n / (m + n): NVIDIA's Hopper operators with 64x64, 128x64, 64x256, 128x128 and 128x256
# tiles on an H200 (toolchain notes), and for narrow tiles the rate of wgmma by its columns
# (cute_wgmma's fit).
_INTENSITY = (
    (0.0, 0.0), (7.0, 0.13), (14.0, 0.24), (26.0, 0.42), (32.0, 0.45), (43.0, 0.70), (51.0, 0.92),
    (64.0, 0.93), (85.0, 1.0),
)  # fmt: skip
_WIDE_MMA = (9, 10, 11)  # major compute capabilities with wgmma or tcgen05
_LEAST = 32.0  # of the intensity, elsewhere: mma.sync has the same rate in narrow tiles
# On sm_90 cute_wgmma has passed all its device tests, cutile not yet: it is priced with a margin,
# so that `auto` keeps to wgmma unless the difference is large. float64 has no such rival.
_RIVALLED = 1.5
# An operand that is not K-major, of 8 bits or TF32, is turned in shared memory or registers (seen
# in the code) but where tcgen05 reads it as it lies; what that costs is assumed.
_TRANSPOSED = 2.0
_ANY_MAJOR = (10, 11)
_SHARED_BYTES = 128.0  # from shared memory, of one SM per clock (CUDA C++ Programming Guide)
_SLAB_US = 0.12  # least time of a slab: its barriers and its first instructions
_L2_BYTES = 52.0  # from the L2, of one SM per clock (cute_wgmma's 13500 GB/s on an H200)
_DRAM_EFFICIENCY = 0.92  # cute_wgmma's fit
_SHARED_READ = 0.2  # more time for the bytes of an operand that many tiles read; as there
_OVERLAP = 2.8  # exponent of the norm that joins times which overlap; as there
# Stores of a 128x256 tile by one CTA: by TMA, or by each thread with its own stores; cute_wgmma's
# fit for both. A tile that is stored column by column is turned first.
_STORE_US = {"tma": 1.2, "direct": 6.9}
_TURNED = 1.8
_PERSISTENT_STORE = 0.3  # of that, where tcgen05 sums the next tile meanwhile; assumed
_PERSISTENT_US = 0.05  # the loop over units; a plain grid wins where nothing else differs
_CLUSTER_SHARE = 0.97  # of the rate, of tiles that two CTAs share; their barriers; assumed
_REDUCE_US, _PART_US, _REDUCE_GBS = 1.8, 0.05, 4800.0  # a dependent kernel adds parts; as there


def candidates(problem: Problem, extents: Extents, target: Target) -> list[Candidate]:
    """Return the legal configurations worth considering, priced."""
    found = []
    for config in _bases(problem, target):
        if not _worthwhile(config, extents):
            continue
        for split_k in _splits(extents, target, config):
            final = replace(config, split_k=split_k, raster=_raster(extents, target, config))
            scratch = workspace_bytes(config.oriented(problem), config.oriented(extents), split_k)
            if scratch > _MAX_WORKSPACE:
                continue
            found.append(Candidate(final, predict(problem, extents, target, final), scratch))
    return found


def offered(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield every configuration that some sizes may get, K whole or in two parts."""
    for config in _bases(problem, target):
        yield config
        if config.schedule == "plain":
            yield replace(config, split_k=2)


@lru_cache(maxsize=4096)
def _bases(problem: Problem, target: Target) -> tuple[Config, ...]:
    """Return each tile in every schedule and, if it is narrow, either way round."""
    return tuple(
        config_of(shape, problem, schedule, swap_ab)
        for swap_ab in (False, True)
        for shape in shapes(problem.transposed if swap_ab else problem, target)
        for schedule in SCHEDULES
        if (schedule == "plain" or shape.persistent) and (_is_narrow(shape) or not swap_ab)
    )


def _is_narrow(shape: Shape) -> bool:
    return shape.n <= NARROW < shape.m


def _worthwhile(config: Config, extents: Extents) -> bool:
    """Whether a narrow tile lies along the short side of D, and is no wider than needed."""
    m, n, _ = config.tile
    if not n <= NARROW < m:
        return True
    short = config.oriented(extents).n
    return n // 2 < short <= n or short <= n == _NARROWEST


def _splits(extents: Extents, target: Target, config: Config) -> tuple[int, ...]:
    """Return the parts of K worth considering: those that fill the device, none of them empty."""
    slabs = ceil(extents.k / config.tile[2])
    tiles = units_of(config, extents)
    room = _places(target, config) // tiles
    if config.schedule == "persistent":  # for many tiles; K is whole
        return (1,) if tiles > _places(target, config) else ()
    wanted = (1, 2, 3, 4, room // 2, room, 2 * room)
    # Parts are equal but for the last, which must not be empty.
    found = {ceil(slabs / ceil(slabs / parts)) for parts in wanted if 1 <= parts <= slabs // 2}
    return tuple(sorted({1} | {parts for parts in found if parts <= 2 * room}))


def _raster(extents: Extents, target: Target, config: Config) -> Raster:
    """Return the order of the tiles: bands along the shorter side of D in tiles."""
    seen = config.oriented(extents)
    tall = seen.m * config.tile[1] >= seen.n * config.tile[0]
    return Raster("m" if tall else "n", _HOPPER_GROUP if target.capability[0] == 9 else _GROUP)


def _places(target: Target, config: Config) -> int:
    """Return the tiles that run at once."""
    return max(1, target.sm_count // config.cluster[0]) * max(1, config.occupancy)


def predict(problem: Problem, extents: Extents, target: Target, config: Config) -> Prediction:
    """Price one configuration: rounds of tiles against tensor cores, L2 and DRAM."""
    speed = _SPEED[target.capability[0]]
    seen, sizes = config.oriented(problem), config.oriented(extents)
    units = units_of(config, extents)
    at_once = min(units, _places(target, config))
    rounds = ceil(units / at_once)
    slabs = ceil(ceil(extents.k / config.tile[2]) / config.split_k)
    of_slab = _slab(seen, sizes, target, config, at_once)
    main = rounds * slabs * _joined(*of_slab.values())
    dram = _dram_us(problem, extents, target, config)
    total = speed.fixed_us + _joined(main, dram) + _store_us(seen, target, config, rounds)
    if target.capability[0] == 9 and problem.a.dtype is not DType.FLOAT64:
        total *= _RIVALLED
    if config.schedule == "persistent":
        total += _PERSISTENT_US * rounds
    if config.split_k > 1:
        scratch = workspace_bytes(seen, sizes, config.split_k)
        total += _REDUCE_US + _PART_US * config.split_k + 2 * scratch / _REDUCE_GBS / 1e3
    parts = {"dram": dram, **{name: rounds * slabs * us for name, us in of_slab.items()}}
    limiter = max(parts, key=lambda name: parts[name])
    return Prediction(total, limiter if parts[limiter] > speed.fixed_us else "launch")


def _slab(
    problem: Problem, extents: Extents, target: Target, config: Config, at_once: int
) -> dict[str, float]:
    """Return what bounds the time of one slab in all tiles that run at once, microseconds."""
    m, n, k = config.tile
    ctas = config.cluster[0]
    busy = min(target.sm_count, at_once * ctas)
    per_sm = at_once * ctas / busy
    intensity = m * n / (m + n) / ctas**0.5
    # Instructions of wgmma and tcgen05 have a tile's columns, those of mma.sync eight.
    share = _share(intensity if target.capability[0] in _WIDE_MMA else max(intensity, _LEAST))
    rate = _peak(problem, target) * _SPEED[target.capability[0]].share * share
    if ctas > 1:
        rate *= _CLUSTER_SHARE
    size = problem.a.dtype.itemsize
    majors = (problem.a.major, problem.b.major)
    if majors != ("k", "k") and size in (1, 4) and target.capability[0] not in _ANY_MAJOR:
        rate /= _TRANSPOSED
    rows, columns = min(m, extents.m), min(n, extents.n)
    read = (rows + columns) * k * size
    clocks = target.clock_mhz
    return {
        "shared": read * per_sm / (_SHARED_BYTES * clocks),
        "tensor": m * n * k / ctas * per_sm / (rate * clocks),
        "latency": _SLAB_US,
        "l2": read * at_once / (_L2_BYTES * target.sm_count * clocks),
    }


def _peak(problem: Problem, target: Target) -> float:
    """Return the multiply-adds that the tensor cores of one SM start per clock."""
    dtype = problem.a.dtype
    if dtype is DType.FLOAT64:
        return _FLOAT64_FLOPS[target.capability[0]]
    slow = _SLOW_INT8.get(target.capability, 1.0) if dtype is DType.INT8 else 1.0
    return target.tensor_flops * _RATE[dtype] * slow


def _share(intensity: float) -> float:
    """Interpolate `_INTENSITY`."""
    low = _INTENSITY[0]
    for high in _INTENSITY[1:]:
        if intensity <= high[0]:
            part = (intensity - low[0]) / (high[0] - low[0])
            return low[1] + part * (high[1] - low[1])
        low = high
    return low[1]


def _store_us(problem: Problem, target: Target, config: Config, rounds: int) -> float:
    """Return the time of the stores that nothing hides."""
    aligned = problem.d.alignment == ALIGNMENT or config.split_k > 1
    by_tma = aligned and features(target).tma
    us = _STORE_US["tma" if by_tma or aligned else "direct"]
    us *= config.tile[0] * config.tile[1] / (128 * 256) / config.cluster[0]
    if problem.d.major == "m":
        us *= _TURNED
    hidden = config.schedule == "persistent" and target.capability[0] == 10
    return us * (1 + (rounds - 1) * (_PERSISTENT_STORE if hidden else 1.0))


def _dram_us(problem: Problem, extents: Extents, target: Target, config: Config) -> float:
    """Return the time of the device memory's traffic."""
    sizes = config.oriented(extents)
    again = (sizes.n > config.tile[1]) * sizes.m + (sizes.m > config.tile[0]) * sizes.n
    again *= extents.k * extents.batch * problem.a.dtype.itemsize
    moved = extents.bytes_moved(problem) + _SHARED_READ * again
    return moved / (target.dram_gbs * _DRAM_EFFICIENCY * 1e3)


def _joined(*times: float) -> float:
    """Return the time of what overlaps but for the ends: near the longest, a norm of them all."""
    return sum(us**_OVERLAP for us in times) ** (1 / _OVERLAP)
