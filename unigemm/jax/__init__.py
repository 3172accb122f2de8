"""unigemm in JAX: a product under `jit`, `grad`, `vmap` and `shard_map`. See docs/jax.md."""

from __future__ import annotations

from .products import matmul

__all__ = ["matmul"]
