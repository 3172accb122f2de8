"""The arguments of a host function, in the order in which `CuteBackend.bind` passes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["HostArguments", "grouped"]


class HostArguments(NamedTuple):
    """What every host function takes, grouped.

    Attributes
    ----------
    addresses
        Of A, B, D and the workspace.
    sizes
        M, N, K and the two batch sizes L0 and L1.
    a_steps, b_steps, d_steps
        Elements between neighbours: A by (M, K, L0, L1), B by (K, N, L0, L1), D by (M, N, L0, L1).
    parameters
        Parts of K, whether tiles run along N first, the raster's group, and the backend's own.
    more
        What only some problems have: steps and addresses of scales, and a factor.
    stream
        Where to launch.
    """

    addresses: tuple[Any, ...]
    sizes: tuple[Any, ...]
    a_steps: tuple[Any, ...]
    b_steps: tuple[Any, ...]
    d_steps: tuple[Any, ...]
    parameters: tuple[Any, ...]
    more: tuple[Any, ...]
    stream: Any


def grouped(arguments: Sequence[Any], parameters: int) -> HostArguments:
    """Group the arguments of a host function; `parameters` says how many of these there are."""
    groups, at = [], 0
    for count in (4, 5, 4, 4, 4, parameters):
        groups.append(tuple(arguments[at : at + count]))
        at += count
    addresses, sizes, a_steps, b_steps, d_steps, numbers = groups
    more, stream = tuple(arguments[at:-1]), arguments[-1]
    return HostArguments(addresses, sizes, a_steps, b_steps, d_steps, numbers, more, stream)
