"""Grouped products of real tensors: what the operator runs on a device, and its checks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arrays.operands import parse_dtype
from ..errors import DeviceMismatch, ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..grouped import grouped_matmul
from ..problem.canonical import Layout
from ..problem.grouped import form_of
from .products import FLOAT8, accumulator_dtype

__all__ = ["check_grouped", "grouped_product", "summed_by_group"]

_ops = torch.ops.unigemm
_HALVES = (torch.bfloat16, torch.float16)
_forward_ad = torch.autograd.forward_ad


def grouped_product(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> Tensor:
    """Multiply groups below autograd, which has seen to gradients already."""
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale is not None:
            options[name] = scale
    if bias is not None:
        check_grouped(mat_a, mat_b, offs, bias)
        options["bias"] = bias
    if out_dtype is not None:
        options["dtype"] = out_dtype
    with torch.no_grad(), _forward_ad._set_fwd_grad_enabled(False):
        return grouped_matmul(mat_a, mat_b, offs, **options)


def check_grouped(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor | None, bias: Tensor | None
) -> tuple[int, ...]:
    """Return the shape of a grouped product; sizes may be symbols.

    Raises
    ------
    UnigemmError
        There is no such product.
    """
    for name, x in (("mat_b", mat_b), ("offs", offs), ("bias", bias)):
        if x is not None and x.device != mat_a.device:
            raise DeviceMismatch(
                f"{name} is on {x.device} and mat_a on {mat_a.device}; move one of them"
            )
    float8 = mat_a.dtype in FLOAT8 and mat_b.dtype in FLOAT8
    if mat_a.dtype != mat_b.dtype and not float8:
        raise UnsupportedDtype(
            f"mat_a is {mat_a.dtype} and mat_b is {mat_b.dtype}; convert one of them"
        )
    ends = None
    if offs is not None:
        ends = Layout(tuple(offs.shape), tuple(offs.stride()), parse_dtype(offs.dtype, "offs"))
    form = form_of(tuple(mat_a.shape), tuple(mat_b.shape), ends, None)
    if bias is not None:
        if form.along == "n":
            raise UnsupportedProblem(
                "a bias is not taken where columns are divided into groups; add it behind the "
                "product, or compute the transpose"
            )
        n = form.shape[-1]
        if bias.dim() not in (1, 2) or bias.shape[-1] != n or bias.shape[:-1] not in (
            (), (form.count,)
        ):  # fmt: skip
            raise ShapeMismatch(
                f"bias has shape {tuple(bias.shape)}; pass ({n},), or ({form.count}, {n}) with a "
                "row for each group"
            )
        wide = accumulator_dtype(mat_a.dtype)
        of_bytes = mat_a.element_size() == 1
        if bias.dtype not in (mat_a.dtype, wide) and not (of_bytes and bias.dtype in _HALVES):
            raise UnsupportedDtype(
                f"bias is {bias.dtype} and the product of {mat_a.dtype}; pass "
                f"bias.to({wide if of_bytes else mat_a.dtype})"
            )
    return form.shape


def summed_by_group(
    g: Tensor, offs: Tensor | None, shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """Return the gradient of a bias, (N,) or (G, N), which counts no rows behind the groups."""
    wide = accumulator_dtype(g.dtype)
    if g.dim() == 3:
        found = g.to(wide).sum(-2)
    else:  # the products of each group's rows and ones
        ones = g.new_ones(1, g.shape[0])
        found = _ops.grouped_mm(ones, g, offs, out_dtype=wide).squeeze(-2)
    return (found if len(shape) == 2 else found.sum(0)).to(dtype)
