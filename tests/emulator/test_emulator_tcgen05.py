"""The emulator's fifth-generation tensor cores on small kernels, and the mistakes it finds there.

Descriptors and layouts are made here, from the published bit fields, not with the emulator's code.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from emulated import edited_fault, kernel, line_of
from emulated import run as run_kernel
from test_emulator_hopper import aligned, fetch, go, hopper, tensor_map, wait

from unigemm.emulator import KernelFault, Memory, PtxError
from unigemm.emulator import launch as launch_ptx
from unigemm.emulator.ptx.faults import Fault
from unigemm.emulator.tensor_core.mma_descriptors import instruction_of, matrix_of

RNG = np.random.default_rng(20261122)
SMEM = 96 * 1024
IMAGE = 1024  # where operands begin in dynamic shared memory
TYPES = {
    "f16": (np.float16, "f16", 0), "bf16": (ml_dtypes.bfloat16, "f16", 1),
    "tf32": (np.float32, "tf32", 2), "e4m3": (ml_dtypes.float8_e4m3fn, "f8f6f4", 0),
    "e5m2": (ml_dtypes.float8_e5m2, "f8f6f4", 1), "u8": (np.uint8, "i8", 0),
    "s8": (np.int8, "i8", 1),
}  # fmt: skip
ACC = {"f16": (0, np.float16), "f32": (1, np.float32), "s32": (2, np.int32)}
SWIZZLES = {0: 0, 128: 2, 64: 4, 32: 6, "coarse": 1}


# -- descriptors and layouts, as published ---------------------------------------------------------


def instruction_word(m, n, a="f16", b=None, acc="f32", a_mn=False, b_mn=False, negate=0):
    return (
        ACC[acc][0] << 4 | TYPES[a][2] << 7 | TYPES[b or a][2] << 10 | negate << 13
        | a_mn << 15 | b_mn << 16 | n // 8 << 17 | m // 16 << 24
    )  # fmt: skip


def matrix_word(address, leading, stride, swizzle):
    fields = address >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46
    return fields | SWIZZLES[swizzle] << 61


def mixed(offset, swizzle):
    """Swizzle a byte's offset: the 16-byte unit in a 128-byte line, by the line's number."""
    if swizzle == "coarse":
        line, unit = offset // 128, offset % 128 // 32
        return offset - 32 * unit + 32 * (unit ^ line % 4)
    if not swizzle:
        return offset
    line, unit = offset // 128, offset % 128 // 16
    return offset - 16 * unit + 16 * (unit ^ line % 8 % (swizzle // 16))


def laid_out(x, swizzle, mn_major, start):
    """Lay out (rows, K) of 32 bytes in its canonical layout; return its bytes and descriptor.

    `start` is the address of the first byte, a multiple of 1024.
    """
    size = x.dtype.itemsize
    rows, k = x.shape
    image = np.zeros(max(x.nbytes * (8 if swizzle == 128 and not mn_major else 4), 4096), np.uint8)
    wide = 128 if swizzle == "coarse" else swizzle or 16  # bytes of a line of an atom
    if mn_major:  # a line is a K: atoms of 8 (coarse: 4) lines
        deep = 4 if swizzle == "coarse" else 8
        atom = wide * deep
        atoms_k = k // deep
        over_k, over_mn = atom, atom * atoms_k  # K first, then the rows
        leading, stride = (over_mn, over_k) if swizzle else (over_k, over_mn)
    else:  # a line is a row: atoms of 8 rows
        over_mn = wide * 8
        over_k = over_mn * (rows // 8)  # without swizzle: the second unit of 16 bytes
        leading, stride = over_k, over_mn
    flat = x.view(np.uint8).reshape(rows, k, size)
    for r in range(rows):
        for c in range(k):
            if mn_major:
                along = r * size
                offset = along // wide * over_mn + along % wide
                offset += c // deep * over_k + c % deep * wide
            else:
                along = c * size
                offset = r // 8 * over_mn + r % 8 * wide
                offset += along if swizzle else along // 16 * over_k + along % 16
            to = mixed(offset, swizzle)
            image[to : to + size] = flat[r, c]
    return image, matrix_word(start, leading, stride, swizzle)


# -- the probe -------------------------------------------------------------------------------------

# %r1 thread, %r2 rank, %r3 warp, %r10 shared memory, %r9 address in tensor memory, %p1 thread 0.
START = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; shr.u32 %r3, %r1, 5;
    mov.b32 %r10, smem;
    setp.eq.u32 %p1, %r1, 0;
    setp.ne.u32 %p2, %r3, 0;
    mov.b32 %r5, COLUMNS;
    @%p2 bra allocated;
    tcgen05.alloc.cta_group::GROUP.sync.aligned.shared::cta.b32 [%r10+16], %r5;
    allocated:
    @!%p1 bra ready;
    mbarrier.init.shared.b64 [%r10], 1;
    fence.mbarrier_init.release.cluster;
    ready:
    barrier.cluster.arrive;
    barrier.cluster.wait;
    ld.shared.b32 %r9, [%r10+16];
"""
# Bring the image of this CTA, SIZE bytes at %d10, to shared memory.
IMAGES = """
    mul.wide.u32 %d1, %r2, SIZE; add.s64 %d1, %d1, %d10;
    shl.b32 %r4, %r1, 4;
    add.s32 %r6, %r10, %r4; cvt.u64.u32 %d2, %r4; add.s64 %d1, %d1, %d2;
    copying:
    ld.global.v4.b32 {%r11, %r12, %r13, %r14}, [%d1];
    st.shared.v4.b32 [%r6+1024], {%r11, %r12, %r13, %r14};
    add.s64 %d1, %d1, 2048; add.s32 %r6, %r6, 2048; add.s32 %r4, %r4, 2048;
    setp.lt.u32 %p3, %r4, SIZE;
    @%p3 bra copying;
    fence.proxy.async.shared::cta;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    tcgen05.fence::after_thread_sync;
"""
# Two products, the second added to the first: D = 2 A B.
MULTIPLY = """
    setp.eq.u32 %p4, %r2, 0; and.pred %p4, %p4, %p1;
    @!%p4 bra issued;
    mov.b64 %d3, AWORD; mov.b64 %d4, BWORD; mov.b32 %r7, IWORD;
    mov.pred %p5, 0; mov.pred %p6, -1;
    tcgen05.mma.cta_group::GROUP.kind::KIND [%r9], %d3, %d4, %r7, %p5;
    tcgen05.mma.cta_group::GROUP.kind::KIND [%r9], %d3, %d4, %r7, %p6;
    COMMIT
    issued:
"""
COMMIT = {
    1: "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];",
    2: "mov.b16 %h1, 3;\n    tcgen05.commit.cta_group::2.mbarrier::arrive::one"
       ".shared::cluster.multicast::cluster.b64 [%r10], %h1;",
}  # fmt: skip
WAIT = """
    waiting:
    mbarrier.try_wait.parity.shared.b64 %p7, [%r10], 0;
    @%p7 bra waited;
    bra waiting;
    waited:
    tcgen05.fence::after_thread_sync;
"""
# Registers %r64... of all threads go to %d11, one row a thread.
LOAD = """
    shl.b32 %r8, %r3, 21; and.b32 %r8, %r8, 0x600000; add.s32 %r8, %r8, %r9;
    add.s32 %r8, %r8, AHEAD;
    tcgen05.ld.sync.aligned.FORM.b32 {REGISTERS}, [%r8]SPLIT;
    tcgen05.wait::ld.sync.aligned;
"""
DUMP = """
    mad.lo.s32 %r4, %r2, 128, %r1;
    mul.wide.u32 %d5, %r4, WIDTH; add.s64 %d5, %d5, %d11;
"""
END = """
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    tcgen05.fence::after_thread_sync;
    @%p2 bra over;
    tcgen05.relinquish_alloc_permit.cta_group::GROUP.sync.aligned;
    mov.b32 %r5, COLUMNS;
    tcgen05.dealloc.cta_group::GROUP.sync.aligned.b32 %r9, %r5;
    over:
"""


