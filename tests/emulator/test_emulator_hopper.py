"""The emulator's Hopper instructions on small kernels, and the mistakes that it finds in them."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
from emulated import kernel, line_of, run

from unigemm.emulator import KernelFault, Memory, launch
from unigemm.emulator.async_copy.tma import decode
from unigemm.emulator.core.memory import bank_passes
from unigemm.emulator.ptx.faults import Fault

RNG = np.random.default_rng(20261121)
TYPES = {"uint8": 0, "float16": 6, "float32": 7, "bfloat16": 10, "uint32": 2, "int64": 5}


def tensor_map(array, address, box, swizzle=0, more_flags=0):
    """Write the descriptor of a C-contiguous array; the box's innermost extent first."""
    extents = array.shape[::-1]
    strides = array.strides[::-1]
    rank = array.ndim
    flags = 2 | (rank - 1) << 4 | TYPES[array.dtype.name] << 7 | 1 << 18
    flags |= {0: 0, 32: 1, 64: 2, 128: 3}[swizzle] << 13 | more_flags
    raw = bytearray(128)
    struct.pack_into("<QI", raw, 0, address, flags)
    for n, step in enumerate(strides[1:]):
        struct.pack_into("<I", raw, 12 + 4 * n, step // 16)
    for n in range(rank):
        struct.pack_into("<I", raw, 32 + 4 * n, extents[n] - 1)
        raw[55 + n] = box[n] - 1
    return bytes(raw)


def hopper(body, smem=4096, params=()):
    listed = ".param .align 64 .b8 map0[128], .param .align 64 .b8 map1[128], .param .u64 p0"
    text = kernel(body, ("u64",)).replace("(.param .u64 p0)", f"({listed})")
    top = ".extern .shared .align 1024 .b8 smem[];\n"
    start = """
        mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank;
        mov.b32 %r10, smem; add.s32 %r11, %r10, 1024;
        mov.b64 %d1, map0; cvta.param.u64 %d1, %d1;
        mov.b64 %d2, map1; cvta.param.u64 %d2, %d2;
        setp.eq.u32 %p1, %r1, 0;
        mov.b32 %r20, 0;
    """
    return text.replace(".visible", top + ".visible").replace(
        "ld.param.u64 %d10, [p0];", start + "ld.param.u64 %d10, [p0];"
    )


def go(text, arrays, maps=(), *, threads=32, smem=8192, cluster=1, **options):
    """Run a kernel; `maps` are (index of the array, box, swizzle, other flags)."""
    memory = Memory()
    addresses = [memory.add(x) for x in arrays]
    raw = [tensor_map(arrays[i], addresses[i], *more) for i, *more in maps]
    raw += [bytes(128)] * (2 - len(raw))
    return launch(
        text, "k", (cluster,), (threads,), (cluster,), smem, [*raw, addresses[-1]], memory,
        **options,
    )  # fmt: skip


def fault_of(text, *arguments, at, **options):
    with pytest.raises(KernelFault) as error:
        go(text, *arguments, **options)
    assert error.value.site.line == line_of(text, at), str(error.value)
    assert "PTX line" in str(error.value)
    return error.value.message


def aligned(shape, dtype):
    """Return an array that begins at a multiple of 128 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + size].view(dtype).reshape(shape)


def numbers(shape, dtype):
    x = aligned(shape, dtype)
    x[...] = RNG.integers(0, 100, shape).astype(dtype)
    return x


# -- mbarriers -------------------------------------------------------------------------------------

WAIT = """
    {{
    .reg .pred done;
    again{name}:
    mbarrier.try_wait.parity.shared.b64 done, [%r10+{offset}], {parity}, 10000000;
    @done bra.uni go{name};
    bra.uni again{name};
    go{name}:
    }}
"""


def wait(offset=0, parity="0", name=""):
    return WAIT.format(offset=offset, parity=parity, name=name)


INIT = """
    @!%p1 bra ready;
    mbarrier.init.shared.b64 [%r10], 1;
    mbarrier.init.shared.b64 [%r10+8], 64;
    ready:
    bar.sync 0;
"""


def test_phases_count_arrivals_and_turn():
    """Three warps arrive and wait, three times; then the phase before is complete, this one not."""
    body = INIT.replace("[%r10+8], 64", "[%r10+8], 96") + """
        mov.b32 %r3, 0;
    again:
        mbarrier.arrive.shared.b64 %d3, [%r10+8];
    """ + wait(8, "%r3") + """
        cvt.u32.u64 %r4, %d3;
        xor.b32 %r3, %r3, 1;
        add.s32 %r20, %r20, 1;
        setp.lt.s32 %p3, %r20, 3;
        @%p3 bra again;
        mbarrier.test_wait.parity.shared.b64 %p5, [%r10+8], 0;
        mbarrier.test_wait.parity.shared.b64 %p6, [%r10+8], 1;
        selp.b32 %r5, 10, 0, %p5; selp.b32 %r6, 100, 0, %p6;
        add.s32 %r4, %r4, %r5; add.s32 %r4, %r4, %r6;
        mad.wide.u32 %d4, %r1, 4, %d10;
        st.global.b32 [%d4], %r4;
    """  # fmt: skip
    for options in ({}, {"lockstep": False}, {"seed": 3}):
        out = np.zeros(96, np.uint32)
        go(hopper(body), (out,), threads=96, **options)
        assert out.tolist() == [12] * 96


def test_a_thread_that_leaves_is_not_waited_for_again():
    """Lane 0 leaves in the first phase, of 32 arrivals; the second has 31."""
    body = INIT.replace("[%r10+8], 64", "[%r10+8], 32") + """
        @!%p1 bra staying;
        mbarrier.arrive_drop.shared.b64 _, [%r10+8];
        bra.uni over;
        staying:
        mbarrier.arrive.shared.b64 _, [%r10+8];
        over:
    """ + wait(8, "0", "first") + """
        @!%p1 mbarrier.arrive.shared.b64 _, [%r10+8];
    """ + wait(8, "1") + """
        mad.wide.u32 %d4, %r1, 4, %d10;
        st.global.b32 [%d4], 7;
    """  # fmt: skip
    out = np.zeros(32, np.uint32)
    go(hopper(body), (out,))
    assert out.tolist() == [7] * 32
    again = body.replace("arrive_drop", "arrive")
    with pytest.raises(KernelFault, match="lacks 1 of 32 arrivals"):
        go(hopper(again), (out,))


def test_a_waiter_that_sleeps_through_two_phases_is_found():
    """It looks at the phase's parity, which is the same again: some order of the warps shows it."""
    body = INIT + """
        setp.ge.u32 %p2, %r1, 64;
        mov.b32 %r3, 0;
        @%p2 bra waiter;
    arriving:
        mbarrier.arrive.shared.b64 _, [%r10+8];
    """ + wait(8, "%r3", "a") + """
        xor.b32 %r3, %r3, 1;
        add.s32 %r20, %r20, 1;
        setp.lt.s32 %p3, %r20, 2;
        @%p3 bra arriving;
        bra.uni end;
    waiter:
    """ + wait(8, "%r3", "w") + """
    end:
    """  # fmt: skip
    found = []
    for seed in range(100):
        try:
            go(hopper(body), (np.zeros(4, np.uint32),), threads=96, seed=seed, lockstep=False)
        except KernelFault as fault:
            found.append(fault.message)
    assert found
    assert all("deadlock" in message for message in found)
    assert len(found) < 100


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("mbarrier.arrive.shared.b64 _, [%r10+16];", "was not initialised"),
        ("mbarrier.arrive.shared.b64 _, [%r10+8], 3;", "and its phase lacks"),
        ("mbarrier.init.shared.b64 [%r10+16], 0;", "cannot be for 0"),
        ("mapa.shared::cluster.u32 %r5, %r10, 1; ld.shared::cluster.b32 %r5, [%r5];",
         "a CTA that is not in this cluster"),
        ("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
         "[%r11], [%d1, {%r20, %r20}], [%r10];", "no tensor map"),
        ("prefetch.tensormap [%d10];", "are not registered"),
        ("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {%r20, %r20}];", "no tensor map"),
    ],
)  # fmt: skip
def test_mbarriers_that_are_used_wrongly(line, reason):
    text = hopper(INIT + line)
    assert reason in fault_of(text, (np.zeros(4, np.uint32),), at=line)


