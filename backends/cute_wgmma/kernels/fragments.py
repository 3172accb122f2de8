"""An M-major A for wgmma from registers: which rows a thread has, and how it loads them.

Any rows will do as a thread's rows, so it has neighbours along M: with 64 rows of a warpgroup two,
with 128 four. It loads them together, and warps take them from different banks. Of 32-bit elements
a loaded vector is what wgmma reads; of 8-bit elements wgmma reads four neighbours along K, and four
vectors are transposed.
"""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint16, Uint32, const_expr, range_constexpr

from ...cute.kernels.device import chosen, read, select
from ..geometry_operands import SWIZZLE_BYTES
from .layouts import ATOM_BYTES
from .records import FragmentSource
from .spec import Spec

__all__ = ["fragment_row", "fragment_source", "load_fragment"]

_ATOM_K = ATOM_BYTES // SWIZZLE_BYTES  # K of an atom: lines of 128 bytes along M
_UNIT = 16  # bytes that a swizzle moves together


def fragment_row(spec: Spec, wg_m: Int32, in_wg: Int32) -> Int32:
    """Return the first row of a thread's part of A, in its tile."""
    lane, warp = in_wg % 32, in_wg // 32
    g = lane // 4
    whole = spec.geometry.repeats_m == 2
    if spec.operands[0].width == 8:
        if whole:
            return wg_m * 128 + (2 * warp + g // 4) * 16 + g % 4 * 4
        return wg_m * 64 + warp * 16 + g * 2
    if whole:
        return wg_m * 128 + warp * 32 + (g // 2 + g % 2 * 4) * 4
    return wg_m * 64 + g // 4 * 32 + (warp + g // 2 % 2 * 4) * 4 + g % 2 * 2


def fragment_source(
    spec: Spec, stages: cute.Tensor, wg_m: Int32, in_wg: Int32
) -> FragmentSource:  # fmt: skip
    """Return where a thread's part of A lies.

    Atoms have a line of 128 bytes along M for each of eight K, their 16-byte units swizzled by K;
    they follow one another along K, then along M. Of 32-bit elements a thread has the K t and t + 4
    of a k_block, of 8-bit ones 4 t to 4 t + 3, and four 16 further on. There lanes t and t + 2
    read the same lines of two atoms, so they begin with different pairs of K.
    """
    size = spec.operands[0].width // 8
    t = in_wg % 4
    first = fragment_row(spec, wg_m, in_wg) * size
    atoms = spec.config.tile[2] // _ATOM_K
    base = first // SWIZZLE_BYTES * (atoms * ATOM_BYTES) + first % _UNIT
    unit = first // _UNIT % (SWIZZLE_BYTES // _UNIT)
    lines, selectors = [t, t + 4], ()
    if size == 1:
        late = t // 2
        base += late * ATOM_BYTES
        lines = [t % 2 * 4 + (j ^ (2 * late)) for j in range(4)]
        even = late == 0
        selectors = (
            select(even, Int32(0x5410), Int32(0x1054)),
            select(even, Int32(0x7632), Int32(0x3276)),
        )
    offsets = tuple(base + k * SWIZZLE_BYTES + (unit ^ k) * _UNIT for k in lines)
    return FragmentSource(stages.iterator.toint(), offsets, selectors)


@cute.jit
def load_fragment(
    spec: cutlass.Constexpr, fragment: cute.Tensor, source: FragmentSource, stage: Int32
) -> None:
    """Load a thread's part of a k_tile of A from its stage to registers."""
    held = source.address + stage * spec.geometry.a_bytes
    repeats = spec.geometry.repeats_m
    words = cute.recast_tensor(fragment, cutlass.Float32)
    for k in range_constexpr(SWIZZLE_BYTES // 32):
        for upper in range_constexpr(2):
            if const_expr(spec.operands[0].width == 8):
                begin = held + (4 * k + 2 * upper) * ATOM_BYTES
                addresses = [begin + offset for offset in source.offsets]
                loaded = transposed(addresses, 2 * repeats, source.selectors)
            else:
                address = held + source.offsets[upper] + k * ATOM_BYTES
                loaded = neighbours(cutlass.Float32, address, 2 * repeats)
            for i in range_constexpr(repeats):
                for half in range_constexpr(2):
                    words[half + 2 * upper + 4 * i + 4 * repeats * k] = loaded[2 * i + half]


def transposed(addresses: list[Int32], count: int, selectors: tuple[Int32, ...]) -> list:
    """Load `count` bytes from each of four addresses; return the first of all, the second, ..."""
    kind = {2: Uint16, 4: Uint32}[count]
    lines = [Int32(neighbours(kind, address, 1)[0]) for address in addresses]
    found = []
    for which in (0x5140, 0x7362)[: count // 2]:  # two neighbours of two lines each
        pairs = [chosen(*lines[x : x + 2], Int32(which)) for x in (0, 2)]
        found += [as_float(chosen(*pairs, selector)) for selector in selectors]
    return found


def as_float(bits: Int32) -> cutlass.Float32:
    """Return the same 32 bits as a float32."""
    return cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Float32], read_only_args=[bits]
    )


def neighbours(kind: type, address: Int32, count: int) -> cute.Tensor:
    """Load `count` elements of shared memory together."""
    pointer = cute.make_ptr(
        kind, address, cute.AddressSpace.smem, assumed_align=count * kind.width // 8
    )
    return read(cute.make_tensor(pointer, cute.make_layout(count)), count)
