"""What is compiled in, and the kernels of a specification with their signatures."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cuda.tile as ct
from cuda.tile.compilation import (
    ArrayConstraint,
    CallingConvention,
    KernelSignature,
    ScalarConstraint,
    TupleConstraint,
)

from unigemm.planning.config import Config
from unigemm.problem.dtypes import DType
from unigemm.problem.groups import Groups
from unigemm.problem.problem import MatrixType, Problem

from ...common.epilogue import in_place
from ..geometry import (
    ALIGNMENT,
    DEFAULT_WARPS,
    PIECE_ROWS,
    REDUCE_TILE,
    TRANSPOSE_TILE,
    Features,
    cleared_aux,
    columns_of,
    effective_problem,
    is_copied,
    stored_directly,
)
from .dtypes import TYPES
from .fused_signature import IN_PLACE, array_constraint, fused_constraint, numbers_at
from .gemm import gemm, tail
from .grouped import INNER, grouped, schedule
from .reduction import join, reduce
from .transpose import transpose

NUMBER = ScalarConstraint(ct.int32)


@dataclass(frozen=True)
class Spec:
    """What is compiled in: a problem as the kernel sees it, a configuration, and the device's."""

    problem: Problem
    config: Config
    features: Features

    @property
    def split(self) -> bool:
        """Whether partial sums go to the workspace."""
        return self.config.split_k > 1

    @property
    def d_transposed(self) -> bool:
        """Whether D is stored column by column."""
        return self.problem.d.major == "m"

    @property
    def direct(self) -> bool:
        """Whether threads store D themselves, not TMA."""
        return stored_directly(self.problem, self.config)


def matrix_constraint(
    kind: MatrixType, line: int, dtype: ct.DType, alias: tuple[str, ...] = ()
) -> ArrayConstraint:
    """Return what is promised of a matrix: lines aligned as its class says.

    Parameters
    ----------
    kind
        Its class.
    line
        Divides the length of a line.
    dtype
        What its elements are read as.
    alias
        Groups of arrays that it may be one of.
    """
    contiguous = kind.major != "strided"
    steps = (kind.vector,) * 3 + (1,)
    return ArrayConstraint(
        dtype,
        4,
        index_dtype=ct.int32,  # 64-bit ones rule TMA out; addresses have 64 bits either way
        stride_lower_bound_incl=0,
        alias_groups=alias,
        may_alias_internally=False,
        stride_constant=(None, None, None, 1 if contiguous else None),
        stride_divisible_by=steps if contiguous else 1,
        shape_divisible_by=(1, 1, 1, line),
        base_addr_divisible_by=kind.alignment,
    )


def scales_constraint(spec: Spec) -> TupleConstraint:
    """Return two arrays of at most one number and a factor, or nothing."""
    if not spec.problem.scaled:
        return TupleConstraint(())
    scale = numbers_at(ct.float32)
    return TupleConstraint((scale, scale, ScalarConstraint(ct.float64)))


def parts_constraint(spec: Spec) -> ArrayConstraint:
    """Return what is promised of the workspace: lines are padded to 16 bytes."""
    sums = spec.problem.accumulator
    kind = MatrixType(sums, "n", ALIGNMENT)
    return matrix_constraint(kind, kind.vector, TYPES[sums])


def output_constraint(spec: Spec) -> ArrayConstraint:
    """Return what is promised of D, whose alignment counts the length of a line."""
    d = spec.problem.d
    line = 1 if d.major == "strided" else d.vector
    return matrix_constraint(d, line, TYPES[d.dtype], (IN_PLACE,) if in_place(spec.problem) else ())


def transposing(spec: Spec, convention: CallingConvention) -> tuple[ct.kernel, KernelSignature]:
    """Return the kernel that copies either operand: both are aligned alike."""
    kind = spec.problem.a if is_copied(spec.problem.a, spec.config) else spec.problem.b
    source = matrix_constraint(kind, 1, TYPES[kind.dtype])
    copy = matrix_constraint(kind, kind.vector, TYPES[kind.dtype])  # whose lines are padded
    arguments = [source, copy, *TRANSPOSE_TILE, spec.features.overlaps]
    return transpose, KernelSignature(arguments, convention, symbol="transpose")


def of_groups(
    spec: Spec, groups: Groups, product: Sequence[Any], order: TupleConstraint,
    constants: Sequence[int], convention: CallingConvention,
) -> KernelSignature:  # fmt: skip
    """Return the signature of the kernel that multiplies groups."""
    steps = TupleConstraint((NUMBER, NUMBER) if spec.problem.scaled else ())
    along = "mnk".index(groups.along)
    if along != INNER:  # how many tiles there are is in the table
        order = TupleConstraint((NUMBER, NUMBER))
    table = numbers_at(ct.int32) if along != INNER else TupleConstraint(())
    ends = numbers_at(TYPES[groups.dtype], groups.dtype.itemsize)
    return KernelSignature(
        [
            *product, ends, table, steps, NUMBER, NUMBER, order, *constants, along, groups.stacked,
            spec.config.schedule == "persistent", spec.features.overlaps,
        ],
        convention,
        symbol="gemm",
    )  # fmt: skip


