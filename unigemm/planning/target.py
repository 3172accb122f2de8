"""The machines that kernels are planned for: read from the device, or named."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from ..errors import BackendUnavailable, UnsupportedProblem
from ..extras import install_command
from ..forks import cached_property
from .device_table import ARCHITECTURES as CARD_ARCHITECTURES
from .device_table import CARDS, Card

__all__ = [
    "ARCHITECTURES",
    "CPU",
    "DEVICES",
    "Target",
    "check_target",
    "device_count",
    "device_target",
    "is_usual_memory",
    "name_of",
    "named_target",
]


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

    @property
    def letter(self) -> str:
        """What follows the number of the architecture: "a", or nothing."""
        return self.arch.lstrip("sm_0123456789")

    def __hash__(self) -> int:
        return hash((self.arch, self.name))  # enough to tell most apart, and all plans look it up

    def __str__(self) -> str:
        return f"{self.arch} ({self.name})"


CPU = Target("cpu", "host")

_KIB = 1024


def _of_card(card: Card) -> Target:
    shared, fp32, fp64 = CARD_ARCHITECTURES[card.arch]
    return Target(
        card.arch,
        card.name,
        card.sm_count,
        smem_per_sm=shared * _KIB,
        smem_per_block=(shared - 1) * _KIB,  # a KiB of each CTA is the system's
        l2_bytes=card.l2_mib << 20,
        clock_mhz=card.clock_mhz,
        dram_gbs=card.dram_gbs,
        fp32_lanes=fp32,
        fp64_lanes=fp64,
        tensor_flops=card.tensor_flops,
    )


def _plain(name: str) -> str:
    """Return a device's name without the maker's, spaces, hyphens and capitals."""
    return re.sub(r"nvidia|geforce|[\s_()-]+", "", name.lower())


_CARDS = tuple(map(_of_card, CARDS))
_NAMED = tuple(next(t for t in _CARDS if t.arch == arch) for arch in CARD_ARCHITECTURES)
_BY_NUMBER = {t.capability: t for t in _NAMED}
_BY_NAME = {
    _plain(name): target
    for card, target in zip(CARDS, _CARDS, strict=True)
    for name in (card.name, *card.other_names)
}
#: Architectures that products are planned for.
ARCHITECTURES: tuple[str, ...] = tuple(CARD_ARCHITECTURES)
#: Devices that products are planned for, by their full names.
DEVICES: tuple[str, ...] = tuple(card.name for card in CARDS)

_ARCHITECTURE = re.compile(r"(?:sm_?)?([0-9]{1,2})([0-9])([a-z]?)", re.IGNORECASE | re.ASCII)
_NUMBERED = re.compile(r"(?:sm_)?([0-9]{1,3})([0-9])[af]?")
#: The most that a figure of a target may be: far above all devices, far below what overflows.
_MOST = {
    "sm_count": 1 << 12,
    "smem_per_sm": 1 << 18,
    "smem_per_block": 1 << 18,
    "l2_bytes": 1 << 40,
    "clock_mhz": 1 << 17,
    "dram_gbs": 1 << 24,
    "fp32_lanes": 1 << 12,
    "fp64_lanes": 1 << 12,
    "tensor_flops": 1 << 20,
}


def named_target(name: str) -> Target:
    """Return the target of an architecture, by its representative device, or of a device.

    Parameters
    ----------
    name
        ``"sm_90a"``, ``"sm_90"``, ``"90"`` or ``"cpu"``; or a device, such as ``"h100"``,
        ``"NVIDIA H100 PCIe"`` or ``"rtx 4090"``.

    Raises
    ------
    UnsupportedProblem
        It is not known.
    """
    known = f"cpu, {', '.join(ARCHITECTURES)}, or a device such as h100, rtx4090 or b200"
    if not isinstance(name, str):
        raise UnsupportedProblem(f"a target is named by a string, not by {name!r}; name {known}")
    text = name.strip()
    if text == "cpu":
        return CPU
    match = _ARCHITECTURE.fullmatch(text)
    if match is None:
        found = _BY_NAME.get(_plain(text))
    else:
        found = _BY_NUMBER.get((int(match[1]), int(match[2])))
        if found is not None and (letter := match[3].lower()) not in ("", found.letter):
            raise UnsupportedProblem(
                f"target {name!r} is not known: kernels here are compiled for {found.arch} itself"
                f"{', not for its family' if letter == 'f' else ''}; name {found.arch}"
            )
    if found is not None:
        return found
    raise UnsupportedProblem(f"target {name[:60]!r} is not known; name one of {known}")


def check_target(target: Target) -> None:
    """Refuse a target that no device has: one that did not come from here.

    Raises
    ------
    UnsupportedProblem
        An architecture without kernels, or figures that are none.
    """
    reason = _flaw(target)
    if reason is not None:
        raise UnsupportedProblem(
            f"{reason}; take a target from unigemm.named_target, and change its figures to those "
            "of your device"
        )


def _flaw(target: Target) -> str | None:
    if not isinstance(target.arch, str) or not isinstance(target.name, str):
        return "a target's architecture and name are strings"
    if target.arch == CPU.arch:
        return None if target == CPU else "the target cpu has figures, and plans for it need none"
    number = _NUMBERED.fullmatch(target.arch)
    try:
        known = number and _arch_of(int(number[1]), int(number[2]))
    except UnsupportedProblem:
        known = None
    if target.arch != known:
        return f"the target's architecture {target.arch[:40]!r} is not known"
    for name, most in _MOST.items():
        figure = getattr(target, name)
        if not isinstance(figure, int) or isinstance(figure, bool) or not 1 <= figure <= most:
            shown = figure if isinstance(figure, int) and abs(figure) < 1 << 64 else type(figure)
            return f"the target's {name} is {shown}, and no device has that"
    if target.smem_per_block > target.smem_per_sm:
        return "the target's CTAs have more shared memory than its SMs"
    return None


def _arch_of(major: int, minor: int) -> str:
    """Return what the compiler is told for a device's compute capability, as `device_target` does.

    Raises
    ------
    UnsupportedProblem
        It has no kernels here.
    """
    base = _BY_NUMBER.get((major, minor)) or _nearest(major, minor)
    return base.arch if base.capability == (major, minor) else f"sm_{major}{minor}"


def is_usual_memory(target: Target) -> bool:
    """Whether an SM of a target has the shared memory that its architecture is known to have."""
    known = _BY_NUMBER.get(target.capability)
    return known is not None and known.smem_per_sm == target.smem_per_sm


def name_of(target: Target) -> str:
    """Return what `named_target` takes for a target: its architecture, or the name of the device.

    Of a device whose figures are its own, as a driver told them, it is the architecture.
    """
    if target.is_gpu and target not in _NAMED and _BY_NAME.get(_plain(target.name)) == target:
        return target.name
    return target.arch


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
        arch=_arch_of(major, minor),
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
