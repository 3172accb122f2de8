"""Fit a small network in JAX whose products are unigemm's, on a GPU or on the CPU.

Products are mapped sample by sample with `vmap` and differentiated; the last one is of float8
with a scale.

It needs `pip install "unigemm[jax]"`.
"""

import jax
import jax.numpy as jnp

from unigemm.jax import matmul


def predict(weights, x):
    """Return what a network of two layers makes of one sample."""
    first, second = weights
    return matmul(jax.nn.gelu(matmul(x, first)), second)


def loss(weights, x, y):
    """Return the mean squared error of a batch, mapped sample by sample."""
    return jnp.mean((jax.vmap(predict, (None, 0))(weights, x) - y) ** 2)


keys = jax.random.split(jax.random.key(0), 3)
weights = (
    jax.random.normal(keys[0], (16, 64)) / 4,
    jax.random.normal(keys[1], (64, 1)) / 8,
)
x = jax.random.normal(keys[2], (256, 16))
y = jnp.sum(x**2, 1, keepdims=True) / 16


@jax.jit
def step(weights, x, y):
    """Take one step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


for i in range(41):
    value, weights = step(weights, x, y)
    if i % 10 == 0:
        print(f"step {i:2d}  loss {value:.4f}")

# float8 with a scale of each operand, which may be traced.
a, b = x.astype(jnp.float8_e4m3fn), weights[0].astype(jnp.float8_e4m3fn)
scaled = jax.jit(lambda s: matmul(a, b, scale_a=s, preferred_element_type=jnp.bfloat16))
print("float8:", jax.typeof(scaled(jnp.float32(0.5))))