# -- tensor copies ---------------------------------------------------------------------------------

LOAD = (
    "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
    "[%r11], [%d1, {%r21, %r22}], [%r10];"
)
FETCH = INIT + """
    mov.b32 %r21, COLUMN; mov.b32 %r22, ROW;
    @!%p1 bra loaded;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r10], BYTES;
    """ + LOAD + """
    loaded:
    """ + wait() + """
    shl.b32 %r5, %r1, 2;
    add.s32 %r6, %r11, %r5;
    mul.wide.u32 %d3, %r5, 1;
    add.s64 %d3, %d3, %d10;
    mov.b32 %r7, 0;
    copying:
    ld.shared.b32 %r8, [%r6];
    st.global.b32 [%d3], %r8;
    add.s32 %r6, %r6, 128; add.s64 %d3, %d3, 128; add.s32 %r7, %r7, 128;
    setp.lt.s32 %p4, %r7, BYTES;
    @%p4 bra copying;
"""  # fmt: skip


def fetch(column, row, size):
    text = FETCH.replace("COLUMN", str(column)).replace("ROW", str(row))
    return hopper(text.replace("BYTES", str(size)))


def mixed(box, swizzle):
    """Swizzle rows of a box: unit u of 16 bytes in row r goes to unit u ^ (its 128-byte line)."""
    raw = np.ascontiguousarray(box).view(np.uint8).reshape(-1, 16)
    out = np.empty_like(raw)
    for n in range(len(raw)):
        line, unit = divmod(n, 8)
        turn = line % 8 & (swizzle // 16 - 1) if swizzle else 0
        out[8 * line + (unit ^ turn)] = raw[n]
    return out.reshape(-1)


@pytest.mark.parametrize(("dtype", "swizzle", "box"), [
    ("float16", 128, (64, 16)), ("float16", 64, (32, 16)), ("bfloat16", 32, (16, 32)),
    ("float32", 0, (8, 40)), ("uint8", 128, (128, 8)),
])  # fmt: skip
@pytest.mark.parametrize("at", [(0, 0), (32, 40), (-16, -3), (1008, 0)])
def test_a_box_is_loaded_swizzled_with_zeros_outside(dtype, swizzle, box, at):
    native = np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    source = numbers((50, 80), native)
    wanted = np.zeros((box[1], box[0]), native)
    for r in range(box[1]):
        for c in range(box[0]):
            row, column = at[1] + r, at[0] + c
            if 0 <= row < 50 and 0 <= column < 80:
                wanted[r, c] = source[row, column]
    out = aligned(wanted.nbytes, np.uint8)
    text = fetch(*at, wanted.nbytes)
    report = go(text, (source, out), [(0, box, swizzle)])
    assert out.tolist() == mixed(wanted, swizzle).tolist()
    assert report.tma_loaded == wanted.nbytes


AS_TF32 = 1 << 16
#: Bits of float32, and what TMA makes of them where a tensor map says TF32.
ROUNDED = {
    "exact": (0x3FC0_0000, 0x3FC0_0000),
    "below half": (0x3F80_0FFF, 0x3F80_0000),
    "a tie, to even below": (0x3F80_1000, 0x3F80_0000),
    "a tie, to even above": (0x3F80_3000, 0x3F80_4000),
    "above half": (0xBF80_1001, 0xBF80_2000),
    "just finite": (0x7F7F_EFFF, 0x7F7F_E000),
    "too large": (0x7F7F_F000, 0x7F80_0000),
    "infinite": (0xFF80_0000, 0xFF80_0000),
    "NaN by its last 13 bits": (0x7F80_0001, 0x7FFF_FFFF),
    "NaN": (0xFFC0_0000, 0x7FFF_FFFF),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_box_of_tf32_is_rounded(name):
    bits, rounded = ROUNDED[name]
    source, out = numbers((8, 8), np.float32), aligned(256, np.uint8)
    source.view(np.uint32)[...] = bits
    go(fetch(0, 0, 256), (source, out), [(0, (8, 8), 0, AS_TF32)])
    assert set(out.view(np.uint32).tolist()) == {rounded}
    go(fetch(0, 0, 256), (source, out), [(0, (8, 8), 0)])
    assert set(out.view(np.uint32).tolist()) == {bits}


def test_a_tensor_map_that_rounds_other_elements_than_float32():
    arrays = numbers((8, 8), np.uint32), aligned(256, np.uint8)
    maps = [(0, (8, 8), 0, AS_TF32)]
    message = fault_of(fetch(0, 0, 256), arrays, maps, at="cp.async.bulk.tensor.2d")
    assert "other elements than float32" in message


BOX = [(0, (64, 16), 128)]


def test_a_box_that_begins_within_16_bytes_of_a_row():
    """An H200 answers with an illegal instruction."""
    source, out = numbers((50, 80), np.float16), aligned(2048, np.uint8)
    message = fault_of(fetch(20, 0, 2048), (source, out), BOX, at="cp.async.bulk.tensor.2d")
    assert "begins at byte 40 of a row" in message


def loading():
    source = numbers((50, 80), np.float16)
    return (source, aligned(2048, np.uint8)), fetch(0, 0, 2048)


def test_a_tensor_that_reaches_out_of_its_memory():
    arrays, text = loading()
    memory = Memory()
    address = memory.add(arrays[0][:40])
    raw = tensor_map(arrays[0], address, (64, 16), 128)  # of 50 rows
    shifted = text.replace("mov.b32 %r22, 0;", "mov.b32 %r22, 30;")
    params = [raw, bytes(128), memory.add(arrays[1])]
    with pytest.raises(KernelFault, match="not registered") as error:
        launch(shifted, "k", (1,), (32,), smem=8192, params=params, memory=memory)
    assert error.value.site.line == line_of(text, "cp.async.bulk.tensor")


@pytest.mark.parametrize(("target", "reason"), [
    ("[%r11+64]", "cannot go to shared address"), ("[%r11+6144]", "cannot go to shared address"),
])  # fmt: skip
def test_a_box_that_does_not_fit_its_target(target, reason):
    arrays, text = loading()
    text = text.replace(LOAD, LOAD.replace("[%r11]", target))
    assert reason in fault_of(text, arrays, BOX, at="cp.async.bulk.tensor", smem=8192)


def test_descriptors_that_are_not_known_are_refused():
    raw = bytearray(tensor_map(np.zeros((8, 64), np.float16), 1 << 20, (64, 8), 128))
    found = decode(bytes(raw))
    assert (found.extents, found.strides, found.box) == ((64, 8), (2, 128), (64, 8))
    assert (found.swizzle, found.box_bytes) == (128, 1024)
    for change, reason in (
        ((8, 3), "no tensor map"), ((9, 0x16), "no tensor map"), ((53, 1), "steps"),
        ((0, 8), "16-byte multiples"), ((55, 127), "do not fit a swizzle"),
    ):  # fmt: skip
        wrong = bytearray(raw)
        wrong[change[0]] = change[1]
        with pytest.raises(Fault, match=reason):
            decode(bytes(wrong))


def test_multicast_reaches_all_ctas_of_the_mask():
    """Two CTAs: the first loads a box into both; each waits for its own barrier."""
    body = """
        @!%p1 bra ready;
        mbarrier.init.shared.b64 [%r10], 1;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 2048;
        ready:
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        setp.eq.u32 %p2, %r2, 0; and.pred %p2, %p1, %p2;
        @!%p2 bra loaded;
        mov.b16 %h1, 3;
        cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r11], [%d1, {%r20, %r20}], [%r10], %h1;
        loaded:
    """ + wait() + """
        shl.b32 %r5, %r1, 2;
        add.s32 %r6, %r11, %r5;
        ld.shared.b32 %r8, [%r6];
        mad.lo.s32 %r9, %r2, 128, %r5;
        cvt.u64.u32 %d3, %r9; add.s64 %d3, %d3, %d10;
        st.global.b32 [%d3], %r8;
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
    """  # noqa: E501  # fmt: skip
    source, out = numbers((50, 80), np.float16), aligned((2, 64), np.float16)
    report = go(hopper(body), (source, out), BOX, cluster=2)
    assert out.tolist() == [source[0, :64].tolist()] * 2
    assert report.tma_loaded == 4096
    wrong = hopper(body.replace("mov.b16 %h1, 3", "mov.b16 %h1, 5"))
    message = fault_of(wrong, (source, out), BOX, cluster=2, at="multicast::cluster [")
    assert "does not fit a cluster of 2" in message


def test_remote_memory_and_arrivals():
    """Each CTA reads the other's word, after the other has arrived at this one's barrier."""
    body = """
        @!%p1 bra ready;
        mbarrier.init.shared.b64 [%r10], 32;
        ready:
        add.s32 %r3, %r2, 7;
        st.shared.b32 [%r11], %r3;
        barrier.cluster.arrive;
        barrier.cluster.wait;
        xor.b32 %r4, %r2, 1;
        mapa.shared::cluster.u32 %r5, %r10, %r4;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
    """ + wait() + """
        mapa.shared::cluster.u32 %r6, %r11, %r4;
        ld.shared::cluster.b32 %r7, [%r6];
        mad.wide.u32 %d3, %r2, 4, %d10;
        st.global.b32 [%d3], %r7;
        barrier.cluster.arrive;
        barrier.cluster.wait;
    """  # fmt: skip
    for seed in range(3):
        out = aligned(2, np.uint32)
        go(hopper(body), (out,), cluster=2, seed=seed)
        assert out.tolist() == [8, 7]


STORE = """
    shl.b32 %r5, %r1, 6;
    add.s32 %r6, %r11, %r5;
    mov.b32 %r7, 0;
    filling:
    add.s32 %r8, %r5, %r7;
    st.shared.b32 [%r6], %r8;
    add.s32 %r6, %r6, 4; add.s32 %r7, %r7, 4;
    setp.lt.s32 %p4, %r7, 64;
    @%p4 bra filling;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @!%p1 bra stored;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r21, %r20}], [%r11];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    stored:
    bar.sync 0;
"""


def storing(column=0, row=0):
    return hopper(f"mov.b32 %r21, {column}; mov.b32 %r20, {row};\n" + STORE)


def test_a_box_is_stored_and_what_lies_outside_is_left_alone():
    out = aligned((20, 40), np.uint32)
    report = go(storing(28), (out,), [(0, (16, 32), 0)])
    image = np.arange(0, 2048, 4, dtype=np.uint32).reshape(32, 16)
    wanted = np.zeros((20, 40), np.uint32)
    wanted[:, 28:] = image[:20, :12]
    assert out.tolist() == wanted.tolist()
    assert report.tma_stored == 2048


@pytest.mark.parametrize("at", [(-4, 0), (0, -1)])
def test_a_store_that_begins_before_the_tensor(at):
    """An H200 answers with an illegal instruction; loads may begin there."""
    out = aligned((20, 40), np.uint32)
    message = fault_of(
        storing(*at), (out,), [(0, (16, 32), 0)], at="cp.async.bulk.tensor.2d.global"
    )
    assert "cannot begin before the tensor" in message
    message = fault_of(storing(2), (out,), [(0, (16, 32), 0)], at="cp.async.bulk.tensor.2d.global")
    assert "begins at byte 8 of a row" in message


def test_a_store_of_what_nothing_wrote():
    out = aligned((20, 40), np.uint32)
    text = storing().replace("setp.lt.s32 %p4, %r7, 64", "setp.lt.s32 %p4, %r7, 60")
    message = fault_of(text, (out,), [(0, (16, 32), 0)], at="cp.async.bulk.tensor.2d.global")
    assert "nothing wrote" in message


# -- matrices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", ["", ".trans"])
def test_matrices_go_to_shared_memory_and_come_back(turned):
    body = f"""
        shl.b32 %r3, %r1, 4; add.s32 %r3, %r3, %r11;
        mul.lo.s32 %r4, %r1, 131072; mad.lo.s32 %r4, %r1, 2, %r4; add.s32 %r4, %r4, 65536;
        add.s32 %r5, %r4, 4194368; add.s32 %r6, %r5, 4194368; add.s32 %r7, %r6, 4194368;
        stmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 [%r3], {{%r4, %r5, %r6, %r7}};
        bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r12, %r13, %r14, %r15}}, [%r3];
        mad.wide.u32 %d3, %r1, 16, %d10;
        st.global.v4.b32 [%d3], {{%r12, %r13, %r14, %r15}};
    """
    out = aligned((32, 4, 2), np.uint16)
    go(hopper(body), (out,), conflicts=True)
    # Lane t holds elements 2t and 2t + 1 of each matrix, matrix j has 64 j added.
    element = np.arange(64).reshape(8, 8)
    for j in range(4):
        matrix = np.zeros((8, 8), int)
        for lane in range(32):
            row, column = lane // 4, 2 * (lane % 4)
            matrix[row, column : column + 2] = out[lane, j]
        wanted = element + 64 * j
        assert matrix.tolist() == (wanted.T if turned else wanted).tolist()


def test_banks_are_counted():
    lanes = np.arange(32)
    assert bank_passes(lanes[None] * 4, 4) == 1
    assert bank_passes(lanes[None] * 8, 4) == 2
    assert bank_passes(lanes[None] * 128, 4) == 32
    assert bank_passes(np.zeros((3, 32), int), 4) == 3
    assert bank_passes(lanes[None] * 16, 16) == 4
    assert bank_passes(lanes[None] * 32, 16) == 8
    assert bank_passes(np.where(lanes < 2, lanes * 128, -1)[None], 4) == 2
    assert bank_passes(lanes[None] * 2, 2) == 1


# -- wgmma -----------------------------------------------------------------------------------------

MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r40, %r41, %r42, %r43}, %d5, %d6, %p6, 1, 1, 0, 0;"  # noqa: E501
PRODUCT = INIT + """
    @!%p1 bra loaded;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 9216;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r11], [%d1, {%r20, %r20}], [%r10];
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r11+8192], [%d2, {%r20, %r20}], [%r10];
    loaded:
    """ + wait() + """
    // Descriptors: start, stride of 8 rows (1024 bytes), swizzle of 128 bytes.
    shr.u32 %r12, %r11, 4;
    cvt.u64.u32 %d5, %r12;
    or.b64 %d5, %d5, 4611686293305294848;
    add.s64 %d6, %d5, 512;
    mov.pred %p6, 0;
    wgmma.fence.sync.aligned;
    FIRST
    add.s64 %d5, %d5, 2; add.s64 %d6, %d6, 2; setp.eq.u32 %p6, 0, 0;
    SECOND
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    mad.wide.u32 %d3, %r1, 16, %d10;
    st.global.v4.b32 [%d3], {%r40, %r41, %r42, %r43};
"""  # noqa: E501  # fmt: skip


def product(text=PRODUCT):
    return hopper(text.replace("FIRST", MMA).replace("SECOND", MMA + " // again"))


def product_arrays():
    a, b = numbers((64, 64), ml_dtypes.bfloat16), numbers((8, 64), ml_dtypes.bfloat16)
    return (a, b, aligned((128, 4), np.float32))


MAPS = [(0, (64, 64), 128), (1, (64, 8), 128)]


def test_wgmma_multiplies_what_tma_brought():
    assert 4611686293305294848 == 2 << 61 | (1024 >> 4) << 32
    arrays = product_arrays()
    go(product(), arrays, MAPS, threads=128, smem=16384)
    a, b, out = (x.astype(np.float64) for x in arrays)
    wanted = a[:, :32] @ b[:, :32].T
    got = np.zeros((64, 8))
    for thread in range(128):
        row, column = 16 * (thread // 32) + thread % 32 // 4, 2 * (thread % 4)
        got[row, column : column + 2] = out[thread, :2]
        got[row + 8, column : column + 2] = out[thread, 2:]
    assert got.tolist() == wanted.tolist()


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("threads", [1, 32, 64, 96, 127, 128, 160, 255, 256])
def test_wgmma_needs_blocks_of_whole_warpgroups(threads, lockstep):
    text = kernel("wgmma.fence.sync.aligned; // here\n", params=())
    for ctas in (1, 3):
        if threads % 128 == 0:
            run(text, threads=threads, ctas=ctas, lockstep=lockstep)
            continue
        with pytest.raises(KernelFault, match=f"{threads} threads has no whole") as error:
            run(text, threads=threads, ctas=ctas, lockstep=lockstep)
        site = error.value.site
        assert (site.line, site.warp // 4) == (line_of(text, "// here"), threads // 128)


def test_warps_behind_the_last_whole_warpgroup_may_do_without_wgmma():
    skip = "mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 128; @%p1 bra end;\n"
    run(kernel(f"{skip}wgmma.fence.sync.aligned;\nend:", params=()), threads=160, ctas=2)


def test_wgmma_of_a_k_tile_that_was_not_waited_for():
    text = product(PRODUCT.replace(wait(), ""))
    with pytest.raises(KernelFault, match="wgmma reads shared memory that an asynchronous copy"):
        go(text, product_arrays(), MAPS, threads=128, smem=16384)


def test_wgmma_whose_operand_is_overwritten_too_early():
    """By another value, which is a race; or by the same, in the midst of reading."""
    for value, at, reason in (
        ("mov.b32 %r30, 0;", "st.shared.b32 [%r11], %r30", "that a copy or product used"),
        ("ld.shared.b32 %r30, [%r11];", "wgmma.wait_group", "overwritten while wgmma of line"),
    ):
        early = f"commit_group.sync.aligned;\n {value}\n st.shared.b32 [%r11], %r30;"
        text = product(PRODUCT.replace("commit_group.sync.aligned;", early))
        assert reason in fault_of(text, product_arrays(), MAPS, threads=128, smem=16384, at=at)


def test_wgmma_that_a_warp_of_the_warpgroup_does_not_run():
    some = "setp.ge.u32 %p7, %r1, 96;\n@%p7 ret;\nwgmma.fence"
    text = product(PRODUCT.replace("wgmma.fence", some))
    message = fault_of(text, product_arrays(), MAPS, threads=128, smem=16384, at="wgmma.fence")
    assert "waits for the other warps of the warpgroup" in message


def test_what_lies_behind_the_rows_of_a_small_tile_becomes_nan():
    """A has 8 rows in shared memory; the other 56 were never written, their accumulators NaN."""
    arrays = product_arrays()
    text = product(PRODUCT.replace("[%r10], 9216", "[%r10], 2048").replace(
        "[%r11], [%d1", "[%r11], [%d1"
    ).replace("+8192]", "+65536]").replace("%d6, %d5, 512", "%d6, %d5, 4096"))  # fmt: skip
    small = [(0, (64, 8), 128), MAPS[1]]
    go(text, arrays, small, threads=128, smem=81920)
    out = arrays[2]
    assert np.isfinite(out[:32, :2]).all()
    assert np.isnan(out[:32, 2:]).all()
    assert np.isnan(out[32:]).all()
    # Such rows may change while the product runs; the first eight may not.
    late = "commit_group.sync.aligned;\n mov.b32 %r30, 0;\n st.shared.b32 [%r11+OFFSET], %r30;"
    after = text.replace("commit_group.sync.aligned;", late)
    go(after.replace("OFFSET", "1024"), product_arrays(), small, threads=128, smem=81920)
    with pytest.raises(KernelFault, match="was overwritten while wgmma"):
        go(after.replace("OFFSET", "1020"), product_arrays(), small, threads=128, smem=81920)
    none = text.replace("[%r11], [%d1", "[%r11+8192], [%d1")
    with pytest.raises(KernelFault, match="nothing wrote"):
        go(none, product_arrays(), small, threads=128, smem=81920)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("64n8k16", "64n8k8"), "shape of wgmma"),
        (("64n8k16", "64n16k16"), "8 registers are expected"),
        ((".f32.bf16.bf16", ".f16.bf16.bf16"), "kind of wgmma"),
        ((".f32.bf16.bf16", ".f32.f16.bf16"), "kind of wgmma"),
        ((".f32.bf16.bf16", ".f16.f16.f16"), "2 registers are expected"),
        ((", 1, 1, 0, 0;", ", 1, 1;"), "number of operands"),
    ],
)
def test_forms_of_wgmma_that_are_not_known_are_refused(change, reason):
    from unigemm.emulator import PtxError
    from unigemm.emulator.launch.launching import compiled

    with pytest.raises(PtxError, match=reason):
        compiled(product().replace(*change), "k")


