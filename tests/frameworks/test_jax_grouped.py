"""`unigemm.jax.ragged_dot`, beside `jax.lax.ragged_dot`: types, transformations, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from needed import needed

import unigemm

jax = needed("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import unigemm.jax as uj  # noqa: E402
from unigemm.jax import calls  # noqa: E402

SIZES = ([2, 0, 5], [0, 0, 0], [0, 9, 0], [9, 0, 0], [1, 1, 1])


@pytest.fixture(params=[True, False], ids=["ffi", "callback"])
def way(request, monkeypatch):
    """Programs call by jax-tvm-ffi, where it is there, or back into Python."""
    if request.param and not calls.has_ffi():
        pytest.skip("jax-tvm-ffi is not installed")
    monkeypatch.setattr(calls, "has_ffi", lambda: request.param)
    jax.clear_caches()


def operands(dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-3, 4, (9, 4)), rng.integers(-3, 4, (3, 4, 5))
    return jnp.asarray(a).astype(dtype), jnp.asarray(b).astype(dtype)


@pytest.mark.parametrize("preferred", [None, "float32"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_results_and_types_are_jaxs(way, dtype, preferred):
    a, b = operands(dtype)
    for sizes in map(jnp.array, SIZES):
        options = {"preferred_element_type": preferred and jnp.dtype(preferred)}
        expected = jax.lax.ragged_dot(a, b, sizes, **options)
        for multiply in (uj.ragged_dot, jax.jit(uj.ragged_dot, static_argnums=(3, 4))):
            found = multiply(a, b, sizes, None, *options.values())
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_rows_behind_the_last_group_are_zeros_whatever_they_hold():
    a, b = operands()
    a = a.at[7:].set(jnp.nan)
    found = uj.ragged_dot(a, b, jnp.array([2, 0, 5]))
    assert not np.asarray(found)[7:].any()
    of_a, of_b = jax.grad(lambda a, b: uj.ragged_dot(a, b, jnp.array([2, 0, 5])).sum(), (0, 1))(
        a, b
    )
    assert np.isfinite(of_a).all()
    assert np.isfinite(of_b).all()
    assert not np.asarray(of_b)[1].any()  # the group without rows


def test_one_program_serves_all_sizes_of_groups(way):
    a, b = operands()
    traced = []

    @jax.jit
    def multiply(a, b, sizes):
        traced.append(sizes)
        return uj.ragged_dot(a, b, sizes)

    for sizes in map(jnp.array, SIZES):
        np.testing.assert_array_equal(multiply(a, b, sizes), jax.lax.ragged_dot(a, b, sizes))
    assert len(traced) == 1


def test_gradients_are_those_of_finite_differences_twice_and_forward(way):
    with jax.enable_x64(True):
        a, b = operands("float64")
        sizes = jnp.array([2, 0, 5])

        def f(a, b):
            return uj.ragged_dot(a, b, sizes)

        check_grads(f, (a, b), order=2, modes=["fwd", "rev"])
        check_grads(lambda a: f(a, b), (a,), order=2, modes=["fwd", "rev"])
        check_grads(lambda b: f(a, b), (b,), order=2, modes=["fwd", "rev"])


def test_gradients_of_bfloat16_are_jaxs(way):
    a, b = operands("bfloat16")
    sizes = jnp.array([2, 0, 5])
    found = []
    for multiply in (jax.lax.ragged_dot, uj.ragged_dot):

        def loss(a, b, multiply=multiply):
            return (multiply(a, b, sizes, preferred_element_type=jnp.float32) / 8).sum()

        found.append(jax.jit(jax.grad(loss, (0, 1)))(a, b))
    for theirs, ours in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(np.asarray(ours, "f4"), np.asarray(theirs, "f4"), rtol=0.02)


def test_a_gradient_reads_the_weights_where_they_lie():
    a, b = operands()

    def loss(a):
        return uj.ragged_dot(a, b, jnp.array([2, 0, 5])).sum()

    program = str(jax.make_jaxpr(jax.grad(loss))(a))
    assert program.count("unigemm_grouped_matmul") >= 1
    assert "transpose[" not in program


@pytest.mark.parametrize("mapped", [(0, None, None), (None, 0, None), (None, None, 0), (1, 2, 0)])
def test_vmap_gives_what_a_loop_gives(mapped):
    a, b = operands()
    given = [a, b, jnp.array([2, 0, 5])]
    stacks = [
        x if d is None else jnp.stack([x, x[..., ::-1]], d)
        for x, d in zip(given, mapped, strict=True)
    ]
    found = jax.vmap(uj.ragged_dot, in_axes=mapped)(*stacks)
    for i in range(2):
        one = [x if d is None else jnp.take(x, i, d) for x, d in zip(stacks, mapped, strict=True)]
        np.testing.assert_array_equal(found[i], jax.lax.ragged_dot(*one))


A, B = jnp.ones((9, 4)), jnp.ones((3, 4, 5))
ENDS = jnp.array([2, 0, 5])
REFUSED = {
    "two groups": ((A, B[:2], ENDS), {}, unigemm.ShapeMismatch),
    "K": ((A[:, :3], B, ENDS), {}, unigemm.ShapeMismatch),
    "a stack of rows": ((A[None], B, ENDS), {}, unigemm.ShapeMismatch),
    "sizes that are no integers": ((A, B, ENDS * 1.0), {}, unigemm.UnsupportedDtype),
    "a matrix of sizes": ((A, B, ENDS[None]), {}, unigemm.ShapeMismatch),
    "an offset": ((A, B, ENDS), {"group_offset": ENDS}, unigemm.UnsupportedProblem),
    "a precision": ((A, B, ENDS), {"precision": "exact"}, unigemm.UnsupportedProblem),
    "int32": ((A.astype(int), B.astype(int), ENDS), {}, unigemm.UnsupportedDtype),
    "no array": ((A, B, "5"), {}, unigemm.LibraryMismatch),
    "a backend": ((A, B, ENDS), {"backend": "fast"}, unigemm.BackendUnavailable),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_product_is_refused_while_it_is_traced(name):
    args, options, error = REFUSED[name]
    with pytest.raises(error):
        uj.ragged_dot(*args, **options)


def test_float8_has_no_gradients():
    a, b = operands("float8_e4m3fn")
    assert uj.ragged_dot(a, b, ENDS).dtype == jnp.float32
    with pytest.raises(unigemm.UnsupportedProblem, match="eight bits have no gradients"):
        jax.grad(lambda a: uj.ragged_dot(a, b, ENDS).sum())(a)
