"""One matmul for NumPy, CuPy, PyTorch, JAX and other arrays: the fastest kernel for each GPU.

Names are imported on first use, so that ``import unigemm`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import hooks
from .support.dynamo import untraced as _untraced
from .support.dynamo import untraced_api as _untraced_api
from .support.forks import imported as _imported

if TYPE_CHECKING:
    from .api import CompiledKernel, compile, matmul, plan
    from .arrays.array_spec import ArraySpec
    from .contractions.einsum import einsum, inner, matvec, tensordot, vecdot, vecmat
    from .contractions.planned import EinsumPlan, plan_einsum
    from .errors import (
        AxisError,
        BackendUnavailable,
        BackendWarning,
        CacheError,
        CacheWarning,
        CompilationError,
        DeviceMismatch,
        LibraryMismatch,
        OverlapError,
        SettingWarning,
        ShapeMismatch,
        TuningWarning,
        UnigemmError,
        UnsupportedDtype,
        UnsupportedProblem,
    )
    from .grouped import grouped_matmul
    from .info import BackendInfo, Capabilities, DeviceInfo, backend_info, capabilities
    from .planning.calibration import Calibration
    from .planning.plan import Plan
    from .planning.target import Target, named_target
    from .quantization import quantize
    from .runtime.prepared import Prepared, prepare
    from .runtime.warmup import record, warmup
    from .support.version import __version__
    from .tuning.autotune import autotune
    from .tuning.calibrate import calibrate
    from .tuning.online import autotuning

_WHERE = {
    "api": ("CompiledKernel", "compile", "matmul", "plan"),
    "contractions.einsum": ("einsum", "inner", "matvec", "tensordot", "vecdot", "vecmat"),
    "contractions.planned": ("EinsumPlan", "plan_einsum"),
    "grouped": ("grouped_matmul",),
    "quantization": ("quantize",),
    "info": ("BackendInfo", "Capabilities", "DeviceInfo", "backend_info", "capabilities"),
    "errors": (
        "AxisError",
        "BackendUnavailable",
        "BackendWarning",
        "CacheError",
        "CacheWarning",
        "CompilationError",
        "DeviceMismatch",
        "LibraryMismatch",
        "OverlapError",
        "SettingWarning",
        "ShapeMismatch",
        "TuningWarning",
        "UnigemmError",
        "UnsupportedDtype",
        "UnsupportedProblem",
    ),
    "arrays.array_spec": ("ArraySpec",),
    "support.version": ("__version__",),
    "tuning.autotune": ("autotune",),
    "tuning.calibrate": ("calibrate",),
    "planning.calibration": ("Calibration",),
    "tuning.online": ("autotuning",),
    "planning.plan": ("Plan",),
    "planning.target": ("Target", "named_target"),
    "runtime.prepared": ("Prepared", "prepare"),
    "runtime.warmup": ("record", "warmup"),
}
# What rooms below request by name.
hooks.BACKENDS.update(
    numpy="unigemm.backends.numpy:BACKEND",
    cute_wgmma="unigemm.backends.cute_wgmma:BACKEND",
    cute_tcgen05="unigemm.backends.cute_tcgen05:BACKEND",
    cutile="unigemm.backends.cutile:BACKEND",
    cute_simt="unigemm.backends.cute_simt:BACKEND",
)
hooks.ENTRY_POINTS = "unigemm.backends"
hooks.MEASURER = "unigemm.tuning.online:tune"
hooks.QUANTIZER = "unigemm.backends.cute_quantize:QUANTIZER"

_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
#: Modules for users; shown once they are imported.
_MODULES = ("emulator", "epilogue", "jax", "torch")

__all__ = [
    "ArraySpec",
    "AxisError",
    "BackendInfo",
    "BackendUnavailable",
    "BackendWarning",
    "CacheError",
    "CacheWarning",
    "Calibration",
    "Capabilities",
    "CompilationError",
    "CompiledKernel",
    "DeviceInfo",
    "DeviceMismatch",
    "EinsumPlan",
    "LibraryMismatch",
    "OverlapError",
    "Plan",
    "Prepared",
    "SettingWarning",
    "ShapeMismatch",
    "Target",
    "TuningWarning",
    "UnigemmError",
    "UnsupportedDtype",
    "UnsupportedProblem",
    "__version__",
    "autotune",
    "autotuning",
    "backend_info",
    "calibrate",
    "capabilities",
    "compile",
    "einsum",
    "grouped_matmul",
    "inner",
    "matmul",
    "matvec",
    "named_target",
    "plan",
    "plan_einsum",
    "prepare",
    "quantize",
    "record",
    "tensordot",
    "vecdot",
    "vecmat",
    "warmup",
]


@_untraced
def __getattr__(name: str) -> Any:
    if name == "epilogue":  # a module
        return _imported(f"{__name__}.{name}")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_imported(f"{__name__}.{module}"), name)
    _untraced_api(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return what users name, and none of what this module itself imports."""
    own = (name for name in globals() if name.startswith("__") or name in _MODULES)
    return sorted({*__all__, "epilogue", *own})
