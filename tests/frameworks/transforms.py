"""Transforms of torch.func and torch.autograd, and operators beside the same in torch's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import unigemm.torch as ut

F = torch.nn.functional
func = torch.func
ops = torch.ops.unigemm
forward_ad = torch.autograd.forward_ad

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x) ** 2,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def _scalar(f):
    return lambda x: f(x).sin().sum()


def _weights(x):
    return torch.linspace(-1, 2, x.numel(), dtype=x.dtype).reshape(x.shape)


def _leaf(x):
    return x if x.requires_grad else x.clone().requires_grad_()


def _autograd(f):
    def gradient(x):
        x = _leaf(x)
        return torch.autograd.grad(_scalar(f)(x), x, create_graph=True)[0]

    return gradient


def _batched(f):
    def rows(x):
        x = _leaf(x)
        y = f(x)
        several = torch.stack([torch.ones_like(y), _weights(y)])
        return torch.autograd.grad(y, x, several, is_grads_batched=True, create_graph=True)[0]

    return rows


def _dual(f):
    def tangent(x):
        with forward_ad.dual_level():
            y = forward_ad.unpack_dual(f(forward_ad.make_dual(x, _weights(x))))
            return torch.zeros_like(y.primal) if y.tangent is None else y.tangent

    return tangent


def _jacobian(**options):
    return lambda f: lambda x: torch.autograd.functional.jacobian(f, x, vectorize=True, **options)


#: Each takes a function of one tensor and returns one.
TRANSFORMS = {
    "grad": lambda f: func.grad(_scalar(f)),
    "vjp": lambda f: lambda x: (lambda y, pull: pull(_weights(y))[0])(*func.vjp(f, x)),
    "jvp": lambda f: lambda x: func.jvp(f, (x,), (_weights(x),))[1],
    "jacrev": func.jacrev,
    "jacfwd": func.jacfwd,
    "hessian": lambda f: func.hessian(_scalar(f)),
    "vmap": lambda f: lambda x: torch.vmap(f)(torch.stack([x, 2 * x])),
    "autograd": _autograd,
    "batched": _batched,
    "dual": _dual,
    "jacobian": _jacobian(create_graph=True),
    "jacobian_forward": _jacobian(strategy="forward-mode"),
}


@dataclass(frozen=True)
class Operator:
    """An operator, the same in torch's own, and the shapes of its arguments."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


def _linears() -> dict[str, Operator]:
    found = {}
    for name, act in ACTIVATIONS.items():
        take = lambda x, w, b=None, name=name: ut.linear(x, w, b, activation=name)  # noqa: E731
        same = lambda x, w, b=None, act=act: act(F.linear(x, w, b))  # noqa: E731
        found[f"linear {name}"] = Operator(take, same, ((2, 3), (2, 3), (2,)))
        found[f"vector {name}"] = Operator(take, same, ((3,), (2, 3)))
        pre = lambda x, w, b, name=name: ops.linear_preact(x, w, b, name)  # noqa: E731
        both = lambda x, w, b, act=act: (lambda p: (act(p), p))(F.linear(x, w, b))  # noqa: E731
        found[f"preact {name}"] = Operator(_added(pre), _added(both), ((2, 3), (2, 3), (2,)))
        found[f"matmul {name}"] = Operator(
            lambda a, b, c, name=name: ut.matmul(a, b, c=c, alpha=2.0, beta=0.5, activation=name),
            lambda a, b, c, act=act: act(2 * (a @ b) + 0.5 * c),
            ((2, 2), (2, 3), (3,)),
        )
    return found


def _added(f):
    return lambda *args: (lambda results: results[0] + results[1].cos().sum())(f(*args))


def _gated() -> dict[str, Operator]:
    found = {}
    for name, of_gate in (("swiglu", F.silu), ("geglu", F.gelu)):
        for layout in ("interleaved", "halves"):

            def same(x, w, b=None, layout=layout, of_gate=of_gate):
                y = F.linear(x, w, b)
                y = y.unflatten(-1, (-1, 2) if layout == "interleaved" else (2, -1))
                gate, other = y.unbind(-1 if layout == "interleaved" else -2)
                return of_gate(gate) * other

            def take(x, w, b=None, name=name, layout=layout):
                return ut.linear(x, w, b, activation=name, gate_layout=layout)

            def raw(x, w, name=name, layout=layout):
                return ops.linear_gated(x, w, None, name, layout)

            found[f"{name} {layout}"] = Operator(take, same, ((2, 3), (4, 3), (4,)))
            found[f"{name} {layout} stack"] = Operator(take, same, ((2, 1, 2), (4, 2)))
            found[f"{name} {layout} raw"] = Operator(raw, same, ((2, 2), (4, 2)))
    return found


