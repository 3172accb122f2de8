"""Device-side pieces that every CuTe backend uses: vectors, tile order, split-K's reduction."""

# No `from __future__ import annotations`: the DSL reads the annotations of what it compiles.
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, const_expr, range_constexpr

from unigemm.dtypes import DType
from unigemm.plans import Config
from unigemm.problem import Problem

from ..workspace import MOST_SLICED, SLICED_PARTS

CUTE_TYPES = {
    DType.FLOAT64: cutlass.Float64,
    DType.FLOAT32: cutlass.Float32,
    DType.FLOAT16: cutlass.Float16,
    DType.BFLOAT16: cutlass.BFloat16,
    DType.FLOAT8_E4M3FN: cutlass.Float8E4M3FN,
    DType.FLOAT8_E5M2: cutlass.Float8E5M2,
    DType.INT8: cutlass.Int8,
    DType.INT32: cutlass.Int32,
}
# Pairs of float4 are moved as bytes: float8 of whichever kind.
_OPERANDS = {
    **CUTE_TYPES,
    DType.FLOAT32: cutlass.TFloat32,
    DType.FLOAT4_E2M1FN_X2: cutlass.Float8E4M3FN,
}
GMEM, SMEM = cute.AddressSpace.gmem, cute.AddressSpace.smem
REDUCE_THREADS_LOG = 7
REDUCE_THREADS = 1 << REDUCE_THREADS_LOG
_AT_ONCE = 8  # parts whose loads a thread has in flight


@dataclass(frozen=True)
class Spec:
    """What is compiled in; everything else is an argument of the kernel.

    `overlap` says whether a launch may overlap the one before it (sm_90 and newer), `packed`
    whether one instruction adds two float32 products to two sums (sm_100 and sm_103; sm_110 and
    sm_120 have it in PTX alone), `smem_per_sm` the bytes of shared memory that the CTAs of an SM
    share.
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
    def sums(self) -> type:
        """Type of the accumulators."""
        return CUTE_TYPES[self.problem.accumulator]

    @property
    def output(self) -> type:
        """Type of what the main kernel writes."""
        return self.sums if self.split else CUTE_TYPES[self.problem.d.dtype]

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
    def reduction(self) -> tuple:
        """What `reduce_kernel` is specialised on, for this problem's D."""
        whole = 128 // self.sums.width
        stored = whole if self.problem.d.vector >= whole else 1
        sliced = not self.problem.batch_invariant
        return self.sums, CUTE_TYPES[self.problem.d.dtype], stored, self.overlap, sliced


def example_arguments(extra: int = 0, scaled: bool = False, in_blocks: bool = False) -> list:
    """Return arguments of a host function's types, for compiling.

    Four addresses, five sizes, twelve strides, three integers of every plan and `extra` ones of the
    backend's; eight strides and two addresses where blocks have scales; two addresses and a factor
    where they do or the product is scaled; and the stream: what `CuteBackend.bind` passes.
    """
    scales = [Int64(1), Int64(1), Float32(1)] if scaled or in_blocks else []
    scales = [*[Int64(1)] * 10, *scales] if in_blocks else scales
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
    wide, narrow = Int64(1), Int32(1)
    numbers = [*[wide] * 4, *[narrow] * 5, *[wide] * 12, *[narrow] * (3 + extra)]
    return [*numbers, *scales, stream]


def pinned(value: Any) -> Any:
    """Return the value, worked out here and once: the compiler would move it, or do it again."""
    kind = type(value)
    return cute.arch.inline_ptx(
        f"mov.b{kind.width} {{$w0}}, {{$r0}};", write_only_types=[kind], read_only_args=[value]
    )


def pinned_tensor(held: cute.Tensor) -> cute.Tensor:
    """Return a tensor of shared memory whose address is worked out here."""
    pointer = held.iterator
    address = pinned(Int32(pointer.toint()))
    kept = cute.make_ptr(pointer.dtype, address, SMEM, assumed_align=pointer.alignment)
    return cute.make_tensor(kept, held.layout)


def wait_with(address: Any, *others: Any) -> None:
    """Wait for the kernel before this one with an address and other numbers worked out."""
    once_worked_out("griddepcontrol.wait", address, *others)


