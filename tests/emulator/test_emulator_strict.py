"""The emulator's strict list: a fault of each kind is planted in one warp of the second CTA.

The error must name the line of PTX, the CTA and the warp, whatever else runs at the same time.
"""

from __future__ import annotations

import numpy as np
import pytest
from emulated import line_of
from emulated import run as run_kernel
from test_emulator_hopper import INIT, LOAD, MMA, aligned, go, hopper, wait
from test_emulator_tcgen05 import LD, blackwell

from unigemm.emulator import KernelFault

WARP = 5
# %p6: warp 5 of CTA 1; %p7: its first lane; %p8: warps 4 to 7 of CTA 1. Its 256 bytes are at %r12.
START = INIT + """
    shr.u32 %r3, %r1, 5; mad.lo.s32 %r3, %r2, 16, %r3; setp.eq.u32 %p6, %r3, 21;
    and.b32 %r4, %r1, 31; setp.eq.u32 %p7, %r4, 0; and.pred %p7, %p6, %p7;
    setp.ge.u32 %p8, %r3, 20; add.s32 %r12, %r11, 4096;
    shl.b32 %r4, %r4, 3; add.s32 %r13, %r12, %r4; mov.b32 %r21, 0; mov.b32 %r22, 0;
    cvt.u64.u32 %d3, %r4; add.s64 %d3, %d3, %d10;
"""  # fmt: skip
EXPECT = "mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 2048;"
FILLED = "st.shared.v2.b32 [%r13], {%r1, %r1}; fence.proxy.async.shared::cta; bar.warp.sync -1;"
STORE = "@%p7 cp.async.bulk.global.shared::cta.bulk_group [%d10], [%r12], 256;"
COMMIT, FINISH = "cp.async.bulk.commit_group;", "cp.async.bulk.wait_group 0;"
COPY = "cp.async.ca.shared.global [%r13], [%d3], 8;"
PRODUCT = f"wgmma.fence.sync.aligned;\n{MMA}\nwgmma.commit_group.sync.aligned;"
READY = "wgmma.wait_group.sync.aligned 0;"
OPERANDS = """
    shr.u32 %r5, %r11, 4; cvt.u64.u32 %d5, %r5; or.b64 %d5, %d5, 4611686293305294848;
    mov.b64 %d6, %d5; mov.pred %p6, 0;
    """  # both are at %r11

