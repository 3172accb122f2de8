"""Products with groups, launched by their plans: what the tests of several backends draw from.

Elements are small integers: products are exact, and results are compared bit for bit. Where there
is no group lie NaN, and in D everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import call_path
import numpy as np

from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.registry import backend_named
from unigemm.planning.select import plan_gemm
from unigemm.planning.target import Target
from unigemm.problem.canonical import Gemm
from unigemm.problem.dtypes import DType, numpy_dtype, output_dtypes
from unigemm.problem.epilogue import Auxiliary, Epilogue, Step
from unigemm.problem.groups import Groups
from unigemm.problem.matrix import MatrixType
from unigemm.problem.problem import Extents, Precision, Problem
from unigemm.problem.scales import PER_TENSOR

__all__ = [
    "Arrays", "GroupedCase", "check", "ends_of", "launched", "plan_for", "wanted", "with_config",
]  # fmt: skip

#: Sums, an array, their sum, its larger of 0.
BIASED = (Step("sums"), Step("array", (0,)), Step("add", (0, 1)), Step("constant", (), "0x0.0p+0"),
          Step("max", (2, 3)))  # fmt: skip


@dataclass(frozen=True)
class GroupedCase:
    """A product with groups.

    Attributes
    ----------
    along
        What the groups divide; "rows" and "columns" are stacks with valid ones in each.
    sizes
        Of the groups.
    total
        The extent that they divide, or of each of a stack.
    others
        The other two extents, in the order of M, N, K.
    layout
        As BLAS writes it.
    pad
        Elements between lines of A, B and D.
    values
        "integers", or "nan" for NaN in all operands of the second group.
    epilogue
        "bias" for one of each group, and a relu; "stored" with the accumulators stored, too.
    scaled
        "", "tensor" or "groups".
    """

    along: str
    sizes: tuple[int, ...]
    total: int
    others: tuple[int, int]
    dtype: DType = DType.BFLOAT16
    layout: str = "nt"
    precision: Precision = "ieee"
    out: DType | None = None
    pad: int = 0
    offsets: DType = DType.INT32
    rest: str = "zeros"
    values: str = "integers"
    epilogue: str = ""
    scaled: str = ""
    seed: int = 0

    def __str__(self) -> str:
        extents = "x".join(map(str, self.extents))
        more = [x for x in (self.epilogue, self.scaled, self.values, self.rest) if x]
        own = [f"along_{self.along}", extents, f"{len(self.sizes)}_groups", str(self.dtype)]
        return "-".join([*own, self.layout, *more, f"pad_{self.pad}", str(self.offsets)])

    @property
    def groups(self) -> Groups:
        along: Any = {"rows": "m", "columns": "n"}.get(self.along, self.along)
        rest: Any = self.rest if along != "k" else "zeros"
        return Groups(along, self.offsets, self.along in ("rows", "columns"), rest)

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N and K, the divided one in all."""
        first, second = self.others
        return {
            "m": (self.total, first, second),
            "n": (first, self.total, second),
            "k": (first, second, self.total),
        }[self.groups.along]


def ends_of(case: GroupedCase, sizes: Sequence[int] | None = None) -> np.ndarray:
    """Return the offsets, or the valid rows."""
    sizes = case.sizes if sizes is None else sizes
    values = sizes if case.groups.stacked else np.cumsum(sizes)
    return np.array(values, numpy_dtype(case.offsets))


