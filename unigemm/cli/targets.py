"""`unigemm targets`: the devices that kernels can be planned and compiled for."""

from __future__ import annotations

from typing import Any

from ..planning.target import ARCHITECTURES, SHORT_NAMES, Target, named_target
from . import render as show
from .options import Json

__all__ = ["named_devices", "targets_command"]


def named_devices() -> dict[str, Target]:
    """Return the devices by their short names, those of an architecture side by side."""
    found = {name: named_target(name) for name in SHORT_NAMES}
    order = {arch: number for number, arch in enumerate(ARCHITECTURES)}
    return dict(sorted(found.items(), key=lambda item: order[item[1].arch]))


def targets_command(as_json: Json = False) -> None:
    """List the devices that plans and kernels can be made for, none of which has to be here."""
    devices = named_devices()
    if as_json:
        show.print_json([_as_json(name, each) for name, each in devices.items()])
        return
    rows = [
        (
            name,
            each.arch,
            each.name,
            str(each.sm_count),
            show.size(each.l2_bytes),
            str(each.clock_mhz),
            str(each.dram_gbs),
            _worth(each),
        )
        for name, each in devices.items()
    ]
    headings = ("name", "architecture", "device", "SMs", "L2", "MHz", "GB/s", "estimates")
    show.print_table(show.table("", headings, rows))
    show.say(
        "--target takes these names, in full or short, and architectures, for which the first "
        "device of each stands; cpu is the host"
    )


def _as_json(name: str, target: Target) -> dict[str, Any]:
    return {
        "name": name,
        "arch": target.arch,
        "device": target.name,
        "sm_count": target.sm_count,
        "l2_bytes": target.l2_bytes,
        "clock_mhz": target.clock_mhz,
        "dram_gbs": target.dram_gbs,
        "measured": target.is_measured,
    }


def _worth(target: Target) -> str:
    return "predicted" if target.is_measured else "assumed"
