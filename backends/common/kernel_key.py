"""What backends that compile do alike: the sizes they take, what a kernel's key holds, strides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from math import ceil
from typing import Any

from unigemm.planning.config import Config
from unigemm.planning.target import Target
from unigemm.problem.canonical import Gemm
from unigemm.problem.epilogue import Epilogue
from unigemm.problem.groups import Groups
from unigemm.problem.problem import BlockScales, Extents, Problem
from unigemm.problem.scales import PER_TENSOR, Scales

__all__ = [
    "INT32_MAX",
    "oriented_aux",
    "oriented_scales",
    "oriented_strides",
    "out_of_bounds",
    "specialisation",
    "too_many",
    "unsupported_blocks",
    "unsupported_memory",
    "unsupported_parameter",
    "unsupported_sizes",
]

INT32_MAX = 2**31 - 1
#: What the numbers of a configuration are between, whatever the backend: the arithmetic of what
#: is legal takes others for granted, and divides by some.
_BOUNDS = {
    "tile": (1, 1024),
    "cluster": (1, 8),
    "stages": (1, 64),
    "warps": (1, 32),
    "thread": (0, 256),
    "occupancy": (0, 32),
    "split_k": (1, 1 << 14),
    "cluster_k": (1, 8),
    "slice_k": (1, 32),
    "producers": (0, 32),
}
_MOST_PARTIALS = 256 << 20  # bytes of the partial sums of a split K, as candidates are listed

Steps = tuple[int, int, int, int]


def unsupported_sizes(extents: Extents) -> str | None:
    """Say why no compiled kernel takes such sizes; None where one may."""
    if max(extents.m, extents.n, extents.k, extents.m * extents.batch) > INT32_MAX:
        return "M, N, K and M times the batch must be below 2**31; cut the product into blocks"
    return None


def unsupported_blocks(problem: Problem) -> str | None:
    """Say why a backend that knows no scales of blocks does not take a problem that has some."""
    if problem.blocks is None:
        return None
    return (
        "it does not multiply by the scales of blocks of K; cute_tcgen05 does on Blackwell's "
        "sm_100a, sm_103a and sm_110a: elsewhere multiply the scaled elements, as bfloat16"
    )


def out_of_bounds(config: Config) -> str | None:
    """Say which number of a configuration is one that no kernel has; None where all may be."""
    for name, (least, most) in _BOUNDS.items():
        value = getattr(config, name)
        if any(not least <= x <= most for x in (value if isinstance(value, tuple) else (value,))):
            return f"{name} is {value}, and kernels have {least} to {most}"
    if not 1 <= config.raster.group <= INT32_MAX:
        return f"the raster's group is {config.raster.group}, and it is 1 at least"
    return next(filter(None, map(out_of_bounds, config.remainder)), None)


def unsupported_parameter(config: Config, unused: Collection[str]) -> str | None:
    """Say what a configuration requests that its kernels do not have; None where nothing is."""
    for name in unused:
        value = getattr(config, name)
        if value != Config.__dataclass_fields__[name].default:
            return f"{name} is {value}, and such kernels have no {name}"
    return None


def unsupported_memory(smem_bytes: int, target: Target) -> str | None:
    """Say that a CTA has less shared memory than a kernel needs; None where it has enough."""
    if smem_bytes <= target.smem_per_block:
        return None
    return (
        f"{smem_bytes} bytes of shared memory exceed the "
        f"{target.smem_per_block} of a CTA on {target.arch}"
    )


def too_many(extents: Extents, config: Config, partials: int) -> str | None:
    """Say why a launch has more CTAs or partial sums than there may be; None where it has not.

    Parameters
    ----------
    extents
        As the kernel sees them.
    config
        Within bounds.
    partials
        Bytes that the workspace has more than with K whole.
    """
    (m, n, _), parts = config.tile, config.split_k * config.cluster_k
    down, across = ceil(extents.m / m), ceil(extents.n / n)
    if down * across * extents.batch * parts > INT32_MAX:
        return f"{extents} in tiles of {m}x{n} is more CTAs than a grid takes"
    if max(down, across) * config.raster.group > INT32_MAX:
        return f"a group of {config.raster.group} is more tiles than there are"
    if partials > _MOST_PARTIALS:
        return f"{partials} bytes of partial sums are more than the {_MOST_PARTIALS} that are taken"
    return None


def specialisation(problem: Problem, config: Config) -> dict[str, Any]:
    """Return what a kernel is specialised on, as plain data for its key: no extents.

    Parameters
    ----------
    problem
        The class that is compiled, as the kernel sees it.
    config
        Its configuration; the raster and the number of parts are arguments of the kernel.
    """
    matrices = {"a": problem.a, "b": problem.b, "d": problem.d}
    return {
        **{
            name: {"dtype": x.dtype.value, "major": x.major, "alignment": x.alignment}
            for name, x in matrices.items()
        },
        "precision": problem.precision,
        "scaled": problem.scaled,
        "blocks": None if problem.blocks is None else _blocks(problem.blocks),
        **_parameters(config),
        # The size of D decides how many threads share the parts, unless they are added in turn.
        "split": config.split_k > 1 and ("in turn" if problem.batch_invariant else True),
        # What most kernels have not is named only where there is one.
        **({"epilogue": _plain(problem.epilogue)} if problem.epilogue else {}),
        **({"scales": _plain(problem.scales)} if problem.scales not in (None, PER_TENSOR) else {}),
        **({"groups": _plain(problem.groups)} if problem.groups else {}),
        **({"converted": problem.converted.value} if problem.converted else {}),
        **(
            {"remainder": [_of_remainder(each) for each in config.remainder]}
            if config.remainder
            else {}
        ),
    }


def _plain(part: Epilogue | Scales | Groups) -> dict[str, Any]:
    """Return a part of a problem as plain data: all fields, those that JSON left out, too."""
    import msgspec

    return msgspec.to_builtins(asdict(part))


def _of_remainder(config: Config) -> dict[str, Any]:
    return {**_parameters(config), "swap_ab": config.swap_ab}


def _parameters(config: Config) -> dict[str, Any]:
    return {
        "tile": list(config.tile),
        "cluster": [*config.cluster, config.cluster_k],
        "warps": [*config.warps, config.slice_k],
        "thread": list(config.thread),
        "occupancy": config.occupancy,
        "stages": config.stages,
        "schedule": config.schedule,
        "producers": config.producers,
        "repacked": config.repacked,
    }


def _blocks(blocks: BlockScales) -> dict[str, Any]:
    return {
        "dtype": blocks.dtype.value, "block": blocks.block, "a": blocks.a, "b": blocks.b
    }  # fmt: skip


def oriented_strides(gemm: Gemm, config: Config) -> tuple[Steps, Steps, Steps]:
    """Return the strides of A, B and D as the kernel sees them: (row, column, L0, L1), elements."""
    if not config.swap_ab:
        return gemm.a_strides, gemm.b_strides, gemm.d_strides
    a, b, d = (
        (column, row, inner, outer)  # M and N are exchanged in each
        for row, column, inner, outer in (gemm.b_strides, gemm.a_strides, gemm.d_strides)
    )
    return a, b, d


def oriented_scales(gemm: Gemm, config: Config) -> tuple[Steps, ...]:
    """Return the strides of the scales of A and B as the kernel sees them; none without scales."""
    strides = gemm.scale_strides or ()
    return strides[::-1] if config.swap_ab else strides


def oriented_aux(gemm: Gemm, config: Config) -> list[int]:
    """Return the strides of the epilogue's arrays as the kernel sees them, one after the other."""
    found: list[int] = []
    for row, column, inner, outer in gemm.aux_strides:
        first, second = (column, row) if config.swap_ab else (row, column)
        found += (first, second, inner, outer)
    return found
