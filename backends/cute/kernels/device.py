"""What all CuTe kernels use: the `Spec` of a kernel, vectors in memory, the order of tiles."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint16, Uint32, range_constexpr

from unigemm.planning.config import Config
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import Problem

CUTE_TYPES = {
    DType.FLOAT64: cutlass.Float64,
    DType.FLOAT32: cutlass.Float32,
    DType.FLOAT16: cutlass.Float16,
    DType.BFLOAT16: cutlass.BFloat16,
    DType.FLOAT8_E4M3FN: cutlass.Float8E4M3FN,
    DType.FLOAT8_E5M2: cutlass.Float8E5M2,
    DType.INT8: cutlass.Int8,
    DType.INT32: cutlass.Int32,
    DType.BOOL: Uint8,  # 0 or 1
    DType.INT16: cutlass.Int16,
    DType.INT64: Int64,
    DType.UINT8: Uint8,
    DType.UINT16: Uint16,
    DType.UINT32: Uint32,
    DType.UINT64: cutlass.Uint64,
}
FLOAT8_NAMES = {cutlass.Float8E4M3FN: "e4m3", cutlass.Float8E5M2: "e5m2"}  # as PTX has them
# Pairs of float4 are moved as bytes: float8 of whichever kind.
_OPERANDS = {
    **CUTE_TYPES,
    DType.FLOAT32: cutlass.TFloat32,
    DType.FLOAT4_E2M1FN_X2: cutlass.Float8E4M3FN,
}
GMEM, SMEM = cute.AddressSpace.gmem, cute.AddressSpace.smem


@dataclass(frozen=True)
class Reduction:
    """What is compiled into the reduction of split-K.

    Attributes
    ----------
    acc, output
        Types of the partial sums and of D.
    together
        Whether 16 bytes of partial sums become one vector of D.
    overlap
        See `Spec`.
    sliced
        Whether slices of a CTA may add some parts each: their number, and so the order of
        additions, depends on the size of D.
    problem
        With an epilogue, the problem whose rows are the lines of D.
    """

    acc: type
    output: type
    together: bool
    overlap: bool
    sliced: bool
    problem: Problem | None


@dataclass(frozen=True)
class Spec:
    """What is compiled in; everything else is an argument of the kernel.

    Attributes
    ----------
    overlap
        Whether a launch may overlap the one before it (sm_90 and newer).
    packed
        Whether one instruction has two float32 multiply-adds (sm_100 and sm_103; sm_110 and sm_120
        have it in PTX alone).
    smem_per_sm
        Bytes of shared memory that the CTAs of an SM share.
    """

    problem: Problem
    config: Config
    overlap: bool
    packed: bool
    smem_per_sm: int

    @property
    def split(self) -> bool:
        """Whether partial sums go to the workspace."""
        return self.config.split_k > 1

    @property
    def acc(self) -> type:
        """Type of the accumulators."""
        return CUTE_TYPES[self.problem.accumulator]

    @property
    def output(self) -> type:
        """Type of what the main kernel writes."""
        return self.acc if self.split else CUTE_TYPES[self.problem.d.dtype]

    @property
    def inputs(self) -> tuple[type, type]:
        """Types of A and B."""
        return CUTE_TYPES[self.problem.a.dtype], CUTE_TYPES[self.problem.b.dtype]

    @property
    def operands(self) -> tuple[type, type]:
        """Types of A and B as tensor cores read them: float32 as TF32."""
        return _OPERANDS[self.problem.a.dtype], _OPERANDS[self.problem.b.dtype]

    @property
    def down(self) -> bool:
        """Whether columns of D, not rows, are contiguous."""
        return self.problem.d.major == "m"

    @property
    def reduction(self) -> Reduction:
        """What `reduce_kernel` is specialised on, for this problem's D."""
        problem = None
        if self.problem.epilogue is not None:
            problem = self.problem.transposed if self.down else self.problem
        return Reduction(
            self.acc,
            CUTE_TYPES[self.problem.d.dtype],
            together=self.problem.d.vector >= 128 // self.acc.width,
            overlap=self.overlap,
            sliced=not self.problem.batch_invariant,
            problem=problem,
        )


