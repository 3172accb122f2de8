"""The emulator's bulk copies and reductions, and cp.async counted by an mbarrier."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from test_emulator_hopper import INIT, aligned, fault_of, go, hopper, numbers, wait

RNG = np.random.default_rng(20261124)
NATIVE = {
    "u32": np.uint32, "s32": np.int32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f32": np.float32, "f64": np.float64, "u64": np.uint64, "b32": np.uint32, "s64": np.int64,
}  # fmt: skip
JOIN = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
    "inc": lambda old, last: np.where(old >= last, 0, old + 1),
    "dec": lambda old, last: np.where((old == 0) | (old > last), last, old - 1),
}  # fmt: skip


def random_array(shape, kind):
    x = aligned(shape, NATIVE[kind])
    low = 0 if kind[0] in "ub" else -50
    x[...] = RNG.integers(low, 50, shape).astype(NATIVE[kind])
    return x


# 1024 bytes at %d10 go to shared memory at %r11 by ordinary stores, 32 a thread.
FILL = """
    shl.b32 %r5, %r1, 5; add.s32 %r6, %r11, %r5; cvt.u64.u32 %d3, %r5; add.s64 %d3, %d3, %d10;
    ld.global.v4.b32 {%r21, %r22, %r23, %r24}, [%d3];
    st.shared.v4.b32 [%r6], {%r21, %r22, %r23, %r24};
    ld.global.v4.b32 {%r21, %r22, %r23, %r24}, [%d3+16];
    st.shared.v4.b32 [%r6+16], {%r21, %r22, %r23, %r24};
    fence.proxy.async.shared::cta;
    bar.sync 0;
"""
# Shared memory at %r11 to 1024 bytes behind %d10+1024.
DUMP = """
    shl.b32 %r5, %r1, 5; add.s32 %r6, %r11, %r5; cvt.u64.u32 %d3, %r5; add.s64 %d3, %d3, %d10;
    ld.shared.v4.b32 {%r21, %r22, %r23, %r24}, [%r6];
    st.global.v4.b32 [%d3+1024], {%r21, %r22, %r23, %r24};
    ld.shared.v4.b32 {%r21, %r22, %r23, %r24}, [%r6+16];
    st.global.v4.b32 [%d3+1040], {%r21, %r22, %r23, %r24};
"""
DONE = """
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    stored:
"""


# -- loads -----------------------------------------------------------------------------------------

BRING = INIT + """
    @!%p1 bra loaded;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 1024;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d10], 1024, [%r10];
    loaded:
    """ + wait() + DUMP  # fmt: skip


def test_a_piece_of_memory_is_brought():
    data = numbers((2, 1024), np.uint8)
    report = go(hopper(BRING), (data,))
    assert data[1].tolist() == data[0].tolist()
    assert report.tma_loaded == 1024


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("1024, [%r10];", "1020, [%r10];", "1020 bytes is no multiple of 16"),
        ("[%r11], [%d10]", "[%r11+7000], [%d10]", "not aligned to 16"),
        ("[%r11], [%d10]", "[%r11+6992], [%d10]", "are out of bounds"),
        ("[%r11], [%d10]", "[%r11], [%d10+4096]", "are not registered"),
    ],
)
def test_bulk_loads_that_are_used_wrongly(old, new, reason):
    text = hopper(BRING.replace(old, new))
    assert reason in fault_of(text, (numbers((2, 1024), np.uint8),), at="cp.async.bulk.shared")


def test_a_multicast_brings_a_piece_to_both_ctas():
    body = """
        @!%p1 bra ready;
        mbarrier.init.shared.b64 [%r10], 1;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 512;
        ready:
        barrier.cluster.arrive; barrier.cluster.wait;
        setp.eq.u32 %p2, %r2, 1; and.pred %p2, %p1, %p2;
        @!%p2 bra loaded;
        mov.b16 %h1, 3;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r11], [%d10], 512, [%r10], %h1;
        loaded:
    """ + wait() + """
        shl.b32 %r5, %r1, 4; add.s32 %r6, %r11, %r5;
        ld.shared.v4.b32 {%r21, %r22, %r23, %r24}, [%r6];
        mad.lo.s32 %r7, %r2, 512, %r5; cvt.u64.u32 %d3, %r7; add.s64 %d3, %d3, %d10;
        st.global.v4.b32 [%d3+512], {%r21, %r22, %r23, %r24};
        barrier.cluster.arrive; barrier.cluster.wait;
    """  # noqa: E501  # fmt: skip
    data = numbers((3, 512), np.uint8)
    go(hopper(body), (data,), cluster=2)
    assert data[1:].tolist() == [data[0].tolist()] * 2


def test_a_prefetch_checks_its_memory():
    line = "@%p1 cp.async.bulk.prefetch.L2.global [%d10], SIZE;"
    data = numbers(1024, np.uint8)
    go(hopper(line.replace("SIZE", "1024")), (data,))
    message = fault_of(hopper(line.replace("SIZE", "1040")), (data,), at="prefetch")
    assert "are not registered" in message


# -- from CTA to CTA -------------------------------------------------------------------------------

# Each CTA has its rank + 1 times the data of %d10; the odd one's goes to the even one.
ACROSS = """
    @!%p1 bra ready;
    mbarrier.init.shared.b64 [%r10], 1;
    setp.eq.u32 %p4, %r2, 0;
    @%p4 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 128;
    ready:
    shl.b32 %r5, %r1, 2; add.s32 %r6, %r11, %r5; cvt.u64.u32 %d3, %r5; add.s64 %d3, %d3, %d10;
    ld.global.b32 %r7, [%d3]; add.s32 %r8, %r2, 1; mul.lo.s32 %r7, %r7, %r8;
    st.shared.b32 [%r6], %r7;
    fence.proxy.async.shared::cta;
    barrier.cluster.arrive; barrier.cluster.wait;
    mov.b32 %r3, 0;
    mapa.shared::cluster.u32 %r12, %r11, %r3; mapa.shared::cluster.u32 %r13, %r10, %r3;
    setp.eq.u32 %p2, %r2, 1; and.pred %p2, %p1, %p2;
    @!%p2 bra copied;
    COPY
    copied:
    setp.eq.u32 %p3, %r2, 1;
    @%p3 bra over;
    """ + wait() + """
    ld.shared.b32 %r7, [%r6];
    st.global.b32 [%d3+128], %r7;
    over:
    barrier.cluster.arrive; barrier.cluster.wait;
