"""What a device lets cuTile do, and which problems and configurations it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import FLOAT8, DType
from unigemm.problem.problem import Extents, MatrixType, Problem

from ..common.workspace import packed_bytes
from .tiles import ALIGNMENT, SCHEDULES, Shape, shapes

__all__ = [
    "ANY_MAJOR",
    "CAPABILITIES",
    "PIECE_ROWS",
    "REDUCE_TILE",
    "TURN_TILE",
    "Features",
    "config_of",
    "copied_bytes",
    "features",
    "gpu_code",
    "illegal",
    "is_copied",
    "k_major",
    "kernel_problem",
    "seen",
    "stored_directly",
    "unfit",
    "without_copies",
]

REDUCE_TILE = (4, 256)  # lines and elements of them that a block of the reduction adds up
# Lines of a copy and elements of them that a block of `turn` writes: on both sides a warp moves two
# lines of the L2 at a time, and five blocks an SM have 80 kB in flight (81 registers, 17 kB).
TURN_TILE = (64, 64)
PIECE_ROWS = 8  # of a shared tile that a block of `join` adds up: 16 bytes of a turned D
# What `tileiras --help` names (13.5); the machine code is for exactly that device.
CAPABILITIES = (80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121)
ANY_MAJOR = (10, 11)  # major compute capabilities whose tcgen05 reads an operand as it lies
# float64 on the tensor cores, in figures that are worth it: the others have none, or a sixty-fourth
# of their float32 rate (CUDA C++ Programming Guide, arithmetic throughput).
_FLOAT64 = ((8, 0), (9, 0), (10, 0))


@dataclass(frozen=True)
class Features:
    """What decides the code beside the configuration.

    Attributes
    ----------
    tma
        Tiles are moved by TMA; else by cp.async.
    whole_vectors
        Lines of A and B must be whole vectors of 16 bytes: else cp.async becomes loads of single
        elements, and registers spill (seen in the code of 13.4 and 13.5 for sm_80).
    reads_tf32
        float32 in memory is read as TF32, whose low bits the tensor cores ignore; else it is
        converted on the way (13.5 ends with an assertion for sm_80).
    overlaps
        A kernel may begin before the one in front of it has ended.
    multiplies
        Indices are divided by numbers that the launch brings, and not by divisions proper: on
        sm_90, where it was measured. Loops over tiles of 512x256 (sm_100, sm_110) spill two
        registers with either, by products or by those numbers.
    """

    tma: bool
    whole_vectors: bool
    reads_tf32: bool
    overlaps: bool
    multiplies: bool


@lru_cache(maxsize=64)
def features(target: Target) -> Features:
    """Return what the target's architecture allows."""
    tma = target.capability >= (9, 0)
    hopper = target.capability[0] == 9
    return Features(tma=tma, whole_vectors=not tma, reads_tf32=tma, overlaps=tma, multiplies=hopper)


def gpu_code(target: Target) -> str:
    """Return the architecture's name as cuTile takes it: no letter behind the number."""
    major, minor = target.capability
    return f"sm_{major}{minor}"


def kernel_problem(problem: Problem) -> Problem:
    """Return the class that is compiled for a problem: what makes no difference is left out."""
    d = problem.d
    alignment = d.alignment if d.alignment == ALIGNMENT else d.dtype.itemsize
    precision = problem.precision if problem.a.dtype is DType.FLOAT32 else "ieee"
    return Problem(
        problem.a,
        problem.b,
        MatrixType(d.dtype, d.major, alignment),
        precision,
        scaled=problem.scaled,
    )


def unfit(problem: Problem, extents: Extents, target: Target) -> str | None:
    """Say why cuTile does not take a product, or would be slow at it; None where it does."""
    capability = target.capability
    if capability[0] * 10 + capability[1] not in CAPABILITIES:
        return f"cuTile compiles for sm_80 and newer, not for {target.arch}; use cute_simt"
    reason = _unfit_type(problem, capability)
    if reason is not None:
        return reason
    for name, matrix in (("A", problem.a), ("B", problem.b)):
        if matrix.alignment < ALIGNMENT:
            return (
                f"{name} is {matrix}: TMA and cp.async move 16 bytes, and cuTile reads element by "
                "element where a base address or a stride is no multiple of that (4 to 15 times "
                "slower than cuBLAS); copy it to an aligned array, or use another backend"
            )
    if problem.d.major == "strided":
        return (
            "D has no contiguous index, or runs backwards, and cuTile would store it element by "
            "element; write into an array that has one, or use another backend"
        )
    if features(target).whole_vectors:
        for name, matrix, length in (
            ("A", problem.a, extents.k if problem.a.major == "k" else extents.m),
            ("B", problem.b, extents.k if problem.b.major == "k" else extents.n),
        ):
            if length % matrix.vector:
                return (
                    f"lines of {name} have {length} elements and {target.arch} reads "
                    f"{matrix.vector} at a time; pad them with zeros, or use another backend"
                )
    return None


