"""Probes of the tensor cores' instructions: one small kernel for each form of mma.sync and wgmma.

Where each element of a matrix belongs is written down here once more, element by element as the
tables of the PTX ISA have it, and apart from the emulator's own rule.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from emulated import kernel

TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
    "f64": np.float64, "s8": np.int8, "u8": np.uint8, "s32": np.int32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
LANES = np.arange(32)
ROW, TURN = LANES // 4, LANES % 4  # %laneid / 4 and %laneid % 4


@dataclass(frozen=True)
class MatrixProbe:
    """One instruction with its operands: D = A B + C.

    Attributes
    ----------
    arrays
        What the kernel's parameters point to; the results follow in `out_shape`, of type `acc`.
    where
        (rows, columns) of D of the results.
    exact
        Whether all results are exact, so that bits are compared.
    """

    name: str
    text: str
    arrays: tuple[Any, ...] = field(repr=False, compare=False)
    out_shape: tuple[int, ...]
    where: tuple[Any, Any] = field(repr=False, compare=False)
    a: Any = field(repr=False, compare=False)
    b: Any = field(repr=False, compare=False)
    c: Any = field(repr=False, compare=False)
    factors: str
    acc: str
    exact: bool
    threads: int
    smem: int = 0
    saturate: bool = False

    def matrix(self, out):
        """Return D from the kernel's results."""
        found = np.zeros(self.c.shape, TYPES[self.acc])
        found[self.where] = out
        return found

    def expected(self):
        """Return D, where it is exact."""
        a, b, c = self.numbers()
        total = a @ b + c
        if self.acc != "s32":
            return total.astype(TYPES[self.acc])
        if self.saturate:
            return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)
        return total.astype(np.int64).astype(np.int32)

    def numbers(self):
        """Return A, B and C as float64."""
        a, b, c = (x.astype(np.float64) for x in (self.a, self.b, self.c))
        if self.factors == "tf32":  # the last 13 bits of a float32 are not looked at
            cut = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (self.a, self.b)]
            a, b = (x.astype(np.float64) for x in cut)
        return a, b, c

    def bound(self):
        """Return by how much each sum may differ.

        The tensor cores align all products and C with the largest of them, and cut what is then
        below their last bit; the result is rounded to its type, maybe between parts of K as well.
        """
        a, b, c = self.numbers()
        largest = np.maximum(np.abs(a[:, :, None] * b[None]).max(1), np.abs(c))
        bits = {"f32": 22, "f16": 10, "f64": 51}[self.acc]
        if self.factors in ("e4m3", "e5m2"):
            bits = min(bits, 12)
        return (a.shape[1] + 1) * largest * 2.0**-bits


def draw(rng, shape, kind, values):
    """Return a matrix: small whole numbers, ``"random"`` ones of a size, or ``"wide"`` apart."""
    if kind in ("s8", "u8"):
        info = np.iinfo(TYPES[kind])
        return rng.integers(info.min, info.max + 1, shape).astype(TYPES[kind])
    if kind == "s32":
        near = rng.integers(-(2**20), 2**20, shape)
        ends = rng.choice([0, 2**31 - 1, -(2**31)], shape)
        return np.clip(near + ends, -(2**31), 2**31 - 1).astype(np.int32)
    if values == "exact":
        return rng.integers(-4, 5, shape).astype(TYPES[kind])
    if values == "wide":  # none is zero or subnormal, no sum too large for float16
        sizes = rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-4, 5, shape)
        return (rng.choice([-1, 1], shape) * sizes).astype(TYPES[kind])
    return rng.standard_normal(shape).astype(TYPES[kind])


