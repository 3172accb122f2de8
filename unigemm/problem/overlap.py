"""Whether two strided arrays, or two elements of one, share memory; from addresses alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import OverlapError

__all__ = ["byte_span", "may_share", "overlaps_itself", "refuse_self_overlap"]

# How many candidates NumPy's bounded Diophantine search may look at. A harder question is answered
# with "may share".
_MAX_WORK = 20_000


def byte_span(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Return the first byte that an array touches and one past the last, from its first element.

    Parameters
    ----------
    shape, strides
        Extents, and elements (not bytes) between neighbours.
    itemsize
        Bytes of one element.
    """
    if 0 in shape:
        return 0, 0
    low = high = 0
    for extent, step in zip(shape, strides, strict=True):
        reach = (extent - 1) * step
        if reach < 0:
            low += reach
        else:
            high += reach
    return low * itemsize, (high + 1) * itemsize


def may_share(
    x: tuple[int, Sequence[int], Sequence[int], int],
    y: tuple[int, Sequence[int], Sequence[int], int],
) -> bool:
    """Whether two arrays share a byte; also true where that is too hard to rule out.

    Parameters
    ----------
    x, y
        (address, shape, strides in elements, bytes of one element).
    """
    spans = []
    for address, shape, strides, itemsize in (x, y):
        low, high = byte_span(shape, strides, itemsize)
        spans.append((address + low, address + high))
    (x_low, x_high), (y_low, y_high) = spans
    if x_low == x_high or y_low == y_high or x_high <= y_low or y_high <= x_low:
        return False
    return _shares(_phantom(*x), _phantom(*y))


def overlaps_itself(dims: Sequence[tuple[int, int]]) -> bool:
    """Whether two elements of one array have the same address (or may have).

    Parameters
    ----------
    dims
        (stride in elements, extent) of each dimension.
    """
    if any(extent == 0 for _, extent in dims):
        return False
    dims = [(abs(step), extent) for step, extent in dims if extent > 1]
    reach = 0
    for step, extent in sorted(dims):
        if step <= reach:
            break
        reach += step * (extent - 1)
    else:
        return False  # each stride steps over all that the smaller ones reach
    # Two elements that meet differ first in some dimension i. Their common offset cancels, so the
    # elements at 0 of that dimension meet those at 1, 2, ... with the later dimensions free.
    for i, (step, extent) in enumerate(dims):
        rest = dims[i + 1 :]
        strides = [s for s, _ in rest]
        shape = [e for _, e in rest]
        first = _phantom(0, [1, *shape], [0, *strides], 1)
        others = _phantom(step, [extent - 1, *shape], [step, *strides], 1)
        if _shares(first, others):
            return True
    return False


def refuse_self_overlap(
    name: str, shape: Sequence[int], strides: Sequence[int], itemsize: int | None = None
) -> None:
    """Refuse to write to an array whose elements share addresses (broadcast, sliding windows).

    Parameters
    ----------
    name
        What the caller calls it.
    shape, strides
        Of the array; strides in elements, or in bytes with `itemsize`.
    itemsize
        Bytes of an element.

    Raises
    ------
    OverlapError
        Two of its elements may have the same address.
    """
    of_bytes = [] if itemsize is None else [(1, itemsize)]
    if overlaps_itself([*zip(strides, shape, strict=True), *of_bytes]):
        unit = "bytes" if of_bytes else "elements"
        raise OverlapError(
            f"{name} with shape {tuple(shape)} and strides {tuple(strides)} ({unit}) overlaps "
            "itself; pass an array whose elements have addresses of their own"
        )


class _Interface:
    """An object with NumPy's array interface."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.__array_interface__ = description


# Well above zero, so that negative strides stay above it too.
_BASE = 1 << 48


def _phantom(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Any:
    """Return a NumPy array over memory that may not exist; it must never be read."""
    import numpy as np

    return np.asarray(
        _Interface(
            {
                "version": 3,
                "typestr": f"|V{itemsize}",
                "shape": tuple(shape),
                "strides": tuple(step * itemsize for step in strides),
                "data": (_BASE + address, True),
            }
        )
    )


def _shares(x: Any, y: Any) -> bool:
    import numpy as np

    try:
        return bool(np.shares_memory(x, y, max_work=_MAX_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
