"""Policies of `jax.checkpoint` that see products.

JAX's own decide by the primitive `dot_general`, which a product of unigemm is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from .products import PRODUCT, SCALED

__all__ = ["as_dots", "dots_saveable", "dots_with_no_batch_dims_saveable"]


@dataclass(frozen=True)
class _AsDots:
    policy: Callable[..., Any]

    def __call__(self, primitive: Any, *operands: Any, **options: Any) -> Any:
        if primitive not in (PRODUCT, SCALED):
            return self.policy(primitive, *operands, **options)
        a, b = operands[:2]
        return self.policy(
            jax.lax.dot_general_p,
            a,
            b,
            dimension_numbers=_numbers(a.shape, b.shape),
            precision=None,
            preferred_element_type=jax.numpy.dtype(options["options"].dtype),
            out_sharding=None,
        )


def _numbers(a: tuple[int, ...], b: tuple[int, ...]) -> Any:
    """Return dimension numbers: batched are the dimensions that both operands really have."""
    batched = [
        i
        for i in range(1, min(len(a), len(b)) - 1)
        if a[-2 - i] != 1 and b[-2 - i] != 1  # from the matrices outwards
    ]
    of_a = tuple(len(a) - 2 - i for i in batched)
    of_b = tuple(len(b) - 2 - i for i in batched)
    return ((len(a) - 1,), (len(b) - 2,)), (of_a, of_b)


def as_dots(policy: Callable[..., Any]) -> Callable[..., Any]:
    """Return a policy of `jax.checkpoint` that takes products of unigemm for JAX's own.

    Parameters
    ----------
    policy : callable
        A policy, such as ``jax.checkpoint_policies.offload_dot_with_no_batch_dims("device",
        "pinned_host")``, or one that names these.

    Returns
    -------
    callable
        A policy.

    Examples
    --------
    >>> import jax, unigemm.jax
    >>> save = unigemm.jax.as_dots(jax.checkpoint_policies.dots_saveable)
    >>> step = jax.checkpoint(lambda w, x: unigemm.jax.matmul(x, w), policy=save)
    """
    return _AsDots(policy)


_DOTS = as_dots(jax.checkpoint_policies.dots_saveable)
_NO_BATCH = as_dots(jax.checkpoint_policies.dots_with_no_batch_dims_saveable)


def dots_saveable(primitive: Any, *operands: Any, **options: Any) -> Any:
    """Save all products: a policy, as `jax.checkpoint_policies` has by this name."""
    return _DOTS(primitive, *operands, **options)


def dots_with_no_batch_dims_saveable(primitive: Any, *operands: Any, **options: Any) -> Any:
    """Save products that are no stacks of both operands: a policy, as JAX's of this name."""
    return _NO_BATCH(primitive, *operands, **options)