def registers(count, first=64):
    return [f"%r{first + n}" for n in range(count)]


def loads(form, count, *, ahead=0, split=None):
    text = LOAD.replace("FORM", form).replace("REGISTERS", ", ".join(registers(count)))
    text = text.replace("AHEAD", str(ahead))
    text = text.replace("SPLIT", "" if split is None else f", {split}")
    stores = [f"st.global.b32 [%d5+{4 * n}], {r};" for n, r in enumerate(registers(count))]
    return text + DUMP.replace("WIDTH", str(4 * count)) + "\n".join(stores)


def blackwell(body, *, group=1, columns=512, target="sm_100a", **words):
    text = kernel(START + body + END, ("u64", "u64"))
    for name, value in {"GROUP": group, "COLUMNS": columns, **words}.items():
        text = text.replace(name, str(value))
    text = text.replace(".reg .b32 %r<64>", ".reg .b32 %r<192>").replace("sm_90a", target)
    return text.replace(".visible", ".extern .shared .align 1024 .b8 smem[];\n.visible", 1)


def launch(text, arrays, *, group=1, threads=128, **options):
    return run_kernel(
        text, arrays, threads=threads, ctas=group, cluster=(group, 1, 1), smem=SMEM, **options
    )


def fault_of(text, arrays, at, **options):
    with pytest.raises(KernelFault) as error:
        launch(text, arrays, **options)
    assert error.value.site.line == line_of(text, at), str(error.value)
    return error.value.message


def numbers(shape, dtype):
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return RNG.integers(low, 5, shape).astype(np.float32).astype(dtype)


#: Names of forms, registers of .x1, columns of .x1.
FORMS = {"16x64b": (1, 2), "16x128b": (2, 4), "16x256b": (4, 8)}