def once_worked_out(instruction: str, address: Any, *others: Any) -> None:
    """Execute an instruction of PTX with an address and other numbers worked out.

    They seem to decide whether to execute it (no address is 0): else ptxas works them out later.
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

    `values` of 64 bits are one of each read. They seem to decide whether to arrive, as above.
    Behind the reads alone an arrival overtakes them where several CTAs share an SM, and TMA then
    brings what they should not see yet (seen on an H200: a tenth of 822 launches were wrong).
    """
    places = [f"{{$r{i}}}" for i in range(1, len(values) + 1)]
    mixed = " ".join(f"xor.b64 mix, mix, {place};" for place in places[1:])
    cute.arch.inline_ptx(
        f"{{ .reg .pred always; .reg .b64 mix; .reg .b32 low; mov.b64 mix, {places[0]}; {mixed} "
        "cvt.u32.u64 low, mix; setp.ne.b32 always, {$r0}, 0; "
        "setp.eq.or.b32 always, low, 0, always; "
        "@always mbarrier.arrive.shared::cta.b64 _, [{$r0}]; }",
        read_only_args=[Int32(barrier.toint()), *values],
    )


def fetch_ahead(*places: Int64) -> None:
    """Bring what lies there into the L2, while a kernel before may run (and even write it)."""
    for place in places:
        cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[place])


def select(condition: cutlass.Boolean, yes: Int32, no: Int32) -> Int32:
    """Choose without a branch."""
    return Int32(cutlass.select_(condition, Int32(yes), Int32(no)))


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
    fragment = cute.make_rmem_tensor(len(values), dtype)
    for i, value in enumerate(values):
        fragment[i] = value.to(dtype)
    cute.autovec_copy(fragment, target)


def shifted(words: list, skipped: Int32, aligned: int) -> list:
    """Return the 16 bytes of 32 behind so many (15 at most), which are a multiple of `aligned`."""
    for step, kept in ((2, 6), (1, 5)):
        if aligned < 8 * step:
            skip = (skipped & (4 * step)) != 0
            words = [Uint32(cutlass.select_(skip, words[i + step], words[i])) for i in range(kept)]
    if aligned >= 4:
        return words[:4]
    bits = (skipped & 3) * 8
    return [funnel(words[i], words[i + 1], bits) for i in range(4)]


def funnel(low: Uint32, high: Uint32, bits: Int32) -> Uint32:
    """Return the 32 bits of two words that begin so many bits into the first, 31 at most."""
    return cute.arch.inline_ptx(
        "shf.r.wrap.b32 {$w0}, {$r0}, {$r1}, {$r2};",
        write_only_types=[Uint32],
        read_only_args=[low, high, bits],
    )


def read_if(there: cutlass.Boolean, address: Int64, dtype: type, count: int) -> tuple:
    """Load neighbouring elements of device memory, or zeros; no branch, and no wait for them.

    In PTX, because loads and their sums in turn had two loads in flight, whatever was unrolled.
    """
    bits, zero = f"b{dtype.width}", "0"
    if dtype.is_float:
        bits, zero = f"f{dtype.width}", "0f00000000" if dtype.width == 32 else "0d0000000000000000"
    outs = [f"{{$w{i}}}" for i in range(count)]
    clear = " ".join(f"mov.{bits} {out}, {zero};" for out in outs)
    return cute.arch.inline_ptx(
        f"{{ .reg .pred there; setp.ne.b32 there, {{$r1}}, 0; {clear} "
        f"@there ld.global.v{count}.{bits} {{{', '.join(outs)}}}, [{{$r0}}]; }}",
        write_only_types=[dtype] * count,
        read_only_args=[address, select(there, Int32(1), Int32(0))],
    )


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
    """Store a vector along N, or those of its elements that exist (`left` of them)."""
    count = cute.size(fragment)
    size = dtype.width // 8
    if left >= count:
        write(elements(fragment, 0, count), global_vector(address, dtype, count))
    else:
        for i in range_constexpr(count - 1):
            if i < left:
                write(elements(fragment, i, 1), global_vector(address + i * size, dtype, 1))


