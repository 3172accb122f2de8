"""The emulator's tcgen05.cp, products of narrow floats and block-scaled products.

Layouts are made here, byte by byte, from the published figures, not with the emulator's code.
"""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
from emulated import edited_fault
from test_emulator_hopper import aligned, fetch, tensor_map
from test_emulator_tcgen05 import (
    COMMIT,
    IMAGE,
    IMAGES,
    WAIT,
    blackwell,
    laid_out,
    launch,
    loads,
    matrix_word,
    mixed,
)

from unigemm.emulator import KernelFault, Memory
from unigemm.emulator import launch as launch_ptx
from unigemm.emulator.ptx.faults import Fault
from unigemm.emulator.tensor_core.mma_descriptors import instruction_of

RNG = np.random.default_rng(20261123)
FLOATS = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 8, 0), "e5m2": (ml_dtypes.float8_e5m2, 8, 1),
    "e2m3": (ml_dtypes.float6_e2m3fn, 6, 3), "e3m2": (ml_dtypes.float6_e3m2fn, 6, 4),
    "e2m1": (ml_dtypes.float4_e2m1fn, 4, 5), "e2m1x2": (ml_dtypes.float4_e2m1fn, 4, 1),
}  # fmt: skip
SCALES = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}


# -- operands --------------------------------------------------------------------------------------


def draw(rows, kind):
    """Return codes of (rows, K) finite elements, and their values."""
    dtype, bits, _ = FLOATS[kind]
    k = 64 if kind == "e2m1x2" else 32
    codes = RNG.integers(0, 1 << bits, (rows, k)).astype(np.uint8)
    values = codes.view(dtype).astype(np.float64)
    codes[~np.isfinite(values)] = 0
    return codes, codes.view(dtype).astype(np.float64)


