"""A script that multiplies under shard_map on two devices of the host; fails where one is wrong."""

from __future__ import annotations

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_enable_async_dispatch", False)  # callbacks could wait for threads
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from unigemm.jax import matmul  # noqa: E402

mesh = Mesh(np.array(jax.devices()), ("x",))
assert mesh.size == 2
rng = np.random.default_rng(0)
a, b = jnp.asarray(rng.standard_normal((4, 6))), jnp.asarray(rng.standard_normal((6, 8)))
weights = jnp.asarray(rng.standard_normal((4, 8)))


def summed(a, b):
    return jax.lax.psum(matmul(a, b), "x")


def scattered(a, b):
    return jax.lax.psum_scatter(matmul(a, b), "x", scatter_dimension=0, tiled=True)


def gathered(a, b):
    return matmul(jax.lax.all_gather(a, "x", axis=0, tiled=True), b)


for f, of_a, of_b, of_d in (
    (matmul, P("x"), P(), P("x")),
    (matmul, P(), P(None, "x"), P(None, "x")),
    (summed, P(None, "x"), P("x"), P()),
    (scattered, P(None, "x"), P("x"), P("x")),
    (gathered, P("x"), P(None, "x"), P(None, "x")),
):
    spread = jax.shard_map(f, mesh=mesh, in_specs=(of_a, of_b), out_specs=of_d)
    value = lambda g: lambda a, b: (jnp.sin(g(a, b)) * weights).sum()  # noqa: E731
    np.testing.assert_allclose(jax.jit(spread)(a, b), a @ b)
    ours = jax.jit(jax.grad(value(spread), (0, 1)))(a, b)
    theirs = jax.grad(value(jnp.matmul), (0, 1))(a, b)
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, two)

# Without shard_map arrays that are spread are multiplied too, gathered first.
spread = jax.device_put(a, NamedSharding(mesh, P("x")))
np.testing.assert_allclose(jax.jit(matmul)(spread, b), a @ b)