def scheduling(spec: Spec, groups: Groups, convention: CallingConvention) -> KernelSignature:
    """Return the signature of the kernel that writes the table of tiles, and zeros."""
    problem, along = spec.problem, "mnk".index(groups.along)
    cleared = [(output_constraint(spec), problem.d)] if groups.rest == "zeros" else []
    for i in cleared_aux(problem):
        assert problem.epilogue is not None
        x = problem.epilogue.aux[i]
        cleared.append((array_constraint(x), x.matrix))
    arrays = TupleConstraint(tuple(constraint for constraint, _ in cleared))
    axes = TupleConstraint(tuple(3 if (x.major == "m") == (along == 0) else 2 for _, x in cleared))
    ends = numbers_at(TYPES[groups.dtype], groups.dtype.itemsize)
    length = spec.config.tile[along]
    arguments = [ends, numbers_at(ct.int32), arrays, NUMBER, NUMBER, length, axes, groups.stacked]
    return KernelSignature([*arguments, spec.features.overlaps], convention, symbol="schedule")


def kernels(spec: Spec) -> dict[str, tuple[ct.kernel, KernelSignature]]:
    """Return the kernels of a specification and their signatures, by the names of their symbols."""
    config, features = spec.config, spec.features
    problem = effective_problem(spec.problem, config)
    is_tf32 = problem.a.dtype is DType.FLOAT32
    inputs = ct.tfloat32 if is_tf32 and features.reads_tf32 else TYPES[problem.a.dtype]
    a, b = (
        matrix_constraint(kind, kind.vector if features.whole_vectors else 1, inputs)
        for kind in (problem.a, problem.b)
    )
    d = output_constraint(spec)
    scales = scales_constraint(spec)
    fused = fused_constraint(spec.problem, b)
    nothing = TupleConstraint(())
    divisors = [ScalarConstraint(ct.int64)] * 5 if features.multiplies else []
    order = TupleConstraint((NUMBER, NUMBER, *divisors))
    work = NUMBER, NUMBER, order
    hints = {
        "num_ctas": config.cluster[0],
        "num_worker_warps": config.warps[0] if config.warps[0] != DEFAULT_WARPS else None,
        "occupancy": config.occupancy or None,
    }
    convention = CallingConvention.cutile_python_v2()
    transposed = problem.a.major == "m", problem.b.major == "k", spec.d_transposed
    rounded = is_tf32 and not features.reads_tf32
    latency = config.stages
    tile = (config.tile[0], columns_of(problem, config.tile[1]), config.tile[2])
    if problem.groups is not None:
        product = (a, b, d, scales, fused)
        constants = (*tile, *transposed, rounded, spec.direct, latency)
        main = of_groups(spec, problem.groups, product, order, constants, convention)
        found = {"gemm": (grouped.replace_hints(**hints), main)}
        if problem.groups.along != "k":
            found["schedule"] = (schedule, scheduling(spec, problem.groups, convention))
        return found
    main = KernelSignature(
        [
            a, b, parts_constraint(spec) if spec.split else d,
            *((nothing, nothing) if spec.split else (scales, fused)), *work, *tile,
            *transposed, spec.split, rounded, spec.direct, latency,
            config.schedule != "plain", features.overlaps,
        ],
        convention,
        symbol="gemm",
    )  # fmt: skip
    found = {"gemm": (gemm.replace_hints(**hints), main)}
    if config.schedule == "tail":
        pieces, (m, n, _) = parts_constraint(spec), config.tile
        gate = "" if problem.epilogue is None else problem.epilogue.gate
        arguments = [a, b, d, pieces, *work, *config.tile, *transposed, rounded, latency]
        arguments += [m // 2 if gate == "m" else m, n // 2 if gate == "n" else n]
        joined = [pieces, d, scales, fused, *work, m, n, PIECE_ROWS, spec.d_transposed]
        for name, kernel, taken in (
            ("tail", tail.replace_hints(**hints), arguments),
            ("join", join, joined),
        ):
            signature = KernelSignature([*taken, features.overlaps], convention, symbol=name)
            found[name] = (kernel, signature)
    if spec.split:
        fused = fused_constraint(spec.problem, b, by_lines=True)
        arguments = [parts_constraint(spec), d, scales, fused, *REDUCE_TILE, features.overlaps]
        found["reduce"] = (reduce, KernelSignature(arguments, convention, symbol="reduce"))
    if config.repacked:
        found["transpose"] = transposing(spec, convention)
    return found
