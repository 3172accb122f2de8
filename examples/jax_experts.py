"""A layer of experts in JAX, forward and backward, in one compiled program for all sizes.

A router sends each row to two of eight experts, and `ragged_dot` multiplies those of each, also for
the gradients.

It needs `pip install "unigemm[jax]"`.
"""

import jax
import jax.numpy as jnp

from unigemm.jax import ragged_dot

EXPERTS, FEATURES, INNER, ROWS = 8, 32, 64, 256


def layer(weights, x):
    """Send each row to the two experts that the router likes best, and add up their results."""
    scores, expert = jax.lax.top_k(jax.nn.softmax(x @ weights["router"]), 2)
    order = jnp.argsort(expert.ravel())  # rows of one expert lie together
    sizes = jnp.bincount(expert.ravel(), length=EXPERTS)
    gate, value = jnp.split(ragged_dot(x[order // 2], weights["up"], sizes), 2, -1)
    rows = ragged_dot(jax.nn.silu(gate) * value, weights["down"], sizes)
    rows = rows * scores.ravel()[order, None]
    return jnp.zeros_like(x).at[order // 2].add(rows), sizes


@jax.jit
def step(weights, x, y):
    """Return better weights, the loss, and how many rows each expert had."""

    def loss(weights):
        result, sizes = layer(weights, x)
        return jnp.square(result - y).mean(), sizes

    (value, sizes), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
    return jax.tree.map(lambda w, g: w - 1.0 * g, weights, gradients), value, sizes


def normal(key, *shape):
    """Return random weights."""
    return jax.random.normal(key, shape) / shape[-2] ** 0.5


keys = jax.random.split(jax.random.key(0), 4)
weights = {
    "router": normal(keys[0], FEATURES, EXPERTS),
    "up": normal(keys[1], EXPERTS, FEATURES, 2 * INNER),
    "down": normal(keys[2], EXPERTS, INNER, FEATURES),
}
x = jax.random.normal(keys[3], (ROWS, FEATURES))
for i in range(41):
    weights, value, sizes = step(weights, x, jnp.abs(x) - 1)
    if i % 10 == 0:
        print(f"step {i:2d}  loss {float(value):6.3f}  rows of each expert {sizes.tolist()}")
