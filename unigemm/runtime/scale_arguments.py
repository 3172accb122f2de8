"""The arguments ``scale_a`` and ``scale_b``: scales of whole operands, of lines, and of blocks.

A scale of a whole operand is a number or an array of one float32. Scales of lines, the rows of `a`
or the columns of `b`, are an array of float32 whose other extent is 1. Scales of 128 elements of K,
and of one line or 128, are an array of the shapes of `unigemm.problem.scales`. Those of 32 or 16
elements are of other types (see `unigemm.problem.block_scales`), and a pair holds such and a scale
of the whole operand.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..arrays.operands import Operand
from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.block_scales import BLOCKS, refuse_elements
from ..problem.canonical import Layout
from ..problem.dtypes import FLOAT8, DType, scaled_default
from ..problem.grouped import Form
from ..problem.scales import Granularity, OperandScales
from ..problem.scales import Scales as Granularities
from ..support.arguments import number

_BLOCK = 128  # elements along K that share a scale, and lines that may

__all__ = ["NO_SCALES", "Scales", "scales_of"]


@dataclass(frozen=True)
class Scales:
    """The scales of a call, by the operands' arguments.

    Attributes
    ----------
    whole
        Scales of whole operands: numbers, or the names of arrays.
    blocks
        The names of arrays of block scales, and their layouts: of both operands, or of none.
    granularity
        What shares a block scale that accumulators are multiplied by; None where elements are.
    factors
        The names of scales that are numbers.
    grouped
        The operands that have a scale for each group.
    in_epilogue
        The names of scales that the epilogue multiplies accumulators by, which are in no other
        field: of lines, and all those of integers.
    result
        The type of the result where none is requested; None for that of a product without scales.
    """

    whole: dict[str, float | str]
    blocks: dict[str, tuple[str, Layout]]
    factors: tuple[str, ...]
    grouped: tuple[str, ...] = ()
    in_epilogue: tuple[str, ...] = ()
    result: DType | None = None
    granularity: Granularities | None = None

    @property
    def scaled(self) -> bool:
        """Whether a whole operand has a scale."""
        return bool(self.whole)

    @property
    def taken(self) -> int:
        """How many scales a launch takes: addresses, and the factor behind them."""
        return len(self.brought) + bool(self.brought)

    @property
    def steps(self) -> tuple[int, int]:
        """How many numbers a group's scale of A, and of B, is behind the one before."""
        first, second = (int(name in self.grouped) for name in ("scale_a", "scale_b"))
        return first, second

    @property
    def layouts(self) -> tuple[Layout, Layout] | None:
        """The layouts of the block scales of A and B; None without any."""
        if not self.blocks:
            return None
        (_, a), (_, b) = self.blocks.values()
        return a, b

    @property
    def brought(self) -> tuple[str, ...]:
        """The arrays whose addresses a launcher takes, in its order; "" where it takes 0.

        They are those of block scales, if there are any, and then those of scales of whole
        operands. The product of the scales that are numbers follows them.
        """
        if not (self.whole or self.blocks):
            return ()
        whole = (self.whole.get(name) for name in ("scale_a", "scale_b"))
        found = (name if isinstance(name, str) else "" for name in whole)
        return (*(name for name, _ in self.blocks.values()), *found)


