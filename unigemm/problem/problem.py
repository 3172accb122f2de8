"""The class of a matrix product and its sizes, without pointers or arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ..support.forks import cached_property
from .dtypes import EXACT, DType, accumulator, converted_accumulator
from .epilogue import Epilogue, arithmetic
from .groups import Groups
from .matrix import Major, MatrixType
from .scales import Scales

__all__ = [
    "PRECISIONS",
    "BlockScales",
    "Extents",
    "Major",
    "MatrixType",
    "Precision",
    "Problem",
    "ScaleOrder",
]

#: The coarsest arithmetic that a caller accepts for float32 inputs, which a kernel may surpass.
#: "ieee": multiplied as they are. "tf32": cut to TF32, whose significand has 10 explicit bits (a
#: relative error of each below 2**-10). "3xtf32": each split into two TF32 numbers, and three of
#: the four products summed: about float32's accuracy. Accumulators are float32 always.
Precision = Literal["ieee", "tf32", "3xtf32"]
PRECISIONS: tuple[Precision, ...] = ("ieee", "tf32", "3xtf32")
#: How the scales of an operand lie (see `unigemm.problem.block_scales`).
ScaleOrder = Literal["plain", "blocked"]


@dataclass(frozen=True)
class BlockScales:
    """Scales of A and B, one for each block of elements along K of a row.

    These are of the Blackwell formats: the elements are multiplied by them, in the tensor cores.
    `unigemm.problem.scales.Scales` are others, which multiply accumulators.

    Attributes
    ----------
    dtype
        Type of the scales.
    block
        Elements of the array that share one; an element of the array is two numbers of float4.
    a, b
        How the scales of each operand lie.
    """

    dtype: DType
    block: int
    a: ScaleOrder
    b: ScaleOrder

    @property
    def transposed(self) -> BlockScales:
        """The same scales as the product's transpose sees them."""
        return replace(self, a=self.b, b=self.a)

    def __str__(self) -> str:
        order = self.a if self.a == self.b else f"{self.a} and {self.b}"
        # float8_e4m3fn scales float4, of which a byte of the array holds two
        numbers = self.block * (2 if self.dtype is DType.FLOAT8_E4M3FN else 1)
        return f"{self.dtype} for each {numbers} elements of K, {order}"


