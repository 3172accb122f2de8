"""Grouped products on the CPU: a product of its own for each group that has rows, columns or K."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from unigemm.arrays.numpy_arrays import viewer
from unigemm.planning.backend import Launcher
from unigemm.problem.canonical import Gemm
from unigemm.problem.problem import Extents

from .product import bind_product

__all__ = ["bind_groups"]

_MOST_SIZES = 64  # of groups whose products are kept
#: Which indices of a matrix (row, column) an extent is, of A, B and D.
_INDEX: dict[str, dict[str, int]] = {
    "m": {"a": 0, "d": 0},
    "n": {"b": 1, "d": 1},
    "k": {"a": 1, "b": 0},
}


@dataclass(frozen=True)
class _Part:
    """A group: which it is, and the part of the divided extent that is its own."""

    group: int
    start: int
    stop: int


class _Groups:
    """The products of the groups of one canonical product, and where each begins."""

    def __init__(self, gemm: Gemm, tile: tuple[int, int, int]) -> None:
        groups, e = gemm.problem.groups, gemm.extents
        assert groups is not None
        self.gemm, self.tile = gemm, tile
        self.groups = groups
        self.along = groups.along
        self.extent = {"m": e.m, "n": e.n, "k": e.k}[groups.along]
        self.count = gemm.batch[0]
        self.view = viewer((self.count,), (1,), groups.dtype)
        epilogue = gemm.problem.epilogue
        self.aux = () if epilogue is None else epilogue.aux
        self.launchers: dict[int, Launcher] = {}

    def parts(self, address: int) -> Iterator[_Part]:
        """Return all groups; ends in host memory have been checked."""
        start = 0
        for i, end in enumerate(self.view(address).tolist()):
            yield _Part(i, 0 if self.groups.stacked else start, end)
            start = end

    def rest(self, parts: list[_Part]) -> Iterator[_Part]:
        """Return where D has no group."""
        if self.groups.stacked:
            for part in parts:
                yield _Part(part.group, part.stop, self.extent)
        elif self.along != "k":
            yield _Part(0, parts[-1].stop, self.extent)

    def launcher(self, size: int) -> Launcher:
        """Return what computes a group of a size."""
        found = self.launchers.get(size)
        if found is None:
            if len(self.launchers) >= _MOST_SIZES:
                self.launchers.clear()
            found = self.launchers[size] = bind_product(self._of_size(size), self.tile)
        return found

    def _of_size(self, size: int) -> Gemm:
        gemm, e = self.gemm, self.gemm.extents
        sizes = {"m": e.m, "n": e.n, "k": e.k, self.along: max(size, 1)}

        def alone(steps: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
            return (*steps[:2], 0, 0)

        scales = gemm.scale_strides
        operands: dict[str, Any] = {
            f"{x}_strides": alone(getattr(gemm, f"{x}_strides")) for x in "abd"
        }
        if size == 0:  # products of nothing: of one zero
            operands |= {"a_strides": (0, 0, 0, 0), "b_strides": (0, 0, 0, 0)}
            scales = scales and ((0, 0, 0, 0), (0, 0, 0, 0))
        return replace(
            gemm,
            problem=replace(gemm.problem, groups=None),
            extents=Extents(sizes["m"], sizes["n"], sizes["k"]),
            swapped=False,
            batch=(1, 1),
            aux_strides=tuple(map(alone, gemm.aux_strides)),
            scale_strides=scales and (alone(scales[0]), alone(scales[1])),
            **operands,
        )

    def moved(self, which: str, part: _Part) -> int:
        """Return how many bytes behind an operand's or D's first element a group begins."""
        steps = getattr(self.gemm, f"{which}_strides")
        dtype = getattr(self.gemm.problem, which).dtype
        index = _INDEX[self.along].get(which)
        at = 0 if index is None else steps[index] * part.start
        return (at + steps[2] * part.group) * dtype.itemsize

    def moved_scales(self, part: _Part) -> list[int]:
        """Return the same of the scales of blocks of K; nothing without such."""
        scales, steps = self.gemm.problem.scales, self.gemm.scale_strides
        if scales is None or steps is None:
            return []
        divided = {"m": 0, "n": 1}.get(self.along)  # whose every line has scales of its own
        found = []
        for i, (own, x) in enumerate(zip(steps, (scales.a, scales.b), strict=True)):
            at = own[2] * part.group + (own[0] * part.start if i == divided else 0)
            if self.along == "k":  # groups begin with a block
                at += own[1] * (part.start // x.sharing[1])
            found.append(at * x.dtype.itemsize)
        return found

    def moved_aux(self, part: _Part) -> list[int]:
        """Return the same of the epilogue's arrays."""
        index = _INDEX[self.along].get("d")
        return [
            (steps[2] * part.group + (0 if index is None else steps[index] * part.start))
            * x.matrix.dtype.itemsize
            for x, steps in zip(self.aux, self.gemm.aux_strides, strict=True)
        ]

    def clear(self, d: int, aux: list[int], part: _Part) -> None:
        """Put zeros into D, and into other results, where no group is."""
        epilogue, e = self.gemm.problem.epilogue, self.gemm.extents
        size = part.stop - part.start
        if size <= 0:
            return
        sizes = {"m": e.m, "n": e.n, self.along: size}
        gate = epilogue.gate if epilogue else ""
        of_d = [sizes[x] // (2 if x == gate else 1) for x in "mn"]
        steps = self.gemm.d_strides[:2]
        self._zero(d + self.moved("d", part), of_d, steps, self.gemm.problem.d.dtype)
        if epilogue is None:
            return
        moves = self.moved_aux(part)
        first = len(epilogue.arrays)
        for i, x in enumerate(epilogue.stored, first):
            steps = self.gemm.aux_strides[i][:2]
            self._zero(aux[i] + moves[i], [sizes["m"], sizes["n"]], steps, x.matrix.dtype)

    def _zero(self, at: int, shape: list[int], steps: tuple[int, int], dtype: Any) -> None:
        viewer((shape[0], shape[1]), steps, dtype)(at)[...] = 0


def bind_groups(gemm: Gemm, tile: tuple[int, int, int]) -> Launcher:
    """Return what computes a product with groups, whose ends lie at the last address.

    Parameters
    ----------
    gemm
        The product.
    tile
        As in `bind_product`.
    """
    import numpy as np

    groups = _Groups(gemm, tile)
    scaled, count = gemm.problem.scaled, len(groups.aux)
    of_blocks = 2 if gemm.problem.has_block_scales else 0
    of_scales = of_blocks + (3 if scaled else 0)
    zero = np.zeros(1, np.float64)  # an operand of groups without K: of all types

    def launch(a: int, b: int, d: int, workspace: int, stream: int, *more: Any) -> None:
        *more_, ends = more
        scales: list[Any] = more_[:of_scales]
        steps = (more_.pop(-2), more_.pop()) if scaled else (0, 0)
        aux, rest = more_[of_scales : of_scales + count], more_[of_scales + count :]
        if gemm.swapped:
            a, b = b, a
            scales, steps = [*scales[:2][::-1], *scales[2:]], steps[::-1]  # of blocks, or whole
        parts = list(groups.parts(int(ends)))
        for part in parts:
            size = part.stop - part.start
            if size == 0 and groups.along != "k":
                continue
            at_a, at_b = a + groups.moved("a", part), b + groups.moved("b", part)
            if size == 0:
                at_a = at_b = zero.ctypes.data
            own = [at + move for at, move in zip(scales, groups.moved_scales(part), strict=False)]
            if size == 0:
                own = [at_a] * of_blocks
            own += [
                at + 4 * step * part.group if at else at
                for at, step in zip(scales[of_blocks:], steps, strict=False)
            ]
            own += scales[of_blocks + 2 :]
            own += [x + move for x, move in zip(aux, groups.moved_aux(part), strict=True)]
            at_d = d + groups.moved("d", part)
            groups.launcher(size)(at_a, at_b, at_d, workspace, stream, *own, *rest)
        if groups.groups.rest == "zeros":
            for part in groups.rest(parts):
                groups.clear(d, aux, part)

    return launch
