"""Expert parallelism with shard_map: each device has some of the experts, and rows travel.

On a machine with several GPUs they are taken; elsewhere JAX makes two devices of the CPU.

It needs `pip install "unigemm[jax]"`.
"""

import importlib.util

import jax

if importlib.util.find_spec("jax_cuda13_plugin") is None:
    jax.config.update("jax_num_cpu_devices", 2)  # before the first use of a device

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from unigemm.jax import ragged_dot

FEATURES, ROWS = 16, 20
ROOM = ROWS  # rows that a device may send to each; fewer where rows may be dropped
mesh = Mesh(np.array(jax.devices()), ("x",))
devices, here = mesh.size, 3
experts = devices * here


def exchanged(x):
    """Send x[i] to device i, and get one of each."""
    return jax.lax.all_to_all(x, "x", 0, 0, tiled=True)


def layer(weights, x, expert):
    """Multiply each row by the weights of its expert, of which each device has three."""
    order = jnp.argsort(expert)
    of_device = expert[order] // here
    slot = jnp.arange(ROWS) - jnp.searchsorted(of_device, of_device)  # among those for a device
    rows = jnp.zeros((devices, ROOM, FEATURES)).at[of_device, slot].set(x[order])
    ids = jnp.full((devices, ROOM), here).at[of_device, slot].set(expert[order] % here)
    rows, ids = exchanged(rows).reshape(-1, FEATURES), exchanged(ids).ravel()
    # What came is sorted by device; what is no row goes to the end, where there is no group.
    by_expert = jnp.argsort(ids)
    results = ragged_dot(rows[by_expert], weights, jnp.bincount(ids, length=here))
    back = jnp.zeros_like(results).at[by_expert].set(results).reshape(devices, ROOM, FEATURES)
    return jnp.zeros_like(x).at[order].set(exchanged(back)[of_device, slot])


spread = jax.shard_map(layer, mesh=mesh, in_specs=(P("x"), P("x"), P("x")), out_specs=P("x"))
keys = jax.random.split(jax.random.key(0), 3)
weights = jax.random.normal(keys[0], (experts, FEATURES, FEATURES))
x = jax.random.normal(keys[1], (devices * ROWS, FEATURES))
expert = jax.random.randint(keys[2], (devices * ROWS,), 0, experts)


def loss(layer):
    """Return the loss of a layer."""
    return lambda weights, x: jnp.square(layer(weights, x, expert)).sum()


def of_one_device(weights, x, expert):
    """Multiply each row by the weights of its expert, of all."""
    return jnp.einsum("rk,rkn->rn", x, weights[expert])


with jax.default_matmul_precision("highest"):
    found = jax.jit(jax.value_and_grad(loss(spread), (0, 1)))(weights, x)
    expected = jax.value_and_grad(loss(of_one_device), (0, 1))(weights, x)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), found, expected)
print(f"{devices} devices, {here} of {experts} experts on each:")
print("results and gradients are those of all experts in one place")