def _unfit_type(problem: Problem, capability: tuple[int, int]) -> str | None:
    dtype = problem.a.dtype
    if problem.b.dtype is not dtype:
        return (
            f"cuTile does not multiply {dtype} by {problem.b.dtype}; convert one of them, or use "
            "another backend"
        )
    if dtype is DType.FLOAT32:
        if problem.precision == "ieee":
            return (
                "cuTile multiplies float32 at a tenth of cuBLAS's rate; accept precision='tf32', "
                "or use cute_simt"
            )
        if problem.precision == "3xtf32":
            return "cuTile has no 3xTF32 kernel; accept precision='tf32', or use cute_wgmma"
    arch = f"sm_{capability[0]}{capability[1]}"
    if dtype in FLOAT8 and capability < (9, 0):
        return f"cuTile has no {dtype} on {arch}; convert it to float16"
    if dtype is DType.INT8 and capability == (10, 3):
        return f"cuTile multiplies int8 by mma.sync on {arch}, slowly; convert it to float16"
    majors = (problem.a.major, problem.b.major)
    if dtype.itemsize == 1 and majors != ("k", "k") and capability[0] not in ANY_MAJOR:
        return (
            f"cuTile turns 8-bit operands in registers on {arch}, slowly; copy them to K-major "
            "arrays (A row-major, B column-major)"
        )
    if dtype is DType.FLOAT64 and capability not in _FLOAT64:
        return (
            f"the tensor cores of {arch} have no float64 worth its name (sm_80, sm_90 and sm_100 "
            "do); use cute_simt"
        )
    return None


def is_copied(kind: MatrixType, config: Config) -> bool:
    """Whether an operand is copied into the workspace before it is multiplied."""
    return config.repacked and kind.major != "k"


def k_major(problem: Problem) -> Problem:
    """Return the class of the same product of K-major operands, as copies of them are."""
    a, b = (
        kind if kind.major == "k" else MatrixType(kind.dtype, "k", ALIGNMENT)
        for kind in (problem.a, problem.b)
    )
    return replace(problem, a=a, b=b)


def seen(problem: Problem, config: Config) -> Problem:
    """Return the problem that is multiplied: with the copies of operands that have one.

    The problem is the kernel's, as with `swap_ab`.
    """
    return k_major(problem) if config.repacked else problem


def copied_bytes(problem: Problem, extents: Extents, config: Config) -> int:
    """Return the bytes of the operands' copies, at most: a repeated batch is copied once."""
    line = extents.k * problem.a.dtype.itemsize
    return sum(
        packed_bytes(rows, line, extents.batch, 1)
        for kind, rows in ((problem.a, extents.m), (problem.b, extents.n))
        if is_copied(kind, config)
    )


def without_copies(problem: Problem, target: Target) -> str | None:
    """Say why no tile has operands copied for it first, whatever the sizes; None where some may."""
    if problem.a.dtype is not DType.FLOAT32:
        return "operands are copied first in TF32 only: others are read as they lie, or refused"
    if problem.a.major == problem.b.major == "k":
        return "A and B are K-major: there is nothing to copy first"
    if not features(target).tma or target.capability[0] in ANY_MAJOR:
        return (
            "operands are copied first for tensor cores that are fed by TMA and take TF32 K-major "
            f"only, as sm_90's, not on {target.arch}"
        )
    return None


def config_of(
    shape: Shape, problem: Problem, schedule: str, swap_ab: bool, repacked: bool = False
) -> Config:
    """Return the configuration of a shape, K whole and tiles in no particular order."""
    return Config(
        tile=(shape.m, shape.n, shape.slab_bytes // problem.a.dtype.itemsize),
        stages=shape.latency,
        cluster=(shape.ctas, 1),
        warps=(shape.warps, 1),
        occupancy=shape.occupancy,
        swap_ab=swap_ab,
        repacked=repacked,
        schedule=schedule,
    )


def stored_directly(problem: Problem, config: Config) -> bool:
    """Whether threads store the tiles of a kernel, and not TMA.

    Those of 128x256 in TF32 that are stored column by column, as where B is turned as an A: 1536,
    2048 and 3072 cubed took 5 to 7 percent less time so on an H200, but none did in smaller tiles.
    """
    m, n, _ = config.tile
    turned = problem.a.dtype is DType.FLOAT32 and problem.a.major == problem.d.major == "m"
    return turned and not config.repacked and config.cluster[0] == 1 and m * n >= 128 * 256


def illegal(problem: Problem, config: Config, target: Target) -> str | None:
    """Say why a configuration cannot run on the target; None when it can.

    Anything may be compiled, but few tiles keep their sums in registers: those of the table do.
    """
    if config.schedule not in SCHEDULES:
        return f"schedule {config.schedule!r} is none of {', '.join(SCHEDULES)}"
    if config.cluster_k * config.slice_k != 1:
        return "cuTile leaves K to split-K"
    if config.split_k < 1 or config.raster.group < 1:
        return "split-K and the group of the raster are at least 1"
    if config.schedule != "plain" and config.split_k > 1:
        return f"a {config.schedule} kernel has K whole"
    if config.repacked:
        reason = without_copies(problem, target)
        if reason is not None:
            return reason
    for shape in shapes(seen(problem, config), target):
        if config.schedule not in shape.schedules:
            continue
        known = config_of(shape, problem, config.schedule, config.swap_ab)
        if _tile(known) == _tile(config) and config.stages in (1, known.stages):
            return None
    return f"it is none of the tiles that are known not to spill for {target.arch}"


def _tile(config: Config) -> tuple[object, ...]:
    return config.tile, config.cluster, config.warps, config.occupancy
