"""unigemm in JAX: a product under `jit`, `grad`, `vmap` and `shard_map`. See docs/jax.md."""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    from ..support.extras import install_command

    said = f"unigemm.jax needs JAX, which is not installed; {install_command('jax')}"
    raise ModuleNotFoundError(said, name="jax") from None

from .grouped import ragged_dot
from .policies import as_dots, dots_saveable, dots_with_no_batch_dims_saveable
from .products import matmul

__all__ = ["as_dots", "dots_saveable", "dots_with_no_batch_dims_saveable", "matmul", "ragged_dot"]