#: What is planted, the error's words, what its line holds, and its warp.
PLANTED = {
    "shared memory that nothing wrote": ("ld.shared.b32 %r5, [%r12];", "nothing wrote", "ld.sh"),
    "shared memory out of bounds": ("st.shared.b32 [%r12+65536], %r1;", "out of bounds", "+65536"),
    "device memory out of bounds": ("ld.global.b32 %r5, [%d10+8192];", "not registered", "+8192"),
    "an address that is not aligned": ("st.shared.b32 [%r12+2], %r1;", "not aligned", "+2]"),
    "another CTA's memory that is not there": (
        "mapa.shared::cluster.u32 %r5, %r11, 2;\nld.shared::cluster.b32 %r5, [%r5];",
        "not in this cluster", "ld.shared::cluster",
    ),
    "a transfer that nobody waits for": (
        f"@!%p7 bra fine;\n{EXPECT}\n{LOAD}", "no one waited for the transfer", "cp.async",
    ),
    "too many bytes expected": (
        f"@!%p7 bra begun;\n{EXPECT.replace('2048', '4096')}\n{LOAD}\nbegun:\n{wait()}",
        "lacks 2048 bytes", "mbarrier.try_wait",
    ),
    "too few bytes expected": (
        f"@!%p7 bra begun;\n{EXPECT.replace('2048', '1024')}\n{LOAD}\nbegun:\n{wait()}",
        "lacks -1024 bytes", "mbarrier.try_wait",
    ),
    "bytes that never come": (f"@!%p7 bra fine;\n{EXPECT}", "2048 bytes of tr", "expect_tx"),
    "a transfer that is read too early": (
        f"@!%p7 bra begun;\n{EXPECT}\n{LOAD}\nbegun:\nld.shared.b32 %r5, [%r11];",
        "was not waited for", "ld.shared",
    ),
    "no proxy fence": (
        f"st.shared.v2.b32 [%r13], {{%r1, %r1}};\n{STORE}", "no fence.proxy.async", "cp.async",
    ),
    "a store that nobody waits for": (
        f"{FILLED}\n{STORE}\n{COMMIT}", "no one waited for this store", "bulk_group [",
    ),
    "a store whose source is overwritten": (
        f"{FILLED}\n{STORE}\n{COMMIT}\nst.shared.b32 [%r13], 1;\n{FINISH}",
        "overwritten before the store", "wait_group",
    ),
    "a store out of bounds": (
        f"{FILLED}\n{STORE.replace('[%d10]', '[%d10+8192]')}\n{COMMIT}\n{FINISH}",
        "not registered", "wait_group",
    ),
    "a copy that nobody waits for": (f"{COPY}\nret;", "did not wait for its cp", "ret;\nfine"),
    "a copy that is read too early": (
        f"{COPY}\nld.shared.b32 %r5, [%r13];\ncp.async.wait_all;", "not waited for", "ld.shared",
    ),
    "a barrier left unbalanced": ("bar.arrive 3, 64;", "left unbalanced: 32 of 64", "bar.arrive"),
    "a deadlock at a barrier": ("bar.sync 3, 64;", "deadlock", "bar.sync 3"),
    "a deadlock at an mbarrier": (wait(8), "lacks 64 of 64 arrivals", "mbarrier.try_wait"),
    "an mbarrier that is not there": (
        "mbarrier.arrive.shared.b64 _, [%r10+16];", "not initialised", "mbarrier.arrive",
    ),
    "too many arrivals": (
        "mbarrier.arrive.shared.b64 _, [%r10+8], 65;", "lacks 64", "mbarrier.arrive",
    ),
    "a part of a warp at a barrier": (
        "@!%p7 bra fine;\nbar.sync 3, 64;", "reached by a part of a warp", "bar.sync 3",
    ),
}  # fmt: skip


def culprit(text, at, make):
    """Return where a fault was, which must be on the line that holds `at`."""
    with pytest.raises(KernelFault) as error:
        make(text)
    fault = error.value
    assert fault.site.line == line_of(text, at.split("\n")[0]), str(fault)
    return fault


def two_ctas(body, **options):
    """Run 8 warps in each of two CTAs that wait for each other in the end."""
    end = "\nbarrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;"
    source, out = aligned((16, 64), np.float16), np.zeros(64, np.uint32)
    return lambda text: go(
        text, (source, out), [(0, (64, 16), 128)], threads=256, cluster=2, smem=16384, **options
    ), hopper(body + end)  # fmt: skip


def test_without_a_fault_there_is_none():
    make, text = two_ctas(START)
    make(text)


@pytest.mark.parametrize("name", PLANTED)
def test_the_fault_that_was_planted_is_found_where_it_is(name):
    planted, reason, at = PLANTED[name]
    _, text = two_ctas(f"{START}@!%p6 bra fine;\n{planted}\nfine:")
    at = at.split("\n")[0]
    lines = [n for n, line in enumerate(text.split("\n"), 1) if at in line]
    for seed in (0, 1):
        with pytest.raises(KernelFault, match=r"PTX line \d+, CTA \(1, 0, 0\), warp 5") as error:
            two_ctas("", seed=seed)[0](text)
        fault = error.value
        assert reason in fault.message, str(fault)
        assert fault.site.line in lines, str(fault)
        assert (fault.site.cta, fault.site.warp) == ((1, 0, 0), WARP)


