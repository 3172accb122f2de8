"""Add an activation as docs/epilogues.md says, and use it everywhere; says "right"."""

import numpy as np

import unigemm
from unigemm import activations


def hardswish(x):
    """Return x min(max(x + 3, 0), 6) / 6."""
    return x * np.clip(x + 3, 0, 6) / 6


def dhardswish(x):
    """Return its derivative."""
    return np.where(x < -3, 0, np.where(x < 3, x / 3 + 0.5, 1))


activations.ACTIVATIONS["hardswish"] = hardswish
activations.GRADIENTS["dhardswish"] = dhardswish

rng = np.random.default_rng(7)
A, B = rng.uniform(-2, 2, (9, 5)), rng.uniform(-2, 2, (5, 7))
WANTED, SLOPES = hardswish(A @ B), dhardswish(A @ B)

np.testing.assert_allclose(unigemm.matmul(A, B, activation="hardswish"), WANTED, atol=1e-12)
got = unigemm.matmul(A, B, activation="dhardswish", preact=A @ B)
np.testing.assert_allclose(got, (A @ B) * SLOPES, atol=1e-12)


def in_torch():
    import torch

    import unigemm.torch as ut

    a, weight = torch.tensor(A, requires_grad=True), torch.tensor(B.T, requires_grad=True)
    y = ut.linear(a, weight, activation="hardswish")
    y.sum().backward()
    np.testing.assert_allclose(y.detach(), WANTED, atol=1e-12)
    np.testing.assert_allclose(a.grad, SLOPES @ B.T, atol=1e-12)

    def product(a):
        return ut.linear(a, weight, activation="hardswish")

    assert torch.autograd.gradgradcheck(product, (a,), fast_mode=True)


def in_jax():
    import jax

    import unigemm.jax as uj

    jax.config.update("jax_enable_x64", True)

    def product(a):
        return uj.matmul(a, B, activation="hardswish")

    np.testing.assert_allclose(product(A), WANTED, atol=1e-12)
    np.testing.assert_allclose(jax.grad(lambda a: product(a).sum())(A), SLOPES @ B.T, atol=1e-12)


in_torch()
in_jax()
print("right")