def pinned(value: Any) -> Any:
    """Return the value, computed here and once; else the compiler moves it or computes it again."""
    kind = type(value)
    return cute.arch.inline_ptx(
        f"mov.b{kind.width} {{$w0}}, {{$r0}};", write_only_types=[kind], read_only_args=[value]
    )


def pinned_tensor(held: cute.Tensor) -> cute.Tensor:
    """Return a tensor of shared memory whose address is computed here."""
    pointer = held.iterator
    address = pinned(Int32(pointer.toint()))
    kept = cute.make_ptr(pointer.dtype, address, SMEM, assumed_align=pointer.alignment)
    return cute.make_tensor(kept, held.layout)


def wait_with(address: Any, *others: Any) -> None:
    """Wait for the kernel before this one when an address and other numbers are computed."""
    once_worked_out("griddepcontrol.wait", address, *others)


def once_worked_out(instruction: str, address: Any, *others: Any) -> None:
    """Execute an instruction of PTX when an address and other numbers are computed.

    The numbers seem to decide whether to execute it (no address is 0); else ptxas computes them
    later.
    """
    tests = "".join(
        f"setp.eq.or.b{type(each).width} always, {{$r{i}}}, 0, always; "
        for i, each in enumerate(others, 1)
    )
    cute.arch.inline_ptx(
        f"{{ .reg .pred always; setp.ne.b64 always, {{$r0}}, 0; {tests}@always {instruction}; }}",
        read_only_args=[address, *others],
    )


def arrive_once_read(barrier: cute.Pointer, values: list) -> None:
    """Arrive at a barrier of shared memory when what was read there is in registers.

    `values` are 64 bits of each read. They seem to decide whether to arrive, as above. An arrival
    that only stands behind the reads overtakes them where several CTAs share an SM, and TMA then
    brings what they should not see yet (docs/lab-notes/2026-11-25-float64-few-rows.md).
    """
    names = [f"{{$r{i}}}" for i in range(1, len(values) + 1)]
    mixed = " ".join(f"xor.b64 mix, mix, {name};" for name in names[1:])
    cute.arch.inline_ptx(
        f"{{ .reg .pred always; .reg .b64 mix; .reg .b32 low; mov.b64 mix, {names[0]}; {mixed} "
        "cvt.u32.u64 low, mix; setp.ne.b32 always, {$r0}, 0; "
        "setp.eq.or.b32 always, low, 0, always; "
        "@always mbarrier.arrive.shared::cta.b64 _, [{$r0}]; }",
        read_only_args=[Int32(barrier.toint()), *values],
    )


def fetch_ahead(*addresses: Int64) -> None:
    """Prefetch into the L2 what the kernel before may still be writing."""
    for address in addresses:
        cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[address])


def select(condition: cutlass.Boolean, yes: Int32, no: Int32) -> Int32:
    """Choose without a branch."""
    return Int32(cutlass.select_(condition, Int32(yes), Int32(no)))


def chosen(low: Int32, high: Int32, which: Int32) -> Int32:
    """Return four of the eight bytes of two words (PTX ISA, prmt)."""
    return cute.arch.inline_ptx(
        "prmt.b32 {$w0}, {$r0}, {$r1}, {$r2};",
        write_only_types=[Int32],
        read_only_args=[low, high, which],
    )


def shared_vector(pointer: cute.Pointer, offset: Int32, count: int) -> cute.Tensor:
    """View `count` neighbouring elements of shared memory, aligned to all of them."""
    size = pointer.dtype.width // 8
    # Not Pointer.align, which rounds at run time: two instructions, and no offset in the access.
    address = pointer.toint() + offset * size
    aligned = cute.make_ptr(pointer.dtype, address, SMEM, assumed_align=count * size)
    return cute.make_tensor(aligned, cute.make_layout(count))


