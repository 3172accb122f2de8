"""The devices that kernels are planned for, read from the driver or named."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache, partial

from ..errors import UnsupportedProblem
from ..problem.dtypes import DType
from ..support.arguments import shown
from ..support.forks import cached_property
from .calibration import Calibration
from .cuda_driver import attribute, device_name
from .device_table import ARCHITECTURES as CARD_ARCHITECTURES
from .device_table import CARDS, TENSOR_RATES, Card

__all__ = [
    "ARCHITECTURES",
    "CPU",
    "DEVICES",
    "SHORT_NAMES",
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
    """A device that kernels are planned for: its architecture, sizes, clocks and rates.

    Attributes
    ----------
    arch
        The compiler's name of the architecture, such as ``"sm_90a"``; ``"cpu"`` for the host.
    name
        Name of the device.
    sm_count
        Number of streaming multiprocessors.
    smem_per_sm, smem_per_block
        Shared memory of one SM, and the most that one CTA may request (opt-in), in bytes.
    l2_bytes
        Size of the level-2 cache in bytes.
    clock_mhz
        Boost clock of the SMs in MHz.
    dram_gbs
        Bandwidth of device memory in GB/s.
    fp32_lanes, fp64_lanes
        Fused multiply-adds that one SM starts per clock, outside the tensor cores.
    tensor_flops
        Dense 16-bit multiply-adds with float32 accumulators that the tensor cores of one SM do per
        clock.
    calibration
        What `unigemm.calibrate` measured on this device; None for a named one. It is no part of
        what makes targets equal, nor of their JSON.
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
    calibration: Calibration | None = field(default=None, compare=False, repr=False)

    @property
    def is_gpu(self) -> bool:
        """Whether this is a CUDA device."""
        return self.arch != "cpu"

    @cached_property  # read many times for each plan
    def capability(self) -> tuple[int, int]:
        """Compute capability, (9, 0) for ``"sm_90a"``."""
        digits = self.arch[3:].rstrip("af")
        return int(digits[:-1]), int(digits[-1])

    @property
    def is_measured(self) -> bool:
        """Whether launches were measured on such a card; else all estimates for it are assumed."""
        return _plain(self.name) in _MEASURED

    @property
    def letter(self) -> str:
        """The letter after the number of the architecture: "a", or ""."""
        return self.arch.lstrip("sm_0123456789")

    def tensor_rate(self, dtype: DType) -> float:
        """Multiply-adds of a type that the tensor cores of one SM do per clock, at most.

        Those of a type that has no rate in `TENSOR_RATES` are counted as 16 bits.
        """
        return self.tensor_flops * TENSOR_RATES.get(dtype, 1.0)

    def __hash__(self) -> int:
        return hash((self.arch, self.name))  # nearly unique, and fast: each plan looks it up

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
        smem_per_block=(shared - 1) * _KIB,  # CUDA reserves a KiB of each CTA
        l2_bytes=card.l2_mib << 20,
        clock_mhz=card.clock_mhz,
        dram_gbs=card.dram_gbs,
        fp32_lanes=fp32,
        fp64_lanes=fp64,
        tensor_flops=card.tensor_flops,
    )


def _plain(name: str) -> str:
    """Return a device's name in lower case, without its maker, spaces and hyphens."""
    return re.sub(r"nvidia|geforce|[\s_()-]+", "", name.lower())


_CARDS = tuple(map(_of_card, CARDS))
_NAMED = tuple(next(t for t in _CARDS if t.arch == arch) for arch in CARD_ARCHITECTURES)
_BY_NUMBER = {t.capability: t for t in _NAMED}
_BY_NAME = {
    _plain(name): target
    for card, target in zip(CARDS, _CARDS, strict=True)
    for name in (card.name, *card.other_names)
}
#: Architectures that there are kernels for.
ARCHITECTURES: tuple[str, ...] = tuple(CARD_ARCHITECTURES)
_MEASURED = {_plain(x) for card in CARDS if card.measured for x in (card.name, *card.other_names)}
#: Full names of the devices that can be named.
DEVICES: tuple[str, ...] = tuple(card.name for card in CARDS)
#: The shortest name of each, in the same order.
SHORT_NAMES: tuple[str, ...] = tuple(
    min((_plain(name) for name in (card.name, *card.other_names)), key=len) for card in CARDS
)