# -- inspection ------------------------------------------------------------------------------------


def test_events_tell_the_story_of_a_load_in_order():
    from unigemm.emulator import as_svg, as_text
    from unigemm.emulator.core.timeline import COLOURS

    arrays, text = loading()
    assert go(text, arrays, BOX).events == []
    events = go(text, arrays, BOX, events=True).events
    story = [event.what for event in events if event.what != "barrier"]
    assert story == ["arrive", "load", "loaded", "complete", "waited"]
    assert [event.warp for event in events if event.what in ("loaded", "complete")] == [None, None]
    shown = as_text(events)
    assert shown.count("\n") == len(events) - 1
    line = line_of(text, "cp.async.bulk.tensor")
    assert f"CTA (0, 0, 0) warp 0: load (0, 0) to shared address 2048 (line {line})" in shown
    picture = as_svg(events)
    assert picture.count("<rect") == len(events) + len(COLOURS)
    assert picture.startswith("<svg")
    assert "hardware" in picture


def test_a_trace_holds_the_instructions_of_one_warp():
    body = """
        setp.lt.u32 %p2, %r1, 40;
        @%p2 bra low;
        add.s32 %r5, %r1, 1;
        low:
        add.s32 %r6, %r1, 2;
    """
    out = np.zeros(4, np.uint32)
    trace = go(hopper(body), (out,), threads=64, trace=((0, 0, 0), 1)).trace
    lanes = {step.text: step.lanes for step in trace}
    assert lanes["add.s32 %r5, %r1, 1;"] == 0xFFFFFF00
    assert lanes["add.s32 %r6, %r1, 2;"] == 0xFFFFFFFF
    assert [step.line for step in trace if "bra low" in step.text] == [
        line_of(hopper(body), "bra low")
    ]
    assert go(hopper(body), (out,), threads=64, trace=((7, 0, 0), 1)).trace == []
