"""Mistakes on which hardware is silent are found, with line, warp and CTA: each is planted."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import kernel, line_of, run

from unigemm.emulator import KernelFault, Memory, launch

START = "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; shl.b32 %r3, %r1, 2; mov.b32 %r4, buffer;\n"
START += "add.s32 %r5, %r4, %r3; mad.wide.s32 %d1, %r1, 4, %d10; mov.b16 %h1, 0;\n"
BUFFER = ".shared .align 16 .b8 buffer[256];"


def shared_kernel(body):
    return kernel(START + body, shared=BUFFER)


def fault_of(text, arrays=None, *, at, **options):
    """Run a kernel and return the fault that it must have, on the line that holds `at`."""
    arrays = (np.zeros(64, np.uint32),) if arrays is None else arrays
    options = {"threads": 64, **options}
    with pytest.raises(KernelFault) as error:
        run(text, arrays, **options)
    fault = error.value
    assert fault.site.line == line_of(text, at), str(fault)
    assert f"PTX line {fault.site.line}, CTA" in str(fault)
    assert at.strip() in str(fault)
    return fault


GOOD = """
    st.shared.b32 [%r5], %r1;
    bar.sync 0;
    ld.shared.b32 %r6, [%r5];
    st.global.b32 [%d1], %r6;
"""


def test_the_kernel_without_a_fault_has_none():
    out = np.zeros(64, np.uint32)
    run(shared_kernel(GOOD), (out,), threads=64)
    assert out.tolist() == list(range(64))


def test_shared_memory_that_nothing_wrote():
    never = "setp.ne.u32 %p1, %r1, %r1; @%p1 st.shared.b32 [%r5]"
    text = shared_kernel(GOOD.replace("st.shared.b32 [%r5]", never))
    fault = fault_of(text, at="ld.shared.b32 %r6")
    assert "nothing wrote" in fault.message
    assert fault.site.warp == 0
    part = "setp.lt.u32 %p1, %r1, 40; @%p1 st.shared.b32 [%r5], %r1;"
    text = shared_kernel(GOOD.replace("st.shared.b32 [%r5], %r1;", part))
    fault = fault_of(text, at="ld.shared.b32 %r6", ctas=3)
    assert (fault.site.cta, fault.site.warp, fault.site.lane) == ((0, 0, 0), 1, 8)
    run(text, (np.zeros(64, np.uint32),), threads=64, strict=False)


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        ("ld.shared.b32 %r6, [%r5+256];", "out of bounds"),
        ("st.shared.b32 [%r5+-4], %r1;", "out of bounds"),
        ("ld.shared.v4.b32 {%r6,%r7,%r8,%r9}, [%r5];", "not aligned to 16"),
        ("st.shared.b16 [%r5+1], %h1;", "not aligned to 2"),
        ("ld.global.b32 %r6, [%d1+256];", "not registered: 0 bytes behind"),
        ("st.global.b32 [%d1+-4], %r6;", "not registered"),
        ("ld.global.b32 %r6, [%d1+2];", "not aligned to 4"),
        ("red.global.add.u32 [%d1+4], %r1;", "not registered"),
        ("cp.async.ca.shared.global [%r5], [%d1+8], 4;", "not registered"),
        ("cp.async.cg.shared.global [%r5], [%d10], 16;", "not aligned to 16"),
        ("ld.shared::cluster.b32 %r6, [%r5+33554432];", "not in this cluster"),
    ],
)
def test_an_access_out_of_bounds_or_not_aligned(access, reason):
    text = shared_kernel(GOOD + access)
    assert reason in fault_of(text, at=access).message


def test_the_lane_that_is_out_of_bounds_is_named():
    out = np.zeros(50, np.uint32)
    fault = fault_of(shared_kernel(GOOD), (out,), at="st.global.b32 [%d1], %r6")
    assert (fault.site.warp, fault.site.lane) == (1, 18)


def test_an_input_that_is_written():
    out = np.zeros(64, np.uint32)
    out.flags.writeable = False
    assert "read-only" in fault_of(shared_kernel(GOOD), (out,), at="st.global.b32").message


COPY = """
    cp.async.ca.shared.global [%r5], [%d1], 4;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
    ld.shared.b32 %r6, [%r5];
    add.s32 %r6, %r6, 1;
    st.global.b32 [%d1], %r6;
