"""What parts of TMA-fed kernels hand to each other, whatever multiplies."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32, Int64

from .device import Divisor, Raster
from .epilogue import Taken
from .grouped import Bounds
from .host_arguments import Addresses, ResultSteps, Sizes, Steps
from .scaling import Scales

__all__ = [
    "Arguments", "Dealt", "GroupOrder", "Parameters", "Ranks", "Stored", "TileOrder", "TmaView",
]  # fmt: skip


# -- host ------------------------------------------------------------------------------------------


class Parameters(NamedTuple):
    """How a launch divides its product.

    Attributes
    ----------
    split_k
        Parts of K.
    along_n, band
        The raster: whether tiles run along N first, and its band.
    sms
        How many CTAs run at once.
    rotate_m, rotate_n
        Whether tiles along M, or N, begin at different k_tiles: 0 or 1; of TMA-fed kernels.
    """

    split_k: Int32
    along_n: Int32
    band: Int32
    sms: Int32
    rotate_m: Int32 | None = None
    rotate_n: Int32 | None = None


class Arguments(NamedTuple):
    """What a product is launched with.

    Attributes
    ----------
    addresses, sizes, a_steps, b_steps, d_steps
        See `host_arguments`.
    parameters, scales
        See there.
    stream
        Where to launch.
    taken
        What the epilogue of a call takes: see `epilogue.parted`.
    offsets
        The address of the offsets of groups; empty where there are none.
    """

    addresses: Addresses
    sizes: Sizes
    a_steps: Steps
    b_steps: Steps
    d_steps: Steps
    parameters: Parameters
    scales: Scales
    stream: cuda.CUstream
    taken: Taken
    offsets: tuple[Int64, ...]


# -- what kernels take -----------------------------------------------------------------------------


class TmaView(NamedTuple):
    """What TMA moves: the instruction, and the tensor that it reads or writes."""

    atom: cute.CopyAtom
    tensor: cute.Tensor


class Stored(NamedTuple):
    """Where D is, or partial sums: for TMA, and its address and strides."""

    view: TmaView
    address: Int64
    strides: ResultSteps


class TileOrder(NamedTuple):
    """What turns a unit's number into its tile, its batch and its part of K.

    Attributes
    ----------
    tiles
        The raster.
    split_k, step, l0
        Parts of K; how far a part's k_tiles are apart; the inner extent of the stack.
    k_tiles
        The k_tiles of all of K.
    rotate_m, rotate_n
        See `Parameters`.
    bounds
        The groups, where these divide K; else empty.
    """

    tiles: Raster
    split_k: Divisor
    step: Divisor
    l0: Divisor
    k_tiles: Int32
    rotate_m: Int32
    rotate_n: Int32
    bounds: Bounds | tuple[()] = ()


class GroupOrder(NamedTuple):
    """By what a walk through groups finds a unit: where these are, and the k_tiles of each unit."""

    bounds: Bounds
    k_tiles: Int32


class Dealt(NamedTuple):
    """Work units: their order, and how many there are."""

    order: TileOrder | GroupOrder
    count: Int32


class Ranks(NamedTuple):
    """A CTA's ranks in its cluster: along M, along N, and along K."""

    m: Int32
    n: Int32
    k: Int32
