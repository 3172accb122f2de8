"""What is compiled in, and the kernels of a specification with their signatures."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
from dataclasses import dataclass

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
from .epilogue_signature import IN_PLACE, array_constraint, epilogue_constraint, numbers_at
from .gemm import gemm, tail
from .grouped import INNER, grouped, schedule
from .records import GroupRanges, Options, Order, Scales, Tile, packed
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
    return TupleConstraint(packed(Scales(scale, scale, ScalarConstraint(ct.float64))))


def parts_constraint(spec: Spec) -> ArrayConstraint:
    """Return what is promised of the workspace: lines are padded to 16 bytes."""
    dtype = spec.problem.accumulator
    kind = MatrixType(dtype, "n", ALIGNMENT)
    return matrix_constraint(kind, kind.vector, TYPES[dtype])


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


def ranges_of(spec: Spec, groups: Groups) -> GroupRanges:
    """Return what is promised of the groups' ends and of their table."""
    along = "mnk".index(groups.along)
    return GroupRanges(
        ends=numbers_at(TYPES[groups.dtype], groups.dtype.itemsize),
        table=numbers_at(ct.int32) if along != INNER else (),
        scale_steps=(NUMBER, NUMBER) if spec.problem.scaled else (),
        total=NUMBER,
        along=along,
        stacked=groups.stacked,
    )


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
    epilogue = epilogue_constraint(spec.problem, b)
    nothing = TupleConstraint(())
    groups = problem.groups
    order = Order(NUMBER, NUMBER)
    # How many tiles groups of rows or columns have is in their table.
    if features.multiplies and (groups is None or groups.along == "k"):
        order = Order(NUMBER, NUMBER, *[ScalarConstraint(ct.int64)] * 5)
    work = NUMBER, NUMBER, packed(order)
    hints = {
        "num_ctas": config.cluster[0],
        "num_worker_warps": config.warps[0] if config.warps[0] != DEFAULT_WARPS else None,
        "occupancy": config.occupancy or None,
    }
    convention = CallingConvention.cutile_python_v2()
    options = Options(
        a_transposed=problem.a.major == "m",
        b_transposed=problem.b.major == "k",
        d_transposed=spec.d_transposed,
        rounded=is_tf32 and not features.reads_tf32,
        direct=spec.direct,
        latency=config.stages,
        persistent=config.schedule != "plain",
        overlap=features.overlaps,
        split=spec.split,
    )
    m, n, k = config.tile
    compiled = packed(Tile(m, columns_of(problem, n), k)), packed(options)
    if groups is not None:
        ranges = packed(ranges_of(spec, groups))
        arguments = [a, b, d, scales, epilogue, ranges, *work[1:], *compiled]
        main = KernelSignature(arguments, convention, symbol="gemm")
        found = {"gemm": (grouped.replace_hints(**hints), main)}
        if groups.along != "k":
            found["schedule"] = (schedule, scheduling(spec, groups, convention))
        return found
    output = (parts_constraint(spec), nothing, nothing) if spec.split else (d, scales, epilogue)
    main = KernelSignature([a, b, *output, *work, *compiled], convention, symbol="gemm")
    found = {"gemm": (gemm.replace_hints(**hints), main)}
    if config.schedule == "tail":
        pieces = parts_constraint(spec)
        gate = "" if problem.epilogue is None else problem.epilogue.gate
        of_d = m // 2 if gate == "m" else m, n // 2 if gate == "n" else n
        arguments = [a, b, d, pieces, *work, packed(Tile(m, n, k)), *of_d, packed(options)]
        joined = [pieces, d, scales, epilogue, *work, m, n, PIECE_ROWS, spec.d_transposed]
        for name, kernel, taken in (
            ("tail", tail.replace_hints(**hints), arguments),
            ("join", join, [*joined, features.overlaps]),
        ):
            found[name] = (kernel, KernelSignature(taken, convention, symbol=name))
    if spec.split:
        epilogue = epilogue_constraint(spec.problem, b, by_lines=True)
        arguments = [parts_constraint(spec), d, scales, epilogue, *REDUCE_TILE, features.overlaps]
        found["reduce"] = (reduce, KernelSignature(arguments, convention, symbol="reduce"))
    if config.repacked:
        found["transpose"] = transposing(spec, convention)
    return found
