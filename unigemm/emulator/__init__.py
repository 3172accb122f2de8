"""A GPU on the CPU: compiled CuTe kernels, host code included, executed from their PTX.

`device` makes NumPy arrays lie on an emulated GPU, so that `unigemm.matmul` plans, compiles, caches
and launches as it would there. `launch` runs any PTX text of the supported subset.

It says whether a kernel computes the right thing, and finds mistakes on which hardware is silent.
It says nothing about speed: there is no clock, no cache and no memory system.
"""

from __future__ import annotations

from .core.memory import Memory
from .core.timeline import Event, as_svg, as_text
from .launch.devices import EmulatedDevice, device
from .launch.launching import Report, launch
from .ptx.faults import EmulatorError, KernelFault, PtxError, Site

__all__ = [
    "EmulatedDevice",
    "EmulatorError",
    "Event",
    "KernelFault",
    "Memory",
    "PtxError",
    "Report",
    "Site",
    "as_svg",
    "as_text",
    "device",
    "launch",
]
