"""How many clusters run at once: the CTAs of one lie within a GPC, and SMs are left over."""

from __future__ import annotations

import numpy as np

from unigemm.planning.target import Target

from .launches import Array

__all__ = ["MAX_CLUSTER", "clusters_at_once", "ctas_at_once"]

MAX_CLUSTER = 8  # CTAs: more are not portable (CUDA C++ Programming Guide, thread block clusters)
# Clusters that run at once, by their CTAs, each CTA alone on its SM: on an H200
# (cuOccupancyMaxActiveClusters), and on a B200, whose GPCs have 18 or 20 SMs.
_ON_H200 = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}
_ON_B200 = {1: 148, 2: 74, 4: 34, 8: 16}
_LIKE_B200 = (10, 11)  # major compute capabilities


def clusters_at_once(target: Target, ctas: int) -> int:
    """Return how many clusters of `ctas` CTAs run at once, each CTA alone on its SM."""
    known = _ON_B200 if target.capability[0] in _LIKE_B200 else _ON_H200
    sms = known[1]
    return max(1, known.get(ctas, sms // max(1, ctas)) * target.sm_count // sms)


def ctas_at_once(target: Target) -> Array:
    """Return how many CTAs of such clusters run at once, by the CTAs of a cluster from 0 on."""
    return np.array([clusters_at_once(target, ctas) * ctas for ctas in range(MAX_CLUSTER + 1)])