def word_of(form, lane, register):
    """Return (row, column) of a register, after the figures of PTX ISA: fragments of tcgen05."""
    if form == "32x32b":
        return lane, register
    if form == "16x64b":  # even lanes have rows 0 to 7, odd ones rows 8 to 15
        return lane // 4 + (8 if lane & 1 else 0), 2 * register + (lane >> 1 & 1)
    if form == "16x128b":
        return lane // 4 + 8 * (register & 1), 4 * (register >> 1) + lane % 4
    row = lane // 4 + (8 if register % 4 >= 2 else 0)
    return row, 8 * (register // 4) + 2 * (lane % 4) + register % 2


def multiply(m, n, group=1, a="f16", b=None, acc="f32", swizzles=(128, 128), mn=(False, False),
             negate=0, form="32x32b", edit=None, events=None, **options):  # fmt: skip
    """Multiply in a probe; return what each CTA's threads loaded, and A and B."""
    a_type, b_type = TYPES[a][0], TYPES[b or a][0]
    k = 32 // np.dtype(a_type).itemsize
    left, right = numbers((m, k), a_type), numbers((n, k), b_type)
    images = []
    for cta in range(group):
        parts, words = [], []
        start = 1024 + IMAGE
        for x, swizzle, major in zip((left, right), swizzles, mn, strict=True):
            rows = len(x) // group
            raw, word = laid_out(x[cta * rows : (cta + 1) * rows], swizzle, major, start)
            raw = np.concatenate([raw, np.zeros(-len(raw) % 2048, np.uint8)])
            start += len(raw)
            parts.append(raw)
            words.append(word)
        images.append(np.concatenate(parts))
    image = np.stack(images)
    width = n // 2 if (m, group) == (128, 2) else n
    count = width * FORMS[form][0] // FORMS[form][1] if form in FORMS else width
    times = width // FORMS[form][1] if form in FORMS else width
    out = np.zeros((group * 128, count), np.uint32)
    body = IMAGES + MULTIPLY + WAIT + loads(f"{form}.x{times}", count)
    text = blackwell(
        body, group=group, SIZE=image.shape[1], KIND=TYPES[a][1], COMMIT=COMMIT[group],
        AWORD=words[0], BWORD=words[1],
        IWORD=instruction_word(m, n, a, b, acc, *mn, negate=negate),
    )  # fmt: skip
    if edit is not None:
        text = edit(text)
    report = launch(text, (image, out), group=group, events=events is not None, **options)
    if events is not None:
        events += [(e.cta[0], e.what) for e in report.events if e.what.startswith("multipl")]
    return out.reshape(group, 128, count), left.astype(np.float64), right.astype(np.float64)


def acc_of(words, kind):
    if kind == "f16":
        return words.astype(np.uint16).view(np.float16).astype(np.float64)
    return words.view(ACC[kind][1]).astype(np.float64)


# -- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        {"a": "f16"}, {"a": "bf16"}, {"a": "f16", "acc": "f16"}, {"a": "tf32"},
        {"a": "e4m3", "b": "e5m2"}, {"a": "e5m2", "acc": "f16"}, {"a": "s8", "acc": "s32"},
        {"a": "u8", "b": "s8", "acc": "s32"},
        {"swizzles": (64, 32)}, {"swizzles": (32, 0)}, {"swizzles": (0, 64)},
        {"mn": (True, False)}, {"mn": (False, True), "swizzles": (128, 64)},
        {"mn": (True, True), "swizzles": (32, 0)}, {"mn": (True, True), "swizzles": (0, 32)},
        {"a": "e4m3", "mn": (True, True)}, {"a": "s8", "acc": "s32", "mn": (True, True)},
        {"a": "tf32", "mn": (True, True), "swizzles": ("coarse", "coarse")},
        {"negate": 1}, {"negate": 2}, {"negate": 3},
    ],
    ids=str,
)  # fmt: skip
def test_products_of_one_cta(case):
    """D = 2 A B of 128x32, each lane of tensor memory a row."""
    out, a, b = multiply(128, 32, **case)
    sign = -1 if case.get("negate") in (1, 2) else 1
    assert acc_of(out[0], case.get("acc", "f32")).tolist() == (sign * 2 * a @ b.T).tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [16, 64])