Divisor = cute.FastDivmodDivisorV2  # made on the host, divides by multiplying in the kernel


def raster(tiles_m: Int32, tiles_n: Int32, along_n: Int32, group: Int32) -> tuple:
    """Work out on the host what `tile_coordinates` divides by."""
    swap = along_n != 0
    swept = select(swap, tiles_n, tiles_m)
    grouped = select(swap, tiles_m, tiles_n)
    bands = grouped // group  # whole ones
    left = cutlass.max(grouped - bands * group, Int32(1))
    divisors = (tiles_m * tiles_n, swept * group, group, left)
    return (along_n, bands, *[Divisor(number) for number in divisors])


def tile_coordinates(index: Int32, raster: tuple) -> tuple[Int32, Int32, Int32]:
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


@cute.kernel
def reduce_kernel(
    types: cutlass.Constexpr,
    workspace: Int64,
    d: Int64,
    m: Int32,
    n: Int32,
    l0: Int32,
    batches: Int32,
    part_pitch: Int64,
    row_pitch: Int64,
    d_strides: tuple,
    split_k: Int32,
    slices_log: Int32,
) -> None:
    """Add the parts of each element, and write D.

    Of many parts of a small D, slices of a CTA's threads add some each, in their order, and then
    the slices' sums in theirs. `types` are those of the sums and of D, the elements that one store
    writes, whether the launch may overlap the kernel before it (sm_90 and newer), and whether there
    may be slices: their number, and so the order of the sums, depends on the size of D.
    """
    sums, dtype, stored, overlap, _ = types
    count = const_expr(128 // sums.width)  # rows of the workspace are padded to 16 bytes
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    wide = Int32(REDUCE_THREADS) >> slices_log
    own = thread & (wide - 1)
    part = thread >> (REDUCE_THREADS_LOG - slices_log)
    per_row = (n + count - 1) // count
    index = Int64(block) * wide + own
    inside = index < Int64(batches) * m * per_row
    line = Int32(index // per_row)
    column = Int32(index - Int64(line) * per_row) * count
    total = cute.make_rmem_tensor(count, sums)
    total.fill(0.0)
    each = (split_k + (Int32(1) << slices_log) - 1) >> slices_log
    first = part * each
    mine = select(inside, cutlass.min(each, split_k - first), Int32(0))
    size = const_expr(sums.width // 8)
    where = workspace + (Int64(first) * part_pitch + Int64(line) * row_pitch + column) * size
    batch = line // m
    i1 = batch // l0
    at = (line - batch * m, column, batch - i1 * l0, i1)
    offset = sum(Int64(at[i]) * d_strides[i] for i in range(4))
    if const_expr(overlap):  # all before this may overlap the kernel before this one
        wait_with(where, offset)
        cute.arch.griddepcontrol_launch_dependents()
    add_parts(total, where, part_pitch * size, mine)
    if slices_log > 0:
        add_slices(total, sums, count, thread, wide)
    if inside & (part == 0):
        where = d + offset * const_expr(dtype.width // 8)
        store_total(total, where, d_strides[1], n - column, dtype, stored == count)


@cute.jit
def add_parts(total: cute.Tensor, where: Int64, part_bytes: Int64, parts: Int32) -> None:
    """Add so many vectors, which lie so many bytes apart, in their order."""
    count = cute.size(total)
    for done in cutlass.range(0, parts, _AT_ONCE, unroll=1):
        values = []
        for i in range_constexpr(_AT_ONCE):
            values.append(read_if(done + i < parts, where, total.element_type, count))
            where += part_bytes
        for i in range_constexpr(_AT_ONCE):
            for j in range_constexpr(count):
                total[j] += values[i][j]


@cute.jit
def store_total(
    total: cute.Tensor, where: Int64, column_step: Int64, left: Int32, dtype: cutlass.Constexpr,
    together: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Store neighbours along N, of which `left` exist: `together` as a vector, else one by one."""
    if const_expr(together):
        store_vector(total, where, left, dtype)
    else:
        for i in range_constexpr(cute.size(total)):
            if i < left:
                at = where + i * column_step * (dtype.width // 8)
                write(elements(total, i, 1), global_vector(at, dtype, 1))


@cute.jit
def add_slices(
    total: cute.Tensor, sums: cutlass.Constexpr, count: cutlass.Constexpr, thread: Int32,
    wide: Int32,
) -> None:  # fmt: skip
    """Add the sums of the threads `wide` apart to those of the first ones."""
    smem = cutlass.memory.SmemAllocator()
    kept = smem.allocate_array(sums, REDUCE_THREADS * count)
    write(elements(total, 0, count), shared_vector(kept, thread * count, count))
    cute.arch.sync_threads()
    if thread < wide:
        for other in cutlass.range(thread + wide, REDUCE_THREADS, wide, unroll=1):
            values = read(shared_vector(kept, other * count, count), count)
            for i in range_constexpr(count):
                total[i] += values[i]


@cute.jit
def launch_reduction(
    types: cutlass.Constexpr,
    workspace: Int64,
    d: Int64,
    m: Int32,
    n: Int32,
    batch: tuple,
    d_strides: tuple,
    split_k: Int32,
    stream: cuda.CUstream,
) -> None:
    """Reduce a workspace of `split_k` parts, rows padded to 16 bytes, into D."""
    sums, _, _, overlap, sliced = types
    count = const_expr(128 // sums.width)
    row_pitch, part_pitch = workspace_pitches(sums, m, n, batch[0] * batch[1])
    work = Int64(batch[0]) * batch[1] * m * ((n + count - 1) // count)
    slices_log = Int32(0)
    if const_expr(sliced):
        for parts in SLICED_PARTS:
            more = (split_k >= parts) & (work << (slices_log + 1) <= MOST_SLICED)
            slices_log += select(more, Int32(1), Int32(0))
    wide = Int32(REDUCE_THREADS) >> slices_log
    reduce_kernel(
        types, workspace, d, m, n, batch[0], batch[0] * batch[1], part_pitch, row_pitch,
        d_strides, split_k, slices_log,
    ).launch(  # a block an SM: else ptxas spares registers, and waits for two loads at a time
        grid=(Int32((work + wide - 1) // wide), 1, 1),
        block=(REDUCE_THREADS, 1, 1), stream=stream, min_blocks_per_mp=1, use_pdl=overlap,
    )  # fmt: skip


def workspace_pitches(sums: type, m: Int32, n: Int32, batches: Int32) -> tuple[Int64, Int64]:
    """Elements between rows and between parts of the workspace."""
    unit = 128 // sums.width
    row_pitch = Int64((n + unit - 1) // unit * unit)
    return row_pitch, row_pitch * m * batches


def target_of_sums(
    spec: Spec, parts: Int64, d: Int64, sizes: tuple, d_steps: tuple
) -> tuple[Int64, tuple]:
    """Return where the main kernel writes, and its strides: D, or the parts in the workspace."""
    if not spec.split:
        return d, d_steps
    m, n, l0, l1 = sizes
    lines, line = (n, m) if spec.down else (m, n)
    row_pitch, part_pitch = workspace_pitches(spec.sums, lines, line, l0 * l1)
    steps = (Int64(1), row_pitch) if spec.down else (row_pitch, Int64(1))
    return parts, (*steps, row_pitch * lines, row_pitch * lines * l0, part_pitch)


def reduce_parts(
    spec: Spec, parts: Int64, d: Int64, sizes: tuple, d_steps: tuple, split_k: Int32,
    stream: cuda.CUstream,
) -> None:  # fmt: skip
    """Launch the reduction of the parts, if there are any, into D."""
    if not spec.split:
        return
    m, n, l0, l1 = sizes
    d_m, d_n, d_l0, d_l1 = d_steps
    lines, line, steps = (n, m, (d_n, d_m)) if spec.down else (m, n, (d_m, d_n))
    launch_reduction(
        spec.reduction, parts, d, lines, line, (l0, l1), (*steps, d_l0, d_l1), split_k, stream
    )


reduce_kernel.set_name_prefix("split_reduce", remove_cutlass_symbol=True, keep_mangled_name=False)
