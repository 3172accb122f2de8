"""One product on the host: straight to BLAS where its operands allow it, else block by block.

NumPy hands a matrix to BLAS only if one stride is one element and the other steps over a whole
line; 16-bit and 8-bit types it never does. What it does not hand over it multiplies in plain loops,
many times slower. Such operands are copied here into blocks that BLAS takes, in the type of the
accumulators. The blocks bound the memory, whatever the extents:

    for each chunk of the batch, block of M, block of N:
        acc = sum over blocks of K of  stage(A block) @ stage(B block)
        D block = acc                                    (the only rounding to D's type)

Operands with block scales are multiplied by them as they are staged. That is done in float64,
because the product of two scales may be a float32 where one of them is not. Pairs of float4 are
unpacked before.

BLAS multiplies no integers, and NumPy's own loops are far slower. So blocks of int8 are multiplied
in float32, with a K so short that adding is exact, and added up in int32. Other integers, of
products that have an epilogue, are left to those loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from unigemm.arrays.numpy_arrays import viewer
from unigemm.planning.backend import Launcher
from unigemm.problem.block_scales import blocked_count, blocks_of, row_and_block_offsets
from unigemm.problem.canonical import Gemm
from unigemm.problem.dtypes import EXACT, DType, numpy_dtype
from unigemm.problem.epilogue import BLOCK, Epilogue, Gate

from ..common.factors import LARGE, SMALL
from .epilogue import bind_epilogue
from .one_block import is_one_block, one_block

if TYPE_CHECKING:
    import numpy as np

__all__ = ["bind_product"]

# Multiply-adds of one matrix below which NumPy's plain loops end before a copy would be made.
_TINY = 4096
# Elements of the blocks of A, B and D together. With the partial sums of several blocks of K they
# take at most 16 MB in float32 and 32 MB in float64.
_BUDGET = 3 << 20
# Elements below which an epilogue's product is not cut.
_FEW = 1 << 16
# Products of int8 have sizes up to 2**14; float32 adds up 1024 of them exactly, to 2**24.
_EXACT_K = 1024

_Block = tuple[slice, slice, slice, slice]  # L1, L0, rows, columns


@dataclass(frozen=True)
class _Matrix:
    """A stack of matrices: (L1, L0, rows, columns), and whether BLAS takes each as it is."""

    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    dtype: DType

    @property
    def ready(self) -> bool:
        (_, _, rows, columns), (_, _, down, along) = self.shape, self.strides
        row_major = (along == 1 or columns == 1) and (down >= columns or rows == 1)
        column_major = (down == 1 or rows == 1) and (along >= rows or columns == 1)
        return row_major or column_major

    @property
    def column_major(self) -> bool:
        """Whether memory runs down the columns first."""
        (_, _, rows, columns), (_, _, down, along) = self.shape, self.strides
        return rows > 1 and columns > 1 and abs(down) < abs(along)

    def shared(self) -> _Matrix:
        """Return the stack with one matrix where all are the same: it is then staged once."""
        l1, l0 = (e if step else 1 for e, step in zip(self.shape[:2], self.strides, strict=False))
        return _Matrix((l1, l0, *self.shape[2:]), self.strides, self.dtype)


def bind_product(gemm: Gemm, tile: tuple[int, int, int]) -> Launcher:
    """Return what computes a product from the addresses of its arrays.

    Parameters
    ----------
    gemm
        The product.
    tile
        Largest M, N and K of one block, where blocks are needed.
    """
    a, b, d = (_matrix(gemm, which) for which in "abd")
    if _goes_straight(gemm, a, b, d):
        launch = _direct(a, b, d)
    elif is_one_block(gemm, _FEW):
        launch = one_block(gemm)
    else:
        launch = _blocked(gemm, a, b, d, tile)
    if gemm.offsets != ((0, 0, 0),):
        launch = _each(launch, gemm)
    if not gemm.swapped:
        return launch

    of_operands = 2 if gemm.problem.scaled or gemm.problem.blocks else 0  # of A and of B

    def launch_swapped(a: int, b: int, d: int, workspace: int, stream: int, *more: float) -> None:
        scales, rest = more[:of_operands], more[of_operands:]
        launch(b, a, d, workspace, stream, *scales[::-1], *rest)

    return launch_swapped


def _matrix(gemm: Gemm, which: str) -> _Matrix:
    e, (l0, l1) = gemm.extents, gemm.batch
    gate = gemm.problem.epilogue.gate if gemm.problem.epilogue else ""
    of_d = (e.m // 2 if gate == "m" else e.m, e.n // 2 if gate == "n" else e.n)
    rows, columns = {"a": (e.m, e.k), "b": (e.k, e.n), "d": of_d}[which]
    down, along, step0, step1 = getattr(gemm, f"{which}_strides")
    dtype = getattr(gemm.problem, which).dtype
    return _Matrix((l1, l0, rows, columns), (step1, step0, down, along), dtype)


def _goes_straight(gemm: Gemm, *matrices: _Matrix) -> bool:
    e = gemm.extents
    if gemm.problem.epilogue is not None:
        return False
    if any(x.dtype is not gemm.problem.accumulator for x in matrices):
        return False
    return all(x.ready for x in matrices) or e.m * e.n * e.k <= _TINY


def _each(launch: Launcher, gemm: Gemm) -> Launcher:
    sizes = [getattr(gemm.problem, which).dtype.itemsize for which in "abd"]
    moves = [[i * size for i, size in zip(at, sizes, strict=True)] for at in gemm.offsets]

    def launch_each(a: int, b: int, d: int, workspace: int, stream: int, *scales: float) -> None:
        for to_a, to_b, to_d in moves:
            launch(a + to_a, b + to_b, d + to_d, workspace, stream, *scales)

    return launch_each


def _direct(a: _Matrix, b: _Matrix, d: _Matrix) -> Launcher:
    import numpy as np

    stacked = d.shape[0] * d.shape[1] > 1
    view_a, view_b, view_d = (
        viewer(x.shape, x.strides, x.dtype)
        if stacked
        else viewer(x.shape[2:], x.strides[2:], x.dtype)
        for x in (a, b, d)
    )
    matmul = np.matmul

    def launch(a: int, b: int, d: int, workspace: int, stream: int) -> None:
        matmul(view_a(a), view_b(b), view_d(d))

    return launch


def _blocked(
    gemm: Gemm, a: _Matrix, b: _Matrix, d: _Matrix, tile: tuple[int, int, int]
) -> Launcher:
    import numpy as np

    exact = gemm.problem.converted in EXACT
    whole = gemm.problem.accumulator is DType.INT32 and not exact
    truths = gemm.problem.converted is DType.BOOL
    blocks, in_blocks = gemm.problem.blocks, gemm.problem.has_block_scales
    factors = DType.FLOAT32 if whole else gemm.problem.accumulator  # what BLAS multiplies
    factors = DType.FLOAT64 if in_blocks else factors
    native, accumulated = numpy_dtype(factors), numpy_dtype(gemm.problem.accumulator)
    e, (l0, l1) = gemm.extents, gemm.batch
    m, n, k = (min(t, x) for t, x in zip(tile, (e.m, e.n, e.k), strict=True))
    k = min(k, _EXACT_K) if whole else k
    epilogue = gemm.problem.epilogue
    m, n = _whole_pairs(epilogue, (m, n), (e.m, e.n))
    if epilogue is not None and epilogue.quantized:
        n = _whole_blocks(n, e.n, BLOCK * (2 if epilogue.gate else 1))
    gate = epilogue.gate if epilogue else ""
    prepared = bind_epilogue(gemm) if epilogue else None
    reads_acc = epilogue is None or epilogue.reads_acc
    matrices = max(1, _BUDGET // (m * k + k * n + m * n))
    chunk0 = min(l0, matrices)
    chunk1 = min(l1, max(1, matrices // chunk0))
    in_place = d.dtype is factors and d.ready and k == e.k and epilogue is None
    a, b = a.shared(), b.shared()
    assert blocks is None or k % blocks.block == 0 or k == e.k, "parts of K begin with a scale"
    read_scales = _fine_scales if gemm.problem.blocks is None else _block_scales
    scales_of = [read_scales(gemm, i) for i in range(2)] if in_blocks else []
    views = [viewer(x.shape, x.strides, x.dtype) for x in (a, b, d)]
    of_scales = (2 if in_blocks else 0) + (3 if gemm.problem.scaled or in_blocks else 0)

    def launch(a_at: int, b_at: int, d_at: int, workspace: int, stream: int, *more: float) -> None:
        scales, brought = more[:of_scales], more[of_scales:]
        factor = _factor(scales[-3:]) if gemm.problem.scaled else None
        epilogue_of_block = prepared(brought) if prepared else None
        x, y, z = (view(at) for view, at in zip(views, (a_at, b_at, d_at), strict=True))
        stage_x = _stage(a, x, (chunk1, chunk0, m, k), native, truths=truths)
        stage_y = _stage(b, y, (chunk1, chunk0, k, n), native, truths=truths)
        if in_blocks:
            of_x, of_y = (read(int(at)) for read, at in zip(scales_of, scales[:2], strict=True))
            packed = gemm.problem.a.dtype is DType.FLOAT4_E2M1FN_X2
            stage_x = _scaled_rows(_unpacked(stage_x, -1) if packed else stage_x, of_x)
            stage_y = _scaled_columns(_unpacked(stage_y, -2) if packed else stage_y, of_y)
        part = None if in_place else np.empty((chunk1, chunk0, m, n), native)
        acc = None if k == e.k else np.empty((chunk1, chunk0, m, n), accumulated)
        for i1, i0, rows, columns in product(
            _parts(l1, chunk1), _parts(l0, chunk0), _parts(e.m, m), _parts(e.n, n)
        ):
            at = (i1, i0, *_gated((rows, columns), gate))
            block = z[at]
            shape = (
                i1.stop - i1.start,
                i0.stop - i0.start,
                *(x.stop - x.start for x in (rows, columns)),
            )
            partial = block if part is None else _corner(part, shape)
            into = partial if acc is None else _corner(acc, shape)
            if not reads_acc:
                into[...] = 0
            for step in _parts(e.k if reads_acc else 0, k):
                np.matmul(stage_x((i1, i0, rows, step)), stage_y((i1, i0, step, columns)), partial)
                if acc is None:
                    continue
                if step.start == 0:
                    np.copyto(into, partial, casting="unsafe")
                else:
                    np.add(into, partial, into, dtype=accumulated, casting="unsafe")
            if factor is not None and reads_acc:
                _multiply(into, factor)
            if epilogue_of_block is not None:
                epilogue_of_block(into, (i1, i0, rows, columns), block)
            elif into is not block:
                block[...] = into

    return launch


def _whole_pairs(
    epilogue: Epilogue | None, block: tuple[int, int], whole: tuple[int, int]
) -> tuple[int, int]:
    """Return the rows and columns of a block that holds both elements of each gated pair."""
    sides = list(block)
    if epilogue is not None and epilogue.gate:
        i = "mn".index(epilogue.gate)
        sides[i] = whole[i] if epilogue.halves else max(2, sides[i] - sides[i] % 2)
    return sides[0], sides[1]


def _whole_blocks(n: int, whole: int, unit: int) -> int:
    """Return the columns of a block that holds all that share a scale."""
    return whole if n == whole else max(unit, n // unit * unit)


def _gated(parts: tuple[slice, slice], gate: Gate) -> tuple[slice, ...]:
    """Return the rows and columns of D that those of the accumulators become."""
    return tuple(
        slice(x.start // 2, x.stop // 2) if name == gate else x
        for name, x in zip("mn", parts, strict=True)
    )


def _stage(
    what: _Matrix, view: np.ndarray, block: tuple[int, int, int, int], native: np.dtype, *,
    truths: bool = False,
) -> Callable[[_Block], np.ndarray]:  # fmt: skip
    """Return a function that gives one block of an operand as BLAS takes it.

    Of `truths` all but 0 is 1.
    """
    import numpy as np

    l1, l0 = what.shape[:2]

    def cut(at: _Block) -> np.ndarray:
        return view[at[0] if l1 > 1 else slice(1), at[1] if l0 > 1 else slice(1), at[2], at[3]]

    if what.ready and view.dtype == native:
        return cut
    shape = (min(l1, block[0]), min(l0, block[1]), *block[2:])
    if what.column_major:  # keep the order of memory: a transposing copy takes several times longer
        buffer = np.empty((*shape[:2], shape[3], shape[2]), native).swapaxes(-1, -2)
    else:
        buffer = np.empty(shape, native)

    def stage(at: _Block) -> np.ndarray:
        source = cut(at)
        ready = _corner(buffer, source.shape)
        # Widening is exact, and of integers the low bits are those of the product.
        np.copyto(ready, source.astype(np.bool_) if truths else source, casting="unsafe")
        return ready

    return stage


_Scales = Callable[[_Block], "np.ndarray"]


def _block_scales(gemm: Gemm, which: int) -> Callable[[int], _Scales]:
    """Return a function from the address of an operand's scales to one that gives those of a block.

    That takes a block's (L1, L0, rows, K), rows being those of A or columns of B, and gives a scale
    for each element, as float64.
    """
    import numpy as np

    blocks, steps = gemm.problem.blocks, gemm.scale_strides
    assert blocks is not None
    assert steps is not None
    e, (l0, l1) = gemm.extents, gemm.batch
    order, (row, block, step0, step1) = (blocks.a, blocks.b)[which], steps[which]
    rows = (e.m, e.n)[which]
    plain = order == "plain"
    count = blocks_of(e.k, blocks.block)
    each = 2 if gemm.problem.a.dtype is DType.FLOAT4_E2M1FN_X2 else 1  # numbers of an element
    shape = (rows, count) if plain else (blocked_count(rows, count),)
    view = viewer(
        (l1, l0, *shape), (step1, step0, *((row, block) if plain else (1,))), blocks.dtype
    )

    def scales(address: int) -> _Scales:
        held = view(address)

        def cut(at: _Block) -> np.ndarray:
            i1, i0, lines, span = at
            first = slice(span.start // blocks.block, blocks_of(span.stop, blocks.block))
            if plain:
                found = held[i1, i0, lines, first]
            else:
                of_row, of_block = row_and_block_offsets(
                    np.arange(lines.start, lines.stop), np.arange(first.start, first.stop), count
                )
                found = held[i1, i0][..., of_row[:, None] + of_block]
            factors = found.astype(np.float64)
            if blocks.dtype is DType.FLOAT8_E4M3FN:
                factors = abs(factors)  # tensor cores do not look at the sign
            factors = np.repeat(factors, each * blocks.block, -1)
            return factors[..., : each * (span.stop - span.start)]

        return cut

    return scales


def _fine_scales(gemm: Gemm, which: int) -> Callable[[int], _Scales]:
    """Return the same for scales of accumulators, which float64 does not tell apart."""
    import numpy as np

    scales, steps = gemm.problem.scales, gemm.scale_strides
    assert scales is not None
    assert steps is not None
    of_operand, (row, block, step0, step1) = (scales.a, scales.b)[which], steps[which]
    of_rows, of_k = of_operand.sharing
    shape = (
        *gemm.batch[::-1],
        blocks_of((gemm.extents.m, gemm.extents.n)[which], of_rows),
        blocks_of(gemm.extents.k, of_k),
    )
    view = viewer(shape, (step1, step0, row, block), of_operand.dtype)

    def scales_at(address: int) -> _Scales:
        held = view(address)

        def cut(at: _Block) -> np.ndarray:
            i1, i0, lines, span = at
            rows = np.arange(lines.start, lines.stop) // of_rows
            columns = np.arange(span.start, span.stop) // of_k
            return held[i1, i0].astype(np.float64)[..., rows[:, None], columns]

        return cut

    return scales_at


#: The numbers of float4_e2m1fn, by their codes (OCP Microscaling, table 5).
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _unpacked(stage: Callable[[_Block], np.ndarray], axis: int) -> Callable[[_Block], np.ndarray]:
    """Return blocks of the numbers in bytes, two for each byte along K, the low half first."""
    import numpy as np

    numbers = np.array([*_E2M1, *(-x for x in _E2M1)])

    def unpack(at: _Block) -> np.ndarray:
        codes = stage(at).astype(np.uint8)
        pairs = np.stack([codes & 15, codes >> 4], axis)
        shape = list(codes.shape)
        shape[axis] *= 2
        return numbers[pairs.reshape(shape)]

    return unpack


def _scaled_rows(
    stage: Callable[[_Block], np.ndarray], scales: _Scales
) -> Callable[[_Block], np.ndarray]:
    """Return blocks of A, multiplied by their scales."""
    return lambda at: stage(at) * scales(at)


def _scaled_columns(
    stage: Callable[[_Block], np.ndarray], scales: _Scales
) -> Callable[[_Block], np.ndarray]:
    """Return blocks of B, multiplied by their scales."""
    return lambda at: stage(at) * scales((*at[:2], at[3], at[2])).swapaxes(-1, -2)


def _factor(scales: tuple[float, ...]) -> np.float64:
    """Return the product of two scales, at addresses that are not 0, and of a number."""
    import numpy as np

    *addresses, number = scales
    factor = np.float64(number)
    for address in addresses:
        if address:
            factor = factor * np.float64(viewer((), (), DType.FLOAT32)(int(address))[()])
    return factor


def _multiply(acc: np.ndarray, factor: np.float64) -> None:
    """Multiply in the type of `acc` if the factor is an ordinary number of it, or in float64."""
    import numpy as np

    ordinary = SMALL <= abs(factor) < LARGE
    np.multiply(acc, factor, acc, dtype=acc.dtype if ordinary else np.float64)


def _corner(buffer: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return buffer[tuple(slice(extent) for extent in shape)]


def _parts(extent: int, size: int) -> Iterator[slice]:
    return (slice(at, min(at + size, extent)) for at in range(0, extent, size))