def test_64_rows_lie_in_the_lower_halves_of_the_warps_lanes(form, n):
    out, a, b = multiply(64, n, form=form)
    wanted = 2 * a @ b.T
    found = acc_of(out[0], "f32")
    for thread in range(128):
        for register in range(found.shape[1]):
            row, column = word_of(form, thread % 32, register)
            assert found[thread, register] == wanted[thread // 32 * 16 + row, column]


@pytest.mark.parametrize(("a", "mn"), [("f16", (False, False)), ("e4m3", (True, True)),
                                       ("bf16", (True, False))])  # fmt: skip
def test_a_pair_of_ctas_has_half_of_256_rows_each(a, mn):
    for seed in (0, 1):
        out, left, right = multiply(256, 64, 2, a, mn=mn, seed=seed)
        assert acc_of(out.reshape(256, 64), "f32").tolist() == (2 * left @ right.T).tolist()


def test_a_pair_of_ctas_folds_the_columns_of_128_rows():
    """Lanes 64 to 127 have the second half of the columns of the CTA's 64 rows."""
    out, left, right = multiply(128, 64, 2)
    wanted = 2 * left @ right.T
    found = acc_of(out, "f32")
    for cta in range(2):
        rows = wanted[64 * cta : 64 * cta + 64]
        assert found[cta, :64].tolist() == rows[:, :32].tolist()
        assert found[cta, 64:].tolist() == rows[:, 32:].tolist()


def test_allocations_lie_one_behind_the_other():
    """The second of two is used; what the first gives back is given out again."""
    first = """
        @%p2 bra more;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+20], 64;
        ld.shared.b32 %r30, [%r10+20];
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+20], 128;
        ld.shared.b32 %r31, [%r10+20];
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 64;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+20], 32;
        ld.shared.b32 %r32, [%r10+20];
        st.global.v4.b32 [%d11], {%r9, %r30, %r31, %r32};
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r31, 128;
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r32, 32;
        more:
    """
    out = np.zeros(4, np.uint32)
    launch(blackwell(first, columns=64), (np.zeros(4), out))
    used = [set(range(c, c + n)) for c, n in zip(out.tolist(), (64, 64, 128), strict=False)]
    assert len(set.union(*used)) == 256
    assert max(set.union(*used)) < 512
    assert out[3] == out[1]


def test_an_allocation_waits_for_columns():
    """Warp 1 asks for all columns while warp 0 has them; it gets them when they are freed."""
    first = """
        setp.ne.u32 %p9, %r3, 1;
        @%p9 bra other;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+20], 512;
        st.global.b32 [%d11], %r3;
        ld.shared.b32 %r31, [%r10+20];
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r31, 512;
        other:
        @%p2 bra mine;
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 512;
        mine:
        bar.sync 0;
        @%p2 bra back;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+16], 512;
        ld.shared.b32 %r9, [%r10+16];
        back:
    """
    for seed in range(4):
        out = np.zeros(4, np.uint32)
        launch(blackwell(first), (np.zeros(4), out), seed=seed, lockstep=False)
        assert out[0] == 1


def test_the_order_of_warps_does_not_matter():
    for seed in range(3):
        out, a, b = multiply(256, 32, 2, seed=seed, lockstep=False)
        assert acc_of(out.reshape(256, 32), "f32").tolist() == (2 * a @ b.T).tolist()


def test_events_of_products():
    """Two products of the even CTA, and its commit, which both CTAs hear of."""
    seen = []
    multiply(256, 32, 2, "f16", events=seen)
    assert seen[:2] == [(0, "multiply")] * 2
    assert sorted(seen[2:]) == [(0, "multiplied"), (1, "multiplied")]


def test_accumulators_at_an_offset():
    """Their address has a constant added: they do not begin at the first column."""

    def edit(text):
        assert text.count("add.s32 %r8, %r8, 0;") == 1
        text = text.replace("[%r9], %d3", "[%r9+64], %d3")
        return text.replace("add.s32 %r8, %r8, 0;", "add.s32 %r8, %r8, 64;")

    out, a, b = multiply(128, 32, edit=edit)
    assert acc_of(out[0], "f32").tolist() == (2 * a @ b.T).tolist()


def test_lanes_that_are_left_out():
    """The second product leaves out every second lane of the second warp, and the last lane."""

    def edit(text):
        second = "mov.b32 %r40, 0; mov.b32 %r41, 0x55555555; mov.b32 %r42, 0x80000000;\n"
        plain = "%d3, %d4, %r7, %p6;"
        text = text.replace(plain, "%d3, %d4, %r7, {%r40, %r41, %r40, %r42}, %p6;")
        return text.replace("mov.pred %p5, 0;", second + "mov.pred %p5, 0;")

    out, a, b = multiply(128, 32, edit=edit)
    times = np.full((128, 1), 2)
    times[32:64:2] = 1
    times[127] = 1
    assert acc_of(out[0], "f32").tolist() == (times * (a @ b.T)).tolist()


def test_a_from_tensor_memory():
    """A, as float16 in eight columns behind the accumulators, times B."""
    a, b = numbers((128, 16), np.float16), numbers((32, 16), np.float16)
    raw, word = laid_out(b, 128, False, 1024 + IMAGE)
    image = np.concatenate([raw, np.zeros(-len(raw) % 2048, np.uint8), a.view(np.uint8).ravel()])
    size = len(image) - a.nbytes
    store = f"""
        mul.wide.u32 %d6, %r1, 32; add.s64 %d6, %d6, %d10; add.s64 %d6, %d6, {size};
        ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%d6];
        ld.global.v4.b32 {{%r24, %r25, %r26, %r27}}, [%d6+16];
        shl.b32 %r8, %r3, 21; add.s32 %r8, %r8, %r9;
        tcgen05.st.sync.aligned.32x32b.x8.b32 [%r8+64], {{{", ".join(registers(8, 20))}}};
        tcgen05.wait::st.sync.aligned;
        tcgen05.fence::before_thread_sync;
        bar.sync 0;
        tcgen05.fence::after_thread_sync;
        add.s32 %r28, %r9, 64;
    """
    body = IMAGES + store + MULTIPLY.replace("%d3, %d4", "[%r28], %d4") + WAIT
    text = blackwell(body + loads("32x32b.x32", 32), SIZE=size, KIND="f16", COMMIT=COMMIT[1],
                     AWORD=0, BWORD=word, IWORD=instruction_word(128, 32))  # fmt: skip
    out = np.zeros((128, 32), np.uint32)
    launch(text, (image, out))
    wanted = 2 * a.astype(np.float64) @ b.astype(np.float64).T
    assert acc_of(out, "f32").tolist() == wanted.tolist()
    late = text.replace("tcgen05.wait::st.sync.aligned;", "")
    assert "with no tcgen05.wait::st" in fault_of(late, (image, out), "%r28], %d4, %r7, %p5;")
    for number in (1, 2):  # around the barrier behind the store
        message = fault_of(without_fence(text, number, 6), (image, out), "%r28], %d4, %r7, %p5;")
        assert "race: the product reads tensor memory" in message


# -- loads and stores ------------------------------------------------------------------------------

# Word (lane, column) of the first COLS columns is 1000 lane + column, plus 7 << 20.
FILL = """
    shl.b32 %r8, %r3, 21; add.s32 %r8, %r8, %r9;
    mad.lo.s32 %r20, %r1, 1000, 7340032;
    VALUES
    tcgen05.st.sync.aligned.32x32b.x64.b32 [%r8], {REGISTERS};
    tcgen05.wait::st.sync.aligned;
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
"""


def filled():
    names = registers(64)
    values = "\n".join(f"add.s32 {r}, %r20, {n};" for n, r in enumerate(names))
    return FILL.replace("VALUES", values).replace("REGISTERS", ", ".join(names))


def word(lane, column):
    return 1000 * lane + column + (7 << 20)


@pytest.mark.parametrize(
    ("form", "lower"), [("32x32b", 0), *((form, lower) for form in FORMS for lower in (0, 16))]
)
@pytest.mark.parametrize("times", [1, 2, 4])
def test_loads_of_each_shape(form, times, lower):
    count = FORMS.get(form, (1, 1))[0] * times
    out = np.zeros((128, count), np.uint32)
    text = blackwell(filled() + loads(f"{form}.x{times}", count, ahead=(lower << 16) + 3))
    launch(text, (np.zeros(4), out))
    for thread in range(128):
        for register in range(count):
            row, column = word_of(form, thread % 32, register)
            lane = thread // 32 * 32 + lower + row
            assert out[thread, register] == word(lane, column + 3)


def test_loads_of_two_halves():
    """The upper lanes of a warp have the same rows, some columns further on."""
    out = np.zeros((128, 4), np.uint32)
    launch(blackwell(filled() + loads("16x32bx2.x4", 4, split=20)), (np.zeros(4), out))
    for thread in range(128):
        lane, ahead = thread // 32 * 32 + thread % 16, 20 * (thread % 32 // 16)
        assert out[thread].tolist() == [word(lane, ahead + n) for n in range(4)]


@pytest.mark.parametrize("form", ["32x32b", "16x256b"])
def test_packed_loads_take_the_low_halves_of_two_columns(form):
    count = FORMS.get(form, (1, 1))[0] * 2
    out = np.zeros((128, count), np.uint32)
    launch(blackwell(filled() + loads(f"{form}.x2.pack::16b", count)), (np.zeros(4), out))
    for thread in range(128):
        for register in range(count):
            row, column = word_of(form, thread % 32, register)
            pair = [word(thread // 32 * 32 + row, 2 * column + n) & 0xFFFF for n in (0, 1)]
            assert out[thread, register] == pair[0] | pair[1] << 16


def test_unpacked_stores_are_the_inverse():
    store = """
        add.s32 %r30, %r8, 100; mov.b32 %r31, 0x20001; add.s32 %r31, %r31, %r1;
        tcgen05.st.sync.aligned.32x32b.x1.unpack::16b.b32 [%r30], {%r31};
        tcgen05.wait::st.sync.aligned;
    """
    out = np.zeros((128, 2), np.uint32)
    launch(blackwell(filled() + store + loads("32x32b.x2", 2, ahead=100)), (np.zeros(4), out))
    assert out.tolist() == [[thread + 1, 2] for thread in range(128)]


# -- mistakes --------------------------------------------------------------------------------------

OUT = (np.zeros(4), np.zeros((256, 64), np.uint32))
LD = "tcgen05.ld.sync.aligned"


def probe(edit, group=1, m=128, **options):
    """Run the multiplying probe, edited; return the fault's message and line."""
    return edited_fault(lambda change: multiply(m, 32, group, edit=change, **options), edit)


@pytest.mark.parametrize(
    ("old", "new", "reason", "at"),
    [
        (COMMIT[1], "", "deadlock", "try_wait"),
        (WAIT, "", "before the product of line", LD),
        ("fence.proxy.async.shared::cta;", "", "no fence.proxy.async", "%p5;"),
        ("%d3, %d4, %r7, %p5;", "%d3, %d4, %r7, %p6;", "tensor memory that nothing wrote", "%p6;"),
        ("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, %r5;", "", "were not freed", "alloc."),
        ("b32 %r9, %r5;", "b32 %r9, 64;", "no allocation of 64 columns", "dealloc"),
        ("mov.b32 %r5, 512;", "mov.b32 %r5, 48;", "no power of two", "alloc."),
        ("mov.b32 %r5, 512;", "mov.b32 %r5, 1024;", "no power of two", "alloc."),
        ("mov.pred %p5, 0;", "mov.pred %p5, 0; add.s32 %r9, %r9, 496;", "not allocated", "%p5;"),
        ("mov.pred %p5, 0;", "mov.pred %p5, 0; add.s32 %r9, %r9, 0x100000;", "at lane 16", "%p5;"),
        ("shl.b32 %r8, %r3, 21; and", "mov.b32 %r8, 0; and", "reaches those from", LD),
        ("cta_group::1.kind", "cta_group::2.kind", "no pairs of CTAs", "%p5;"),
        ("mov.pred %p5, 0;", "mov.pred %p5, 0; mov.b64 %d3, 0;", "another version", "%p5;"),
    ],
)  # fmt: skip
def test_mistakes_in_products_are_found(old, new, reason, at):
    message, line = probe(lambda text: text.replace(old, new, 1))
    assert reason in message
    assert at in line


def without_fence(text, number, of):
    """Return a text without one of its fences of tcgen05, of which there are `of`."""
    found = list(re.finditer(r"tcgen05\.fence::\w+;", text))
    assert len(found) == of
    return text[: found[number].start()] + text[found[number].end() :]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    ("number", "reason", "at"),
    [
        (0, "no tcgen05.fence::after_thread_sync behind the wait", "%p5;"),
        (1, "race: it reads tensor memory that a product", LD),
        (2, "race: it frees tensor memory", "dealloc"),
        (3, "race: it frees tensor memory", "dealloc"),
    ],
)
def test_each_fence_around_a_barrier_is_needed(number, reason, at, group):
    for seed in range(3):
        message, line = probe(
            lambda text: without_fence(text, number, 4), group, 128 * group, seed=seed
        )
        assert reason in message
        assert at in line


def test_a_product_that_no_commit_follows():
    message, line = probe(
        lambda text: text.replace(COMMIT[1], "").replace(WAIT, "").replace(
            text[text.index("shl.b32 %r8") : text.index("barrier.cluster", text.index("%d5+0"))], ""
        )
    )  # fmt: skip
    assert "it is freed before the product" in message
    assert "dealloc" in line


def test_operands_that_are_overwritten_too_early():
    """Before the product is complete, thread 0 writes over A."""
    late = "st.shared.b32 [%r10+1024], %r1;\n issued:"
    message, _ = probe(lambda text: text.replace("issued:", late, 1).replace("bra late", "bra is"))
    assert "overwritten while the product" in message


def test_products_that_several_threads_issue():
    message, line = probe(lambda text: text.replace("and.pred %p4, %p4, %p1;", ""))
    assert "several threads" in message
    assert "tcgen05.mma" in line


def test_a_pair_that_does_not_allocate_together():
    """Only one CTA comes to the allocation: it waits for ever."""
    one = "setp.ne.u32 %p8, %r2, 0; or.pred %p2, %p2, %p8; mov.b32 %r5, 512;"
    message, _ = probe(lambda text: text.replace("mov.b32 %r5, 512;", one, 1), group=2, m=256)
    assert "tcgen05.alloc waits for 512 columns" in message
    assert "deadlock" in message


def test_a_pair_that_allocates_different_numbers_of_columns():
    many = "mov.b32 %r5, 128; shl.b32 %r5, %r5, %r2;"
    message, _ = probe(lambda text: text.replace("mov.b32 %r5, 512;", many, 1), group=2, m=256)
    assert "allocate 128 and 256 columns" in message


def test_a_pair_needs_both_ctas_data():
    """The odd CTA's operands are not there."""
    half = "setp.ne.u32 %p9, %r2, 0; @%p9 bra copied; copying:"

    def edit(text):
        text = text.replace("copying:", half, 1)
        return text.replace("fence.proxy.async", "copied: fence.proxy.async", 1)

    message, line = probe(edit, group=2, m=256)
    assert "shared memory that nothing wrote" in message
    assert "tcgen05.mma" in line


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r64, %r65, %r66, %r67}, [%r9];", "nothing wrote"),
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r64}, [%r9+600];", "not allocated"),
        ("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 256;", "no allocation of 256"),
        ("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
         "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+20], 32;",
         "gave up its permit"),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+20], 32;", "deadlock"),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10+8];",
         "several threads"),
    ],
)  # fmt: skip
def test_mistakes_with_tensor_memory_are_found(line, reason):
    first = f"setp.ne.u32 %p9, %r3, 0; @%p9 bra skipped;\n{line}\nskipped:"
    assert reason in fault_of(blackwell(first), OUT, line.split("\n")[-1])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%r9], %d1;", "this form is not"),
        ("tcgen05.cp.cta_group::1.32x128b [%r9], %d1;", "this form is not"),
        ("tcgen05.shift.cta_group::1.down [%r9];", "is not implemented"),
        ("tcgen05.mma.cta_group::1.kind::mxf4 [%r9], %d1, %d2, %r7, %p5;", ".block_scale and"),
        ("tcgen05.mma.cta_group::1.kind::f16.block_scale [%r9], %d1, %d2, %r7, [%r5], [%r6], %p5;",
         ".block_scale and .kind"),
        ("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [%r9], %d1, %d2, %r7, [%r5], [%r6],"
         "%p5;", "needs one of scale_vec::2X, block32, scale_vec::4X, block16"),
        ("tcgen05.mma.ws.cta_group::1.kind::f16 [%r9], %d1, %d2, %r7, %p5;", "modifier"),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r9], %d1, %d2, %r7, %p5, 3;", "scale-input-d"),
        ("tcgen05.ld.sync.aligned.32x32b.x3.b32 {%r1, %r2, %r3}, [%r9];", "repeated 3 times"),
        ("tcgen05.ld.sync.aligned.16x256b.x1.b32 {%r1, %r2}, [%r9];", "4 registers"),
    ],
)  # fmt: skip
def test_what_is_not_implemented_is_refused(line, reason):
    with pytest.raises(PtxError, match=r"PTX line \d+") as error:
        launch(blackwell(line), OUT)
    assert reason in str(error.value)


