"""Whether `cutile` can run a product or a configuration; each function returns why not."""

from __future__ import annotations

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.dtypes import FLOAT8, DType
from unigemm.problem.epilogue import arithmetic
from unigemm.problem.problem import Extents, Problem

from ..common.epilogue import in_place, unsupported_epilogue
from ..common.groups import anywhere, unsupported_groups
from ..common.kernel_key import unsupported_blocks, unsupported_parameter
from ..common.workspace import parts_filled
from .geometry import ALIGNMENT, ANY_MAJOR, effective_problem, features, spans_of
from .tiles import SCHEDULES, config_of, shapes

__all__ = [
    "CAPABILITIES",
    "unsupported_copies",
    "unsupported_product",
    "unsupported_reason",
    "varies",
]

# What `tileiras --help` names (13.5); the machine code is for exactly that device.
CAPABILITIES = (80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121)
# Compute capabilities with a useful rate of float64 on the tensor cores: the others have none, or a
# sixty-fourth of their float32 rate (CUDA C++ Programming Guide, arithmetic throughput).
_FLOAT64 = ((8, 0), (9, 0), (10, 0))
_LEAST_HALVES = 32  # columns of a tile, half of them of each B
_UNUSED = ("thread", "producers", "remainder")


def unsupported_product(problem: Problem, extents: Extents, target: Target) -> str | None:
    """Say why cuTile does not take a product, or would be slow at it; None where it does."""
    return (
        unsupported_blocks(problem)
        or unsupported_epilogue(problem, target, (9, 0))
        or unsupported_groups(problem)
        or _unsupported_lines_of_groups(problem)
        or _unsupported_aux(problem)
        or _unsupported_halves(problem, extents)
        or _unsupported_architecture(target)
        or _unsupported_dtype(problem, target)
        or _unsupported_majors(problem, target)
        or _unsupported_alignment(problem)
        or _unsupported_lines(problem, extents, target)
    )


def _unsupported_lines_of_groups(problem: Problem) -> str | None:
    """Say which operand groups cut across its lines: tiles of such begin at any element."""
    groups, own = problem.groups, anywhere(problem)
    if groups is None:
        return None
    for name, whole, cut in (("A", problem.a, own.a), ("B", problem.b, own.b)):
        if cut.alignment < min(whole.alignment, ALIGNMENT):
            copied = "K-major" if groups.along != "k" else f"{'MN'[name == 'B']}-major"
            return (
                f"{name} is {whole} and groups divide its lines: they begin at any element, and "
                f"TMA and cp.async move 16 bytes; pass a {copied} copy, or use another backend"
            )
    return None


_FLOAT32_ONLY = ("erf", "ndtr", "floordiv")


def _unsupported_aux(problem: Problem) -> str | None:
    epilogue = problem.epilogue
    if epilogue is None:
        return None
    if epilogue.totals:
        return (
            "its kernels do not add up bias gradients; leave bias_grad_out= out and sum the "
            "result, or use another backend"
        )
    for x in epilogue.aux:
        if x.along and x.matrix.major == "strided":
            return (
                "an array of the epilogue has no contiguous index, or runs backwards, and cuTile "
                "reads lines; copy it to an array that has one, or use another backend"
            )
    wide = arithmetic(problem.accumulator, problem.d.dtype) is DType.FLOAT64
    if wide and any(step.op in _FLOAT32_ONLY for step in epilogue.steps):
        return (
            "its erf, ndtr (of gelu) and // are of float32 alone, and this epilogue is in float64; "
            "use cute_simt"
        )
    return None


def _unsupported_halves(problem: Problem, extents: Extents) -> str | None:
    if problem.epilogue is None or not problem.epilogue.halves:
        return None
    if problem.b.major == "n" and extents.n // 2 % problem.b.vector:
        return (
            f"the second half of B's {extents.n} columns begins at no multiple of {ALIGNMENT} "
            "bytes; pass gate_layout='interleaved', or a column-major b"
        )
    return None


def _unsupported_architecture(target: Target) -> str | None:
    major, minor = target.capability
    if major * 10 + minor not in CAPABILITIES:
        return f"cuTile compiles for sm_80 and newer, not for {target.arch}; use cute_simt"
    return None


def _unsupported_dtype(problem: Problem, target: Target) -> str | None:
    dtype, capability = problem.a.dtype, target.capability
    if problem.b.dtype is not dtype:
        return (
            f"cuTile does not multiply {dtype} by {problem.b.dtype}; convert one of them, or use "
            "another backend"
        )
    if dtype is DType.FLOAT32 and problem.precision == "ieee":
        return (
            "cuTile multiplies float32 at a tenth of cuBLAS's rate; accept precision='tf32', "
            "or use cute_simt"
        )
    if dtype is DType.FLOAT32 and problem.precision == "3xtf32":
        other = "cute_wgmma" if capability == (9, 0) else "cute_simt"
        return f"cuTile has no 3xTF32 kernel; accept precision='tf32', or use {other}"
    if dtype in FLOAT8 and capability < (9, 0):
        return f"cuTile has no {dtype} on {_plain_name(target)}; convert it to float16"
    if dtype is DType.INT8 and capability == (10, 3):
        return (
            f"cuTile multiplies int8 by mma.sync on {_plain_name(target)}, slowly; convert it to "
            "float16"
        )
    if dtype is DType.FLOAT64 and capability not in _FLOAT64:
        return (
            f"the tensor cores of {_plain_name(target)} have no float64 worth its name (sm_80, "
            "sm_90 and sm_100 do); use cute_simt"
        )
    return None


