"""The product of a call's scales where it is no ordinary float32: as two factors.

Accumulators are multiplied by both, one after the other. Both are above 1 or both below, so that
the first step overflows only where the result does.
"""

from __future__ import annotations

from sys import float_info

__all__ = ["FINITE", "LARGE", "MOST", "SMALL"]

#: From here on a product is one of LARGE and another; below SMALL of SMALL and another.
LARGE, SMALL = 2.0**126, 2.0**-126
#: The largest float32, and the largest float64.
MOST, FINITE = (2 - 2.0**-23) * 2.0**127, float_info.max