@pytest.mark.parametrize(("target", "kind"), [("sm_90a", "f16"), ("sm_120a", "f16"),
                                              ("sm_103a", "i8"), ("sm_100f", "i8")])  # fmt: skip
def test_architectures_without_the_instruction_are_refused(target, kind):
    """Kind i8 is of sm_100a and sm_110a only."""
    line = f"tcgen05.mma.cta_group::1.kind::{kind} [%r9], %d1, %d2, %r7, %p5;"
    with pytest.raises(PtxError, match=f"{target} has no such instruction"):
        launch(blackwell(line, target=target), OUT)


# -- pairs of CTAs: TMA and mbarriers --------------------------------------------------------------

# Each CTA loads 2048 bytes; the even one's mbarrier counts them, and it alone waits, then says so.
PAIR = """
    @!%p1 bra ready;
    mbarrier.init.shared.b64 [%r10], 1;
    mbarrier.init.shared.b64 [%r10+8], 1;
    ready:
    barrier.cluster.arrive;
    barrier.cluster.wait;
    setp.eq.u32 %p2, %r2, 0; and.pred %p3, %p1, %p2;
    @%p3 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 4096;
    and.b32 %r12, %r10, 0xFEFFFFFF;
    mul.lo.s32 %r21, %r2, 8;
    @!%p1 bra issued;
    cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r11], [%d1, {%r20, %r21}], [%r12];
    issued:
    @!%p2 bra waited;
""" + wait() + """
    @!%p1 bra waited;
    mapa.shared::cluster.u32 %r13, %r10, 0; mapa.shared::cluster.u32 %r14, %r10, 1;
    mbarrier.arrive.shared::cluster.b64 _, [%r13+8];
    mbarrier.arrive.shared::cluster.b64 _, [%r14+8];
    waited:
""" + wait(8, name="other") + """
    shl.b32 %r5, %r1, 2;
    add.s32 %r6, %r11, %r5;
    ld.shared.b32 %r8, [%r6];
    mad.lo.s32 %r9, %r2, 128, %r5;
    cvt.u64.u32 %d3, %r9; add.s64 %d3, %d3, %d10;
    st.global.b32 [%d3], %r8;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""  # noqa: E501  # fmt: skip


def of_pairs(text):
    """Return a kernel for a target whose loads know pairs of CTAs."""
    return text.replace(".target sm_90a", ".target sm_100a")


def test_a_pairs_loads_are_counted_by_the_even_cta():
    """The address of its own mbarrier, with bit 24 cleared, is that of the even CTA's."""
    source, out = aligned((16, 64), np.float16), aligned((2, 64), np.float16)
    source[...] = RNG.integers(0, 100, source.shape)
    for seed in range(3):
        go(of_pairs(hopper(PAIR)), (source, out), [(0, (64, 16), 128)], cluster=2, seed=seed)
        assert out.tolist() == [source[0].tolist(), source[8].tolist()]