class Arrays:
    """The operands of a case, and its canonical form."""

    def __init__(self, case: GroupedCase) -> None:
        self.case, groups = case, case.groups
        rng = np.random.default_rng(case.seed)
        m, n, k = case.extents
        count = len(case.sizes)
        kind = numpy_dtype(case.dtype)
        self.out = case.out or output_dtypes(case.dtype)[0]
        unit = 16 // case.dtype.itemsize if case.pad == 0 else 1
        stacks = {
            name: groups.stacked or groups.along == free
            for name, free in (("a", "n"), ("b", "m"), ("d", "k"))
        }
        ta, tb = (x == "t" for x in case.layout)
        self.a = self._laid(rng, count * stacks["a"], m, k, ta, kind, unit)
        self.b = self._laid(rng, count * stacks["b"], k, n, tb, kind, unit)
        self.d = self._laid(
            None, count * stacks["d"], m, n, False, numpy_dtype(self.out), 16 // self.out.itemsize
        )
        self.ends = ends_of(case)
        self._poison()
        self.bias = rng.integers(-3, 4, (count, n)).astype(numpy_dtype(self.out))
        self.stored = np.full((m, n), np.nan, np.float32)
        self.scales = [2.0 ** rng.integers(-2, 3, count).astype(np.float32) for _ in "ab"]

    def _laid(self, rng, stack, rows, columns, turned, kind, unit) -> np.ndarray:
        lines, along = (columns, rows) if turned else (rows, columns)
        pitch = along + self.case.pad
        pitch = -(-pitch // unit) * unit
        shape = (stack or 1, lines, pitch)
        floats = kind.kind not in "iu"
        memory = np.full(shape, np.nan if floats else 77, np.float32 if floats else kind)
        if rng is not None:
            memory[..., :along] = rng.integers(-3, 4, (*shape[:2], along))
        memory = memory.astype(kind)
        view = memory[..., :along]
        view = view.swapaxes(-1, -2) if turned else view
        return view if stack else view[0]

    def _poison(self) -> None:
        """Put NaN behind the last group, and for `values` into the second."""
        case, groups = self.case, self.case.groups
        if self.a.dtype.kind in "iu":
            return
        end = int(self.ends[-1]) if not groups.stacked and len(self.ends) else 0
        if groups.along == "m" and not groups.stacked:
            self.a[end:] = np.nan
        elif groups.along == "n" and not groups.stacked:
            self.b[:, end:] = np.nan
        elif groups.along == "k":
            self.a[:, end:], self.b[end:] = np.nan, np.nan
        for g, size in enumerate(case.sizes):
            if groups.stacked:
                if groups.along == "m":
                    self.a[g, size:] = np.nan
                else:
                    self.b[g, :, size:] = np.nan
            if case.values == "nan" and g == 1:
                for x in operands(case, self, g):
                    x[...] = np.nan

    def gemm(self) -> Gemm:
        """Return the canonical form."""
        case, groups = self.case, self.case.groups
        m, n, k = case.extents
        count = len(case.sizes)
        epilogue, aux = None, ()
        if case.epilogue:
            kind = numpy_dtype(self.out).itemsize
            arrays = (Auxiliary(MatrixType(self.out, "n", kind), "n"),)
            epilogue, aux = Epilogue(BIASED, 4, arrays), ((0, 1, n, 0),)
        if case.epilogue == "stored":
            stored = (Auxiliary(MatrixType(DType.FLOAT32, "n", 4), "mn"),)
            epilogue = replace(epilogue, stores=(0,), stored=stored)
            aux = (*aux, (n, 1, 0, 0))
        problem = Problem(
            kind_of(self.a, case.dtype, "m", "k"),
            kind_of(self.b, case.dtype, "k", "n"),
            kind_of(self.d, self.out, "m", "n"),
            case.precision,
            scales=PER_TENSOR if case.scaled else None,
            epilogue=epilogue,
            groups=groups,
        )
        extents = Extents(m, n, k, count) if groups.stacked else Extents(m, n, k, 1, count)
        return Gemm(
            problem, extents, False, (count, 1), *map(steps_of, (self.a, self.b, self.d)),
            aux_strides=aux,
        )  # fmt: skip

    @property
    def more(self) -> tuple[np.ndarray, ...]:
        """The auxiliary arrays."""
        case = self.case
        found = [*self.scales] if case.scaled else []
        found += [self.bias] if case.epilogue else []
        found += [self.stored] if case.epilogue == "stored" else []
        return (*found, self.ends)

    def arguments(self) -> list:
        """Return what a launch takes behind the stream."""
        case = self.case
        found: list = [x.ctypes.data for x in self.scales] + [1.0] if case.scaled else []
        found += [self.bias.ctypes.data] if case.epilogue else []
        found += [self.stored.ctypes.data] if case.epilogue == "stored" else []
        found += [int(case.scaled == "groups")] * 2 if case.scaled else []
        return [*found, self.ends.ctypes.data]


def kind_of(x: np.ndarray, dtype: DType, first: Any, second: Any) -> MatrixType:
    """Return the class of an array."""
    rows, columns = x.strides[-2:]
    major = second if columns == x.itemsize else first
    apart = [s for s in (*x.strides[:-2], rows, columns) if s != x.itemsize]
    if first == "m" and second == "n":
        apart.append(x.shape[-1] * x.itemsize)
    wide = next(w for w in (16, 8, 4, 2, 1) if all(p % w == 0 for p in (*apart, x.ctypes.data)))
    return MatrixType(dtype, major, max(wide, x.itemsize))


def steps_of(x: np.ndarray) -> tuple[int, int, int, int]:
    """Return the steps of an array in elements: row, column, group."""
    stack = x.strides[0] // x.itemsize if x.ndim == 3 else 0
    return x.strides[-2] // x.itemsize, x.strides[-1] // x.itemsize, stack, 0


def spans(case: GroupedCase, ends: Sequence[int]) -> list[slice]:
    """Return where groups are, whatever the offsets."""
    found, last = [], 0
    for end in ends:
        end = min(max(int(end), 0), case.total)
        if case.groups.stacked:
            found.append(slice(0, end))
            continue
        found.append(slice(last, max(end, last)))
        # Groups of K may overlap: they are only read.
        last = end if case.along == "k" else max(end, last)
    return found


def operands(case: GroupedCase, x: Arrays, g: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a group's A and B."""
    own = spans(case, x.ends)[g]
    if case.groups.stacked:
        if case.groups.along == "m":
            return x.a[g, own], x.b[g]
        return x.a[g], x.b[g, :, own]
    return {
        "m": lambda: (x.a[own], x.b[g]),
        "n": lambda: (x.a[g], x.b[:, own]),
        "k": lambda: (x.a[:, own], x.b[own]),
    }[case.groups.along]()


def wanted(case: GroupedCase, x: Arrays, before: np.ndarray) -> np.ndarray:
    """Return D in float64, rounded; `before` is what it was."""
    d = np.zeros(x.d.shape) if case.rest == "zeros" or case.along == "k" else before.astype("f8")
    for g, own in enumerate(spans(case, x.ends)):
        a, b = (y.astype("f8") for y in operands(case, x, g))
        acc = a @ b
        if case.scaled:
            acc *= np.prod([s[g if case.scaled == "groups" else 0] for s in x.scales])
        if case.epilogue:
            row = x.bias[g].astype("f8")
            own_n = own if case.groups.along == "n" else slice(None)
            acc = acc + row[own_n]
            acc = np.where(np.isnan(acc), acc, np.maximum(acc, 0))
        at = {
            "m": (own,), "n": (slice(None), own), "k": (g,)
        }[case.groups.along]  # fmt: skip
        d[(g, *at) if case.groups.stacked else at] = acc
    return d.astype(np.float32).astype(x.d.dtype) if x.out is not DType.FLOAT64 else d


def plan_for(case: GroupedCase, x: Arrays, target: Target, backend: str) -> Plan:
    """Return a case's plan."""
    return plan_gemm(x.gemm(), target, backend, usable=False)


def with_config(plan: Plan, config: Config) -> Plan:
    """Return a plan with another configuration."""
    backend = backend_named(plan.backend)
    size = backend.workspace_bytes(plan.problem, plan.extents, plan.target, config)
    return replace(plan, config=config, workspace_bytes=size)


def launched(case: GroupedCase, gpu: Any, backend: str, plan: Plan | None = None) -> Arrays:
    """Launch a case on an emulated device and hold D against the reference."""

    x = Arrays(case)
    plan = plan or plan_for(case, x, gpu.target, backend)
    workspace = np.zeros(max(1, plan.workspace_bytes), np.uint8)
    for y in (x.a, x.b, *x.more):
        gpu.see(y)
    for y in (x.d, workspace, x.stored):
        gpu.see(y, write=True)
    launch = call_path.launcher(plan, x.gemm(), gpu.index)
    check(case, x, launch, workspace)
    x.launch, x.workspace = launch, workspace
    return x


def check(case: GroupedCase, x: Arrays, launch: Any, workspace: np.ndarray) -> None:
    """Launch, and compare."""
    before = x.d.copy()
    a, b, d = (y.ctypes.data for y in (x.a, x.b, x.d))
    launch(a, b, d, workspace.ctypes.data, 0, *x.arguments())
    np.testing.assert_array_equal(
        x.d.astype(np.float32), wanted(case, x, before).astype(np.float32)
    )
