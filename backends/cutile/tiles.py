"""The tiles that are offered, by architecture and type, and where each number comes from.

Every tile here compiles, for every layout of its type, to tensor core code with no local memory
(test_cutile_compile.py reads the machine code). Tiles that do not are left out, since they are many
times slower.

Sources of the sizes:

- H: measured on an H200 beside cuBLAS, in 16 bits
  (docs/lab-notes/2026-11-26-tensor-core-code-choices.md).
- T: what NVIDIA's TileGym tunes among (src/tilegym/ops/cutile/matmul.py, at 242111c), by
  architecture and for float64.
- N: narrow tiles for few rows or columns, the smallest N of wgmma, tcgen05 and mma.sync (PTX ISA:
  multiples of 8); their M is 64 or 128, the M of the same instructions.
- S: as large as the machine code shows no spills.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import FLOAT8, DType
from unigemm.problem.problem import Problem

from ..common.epilogue import in_place
from .geometry import ALIGNMENT, DEFAULT_WARPS, cut_by_groups, spans_of

__all__ = [
    "NARROW",
    "SCHEDULES",
    "Shape",
    "config_of",
    "shapes",
    "table_of",
    "transposed_tf32",
]

SCHEDULES = ("plain", "persistent", "tail")
NARROW = 32  # columns of the widest tile for few rows or columns


@dataclass(frozen=True)
class Shape:
    """A tile and its hints.

    Attributes
    ----------
    m, n
        Rows and columns, of spans that are powers of two (`spans_of`).
    k_tile_bytes
        Of K in one step of the loop.
    ctas
        CTAs of a cluster that share the tile (num_ctas).
    warps
        Worker warps (num_worker_warps).
    occupancy
        CTAs that an SM is to hold at once; 0 leaves it to the compiler.
    aligned
        Only for a D whose lines are whole vectors, as all above 128x128 are: the addresses of
        single elements spill.
    persistent, tail
        Whether it is also offered with a loop over tiles; and with one whose last wave is cut along
        K.
    latency
        The latency of loads that the compiler is told, from 2 to 10 (`cuda.tile.load`). It decides
        how many k_tiles are in flight; 1 leaves it to the compiler.
    """

    m: int
    n: int
    k_tile_bytes: int = 128
    ctas: int = 1
    warps: int = DEFAULT_WARPS
    occupancy: int = 0
    aligned: bool = False
    persistent: bool = False
    tail: bool = False
    latency: int = 1

    @property
    def schedules(self) -> tuple[str, ...]:
        """In which it is offered."""
        return tuple(
            name
            for name, has in zip(SCHEDULES, (True, self.persistent, self.tail), strict=True)
            if has
        )


_FEW = tuple(  # N
    Shape(rows, columns, k_tile)
    for columns in (8, 16, 32)
    for rows, k_tile in ((64, 128), (64, 256), (128, 128))
)

# mma.sync and cp.async. TileGym tunes 64x64 to 128x128, k_tiles of 32 to 128, occupancy 1 and 2.
_AMPERE_16 = (
    Shape(128, 256, 64, warps=8),  # S
    Shape(256, 128, 64, warps=8),  # S
    Shape(128, 128, 64, occupancy=2, aligned=True),  # T
    Shape(128, 128, 64, aligned=True),  # T
    Shape(128, 128, warps=8),  # T, with eight warps: S
    Shape(64, 128, 64, occupancy=2),  # T
    Shape(64, 128),  # T
    Shape(128, 64, 64, occupancy=2),  # T
    Shape(64, 64, occupancy=2),  # T
    Shape(64, 64, 64, occupancy=2),  # T
    *_FEW,
)
_AMPERE_INT8 = (
    Shape(128, 128, warps=8, aligned=True),  # S
    Shape(128, 128, 64, warps=8),  # S
    Shape(64, 128),  # S
    Shape(64, 128, 64),  # S
    Shape(64, 64),  # S
    Shape(64, 64, 64, occupancy=2),  # S
    *_FEW,
)
_AMPERE_TF32 = (
    Shape(64, 128, 64, warps=8),  # S
    Shape(64, 64, warps=8),  # S
    Shape(64, 64, 64),  # T
    Shape(64, 8, 64),  # N
    Shape(64, 16, 64),  # N
    Shape(64, 32, 64),  # N
)
_FLOAT64 = (
    Shape(128, 64, warps=8),  # T, with eight warps: S
    Shape(64, 128, warps=8),  # S
    Shape(64, 64),  # T
    Shape(64, 64, occupancy=2),  # T
    Shape(64, 32),  # S
    Shape(32, 64),  # S
    Shape(32, 32),  # S
    Shape(16, 16, 256, occupancy=2),  # T
)

# With a latency of 4 the compiler has more k_tiles in flight, and no room for two CTAs on an SM.
_HOPPER_FEW = tuple(
    replace(shape, latency=4)
    if shape.k_tile_bytes == 256 or (shape.m == 128 and shape.n < 32)
    else shape
    for shape in _FEW
)

# wgmma and TMA. Which tiles with several spans are worth offering, and which others were tried
# and never the best: docs/lab-notes/2026-11-24-cutile-spans.md. Products of several spans in a loop
# over tiles are mostly issued one at a time (seen in the code). Latencies:
# docs/lab-notes/2026-11-23-cutile-load-latency.md; with 8 loops over tiles spill.
_HOPPER = (
    Shape(128, 256, warps=8, persistent=True, latency=6),  # H
    Shape(256, 256, ctas=2, warps=8, persistent=True, tail=True, latency=6),  # H
    Shape(128, 128, persistent=True, tail=True, latency=6),  # H
    Shape(192, 128, warps=8, latency=7),  # H
    Shape(128, 144, warps=8, latency=6),  # H
    Shape(128, 192, warps=8, latency=6),  # H
    Shape(128, 224, warps=8, latency=6),  # H
    Shape(256, 192, ctas=2, warps=8, latency=6),  # H
    Shape(384, 192, ctas=2, warps=8, latency=5),  # H
    Shape(128, 128, occupancy=2, latency=6),  # S
    Shape(64, 256, latency=5),  # S
    Shape(64, 128, latency=5),  # H
    Shape(64, 128, 256, latency=4),  # S
    Shape(128, 64, latency=5),  # S
    Shape(64, 64, 256, latency=3),  # H
    Shape(64, 64, occupancy=2),  # S
    *_HOPPER_FEW,
)
# float8 has accumulators twice: the tensor cores' own lose bits, so they often move to float32.
_HOPPER_FLOAT8 = (
    Shape(128, 128, warps=8),  # S
    Shape(64, 128),  # S
    Shape(64, 128, occupancy=2),  # S
    Shape(128, 64),  # S
    Shape(64, 64),  # S
    Shape(64, 64, occupancy=2),  # S
    *_FEW,
)

# tcgen05 and TMA; TileGym also tunes clusters of four.
_BLACKWELL = (
    Shape(256, 256, ctas=2, persistent=True),  # T
    Shape(512, 256, ctas=2, persistent=True),  # T
    Shape(256, 512, ctas=2, persistent=True),  # T
    Shape(256, 256, persistent=True),  # T
    Shape(128, 256, persistent=True),  # S
    Shape(256, 128, ctas=2, persistent=True),  # T
    Shape(128, 128, persistent=True),  # T
    Shape(128, 128, occupancy=2, aligned=True),  # S
    Shape(128, 64),  # S
    Shape(64, 128),  # S
    Shape(64, 64),  # S
    Shape(64, 64, occupancy=2),  # S
    *_FEW,
)

# mma.sync and TMA, 99 kB of shared memory.
_GEFORCE_WIDE = (
    Shape(128, 256, 64, warps=8),  # S
    Shape(256, 128, 64, warps=8),  # S
    Shape(128, 128, 64, aligned=True),  # T
    Shape(128, 128, warps=8),  # S
    Shape(128, 64),  # T
    Shape(128, 64, 64, occupancy=2),  # T
    Shape(64, 128, 64, occupancy=2),  # T
    Shape(64, 64),  # T
    Shape(64, 64, occupancy=2, persistent=True),  # T
)
_GEFORCE = (*_GEFORCE_WIDE, *_FEW)

_UNALIGNED = 128 * 128  # elements of the largest tile of a D whose lines are no whole vectors


def shapes(problem: Problem, target: Target) -> tuple[Shape, ...]:
    """Return the tiles for a problem that cutile takes, as the kernel sees it."""
    aligned = cut_by_groups(problem).d.alignment == ALIGNMENT
    # TMA moves boxes of at least 16 bytes; narrower ones are read by ordinary loads.
    least = ALIGNMENT // problem.b.dtype.itemsize if problem.b.major == "n" else 0
    transposed = transposed_tf32(problem, target)
    found = _shapes(problem.a.dtype, target.capability, aligned, least, transposed)
    if problem.groups is not None:
        # Loops over tiles took 1.0 to 1.9 times as long where rows are divided, and 0.9 times of K
        # (docs/lab-notes/2026-11-27-groups-in-cutile.md).
        loops = problem.groups.along == "k"
        found = tuple(replace(x, persistent=x.persistent and loops, tail=False) for x in found)
    if problem.epilogue is None:
        return found
    if any(x.along == "mn" for x in problem.epilogue.aux):
        # Loops over tiles spill around arrays of D's size (256x256: 700 bytes).
        found = tuple(replace(x, persistent=False, tail=False) for x in found)
    if not in_place(problem):
        return found
    single = [x for x in found if len(spans_of(x.m)) == len(spans_of(x.n)) == 1]
    return tuple(replace(x, tail=False) for x in single)  # no element is stored twice


def config_of(
    shape: Shape, problem: Problem, schedule: str, swap_ab: bool, repacked: bool = False
) -> Config:
    """Return the configuration of a shape, K whole and tiles in no particular order."""
    return Config(
        tile=(shape.m, shape.n, shape.k_tile_bytes // problem.a.dtype.itemsize),
        stages=shape.latency,
        cluster=(shape.ctas, 1),
        warps=(shape.warps, 1),
        occupancy=shape.occupancy,
        swap_ab=swap_ab,
        repacked=repacked,
        schedule=schedule,
    )


@lru_cache(maxsize=256)
def _shapes(
    dtype: DType,
    capability: tuple[int, int],
    aligned: bool,
    least: int,
    transposed: tuple[bool, bool],
) -> tuple[Shape, ...]:
    """Return the tiles of a type, for a D of whole vectors or not, of `least` columns or more."""
    table = [
        shape
        for shape in table_of(dtype, capability)
        if (aligned or (not shape.aligned and shape.m * shape.n <= _UNALIGNED)) and shape.n >= least
        if not (any(transposed) and _slow_transposed(shape, *transposed))
    ]
    if any(transposed):
        table = [replace(shape, persistent=False, tail=False, latency=1) for shape in table]
    elif not aligned and capability[0] == 9:
        # Loops of four warps around the addresses of single elements spill (128x128: 192 to 256 B).
        table = [
            shape if shape.warps > DEFAULT_WARPS else replace(shape, persistent=False, tail=False)
            for shape in table
        ]
    return tuple(table)


def transposed_tf32(problem: Problem, target: Target) -> tuple[bool, bool]:
    """Whether A and B are TF32 that Hopper transposes on the way: slow in a loop over tiles."""
    slow = problem.a.dtype is DType.FLOAT32 and target.capability[0] == 9
    return slow and problem.a.major != "k", slow and problem.b.major != "k"


def _slow_transposed(shape: Shape, a: bool, b: bool) -> bool:
    """Whether a tile of transposed TF32 is one that others beat by far on an H200.

    So are tiles on two CTAs, tiles of several spans of rows, and, where B is transposed, 64x64
    tiles, whose loops have two stages only, and narrow tiles with long k_tiles. Tiles of several
    spans of columns were not tried.
    Times: docs/lab-notes/2026-11-26-tensor-core-code-choices.md, 2026-11-27-long-k.md.
    """
    if shape.ctas > 1 or len(spans_of(shape.m)) > 1 or len(spans_of(shape.n)) > 1:
        return True
    if b and (shape.m, shape.n) == (64, NARROW) and shape.k_tile_bytes > 128:
        return True
    return b and shape.m == shape.n == 64 and (shape.occupancy > 1 or not a)


def table_of(dtype: DType, capability: tuple[int, int]) -> tuple[Shape, ...]:
    """Return all tiles of a type, whatever else a problem is."""
    if dtype is DType.FLOAT64:
        return _FLOAT64
    if capability[0] == 8:
        narrow = {DType.INT8: _AMPERE_INT8, DType.FLOAT32: _AMPERE_TF32}
        return narrow.get(dtype, _AMPERE_16)
    if capability[0] == 9:
        return _HOPPER_FLOAT8 if dtype in FLOAT8 else _HOPPER
    if capability == (10, 3) and dtype is DType.INT8:
        return _GEFORCE_WIDE  # mma.sync there, too; narrow tiles were read by ordinary loads
    return _BLACKWELL if capability[0] in (10, 11) else _GEFORCE