@dataclass(frozen=True)
class Problem:
    """The class of a product D = A B: all that decides which kernel is needed, but no extents.

    One with `scales` multiplies its accumulators by those of each operand before they are rounded.
    One with `blocks` multiplies elements by the scales of their blocks before they are summed. A
    `batch_invariant` one has one configuration for every M and batch (see
    `unigemm.planning.planner`), and classes of A and D that depend on neither. One with an
    `epilogue` computes D from its accumulators before they are rounded. One with `groups` is many
    products, whose sizes are on the device. One that is `converted` has operands that are converted
    to that type where they are read, which also decides the accumulator's; D is of that type, or of
    one that accumulators are rounded to. Its epilogue is in the accumulator's type where that is
    exact. Where there are `quantized_rows`, D lies in the workspace, and a second pass rounds its
    rows to that type, with a scale each, or one for each 128 neighbours, as `quantized_by` says.

    D is never "m"-major: `unigemm.problem.canonical` states such a product as its transpose, D' =
    B' A'. (A backend may turn a product again, for a kernel of its own: `Config.swap_ab`.)
    """

    a: MatrixType
    b: MatrixType
    d: MatrixType
    precision: Precision = "ieee"
    deterministic: bool = False
    scales: Scales | None = None
    batch_invariant: bool = False
    blocks: BlockScales | None = None
    epilogue: Epilogue | None = None
    groups: Groups | None = None
    converted: DType | None = None
    quantized_rows: DType | None = None
    quantized_by: Literal["row", "1x128"] = "row"

    @property
    def quantized(self) -> str:
        """What of D has a scale by a second pass, in words."""
        return "rows" if self.quantized_by == "row" else "each 128 of rows"

    @property
    def scaled(self) -> bool:
        """Whether accumulators are multiplied by scales."""
        return self.scales is not None

    @property
    def has_block_scales(self) -> bool:
        """Whether a launch takes arrays of scales, of blocks of one kind or the other."""
        return self.blocks is not None or (self.scales is not None and self.scales.of_blocks)

    @property
    def accumulator(self) -> DType:
        """The type of the accumulators, and of partial sums."""
        if self.converted is not None:
            return converted_accumulator(self.converted)
        return accumulator(self.a.dtype)

    @property
    def arithmetic(self) -> DType:
        """The type that the steps of an epilogue compute in; integers wrap around."""
        if self.converted in EXACT:
            return self.accumulator
        return arithmetic(self.accumulator, self.d.dtype)

    def __hash__(self) -> int:
        return self._hash

    @cached_property  # many tables have the class in their keys
    def _hash(self) -> int:
        return hash(tuple(self.__getstate__().values()))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: dtypes hash to something else in another process."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property  # shared by all products of a class
    def transposed(self) -> Problem:
        """Return the class of D' = B' A'."""
        return replace(
            self,
            a=self.b.transposed,
            b=self.a.transposed,
            d=self.d.transposed,
            scales=self.scales and self.scales.transposed,
            blocks=self.blocks and self.blocks.transposed,
            epilogue=self.epilogue and self.epilogue.transposed,
            groups=self.groups and self.groups.transposed,
        )

    @property
    def layout(self) -> str:
        """BLAS letters for a row-major D: "nn", "nt", "tn", "tt" ("s" where strided)."""
        first = {"k": "n", "m": "t"}.get(self.a.major, "s")
        second = {"n": "n", "k": "t"}.get(self.b.major, "s")
        return first + second

    @property
    def features(self) -> str:
        """What there is to the product beyond two matrices, in words; "" for nothing."""
        parts = (
            (self.scales, f"{self.scales}"),
            (self.blocks, f"scales {self.blocks}"),
            (self.batch_invariant, "batch-invariant"),
            (self.epilogue, f"{self.epilogue}"),
            (self.groups, f"{self.groups}"),
            (self.converted, f"read as {self.converted}"),
            (self.quantized_rows, f"then {self.quantized} quantised to {self.quantized_rows}"),
        )
        return ", ".join(words for there, words in parts if there)

    def __str__(self) -> str:
        more = f", {self.features}" if self.features else ""
        return (
            f"A {self.a} x B {self.b} -> D {self.d} "
            f"({self.precision}, accumulated in {self.accumulator}{more})"
        )


@dataclass(frozen=True)
class Extents:
    """The sizes of a product: D (L, M, N) = A (L, M, K) B (L, K, N), L = `batch`.

    K counts elements of the arrays: two of float4 that share a byte are one, and so are their
    multiply-adds in `flops`.

    Of a product with `Problem.groups`, the extent that these divide is the total of all `groups`,
    and the array that has no such extent is a stack of `groups` matrices. Stacks with valid rows
    are a `batch`, each matrix of which is one group.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    groups: int = 1

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two: 2 L M N K."""
        return 2 * self.batch * self.m * self.n * self.k

    def bytes_moved(self, problem: Problem) -> int:
        """Least traffic with device memory: all that is read once, and all that is written once."""
        m, n, k = self.m, self.n, self.k
        a, b = m * k * problem.a.dtype.itemsize, k * n * problem.b.dtype.itemsize
        d = m * n * problem.d.dtype.itemsize
        if problem.blocks:
            each = -(-k // problem.blocks.block) * problem.blocks.dtype.itemsize
            a, b = a + m * each, b + n * each
        if problem.scales:
            a, b = a + problem.scales.a.bytes(m, k), b + problem.scales.b.bytes(n, k)
        if problem.epilogue is not None:
            d = d // (2 if problem.epilogue.gate else 1) + sum(problem.epilogue.bytes_moved(m, n))
        if problem.groups is None:
            return self.batch * (a + b + d)
        stack = {"n": a, "m": b, "k": d}[problem.groups.along]
        ends = self.groups * problem.groups.dtype.itemsize
        return self.batch * (a + b + d + (self.groups - 1) * stack + ends)

    @property
    def transposed(self) -> Extents:
        """The sizes of D' = B' A'."""
        # much faster than `replace`
        return Extents(self.n, self.m, self.k, self.batch, self.groups)

    def of_rows(self, m: int) -> Extents:
        """Return the sizes of a product with another M."""
        return Extents(m, self.n, self.k, self.batch, self.groups)

    def __str__(self) -> str:
        size = f"{self.m}x{self.n}x{self.k}"
        size = size if self.batch == 1 else f"{self.batch}x{size}"
        return size if self.groups == 1 else f"{size} in {self.groups} groups"