"""  # fmt: skip
TO_OTHER = "shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    ("copy", "factor"),
    [
        (f"cp.async.bulk.{TO_OTHER} [%r12], [%r11], 128, [%r13];", 2),
        (f"cp.reduce.async.bulk.{TO_OTHER}.add.u32 [%r12], [%r11], 128, [%r13];", 3),
    ],
)
def test_memory_goes_from_cta_to_cta(copy, factor):
    data = aligned((2, 32), np.uint32)
    data[0] = RNG.integers(0, 1 << 20, 32)
    for seed in range(3):
        go(hopper(ACROSS.replace("COPY", copy)), (data,), cluster=2, seed=seed)
        assert data[1].tolist() == (factor * data[0]).tolist()
    unfenced = hopper(ACROSS.replace("COPY", copy).replace("fence.proxy.async.shared::cta;", ""))
    assert "no fence.proxy.async" in fault_of(unfenced, (data,), cluster=2, at="128, [%r13];")
    early = ACROSS.replace("COPY", copy + "\nst.shared.b32 [%r11], %r1;")
    message = fault_of(hopper(early), (data,), cluster=2, at="128, [%r13];")
    assert "was overwritten before the copy" in message


# -- stores and reductions -------------------------------------------------------------------------


def store_text(opcode):
    body = INIT + FILL + f"@!%p1 bra stored;\nadd.s64 %d4, %d10, 1024;\n{opcode}" + DONE
    return hopper(body)


def test_a_piece_of_memory_is_stored():
    data = numbers((2, 1024), np.uint8)
    line = "cp.async.bulk.global.shared::cta.bulk_group [%d4], [%r11], 1008;"
    report = go(store_text(line), (data,))
    assert data[1, :1008].tolist() == data[0, :1008].tolist()
    assert report.tma_stored == 1008
    for change, reason, at in (
        (("fence.proxy.async.shared::cta;", ""), "no fence.proxy.async", line),
        (("cp.async.bulk.wait_group 0;", ""), "no one waited for this store", line),
        (("[%d4],", "[%d4+8],"), "is no multiple of 16", "wait_group"),
        (("cp.async.bulk.wait", "st.shared.b32 [%r11], 5;\ncp.async.bulk.wait"),
         "was overwritten before the store", "wait_group"),
    ):  # fmt: skip
        text = store_text(line).replace(*change)
        assert reason in fault_of(text, (data,), at=at if at in text else "cp.async.bulk.global")


@pytest.mark.parametrize("kind", ["u32", "s32", "f16", "bf16", "f32", "s64"])
@pytest.mark.parametrize("name", ["add", "max", "xor"])
def test_boxes_are_reduced(name, kind):
    """A box of 32 rows of 32 bytes at (8, 4); what lies outside the tensor is left alone."""
    wide = 32 // np.dtype(NATIVE[kind]).itemsize
    source, out = random_array((32, wide), kind), random_array((20, 24), kind)
    map_kind = {"s32": "u32"}.get(kind, kind)
    body = INIT + FILL + """
        mov.b32 %r25, 8; mov.b32 %r26, 4;
        @!%p1 bra stored;
        cp.reduce.async.bulk.tensor.2d.global.shared::cta.NAME.tile.bulk_group [%d1, {%r25, %r26}], [%r11];
    """.replace("NAME", name) + DONE  # noqa: E501  # fmt: skip
    before = out.copy()
    arrays = (out.view(NATIVE[map_kind]), source)
    impossible = (kind[0] in "fb" and name == "xor") or (kind == "f32" and name == "max")
    impossible |= kind == "s64" and name != "max"  # so it is on an H200
    if impossible:
        message = fault_of(hopper(body), arrays, [(0, (wide, 32), 0)], at="cp.reduce")
        assert f"no reduction .{name}" in message
        return
    go(hopper(body), arrays, [(0, (wide, 32), 0)])
    if kind == "s32" and name == "max":  # the tensor's elements have no sign
        before, source = before.view(np.uint32), source.view(np.uint32)
    columns = min(wide, 24 - 8)
    part = before[4:, 8 : 8 + columns]
    before[4:, 8 : 8 + columns] = JOIN[name](part, source[:16, :columns])
    assert out.tobytes() == before.tobytes()


# -- cp.async and mbarriers ------------------------------------------------------------------------

COPIES = """
    @!%p1 bra ready;
    mbarrier.init.shared.b64 [%r10], COUNT;
    ready:
    bar.sync 0;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra waiting;
    shl.b32 %r5, %r1, 4; add.s32 %r6, %r11, %r5; cvt.u64.u32 %d3, %r5; add.s64 %d3, %d3, %d10;
    cp.async.cg.shared.global [%r6], [%d3], 16;
    cp.async.commit_group;
    cp.async.cg.shared.global [%r6+512], [%d3+512], 16;
    ARRIVE
    bra over;
    waiting:
    """ + wait() + """
    sub.s32 %r5, %r1, 32;
    shl.b32 %r5, %r5, 5; add.s32 %r6, %r11, %r5; cvt.u64.u32 %d3, %r5; add.s64 %d3, %d3, %d10;
    ld.shared.v4.b32 {%r21, %r22, %r23, %r24}, [%r6];
    st.global.v4.b32 [%d3+1024], {%r21, %r22, %r23, %r24};
    ld.shared.v4.b32 {%r21, %r22, %r23, %r24}, [%r6+16];
    st.global.v4.b32 [%d3+1040], {%r21, %r22, %r23, %r24};
    over:
