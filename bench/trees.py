"""Fit the trees of `unigemm.backends.common.correction`: gradient boosting, NumPy alone.

All branches of a level share one question, so a tree of depth d is d questions and 2**d leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unigemm.backends.common.correction import Trees
from unigemm.backends.common.launches import Array

__all__ = ["boosted", "joined"]

_BINS = 32  # thresholds of a feature that are tried


def boosted(
    values: Array,
    wanted: Array,
    weight: Array,
    *,
    trees: int,
    depth: int = 6,
    rate: float = 0.1,
    damping: float = 5.0,
    fraction: float = 0.5,
    among: Sequence[int] | None = None,
    seed: int = 0,
) -> Trees:
    """Return trees whose sum is near what is wanted, in the weighted squares.

    Parameters
    ----------
    values, wanted, weight
        Of features (features, samples), and for each sample what the sum should be and its weight.
    trees, depth, rate
        How many trees, how deep; how much of what is left each of them takes.
    damping
        Weight of zero in each leaf.
    fraction
        Part of the features that a tree may ask about, at random by the seed.
    among
        The features that may be asked about; all if None.
    """
    rng, (count, samples) = np.random.default_rng(seed), values.shape
    edges = [_edges(values[feature]) for feature in range(count)]
    bins = [np.searchsorted(edges[f], values[f], side="left") for f in range(count)]
    useful = [f for f in (range(count) if among is None else among) if len(edges[f])]
    weight, left = weight * (samples / weight.sum()), wanted.copy()
    feature, threshold = np.zeros((depth, trees), np.int16), np.zeros((depth, trees))
    leaves = np.zeros((trees, 2**depth))
    for tree in range(trees):
        pull = left * weight
        leaf = np.zeros(samples, np.int64)
        offered = rng.permutation(useful)[: max(1, round(fraction * len(useful)))]
        for level in range(depth):
            _, best, at = max(
                (*_gain(leaf, 2**level, bins[f], len(edges[f]), pull, weight, damping, f),)
                for f in offered
            )
            feature[level, tree], threshold[level, tree] = best, edges[best][at]
            leaf = 2 * leaf + (bins[best] > at)
        pulls = np.bincount(leaf, pull, 2**depth)
        leaves[tree] = rate * pulls / (np.bincount(leaf, weight, 2**depth) + damping)
        left -= leaves[tree][leaf]
    return Trees(feature, threshold, leaves.astype(np.float32))


def _edges(values: Array) -> Array:
    """Return the thresholds that are tried: between all values, or evenly among many."""
    different = np.unique(values)
    if len(different) <= _BINS:
        return (different[1:] + different[:-1]) / 2
    return np.unique(np.quantile(values, np.linspace(0, 1, _BINS + 1)[1:-1]))


def _gain(
    leaf: Array, leaves: int, bins: Array, edges: int, pull: Array, weight: Array,
    damping: float, feature: int,
) -> tuple[float, int, int]:  # fmt: skip
    """Return a feature's largest gain in all leaves, the feature, and the threshold's index."""
    key, width = leaf * (edges + 1) + bins, edges + 1
    below = np.bincount(key, pull, leaves * width).reshape(leaves, width).cumsum(axis=1)
    heavy = np.bincount(key, weight, leaves * width).reshape(leaves, width).cumsum(axis=1)
    above, rest = below[:, -1:] - below[:, :-1], heavy[:, -1:] - heavy[:, :-1]
    gain = above**2 / (rest + damping) + below[:, :-1] ** 2 / (heavy[:, :-1] + damping)
    total = gain.sum(axis=0)
    at = int(total.argmax())
    return float(total[at]), feature, at


def joined(*parts: Trees) -> Trees:
    """Return all trees of some, as one; shallow ones get questions that change nothing."""
    depth = max(len(each.feature) for each in parts)
    deep = []
    for each in parts:
        more = depth - len(each.feature)
        feature = np.pad(each.feature, ((more, 0), (0, 0)))
        threshold = np.pad(each.threshold, ((more, 0), (0, 0)), constant_values=np.inf)
        leaves = np.pad(each.leaves, ((0, 0), (0, 2**depth - each.leaves.shape[1])))
        deep.append(Trees(feature, threshold, leaves))
    return Trees(
        np.concatenate([each.feature for each in deep], axis=1),
        np.concatenate([each.threshold for each in deep], axis=1),
        np.concatenate([each.leaves for each in deep]),
    )
