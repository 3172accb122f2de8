"""`torch.vmap` of the operators: one product of a stack in place of many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .activations import activation_named, gated_named
from .operators import LIBRARY

__all__ = ["matmul", "one_by_one"]

_ops = torch.ops.unigemm


def _front(x: Tensor | None, dim: int | None, rank: int = 0) -> Tensor | None:
    """Return a tensor with the mapped dimension first, and then at least `rank` others."""
    if x is None or dim is None:
        return x
    x = x.movedim(dim, 0)
    missing = max(rank - (x.dim() - 1), 0)
    return x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:]) if missing else x


def matmul(
    info: Any, in_dims: Any, *args: Any, op: Any = _ops.matmul, **options: Any
) -> tuple[Any, int]:
    """Multiply a stack by an operator that has the operands, and what is added, as `matmul`."""
    args += (None,) * (6 - len(args))
    dims = [*in_dims, *(None,) * (6 - len(in_dims))]
    operands = list(args[:2])
    for i, (own, of_scale) in enumerate(zip(dims[:2], dims[4:6], strict=True)):
        added_alone = i == 0 and dims[:2] == [None, None]
        if own is None and (of_scale is not None or added_alone):
            operands[i], dims[i] = operands[i].expand(info.batch_size, *operands[i].shape), 0
    ranks = [x.dim() - (dim is not None) for x, dim in zip(operands, dims, strict=False)]
    mapped = zip((*operands, *args[2:]), dims, strict=True)
    return op(*(_front(x, d, max(ranks)) for x, d in mapped), **options), 0


def _product(info: Any, in_dims: Any, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    return matmul(info, in_dims, a, b)


def _addmm(
    info: Any, in_dims: Any, c: Tensor, a: Tensor, b: Tensor, **factors: float
) -> tuple[Tensor, int]:
    return matmul(info, (in_dims[1], in_dims[2], in_dims[0]), a, b, c, **factors)


def _linear(
    info: Any,
    in_dims: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **options: Any,
) -> tuple[Tensor, int]:
    of_x, of_weight, of_bias = (*in_dims[:3], None)[:3]
    x = x if of_x is None else x.movedim(of_x, 0)
    weight = weight.mT if of_weight is None else weight.movedim(of_weight, 0).mT
    vector = x.dim() - (of_x is not None) == 1
    result, _ = matmul(
        info,
        (None if of_x is None else 0, None if of_weight is None else 0, None, of_bias),
        *(x.unsqueeze(-2) if vector else x, weight, None, bias),
        activation=activation,
        **options,
    )
    return (result.squeeze(-2) if vector else result), 0


def _linear_preact(
    info: Any,
    in_dims: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    gate_layout: str | None = None,
    **options: Any,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    preact, _ = _linear(info, in_dims, x, weight, bias, **options)
    if gate_layout is None:
        result = activation_named(activation).value(preact)
    else:
        result = gated_named(activation, gate_layout).value(preact, gate_layout)
    return (result, preact), (0, 0)


def _linear_gated(info: Any, in_dims: Any, *args: Any, **options: Any) -> tuple[Tensor, int]:
    return _linear_preact(info, in_dims, *args, **options)[0][0], 0


def one_by_one(op: Any, info: Any, in_dims: Any, *args: Any, **options: Any) -> Iterator[Any]:
    """Yield the results of an operator of each of a mapped dimension."""
    dims = (*in_dims, *(None,) * (len(args) - len(in_dims)))
    for i in range(info.batch_size):
        one = (x if dim is None else x.select(dim, i) for x, dim in zip(args, dims, strict=True))
        yield op(*one, **options)


def _grouped(*args: Any, **options: Any) -> tuple[Tensor, int]:
    """Multiply one after the other: a launch takes the groups of one product."""
    return torch.stack([*one_by_one(_ops.grouped_mm, *args, **options)]), 0


def _register() -> None:
    for name, rule in (
        ("mm", _product),
        ("bmm", _product),
        ("addmm", _addmm),
        ("linear", _linear),
        ("linear_activation", _linear),
        ("linear_preact", _linear_preact),
        ("linear_gated", _linear_gated),
        ("linear_gated_preact", _linear_preact),
        ("grouped_mm", _grouped),
        ("matmul", matmul),
    ):
        torch.library.register_vmap(f"unigemm::{name}", rule, lib=LIBRARY)


_register()
