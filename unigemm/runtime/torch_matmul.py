"""Host products of PyTorch tensors that PyTorch's own matmul computes: it is much the faster there.

NumPy has no fast loops for integers and none for bfloat16 and int8, which the numpy backend
multiplies in float32. PyTorch has such loops, and instructions where the processor has them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from ..arrays.numpy_arrays import memory_viewer
from ..arrays.operands import HostArray
from .numpy_matmul import HostProduct

if TYPE_CHECKING:
    from ..planning.backend import Launcher

__all__ = ["INSIDE", "TorchProduct", "by_torch", "may_be_torchs"]

#: The least multiply-adds of which its call takes less time.
_LEAST = {"bfloat16": 1 << 17, "int8": 1 << 17} | dict.fromkeys(
    ("uint8", "int16", "int32", "int64"), 1 << 14
)


class _Inside(threading.local):
    launcher = False


#: Whether a thread is in such a product, which `unigemm.torch.use` leaves to PyTorch.
INSIDE = _Inside()


@dataclass(frozen=True)
class TorchProduct(HostProduct):
    """A product that PyTorch computes."""

    by = "torch.matmul"

    def launcher(self) -> Launcher:
        """Return a function that computes the product, from the addresses of a, b and d."""
        import numpy as np
        import torch

        def tensors(x: HostArray) -> Any:
            own = x.dtype.name == "bfloat16"  # which NumPy has from ml_dtypes
            view = memory_viewer(x.shape, x.strides, np.dtype(np.int16) if own else x.dtype)
            if not own:
                return lambda at: torch.from_numpy(view(at))
            return lambda at: torch.from_numpy(view(at)).view(torch.bfloat16)

        tensor_a, tensor_b, tensor_d = (tensors(x) for x in (self.a, self.b, self.d))
        widens = self.a.dtype.name == "int8"
        multiply = torch._int_mm if widens else torch.matmul  # type: ignore[attr-defined]
        alone = torch._C.DisableTorchFunction

        def launch(a: int, b: int, d: int, workspace: int, stream: int) -> None:
            INSIDE.launcher = True
            try:
                with alone(), torch.no_grad():
                    tensor_d(d).copy_(multiply(tensor_a(a), tensor_b(b)))  # d may lie in a or b
            finally:
                INSIDE.launcher = False

        return launch


def may_be_torchs(a: HostArray, b: HostArray) -> bool:
    """Whether PyTorch may be the faster for such operands, whatever their sizes."""
    return a.dtype == b.dtype and a.dtype.name in _LEAST


def by_torch(product: HostProduct) -> HostProduct:
    """Return a product of PyTorch tensors as one that PyTorch computes, where that is faster."""
    a, b, d = product.a, product.b, product.d
    kind = a.dtype.name
    if not may_be_torchs(a, b) or 0 in (*a.shape, *b.shape):
        return product
    if d.dtype.name != ("int32" if kind == "int8" else kind) or not _has_instructions(kind):
        return product
    if kind == "int8" and (len(a.shape), len(b.shape)) != (2, 2):
        return product
    work = prod(product.shape) * a.shape[-1]
    if work < _LEAST[kind]:
        return product
    loop = a.dtype, b.dtype, d.dtype
    return TorchProduct(a, b, product.out, product.shape, product.dtype, loop)


@lru_cache(maxsize=8)
def _has_instructions(kind: str) -> bool:
    """Whether PyTorch has a fast and exact way for a type on this processor."""
    import torch

    # Else bfloat16 may be added up in bfloat16, and two products of int8 may saturate.
    needs = {"bfloat16": "_is_avx512_bf16_supported", "int8": "_is_vnni_supported"}.get(kind)
    if needs is None:
        return True
    ask = getattr(torch.cpu, needs, None)
    return ask is not None and bool(ask()) and (kind != "int8" or hasattr(torch, "_int_mm"))
