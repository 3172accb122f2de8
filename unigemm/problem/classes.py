"""The classes of matrices by how they lie in memory: what a kernel may count on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UnsupportedProblem
from .dtypes import DType
from .epilogue import Auxiliary
from .matrix import Major, MatrixType

__all__ = [
    "MAX_ALIGNMENT",
    "OF_SCALES",
    "Layout",
    "classify",
    "classify_aux",
    "classify_rows",
    "stacked",
]

#: The class of the scales of a quantised D, however they lie.
OF_SCALES = Auxiliary(MatrixType(DType.FLOAT32, "strided", 4), "mn")
MAX_ALIGNMENT = 16  # bytes: the widest load, store or cp.async of a thread (PTX ISA, cp.async)


@dataclass(frozen=True)
class Layout:
    """Where the elements of one array lie.

    Attributes
    ----------
    shape
        Extents of each dimension.
    strides
        Elements (not bytes) between neighbours in each dimension; may be zero or negative.
    dtype
        Element type.
    alignment
        Bytes, a power of two up to 16, that divides the address of the first element.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    alignment: int = MAX_ALIGNMENT

    @property
    def layout(self) -> Layout:
        """The layout itself, so that what has a layout may be given as one."""
        return self


def classify(
    layout: Layout,
    shape: tuple[int, int],
    strides: tuple[int, int],
    names: tuple[Major, Major],
    batch_steps: Sequence[int],
) -> tuple[MatrixType, tuple[int, int]]:
    """Choose the majorness that allows the widest access, the column index winning ties."""
    size = layout.dtype.itemsize
    best: tuple[int, MatrixType, tuple[int, int]] | None = None
    for unit in (1,) if names == ("m", "n") else (1, 0):
        other = 1 - unit
        if shape[unit] == 1:
            if shape[other] > 1 and strides[other] == 1:
                continue  # the other index is the contiguous one
        elif strides[unit] != 1:
            continue
        steps = [strides[other], *batch_steps]
        if names == ("m", "n") and strides[other] < 0:
            continue  # so that who stores whole tiles can tell
        # TMA steps forward: 16 promises that no stride is negative and that rows do not repeat.
        widest = MAX_ALIGNMENT if _is_forward(steps, shape[other]) else MAX_ALIGNMENT // 2
        if names == ("m", "n"):
            # TMA stores whole 16-byte units: a row of D must end at the end of one (seen on an
            # H200: zeros in the padding after N).
            steps.append(shape[unit])
        alignment = _alignment(min(layout.alignment, widest), size, steps)
        if best is None or alignment > best[0]:
            pair = (strides[0], 1) if unit == 1 else (1, strides[1])
            best = (alignment, MatrixType(layout.dtype, names[unit], alignment), pair)
    if best is None:
        return MatrixType(layout.dtype, "strided", size), strides
    return best[1], best[2]


def classify_rows(
    layout: Layout,
    shape: tuple[int, int],
    strides: tuple[int, int],
    names: tuple[Major, Major],
    batch_steps: Sequence[int],
) -> tuple[MatrixType, tuple[int, int]]:
    """Return the class of compact rows, which does not depend on how many there are.

    Raises
    ------
    UnsupportedProblem
        A kernel of that class cannot take the matrix.
    """
    size, name = layout.dtype.itemsize, "a" if names == ("m", "k") else "out"
    alignment = _alignment(MAX_ALIGNMENT, size, [shape[1]])
    steps = [strides[0], *batch_steps]
    if (shape[1] > 1 and strides[1] != 1) or not _is_forward(steps, shape[0]):
        raise UnsupportedProblem(
            f"batch_invariant=True takes contiguous rows, one behind the other, and {name} has "
            f"strides {layout.strides} (elements); pass a compact copy"
        )
    if _alignment(layout.alignment, size, steps) < alignment:
        raise UnsupportedProblem(
            f"batch_invariant=True takes rows aligned as compact ones are, to {alignment} bytes, "
            f"and those of {name} are not; pass a compact copy"
        )
    return MatrixType(layout.dtype, names[1], alignment), (strides[0], 1)


def classify_aux(
    layout: Layout, shape: tuple[int, int], strides: tuple[int, int], batch_steps: Sequence[int]
) -> Auxiliary:
    """Return the class of an array that is broadcast to D: which indices it has, and its order.

    Lines that run backwards are as good as strided ones: kernels may count on steps above zero.
    """
    along = "".join(name for name, step in zip("mn", strides, strict=True) if step)
    size, unit = layout.dtype.itemsize, {(0, 1): "n", (1, 0): "m"}.get(strides, "strided")
    if along == "mn":
        unit = "n" if strides[1] == 1 else "m" if strides[0] == 1 else "strided"
        unit = "strided" if min(strides) < 0 else unit
    alignment = size
    if unit != "strided":
        step = strides["nm".index(unit)]  # of the other index
        alignment = _alignment(layout.alignment, size, [step, *batch_steps])
    return Auxiliary(MatrixType(layout.dtype, unit, alignment), along)  # type: ignore[arg-type]


def stacked(shape: tuple[int, int], strides: tuple[int, int]) -> tuple[int, int]:
    """Step over a compact line where there is only one: so do the products of a stack."""
    (rows, columns), (down, along) = shape, strides
    if columns == 1 and (down == 1 or rows == 1):
        along = rows
    if rows == 1 and (strides[1] == 1 or columns == 1):
        down = columns
    return down, along


def _is_forward(steps: Sequence[int], rows: int) -> bool:
    """Whether no step is negative and rows, the first step apart, do not repeat."""
    return min(steps) >= 0 and (steps[0] > 0 or rows == 1)


def _alignment(base: int, itemsize: int, steps: Sequence[int]) -> int:
    alignment = min(base, MAX_ALIGNMENT)
    for step in steps:
        while alignment > itemsize and (step * itemsize) % alignment:
            alignment //= 2
    return max(alignment, itemsize)