def test_only_a_pair_may_signal_the_other_cta():
    text = hopper(PAIR).replace(".cta_group::2", "")
    arrays = (aligned((16, 64), np.float16), aligned((2, 64), np.float16))
    with pytest.raises(KernelFault, match="the mbarrier is not in the CTA") as error:
        go(text, arrays, [(0, (64, 16), 128)], cluster=2)
    assert error.value.site.cta == (1, 0, 0)


def test_a_multicast_to_pairs_signals_the_same_cta_of_each():
    """One CTA of four sends to all; the even CTAs count what comes to both of their pair."""
    body = """
        @!%p1 bra ready;
        mbarrier.init.shared.b64 [%r10], 1;
        and.b32 %r3, %r2, 1; setp.eq.u32 %p3, %r3, 0;
        @%p3 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 4096;
        @!%p3 mbarrier.arrive.shared.b64 _, [%r10];
        ready:
        barrier.cluster.arrive;
        barrier.cluster.wait;
        setp.eq.u32 %p2, %r2, 3; and.pred %p2, %p1, %p2;
        @!%p2 bra loaded;
        mov.b16 %h1, 15; and.b32 %r12, %r10, 0xFEFFFFFF;
        cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.cta_group::2 [%r11], [%d1, {%r20, %r20}], [%r12], %h1;
        loaded:
    """ + wait() + """
        barrier.cluster.arrive;
        barrier.cluster.wait;
        shl.b32 %r5, %r1, 2;
        add.s32 %r6, %r11, %r5;
        ld.shared.b32 %r8, [%r6];
        mad.lo.s32 %r9, %r2, 128, %r5;
        cvt.u64.u32 %d3, %r9; add.s64 %d3, %d3, %d10;
        st.global.b32 [%d3], %r8;
    """  # noqa: E501  # fmt: skip
    source, out = aligned((16, 64), np.float16), aligned((4, 64), np.float16)
    source[...] = RNG.integers(0, 100, source.shape)
    report = go(of_pairs(hopper(body)), (source, out), [(0, (64, 16), 128)], cluster=4)
    assert out.tolist() == [source[0].tolist()] * 4
    assert report.tma_loaded == 4 * 2048


