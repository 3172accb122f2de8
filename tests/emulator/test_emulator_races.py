"""Races on shared memory, registers and tensor memory: what orders two accesses, and what does not.

Each kernel is right as it stands; without the part that orders its accesses it is a fault, whatever
the order in which its warps run.
"""

from __future__ import annotations

import numpy as np
import pytest
from emulated import kernel, line_of, run
from test_emulator_hopper import (
    INIT,
    MAPS,
    MMA,
    PRODUCT,
    aligned,
    go,
    hopper,
    numbers,
    product,
    product_arrays,
    wait,
)  # fmt: skip

from unigemm.emulator import KernelFault

# %r5: the thread's word; %r6: that of the same lane in the other warp; %r7: the neighbour lane's;
# %r12 and %r13: 16 bytes of the thread, and of its neighbour.
START = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.b32 %r4, buffer;
    shl.b32 %r3, %r1, 2; add.s32 %r5, %r4, %r3;
    xor.b32 %r6, %r3, 128; add.s32 %r6, %r6, %r4; xor.b32 %r7, %r3, 4; add.s32 %r7, %r7, %r4;
    and.b32 %r8, %r1, 31; setp.eq.u32 %p1, %r8, 0; shr.u32 %r9, %r1, 5; setp.eq.u32 %p2, %r9, 0;
    add.s32 %r10, %r4, 1024; mad.lo.s32 %r12, %r1, 16, %r4;
    xor.b32 %r13, %r1, 1; mad.lo.s32 %r13, %r13, 16, %r4; mov.b32 %r20, -1;
    st.shared.v4.b32 [%r12], {%r20, %r20, %r20, %r20};
    setp.eq.u32 %p4, %r1, 0;
    @%p4 mbarrier.init.shared.b64 [%r10], 2;
    @%p4 mbarrier.init.shared.b64 [%r10+8], 64;
    bar.sync 0;
"""
TRY = """
    {{ .reg .pred done; again{0}: mbarrier.try_wait.parity.shared.b64 done, [%r10{1}], 0;
    @!done bra again{0}; }}
