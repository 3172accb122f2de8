"""Grouped products of PyTorch tensors that autograd, `torch.compile` and the rest of it see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from ..errors import UnsupportedDtype
from ..problem.quantization import requested_sharing
from ..runtime.call import if_known
from ..runtime.request import Request
from ..support.arguments import shown
from .arguments import LayerOptions, layer_options, present, tensors
from .gradients import call
from .products import may_be_known

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arrays.types import QuantizeOut

__all__ = ["grouped_mm", "one_or_pair"]

_NOTHING = (None,) * (Request._fields.index("offsets") - 2)
_GROUPED = Request(None, None, operation="grouped").parts[1]


@overload
def grouped_mm(
    mat_a: Tensor, mat_b: Tensor, *, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None, quantize_out: None = None,
    **options: Unpack[LayerOptions],
) -> Tensor: ...  # fmt: skip
@overload
def grouped_mm(
    mat_a: Tensor, mat_b: Tensor, *, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None, quantize_out: QuantizeOut,
    **options: Unpack[LayerOptions],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    quantize_out: QuantizeOut | None = None,
    **options: Unpack[LayerOptions],
) -> Any:
    """Multiply groups by matrices of their own, as `torch.nn.functional.grouped_mm`.

    Rows, columns or K beyond the last offset are in no group: rows and columns of the result there
    are zeros, and their gradients are not read.

    Parameters
    ----------
    mat_a, mat_b : Tensor
        (T, K) and (G, K, N), (G, M, K) and (K, T), (M, T) and (T, N), or two stacks; of any strides
        and any dtype that kernels multiply.
    offs : Tensor of int32 or int64, shape (G,), optional
        Where each group ends, on the device of the others; not of two stacks.
    bias : Tensor, shape (N,) or (G, N), optional
        Added to each row, or to those of each group.
    out_dtype : torch.dtype, optional
        Of the result; float32 for bfloat16, too, and with gradients.
    quantize_out : (1, 128) or "row", optional
        As in `unigemm.grouped_matmul`: eight bits and their scales, without gradients.
    **options
        `precision`, `deterministic` and `backend`, as in `unigemm.matmul`.

    Returns
    -------
    Tensor
        A new one. With `quantize_out` a pair, the result and its scales.

    Raises
    ------
    UnigemmError
        As `unigemm.grouped_matmul`.

    Examples
    --------
    >>> import torch, unigemm.torch
    >>> tokens, experts = torch.ones(3, 2), torch.ones(2, 2, 1, requires_grad=True)
    >>> unigemm.torch.grouped_mm(tokens, experts, offs=torch.tensor([1, 3])).sum().backward()
    >>> experts.grad.flatten()
    tensor([1., 1., 2., 2.])
    """
    alone = out_dtype is bias is quantize_out is None
    if not options and alone and may_be_known(mat_a):
        found = if_known((mat_a, mat_b, *_NOTHING, offs), _GROUPED)
        if found is not None:
            return found
    tensors(mat_a=mat_a, mat_b=mat_b, **present(offs=offs, bias=bias))
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise UnsupportedDtype(
            f"out_dtype is {shown(out_dtype)}; pass a torch.dtype, such as torch.float32"
        )
    return one_or_pair(
        "grouped_mm", mat_a, mat_b, offs, bias, quantize_out=quantize_out, options=options,
        out_dtype=out_dtype,
    )  # fmt: skip


def one_or_pair(
    name: str, *operands: Any, quantize_out: QuantizeOut | None, options: Mapping[str, Any],
    **given: Any,
) -> Any:  # fmt: skip
    """Call an operator with options of layers, or the one of that name with quantised results."""
    given |= layer_options(options) if options else {}
    operators = torch.ops.unigemm
    if quantize_out is None:
        return call(getattr(operators, name), *operands, **given)
    sharing = requested_sharing(quantize_out)
    return call(getattr(operators, f"{name}_quantized"), *operands, quantize_out=sharing, **given)