def global_vector(address: Int64, dtype: type, count: int) -> cute.Tensor:
    """View `count` neighbouring elements of device memory, aligned to all of them."""
    pointer = cute.make_ptr(dtype, address, GMEM, assumed_align=count * dtype.width // 8)
    return cute.make_tensor(pointer, cute.make_layout(count))


def read(source: cute.Tensor, count: int) -> cute.Tensor:
    """Load a vector into registers."""
    fragment = cute.make_rmem_tensor(count, source.element_type)
    cute.autovec_copy(source, fragment)
    return fragment


def write(values: list, target: cute.Tensor) -> None:
    """Store values as one vector, each converted to the target's type."""
    dtype = target.element_type
    if dtype in FLOAT8_NAMES:
        bytes_of = [
            byte for i in range(0, len(values), 2) for byte in packed8(values[i : i + 2], dtype)
        ]
        pointer = cute.recast_ptr(target.iterator, dtype=Uint8)
        write(bytes_of, cute.make_tensor(pointer, cute.make_layout(len(values))))
        return
    fragment = cute.make_rmem_tensor(len(values), dtype)
    for i, value in enumerate(values):
        fragment[i] = value.to(dtype)
    cute.autovec_copy(fragment, target)


def packed8(values: list, dtype: type) -> list:
    """Round one or two float32 to float8, to the nearest that there is; return them as bytes."""
    name = FLOAT8_NAMES[dtype]
    word = cute.arch.inline_ptx(
        f"cvt.rn.satfinite.{name}x2.f32 {{$w0}}, {{$r1}}, {{$r0}};",
        write_only_types=[Uint16],
        read_only_args=[values[0].to(Float32), values[-1].to(Float32)],
    )
    return [Uint8(word & 0xFF), Uint8(word >> 8)][: len(values)]


def unpacked8(value: Uint8, dtype: type) -> Float32:
    """Return a float8, which comes as a byte, as float32."""
    return cute.arch.inline_ptx(
        "{ .reg .b32 pair; .reg .b16 low, high; "
        f"cvt.rn.f16x2.{FLOAT8_NAMES[dtype]}x2 pair, {{$r0}}; "
        "mov.b32 {low, high}, pair; cvt.f32.f16 {$w0}, low; }",
        write_only_types=[Float32],
        read_only_args=[Uint16(value)],
    )


def shifted(words: list, skipped: Int32, aligned: int) -> list:
    """Return 16 of 32 bytes, behind the first `skipped` (15 at most, a multiple of `aligned`)."""
    for step, kept in ((2, 6), (1, 5)):
        if aligned < 8 * step:
            skip = (skipped & (4 * step)) != 0
            words = [Uint32(cutlass.select_(skip, words[i + step], words[i])) for i in range(kept)]
    if aligned >= 4:
        return words[:4]
    bits = (skipped & 3) * 8
    return [funnel(words[i], words[i + 1], bits) for i in range(4)]


def funnel(low: Uint32, high: Uint32, bits: Int32) -> Uint32:
    """Return the 32 bits of two words that begin `bits` into the first (31 at most)."""
    return cute.arch.inline_ptx(
        "shf.r.wrap.b32 {$w0}, {$r0}, {$r1}, {$r2};",
        write_only_types=[Uint32],
        read_only_args=[low, high, bits],
    )


def read_if(there: cutlass.Boolean, address: Int64, dtype: type, count: int) -> tuple:
    """Load neighbouring elements of device memory, or zeros, without a branch.

    In PTX: with the DSL's loads and additions in turn only two loads were in flight, however
    unrolled.
    """
    bits, zero = f"b{dtype.width}", "0"
    if dtype.is_float:
        bits, zero = f"f{dtype.width}", "0f00000000" if dtype.width == 32 else "0d0000000000000000"
    outs = [f"{{$w{i}}}" for i in range(count)]
    clear = " ".join(f"mov.{bits} {out}, {zero};" for out in outs)
    vector, into = (f".v{count}", f"{{{', '.join(outs)}}}") if count > 1 else ("", outs[0])
    found = cute.arch.inline_ptx(
        f"{{ .reg .pred there; setp.ne.b32 there, {{$r1}}, 0; {clear} "
        f"@there ld.global{vector}.{bits} {into}, [{{$r0}}]; }}",
        write_only_types=[dtype] * count,
        read_only_args=[address, select(there, Int32(1), Int32(0))],
    )
    return found if count > 1 else (found,)


def read_parts(pointer: cute.Pointer, offset: Int32, count: int) -> cute.Tensor:
    """Load `count` neighbouring accumulators from shared memory, 16 bytes at a time."""
    widest = min(count, 128 // pointer.dtype.width)
    fragment = cute.make_rmem_tensor(count, pointer.dtype)
    for start in range(0, count, widest):
        part = read(shared_vector(pointer, offset + start, widest), widest)
        for i in range(widest):
            fragment[start + i] = part[i]
    return fragment


def elements(fragment: cute.Tensor, first: int, count: int) -> list:
    """Return `count` values of a register fragment."""
    return [fragment[first + i] for i in range(count)]


@cute.jit
def store_vector(
    fragment: cute.Tensor, address: Int64, left: Int32, dtype: cutlass.Constexpr
) -> None:
    """Store a vector along N, or only the first `left` elements, where D has no more."""
    count = cute.size(fragment)
    size = dtype.width // 8
    if left >= count:
        write(elements(fragment, 0, count), global_vector(address, dtype, count))
    else:
        for i in range_constexpr(count - 1):
            if i < left:
                write(elements(fragment, i, 1), global_vector(address + i * size, dtype, 1))


Divisor = cute.FastDivmodDivisorV2  # made on the host, divides by multiplying in the kernel


class Raster(NamedTuple):
    """The order of tiles: sweeps along one index, some tiles of the other wide (a band).

    Attributes
    ----------
    along_n
        Whether tiles run along N first: 0 or 1.
    bands
        How many are as wide as they may be.
    tiles, band_tiles
        How many tiles a sweep of all has, and such a band.
    wide, last_wide
        Tiles across a band, and across the last one.
    """

    along_n: Int32
    bands: Int32
    tiles: Divisor
    band_tiles: Divisor
    wide: Divisor
    last_wide: Divisor


def raster(tiles_m: Int32, tiles_n: Int32, along_n: Int32, group: Int32) -> Raster:
    """Work out on the host what `tile_coordinates` divides by."""
    swap = along_n != 0
    swept = select(swap, tiles_n, tiles_m)
    grouped = select(swap, tiles_m, tiles_n)
    bands = grouped // group  # whole ones
    left = cutlass.max(grouped - bands * group, Int32(1))
    divisors = (tiles_m * tiles_n, swept * group, group, left)
    return Raster(along_n, bands, *[Divisor(number) for number in divisors])


def tile_coordinates(index: Int32, raster: Raster) -> tuple[Int32, Int32, Int32]:
    """Tile (m, n) of a running number, and the number of whole sweeps before it.

    Sweeps along one index of the tiles, `group` tiles of the other wide.
    """
    along_n, bands, tiles, band_tiles, group, left = raster
    sweeps, index = divmod(index, tiles)
    band, inside = divmod(index, band_tiles)
    along, across = divmod(inside, group)
    last_along, last_across = divmod(inside, left)
    whole = band < bands
    along = select(whole, along, last_along)
    across = band * group.divisor + select(whole, across, last_across)
    swap = along_n != 0
    return select(swap, across, along), select(swap, along, across), sweeps
