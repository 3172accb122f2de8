"""What the rungs of the ladder switch off."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from unigemm.backends.cute_simt import geometry as simt
from unigemm.backends.cute_simt.geometry import Geometry
from unigemm.backends.cute_simt.geometry_operands import BANK_VECTOR, OperandTile
from unigemm.planning.config import Config
from unigemm.problem.problem import Problem

__all__ = [
    "BYTES",
    "OPTIONS",
    "OWN",
    "PAD",
    "SIDE",
    "Options",
    "Unswizzled",
    "pitch_of",
    "smem_bytes",
    "stripped",
]


BYTES = 4  # of a float32

SIDE = 16  # threads of a CTA along M, and along N, in the kernels of `bench.ladder_kernels`

PAD = 2  # floats of a line: a warp that writes 16 K of two rows then finds 32 banks

OWN = ("naive", "tiled", "padded", "pipelined")  # schedules of `bench.ladder_kernels`


@dataclass(frozen=True)
class Options:
    """What the shipped kernel does.

    Attributes
    ----------
    bits
        The widest access: copies from device memory, reads of shared memory, stores to D. K-major
        operands that are transposed come in 32 bits always.
    pipelined
        Copies are issued between the products.
    transposed
        K-major operands are transposed by their copies, to be read along M and N.
    """

    bits: int = 128
    pipelined: bool = True
    transposed: bool = True


#: By the schedules of their configurations.
OPTIONS = {
    **{f"{bits} bits": Options(bits) for bits in (32, 64, 128)},
    **{f"{bits} bits, in turn": Options(bits, pipelined=False) for bits in (32, 64, 128)},
    "as it lies": Options(transposed=False),
}


class Unswizzled(OperandTile):
    """A transposed tile whose pitch alone spreads it over the banks: narrow reads allow that."""

    def swizzle_xor(self, line: int) -> int:
        """Return that no element is stored elsewhere."""
        return 0


def stripped(problem: Problem, config: Config) -> Geometry:
    """Return the numbers of the shipped kernel without the options that are off."""
    geo, options = simt.geometry(problem, config), OPTIONS[config.schedule]
    wide = options.bits // (8 * BYTES)
    a, b = (
        _stripped(tile, kind.vector, wide, options)
        for tile, kind in ((geo.a, problem.a), (geo.b, problem.b))
    )
    patch_width, store_width = min(geo.patch_width, b.run), min(geo.store_width, wide)
    return replace(
        geo,
        a=a,
        b=b,
        step=max((tile.vector for tile in (a, b) if tile.k_major), default=1),
        patch_width=patch_width,
        store_width=store_width,
        stores_directly=patch_width == store_width > 1,
        column_step=store_width,
        smem_bytes=max(geo.smem_bytes, config.stages * (a.bytes + b.bytes)),
    )


def _stripped(tile: OperandTile, copy_width: int, wide: int, options: Options) -> OperandTile:
    """Return one operand's tile, with accesses of `wide` and copies of `copy_width` elements."""
    if tile.transposed and not options.transposed:
        pitch = tile.k_tile + BANK_VECTOR // BYTES
        tile = replace(
            tile, transposed=False, k_major=True, pitch=pitch, run=1, copy_width=copy_width
        )
    elif tile.transposed and wide < tile.vector:
        tile = Unswizzled(**asdict(tile) | {"pitch": tile.extent + PAD})
    run = 1 if tile.k_major else min(tile.run, wide)
    copy_width = min(tile.copy_width, wide)
    return replace(tile, run=run, vector=min(tile.vector, wide), copy_width=copy_width)


def pitch_of(config: Config) -> int:
    """Return the floats between lines of A in shared memory, in the ladder's own kernels."""
    return config.tile[0] + (0 if config.schedule == "tiled" else PAD)


def smem_bytes(problem: Problem, config: Config) -> int:
    """Return the shared memory of a CTA."""
    if config.schedule in OPTIONS:
        return stripped(problem, config).smem_bytes
    if config.schedule == "naive":
        return 0
    return config.stages * config.tile[2] * (pitch_of(config) + config.tile[1]) * BYTES
