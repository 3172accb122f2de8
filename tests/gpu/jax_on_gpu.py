"""A script that multiplies under jit on a GPU; fails where a result is wrong."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import unigemm
from unigemm.jax import calls, matmul, ragged_dot

assert jax.devices()[0].platform == "gpu"
rng = np.random.default_rng(0)


def near(got, a, b, eps):
    exact = np.asarray(a, "float64") @ np.asarray(b, "float64")
    size = np.abs(np.asarray(a, "float64")) @ np.abs(np.asarray(b, "float64"))
    assert (np.abs(np.asarray(got, "float64") - exact) <= eps * (size + np.abs(exact))).all()


for dtype, eps in (("float32", 1e-5), ("bfloat16", 1e-2), ("float16", 2e-3)):
    for m, n, k in ((128, 256, 512), (1, 512, 1024), (64, 64, 20000), (33, 65, 129)):
        a = jnp.asarray(rng.standard_normal((m, k))).astype(dtype)
        b = jnp.asarray(rng.standard_normal((k, n))).astype(dtype)
        f = jax.jit(lambda a, b: matmul(a, b))
        for _ in range(3):  # the first time, and as XLA captures and replays it
            near(f(a, b), a, b, eps)
assert any(call.workspace for call in calls._CALLS.values())

a = jnp.asarray(rng.standard_normal((64, 128))).astype("float8_e4m3fn")
b = jnp.asarray(rng.standard_normal((128, 96))).astype("float8_e4m3fn")
g = jax.jit(lambda s: matmul(a, b, scale_a=s, scale_b=2.0, preferred_element_type=jnp.bfloat16))
near(g(jnp.float32(0.5)), a, b, 2e-2)

k = 300
spread = lambda s, axis, extent: np.repeat(np.asarray(s), 128, axis).take(np.arange(extent), axis)  # noqa: E731
a = jnp.asarray(rng.standard_normal((3, 40, k))).astype("float8_e4m3fn")
b = jnp.asarray(rng.standard_normal((3, k, 144))).astype("float8_e4m3fn")
s = jnp.asarray(rng.uniform(0.5, 2, (3, 40, 3)), "float32")
t = jnp.asarray(rng.uniform(0.5, 2, (3, 3, 2)), "float32")
scaled = lambda a, b, s, t: matmul(a, b, scale_a=s, scale_b=t)  # noqa: E731
wide_a = np.asarray(a, "float64") * spread(s, -1, k)
wide_b = np.asarray(b, "float64") * spread(spread(t, -2, k), -1, 144)
for f in (scaled, jax.vmap(scaled)):
    near(jax.jit(f)(a, b, s, t), wide_a, wide_b, 2.0**-11)
rows, columns = s[0, :, :1], jnp.ones((1, 144), "float32")
wide_a = np.asarray(a[0], "float64") * np.asarray(rows)
near(jax.jit(scaled)(a[0], b[0], rows, columns), wide_a, b[0], 2.0**-11)

x = jnp.asarray(rng.standard_normal((32, 64)), "float32")
w = jnp.asarray(rng.standard_normal((64, 48)), "float32")
value = lambda f: lambda x, w: jnp.tanh(f(x, w)).sum()  # noqa: E731
with jax.default_matmul_precision("highest"):
    ours = jax.jit(jax.grad(value(matmul), (0, 1)))(x, w)
    theirs = jax.jit(jax.grad(value(jnp.matmul), (0, 1)))(x, w)
for one, two in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4)
bias, c = jnp.linspace(-1, 1, 48, dtype="float32"), jnp.ones((32, 48), "float32")
one_kernel = lambda x, w, bias: matmul(x, w, alpha=0.5, c=c, beta=2.0, bias=bias, activation="silu")  # noqa: E731
parts = lambda x, w, bias: jax.nn.silu(0.5 * jnp.matmul(x, w) + 2 * c + bias)  # noqa: E731
with jax.default_matmul_precision("highest"):
    for of in (lambda f: f, lambda f: jax.grad(lambda *y: f(*y).sum(), (0, 1, 2))):
        found, expected = (jax.jit(of(f))(x, w, bias) for f in (one_kernel, parts))
        jax.tree.map(lambda y, z: np.testing.assert_allclose(y, z, 1e-3, 1e-4), found, expected)
stack = jnp.stack([x, 2 * x, x + 1])
np.testing.assert_allclose(jax.vmap(matmul, (0, None))(stack, w), np.matmul(stack, w), atol=1e-3)

rows, experts = (
    jnp.asarray(rng.integers(-2, 3, shape), "bfloat16") for shape in ((96, 72), (4, 72, 40))
)
of_ours = jax.jit(jax.value_and_grad(lambda b, sizes: (ragged_dot(rows, b, sizes) / 8).sum()))
multiply = jax.jit(ragged_dot)
for sizes in ((10, 0, 50, 3), (96, 0, 0, 0), (0, 0, 0, 0), (1, 2, 3, 90)):  # one program
    ends = np.cumsum((0, *sizes))
    found = np.asarray(multiply(rows, experts, jnp.array(sizes)), "float64")
    _, gradient = of_ours(experts, jnp.array(sizes))
    for g, (i, j) in enumerate(pairwise(ends)):
        a, b = np.asarray(rows[i:j], "float64"), np.asarray(experts[g], "float64")
        np.testing.assert_allclose(found[i:j], a @ b, rtol=1e-2)
        np.testing.assert_allclose(
            np.asarray(gradient[g], "float64"), np.outer(a.sum(0), np.ones(40)) / 8, rtol=1e-2
        )
    assert not found[ends[-1] :].any()

rows, experts = (
    jnp.asarray(rng.integers(-2, 3, shape), "float8_e4m3fn") for shape in ((96, 300), (4, 300, 144))
)
ends = np.cumsum(sizes, dtype="int32")
for of_rows, of_experts in (((4,), (4,)), ((96, 1), (4, 1, 144)), ((96, 3), (4, 3, 144)),
                            ((96, 3), (4, 3, 2))):  # fmt: skip
    scales = {name: jnp.asarray(2.0 ** rng.integers(-2, 3, shape), "float32")
              for name, shape in (("scale_a", of_rows), ("scale_b", of_experts))}  # fmt: skip
    scaled = jax.jit(lambda a, b, sizes, scales: ragged_dot(a, b, sizes, **scales))
    found = scaled(rows, experts, jnp.array(sizes), scales)
    exact = unigemm.grouped_matmul(
        np.asarray(rows), np.asarray(experts), ends, **{n: np.asarray(x) for n, x in scales.items()}
    )
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-3)


def quantised(block, told):
    return jax.jit(lambda a, b: matmul(a, b, quantize_out=block, **told))


for kind in ("float8_e4m3fn", "bfloat16", "int8"):  # whole numbers, whose products are exact
    a, b = (jnp.asarray(rng.integers(-2, 3, s)).astype(kind) for s in ((70, 256), (256, 328)))
    rows = {} if kind == "bfloat16" else {"scale_a": jnp.full((70, 1), 0.25, "float32")}
    told = {"bias": jnp.arange(328, dtype="float32"), **rows}
    given = {name: np.asarray(x) for name, x in told.items()}
    for block in ("row", (1, 128)):
        found = quantised(block, {**told, "activation": "relu"})
        x, y = np.asarray(a), np.asarray(b)
        exact = unigemm.matmul(x, y, quantize_out=block, activation="relu", **given)
        for _ in range(2):
            for mine, theirs in zip(found(a, b), exact, strict=True):
                np.testing.assert_array_equal(np.asarray(mine).view("u1"), theirs.view("u1"))
    gate = {"activation": "swiglu", "gate_layout": "halves", **rows}
    d, scales = quantised((1, 128), gate)(a, b)
    assert (d.shape, scales.shape) == ((70, 164), (70, 2))
    assert np.isfinite(np.asarray(scales)).all()
print("right")