def test_addresses_name_their_cta():
    """Bits 24 and above are the rank; mapa changes them only, and others need shared::cluster."""
    body = """
        mapa.shared::cluster.u32 %r5, %r10, 1;
        mad.wide.u32 %d3, %r2, 8, %d10;
        st.global.v2.b32 [%d3], {%r10, %r5};
    """
    out = aligned((4, 2), np.uint32)
    go(hopper(body), (out,), cluster=4)
    assert (out >> 24).tolist() == [[0, 1], [1, 1], [2, 1], [3, 1]]
    assert len(set((out & 0xFFFFFF).ravel().tolist())) == 1
    text = hopper(body + "st.shared.b32 [%r5], %r1;")
    with pytest.raises(KernelFault, match=r"needs \.shared::cluster"):
        go(text, (out,), cluster=4)


def test_boxes_are_swizzled_in_units_of_32_bytes():
    source, out = aligned((16, 32), np.float32), aligned(2048, np.uint8)
    source[...] = RNG.integers(0, 100, source.shape)
    memory = Memory()
    raw = bytearray(tensor_map(source, memory.add(source), (32, 16), 128))
    raw[10] |= 1 << 3  # bit 19 of the flags
    params = [bytes(raw), bytes(128), memory.add(out)]
    launch_ptx(fetch(0, 0, 2048), "k", (1,), (32,), smem=8192, params=params, memory=memory)
    flat = source.view(np.uint8).ravel()
    assert all(out[mixed(n, "coarse")] == flat[n] for n in range(2048))


