"""Clusters that take over the work of others, in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import kernel, line_of, run

from unigemm.emulator import KernelFault, PtxError

# One warp a CTA. Each CTA counts its work in the element of its coordinates; the first CTA of a
# cluster requests more work, for all of them.
ASK = (
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    ".multicast::cluster::all.b128 [%r10+16], [%r10];"
)
BODY = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.b32 %r10, smem;
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y;
    setp.eq.u32 %p1, %r1, 0;
    setp.eq.u32 %p2, %r2, 0; and.pred %p2, %p1, %p2;
    mov.b32 %r5, 0;
    @%p1 mbarrier.init.shared.b64 [%r10], 1;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    working:
    mad.lo.u32 %r6, %r4, 6, %r3;
    mad.wide.u32 %d1, %r6, 4, %d10;
    @%p1 red.global.add.u32 [%d1], 1;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 16;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    @!%p2 bra asked;
    ASK
    asked:
    waiting:
    mbarrier.try_wait.parity.shared.b64 %p3, [%r10], %r5;
    @!%p3 bra waiting;
    xor.b32 %r5, %r5, 1;
    ld.shared.v2.b64 {%d2, %d3}, [%r10+16];
    {
    .reg .b128 answer;
    mov.b128 answer, {%d2, %d3};
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, answer;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r3, answer;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r20, %r4, %r22, _}, answer;
    }
    add.u32 %r3, %r3, %r2;
    fence.proxy.async.shared::cta;
    @%p4 bra working;
    AFTER
"""


def text_of(after="", target="sm_100a"):
    text = kernel(BODY.replace("ASK", ASK).replace("AFTER", after)).replace("sm_90a", target)
    return text.replace(".visible", ".extern .shared .align 16 .b8 smem[];\n.visible", 1)


def go(text, ctas=(6, 5), **options):
    out = np.zeros(30, np.uint32)
    report = run(text, (out,), ctas=ctas, smem=64, **options)
    return out, report


@pytest.mark.parametrize("cluster", [1, 2, 3])
def test_each_cluster_is_done_once(cluster):
    """Whether it was launched or cancelled; both happen."""
    requests = set()
    for seed in range(8):
        out, report = go(text_of(), cluster=(cluster, 1, 1), seed=seed, lockstep=seed % 2 == 0)
        assert out.tolist() == [1] * 30
        requests.add(report.instructions["clusterlaunchcontrol.query_cancel.is_canceled.pred.b128"])
    assert min(requests) >= 30, "each CTA requests more behind each piece of work"


def test_some_clusters_are_cancelled():
    """A kernel that does not look at the answer leaves their work undone."""
    left = [int((go(text_of().replace("@%p4 bra working;", ""), seed=n)[0] == 0).sum())
            for n in range(5)]  # fmt: skip
    assert any(left)


def test_an_answer_is_waited_for():
    text = (
        text_of()
        .replace("@!%p3 bra waiting;", "")
        .replace("mbarrier.try_wait", "mbarrier.test_wait")
    )
    with pytest.raises(KernelFault, match="was not waited for") as error:
        go(text)
    assert error.value.site.line == line_of(text, "ld.shared.v2")


def test_an_answer_is_read_behind_a_fence_before_the_next():
    text = text_of().replace("fence.proxy.async.shared::cta;", "")
    with pytest.raises(KernelFault, match=r"with no fence\.proxy\.async behind them") as error:
        go(text)
    assert error.value.site.line == line_of(text, "clusterlaunchcontrol.try_cancel")


def test_no_request_comes_after_a_failure():
    again = "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 16;\n@%p2 " + ASK + "// again"
    text = text_of(again)
    with pytest.raises(KernelFault, match="after the answer") as error:
        go(text)
    assert error.value.site.line == line_of(text, "// again")


def test_older_architectures_have_no_such_instruction():
    with pytest.raises(PtxError, match="sm_90a has no such instruction"):
        go(text_of(target="sm_90a"))
