"""Layouts of operands in shared memory, which TMA fills and wgmma reads, and both instructions.

Stages begin at multiples of 1024 bytes, which swizzles of 128 bytes need (`gemm.gemm_kernel`).
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from math import prod
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from ...common.workspace import PANEL_ROWS
from ...cute.kernels.records import TmaView
from ..geometry_operands import MMA_M, SWIZZLE_BYTES, TMA_BYTES
from .spec import Spec

__all__ = [
    "ATOM_BYTES",
    "load_atom",
    "loads_of_b",
    "operand_layout",
    "panels_layout",
    "tiled_mma",
    "whole_rows",
]


ATOM_BYTES = 8 * SWIZZLE_BYTES  # what a swizzle mixes


class Tf32Op(warpgroup.MmaF16BF16Op):
    """wgmma of TF32 operands, both K-major; the DSL has a class for every other type."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def _verify(self) -> None:
        """Accept what the base class does not: TF32 with 8 elements of K."""


def operand_layout(
    spec: Spec, dtype: type, extent: int, k_major: bool, swizzle: int
) -> cute.ComposedLayout:
    """Shared-memory layout (extent, K, stages), swizzled as wgmma reads it."""
    kinds = warpgroup.SmemLayoutAtomKind
    wide = {128: kinds.MN_SW128, 64: kinds.MN_SW64, 32: kinds.MN_SW32, 16: kinds.MN_INTER}[swizzle]
    atom = warpgroup.make_smem_layout_atom(kinds.K_SW128 if k_major else wide, dtype)
    shape = (extent, spec.config.tile[2], spec.config.stages)
    return cute.tile_to_shape(atom, shape, order=(0, 1, 2) if k_major else (1, 0, 2))


def loads_of_b(spec: Spec) -> tuple[int, ...]:
    """Shape of what one load of B brings: (columns, K), or of panels (eight rows, K, columns)."""
    _, n, k = spec.config.tile
    if not spec.panels:
        return n, k
    unit = TMA_BYTES * 8 // spec.operands[1].width
    return unit * PANEL_ROWS, k // PANEL_ROWS, n // unit


def panels_layout(spec: Spec) -> cute.Layout:
    """Shared-memory layout of the stages of B as panels are loaded: one after another."""
    shape = (*loads_of_b(spec), spec.config.stages)
    return cute.make_layout(shape, stride=tuple(prod(shape[:i]) for i in range(len(shape))))


def whole_rows(spec: Spec, layout: cute.ComposedLayout) -> cute.ComposedLayout:
    """Return the layout of A as wgmma reads it: 64 rows, however few of them a stage holds."""
    rows, columns, stages = spec.config.tile[0], spec.config.tile[2], spec.config.stages
    if rows >= MMA_M:
        return layout
    if spec.k_major[0]:
        atom = cute.make_layout((8, columns), stride=(columns, 1))
        whole = cute.tile_to_shape(atom, (MMA_M, columns, 1), order=(0, 1, 2))
    else:
        atom = cute.make_layout((rows, 8), stride=(1, rows))
        whole = cute.tile_to_shape(atom, (MMA_M, columns, 1), order=(1, 0, 2))
    outer = cute.make_layout((*whole.shape[:2], stages), stride=(*whole.stride[:2], rows * columns))
    return cute.make_composed_layout(layout.inner, 0, outer)


def tiled_mma(spec: Spec) -> cute.TiledMma:
    """Return the wgmma of one group of warpgroups."""
    geo, (dtype, other) = spec.geometry, spec.operands
    shape = (MMA_M, geo.mma_n, 256 // dtype.width)  # 32 bytes of K
    sources = warpgroup.OperandSource
    source = sources.RMEM if geo.fragments else sources.SMEM
    in_order = (spec.k_major[0] or geo.fragments > 0, spec.k_major[1])
    majors = [OperandMajorMode.K if k else OperandMajorMode.MN for k in in_order]
    if dtype.width == 8:
        kind = warpgroup.MmaI8Op if spec.acc is Int32 else warpgroup.MmaF8Op
        op = kind(dtype, other, spec.acc, shape, source, *majors)
    else:
        kind = Tf32Op if dtype is cutlass.TFloat32 else warpgroup.MmaF16BF16Op
        op = kind(dtype, spec.acc, shape, source, *majors)
    return cute.make_tiled_mma(cute.make_mma_atom(op), (geo.wg_m, geo.wg_n, 1))


def load_atom(tensor: cute.Tensor, layout: Any, tile: tuple[int, ...], sharers: int) -> TmaView:
    """TMA load of one stage, multicast to `sharers` CTAs that each bring a part."""
    op = (
        cpasync.CopyBulkTensorTileG2SMulticastOp()
        if sharers > 1
        else cpasync.CopyBulkTensorTileG2SOp()
    )
    one = cute.select(layout, mode=list(range(len(tile))))
    return TmaView(*cpasync.make_tiled_tma_atom(op, tensor, one, tile, num_multicast=sharers))