def _unsupported_majors(problem: Problem, target: Target) -> str | None:
    majors, anyhow = (problem.a.major, problem.b.major), target.capability[0] in ANY_MAJOR
    if problem.a.dtype.itemsize == 1 and majors != ("k", "k") and not anyhow:
        return (
            f"cuTile transposes 8-bit operands in registers on {_plain_name(target)}, slowly; copy "
            "them to K-major arrays (A row-major, B column-major)"
        )
    return None


def _unsupported_alignment(problem: Problem) -> str | None:
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
    return None


def _unsupported_lines(problem: Problem, extents: Extents, target: Target) -> str | None:
    if not features(target).whole_vectors:
        return None
    for name, matrix, length in (
        ("A", problem.a, extents.k if problem.a.major == "k" else extents.m),
        ("B", problem.b, extents.k if problem.b.major == "k" else extents.n),
    ):
        groups = problem.groups
        if groups is not None and groups.stacked and matrix.major == groups.along:
            return (
                f"lines of {name} end where groups do and {target.arch} reads {matrix.vector} "
                "elements at a time; pass a K-major copy, or use another backend"
            )
        if length % matrix.vector:
            return (
                f"lines of {name} have {length} elements and {target.arch} reads "
                f"{matrix.vector} at a time; pad them with zeros, or use another backend"
            )
    return None


def _plain_name(target: Target) -> str:
    """Return an architecture's name without its letter."""
    major, minor = target.capability
    return f"sm_{major}{minor}"


def unsupported_reason(
    problem: Problem, config: Config, target: Target, extents: Extents | None = None
) -> str | None:
    """Say why a configuration cannot run on the target; None when it can.

    Problem and extents are as the kernel sees them; without extents, for products of any size.
    """
    return (
        _unsupported_schedule(problem, config)
        or _unsupported_in_place(problem, config)
        or _unsupported_ways_of_halves(problem, config)
        or unsupported_parameter(config, _UNUSED)
        or (unsupported_copies(problem, target) if config.repacked else None)
        or _unsupported_tile(problem, config, target)
        or (None if extents is None else _unsupported_parts(extents, config))
    )


def _unsupported_schedule(problem: Problem, config: Config) -> str | None:
    if config.schedule not in SCHEDULES:
        return f"schedule {config.schedule!r} is none of {', '.join(SCHEDULES)}"
    if config.cluster_k * config.slice_k != 1:
        return "cuTile leaves K to split-K"
    if config.split_k < 1 or config.raster.group < 1:
        return "split-K and the group of the raster are at least 1"
    if config.schedule != "plain" and config.split_k > 1:
        return f"a {config.schedule} kernel has K whole"
    if problem.groups is not None and (config.schedule == "tail" or config.split_k > 1):
        return "a tile of a group has K whole: name another schedule"
    if varies(problem, config.schedule):
        return f"where a {config.schedule} kernel cuts K depends on M; name another schedule"
    return None


def _unsupported_in_place(problem: Problem, config: Config) -> str | None:
    """Say that elements may be stored twice, of which the second time would read the first."""
    spans = max(len(spans_of(side)) for side in config.tile[:2])
    if in_place(problem) and (spans > 1 or config.schedule == "tail"):
        return "c is out itself, and tiles of several spans, or shared ones, are stored twice"
    return None


def _unsupported_ways_of_halves(problem: Problem, config: Config) -> str | None:
    """Say that a kernel with two B has each tile of D alone, K whole.

    In persistent ones the compiler waits for each product (seen in code of 13.5 for sm_90).
    """
    if problem.epilogue is None or not problem.epilogue.halves:
        return None
    if config.swap_ab or config.repacked or config.split_k > 1 or config.schedule != "plain":
        return "gates in halves have two B, in plain kernels that have K whole and copy no operand"
    if config.tile[1] < _LEAST_HALVES:
        return f"gates in halves have tiles of {_LEAST_HALVES} columns at least"
    return None


def varies(problem: Problem, schedule: str) -> bool:
    """Whether where K is cut would depend on M, in a product that must not depend on it."""
    return problem.batch_invariant and schedule == "tail"


def unsupported_copies(problem: Problem, target: Target) -> str | None:
    """Say why no tile has its operands copied first, whatever the sizes; None where some may."""
    if problem.groups is not None:
        return "operands of groups are read where they lie"
    if problem.a.dtype is not DType.FLOAT32:
        return "operands are copied first in TF32 only: others are read as they lie, or not taken"
    if problem.a.major == problem.b.major == "k":
        return "A and B are K-major: there is nothing to copy first"
    if not features(target).tma or target.capability[0] in ANY_MAJOR:
        return (
            "operands are copied first for tensor cores that are fed by TMA and take TF32 K-major "
            f"only, as sm_90's, not on {target.arch}"
        )
    return None


def _unsupported_tile(problem: Problem, config: Config, target: Target) -> str | None:
    """Say that a tile is not in the table: any may be compiled, but few do not spill."""
    for shape in shapes(effective_problem(problem, config), target):
        if config.schedule not in shape.schedules:
            continue
        known = config_of(shape, problem, config.schedule, config.swap_ab)
        if _tile(known) == _tile(config) and config.stages in (1, known.stages):
            return None
    return f"it is none of the tiles that are known not to spill for {target.arch}"


def _tile(config: Config) -> tuple[object, ...]:
    return config.tile, config.cluster, config.warps, config.occupancy


def _unsupported_parts(extents: Extents, config: Config) -> str | None:
    k_tiles = -(-extents.k // config.tile[2])
    if parts_filled(k_tiles, config.split_k) != config.split_k:
        return f"{k_tiles} k_tiles do not make {config.split_k} parts of one size"
    return None