def scales_of(
    given: Mapping[str, Any],
    see: Callable[[Any, str], Operand | Layout],
    operand: Callable[[str], Operand | Layout],
    form: Form | None = None,
) -> Scales:
    """Sort scales into those of whole operands, those of lines, and block scales.

    Parameters
    ----------
    given
        From `Request.scales`.
    see
        Views an array; its second argument is the name.
    operand
        Returns `a` or `b`, by its name.
    form
        Of a grouped product, each of whose groups may have a scale.

    Raises
    ------
    ShapeMismatch
        Scales of float32 are neither one nor those of lines.
    UnsupportedProblem
        A scale cannot be read, or only one operand has block scales; or lines of operands have
        scales that are neither float8 nor int8.
    UnsupportedDtype
        An array is neither of float32 nor block scales.
    """
    if not given:
        return NO_SCALES
    kind = operand("a").dtype
    of_integers = kind is DType.INT8
    seen = {
        own: see(scale, own)
        for own, scale in given.items()
        if scale is not None and not isinstance(scale, numbers.Number)
    }
    in_epilogue = []
    shared = _of_blocks(seen, operand, form)
    whole: dict[str, float | str] = {}
    blocks: dict[str, tuple[str, Layout]] = {}
    factors = []
    of_groups = []
    for own, scale in given.items():
        name = own.partition("[")[0]
        if isinstance(scale, numbers.Number) and of_integers:
            in_epilogue.append(own)
        elif isinstance(scale, numbers.Number):
            whole[name] = number(scale, name)
            factors.append(own)
        elif scale is not None:
            x = seen[own]
            if own in shared or x.dtype in BLOCKS:
                blocks[name] = own, x.layout
            elif _is_for_each(x, form) and not (of_integers and x.shape == (1,)):
                if of_integers:
                    raise UnsupportedProblem(
                        f"{name} has one scale for each group, and the groups are of int8; pass it "
                        "in three dimensions, those of the matrices 1: scale[:, None, None]"
                    )
                whole[name] = own
                of_groups.append(name)
            elif x.dtype is DType.FLOAT32:
                of_one = all(extent == 1 for extent in x.shape)
                if not of_one:
                    _check_lines(name, x.shape, operand(name[-1]))
                if of_one and not of_integers:
                    whole[name] = own
                else:
                    in_epilogue.append(own)
            else:
                raise UnsupportedDtype(
                    f"{name} is {x.dtype} of shape {x.shape}; pass a number, float32 (one, or one "
                    "for each line or 128 elements of K), or scales of blocks as float8_e8m0fnu or "
                    "float8_e4m3fn"
                )
        if own.endswith("[1]") and not (name in whole and name in blocks):
            raise UnsupportedProblem(
                f"{name} is a pair, and not of scales of blocks and one of the whole; pass such two"
            )
    shapes = {name: seen[name].shape if name in seen else () for name in given}
    _refuse_one_of_blocks(shared, shapes)
    _check_together(whole, blocks, in_epilogue, shared, kind, form)
    granularity = None
    if shared:
        a, b = (OperandScales(shared[n], blocks[n][1].dtype) for n in ("scale_a", "scale_b"))
        granularity = Granularities(a, b)
    return Scales(
        whole, blocks, tuple(factors), tuple(of_groups), tuple(in_epilogue), scaled_default(kind),
        granularity,
    )  # fmt: skip


def _check_together(
    whole: Mapping[str, Any],
    blocks: Mapping[str, tuple[str, Layout]],
    in_epilogue: Sequence[str],
    shared: Mapping[str, Granularity],
    kind: DType,
    form: Form | None,
) -> None:
    """Refuse scales that do not go together, or not with the operands.

    Raises
    ------
    UnsupportedProblem
        They do not.
    """
    if blocks and (len(blocks) < 2 or len({x.dtype for _, x in blocks.values()}) > 1):
        said = ", ".join(f"{name} is {x.dtype}" for name, (_, x) in blocks.items())
        raise UnsupportedProblem(
            f"{said}: scales of blocks of K are of one type for both operands; pass such scales "
            "for both"
        )
    if blocks and in_epilogue:
        raise UnsupportedProblem(
            f"{in_epilogue[0]} comes with scales of blocks; pass such scales, or pairs of them and "
            "a number, for both operands"
        )
    if in_epilogue and kind is not DType.INT8 and kind not in FLOAT8:
        raise UnsupportedProblem(
            f"scale_a and scale_b are for float8 and int8 inputs and these are {kind}; multiply "
            "the result, or an input"
        )
    if shared and kind not in FLOAT8:
        raise UnsupportedProblem(
            f"scales of 128 elements of K are for float8 inputs and not for {kind} inputs; "
            "multiply them by their scales first"
        )
    if shared and form is not None:
        _refuse_divided(form.along, shared)