def _in_parts(form: str, a: Any, b: Any, *bias: Any) -> Any:
    """Return a grouped product of offsets 1, 1 and 3, made of PyTorch's own operations."""
    parts = [(0, slice(0, 1)), (1, slice(1, 1)), (2, slice(1, 3))]
    if form == "rows":
        rows = [a[own] @ b[g] + (bias[0][g] if bias else 0) for g, own in parts]
        return torch.cat([*rows, torch.zeros(len(a) - 3, b.shape[-1], dtype=a.dtype)])
    if form == "columns":
        columns = [a[g] @ b[:, own] for g, own in parts]
        nothing = torch.zeros(a.shape[1], b.shape[1] - 3, dtype=a.dtype)
        return torch.cat([*columns, nothing], 1)
    return torch.stack([a[:, own] @ b[own] for _, own in parts])


def _grouped() -> dict[str, Operator]:
    """Return grouped products, with an empty group and with rows behind the last."""
    offs = torch.tensor([1, 1, 3], dtype=torch.int32)

    def take(a: Any, b: Any, *bias: Any) -> Any:
        return ut.grouped_mm(a, b, offs=offs, bias=bias[0] if bias else None)

    return {
        "grouped rows": Operator(take, partial(_in_parts, "rows"), ((4, 2), (3, 2, 2), (3, 2))),
        "grouped columns": Operator(take, partial(_in_parts, "columns"), ((3, 2, 1), (1, 4))),
        "grouped K": Operator(take, partial(_in_parts, "K"), ((2, 4), (4, 1))),
        "grouped stacks": Operator(
            lambda a, b: ut.grouped_mm(a, b), torch.bmm, ((2, 2, 1), (2, 1, 2))
        ),
    }


OPERATORS = {
    "matmul": Operator(ut.matmul, torch.matmul, ((2, 3), (3, 2))),
    "matmul stack": Operator(ut.matmul, torch.matmul, ((2, 2, 2), (2, 3))),
    "matmul broadcast": Operator(ut.matmul, torch.matmul, ((2, 1, 2, 1), (2, 1, 2))),
    "matmul vectors": Operator(ut.matmul, torch.matmul, ((3,), (3,))),
    "matmul row": Operator(ut.matmul, torch.matmul, ((3,), (3, 2))),
    "matmul column": Operator(ut.matmul, torch.matmul, ((2, 3), (3,))),
    "bmm": Operator(ut.bmm, torch.bmm, ((2, 2, 1), (2, 1, 2))),
    "addmm": Operator(
        lambda c, a, b: ut.addmm(c, a, b, alpha=2.0, beta=-0.5),
        lambda c, a, b: torch.addmm(c, a, b, alpha=2.0, beta=-0.5),
        ((2,), (2, 3), (3, 2)),
    ),
    "addmm without c": Operator(
        lambda c, a, b: ut.addmm(c, a, b, beta=0.0),
        lambda c, a, b: torch.addmm(c, a, b, beta=0.0),
        ((2, 2), (2, 1), (1, 2)),
    ),
    "addmm without product": Operator(
        lambda c, a, b: ut.addmm(c, a, b, alpha=0.0),
        lambda c, a, b: torch.addmm(c, a, b, alpha=0.0),
        ((2, 2), (2, 1), (1, 2)),
    ),
    "linear": Operator(ut.linear, F.linear, ((2, 3), (2, 3), (2,))),
    "linear vector": Operator(ut.linear, F.linear, ((3,), (2, 3), (2,))),
    "linear stack": Operator(ut.linear, F.linear, ((2, 1, 2), (2, 2), (2,))),
    "options": Operator(
        lambda a, b, c, bias: ops.matmul(
            a, b, c, bias, alpha=0.5, beta=2.0, activation="silu", deterministic=True
        ),
        lambda a, b, c, bias: F.silu(0.5 * (a @ b) + 2 * c + bias),
        ((1, 2, 2), (2, 2), (2, 2), (2,)),
    ),
    **_linears(),
    **_gated(),
    **_grouped(),
}


def functions(name: str, taken: int, seed: int) -> tuple[Any, Any, torch.Tensor]:
    """Return an operator and its reference as functions of one vector, and such a vector.

    Parameters
    ----------
    name
        Of the operator.
    taken
        Bits: which arguments are parts of the vector. The rest are constant.
    seed
        Of the numbers.
    """
    operator = OPERATORS[name]
    generator = torch.Generator().manual_seed(seed)
    values = [
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in operator.shapes
    ]
    indices = [i for i in range(len(values)) if taken >> i & 1]

    def of_vector(f):
        def g(x):
            args, start = list(values), 0
            for i in indices:
                size = math.prod(operator.shapes[i])
                args[i] = x[start : start + size].reshape(operator.shapes[i])
                start += size
            return f(*args)

        return g

    x = torch.cat([values[i].flatten() for i in indices])
    return of_vector(operator.ours), of_vector(operator.theirs), x