"""
RACES = {
    "a read of what another warp wrote": (
        "st.shared.b32 [%r5], %r1;", "bar.sync 0;", "ld.shared.b32 %r20, [%r6];",
    ),
    "a write of what another warp reads": (
        "st.shared.b32 [%r5], %r1; bar.sync 0; ld.shared.b32 %r20, [%r6];", "bar.sync 0;",
        "st.shared.b32 [%r5], %r8;",
    ),
    "two writes": (
        "st.shared.b32 [%r5], %r1; // first", "bar.sync 0;", "st.shared.b32 [%r6], %r1;",
    ),
    "a read of what another lane wrote": (
        "st.shared.b32 [%r5], %r1;", "bar.warp.sync -1;", "ld.shared.b32 %r20, [%r7];",
    ),
    "a write of what another lane reads": (
        "st.shared.b32 [%r5], %r1; bar.warp.sync -1; ld.shared.b32 %r20, [%r7];",
        "bar.warp.sync -1;", "st.shared.b32 [%r5], %r8;",
    ),
    "vectors of another lane": (
        "st.shared.v4.b32 [%r12], {%r1, %r1, %r1, %r1};", "bar.warp.sync -1;",
        "ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r13];",
    ),
    "a barrier of lanes instead of one of warps": (
        "st.shared.b32 [%r5], %r1; bar.warp.sync -1;", "bar.sync 0;",
        "ld.shared.b32 %r20, [%r6];",
    ),
    "the last word of another lane's vector": (
        "st.shared.v4.b32 [%r12], {%r1, %r1, %r1, %r1};", "bar.warp.sync -1;",
        "ld.shared.b32 %r20, [%r13+12];",
    ),
    "a word of a vector that another lane reads": (
        "ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r12];", "bar.warp.sync -1;",
        "st.shared.b32 [%r13+8], %r1;",
    ),
    "a half that another lane wrote": (
        "mad.lo.s32 %r21, %r1, 2, %r4; cvt.u16.u32 %h1, %r1; st.shared.b16 [%r21], %h1;",
        "bar.warp.sync -1;", "xor.b32 %r22, %r21, 2; ld.shared.b16 %h3, [%r22];",
    ),
    "a half that another lane reads": (
        "mad.lo.s32 %r21, %r1, 2, %r4; cvt.u16.u32 %h1, %r1; ld.shared.b16 %h3, [%r21];",
        "bar.warp.sync -1;", "xor.b32 %r22, %r21, 2; st.shared.b16 [%r22], %h1;",
    ),
    "a byte of a word that another lane wrote": (
        "st.shared.b32 [%r5], %r1;", "bar.warp.sync -1;", "ld.shared.b8 %h3, [%r7+1];",
    ),
    "matrices of other lanes": (
        "st.shared.v4.b32 [%r12], {%r1, %r1, %r1, %r1};", "bar.warp.sync -1;",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r13];",
    ),
    "matrices over what other lanes read": (
        "st.shared.v4.b32 [%r12], {%r1, %r1, %r1, %r1}; bar.warp.sync -1;\n"
        "ld.shared.b32 %r20, [%r13];", "bar.warp.sync -1;",
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r12], {%r20, %r20, %r20, %r20};",
    ),
    "an arrival that a warp does not wait for": (
        "st.shared.b32 [%r5], %r1; bar.warp.sync -1;\n"
        "@%p1 mbarrier.arrive.shared.b64 _, [%r10];", TRY.format(0, ""),
        "ld.shared.b32 %r20, [%r6];",
    ),
    "an arrival of one lane for all": (
        "st.shared.b32 [%r5], %r1;", "bar.warp.sync -1;",
        f"@%p1 mbarrier.arrive.shared.b64 _, [%r10];\n{TRY.format(0, '')}\n"
        "ld.shared.b32 %r20, [%r6];",
    ),
    "a named barrier that a warp does not wait for": (
        "@!%p2 bra second;\nst.shared.b32 [%r5], %r1;\nbar.arrive 1, 64;\nbra.uni end;\nsecond:",
        "bar.sync 1, 64;", "ld.shared.b32 %r20, [%r6];\nend:",
    ),
    "a copy that others read": (
        "cp.async.ca.shared.global [%r5], [%d10], 4; cp.async.wait_all;", "bar.sync 0;",
        "ld.shared.b32 %r20, [%r6];",
    ),
    "a copy over what others read": (
        "st.shared.b32 [%r5], %r1; bar.sync 0; ld.shared.b32 %r20, [%r6];", "bar.sync 0;",
        "setp.eq.u32 %p5, 0, 0; cp.async.ca.shared.global [%r5], [%d10], 4;\ncp.async.wait_all;",
    ),
}  # fmt: skip


def shared_kernel(*parts):
    return kernel(START + "\n".join(parts), shared=".shared .align 1024 .b8 buffer[1088];")


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_found_whatever_the_order(name):
    """It is an error at the access that comes second, which may be either."""
    before, orders, behind = RACES[name]
    right, wrong = shared_kernel(before, orders, behind), shared_kernel(before, behind)
    first = line_of(wrong, before.split("\n")[0])
    for options in ({}, {"lockstep": False}, {"seed": 3}, {"seed": 4, "lockstep": False}):
        x = np.zeros(64, np.uint32)
        run(right, (x,), threads=64, **options)
        run(wrong, (x,), threads=64, strict=False, leftovers=True, **options)
        with pytest.raises(KernelFault, match=r"race: it (reads|writes) shared memory") as error:
            run(wrong, (x,), threads=64, **options)
        assert error.value.site.line >= first


def test_the_other_access_of_a_race_is_named():
    before, _, behind = RACES["a read of what another warp wrote"]
    text = shared_kernel(before, behind)
    with pytest.raises(KernelFault, match=r"that lane \d+ of warp [01] wrote, and no barrier"):
        run(text, (np.zeros(64, np.uint32),), threads=64)


FINE = {
    "the same value by all lanes": "st.shared.b32 [%r4], 5;\nst.shared.b32 [%r4], 5;",
    "halves of a word": "shl.b32 %r20, %r1, 1; add.s32 %r20, %r20, %r4;\n"
    "mov.b16 %h1, 1; mov.b16 %h2, 2;\n"
    "st.shared.b16 [%r20], %h1;\nst.shared.b16 [%r20], %h2; ld.shared.b16 %h3, [%r20];",
    "additions in memory": "@%p4 st.shared.b32 [%r4], 0;\nbar.sync 0;\n"
    "red.shared.add.u32 [%r4], 1;\natom.shared.add.u32 %r20, [%r4], 1;",
    "accesses that are volatile": "st.shared.b32 [%r5], 5;\nbar.sync 0;\n"
    "st.volatile.shared.b32 [%r5], %r1;\nld.volatile.shared.b32 %r20, [%r6];",
    "fences, and a flag of its own": "@!%p2 bra over;\nst.shared.b32 [%r5+256], %r1;\nover:\n"
    "@%p4 st.volatile.shared.b32 [%r4], 0;\nbar.sync 0;\n@!%p2 bra reads;\n"
    "st.shared.b32 [%r5+256], 7;\nfence.acq_rel.cta;\nbar.warp.sync -1;\n"
    "@%p4 st.volatile.shared.b32 [%r4], 1;\nbra.uni done;\n"
    "reads: ld.volatile.shared.b32 %r20, [%r4];\nsetp.eq.u32 %p5, %r20, 0;\n@%p5 bra reads;\n"
    "fence.acq_rel.cta;\nld.shared.b32 %r21, [%r6+256];\ndone:",
}


@pytest.mark.parametrize("name", FINE)
@pytest.mark.parametrize("lockstep", [True, False])
def test_what_is_no_race_is_none(name, lockstep):
    for seed in range(3):
        run(
            shared_kernel(FINE[name]), (np.zeros(64, np.uint32),), threads=64, seed=seed,
            lockstep=lockstep,
        )  # fmt: skip


# -- clusters --------------------------------------------------------------------------------------


def test_memory_of_other_ctas_needs_a_barrier_of_the_cluster_that_tells_of_it():
    """A relaxed arrival tells nothing."""
    write = "xor.b32 %r20, %r2, 1; mapa.shared::cluster.u32 %r21, %r5, %r20;\n"
    write += "st.shared::cluster.b32 [%r21], %r1;\n"
    told, waits = "barrier.cluster.arrive.release;\n", "barrier.cluster.wait.acquire;\n"
    end = f"\n{told}{waits}"
    read = "ld.shared.b32 %r22, [%r5];"
    x = np.zeros(64, np.uint32)
    options = {"threads": 64, "ctas": 2, "cluster": (2, 1, 1)}
    begin = f"{told}{waits}"
    run(shared_kernel(begin, write + told + waits + read + end), (x,), **options)
    wrong = write + told.replace("release", "relaxed") + waits + read
    with pytest.raises(KernelFault, match=r"of CTA [01] of the cluster wrote"):
        run(shared_kernel(begin, wrong + end), (x,), **options)


# -- copies ----------------------------------------------------------------------------------------

# Thread 0 brings 2 KiB into the same stage twice; the other 63 and it read it in between.
RING = INIT + """
    @!%p1 bra begun;
    EXPECT
    BRING
    begun:
    """ + wait() + """
    shl.b32 %r5, %r1, 2; add.s32 %r5, %r5, %r11;
    ld.shared.b32 %r6, [%r5];
    mbarrier.arrive.shared.b64 _, [%r10+8];
    @!%p1 bra again;
    EMPTY
    EXPECT
    BRING // again
    again:
    """ + wait(parity="1", name="second") + """
    ld.shared.b32 %r6, [%r5];