# -- descriptors -----------------------------------------------------------------------------------


def test_instruction_descriptors_are_read():
    found = instruction_of(0x08400010, "f16", 1)  # as CuTe DSL writes that of 128x256
    assert (found.m, found.n, found.k, found.a, found.b, found.acc) == (
        128, 256, 16, "f16", "f16", "f32",
    )  # fmt: skip
    found = instruction_of(
        instruction_word(256, 96, "e4m3", "e5m2", "f16", True, False, negate=2), "f8f6f4", 2
    )
    assert (found.m, found.n, found.a, found.b, found.acc) == (256, 96, "e4m3", "e5m2", "f16")
    assert (found.a_k_major, found.b_k_major, found.a_sign, found.b_sign) == (False, True, 1, -1)


@pytest.mark.parametrize(
    ("word", "kind", "group", "reason"),
    [
        (instruction_word(64, 32), "f16", 2, "M is 64"),
        (instruction_word(256, 32), "f16", 1, "M is 256"),
        (instruction_word(128, 24), "f16", 1, "N is 24"),
        (instruction_word(128, 16, "s8", acc="s32"), "i8", 2, "N is 16"),
        (instruction_word(64, 264 % 512), "f16", 1, "N is 264"),
        (instruction_word(64, 0), "f16", 1, "N is 0"),
        (instruction_word(128, 32, "bf16", "f16"), "f16", 1, "types"),
        (instruction_word(128, 32), "tf32", 1, "types"),
        (instruction_word(128, 32, acc="s32"), "f16", 1, "types"),
        (instruction_word(128, 32, "tf32", acc="f16"), "tf32", 1, "types"),
        (instruction_word(128, 32) | 4, "f16", 1, "sparse"),
        (instruction_word(128, 32) | 8, "f16", 1, "flags"),
        (instruction_word(128, 32) | 1 << 30, "f16", 1, "must be zero"),
    ],
)  # fmt: skip
def test_instruction_descriptors_that_do_not_fit_are_refused(word, kind, group, reason):
    with pytest.raises(Fault, match=reason):
        instruction_of(word, kind, group)


def test_matrix_descriptors_are_read():
    found = matrix_of(matrix_word(0x12340, 0x4000, 0x400, 64))
    assert (found.start, found.leading, found.stride) == (0x12340, 0x4000, 0x400)
    assert (found.swizzle, found.coarse) == (64, False)
    good = matrix_word(0, 16, 1024, 128)
    for change, reason in (
        (good ^ 1 << 46, "version"), (good | 1 << 49, "base offset"), (good | 1 << 52, "absolute"),
        (good | 1 << 53, "must be zero"), (good | 1 << 61, "unknown swizzle"),
    ):  # fmt: skip
        with pytest.raises(Fault, match=reason):
            matrix_of(change)