def _refuse_one_of_blocks(
    shared: Mapping[str, Granularity], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse scales of 128 elements of K with others, or none; `shapes` are all that are given.

    Raises
    ------
    UnsupportedProblem
        One operand alone has such.
    """
    if not shared or len(shared) == len(shapes) == 2:
        return
    (own,) = shared
    others = [f"{name} has shape {shape}" for name, shape in shapes.items() if name != own]
    other = " and ".join(others) or "the other operand has no scales"
    raise UnsupportedProblem(
        f"{own}, of shape {shapes[own]}, has a scale for each 128 elements of K, and {other}; pass "
        "such scales for both operands, or those of rows (M, 1) and columns (1, N) for both"
    )


def _refuse_divided(along: str, shared: Mapping[str, Granularity]) -> None:
    """Refuse scales of blocks that the groups of a product divide.

    Raises
    ------
    UnsupportedProblem
        They do.
    """
    name, lines = {"m": ("scale_a", "rows of a"), "n": ("scale_b", "columns of b")}.get(
        along, ("", "")
    )
    if shared.get(name) == "128x128":
        raise UnsupportedProblem(
            f"{name} has scales of 128 {lines}, which could be counted from the first of all or "
            f"from the first of each group; pass one scale for each of the {lines}"
        )


def _of_blocks(
    seen: Mapping[str, Operand | Layout],
    operand: Callable[[str], Operand | Layout],
    form: Form | None,
) -> dict[str, Granularity]:
    """Return what shares a scale of 128 elements of K, by the arguments that hold such scales.

    Of no more than 128 elements of K, scales of lines and of whole operands are such, too; they are
    taken for these only with those of 128 lines.
    """
    found: dict[str, Granularity] = {}
    is_needed = False
    for name, x in seen.items():
        if name not in ("scale_a", "scale_b"):  # a pair
            continue
        shape = operand(name[-1]).shape
        granularity = _granularity(name, x, shape, form)
        if granularity is not None:
            found[name] = granularity
            k = shape[-1 if name == "scale_a" else -2]
            many = granularity == "128x128" and x.shape[-2:] != (1, 1)
            # Those of lines, of which there is one each, have no shape without elements.
            is_needed |= k > _BLOCK or k == 0 or many or x.dtype is not DType.FLOAT32
    return found if is_needed else {}


def _granularity(
    name: str, x: Operand | Layout, operand: tuple[int, ...], form: Form | None
) -> Granularity | None:
    """Return what shares a scale of 128 elements of K, if an array has a shape for such."""
    if min(len(operand), len(x.shape)) < 2 or len(x.shape) > len(operand):
        return None
    rows, k = operand[-2:] if name == "scale_a" else operand[:-3:-1]
    of_rows, of_k = x.shape[-2:] if name == "scale_a" else x.shape[:-3:-1]
    stack = operand[len(operand) - len(x.shape) : -2]
    if any(mine not in (1, yours) for mine, yours in zip(x.shape[:-2], stack, strict=True)):
        return None
    # Else of 32 elements, which groups do not have.
    is_exponent = x.dtype is DType.FLOAT8_E8M0FNU and (k > BLOCKS[x.dtype] or form is not None)
    if not (x.dtype is DType.FLOAT32 or is_exponent) or of_k != -(-k // _BLOCK):
        return None
    if of_rows == rows:
        return "1x128"
    return "128x128" if of_rows == -(-rows // _BLOCK) else None


def _is_for_each(x: Operand | Layout, form: Form | None) -> bool:
    """Whether an array has a scale for each group of a grouped product."""
    if form is None or x.dtype is not DType.FLOAT32 or x.shape != (form.count,):
        return False
    if form.groups is None:
        raise UnsupportedProblem(
            "scales for each matrix of two whole stacks are not taken; pass rows= too, the number "
            "of rows of each, or multiply the result"
        )
    return form.count < 2 or x.strides == (1,)


NO_SCALES = Scales({}, {}, ())


def _check_lines(name: str, shape: tuple[int, ...], operand: Operand | Layout) -> None:
    """Refuse the shape of an array that cannot hold a scale for each line.

    Raises
    ------
    ShapeMismatch
        It is none of (..., M, 1) for `a`, (..., 1, N) for `b`.
    UnsupportedDtype
        The operand's elements take scales of blocks only.
    """
    along = {"scale_a": -1, "scale_b": -2}[name]
    if len(shape) < 2 or shape[along] != 1:
        refuse_elements(operand.dtype, None)
        lines, form = ("row of a", "(M, 1)") if along == -1 else ("column of b", "(1, N)")
        raise ShapeMismatch(
            f"{name} has shape {shape}; pass one float32, or one for each {lines} in shape {form}, "
            f"with stacks in front{_blocks_of(name, operand)}"
        )


def _blocks_of(name: str, operand: Operand | Layout) -> str:
    """Say which scales of blocks an operand may have, behind a semicolon; "" for none."""
    if len(operand.shape) < 2 or operand.dtype not in FLOAT8:
        return ""
    rows, k = operand.shape[-2:] if name == "scale_a" else operand.shape[:-3:-1]

    def shape(of_rows: int, of_k: int) -> tuple[int, int]:
        rows_and_blocks = -(-rows // of_rows), -(-k // of_k)
        return rows_and_blocks if name == "scale_a" else rows_and_blocks[::-1]

    return (
        f"; or scales of blocks, float32 for each {_BLOCK} elements of K in shape "
        f"{shape(1, _BLOCK)} or {shape(_BLOCK, _BLOCK)}, float8_e8m0fnu also for each 32 in shape "
        f"{shape(1, 32)}"
    )
