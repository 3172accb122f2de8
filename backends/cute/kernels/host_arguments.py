"""The arguments of a host function, in the order in which `CuteBackend.bind` passes them."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from collections.abc import Sequence
from typing import Any, NamedTuple

from cutlass import Int32, Int64

__all__ = [
    "Addresses",
    "HostArguments",
    "ResultSteps",
    "Sizes",
    "Steps",
    "batch_offset",
    "grouped",
    "transposed",
]


class Addresses(NamedTuple):
    """Where A, B, D and the workspace begin."""

    a: Int64
    b: Int64
    d: Int64
    workspace: Int64


class Sizes(NamedTuple):
    """M, N and K, and how many matrices there are along L0 and L1."""

    m: Int32
    n: Int32
    k: Int32
    l0: Int32
    l1: Int32


class Steps(NamedTuple):
    """Elements between rows, between columns, and between matrices along L0 and L1."""

    row: Int64
    column: Int64
    l0: Int64
    l1: Int64


class ResultSteps(NamedTuple):
    """`Steps` of D; or of partial sums, with the elements between parts of K."""

    row: Int64
    column: Int64
    l0: Int64
    l1: Int64
    part: Int64 | None = None


def transposed(steps: Steps) -> Steps:
    """Return the steps of the transposed matrices."""
    return Steps(steps.column, steps.row, steps.l0, steps.l1)


def batch_offset(steps: Steps | ResultSteps, batch: tuple[Int32, Int32]) -> Int64:
    """Return the elements from the start of a stack to one of its matrices, (L0, L1)."""
    return Int64(batch[0]) * steps.l0 + Int64(batch[1]) * steps.l1


class HostArguments(NamedTuple):
    """What every host function takes, grouped.

    Attributes
    ----------
    addresses, sizes
        See there.
    a_steps, b_steps, d_steps
        Rows and columns are M and K of A, K and N of B, M and N of D.
    parameters
        Parts of K, whether tiles run along N first, the raster's group, and the backend's own.
    more
        What only some problems have: steps and addresses of scales, and a factor.
    stream
        Where to launch.
    """

    addresses: Addresses
    sizes: Sizes
    a_steps: Steps
    b_steps: Steps
    d_steps: Steps
    parameters: tuple[Any, ...]
    more: tuple[Any, ...]
    stream: Any


def grouped(arguments: Sequence[Any], parameters: int) -> HostArguments:
    """Group the arguments of a host function; `parameters` says how many of these there are."""
    left = iter(arguments[:-1])

    def take(count: int) -> list[Any]:
        return [next(left) for _ in range(count)]

    return HostArguments(
        Addresses(*take(4)), Sizes(*take(5)), Steps(*take(4)), Steps(*take(4)), Steps(*take(4)),
        tuple(take(parameters)), tuple(left), arguments[-1],
    )  # fmt: skip
