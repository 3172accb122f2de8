"""Probes of instructions that move memory: atomic operations, matrices, cp.async, TMA.

Each is a kernel over arrays whose bytes afterwards are compared. Tensor maps lie in device memory;
those of a GPU are made by its driver. What the driver writes is kept too, and is what the emulator
must be able to read.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from emulated import kernel

from unigemm.emulator import Memory, launch

TYPES: dict[str, Any] = {
    "u8": np.uint8, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "b32": np.uint32,
}  # fmt: skip
#: Names of the driver's element types, and their numbers in a descriptor.
DRIVER_TYPES = {
    "u8": ("UINT8", 0), "u32": ("UINT32", 2), "s32": ("INT32", 3), "u64": ("UINT64", 4),
    "s64": ("INT64", 5), "f16": ("FLOAT16", 6), "f32": ("FLOAT32", 7), "f64": ("FLOAT64", 9),
    "bf16": ("BFLOAT16", 10),
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


@dataclass(frozen=True)
class Map:
    """A tensor map of an array, which is contiguous: box with the contiguous dimension first.

    Of the contiguous dimension the tensor has only `width` elements, if that is given.
    """

    kind: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    width: int = 0

    @property
    def name(self):
        sizes = "x".join(map(str, self.shape)), "x".join(map(str, self.box))
        width = f" width {self.width}" if self.width else ""
        return f"map of {self.kind} {sizes[0]}{width} box {sizes[1]} swizzle {self.swizzle}"

    @property
    def extents(self):
        """Elements of the tensor, the contiguous dimension first."""
        return (self.width or self.shape[-1], *self.shape[-2::-1])

    @property
    def strides(self):
        """Bytes between elements of each dimension, the contiguous one first."""
        out = [np.dtype(TYPES[self.kind]).itemsize]
        for extent in self.shape[:0:-1]:
            out.append(out[-1] * extent)
        return tuple(out)

    def written(self, address):
        """Return the descriptor as CuTe DSL writes it."""
        rank, extents = len(self.shape), self.extents
        flags = 2 | (rank - 1) << 4 | DRIVER_TYPES[self.kind][1] << 7 | 1 << 18
        words = np.zeros(32, np.uint32)
        words[0], words[1] = address & 0xFFFFFFFF, address >> 32
        words[2] = flags | SWIZZLES[self.swizzle] << 13
        words[3 : 2 + rank] = [step // 16 for step in self.strides[1:]]
        words[8 : 8 + rank] = [extent - 1 for extent in extents]
        raw = words.view(np.uint8).copy()
        raw[55 : 55 + rank] = [extent - 1 for extent in self.box]
        return raw

    def encoded(self, address):
        """Return the descriptor that the driver of this machine writes."""
        from cuda.bindings import driver as cu

        rank = len(self.shape)
        kind, _ = DRIVER_TYPES[self.kind]
        swizzle = "NONE" if not self.swizzle else f"{self.swizzle}B"
        # The driver refuses no strides at all: one dimension has one that nothing uses.
        strides = self.strides[1:] or (self.shape[0] * self.strides[0],)
        error, found = cu.cuTensorMapEncodeTiled(
            getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"), rank, address,
            [cu.cuuint64_t(n) for n in self.extents],
            [cu.cuuint64_t(n) for n in strides],
            [cu.cuuint32_t(n) for n in self.box], [cu.cuuint32_t(1)] * rank,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE_" + swizzle),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        if error != cu.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuTensorMapEncodeTiled: {error}")
        words = np.array([int(word) for word in found.opaque], np.uint64)
        return words.view(np.uint8)


@dataclass(frozen=True)
class MemoryProbe:
    """A kernel; its parameters are the addresses of the arrays and of their tensor maps."""

    name: str
    text: str = field(repr=False)
    arrays: tuple[Any, ...] = field(repr=False, compare=False)
    maps: tuple[tuple[int, Map], ...] = ()
    threads: int = 32
    smem: int = 0

    def emulated(self):
        """Run it in the emulator; return all arrays afterwards, as bytes."""
        arrays = [aligned(x) for x in self.arrays]
        memory = Memory()
        addresses = [memory.add(x) for x in arrays]
        maps = [aligned(m.written(addresses[n])) for n, m in self.maps]
        addresses += [memory.add(x) for x in maps]
        launch(self.text, "k", (1,), (self.threads,), smem=self.smem, params=addresses,
               memory=memory)  # fmt: skip
        return b"".join(x.tobytes() for x in arrays)

    def on_device(self):
        """Run it on the current CUDA device."""
        import cupy

        module = cupy.cuda.function.Module()
        module.load(self.text.encode())
        there = [cupy.asarray(np.ascontiguousarray(x).view(np.uint8)) for x in self.arrays]
        maps = [cupy.asarray(m.encoded(there[n].data.ptr)) for n, m in self.maps]
        addresses = [np.uint64(x.data.ptr) for x in (*there, *maps)]
        module.get_function("k")((1,), (self.threads,), addresses, shared_mem=self.smem)
        return b"".join(cupy.asnumpy(x).tobytes() for x in there)


def aligned(x):
    """Return a copy that begins at a multiple of 128 bytes."""
    raw = np.zeros(x.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 128
    found = raw[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    found[...] = x
    return found


def random_array(name, shape, kind):
    """Return small whole numbers, the same each time."""
    rng = np.random.default_rng(zlib.crc32(f"{name} {shape} {kind}".encode()))
    low = 0 if kind[0] in "ub" and kind != "bf16" else -100
    found = rng.integers(low, 100, shape)
    return np.where(found == 0, 100, found).astype(TYPES[kind])


START = """
    mov.u32 %r1, %tid.x; mov.b32 %r10, smem; add.s32 %r11, %r10, 1024;
    setp.eq.u32 %p1, %r1, 0;
    @!%p1 bra ready;
    mbarrier.init.shared.b64 [%r10], 1;
    fence.mbarrier_init.release.cluster;
    ready:
    fence.proxy.async.shared::cta;
    bar.sync 0;
