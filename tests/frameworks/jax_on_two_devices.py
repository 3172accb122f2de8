"""A script that multiplies under shard_map on two devices of the host; fails where one is wrong."""

from __future__ import annotations

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from unigemm.jax import matmul, ragged_dot  # noqa: E402

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

# Rows that are sorted on each device, by experts that all have, or that one device has.
rows = jnp.asarray(rng.standard_normal((10, 6)))
experts = jnp.asarray(rng.standard_normal((4, 6, 8)))
of_rows = jnp.asarray(rng.standard_normal((10, 8)))
for sizes, of_experts in (([1, 0, 3, 1, 2, 2, 0, 0], P()), ([2, 3, 0, 4], P("x"))):
    groups = jnp.array(sizes)
    spread = jax.shard_map(
        ragged_dot, mesh=mesh, in_specs=(P("x"), of_experts, P("x")), out_specs=P("x")
    )

    def whole(rows, experts, groups):
        each = len(groups) // 2
        parts = [
            jax.lax.ragged_dot(
                rows[5 * i : 5 * i + 5],
                experts if each == 4 else experts[2 * i : 2 * i + 2],
                groups[each * i : each * i + each],
            )
            for i in range(2)
        ]
        return jnp.concatenate(parts)

    of = lambda g: lambda a, b: (jnp.sin(g(a, b, groups)) * of_rows).sum()  # noqa: B023, E731
    np.testing.assert_allclose(jax.jit(spread)(rows, experts, groups), whole(rows, experts, groups))
    ours = jax.jit(jax.grad(of(spread), (0, 1)))(rows, experts)
    theirs = jax.grad(of(whole), (0, 1))(rows, experts)
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, two)

# Without shard_map arrays that are spread are multiplied too, gathered first.
spread = jax.device_put(a, NamedSharding(mesh, P("x")))
np.testing.assert_allclose(jax.jit(matmul)(spread, b), a @ b)

# Operands above 100 KB: JAX copies those of its callbacks in the threads that run the devices.
wide = jnp.ones((64, 2048))
spread = jax.jit(jax.shard_map(summed, mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P()))
for _ in range(100):
    np.testing.assert_array_equal(spread(wide[:8, :64], wide), np.full((8, 2048), 64.0))