def in_bytes(codes, kind):
    """Return rows of 32 bytes: sixteen elements begin each half; what is behind them is poison."""
    bits = FLOATS[kind][1]
    if bits == 8:
        return codes
    out = np.full((len(codes), 32), 0xFF, np.uint8)
    each = 32 if kind == "e2m1x2" else 16
    for half in range(2):
        for row, line in enumerate(codes[:, each * half : each * half + each]):
            number = sum(int(code) << bits * n for n, code in enumerate(line))
            raw = number.to_bytes(each * bits // 8, "little")
            out[row, 16 * half : 16 * half + len(raw)] = list(raw)
    return out


def draw_scales(rows, kind):
    """Return four scales of each row and their values, of rows that fill 128."""
    codes = RNG.integers(120, 134, (-(-rows // 128) * 128, 4)).astype(np.uint8)
    if kind == "ue4m3":
        codes = RNG.integers(0, 127, codes.shape).astype(np.uint8)
    return codes, codes.view(SCALES[kind]).astype(np.float64)


def scale_image(codes):
    """Return 512 bytes for each 128 rows: row i in line i % 32, bytes 4 (i / 32) on."""
    out = np.zeros((len(codes) // 128, 32, 16), np.uint8)
    for i, word in enumerate(codes):
        first = 4 * (i % 128 // 32)
        out[i // 128, i % 32, first : first + 4] = word
    return out.reshape(-1)


def scaled_word(m, n, a, b, scale, ids=(0, 0), mn=(False, False)):
    return (
        ids[1] << 4 | FLOATS[a][2] << 7 | FLOATS[b][2] << 10 | mn[0] << 15 | mn[1] << 16
        | n // 8 << 17 | (scale == "ue8m0") << 23 | m // 16 << 24 | ids[0] << 29
    )  # fmt: skip


# -- products --------------------------------------------------------------------------------------

# Scales to columns 256 and 264; then two products, of the first scales and of others.
SCALED = """
    setp.eq.u32 %p4, %r2, 0; and.pred %p4, %p4, %p1;
    @!%p4 bra issued;
    mov.b64 %d3, AWORD; mov.b64 %d4, BWORD; mov.b64 %d6, SFAWORD; mov.b64 %d7, SFBWORD;
    mov.b32 %r7, FIRST; mov.b32 %r15, SECOND;
    add.s32 %r16, %r9, 256; add.s32 %r17, %r9, 264;
    tcgen05.cp.cta_group::GROUP.32x128b.warpx4 [%r16], %d6;
    tcgen05.cp.cta_group::GROUP.32x128b.warpx4 [%r17], %d7;
    add.s64 %d7, %d7, 32;
    tcgen05.cp.cta_group::GROUP.32x128b.warpx4 [%r17+4], %d7;
    mov.pred %p5, 0; mov.pred %p6, -1;
    tcgen05.mma.cta_group::GROUP.KIND [%r9], %d3, %d4, %r7, [%r16], [%r17], %p5;
    tcgen05.mma.cta_group::GROUP.KIND [%r9], %d3, %d4, %r15, [%r16], [%r17], %p6; // again
    COMMIT
    issued:
"""


def multiply(kind, m, n, a, b, scale, blocks, *, group=1, swizzles=(128, 128),
             mn=(False, False), edit=None, poison=None):  # fmt: skip
    """Multiply twice, with different scales; return D, what it must be, and A and B.

    Of more than 128 columns D has the last 128.
    """
    codes, values = zip(draw(m, a), draw(n, b), strict=True)
    scale_codes, factors = zip(draw_scales(m, scale), draw_scales(n, scale), strict=True)
    if poison is not None:
        scale_codes[0][poison] = 0xFF
        factors[0][poison] = np.nan
    images = []
    for cta in range(group):
        parts, words, start = [], [], 1024 + IMAGE
        for x, name, swizzle, major in zip(codes, (a, b), swizzles, mn, strict=True):
            rows = len(x) // group
            part = in_bytes(x[cta * rows : cta * rows + rows], name)
            raw, word = laid_out(part, swizzle, major, start)
            parts.append(np.concatenate([raw, np.zeros(-len(raw) % 2048, np.uint8)]))
            start += len(parts[-1])
            words.append(word)
        rows = scale_codes[0][cta * 128 : cta * 128 + 128]
        parts += [scale_image(rows), scale_image(scale_codes[1]), np.zeros(1024, np.uint8)]
        images.append(np.concatenate(parts)[: start - 1024 - IMAGE + 2048])
    image = np.stack(images)
    shown = min(n, 128)
    out = np.zeros((group * 128, shown), np.uint32)
    other = (4 - blocks) * (blocks < 4)
    text = blackwell(
        IMAGES + SCALED + WAIT + loads(f"32x32b.x{shown}", shown, ahead=n - shown),
        group=group, SIZE=image.shape[1],
        KIND=kind, COMMIT=COMMIT[group], SFAWORD=matrix_word(start, 0, 128, 0),
        SFBWORD=matrix_word(start + 512, 0, 128, 0), AWORD=words[0], BWORD=words[1],
        FIRST=scaled_word(m, n, a, b, scale, (0, other), mn),
        SECOND=scaled_word(m, n, a, b, scale, (other, 0), mn),
    )  # fmt: skip
    launch(edit(text) if edit else text, (image, out), group=group)
    block = values[0].shape[1] // blocks
    wanted = np.zeros((m, n))
    for first in ((0, other), (other, 0)):
        scaled = [
            x * np.repeat(f[: len(x), i : i + blocks], block, 1)
            for x, f, i in zip(values, factors, first, strict=True)
        ]
        wanted = (wanted + scaled[0] @ scaled[1].T).astype(np.float32).astype(np.float64)
    return out.view(np.float32), wanted[:, n - shown :], values


MX8, MX4, NV4 = (f"kind::{x}.block_scale" for x in ("mxf8f6f4", "mxf4", "mxf4nvf4"))


@pytest.mark.parametrize(
    ("kind", "a", "b", "scale", "blocks", "more"),
    [
        (MX8, "e4m3", "e4m3", "ue8m0", 1, {}),
        (MX8 + ".scale_vec::1X", "e5m2", "e4m3", "ue8m0", 1, {"swizzles": (64, 32)}),
        (MX8 + ".block32", "e4m3", "e5m2", "ue8m0", 1, {"mn": (True, True)}),
        (MX8, "e2m3", "e3m2", "ue8m0", 1, {"swizzles": (32, 0)}),
        (MX8, "e2m1", "e4m3", "ue8m0", 1, {}),
        (MX8, "e4m3", "e2m1", "ue8m0", 1, {"mn": (True, False)}),
        (MX4, "e2m1x2", "e2m1x2", "ue8m0", 2, {}),
        (MX4 + ".scale_vec::2X", "e2m1x2", "e2m1x2", "ue8m0", 2, {"swizzles": (0, 64)}),
        (MX4 + ".block32", "e2m1x2", "e2m1x2", "ue8m0", 2, {}),
        (NV4 + ".scale_vec::2X", "e2m1x2", "e2m1x2", "ue8m0", 2, {}),
        (NV4 + ".block32", "e2m1x2", "e2m1x2", "ue8m0", 2, {}),
        (NV4 + ".scale_vec::4X", "e2m1x2", "e2m1x2", "ue4m3", 4, {}),
        (NV4 + ".block16", "e2m1x2", "e2m1x2", "ue8m0", 4, {}),
    ],
)
def test_scaled_products_of_one_cta(kind, a, b, scale, blocks, more):
    for n in (64, 16):
        found, wanted, _ = multiply(kind, 128, n, a, b, scale, blocks, **more)
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("n", [64, 256])
def test_scaled_products_of_a_pair(n):
    """Each CTA has the scales of its rows, and those of all columns."""
    for kind, a, scale, blocks in (
        (MX8, "e4m3", "ue8m0", 1), (NV4 + ".block16", "e2m1x2", "ue4m3", 4)
    ):  # fmt: skip
        found, wanted, _ = multiply(kind, 256, n, a, a, scale, blocks, group=2)
        assert found.tolist() == wanted.tolist()


def test_a_scale_that_is_no_number_spoils_its_row():
    found, wanted, _ = multiply(MX8, 128, 32, "e4m3", "e4m3", "ue8m0", 1, poison=(70, 0))
    assert np.isnan(wanted[70]).all()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("a", "b"), [("e2m1", "e5m2"), ("e3m2", "e2m3")])
def test_products_of_narrow_floats_without_scales(a, b):
    # Where B's scales would be named, the word says that accumulators are float32.
    word = scaled_word(128, 32, a, b, "", (0, 1))

    def edit(text):
        text = text.replace(".kind::mxf8f6f4.block_scale", ".kind::f8f6f4")
        text = text.replace("[%r16], [%r17], ", "").replace("%d4, %r15", "%d4, %r7")
        return text.replace("mov.b32 %r7, ", f"mov.b32 %r7, {word}; //")

    found, _, (left, right) = multiply(MX8, 128, 32, a, b, "ue8m0", 1, edit=edit)
    assert found.tolist() == (2 * left @ right.T).astype(np.float32).tolist()


# -- tcgen05.cp ------------------------------------------------------------------------------------

COPY = """
    @!%p1 bra issued;
    mov.b64 %d3, WORD; mov.b64 %d4, LATER;
    tcgen05.cp.cta_group::1.128x256b [%r9], %d3;
    tcgen05.cp.cta_group::1.FORM [%r9+OFFSET], %d4; // the copy
    COMMIT
    issued:
"""
#: Lanes of row r.
TARGETS = {
    "128x256b": lambda r: [r],
    "128x128b": lambda r: [r],
    "4x256b": lambda r: [32 * r],
    "32x128b.warpx4": lambda r: [r, r + 32, r + 64, r + 96],
    "64x128b.warpx2::02_13": lambda r: [r, r + 64],
    "64x128b.warpx2::01_23": lambda r: [r // 32 * 64 + r % 32, r // 32 * 64 + r % 32 + 32],
}


def copies(form, swizzle=0, offset=0, edit=None):
    """Copy a matrix to eight columns, then another in some form over it; return all of them."""
    rows = int(form.split("x")[0])
    wide = 32 if "256b" in form else 16
    under = RNG.integers(0, 256, (128, 32)).astype(np.uint8)
    over = RNG.integers(0, 256, (rows, wide)).astype(np.uint8)
    low, word = laid_out(under, 128, False, 1024 + IMAGE)
    high = np.zeros(16384, np.uint8)
    line = swizzle or 16
    for r in range(rows):
        for c in range(wide):
            across = c if swizzle else c // 16 * 4096 + c % 16
            high[mixed(r // 8 * 8 * line + r % 8 * line + across, swizzle)] = over[r, c]
    start = 1024 + IMAGE + len(low)
    image = np.concatenate([low, high])
    later = matrix_word(start, 0 if swizzle else 4096, 8 * line, swizzle)
    out = np.zeros((128, 8), np.uint32)
    body = IMAGES + COPY + WAIT + loads("32x32b.x8", 8)
    text = blackwell(
        body, SIZE=len(image), WORD=word, LATER=later, FORM=form, OFFSET=offset, COMMIT=COMMIT[1]
    )
    launch(edit(text) if edit else text, (image, out))
    wanted = under.view(np.uint32).copy()
    for r in range(rows):
        for lane in TARGETS[form](r):
            column = offset & 0xFFFF
            wanted[lane + (offset >> 16), column : column + wide // 4] = over[r].view(np.uint32)
    return out, wanted


@pytest.mark.parametrize("form", TARGETS)
@pytest.mark.parametrize("swizzle", [0, 32, 128])
def test_copies_of_each_form(form, swizzle):
    offsets = [4] if "128b" in form else [5 << 16] if form == "4x256b" else [0]
    for offset in offsets:
        found, wanted = copies(form, swizzle, offset)
        assert found.tolist() == wanted.tolist()


# -- TMA of narrow elements ------------------------------------------------------------------------


def narrow_map(array, address, number, box, swizzle):
    """Write the descriptor of rows of bytes that hold narrow elements; the box in elements."""
    raw = bytearray(tensor_map(array, address, box, swizzle))
    (flags,) = struct.unpack_from("<I", raw, 8)
    struct.pack_into("<I", raw, 8, flags & ~(15 << 7) | number << 7)
    bits = 6 if number == 13 else 4
    struct.pack_into("<I", raw, 32, 8 * array.shape[1] // bits // 32 * 32 - 1)
    return bytes(raw)


def fetch_narrow(number, box, swizzle, at, size, moved, rows=24):
    """Load a box to shared memory, and copy `size` bytes of it out."""
    source, out = aligned((rows, 128), np.uint8), aligned(size, np.uint8)
    source[...] = RNG.integers(0, 256, source.shape)
    memory = Memory()
    address = memory.add(source)
    params = [narrow_map(source, address, number, box, swizzle), bytes(128), memory.add(out)]
    text = fetch(*at, size).replace(f"_, [%r10], {size};", f"_, [%r10], {moved};")
    text = text.replace("sm_90a", "sm_100a")
    launch_ptx(text, "k", (1,), (32,), smem=16384, params=params, memory=memory)
    return source, out


def test_packed_elements_of_four_bits_are_loaded():
    source, out = fetch_narrow(11, (128, 16), 64, (128, 12), 1024, 1024)
    wanted = np.zeros((16, 64), np.uint8)
    wanted[:12] = source[12:, 64:]
    assert out.tolist() == unswizzled_to(wanted, 64).tolist()


@pytest.mark.parametrize(("number", "bits"), [(12, 4), (13, 6)])
def test_padded_elements_are_counted_without_their_padding(number, bits):
    """A box of 8 rows of 128 elements from row 2 on, behind the first 32 elements."""
    source, out = fetch_narrow(number, (128, 8), 128, (32, 2), 1024, 128 * bits)
    units = out.reshape(64, 16)
    found = np.zeros((8, 8, 2 * bits), np.uint8)
    for row in range(8):
        for unit in range(8):
            found[row, unit] = units[8 * row + (unit ^ row), : 2 * bits]
    first = 32 * bits // 8
    assert found.reshape(8, -1).tolist() == source[2:10, first : first + 16 * bits].tolist()


def unswizzled_to(rows, swizzle):
    """Return rows of bytes as they lie in shared memory."""
    flat, out = rows.reshape(-1), np.zeros(rows.size, np.uint8)
    for n, byte in enumerate(flat):
        out[mixed(n, swizzle)] = byte
    return out


def test_boxes_that_begin_within_a_byte_are_refused():
    with pytest.raises(KernelFault, match="begins within a byte: at element 3 of 4 bits"):
        fetch_narrow(11, (128, 16), 64, (3, 0), 1024, 1024)


# -- mistakes --------------------------------------------------------------------------------------


def faults(make, old, new):
    """Return the fault of an edited kernel, and its line."""

    def edit(text):
        assert old in text
        return text.replace(old, new, 1)

    return edited_fault(make, edit)


@pytest.mark.parametrize(
    ("old", "new", "reason", "at"),
    [
        ("[%r9+4], %d4", "[%r9+510], %d4", "columns 510 to 513 of tensor memory", "// the copy"),
        ("[%r9+4], %d4", "[%r9+65536], %d4", "cannot begin at lane 1", "// the copy"),
        ("mov.b64 %d4, ", "mov.b64 %d4, 16; // ", "another version", "// the copy"),
        ("fence.proxy.async.shared::cta;", "", "tcgen05.cp reads shared memory written", "256b"),
        ("issued:", "st.shared.b32 [%r10+33792], %r1;\n issued:", "while the copy of", "// the c"),
        (WAIT, "", "before the copy of line", "tcgen05.ld"),
        (COMMIT[1], "", "deadlock", "try_wait"),
    ],
)
def test_mistakes_in_copies_are_found(old, new, reason, at):
    message, line = faults(lambda edit: copies("128x128b", 0, 4, edit=edit), old, new)
    assert reason in message
    assert at in line


@pytest.mark.parametrize(
    ("old", "new", "reason", "at"),
    [
        ("tcgen05.cp.cta_group::1.32x128b.warpx4 [%r16], %d6;", "", "nothing wrote", "%p5;"),
        ("1.32x128b.warpx4 [%r16], %d6;", "1.128x128b [%r16], %d3;", "different scales", "%p5;"),
        ("add.s32 %r16, %r9, 256;", "add.s32 %r16, %r9, 510;", "510 to 513", "cp"),
        ("[%r16], [%r17], %p5;", "[%r16+65536], [%r17], %p5;", "begin at lane 1", "%p5;"),
        ("[%r16], [%r17], %p5;", "[%r16+1073741824], [%r17], %p5;", "in byte 1 by", "%p5;"),
    ],
)
def test_mistakes_in_scaled_products_are_found(old, new, reason, at):
    message, line = faults(
        lambda edit: multiply(MX8, 128, 32, "e4m3", "e4m3", "ue8m0", 1, edit=edit), old, new
    )
    assert reason in message
    assert at in line


@pytest.mark.parametrize(
    ("word", "kind", "group", "block", "reason"),
    [
        (scaled_word(128, 32, "e4m3", "e4m3", "ue4m3"), "mxf8f6f4", 1, 32, "scales of .ue4m3"),
        (scaled_word(128, 32, "e2m1x2", "e2m1x2", "ue8m0", (1, 0)), "mxf4", 1, 32, "begin at byte"),
        (scaled_word(128, 32, "e2m1x2", "e2m1x2", "ue8m0", (0, 2)), "mxf4nvf4", 1, 16, "4 scales"),
        (scaled_word(128, 32, "e4m3", "e4m3", "ue8m0"), "mxf4", 1, 32, "types that are not"),
        (scaled_word(64, 32, "e4m3", "e4m3", "ue8m0"), "mxf8f6f4", 1, 32, "M is 64"),
        (scaled_word(128, 32, "e4m3", "e4m3", "ue8m0"), "mxf8f6f4", 2, 32, "M is 128"),
        (scaled_word(256, 24, "e4m3", "e4m3", "ue8m0"), "mxf8f6f4", 2, 32, "N is 24"),
        (scaled_word(128, 32, "e2m1", "e4m3", "ue8m0", mn=(1, 0)), "mxf8f6f4", 1, 32, "flags"),
        (scaled_word(128, 32, "e4m3", "e4m3", "ue8m0") | 1 << 31, "mxf8f6f4", 1, 32, "be zero"),
    ],
)
def test_instruction_descriptors_that_do_not_fit_are_refused(word, kind, group, block, reason):
    with pytest.raises(Fault, match=reason):
        instruction_of(word, kind, group, block)
