"""Kernels launched dependently wait for those before: the emulator finds what comes too early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import kernel, line_of, run
from test_emulator_hopper import INIT, aligned, go, hopper

import unigemm
from unigemm.emulator import KernelFault, device
from unigemm.emulator.launch.host import missing

BUFFER = ".shared .align 16 .b8 buffer[1024];"
START = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.b32 %r4, buffer;
    mad.lo.s32 %r5, %r1, 16, %r4; mad.wide.s32 %d1, %r1, 16, %d10;
"""
WAIT = "griddepcontrol.wait;"
ACCESSES = {
    "a load": "ld.global.b32 %r6, [%d1];",
    "a load of what is constant": "ld.global.nc.v4.b32 {%r6, %r7, %r8, %r9}, [%d1];",
    "a generic load": "ld.b32 %r6, [%d1];",
    "a store": "st.global.b32 [%d1], %r1;",
    "a sum in memory": "red.global.add.u32 [%d1], %r1;",
    "an exchange": "atom.global.exch.b32 %r6, [%d1], %r1;",
    "a copy": "cp.async.cg.shared.global [%r5], [%d1], 16;",
}


def early(access):
    copied = "cp.async.wait_all;" if access.startswith("cp.async") else ""
    return lambda before, behind: kernel(
        f"{START}{before}\n{access}\n{copied}{behind}", shared=BUFFER
    )


@pytest.mark.parametrize("name", ACCESSES)
def test_memory_that_is_touched_before_the_wait_is_found_where_it_is(name):
    make, x = early(ACCESSES[name]), np.zeros((64, 4), np.uint32)
    run(make(WAIT, ""), (x,), threads=64, dependent=True)
    text = make("", WAIT)
    run(text, (x,), threads=64)
    run(text, (x,), threads=64, dependent=True, strict=False)
    with pytest.raises(KernelFault, match=r"before griddepcontrol\.wait") as error:
        run(text, (x,), threads=64, dependent=True)
    site = error.value.site
    assert site.line == line_of(text, ACCESSES[name])
    assert (site.cta, site.warp, site.lane) == ((0, 0, 0), 0, 0)


def test_each_thread_waits_for_itself():
    text = kernel(
        f"{START}setp.lt.u32 %p1, %r1, 40;\n@%p1 {WAIT}\nsetp.eq.u32 %p2, %r2, 1;\n"
        "setp.ge.u32 %p3, %r1, 39; and.pred %p2, %p2, %p3;\n@%p2 st.global.b32 [%d1], %r1;",
        shared=BUFFER,
    )
    with pytest.raises(KernelFault, match="launched dependently") as error:
        run(text, (np.zeros((64, 4), np.uint32),), threads=64, ctas=2, dependent=True)
    site = error.value.site
    assert (site.line, site.cta) == (line_of(text, "@%p2 st.global"), (1, 0, 0))
    assert (site.warp, site.lane) == (1, 8)


def test_threads_behind_one_that_waited_need_not_wait():
    """What it waited for can be read in all of the grid: they meet at a barrier."""
    ends = "setp.ge.u32 %p4, %r1, 60;\n@%p4 ret;\n"  # these never wait
    one = f"setp.eq.u32 %p1, %r1, 40;\n@%p1 {WAIT}\n"
    access = "\nld.global.b32 %r6, [%d1];"
    x = np.zeros((64, 4), np.uint32)
    for seed in range(3):
        options = {"threads": 64, "dependent": True, "seed": seed, "lockstep": seed == 0}
        run(kernel(f"{START}{ends}{one}bar.sync 0;{access}", shared=BUFFER), (x,), **options)
        with pytest.raises(KernelFault, match=r"before griddepcontrol\.wait"):
            run(kernel(f"{START}{ends}bar.sync 0;{one}{access}", shared=BUFFER), (x,), **options)


def test_what_is_prefetched_is_free_of_the_wait():
    ahead = "prefetch.global.L2 [%d1];\ngriddepcontrol.launch_dependents;\n"
    text = kernel(f"{START}{ahead}{WAIT}\nst.global.b32 [%d1], %r1;", shared=BUFFER)
    run(text, (np.zeros((64, 4), np.uint32),), threads=64, dependent=True)


def test_a_grid_in_which_nobody_waits_is_found():
    """The kernel behind waits for its end only, which may come before that of the one before."""
    text = kernel("mov.u32 %r1, %tid.x;")
    run(text, (np.zeros(1),))
    with pytest.raises(KernelFault, match="none of its threads"):
        run(text, (np.zeros(1),), ctas=3, dependent=True)
    some = f"mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 2;\n@%p1 {WAIT}"
    run(kernel(some), (np.zeros(1),), ctas=3, dependent=True)


LOAD = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d10], 1024, "
    "[%r10];"
)
BOX = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r11], "
    "[%d1, {%r20, %r20}], [%r10];"
)
STORED = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;"
FILLED = """
    mad.lo.s32 %r5, %r1, 4, %r11; mov.b32 %r6, 0;
    filling: st.shared.b32 [%r5], %r1; add.s32 %r5, %r5, 128; add.s32 %r6, %r6, 1;
    setp.lt.u32 %p3, %r6, 8; @%p3 bra filling;
    fence.proxy.async.shared::cta; bar.sync 0;
"""
TRANSFERS = {
    "a bulk copy": (INIT, LOAD),
    "a box": (INIT, BOX),
    "a bulk store": (
        FILLED, f"cp.async.bulk.global.shared::cta.bulk_group [%d10], [%r11], 1024;\n{STORED}"
    ),
    "a bulk sum": (
        FILLED,
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d10], [%r11], 1024;\n"
        + STORED,
    ),
    "a box that is stored": (
        FILLED,
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r20, %r20}], [%r11];\n"
        + STORED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFERS)
def test_transfers_that_begin_before_the_wait_are_found(name):
    before, transfer = TRANSFERS[name]
    expect = "mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 1024;" if before is INIT else ""
    taken = """
        again: mbarrier.try_wait.parity.shared.b64 %p4, [%r10], 0; @!%p4 bra again;
    """ if expect else ""  # fmt: skip

    def text(first, second):
        return hopper(
            f"{before}{first}\n@!%p1 bra over;\n{expect}\n{transfer}\nover:\n{taken}{second}"
        )

    x = aligned((16, 16), np.float32)
    maps = [(0, (16, 16), 0)]
    go(text(WAIT, ""), (x,), maps, dependent=True)
    go(text("", WAIT), (x,), maps)
    with pytest.raises(KernelFault, match=r"before griddepcontrol\.wait") as error:
        go(text("", WAIT), (x,), maps, dependent=True)
    assert error.value.site.line == line_of(text("", WAIT), transfer.split("\n")[0])


@pytest.mark.compile
@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_every_launch_of_a_product_is_known_to_be_dependent():
    """From sm_90 on: what the host function requests reaches the emulator's check."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    x = np.ones((32, 1024), np.float32)
    for arch, dependent in (("sm_80", False), ("sm_90a", True)):
        with device(arch) as gpu:
            plan = unigemm.plan(x, x.T, backend="cute_simt")
            config = replace(plan.config, split_k=2)
            bytes_needed = 2 * 32 * 32 * 4
            unigemm.matmul(x, x.T, plan=replace(plan, config=config, workspace_bytes=bytes_needed))
        assert len(gpu.launches) == 2
        assert {launch.dependent for launch, _ in gpu.launches} == {dependent}