def operands(name, m, n, k, kinds, values):
    """Return A, B and C, the same each time for a name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    a, b, acc = kinds
    return (
        draw(rng, (m, k), a, values),
        draw(rng, (k, n), b, values),
        draw(rng, (m, n), acc, values),
    )


# -- mma.sync --------------------------------------------------------------------------------------

#: Rows and columns of element i of A: by bits, M and K.
A_COORDINATES = {
    (16, 16, 8): (lambda i: ROW + 8 * (i >= 2), lambda i: 2 * TURN + i % 2),
    (16, 16, 16): (
        lambda i: ROW + 8 * (i in (2, 3, 6, 7)), lambda i: 2 * TURN + i % 2 + 8 * (i >= 4)
    ),
    (32, 16, 4): (lambda i: ROW + 8 * i, lambda i: TURN),
    (32, 16, 8): (lambda i: ROW + 8 * (i in (1, 3)), lambda i: TURN + 4 * (i >= 2)),
    (64, 8, 4): (lambda i: ROW, lambda i: TURN),
    (64, 16, 4): (lambda i: ROW + 8 * i, lambda i: TURN),
    (64, 16, 8): (lambda i: ROW + 8 * (i in (1, 3)), lambda i: TURN + 4 * (i >= 2)),
    (64, 16, 16): (lambda i: ROW + 8 * (i % 2), lambda i: (i - i % 2) * 2 + TURN),
    (8, 8, 16): (lambda i: ROW, lambda i: 4 * TURN + i),
    (8, 16, 16): (lambda i: ROW + 8 * (i >= 4), lambda i: 4 * TURN + i % 4),
    (8, 16, 32): (
        lambda i: ROW + 8 * (4 <= i < 8 or i >= 12), lambda i: 4 * TURN + i % 4 + 16 * (i >= 8)
    ),
}  # fmt: skip
#: The row of element i of B, by bits and K; its column is ROW.
B_ROWS = {
    (16, 8): lambda i: 2 * TURN + i,
    (16, 16): lambda i: 2 * TURN + i % 2 + 8 * (i >= 2),
    (32, 4): lambda i: TURN,
    (32, 8): lambda i: TURN + 4 * i,
    (64, 4): lambda i: TURN,
    (64, 8): lambda i: TURN + 4 * i,
    (64, 16): lambda i: TURN + 4 * i,
    (8, 16): lambda i: 4 * TURN + i,
    (8, 32): lambda i: 4 * TURN + i % 4 + 16 * (i >= 4),
}


def fragment_a(a):
    """Return the elements of A of each lane, (32, elements)."""
    row, column = A_COORDINATES[(8 * a.itemsize, *a.shape)]
    return np.stack([a[row(i), column(i)] for i in range(a.size // 32)], -1)


def fragment_b(b):
    row = B_ROWS[8 * b.itemsize, b.shape[0]]
    return np.stack([b[row(i), ROW] for i in range(b.size // 32)], -1)


def acc_coordinates(m, n):
    """Return rows and columns of D's elements of each lane, (32, elements), of 8 or 16 rows."""
    i = np.arange(m * n // 32)
    each = m // 4  # elements of a lane in eight columns
    rows = ROW[:, None] + 8 * (i % each >= 2)
    return rows, 8 * (i // each) + 2 * TURN[:, None] + i % 2


def words(fragment):
    """Return a fragment as registers, (lanes, registers)."""
    width = np.uint64 if fragment.itemsize == 8 else np.uint32
    return np.ascontiguousarray(fragment).view(width)


def load(name, count, bits, base):
    """Return declarations and loads of registers that each lane has one behind the other."""
    size = bits // 8
    text = f".reg .b{bits} %{name}<{count}>;\nmad.wide.u32 %d5, %r1, {count * size}, {base};\n"
    return text + "".join(
        f"ld.global.b{bits} %{name}{i}, [%d5+{i * size}];\n" for i in range(count)
    )


def store(name, count, bits, base):
    size = bits // 8
    return f"mad.wide.u32 %d5, %r1, {count * size}, {base};\n" + "".join(
        f"st.global.b{bits} [%d5+{i * size}], %{name}{i};\n" for i in range(count)
    )


def registers(name, count):
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def newer(text):
    return text.replace(".version 8.6", ".version 8.7")


def mma_probe(m, k, kinds, *, values, more=""):
    """Return the probe of one mma.sync; `kinds` are the types of A, B and the accumulators."""
    a_kind, b_kind, acc = kinds
    opcode = f"mma.sync.aligned.m{m}n8k{k}.row.col{more}.{acc}.{a_kind}.{b_kind}.{acc}"
    name = f"{opcode} {values}"
    a, b, c = operands(name, m, 8, k, kinds, values)
    where = acc_coordinates(m, 8)
    arrays = words(fragment_a(a)), words(fragment_b(b)), words(c[where])
    bits = 64 if acc == "f64" else 32
    counts = [x.shape[1] for x in arrays]
    body = "mov.u32 %r1, %tid.x;\n" + "".join(
        load(x, count, bits, f"%d1{n}")
        for n, (x, count) in enumerate(zip("abc", counts, strict=True))
    )
    used = ", ".join(registers(x, n) for x, n in zip("cabc", (counts[2], *counts), strict=True))
    body += f"{opcode} {used};\n{store('c', counts[2], bits, '%d13')}"
    return MatrixProbe(
        name, newer(kernel(body, ("u64",) * 4)), arrays, where[0].shape, where, a, b, c, a_kind,
        acc, values == "exact", 32, saturate=more == ".satfinite",
    )  # fmt: skip


_VALUES = ("exact", "random", "wide")
_FLOAT8 = list(itertools.product(("e4m3", "e5m2"), repeat=2))
_INT8 = list(itertools.product(("s8", "u8"), repeat=2))


def mma_probes():
    for values in _VALUES:
        for k in (8, 16):
            for kinds in (("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32")):
                yield mma_probe(16, k, kinds, values=values)
        for k in (4, 8):
            yield mma_probe(16, k, ("tf32", "tf32", "f32"), values=values)
        for m, k in ((8, 4), (16, 4), (16, 8), (16, 16)):
            yield mma_probe(m, k, ("f64",) * 3, values=values)
        for (a, b), k, acc in itertools.product(_FLOAT8, (16, 32), ("f32", "f16")):
            yield mma_probe(16, k, (a, b, acc), values=values)
    for (a, b), (m, k) in itertools.product(_INT8, ((8, 16), (16, 16), (16, 32))):
        yield mma_probe(m, k, (a, b, "s32"), values="exact")
        yield mma_probe(m, k, (a, b, "s32"), values="exact", more=".satfinite")


# -- wgmma -----------------------------------------------------------------------------------------


def placed(matrix, swizzle, k_major):
    """Return (line, byte in it) to the bytes of shared memory, and the two strides.

    Parameters
    ----------
    matrix
        Of `k_major`: a line for each row, of 32 bytes; else a line for each K.
    """
    line, byte = np.divmod(np.arange(matrix.nbytes), matrix.nbytes // len(matrix))
    if not swizzle:  # 8 lines of 16 bytes are 128 in a row; then what is to the right, then below
        across = matrix.nbytes // len(matrix) // 16
        offset = line // 8 * 128 * across + byte // 16 * 128 + line % 8 * 16 + byte % 16
        strides = (128, 128 * across) if k_major else (128 * across, 128)
        return offset, *strides
    lines = 8 * swizzle  # 8 lines, as wide as the swizzle
    if k_major:
        offset, strides = line * swizzle + byte, (16, lines)
    else:
        offset = byte // swizzle * 2 * lines + line * swizzle + byte % swizzle
        strides = (2 * lines, lines)
    return offset ^ (offset >> 7 & swizzle // 16 - 1) << 4, *strides


def image(matrix, swizzle, k_major):
    """Return a matrix as it lies in shared memory, and its descriptor but for the start."""
    matrix = np.ascontiguousarray(matrix)
    offset, leading, stride = placed(matrix, swizzle, k_major)
    found = np.zeros(-(-(int(offset.max()) + 1) // 1024) * 1024, np.uint8)
    found[offset] = matrix.view(np.uint8).reshape(-1)
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return found, leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


FILL = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mov.u32 %r3, %r1;
    filling:
    mad.wide.u32 %d5, %r3, 4, %d10; ld.global.b32 %r4, [%d5];
    shl.b32 %r5, %r3, 2; add.s32 %r5, %r5, %r2; st.shared.b32 [%r5], %r4;
    add.s32 %r3, %r3, 128; setp.lt.u32 %p1, %r3, WORDS; @%p1 bra filling;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    shr.u32 %r6, %r2, 4; cvt.u64.u32 %d6, %r6; cvt.u64.u32 %d7, %r6;
    add.s64 %d6, %d6, AWORD; add.s64 %d7, %d7, BWORD;
"""


def wgmma_probe(n, kinds, *, values, swizzle=128, majors="kk", in_registers=False, signs=(1, 1),
                more=""):  # fmt: skip
    """Return the probe of one wgmma.

    Parameters
    ----------
    majors
        Of A and B: ``"k"``, or ``"m"`` where they lie along M or N.
    in_registers
        A comes from there.
    """
    a_kind, b_kind, acc = kinds
    k = 32 // np.dtype(TYPES[a_kind]).itemsize
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{more}.{acc}.{a_kind}.{b_kind}"
    form = f"{'registers' if in_registers else 'shared'} {majors} swizzle {swizzle} {signs}"
    name = f"{opcode} {form} {values}"
    a, b, c = operands(name, 64, n, k, kinds, values)
    left, a_word = image(a if majors[0] == "k" else a.T, swizzle, majors[0] == "k")
    right, b_word = image(b.T if majors[1] == "k" else b, swizzle, majors[1] == "k")
    both = np.concatenate([left, right])
    rows, columns = acc_coordinates(16, n)
    where = np.concatenate([rows + 16 * w for w in range(4)]), np.concatenate([columns] * 4)
    start = words(c[where])
    arrays = [both.view(np.uint32), start]
    body = FILL.replace("WORDS", str(len(both) // 4)).replace("AWORD", _signed(a_word))
    body = body.replace("BWORD", _signed(b_word + (len(left) >> 4)))
    body += load("c", start.shape[1], 32, "%d11")
    a_text = "%d6"
    if in_registers:
        arrays.append(np.concatenate([words(fragment_a(a[16 * w :][:16])) for w in range(4)]))
        body += load("a", 4, 32, "%d12")
        a_text = registers("a", 4)
    flags = [] if acc == "s32" else list(signs)
    if k == 16:
        flags += [int(x == "m") for x in (majors[1:] if in_registers else majors)]
    flags_text = "".join(f", {x}" for x in flags)
    body += f"""
        setp.eq.u32 %p2, 0, 0;
        wgmma.fence.sync.aligned;
        {opcode} {registers("c", start.shape[1])}, {a_text}, %d7, %p2{flags_text};
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
        {store("c", start.shape[1], 32, f"%d1{len(arrays)}")}
    """
    text = kernel(
        body, ("u64",) * (len(arrays) + 1), top=".extern .shared .align 1024 .b8 smem[];\n"
    )
    factor = np.array(signs[0] * signs[1], TYPES[a_kind])
    return MatrixProbe(
        name, text, tuple(arrays), where[0].shape, where, a * factor if factor != 1 else a, b, c,
        a_kind, acc, values == "exact", 128, len(both), more == ".satfinite",
    )  # fmt: skip


def _signed(word):
    return str(word - (1 << 64) if word >> 63 else word)


def wgmma_probes():
    half = ("f16", "f16", "f32")
    kinds = [half, ("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("tf32", "tf32", "f32")]
    kinds += [(a, b, acc) for (a, b), acc in itertools.product(_FLOAT8, ("f32", "f16"))]
    for found, values, inside in itertools.product(kinds, _VALUES, (False, True)):
        yield wgmma_probe(8, found, values=values, in_registers=inside)
    for (a, b), inside, more in itertools.product(_INT8, (False, True), ("", ".satfinite")):
        yield wgmma_probe(8, (a, b, "s32"), values="exact", in_registers=inside, more=more)
    for n in (24, 64, 136, 256):
        yield wgmma_probe(n, half, values="exact")
    for swizzle, majors in itertools.product((0, 32, 64, 128), ("kk", "km", "mk", "mm")):
        if (swizzle, majors) != (128, "kk"):
            yield wgmma_probe(64, half, values="exact", swizzle=swizzle, majors=majors)
    yield wgmma_probe(64, half, values="exact", majors="km", in_registers=True)
    for signs in ((-1, 1), (1, -1), (-1, -1)):
        yield wgmma_probe(8, half, values="exact", signs=signs)
    for swizzle in (0, 32, 64):
        yield wgmma_probe(8, ("s8", "s8", "s32"), values="exact", swizzle=swizzle)
        yield wgmma_probe(8, ("tf32", "tf32", "f32"), values="exact", swizzle=swizzle)


MATRIX_PROBES = {probe.name: probe for probe in (*mma_probes(), *wgmma_probes())}
