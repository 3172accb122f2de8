"""The learned correction of estimated times: trees fitted to measured launches, as arrays.

All trees have one depth, and ask the same question in all branches of a level ("oblivious"), so
that many launches are corrected by a few array operations. No BLAS takes part: every CPU gives the
same factor. `bench.fit` makes them; they lie with the coefficients (`coefficients.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unigemm.problem.problem import Extents, MatrixType, Problem
from unigemm.support.forks import cached_property

from .cost_model import Parts, Usage
from .launches import Array, Launches

__all__ = ["FEATURES", "OF_PROBLEM", "Trees", "factors", "features"]

_MAJORS = {"k": 0, "m": 1, "n": 1, "strided": 2}
_LINE_BYTES = 128  # of the L2
_LEAST_US = 1e-3  # of what logarithms are taken

#: What questions are about: first what only the problem decides, then the launch.
OF_PROBLEM = (
    "log m", "log n", "log k", "log batch", "swapped", "a lines", "b lines", "d lines",
    "a alignment", "b alignment", "d alignment", "a line begins", "b line begins", "d line begins",
    "d bytes",
)  # fmt: skip
FEATURES = (
    *OF_PROBLEM,
    "log total", "log mma", "log latency", "log smem", "log l2", "log dram", "log epilogue",
    "log reduction", "log repack", "ctas per slot", "waves", "fill of waves", "k_tiles",
    "filled m", "filled n", "slots per sm", "tile m", "tile n", "tile k", "cluster m", "cluster n",
    "cluster k", "slice k", "split k", "stages", "schedule", "warps", "sums of a thread",
    "occupancy", "producers", "raster n", "repacked",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Trees:
    """Some trees of one depth.

    Attributes
    ----------
    feature, threshold
        (depth, trees): each level asks whether that feature is above the threshold.
    leaves
        (trees, 2**depth): what is added to the logarithm of the time; the first answer is the
        highest bit of the index.
    """

    feature: Array
    threshold: Array
    leaves: Array

    @cached_property
    def questions(self) -> tuple[Array, Array, Array]:
        """Return the questions, each once: features, thresholds; which are asked (depth, trees)."""
        pairs = np.empty(self.feature.shape, complex)
        pairs.real, pairs.imag = self.feature, self.threshold
        questions, indices = np.unique(pairs, return_inverse=True)
        return questions.real.astype(int), questions.imag[:, None], indices.reshape(pairs.shape)


def features(
    problem: Problem, extents: Extents, swapped: bool, u: Usage, x: Launches, parts: Parts,
    index: Array | slice,
) -> Array:  # fmt: skip
    """Return what trees ask about some launches: (FEATURES, launches). As the kernel sees them."""

    def some(*columns: Array) -> list[Array]:
        return [column[index] for column in columns]

    times = some(
        parts.total, parts.mma, parts.latency, parts.smem, parts.l2, parts.dram, u.store_us,
        parts.reduction, parts.repack,
    )  # fmt: skip
    ctas, slots, sms, k_tiles = some(u.ctas, u.slots, u.sms, u.k_tiles)
    tile_m, tile_n, *others = some(
        x.tile_m, x.tile_n, x.tile_k, x.cluster_m, x.cluster_n, x.cluster_k, x.slice_k, x.split_k,
        x.stages, x.schedule, x.warps_m * x.warps_n, x.thread_m * x.thread_n, x.occupancy,
        x.producers, x.raster_n, x.repacked,
    )  # fmt: skip
    m, n, each = max(1, extents.m), max(1, extents.n), ctas / slots
    waves = np.ceil(each)
    columns: tuple[Any, ...] = (
        *of_problem(problem, extents, swapped),
        *np.log(np.array(times) + _LEAST_US),
        each, waves, each / waves, k_tiles,
        -(-m // tile_m) * tile_m / m, -(-n // tile_n) * tile_n / n, slots / sms,
        tile_m, tile_n, *others,
    )  # fmt: skip
    found = np.empty((len(columns), len(ctas)))
    for i, column in enumerate(columns):
        found[i] = column
    return found


def of_problem(problem: Problem, extents: Extents, swapped: bool) -> tuple[float, ...]:
    """Return the features of `OF_PROBLEM`."""
    a, b, d = problem.a, problem.b, problem.d
    lengths = (
        extents.k if a.major == "k" else extents.m,
        extents.k if b.major == "k" else extents.n,
        extents.m if d.major == "m" else extents.n,
    )
    return (
        *(float(np.log(max(1, size))) for size in (extents.m, extents.n, extents.k, extents.batch)),
        float(swapped),
        *(float(_MAJORS[each.major]) for each in (a, b, d)),
        *(float(each.alignment) for each in (a, b, d)),
        *(_begins(each, length) for each, length in zip((a, b, d), lengths, strict=True)),
        float(d.dtype.itemsize),
    )


def _begins(matrix: MatrixType, length: int) -> float:
    """Return the power of two that divides the bytes of a line, up to those of the L2's."""
    size = length * matrix.dtype.itemsize
    return float(min(size & -size, _LINE_BYTES) or _LINE_BYTES)


def factors(trees: Trees, values: Array) -> Array:
    """Return by what the estimated times of launches are multiplied, of their features' values."""
    feature, threshold, indices = trees.questions
    answers = (values.take(feature, axis=0) > threshold).view(np.uint8)
    leaf = np.zeros((indices.shape[1], values.shape[1]), np.uint8)  # at most eight questions
    for index in indices:
        leaf <<= 1
        leaf |= answers.take(index, axis=0)
    every = leaf + (np.arange(len(leaf)) << len(indices))[:, None]
    found: Array = np.exp(trees.leaves.ravel().take(every).sum(axis=0, dtype=np.float64))
    return found
