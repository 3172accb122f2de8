"""Shared memory is a CTA's only until it ends: what comes later is a fault, as on hardware."""

from __future__ import annotations

import pytest
from test_emulator_hopper import BOX, aligned, fault_of, go, hopper, numbers

# The second CTA ends between two barriers of the cluster: the second one does not wait for it.
ALONE = """
    @!%p1 bra ready;
    mbarrier.init.shared.b64 [%r10], 1;
    st.shared.b32 [%r11], 5;
    ready:
    barrier.cluster.arrive; barrier.cluster.wait;
    setp.eq.u32 %p2, %r2, 1;
    @%p2 ret;
    barrier.cluster.arrive; barrier.cluster.wait;
    mapa.shared::cluster.u32 %r5, %r10, 1; mapa.shared::cluster.u32 %r6, %r11, 1;
    mov.b16 %h1, 3;
    @!%p1 bra touched;
"""
BROUGHT = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    ".multicast::cluster [%r11], [%d1, {%r20, %r20}], [%r10], %h1;"
)


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        ("ld.shared::cluster.b32 %r7, [%r6];", "shared memory an address is in has ended"),
        ("st.shared::cluster.b32 [%r6], %r2;", "shared memory an address is in has ended"),
        ("mbarrier.arrive.shared::cluster.b64 _, [%r5];", "an address is in has ended"),
        (BROUGHT, "mbarrier is signalled has ended"),
    ],
)
def test_a_cta_that_has_ended_is_not_touched(late, reason):
    source, out = numbers((50, 80), "f2"), aligned(2, "u4")
    body = ALONE + late + "\ntouched:\n"
    assert reason in fault_of(hopper(body), (source, out), BOX, cluster=2, at=late)
    if late is not BROUGHT:  # whose bytes no one waits for
        alive = body.replace("@%p2 ret;", "") + "barrier.cluster.arrive; barrier.cluster.wait;"
        go(hopper(alive), (source, out), BOX, cluster=2)


# Each CTA comes to the memory of the other, arrives, and waits for the other or does not.
BOTH = """
    @!%p1 bra ready;
    mbarrier.init.shared.b64 [%r10], 1;
    st.shared.b32 [%r11], 5;
    ready:
    barrier.cluster.arrive; barrier.cluster.wait;
    xor.b32 %r7, %r2, 1;
    mapa.shared::cluster.u32 %r5, %r10, %r7; mapa.shared::cluster.u32 %r6, %r11, %r7;
    @!%p1 bra touched;
    TOUCH
    touched:
    barrier.cluster.arriveRELAXED;
"""


@pytest.mark.parametrize("relaxed", ["", ".relaxed"])
@pytest.mark.parametrize(
    ("touch", "does"),
    [
        ("ld.shared::cluster.b32 %r8, [%r6];", "loads from"),
        ("st.shared::cluster.b32 [%r6], %r2;", "changes"),
        ("mbarrier.arrive.shared::cluster.b64 _, [%r5];", "changes"),
        ("red.shared::cluster.add.u32 [%r6], 1;", "changes"),
    ],
)
def test_a_cta_ends_behind_what_others_do_in_its_shared_memory(touch, does, relaxed):
    """Whatever the order in which they happen to run; what was loaded is there when it is used."""
    source, out = numbers((50, 80), "f2"), aligned(2, "u4")
    body = BOTH.replace("TOUCH", touch).replace("RELAXED", relaxed)
    assert does in fault_of(hopper(body), (source, out), BOX, cluster=2, at="ret;")
    waits = body + "barrier.cluster.wait;"
    if relaxed and does == "changes":
        assert does in fault_of(hopper(waits), (source, out), BOX, cluster=2, at="ret;")
    else:
        go(hopper(waits), (source, out), BOX, cluster=2)


def test_a_transfer_is_over_before_its_cta_ends():
    body = """
        @!%p1 bra done;
        mbarrier.init.shared.b64 [%r10], 1;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 2048;
        cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r11], [%d1, {%r20, %r20}], [%r10];
        done:
    """  # noqa: E501
    source, out = numbers((50, 80), "f2"), aligned(2, "u4")
    message = fault_of(hopper(body), (source, out), BOX, at="cp.async.bulk.tensor")
    assert "no one waited for the transfer" in message
    assert "its CTA has ended" in message
