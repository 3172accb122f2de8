"""How DTensor may spread the operators' products over many devices.

A rule says which dimension of the result one dimension of the mesh splits, and which of each
operand: "partial" is a summand on each device, None the whole on each. DTensor has the collectives
for what comes before and after, and takes the rule that moves the fewest bytes; in between each
device multiplies what it has with unigemm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["RULES", "is_spread", "notice", "register"]

_PARTIAL = "partial"
_Rule = list[Any]
_registered = False


def notice(*operands: Any) -> None:
    """Register the rules when a first DTensor is seen: to import it takes a second."""
    if not _registered and any(map(is_spread, operands)):
        register()


def is_spread(x: Any) -> bool:
    """Whether a tensor is a DTensor; without its class, which may not be imported."""
    return type(x).__name__ == "DTensor"


def register() -> None:
    """Register the rules of all operators with DTensor."""
    global _registered
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def placement(split: Any) -> Any:
        if split is None:
            return Replicate()
        return Partial() if split == _PARTIAL else Shard(split)

    def placed(rules: Callable[..., list[_Rule]], results: int) -> Callable[..., Any]:
        def ways(*operands: Any, **options: Any) -> list[tuple[list[Any], list[Any]]]:
            found = []
            for split, *inputs in rules(*operands):
                named = zip(inputs, operands, strict=False)
                placements = [None if x is None else placement(each) for each, x in named]
                rest = [None] * (len(operands) - len(placements) + len(options))
                found.append(([placement(split)] * results, placements + rest))
            return found

        return ways

    for name, rules in RULES.items():
        overload = getattr(torch.ops.unigemm, name).default
        register_sharding(overload)(placed(rules, len(overload._schema.returns)))
    _registered = True


def _rows_and_columns(a: Any, b: Any) -> list[_Rule]:
    """Return the rules of (result, a, b) that leave K whole; stacks broadcast."""
    rank = max(a.ndim, b.ndim)
    rules: list[_Rule] = [
        [None, None, None],
        [rank - 2, a.ndim - 2, None],
        [rank - 1, None, b.ndim - 1],
    ]
    for dim in range(rank - 2):
        rules.append([dim, _aligned(a, dim, rank), _aligned(b, dim, rank)])
    return rules


def _aligned(x: Any, dim: int, rank: int) -> int | None:
    """Return which dimension of an operand lies under one of the result; None: it is repeated."""
    own = dim - (rank - x.ndim)
    return own if own >= 0 and x.shape[own] != 1 else None


def _over_k(a: Any, b: Any) -> list[_Rule]:
    """Return the rules whose results are summands: K is split, or an operand is a sum itself."""
    return [
        [_PARTIAL, a.ndim - 1, b.ndim - 2],
        [_PARTIAL, _PARTIAL, None],
        [_PARTIAL, None, _PARTIAL],
    ]


def _with_added(rules: list[_Rule], added: Any, rank: int) -> list[_Rule]:
    """Return rules with the placement of what is added to the result, last."""
    if added is None:
        return [[*rule, None] for rule in rules]
    return [
        [*rule, _aligned(added, rule[0], rank) if isinstance(rule[0], int) else rule[0]]
        for rule in rules
    ]


def _mm(a: Any, b: Any) -> list[_Rule]:
    return _rows_and_columns(a, b) + _over_k(a, b)


def _addmm(c: Any, a: Any, b: Any) -> list[_Rule]:
    rules = _with_added(_mm(a, b), c, 2)
    return [[split, of_c, of_a, of_b] for split, of_a, of_b, of_c in rules]


def _linear_rows(x: Any, weight: Any) -> list[_Rule]:
    rows: list[_Rule] = [[dim, dim, None] for dim in range(x.ndim - 1)]
    return [[None, None, None], *rows, [x.ndim - 1, None, 0]]


def _linear(x: Any, weight: Any, bias: Any = None) -> list[_Rule]:
    summed: list[_Rule] = [[_PARTIAL, x.ndim - 1, 1], [_PARTIAL, _PARTIAL, None]]
    summed.append([_PARTIAL, None, _PARTIAL])
    return _with_added(_linear_rows(x, weight) + summed, bias, x.ndim)


def _linear_activation(x: Any, weight: Any, bias: Any, activation: str) -> list[_Rule]:
    return _with_added(_linear_rows(x, weight), bias, x.ndim)


def _linear_gated(x: Any, weight: Any, bias: Any, *names: str) -> list[_Rule]:
    """Return rules that leave columns whole, of which two may be far from each other."""
    rows: list[_Rule] = [[dim, dim, None] for dim in range(x.ndim - 1)]
    return _with_added([[None, None, None], *rows], bias, x.ndim)


def _matmul(
    a: Any, b: Any, c: Any = None, bias: Any = None, scale_a: Any = None, scale_b: Any = None
) -> list[_Rule]:
    # DTensor remembers rules without requesting the activation, which no summand may go through.
    rank = max(a.ndim, b.ndim)
    rules = _with_added(_with_added(_rows_and_columns(a, b), c, rank), bias, rank)
    found = []
    for rule in rules:
        split = _split_of_scale(scale_a, a, rule[1]), _split_of_scale(scale_b, b, rule[2])
        if "" not in split:
            found.append([*rule, *split])
    return found


def _matmul_rows(a: Any, b: Any, *rest: Any) -> list[_Rule]:
    """Return the rules that leave columns whole, of which several make one element, or a scale."""
    columns = max(a.ndim, b.ndim) - 1
    return [rule for rule in _matmul(a, b, *rest) if rule[0] != columns]


def _split_of_scale(scale: Any, operand: Any, dim: int | None) -> Any:
    """Return which dimension of an operand's scales goes with one of its own; "" if none can.

    Those of 128 lines are of no device alone.
    """
    if scale is None or dim is None:
        return None
    own = dim - (operand.ndim - scale.ndim)
    if scale.ndim < 2 or own < 0 or scale.shape[own] == 1:
        return None
    return own if scale.shape[own] == operand.shape[dim] else ""


def _grouped(
    a: Any, b: Any, offs: Any = None, bias: Any = None, scale_a: Any = None, scale_b: Any = None
) -> list[_Rule]:
    """Return rules that leave whole what offsets divide, and with a bias or a scale all."""
    rank = 2 if a.ndim != b.ndim else 3
    rules: list[_Rule] = [[None, None, None]]
    if a.ndim >= b.ndim or b.ndim == 2:  # rows that are not divided
        rules.append([rank - 2, a.ndim - 2, None])
    if b.ndim >= a.ndim or a.ndim == 2:  # columns
        rules.append([rank - 1, None, b.ndim - 1])
    alone = bias is scale_a is scale_b is None
    return [[*rule, None, None, None, None] for rule in rules] if alone else [[None] * 7]


RULES: dict[str, Callable[..., list[_Rule]]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "linear": _linear,
    "linear_activation": _linear_activation,
    "linear_preact": _linear_activation,
    "linear_gated": _linear_gated,
    "linear_gated_preact": _linear_gated,
    "grouped_mm": _grouped,
    "matmul": _matmul,
    "matmul_gated": _matmul_rows,
    "matmul_quantized": _matmul_rows,
    "grouped_mm_quantized": lambda *args: [[None] * 7],
    "quantize": lambda x: [[None, None]],
}
