"""unigemm in PyTorch: products that autograd, `torch.compile`, vmap and export see.

The operators are ``torch.ops.unigemm.*``. See docs/pytorch.md.
"""

from __future__ import annotations

import sys

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    from ..support.extras import install_command

    said = f"unigemm.torch needs PyTorch, which is not installed; {install_command('torch')}"
    raise ModuleNotFoundError(said, name="torch") from None

from . import (  # rules of the operators
    batching,  # noqa: F401
    gradients,  # noqa: F401
    quantized_operators,  # noqa: F401
    sharding,
)
from .functions import addmm, bmm, linear, matmul
from .grouped import grouped_mm
from .modules import Linear, replace_linear
from .overrides import use
from .quantized_layers import QuantizedLinear, quantize_linear
from .ranks import check_ranks
from .scaled import scaled_grouped_mm, scaled_mm

if "torch.distributed.tensor" in sys.modules:  # else with the first DTensor
    sharding.register()

__all__ = [
    "Linear",
    "QuantizedLinear",
    "addmm",
    "bmm",
    "check_ranks",
    "grouped_mm",
    "linear",
    "matmul",
    "quantize_linear",
    "replace_linear",
    "scaled_grouped_mm",
    "scaled_mm",
    "use",
]
