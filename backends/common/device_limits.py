"""How many clusters run at once: the CTAs of one lie within a GPC, and SMs are left over."""

from __future__ import annotations

from unigemm.planning.target import Target

__all__ = ["MAX_CLUSTER", "clusters_at_once"]

MAX_CLUSTER = 8  # CTAs: more are not portable (CUDA C++ Programming Guide, thread block clusters)
# Clusters that run on an H200 at once, by their CTAs, each CTA alone on its SM
# (cuOccupancyMaxActiveClusters).
_AT_ONCE = (0, 132, 66, 39, 30, 22, 17, 15, 15)


def clusters_at_once(target: Target, ctas: int) -> int:
    """Return how many clusters of `ctas` CTAs run at once, each CTA alone on its SM."""
    return max(1, _AT_ONCE[ctas] * target.sm_count // _AT_ONCE[1])
