"""The machines that kernels are planned for: read from the device, or named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from .errors import BackendUnavailable, UnsupportedProblem
from .extras import install_command
from .forks import cached_property

__all__ = ["ARCHITECTURES", "CPU", "Target", "device_count", "device_target", "named_target"]


@dataclass(frozen=True)
class Target:
    """An architecture and the figures that planning needs.

    Attributes
    ----------
    arch
        What the compiler is told, such as ``"sm_90a"``; ``"cpu"`` for the host.
    name
        The device the figures belong to.
    sm_count
        Streaming multiprocessors.
    smem_per_sm, smem_per_block
        Bytes of shared memory of one SM, and the most that one CTA may ask for (opt-in).
    l2_bytes
        Bytes of level-2 cache.
    clock_mhz
        Boost clock of the SMs.
    dram_gbs
        Device-memory bandwidth, GB/s.
    fp32_lanes, fp64_lanes
        Fused multiply-adds that one SM starts per clock outside the tensor cores.
    tensor_flops
        Dense 16-bit multiply-adds (float32 sums) of one SM per clock on the tensor cores.
    """

    arch: str
    name: str
    sm_count: int = 0
    smem_per_sm: int = 0
    smem_per_block: int = 0
    l2_bytes: int = 0
    clock_mhz: int = 0
    dram_gbs: int = 0
    fp32_lanes: int = 0
    fp64_lanes: int = 0
    tensor_flops: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether this is a CUDA device."""
        return self.arch != "cpu"

    @cached_property  # planning asks for it all the time
    def capability(self) -> tuple[int, int]:
        """Compute capability, (9, 0) for ``"sm_90a"``."""
        digits = self.arch[3:].rstrip("af")
        return int(digits[:-1]), int(digits[-1])

    def __hash__(self) -> int:
        return hash((self.arch, self.name))  # enough to tell most apart, and all plans look it up

    def __str__(self) -> str:
        return f"{self.arch} ({self.name})"


CPU = Target("cpu", "host")

# Shared memory, registers and lanes per SM: CUDA C++ Programming Guide, tables of technical
# specifications and of arithmetic throughput per compute capability. SM counts, clocks, L2 and
# bandwidth: the data sheet of the device named. `device_target` reads what it can from the driver.
# Jetson T5000: SMs and L2 as the driver tells them (NVIDIA's developer forum, 356355); clock and
# memory from the module's data sheet, whose 2070 TFLOP/s of sparse FP4 make 4096 16-bit
# multiply-adds of an SM per clock; float64 lanes are assumed to be sm_103's.
_KIB = 1024
_NAMED = (
    Target(
        "sm_80", "NVIDIA A100 80GB", 108, 164 * _KIB, 163 * _KIB, 40 << 20, 1410, 2039, 64, 32, 1024
    ),
    Target(
        "sm_86",
        "NVIDIA GeForce RTX 3090",
        82,
        100 * _KIB,
        99 * _KIB,
        6 << 20,
        1695,
        936,
        128,
        2,
        256,
    ),
    Target("sm_89", "NVIDIA L40S", 142, 100 * _KIB, 99 * _KIB, 96 << 20, 2520, 864, 128, 2, 512),
    Target(
        "sm_90a", "NVIDIA H200", 132, 228 * _KIB, 227 * _KIB, 60 << 20, 1980, 4800, 128, 64, 2048
    ),
    Target(
        "sm_100a", "NVIDIA B200", 148, 228 * _KIB, 227 * _KIB, 126 << 20, 1965, 8000, 128, 64, 4096
    ),
    Target(
        "sm_103a", "NVIDIA B300", 148, 228 * _KIB, 227 * _KIB, 126 << 20, 1920, 8000, 128, 2, 4096
    ),
    Target(
        "sm_110a",
        "NVIDIA Jetson T5000",
        20,
        228 * _KIB,
        227 * _KIB,
        32 << 20,
        1575,
        273,
        128,
        2,
        4096,
    ),
    Target(
        "sm_120a",
        "NVIDIA GeForce RTX 5090",
        170,
        100 * _KIB,
        99 * _KIB,
        96 << 20,
        2407,
        1792,
        128,
        2,
        512,
    ),
)
ARCHITECTURES: tuple[str, ...] = tuple(t.arch for t in _NAMED)
_BY_NUMBER = {t.capability: t for t in _NAMED}


def named_target(name: str) -> Target:
    """Return the target of an architecture, by its representative device.

    Parameters
    ----------
    name
        ``"sm_90a"``, ``"sm_90"``, ``"90"`` or ``"cpu"``.

    Raises
    ------
    UnsupportedProblem
        The architecture is not known.
    """
    if name == "cpu":
        return CPU
    digits = name[3:] if name.startswith("sm_") else name
    digits = digits.rstrip("af")
    if digits.isdigit() and len(digits) >= 2:
        found = _BY_NUMBER.get((int(digits[:-1]), int(digits[-1])))
        if found is not None:
            return found
    raise UnsupportedProblem(
        f"target {name!r} is not known; name one of cpu, {', '.join(ARCHITECTURES)}"
    )


def device_count() -> int:
    """Return how many CUDA devices this process sees; 0 where there is no driver."""
    try:
        from cuda.bindings import driver

        if driver.cuInit(0)[0]:
            return 0
        status, count = driver.cuDeviceGetCount()
    except Exception:  # the driver's library is not there: each version has its own kind of error
        return 0
    return 0 if status else int(count)


#: Targets of devices that are not there, by index (see `unigemm.emulator`).
VIRTUAL: dict[int, Target] = {}


def device_target(index: int) -> Target:
    """Return the target of CUDA device `index`, its figures read from the driver.

    Raises
    ------
    UnsupportedProblem
        The device's architecture has no kernels here.
    """
    return VIRTUAL.get(index) or _read_target(index)


@cache
def _read_target(index: int) -> Target:
    try:
        from cuda.core import Device
    except ImportError as error:
        raise BackendUnavailable(
            f"a GPU's figures are read through cuda-core, which does not import ({error}); "
            f"{install_command('cuda')}"
        ) from error

    device = Device(index)
    major, minor = device.compute_capability
    base = _BY_NUMBER.get((major, minor)) or _nearest(major, minor)
    properties = device.properties
    return replace(
        base,
        arch=base.arch if base.capability == (major, minor) else f"sm_{major}{minor}",
        name=str(device.name),
        sm_count=properties.multiprocessor_count,
        smem_per_sm=properties.max_shared_memory_per_multiprocessor,
        smem_per_block=properties.max_shared_memory_per_block_optin,
        l2_bytes=properties.l2_cache_size,
        clock_mhz=properties.clock_rate // 1000 or base.clock_mhz,
    )


def _nearest(major: int, minor: int) -> Target:
    """Return the newest known target of the same generation (figures that no driver tells)."""
    older = [t for t in _NAMED if t.capability[0] == major and t.capability <= (major, minor)]
    if not older:
        raise UnsupportedProblem(
            f"compute capability {major}.{minor} is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    return older[-1]