"""  # fmt: skip
NOINC = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r10];"


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (32, NOINC),
        (1, NOINC.replace(".noinc", "") + "\n@%p1 mbarrier.arrive.shared.b64 _, [%r10];"),
    ],
)  # fmt: skip
def test_copies_of_one_warp_are_counted_for_another(count, line):
    text = hopper(COPIES.replace("COUNT", str(count)).replace("ARRIVE", line))
    for seed in range(4):
        data = numbers((2, 1024), np.uint8)
        go(text, (data,), threads=64, seed=seed)
        assert data[1].tolist() == data[0].tolist()


def test_copies_that_are_not_counted_are_found():
    """Those behind the arrival, and all if there is an ordinary arrival instead."""
    data = numbers((2, 1024), np.uint8)
    plain = COPIES.replace("COUNT", "32").replace("ARRIVE", "mbarrier.arrive.shared.b64 _, [%r10];")
    message = fault_of(hopper(plain), (data,), threads=64, at="%r24}, [%r6];")
    assert "an asynchronous copy writes and that was not waited for" in message
    late = NOINC + "\ncp.async.cg.shared.global [%r6+1024], [%d3], 16;"
    text = hopper(COPIES.replace("COUNT", "32").replace("ARRIVE", late))
    assert "did not wait for its cp.async" in fault_of(text, (data,), threads=64, at="ret;")
    few = hopper(COPIES.replace("COUNT", "33").replace("ARRIVE", NOINC))
    assert "lacks 1 of 33 arrivals" in fault_of(few, (data,), threads=64, at="try_wait")
