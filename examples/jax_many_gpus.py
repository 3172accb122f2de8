"""Tensor parallelism with shard_map: each device multiplies its part with unigemm.

On a machine with several GPUs they are taken; elsewhere JAX makes two devices of the CPU.

It needs `pip install "unigemm[jax]"`.
"""

import importlib.util

import jax

if importlib.util.find_spec("jax_cuda13_plugin") is None:
    jax.config.update("jax_num_cpu_devices", 2)  # before the first use of a device

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from unigemm.jax import matmul

mesh = Mesh(np.array(jax.devices()), ("x",))
jax.config.update("jax_default_matmul_precision", "highest")  # of what results are compared with
keys = jax.random.split(jax.random.key(0), 3)
x = jax.random.normal(keys[0], (8, 64))
first = jax.random.normal(keys[1], (64, 256)) / 8
second = jax.random.normal(keys[2], (256, 64)) / 16


def spread(f, in_specs, out_specs):
    """Run a function on each device's part."""
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs))


@lambda f: spread(f, (P(), P(None, "x"), P("x")), P())
def column_then_row(x, first, second):
    """Split the first layer by its columns and the second by its rows: one sum for both."""
    return jax.lax.psum(matmul(jax.nn.gelu(matmul(x, first)), second), "x")


@lambda f: spread(f, (P(None, "x"), P("x")), P("x"))
def reduce_scatter(a, b):
    """Split K: each device has a summand of the result, which is added and split by rows."""
    return jax.lax.psum_scatter(matmul(a, b), "x", scatter_dimension=0, tiled=True)


expected = jax.nn.gelu(x @ first) @ second
np.testing.assert_allclose(column_then_row(x, first, second), expected, rtol=1e-3, atol=1e-3)
print("column_then_row: one psum for two layers on", mesh.size, "devices")
np.testing.assert_allclose(reduce_scatter(x, first), x @ first, rtol=1e-3, atol=1e-3)
print("reduce_scatter: the result lies in rows,", reduce_scatter(x, first).sharding.spec)

# A weight that no device holds: each part is made where it stays.
large = jax.make_array_from_callback(
    (64, 1024),
    NamedSharding(mesh, P(None, "x")),
    lambda index: np.ones((64, 1024), np.float32)[index],
)
columns = spread(matmul, (P(), P(None, "x")), P(None, "x"))(x, large)
np.testing.assert_allclose(columns, jnp.broadcast_to(x.sum(1)[:, None], (8, 1024)), rtol=1e-3)
print("a weight of", large.shape, "lies in parts of", large.addressable_shards[0].data.shape)