"""
WAIT = """
    again:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
    @!%p2 bra again;
"""
# SIZE bytes between shared memory at %r11 and the address in %d1, a word a thread at a time.
COPY = """
    mov.u32 %r3, %r1;
    copying:
    mad.wide.u32 %d2, %r3, 4, ADDRESS; shl.b32 %r4, %r3, 2; add.s32 %r4, %r4, %r11;
    WORD
    add.s32 %r3, %r3, 32; setp.lt.u32 %p3, %r3, COUNT; @%p3 bra copying;
"""
OUT = "ld.shared.b32 %r5, [%r4]; st.global.b32 [%d2], %r5;"
IN = "ld.global.b32 %r5, [%d2]; st.shared.b32 [%r4], %r5;"
FENCE = "fence.proxy.async.shared::cta; bar.sync 0;\n"
DONE = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nover:\n"


def copied(word, address, size):
    text = COPY.replace("WORD", word).replace("ADDRESS", address)
    return text.replace("COUNT", str(size // 4))


def dynamic(body, count):
    top = ".extern .shared .align 1024 .b8 smem[];\n"
    return kernel(START + body, ("u64",) * count, top=top)


def coordinates(at):
    text = "".join(f"mov.b32 %r{20 + n}, {x};\n" for n, x in enumerate(at))
    return text, "{" + ", ".join(f"%r{20 + n}" for n in range(len(at))) + "}"


def box_bytes(m):
    return int(np.prod(m.box)) * np.dtype(TYPES[m.kind]).itemsize


def tensor_load(m, at):
    name = f"load at {at} of {m.name}"
    size = box_bytes(m)
    moves, listed = coordinates(at)
    body = f"""
        {moves} @!%p1 bra asked;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {size};
        cp.async.bulk.tensor.{len(at)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r11], [%d12, {listed}], [%r10];
        asked:
        {WAIT} {copied(OUT, "%d11", size)}
    """  # noqa: E501
    arrays = random_array(name, m.shape, m.kind), np.zeros(size, np.uint8)
    return MemoryProbe(name, dynamic(body, 3), arrays, ((0, m),), smem=1024 + size)


def tensor_store(m, at, reduction=""):
    name = f"{reduction or 'store'} at {at} of {m.name}"
    size = box_bytes(m)
    moves, listed = coordinates(at)
    opcode = f"cp.reduce.async.bulk.tensor.{len(at)}d" if reduction else (
        f"cp.async.bulk.tensor.{len(at)}d")  # fmt: skip
    more = f".{reduction}" if reduction else ""
    body = f"""
        {moves} {copied(IN, "%d11", size)} {FENCE} @!%p1 bra over;
        {opcode}.global.shared::cta{more}.tile.bulk_group [%d12, {listed}], [%r11];
        {DONE}
    """
    source = random_array(name, size // np.dtype(TYPES[m.kind]).itemsize, m.kind)
    arrays = random_array(name, m.shape, m.kind), source
    return MemoryProbe(name, dynamic(body, 3), arrays, ((0, m),), smem=1024 + size)


MAPS = [
    Map("f16", (50, 80), (64, 16), 128), Map("f16", (50, 80), (32, 16), 64),
    Map("bf16", (50, 80), (16, 32), 32), Map("f32", (50, 80), (8, 40)),
    Map("u8", (70, 160), (128, 8), 128), Map("s32", (50, 80), (16, 8)),
    Map("f64", (20, 30), (4, 8), 32), Map("u64", (20, 30), (16, 4), 128),
    Map("s64", (20, 30), (2, 8)), Map("u32", (1000,), (256,)),
    Map("f32", (5, 12, 64), (32, 4, 2), 128), Map("f16", (3, 5, 12, 64), (64, 4, 2, 2), 128),
    Map("bf16", (2, 3, 5, 12, 64), (32, 3, 2, 2, 1), 64),
]  # fmt: skip


def behind(m):
    """Return where a box begins that ends behind the tensor: in the middle of its last elements.

    Along the contiguous dimension a box begins at a multiple of 16 bytes: anything else is an
    illegal instruction.
    """
    at = [extent - (size + 1) // 2 for extent, size in zip(m.extents, m.box, strict=True)]
    return at[0] - at[0] % (16 // m.strides[0]), *at[1:]


def memory_probes():
    for m in MAPS:
        inside, far = (0,) * len(m.shape), behind(m)
        # A load may begin before the tensor; a store there is an illegal instruction.
        before = tuple(-(size // 2) if n % 2 else far[n] for n, size in enumerate(m.box))
        for at in dict.fromkeys((inside, before)):
            yield tensor_load(m, at)
        for at in (inside, far):
            yield tensor_store(m, at)
    for m in MAPS[:3] + MAPS[3:4] + MAPS[5:9]:
        names = {"f32": ["add"], "f64": ["add"]}.get(m.kind, ["add", "min", "max"])
        if m.kind == "s64":
            names = ["min", "max"]  # an H200 has no others of them
        elif m.kind[0] in "us":
            names += ["and", "or", "xor"]
        for name in names:
            yield tensor_store(m, (8, m.extents[1] - 3), name)
    yield from _plain()
    yield from _matrices()
    yield from _atomics()


REDUCTIONS = (
    "add.u32 add.s32 add.u64 min.s32 max.u32 min.s64 inc.u32 dec.u32 and.b32 or.b32 xor.b32 "
    "add.f32 add.f64 add.noftz.f16 add.noftz.bf16 min.f16 max.bf16"
)


def _plain():
    """Yield bulk copies of plain memory, and cp.async with an mbarrier."""
    load = f"""
        @!%p1 bra asked;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 1024;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d10], 1024, [%r10];
        asked:
        {WAIT} {copied(OUT, "%d11", 1024)}
    """  # noqa: E501
    pair = random_array("bulk load", 1024, "u8"), np.zeros(1024, np.uint8)
    yield MemoryProbe("bulk load", dynamic(load, 2), pair, smem=2048)
    for form in ("", *REDUCTIONS.split()):
        kind = form.split(".")[-1] or "u8"
        opcode = f"cp.{'reduce.' if form else ''}async.bulk.global.shared::cta.bulk_group"
        line = f"{opcode}{'.' if form else ''}{form} [%d10], [%r11], 1008;"
        body = f"{copied(IN, '%d11', 1024)} {FENCE} @!%p1 bra over;\n{line}\n{DONE}"
        size = 1024 // np.dtype(TYPES[kind]).itemsize
        arrays = random_array("to" + form, size, kind), random_array("from" + form, size, kind)
        yield MemoryProbe(line, dynamic(body, 2), arrays, smem=2048)
    for more, count in ((".noinc", 32), ("", 1)):
        arrives = "" if more else "@%p1 mbarrier.arrive.shared.b64 _, [%r10];"
        body = f"""
            shl.b32 %r6, %r1, 4; add.s32 %r7, %r11, %r6; mad.wide.u32 %d3, %r1, 16, %d10;
            cp.async.cg.shared.global [%r7], [%d3], 16;
            and.b32 %r8, %r1, 15; cp.async.cg.shared.global [%r7+512], [%d3+512], 16, %r8;
            cp.async.mbarrier.arrive{more}.shared.b64 [%r10];
            {arrives} {WAIT} {copied(OUT, "%d11", 1024)}
        """
        text = dynamic(body, 2).replace("[%r10], 1;", f"[%r10], {count};")
        yield MemoryProbe(f"cp.async and mbarrier.arrive{more}", text, pair, smem=2048)


def _matrices():
    for count in (1, 2, 4):
        for turned in ("", ".trans"):
            listed = ", ".join(f"%r{12 + n}" for n in range(count))
            form = f"matrix.sync.aligned.m8n8.x{count}{turned}.shared.b16"
            moves = "".join(f"mov.b32 %r{12 + n}, 0;\n" for n in range(4))
            stores = "".join(f"st.global.b32 [%d4+{4 * n}], %r{12 + n};\n" for n in range(4))
            row = "shl.b32 %r6, %r1, 4; add.s32 %r7, %r11, %r6; mad.wide.u32 %d4, %r1, 16, %d11;\n"
            loading = f"{copied(IN, '%d10', 512)} bar.sync 0; {row} {moves}"
            loading += f"ld{form} {{{listed}}}, [%r7];\n{stores}"
            arrays = random_array("ld" + form, 512, "u8"), np.zeros(512, np.uint8)
            yield MemoryProbe("ld" + form, dynamic(loading, 2), arrays, smem=2048)
            loads = "".join(f"ld.global.b32 %r{12 + n}, [%d5+{4 * n}];\n" for n in range(4))
            storing = (
                f"{copied(IN, '%d11', 512)} bar.sync 0; {row} mad.wide.u32 %d5, %r1, 16, %d10;"
            )
            storing += f"{loads} st{form} [%r7], {{{listed}}}; bar.sync 0;\n"
            storing += copied(OUT, "%d11", 512).replace("copying", "back")
            yield MemoryProbe("st" + form, dynamic(storing, 2), arrays, smem=2048)


ATOMS = (
    "add.u32 add.u64 min.s32 max.u32 and.b32 or.b32 xor.b32 inc.u32 dec.u32 add.f32 add.f64 "
    "add.noftz.f16 add.noftz.bf16 add.noftz.f16x2 add.noftz.bf16x2"
)


def _atomics():
    """Yield updates of four elements by 32 threads, whose results do not depend on their order."""
    for form in ATOMS.split():
        for space in ("global", "shared"):
            kind = form.split(".")[-1]
            base = kind.removesuffix("x2")
            width = np.dtype(TYPES[base]).itemsize * (2 if kind.endswith("x2") else 1)
            register = {2: "%h1", 4: "%r12", 8: "%d6"}[width]
            kept, add = {
                "global": ("%d5", f"mad.wide.u32 %d5, %r6, {width}, %d11;"),
                "shared": ("%r7", f"mad.lo.s32 %r7, %r6, {width}, %r11;"),
            }[space]
            fill, back = "", ""
            if space == "shared":
                fill = copied(IN, "%d11", 128) + "bar.sync 0;"
                back = "bar.sync 0;" + copied(OUT, "%d11", 128).replace("copying", "back")
            body = f"""
                {fill} mad.wide.u32 %d4, %r1, {width}, %d10;
                ld.global.b{8 * width} {register}, [%d4];
                and.b32 %r6, %r1, 3; {add}
                red.{space}.{form} [{kept}], {register}; {back}
            """
            count = 128 // np.dtype(TYPES[base]).itemsize
            values = random_array(
                "values" + form, 32 * width // np.dtype(TYPES[base]).itemsize, base
            )
            if form.startswith(("inc", "dec")):  # the same for all threads, for any order
                values[:] = 9
            # Of this name the device drew its array.
            arrays = values, random_array("places" + form, count, base)
            yield MemoryProbe(f"red.{space}.{form}", dynamic(body, 2), arrays, smem=2048)


MEMORY_PROBES = {probe.name: probe for probe in memory_probes()}
MAP_PROBES = {m.name: m for m in MAPS}
#: What the ISA does not say, to be read from a GPU's answer: what becomes of rows that end within
#: 16 bytes (no number there is zero).
QUESTIONS = {
    probe.name: probe
    for probe in (
        tensor_store(Map("f16", (10, 24), (32, 8), 0, 13), (0, 4)),
        tensor_store(Map("f32", (10, 24), (8, 8), 0, 5), (0, 4)),
        tensor_store(Map("u8", (10, 48), (32, 8), 0, 21), (0, 0)),
        tensor_store(Map("f16", (10, 24), (16, 8), 0, 13), (0, 0), "add"),
        tensor_store(Map("f32", (10, 24), (8, 8), 0, 5), (0, 4), "add"),
        tensor_load(Map("f16", (10, 24), (32, 8), 0, 13), (0, 4)),
        tensor_load(Map("u8", (10, 48), (32, 8), 0, 21), (0, 0)),
    )
}
