"""The estimated time of launches: what they use of a device, turned into microseconds.

A backend's `cost.py` says what a launch uses (`Usage`), each use in microseconds as if the device
did nothing else and reached its nominal rate. One formula joins them, with a handful of fitted
coefficients for each backend and kind of numbers (`Coefficients`). docs/cost-model.md explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unigemm.problem.problem import Problem

from .launches import Array

__all__ = ["Coefficients", "Parts", "Usage", "estimate", "missed_bytes", "overlapping"]


class Usage(NamedTuple):
    """What launches use; arrays of one length.

    Attributes
    ----------
    ctas, slots
        CTAs of the launch, and how many of them run at once.
    sms
        SMs of the device.
    k_tiles
        Of one CTA.
    mma_us, issue_us, smem_us
        Of an SM, for one k_tile of one CTA: multiply-adds, other instructions that are issued
        with them, and reads and writes of shared memory, each at the full rate.
    steps
        Of a k_tile, that wait for one another: its latency is their number times the coefficient.
    zero_rows
        Rows and columns of a tile that lie beyond matrices smaller than it, where TMA fills them
        with zeros: that takes longer than to read.
    l2_us
        Of the whole launch: what its CTAs read of the L2, at 64 bytes of an SM in a clock.
    dram_us
        Of the whole launch: what must move, at the nominal bandwidth.
    store_us
        Of one CTA: writing its tile, at 32 bytes of an SM in a clock.
    epilogue_us
        Of one CTA: the arithmetic of its tile's epilogue.
    overlapped
        Part of the stores, and of that arithmetic, which the next tile's main loop hides, 0 to 1.
    added_us
        Writing and reading the partial sums of K in device memory, at the nominal bandwidth.
    reductions
        Kernels that add up partial sums.
    exchanges
        Steps that wait for one another where sums are added up: barriers of CTAs or warps that do
        so on the SM, reads of parts by a block of a reduction.
    exchange_us
        What these move, at 32 bytes of an SM in a clock.
    copies, copied_us
        Kernels that copy operands before; reading and writing them at the nominal bandwidth.
    clusters
        Whether CTAs form clusters.
    wait_us
        Of one CTA: its loads from device memory that wait for one another, if nothing prefetches.
    """

    ctas: Array
    slots: Array
    sms: Array
    k_tiles: Array
    mma_us: Array
    issue_us: Array
    smem_us: Array
    steps: Array
    zero_rows: Array
    l2_us: Array
    dram_us: Array
    store_us: Array
    epilogue_us: Array
    overlapped: Array
    added_us: Array
    reductions: Array
    exchanges: Array
    exchange_us: Array
    copies: Array
    copied_us: Array
    clusters: Array
    wait_us: Array | float = 0.0


@dataclass(frozen=True, eq=False)
class Coefficients:
    """What is fitted, for one backend and kind of numbers.

    Those named after a part of `Usage` say how many times its nominal time that takes; those that
    end in `_us` are microseconds.

    Attributes
    ----------
    launch_us
        Of every launch, until its first k_tile is there.
    mma, issue, smem, l2, dram, store, exchange, added, copied
        Times the nominal time.
    latency_us, zero_row_us
        The least time of a step of a k_tile, and more for each row that is filled with zeros.
    wave_us
        Of each wave of CTAs, its start.
    reduction_us, exchange_us, copy_us, cluster_us
        Of each kernel that adds up, each step of `exchanges`, each kernel that copies, and of
        clusters.
    hot
        How much longer the main loop of long launches takes, as clocks fall under load.
    draw
        SMs that draw the whole bandwidth of the device memory, as a part of all.
    overlap
        Exponent of the norm that joins times which overlap.
    """

    launch_us: float = 2.0
    mma: float = 1.1
    issue: float = 1.0
    smem: float = 1.0
    l2: float = 1.0
    dram: float = 1.1
    store: float = 1.0
    exchange: float = 1.0
    added: float = 0.5
    copied: float = 1.2
    latency_us: float = 0.1
    zero_row_us: float = 0.003
    wave_us: float = 0.3
    reduction_us: float = 2.0
    exchange_us: float = 0.5
    copy_us: float = 2.0
    cluster_us: float = 0.1
    hot: float = 0.1
    draw: float = 0.5
    overlap: float = 4.0


class Parts(NamedTuple):
    """The estimated time of launches and its parts, microseconds.

    `total` is the sum of `launch`, `loop`, `starts`, `epilogue`, `reduction` and `repack`. Of the
    main loop these overlap: `serial` (`mma` and `latency`, one after the other), `smem`, `l2` and
    `dram` (and what waits for it). `filled` is the part of the waves' slots that have a CTA.
    """

    total: Array
    launch: Array
    loop: Array
    starts: Array
    epilogue: Array
    reduction: Array
    repack: Array
    serial: Array
    mma: Array
    latency: Array
    smem: Array
    l2: Array
    dram: Array
    filled: Array


_STEEPEST = 12.0  # exponent of a norm: higher powers of long times overflow
_MISSED = 0.1
_WAITING = 3.0  # exponent of the norm that joins bandwidth and waiting
_HOT_US = 1000.0  # half of `hot` is reached by main loops of this length


def estimate(u: Usage, c: Coefficients) -> Parts:
    """Return the estimated times of launches."""
    waves = np.ceil(u.ctas / u.slots)
    busiest = np.ceil(u.ctas / u.sms)  # CTAs of the SM that has most
    mma = busiest * u.k_tiles * (c.mma * u.mma_us + c.issue * u.issue_us)
    latency = waves * u.k_tiles * (c.latency_us * u.steps + c.zero_row_us * u.zero_rows)
    smem = busiest * u.k_tiles * (c.smem * u.smem_us)
    last = u.ctas - (waves - 1) * u.slots  # CTAs of the last wave: few cannot draw all bandwidth
    need = c.draw * u.sms
    slow = (1 - last / u.ctas) * np.maximum(1.0, need / u.slots)
    slow = slow + np.maximum(last, need) / u.ctas
    l2, dram = c.l2 * u.l2_us * slow, c.dram * u.dram_us * slow
    wait = u.wait_us * waves
    if np.any(wait):  # loads wait the longer, the busier the memory is: both count
        joined = (dram**_WAITING + wait**_WAITING) ** (1 / _WAITING)
        dram = np.where(wait > 0, joined, dram)
    serial = mma + latency
    serial = serial * (1 + c.hot * serial / (serial + _HOT_US))
    loop = overlapping(c, serial, smem, l2, dram)
    starts = c.wave_us * (waves - 1)
    launch = c.launch_us + c.cluster_us * u.clusters
    stores = (c.store * u.store_us + u.epilogue_us) * busiest * (1 - u.overlapped * (1 - 1 / waves))
    reduction = (
        c.reduction_us * u.reductions
        + c.added * u.added_us
        + c.exchange_us * u.exchanges
        + c.exchange * u.exchange_us * waves
    )
    copies = c.copy_us * u.copies + c.copied * u.copied_us
    total = launch + loop + starts + stores + reduction + copies
    return Parts(
        total, launch, loop, starts, stores, reduction, copies,
        serial, mma, latency, smem, l2, dram, u.ctas / (waves * u.slots),
    )  # fmt: skip


def missed_bytes(problem: Problem, read: Array, moved: float) -> Array:
    """Return what launches read of device memory again, beyond what must move.

    Where groups are uneven CTAs which read the same drift apart, and part of what they read again
    comes from device memory (measured on an H100,
    docs/lab-notes/2026-11-27-clusters-and-groups.md).

    Parameters
    ----------
    problem
        The product's class.
    read
        Bytes that all CTAs read.
    moved
        Bytes that must move.
    """
    if problem.groups is None or problem.groups.stacked:
        return np.zeros_like(read)
    missed: Array = _MISSED * np.maximum(read - moved, 0.0)
    return missed


def overlapping(c: Coefficients, *times: Any) -> Any:
    """Return how long times take that overlap: for numbers, or for arrays."""
    power = min(c.overlap, _STEEPEST)
    return sum(us**power for us in times) ** (1 / power)