@pytest.mark.parametrize(
    ("planted", "reason", "at"),
    [
        (f"{PRODUCT}\n{READY}", "nothing wrote", "wgmma.mma_async"),
        (f"FILL fence.proxy.async;\nbar.sync 4, 128;\n{PRODUCT}", "no one waited for this product",
         "wgmma.mma_async"),
        (f"FILL bar.sync 4, 128;\n{PRODUCT}\n{READY}", "no fence.proxy", "wgmma.mma_async"),
        (f"FILL fence.proxy.async;\nbar.sync 4, 128;\n{PRODUCT}\nst.shared.b32 [%r11], %r1;\n"
         f"{READY}", "no barrier orders the two", "st.shared.b32 [%r11]"),
    ],
)  # fmt: skip
def test_faults_of_a_warpgroup_name_its_first_warp(planted, reason, at):
    fill = """
        sub.s32 %r6, %r1, 128; mad.lo.s32 %r6, %r6, 64, %r11; mov.b32 %r7, 0;
        filling: st.shared.b32 [%r6], %r7; add.s32 %r6, %r6, 4; add.s32 %r7, %r7, 1;
        setp.lt.u32 %p9, %r7, 16; @%p9 bra filling;
    """
    body = f"{START}@!%p8 bra fine;\n{OPERANDS}{planted.replace('FILL', fill)}\nfine:"
    make, text = two_ctas(body)
    fault = culprit(text, at, make)
    assert reason in fault.message
    assert (fault.site.cta, fault.site.warp) == ((1, 0, 0), 4)


ONE = f"{LD}.32x32b.x1.b32 {{%r64}},"
ALLOCATED = "setp.eq.u32 %p6, %r2, 1; setp.eq.u32 %p7, %r3, 1; and.pred %p7, %p6, %p7;\n"


@pytest.mark.parametrize(
    ("planted", "reason", "at", "warp"),
    [
        (f"@!%p7 bra fine;\n{ONE} [%r8];\nfine:", "nothing wrote", LD, 1),
        (f"@!%p7 bra fine;\n{ONE} [%r8+512];\nfine:", "not allocated", LD, 1),
        (f"@!%p7 bra fine;\n{ONE} [%r9];\nfine:", "reaches those from", LD, 1),
        ("or.pred %p2, %p2, %p6;", "were not freed", "tcgen05.alloc", 0),
        ("@!%p7 bra fine;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 64; // once\nfine:",
         "no allocation of 64", "// once", 1),
        ("mov.b64 %d1, 0; @!%p7 bra fine;\n"
         "tcgen05.cp.cta_group::1.128x128b [%r9], %d1; // by all\nfine:",
         "several threads", "// by all", 1),
    ],
)  # fmt: skip
def test_faults_of_tensor_memory_are_found_where_they_are(planted, reason, at, warp):
    address = "shl.b32 %r8, %r3, 21; add.s32 %r8, %r8, %r9;\n"
    text = blackwell(ALLOCATED + address + planted)
    fault = culprit(text, at, lambda text: run_kernel(
        text, (np.zeros(4), np.zeros(4)), threads=128, ctas=2, cluster=(2, 1, 1), smem=4096
    ))  # fmt: skip
    assert reason in fault.message
    assert (fault.site.cta, fault.site.warp) == ((1, 0, 0), warp)


def test_bank_conflicts_of_a_kernel_are_counted():
    """Each thread stores a word: 4 bytes apart, then 8, then 128."""
    for step, passes in ((4, 1), (8, 2), (128, 32)):
        body = f"mad.lo.s32 %r3, %r1, {step}, %r11; st.shared.b32 [%r3], %r1;"
        report = go(hopper(body), (np.zeros(4),), threads=64, smem=16384, conflicts=True)
        assert (report.shared_accesses, report.shared_passes) == (2, 2 * passes)
        assert go(hopper(body), (np.zeros(4),), smem=16384).shared_passes == 0