#: What can be named.
_ALL = f"name one that `unigemm targets` lists (none is older than {ARCHITECTURES[0]}), or cpu"
_ARCHITECTURE = re.compile(r"(?:sm_?)?([0-9]{1,2})([0-9])([a-z]?)", re.IGNORECASE | re.ASCII)
_NUMBERED = re.compile(r"(?:sm_)?([0-9]{1,3})([0-9])[af]?")
#: The largest values of a target: far above those of real devices, far below what overflows.
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
    """Return the target of a named device or architecture.

    Parameters
    ----------
    name : str
        An architecture: ``"sm_90a"``, ``"sm_90"``, ``"90"`` or ``"cpu"``, for which one device
        stands. Or a device, such as ``"h100"``, ``"NVIDIA H100 PCIe"`` or ``"rtx 4090"``.

    Returns
    -------
    Target
        The target, with the sizes and rates of the device.

    Raises
    ------
    UnsupportedProblem
        The name is not known.

    Examples
    --------
    >>> import unigemm
    >>> unigemm.named_target("h100").sm_count
    132
    """
    if not isinstance(name, str):
        raise UnsupportedProblem(f"a target is named by a string, not by {shown(name)}; {_ALL}")
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
    if match is not None and (int(match[1]), int(match[2])) < min(_BY_NUMBER):
        raise UnsupportedProblem(f"target {name!r} is too old: {_ALL}")
    from difflib import get_close_matches  # an import of a millisecond

    names = {_plain(x): x for x in ("cpu", *ARCHITECTURES, *SHORT_NAMES)}
    nearest = ", ".join(names[x] for x in get_close_matches(_plain(text[:60]), names))
    meant = f", the nearest are {nearest}" if nearest else ""
    raise UnsupportedProblem(f"target {name[:60]!r} is not known{meant}; {_ALL}")


def check_target(target: Target) -> None:
    """Refuse a target that describes no possible device.

    Raises
    ------
    UnsupportedProblem
        The architecture has no kernels, or a size or rate is out of range.
    """
    reason = _flaw(target)
    if reason is not None:
        raise UnsupportedProblem(
            f"{reason}; take a target from unigemm.named_target, and change its values to those "
            "of your device"
        )


def _flaw(target: Target) -> str | None:
    if not isinstance(target.arch, str) or not isinstance(target.name, str):
        return "a target's architecture and name are strings"
    if target.arch == CPU.arch:
        return None if target == CPU else "the target cpu has sizes or rates and needs none"
    number = _NUMBERED.fullmatch(target.arch)
    try:
        known = number and _arch_of(int(number[1]), int(number[2]))
    except UnsupportedProblem:
        known = None
    if target.arch != known:
        return f"the target's architecture {target.arch[:40]!r} is not known"
    for name, most in _MOST.items():
        value = getattr(target, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            shown = value if isinstance(value, int) and abs(value) < 1 << 64 else type(value)
            return f"the target's {name} is {shown}, and no device has that"
    if target.smem_per_block > target.smem_per_sm:
        return "the target's CTAs have more shared memory than its SMs"
    return None


def _arch_of(major: int, minor: int) -> str:
    """Return the compiler's name of the architecture with a compute capability.

    Raises
    ------
    UnsupportedProblem
        There are no kernels for the architecture.
    """
    base = _BY_NUMBER.get((major, minor)) or _nearest(major, minor)
    return base.arch if base.capability == (major, minor) else f"sm_{major}{minor}"


def is_usual_memory(target: Target) -> bool:
    """Whether a target has as much shared memory per SM as its architecture usually has."""
    known = _BY_NUMBER.get(target.capability)
    return known is not None and known.smem_per_sm == target.smem_per_sm


def name_of(target: Target) -> str:
    """Return the name that `named_target` takes for a target.

    It is the name of the device if that is known with exactly these values, else the architecture.
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
    except Exception:  # each version of cuda-bindings has another error for a missing driver
        return 0
    return 0 if status else int(count)


#: Targets of emulated devices, by index (see `unigemm.emulator`).
VIRTUAL: dict[int, Target] = {}


def device_target(index: int) -> Target:
    """Return the target of a CUDA device, with its sizes and clocks read from the driver.

    Parameters
    ----------
    index
        CUDA device number.

    Raises
    ------
    UnsupportedProblem
        There are no kernels for the device's architecture.
    BackendUnavailable
        cuda-bindings is not installed.
    """
    return VIRTUAL.get(index) or _read_target(index)


@cache
def _read_target(index: int) -> Target:
    ask = partial(attribute, index)
    major, minor = ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")
    base = _BY_NUMBER.get((major, minor)) or _nearest(major, minor)
    name = device_name(index)
    known = _BY_NAME.get(_plain(name))
    if known is not None and known.capability == (major, minor):
        base = known
    else:
        # Two transfers a clock; 0 where the driver does not tell.
        width = ask("GLOBAL_MEMORY_BUS_WIDTH") // 8
        base = replace(
            base, dram_gbs=2 * ask("MEMORY_CLOCK_RATE") * width // 1_000_000 or base.dram_gbs
        )
    return replace(
        base,
        arch=_arch_of(major, minor),
        name=name,
        sm_count=ask("MULTIPROCESSOR_COUNT"),
        smem_per_sm=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        smem_per_block=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        l2_bytes=ask("L2_CACHE_SIZE"),
        clock_mhz=ask("CLOCK_RATE") // 1000 or base.clock_mhz,
    )


def _nearest(major: int, minor: int) -> Target:
    """Return the newest known target of the same generation, for what no driver tells."""
    older = [t for t in _NAMED if t.capability[0] == major and t.capability <= (major, minor)]
    if not older:
        raise UnsupportedProblem(
            f"compute capability {major}.{minor} is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    return older[-1]