"""


def test_a_copy_that_is_read_before_it_is_waited_for():
    out = np.arange(64, dtype=np.uint32)
    run(shared_kernel(COPY), (out,), threads=64)
    assert out.tolist() == list(range(1, 65))
    text = shared_kernel(COPY.replace("wait_group 0", "wait_group 1"))
    assert "not waited for" in fault_of(text, at="ld.shared.b32").message
    text = shared_kernel(COPY.replace("cp.async.commit_group;", ""))
    assert "not waited for" in fault_of(text, at="ld.shared.b32").message


def test_a_copy_with_more_bytes_than_it_has_room_for():
    text = shared_kernel("cp.async.ca.shared.global [%r5], [%d1], 4, 5;")
    assert "more than 4 bytes" in fault_of(text, at="cp.async.ca").message


def test_the_end_of_a_partial_copy_is_zero():
    data = np.arange(1, 65, dtype=np.uint32) * 0x01010101
    text = shared_kernel(
        COPY.replace("[%d1], 4;", "[%d1], 4, %r8;").replace("add.s32 %r6, %r6, 1;", "").replace(
            "cp.async.ca", "and.b32 %r8, %r1, 3;\n setp.gt.u32 %p1, %r1, 59; "
            "selp.b32 %r8, 4, %r8, %p1; cp.async.ca",
        )
    )  # fmt: skip
    got = data.copy()
    run(text, (got,), threads=64)
    have = np.where(np.arange(64) > 59, 4, np.arange(64) & 3)
    wanted = [int(v) & ((1 << 8 * h) - 1) for v, h in zip(data, have, strict=True)]
    assert got.tolist() == wanted


# -- barriers --------------------------------------------------------------------------------------


def test_a_barrier_that_a_warp_does_not_come_to():
    text = shared_kernel("setp.lt.u32 %p1, %r1, 32;\n@%p1 bra skip;\nbar.sync 3;\nskip:\n")
    fault = fault_of(text, at="bar.sync 3")
    assert "deadlock" in fault.message
    assert "1 of 2 warps have ended" in fault.message
    assert fault.site.warp == 1


def test_barriers_that_disagree_on_their_threads():
    text = shared_kernel(
        "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra other;\nbar.sync 1, 128;\nbra.uni end;\n"
        "other:\nbar.sync 1, 96;\nend:\n"
    )
    with pytest.raises(KernelFault, match="barrier 1 is used for"):
        run(text, (np.zeros(128, np.uint32),), threads=128)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bar.sync 1, 48;", "cannot be for 48"),
        ("bar.sync 16;", "barriers 0 to 15"),
        ("bar.sync %r1;", "different barriers"),
        ("setp.lt.u32 %p1, %r1, 5;\n@%p1 bra no;\nbar.sync 2;\nno:\n", "a part of a warp"),
        ("setp.lt.u32 %p1, %r1, 5;\n@%p1 bra no;\nshfl.sync.idx.b32 %r6, %r1, 0, 31, -1;\nno:\n",
         "names the lanes 0xffffffff and those that come are 0xffffffe0"),
        ("setp.lt.u32 %p1, %r1, 5;\n@%p1 bra no;\nbar.warp.sync 31;\nno:\n", "names the lanes"),
        ("trap;", "traps"),
        ("barrier.cluster.wait;", "without an arrive"),
        ("barrier.cluster.arrive;\nbarrier.cluster.arrive;", "a second"),
    ],
)  # fmt: skip
def test_barriers_and_shuffles_that_are_used_wrongly(text, reason):
    with pytest.raises(KernelFault) as error:
        run(shared_kernel(text), (np.zeros(64, np.uint32),), threads=64)
    assert reason in error.value.message


def test_warps_that_wait_for_each_other():
    text = shared_kernel(
        "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra other;\nbar.sync 1, 64;\nbar.sync 2, 64;\n"
        "bra.uni end;\nother:\nbar.sync 2, 64;\nbar.sync 1, 64;\nend:\n"
    )
    with pytest.raises(KernelFault, match="deadlock") as error:
        run(text, (np.zeros(64, np.uint32),), threads=64)
    assert "bar.sync 1 waits" in error.value.message
    assert "bar.sync 2 waits" in error.value.message


@pytest.mark.parametrize(
    ("form", "kind"), [("popc.u32", "u32"), ("and.pred", "p"), ("or.pred", "p")]
)
def test_a_barrier_counts_what_holds(form, kind):
    """Twice at the same barrier: thread 40 alone, then all but it."""
    read = "selp.b32 %r6, 1, 0, %p2;" if kind == "p" else ""
    result = "%p2" if kind == "p" else "%r6"
    body = f"""
        setp.eq.u32 %p1, %r1, 40;
        barrier.cta.red.{form} {result}, 1, 96, %p1;
        {read} mov.b32 %r7, %r6;
        not.pred %p1, %p1;
        barrier.cta.red.{form} {result}, 1, 96, %p1;
        {read} mad.lo.s32 %r7, %r7, 1000, %r6;
        st.global.b32 [%d1], %r7;
    """
    wanted = {"popc.u32": 1095, "and.pred": 0, "or.pred": 1001}[form]
    for options in ({}, {"lockstep": False}, {"seed": 3}):
        out = np.zeros(96, np.uint32)
        run(shared_kernel(body), (out,), threads=96, **options)
        assert out.tolist() == [wanted] * 96
    alone = body.replace("setp.eq.u32 %p1, %r1, 40;", "setp.ge.u32 %p1, %r1, 64;\n@%p1 ret;")
    with pytest.raises(KernelFault, match=r"bar.red 1 waits for other threads"):
        run(shared_kernel(alone), (np.zeros(96, np.uint32),), threads=96)


def test_named_barriers_pass_turns():
    """A producer warp arrives, a consumer waits; twice, on two barriers."""
    text = shared_kernel(
        """
        setp.ge.u32 %p1, %r1, 32;
        @%p1 bra consumer;
        st.shared.b32 [%r5], 11;
        bar.arrive 1, 64;
        bar.sync 2, 64;
        st.shared.b32 [%r5], 22;
        bar.arrive 1, 64;
        bra.uni end;
    consumer:
        bar.sync 1, 64;
        ld.shared.b32 %r6, [%r5+-128];
        bar.arrive 2, 64;
        bar.sync 1, 64;
        ld.shared.b32 %r7, [%r5+-128];
        mad.lo.s32 %r6, %r6, 100, %r7;
        st.global.b32 [%d1+-128], %r6;
    end:
        """
    )
    for options in ({}, {"seed": 3}, {"lockstep": False}):
        out = np.zeros(32, np.uint32)
        run(text, (out,), threads=64, **options)
        assert out.tolist() == [1122] * 32


def test_a_kernel_that_would_run_for_ever_is_stopped(monkeypatch):
    from unigemm.emulator import EmulatorError
    from unigemm.emulator.launch import launching

    monkeypatch.setattr(launching, "MAX_INSTRUCTIONS", 10_000)
    text = kernel("mov.u32 %r1, 0;\nagain:\nadd.s32 %r1, %r1, 1;\nbra.uni again;")
    with pytest.raises(EmulatorError, match="takes too long"):
        run(text, (np.zeros(1, np.uint32),))
    short = kernel("add.s32 %r1, %tid.x, 1;\n" * 50)
    memory = Memory()
    with pytest.raises(EmulatorError, match=r"of some .* take a smaller problem"):
        launch(short, "k", (4096,), (32,), params=[memory.add(np.zeros(1))], memory=memory)


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_loop_that_waits_for_what_nobody_writes_ends(lockstep):
    """Another warp raises the flag, or waits for another one itself."""
    waits = "again{0}: ld.volatile.global.b32 %r6, [%d10+{1}];\nnanosleep.u32 20;\n"
    waits += "setp.ne.u32 %p2, %r6, 1;\n@%p2 bra again{0};\n"
    raises = "mov.b32 %r7, 1;\nst.volatile.global.b32 [%d10+{}], %r7;\n"
    body = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra first;\n"
    body += f"{waits.format('b', 4)}{raises.format(0)}bra.uni done;\nfirst:\nEARLY"
    body += f"{waits.format('a', 0)}LATE\ndone:"
    for early, late in ((raises.format(4), ""), ("", raises.format(4))):
        text = shared_kernel(body.replace("EARLY", early).replace("LATE", late))
        flags = np.zeros(64, np.uint32)
        if early:
            run(text, (flags,), threads=64, lockstep=lockstep)
            assert flags[:2].tolist() == [1, 1]
        else:
            with pytest.raises(
                KernelFault, match="no warp gets on: each that runs waits in a loop"
            ):
                run(text, (flags,), threads=64, lockstep=lockstep)
