"""Launches: from PTX text, sizes and parameters to memory that has changed."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index

from ...planning.target import ARCHITECTURES, named_target

# Modules that are not named below (F401) enter their instructions when they are imported.
from ..async_copy import bulk_copies, bulk_stores, mbarriers, tma, transfer  # noqa: F401
from ..core import control, conversions, moves, warp  # noqa: F401
from ..core.dependency import all_ended
from ..core.grid import Geometry
from ..core.machine import Machine, Options
from ..core.memory import Memory
from ..core.program import Builder, Program
from ..core.timeline import Event, Traced
from ..ptx.faults import MALFORMED, EmulatorError, PtxError
from ..ptx.parser import parse
from ..ptx.ptx import Kernel
from ..tensor_core import (  # noqa: F401
    matrices,
    mma,
    tcgen05,
    tensor_copies,
    tensor_memory,
    tensor_moves,
    tensor_queue,
    tensor_stores,
    wgmma,
)
from . import cluster_launch

__all__ = ["Report", "compiled", "launch", "pack_parameters"]

TOGETHER = 64  # warps that are run at once, at most (but at least one cluster)
MAX_INSTRUCTIONS = 60_000_000  # warp instructions: minutes
STATIC_SHARED = 48 << 10  # bytes
MOST_SHARED = 227 << 10  # bytes that a CTA may have on any device
MAX_CLUSTER = 16  # CTAs, where the kernel is allowed more than 8
_MOST_CTAS = (2**31 - 1, 65535, 65535)


_TWO_PARTS = ("ld", "st", "atom", "red", "cp", "bar", "barrier", "mbarrier", "fence", "wgmma",
              "tcgen05")  # fmt: skip


@dataclass
class Report:
    """Counts and records of a launch.

    Attributes
    ----------
    instructions
        How many times warps ran each opcode.
    tma_loaded, tma_filled, tma_stored
        Bytes that TMA loaded into each CTA, how many of these were filled because they lie outside
        of the tensor, and bytes that it stored. Types under 8 bits count as in shared memory.
    shared_accesses, shared_passes
        With ``conflicts=True``: loads and stores of shared memory by warps (an 8x8 matrix counts as
        one), and the passes over the banks that they took; see `memory.bank_passes`.
    events
        With ``events=True``: the events of the pipelines, which `timeline` shows.
    trace
        With ``trace=(cta, warp)``: every instruction that this warp ran.
    seconds
        Time of the emulation, which says nothing about a GPU.
    """

    instructions: dict[str, int] = field(default_factory=dict)
    tma_loaded: int = 0
    tma_filled: int = 0
    tma_stored: int = 0
    shared_accesses: int = 0
    shared_passes: int = 0
    events: list[Event] = field(default_factory=list, repr=False)
    trace: list[Traced] = field(default_factory=list, repr=False)
    seconds: float = 0.0

    @property
    def classes(self) -> dict[str, int]:
        """Warp instructions by class: ``"fma"``, ``"ld.shared"``, ``"wgmma.mma_async"``, ..."""
        found: dict[str, int] = {}
        for opcode, times in self.instructions.items():
            parts = opcode.split(".")
            name = ".".join(parts[: 2 if parts[0] in _TWO_PARTS else 1])
            found[name] = found.get(name, 0) + times
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def total(self) -> int:
        """Warp instructions in all."""
        return sum(self.instructions.values())


@lru_cache(maxsize=64)
def compiled(ptx: str, kernel: str | None = None) -> Program:
    """Compile a kernel of a PTX text to closures.

    Parameters
    ----------
    ptx, kernel
        The text of the PTX, and the name of an entry in it; None for the only one.

    Raises
    ------
    PtxError
        The text cannot be read, or has an instruction that is not implemented.
    EmulatorError
        There is no such kernel.
    """
    if not isinstance(ptx, str):
        raise EmulatorError(f"a text of PTX is expected, not a {type(ptx).__name__}")
    module = parse(ptx)
    if kernel is None and len(module.kernels) == 1:
        kernel = next(iter(module.kernels))
    found = module.kernels.get(kernel or "")
    if found is None:
        names = ", ".join(module.kernels)
        raise EmulatorError(f"there is no kernel {kernel!r}; the text has {names}")
    try:
        builder = Builder(module, found)
    except MALFORMED as error:
        text = f"the flow of {found.name} cannot be followed ({type(error).__name__}: {error})"
        raise PtxError(text, found.body[0].line) from error
    return builder.build(transfer.INSTRUCTIONS, control.STOPS)


def pack_parameters(kernel: Kernel, values: Sequence[int | float | bytes]) -> bytes:
    """Lay out parameters as a kernel expects them.

    Parameters
    ----------
    values
        One for each ``.param``: an integer, a float (for 4 or 8 bytes), or the bytes themselves.

    Raises
    ------
    EmulatorError
        The number of values is wrong, or one does not fit.
    """
    if len(values) != len(kernel.parameters):
        raise EmulatorError(f"{kernel.name} takes {len(kernel.parameters)} parameters")
    out = bytearray(kernel.parameter_bytes)
    for parameter, value in zip(kernel.parameters, values, strict=True):
        size = parameter.size
        try:
            if isinstance(value, float):
                raw = struct.pack("<f" if size == 4 else "<d", value)
            elif isinstance(value, int):
                raw = (value % (1 << 8 * size)).to_bytes(size, "little")
            else:
                raw = bytes(memoryview(value))
        except (TypeError, OverflowError, struct.error) as error:
            text = f"{value!r} is no value for {parameter.name} of {size} bytes: {error}"
            raise EmulatorError(text) from None
        if len(raw) != size:
            raise EmulatorError(f"{parameter.name} has {size} bytes, not {len(raw)}")
        out[parameter.offset : parameter.offset + size] = raw
    return bytes(out)


def launch(
    ptx: str,
    kernel: str | None,
    grid: Sequence[int],
    block: Sequence[int],
    cluster: Sequence[int] = (1, 1, 1),
    smem: int = 0,
    params: bytes | Sequence[int | float | bytes] = b"",
    memory: Memory | None = None,
    *,
    seed: int = 0,
    strict: bool = True,
    lockstep: bool = True,
    conflicts: bool = False,
    events: bool = False,
    trace: tuple[tuple[int, int, int], int] | None = None,
    leftovers: bool = False,
    dependent: bool = False,
    shared_limit: int | None = None,
) -> Report:
    """Run a kernel on the CPU.

    Parameters
    ----------
    ptx, kernel
        The text of the PTX, and the name of an entry in it; None for the only one.
    grid, block, cluster
        CTAs, threads of a CTA and CTAs of a cluster: up to three numbers each.
    smem
        Bytes of dynamic shared memory.
    params
        The bytes of the kernel's parameters, or one value for each; see `pack_parameters`.
    memory
        The device memory that the kernel may use.
    seed
        Seed of the random order in which warps run.
    strict
        Whether to report mistakes that hardware does not report, such as shared memory that is read
        before it was written, or before its copy was waited for.
    lockstep
        Whether to run warps at the same instruction together, which is faster. Otherwise they run
        one at a time, in a random order.
    conflicts
        Whether to count the passes over the banks that accesses to shared memory take.
    events
        Whether to keep the events of pipelines.
    trace
        Coordinates of a CTA in the grid and one of its warps, all of whose instructions are kept.
    leftovers
        Whether to accept a ``bar.arrive`` that no one waited for when the CTA ends. Hardware does.
    dependent
        Whether the kernel is launched dependently (programmatic dependent launch): it begins before
        the kernels before it have ended, so that with `strict` each thread must run
        ``griddepcontrol.wait`` before it touches device memory.
    shared_limit
        Bytes of shared memory that a CTA may have; by default what the PTX's target has.

    Returns
    -------
    Report
        Counts of what ran.

    Raises
    ------
    PtxError
        The PTX is malformed, or has an instruction that is not implemented.
    KernelFault
        The kernel did something that is not allowed, or its warps wait for each other for ever.
    EmulatorError
        The sizes or parameters do not fit the kernel, or it runs for too long.
    """
    program = compiled(ptx, kernel)
    geometry = Geometry(_three(grid), _three(block), _three(cluster), _whole(smem))
    _check(program, geometry)
    _check_shared(program, geometry.dynamic_shared, shared_limit)
    if not isinstance(params, (bytes, bytearray)):
        params = pack_parameters(program.kernel, params)
    if len(params) < program.kernel.parameter_bytes:
        raise EmulatorError(
            f"{program.kernel.name} takes {program.kernel.parameter_bytes} bytes of parameters"
        )
    start = time.perf_counter()
    report = Report()
    rng = random.Random(seed)
    size = geometry.cluster_size
    total = geometry.grid[0] * geometry.grid[1] * geometry.grid[2]
    step = max(TOGETHER // (geometry.warps * size), 1) * size
    if cluster_launch.asks(program.kernel):  # not all at once, that there is something to cancel
        step = min(rng.randint(1, total // size) * size, step)
    clusters = cluster_launch.Clusters(total, size)
    waited = False
    while clusters.next < total:
        first, count = clusters.take(step)
        machine = Machine(
            program, geometry, first, count, bytes(params), memory or Memory(),
            rng, Options(
                strict, lockstep, conflicts, events, trace, leftovers,
                MAX_INSTRUCTIONS - report.total, dependent,
            ),
        )  # fmt: skip
        machine.extra["clusters"] = clusters
        machine.run()
        waited |= "waited" in machine.extra
        _count(report, program, machine)
        share = clusters.next / total
        if report.total / share > MAX_INSTRUCTIONS:
            seconds = time.perf_counter() - start
            raise EmulatorError(
                f"{program.kernel.name} takes too long: {report.total} warp instructions for "
                f"{share:.2%} of its CTAs in {seconds:.1f} s, of some {seconds / share:.0f} s; "
                "take a smaller problem"
            )
    all_ended(machine, waited)
    report.seconds = time.perf_counter() - start
    return report


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    if not isinstance(sizes, Sequence) or isinstance(sizes, (str, bytes)) or len(sizes) > 3:
        raise EmulatorError(f"up to three sizes of a launch are expected, not {sizes!r}")
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return _whole(x), _whole(y), _whole(z)


def _whole(size: int) -> int:
    try:
        return index(size)
    except TypeError:
        raise EmulatorError(f"a size of a launch is a whole number, not {size!r}") from None


def _check(program: Program, geometry: Geometry) -> None:
    """Refuse sizes that no GPU takes, or that the kernel was not compiled for."""
    wanted = program.kernel.directives.get(".reqntid")
    if wanted is not None and _three(wanted) != geometry.block:
        raise EmulatorError(
            f"{program.kernel.name} is compiled for blocks of {_three(wanted)} threads, not "
            f"{geometry.block}"
        )
    if geometry.threads > 1024:
        raise EmulatorError(f"a block of {geometry.threads} threads cannot be launched")
    if min(geometry.block) < 1:
        raise EmulatorError(f"a block of {geometry.block} threads cannot be launched")
    for extent, most in zip(geometry.grid, _MOST_CTAS, strict=True):
        if extent > most:
            raise EmulatorError(f"the grid {geometry.grid} is larger than {_MOST_CTAS}")
    if geometry.cluster_size > MAX_CLUSTER:
        raise EmulatorError(f"a cluster has {MAX_CLUSTER} CTAs at most, not {geometry.cluster}")
    for extent, part in zip(geometry.grid, geometry.cluster, strict=True):
        if part < 1 or extent < 1 or extent % part:
            raise EmulatorError(f"the grid {geometry.grid} is not made of {geometry.cluster}")


def _check_shared(program: Program, dynamic: int, limit: int | None) -> None:
    """Refuse more shared memory than the device has, as the driver does."""
    name, static, target = program.kernel.name, program.static_bytes, program.module.target
    if limit is None:
        limit = named_target(target).smem_per_block if target in ARCHITECTURES else MOST_SHARED
    if static > STATIC_SHARED:
        raise EmulatorError(
            f"{name} has {static} bytes of static shared memory, and ptxas takes {STATIC_SHARED} "
            "at most; make it dynamic"
        )
    if dynamic < 0 or static + dynamic > limit:
        raise EmulatorError(
            f"{name} is launched with {dynamic} bytes of dynamic shared memory and has {static} of "
            f"its own, and a CTA may have {limit} on this device; launch it with less"
        )


def _count(report: Report, program: Program, machine: Machine) -> None:
    body = program.kernel.body
    for step, times in zip(program.steps, machine.executed, strict=True):
        if times:
            for instruction in body[step.segment.first : step.segment.last]:
                opcode = instruction.opcode
                report.instructions[opcode] = report.instructions.get(opcode, 0) + times
    report.tma_loaded += machine.counts.tma_loaded
    report.tma_filled += machine.counts.tma_filled
    report.tma_stored += machine.counts.tma_stored
    report.shared_accesses += machine.counts.accesses
    report.shared_passes += machine.counts.passes
    report.events += machine.log
    for number, lanes in machine.traced:
        segment = program.steps[number].segment
        for instruction in body[segment.first : segment.last]:
            text = program.module.line(instruction.line).strip()
            report.trace.append(Traced(instruction.line, text, lanes))