"""  # fmt: skip


def ring(body=RING):
    bring = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
    return hopper(
        body.replace("EXPECT", "mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 2048;")
        .replace("BRING", bring + "[%r11], [%d10], 2048, [%r10];")
        .replace("EMPTY", wait(8, name="empty"))
    )


def test_a_copy_over_what_others_may_still_read():
    x = aligned((2048,), np.uint8)
    for options in ({}, {"lockstep": False}, {"seed": 5, "lockstep": False}):
        go(ring(), (x,), threads=64, **options)
        text = ring(RING.replace("EMPTY", ""))
        with pytest.raises(KernelFault, match="it overwrites shared memory that lane") as error:
            go(text, (x,), threads=64, **options)
        assert error.value.site.line == line_of(text, "// again")
        early = "mbarrier.arrive.shared.b64 _, [%r10+8];\n"
        read = "ld.shared.b32 %r6, [%r5];\n    "
        text = ring(RING.replace(read + early, early + read, 1))
        with pytest.raises(KernelFault, match=r"it overwrites .* used, and no barrier") as error:
            go(text, (x,), threads=64, **options)
        assert error.value.site.line == line_of(text, "// again")


def test_a_copy_over_one_that_is_on_its_way():
    x, bring = aligned((2048,), np.uint8), "EXPECT\n    BRING\n"
    body = INIT + f"@!%p1 bra begun;\n{bring}{wait(name='first')}{bring}begun:\n"
    go(ring(body + wait(parity="1")), (x,), threads=64)
    twice = "EXPECT\nBRING\nBRING // over\n"
    text = ring(INIT + f"@!%p1 bra begun;\n{twice}begun:\n" + wait())
    with pytest.raises(KernelFault, match="it overwrites shared memory that a copy") as error:
        go(text, (x,), threads=64)
    assert error.value.site.line == line_of(text, "// over")


def test_a_copy_is_there_for_those_that_waited_for_it():
    """Warp 1 does not wait, and reads it when it has come: only by luck."""
    only = "setp.lt.u32 %p2, %r1, 32; @!%p2 bra unaware;\n"
    body = RING[: RING.index("mbarrier.arrive.shared.b64 _, [%r10+8]")]
    bar = "bar.sync 1, 64;\n"
    waits = only + wait() + "unaware:\n"
    x = aligned((2048,), np.uint8)
    for seed in range(3):
        go(ring(body.replace(wait(), waits + bar)), (x,), threads=64, seed=seed)
    late = "mov.b32 %r20, 0; counting: nanosleep.u32 20; add.s32 %r20, %r20, 1;\n"
    late += "setp.lt.u32 %p3, %r20, 200; @%p3 bra counting;\n"
    with pytest.raises(KernelFault, match=r"a copy or product wrote|was not waited for"):
        go(ring(body.replace(wait(), waits + late)), (x,), threads=64)


# -- wgmma -----------------------------------------------------------------------------------------

COMMIT = "wgmma.commit_group.sync.aligned;"
HELD = {
    "accumulators that are read": ("add.f32 %f1, %r40, %r40;", "the accumulator in %r40"),
    "accumulators that are written": ("mov.b32 %r42, 0;", "the accumulator in %r42"),
    "accumulators that are moved": ("@%p6 mov.b32 %r30, %r43;", "the accumulator in %r43"),
    "accumulators that are stored": ("st.global.b32 [%d10], %r41;", "the accumulator in %r41"),
}


@pytest.mark.parametrize("name", HELD)
def test_accumulators_are_not_touched_before_they_are_waited_for(name):
    touch, reason = HELD[name]
    touch = touch.replace("add.f32 %f1", "add.u32 %r30")
    text = product(PRODUCT.replace(COMMIT, f"{COMMIT}\nadd.u32 %r29, %r1, 1;\n{touch} // here"))
    with pytest.raises(KernelFault) as error:
        go(text, product_arrays(), MAPS, threads=128, smem=16384)
    assert error.value.site.line == line_of(text, "// here")
    assert reason in error.value.message
    right = "wgmma.wait_group.sync.aligned 0;"
    go(product(PRODUCT.replace(right, f"{right}\n{touch}")), product_arrays(), MAPS,
       threads=128, smem=16384)  # fmt: skip


def test_a_wait_for_all_groups_but_one_leaves_one_in_flight():
    """The accumulators of the first group may be read behind it, those of the second may not."""
    other = MMA.replace("%r40, %r41, %r42, %r43", "%r44, %r45, %r46, %r47")
    both = PRODUCT.replace("FIRST", f"{MMA}\n{COMMIT}").replace("SECOND", f"{other} // second")
    both = both.replace("%p6, 0, 0;", "%p7, 0, 0;")  # neither adds to what is there
    part = "wgmma.wait_group.sync.aligned 1;\nmov.b32 %r30, REGISTER;\n"
    for register, fine in (("%r40", True), ("%r44", False)):
        text = hopper(both.replace("wgmma.wait_group", part + "wgmma.wait_group", 1)).replace(
            "REGISTER", register
        )
        if fine:
            go(text, product_arrays(), MAPS, threads=128, smem=16384)
            continue
        with pytest.raises(KernelFault, match="nobody waited for it") as error:
            go(text, product_arrays(), MAPS, threads=128, smem=16384)
        assert error.value.site.line == line_of(text, "mov.b32 %r30, %r44")
        assert f"wgmma of line {line_of(text, '// second')}" in error.value.message


def test_factors_in_registers_are_not_written_before_they_are_waited_for():
    a = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r40, %r41, %r42, %r43}, "
    a += "{%r32, %r33, %r34, %r35}, %d6, %p6, 1, 1, 0;"
    zeros = "".join(f"mov.b32 %r{n}, 0; " for n in range(32, 36))
    body = zeros + PRODUCT.replace("FIRST", a).replace("SECOND", "")
    for planted, reason in (("mov.b32 %r30, %r33;", ""), ("mov.b32 %r33, 0;", "still reads")):
        text = hopper(body.replace(COMMIT, f"{COMMIT}\n{planted} // here"))
        if not reason:
            go(text, product_arrays(), MAPS, threads=128, smem=16384)
            continue
        with pytest.raises(KernelFault, match=reason) as error:
            go(text, product_arrays(), MAPS, threads=128, smem=16384)
        assert error.value.site.line == line_of(text, "// here")


def test_operands_that_a_warpgroup_has_not_waited_for():
    """What thread 0 stores, and fences, is there for the warpgroup behind a barrier."""
    late = "mov.b32 %r30, 0;\n @%p1 st.shared.b32 [%r11+8192], %r30;\n"
    late += "fence.proxy.async.shared::cta;\n bar.sync 0;\n// Descriptors"
    right = product(PRODUCT.replace("// Descriptors", late))
    go(right, product_arrays(), MAPS, threads=128, smem=16384)
    with pytest.raises(KernelFault, match="race: wgmma reads shared memory that lane 0 of warp 0"):
        go(right.replace("cta;\n bar.sync 0;", "cta;"), product_arrays(), MAPS, threads=128,
           smem=16384)  # fmt: skip


def test_stores_by_tma_need_a_barrier_behind_those_that_fill():
    fill = "mad.lo.s32 %r5, %r1, 4, %r11; st.shared.b32 [%r5], %r1;\nfence.proxy.async;\n"
    store = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d10], [%r11], 256;\n"
    store += "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n"
    again = "st.shared.b32 [%r5], -1;"
    x = numbers((64,), np.uint32)
    go(hopper(fill + "bar.sync 0;\n" + store + "bar.sync 0;\n" + again), (x,), threads=64)
    with pytest.raises(KernelFault, match="race: the store reads shared memory that lane"):
        go(hopper(fill + store), (x,), threads=64)
    with pytest.raises(KernelFault, match="race: it writes shared memory that lane 0"):
        go(hopper(fill + "bar.sync 0;\n" + store + again), (x,), threads=64)


def test_a_product_that_was_waited_for_tells_what_all_its_warps_did_before():
    """Each thread reads its own factors; thread 0 writes over those of warp 3."""
    a = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r40, %r41, %r42, %r43}, "
    a += "{%r32, %r33, %r34, %r35}, %d6, %p6, 1, 1, 0;"
    reads = "mad.lo.s32 %r31, %r1, 16, %r11;\nld.shared.v4.b32 {%r32, %r33, %r34, %r35}, [%r31];\n"
    write = "@%p1 st.shared.b32 [%r11+1600], -1; // over\n"
    body = PRODUCT.replace("wgmma.fence", f"{reads}wgmma.fence").replace("SECOND", "")
    waited = "wgmma.wait_group.sync.aligned 0;\n"
    right = hopper(body.replace("FIRST", a).replace(waited, waited + write))
    go(right, product_arrays(), MAPS, threads=128, smem=16384)
    wrong = hopper(body.replace("FIRST", a).replace(waited, write + waited))
    with pytest.raises(KernelFault, match="race: it writes shared memory that lane 4 of warp 3"):
        go(wrong, product_arrays(), MAPS, threads=128, smem=16384)
