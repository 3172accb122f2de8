"""unigemm.jax.matmul has the types of jax.numpy.matmul, and what else JAX asks of products."""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings

import numpy as np
import pytest
from needed import needed
from sampling import ALL, sampled

jax = needed("jax")

import jax.numpy as jnp  # noqa: E402
from jax import ad_checkpoint, export  # noqa: E402

import unigemm.jax  # noqa: E402
from unigemm.jax import calls  # noqa: E402

matmul = unigemm.jax.matmul

TYPES = (
    *("bool", "int4", "int8", "int16", "int32", "int64", "uint4", "uint8", "uint32", "uint64"),
    *("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "bfloat16", "float16"),
    *("float32", "float64", "complex64", "complex128"),
)
TYPES = tuple(name for name in TYPES if hasattr(jnp, name) or name == "bool")


@pytest.fixture(autouse=True)
def _config():
    before = jax.config.jax_enable_x64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without x64 float64 is float32, which JAX says each time
        yield
    jax.config.update("jax_enable_x64", before)


def draw(shape, name, seed, *, positive):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.25 if positive else -2.75, 2.75, shape)
    if name.startswith("complex"):
        x = x + 1j * rng.uniform(-0.25, 0.25, shape)  # real parts of results stay positive
    if name == "bool":
        return jnp.asarray(x > 1)
    if name.startswith(("int", "uint")):
        x = np.abs(x) if name.startswith("u") else x
        return jnp.asarray(x.astype(int)).astype(name)
    return jnp.asarray(x).astype(name)


def beside_jnp(a, b, preferred):
    """Compare a product with JAX's: the same value, or both refuse."""
    try:
        expected = jnp.matmul(a, b, preferred_element_type=preferred)
    except Exception:
        with pytest.raises(unigemm.UnsupportedDtype, match=r"convert|pass"):
            matmul(a, b, preferred_element_type=preferred)
        return False
    got = matmul(a, b, preferred_element_type=preferred)
    assert got.dtype == expected.dtype
    kinds = {x.dtype for x in (a, b, got) if jnp.issubdtype(x.dtype, jnp.inexact)}
    exact = not jnp.issubdtype(got.dtype, jnp.inexact)
    eps = 0 if exact else max(float(jnp.finfo(kind).eps) for kind in kinds)
    # XLA's CPU adds 8-bit and 16-bit types in its own ways.
    np.testing.assert_allclose(
        np.asarray(got, "complex128"), np.asarray(expected, "complex128"), rtol=4 * eps
    )
    return True


@pytest.mark.parametrize("x64", [True, False], ids=["x64", "x32"])
def test_every_pair_of_types_gives_what_jax_gives_or_is_refused_with_it(x64):
    jax.config.update("jax_enable_x64", x64)
    cases = [
        {"a": a, "b": b, "result": result}
        for a, b, result in itertools.product(TYPES, TYPES, (None, *TYPES))
        if result or not a.startswith("float8") or not b.startswith("float8")  # float32 by default
    ]
    computed = 0
    for number in range(len(cases)) if ALL else sampled(cases, 40, f"types of jax {x64}"):
        a, b, result = cases[number].values()
        positive = (result or "").startswith(("uint", "bool"))
        operands = (
            draw((2, 3), a, 1, positive=positive),
            draw((3, 2), b, 2, positive=positive),
        )
        computed += beside_jnp(*operands, result)
    assert computed > 10


def test_operands_of_one_type_are_converted_where_jax_converts_them():
    jax.config.update("jax_enable_x64", True)
    one = lambda value, name: jnp.full((1, 2), value).astype(name)  # noqa: E731
    for value, name, result in (
        (1.6, "float32", "int32"), (1.6, "bfloat16", "int32"), (1.6, "float8_e5m2", "int8"),
        (300, "float16", "bfloat16"), (300, "float16", "float32"), (True, "bool", "int32"),
        (1.6 + 1j, "complex64", "int32"), (100, "int8", "int8"), (100, "int8", "float32"),
        (30000, "int16", "float32"), (2e9, "int32", "float64"), (200, "uint8", "float16"),
        (1.6 + 1j, "complex64", "float32"), (1.6, "float64", "int16"), (3, "int32", "int8"),
        (1.6 + 1j, "complex64", "float64"), (3, "int32", "uint32"), (1.6, "float64", "float16"),
    ):  # fmt: skip
        beside_jnp(one(value, name), one(value, name).T, result)


@pytest.mark.parametrize("way", ["callback", "ffi"])
def test_complex_numbers_become_others_either_way(way, monkeypatch):
    if way == "ffi" and not calls.has_ffi():
        pytest.skip("jax-tvm-ffi is not installed")
    monkeypatch.setattr(calls, "has_ffi", lambda: way == "ffi")
    jax.clear_caches()
    a = jnp.asarray([[1 + 2j]], "complex64")
    assert matmul(a, a, preferred_element_type="int32").tolist() == [[-3]]
    jax.clear_caches()


def test_types_of_a_product_have_gradients():
    a = jnp.asarray([[1.5, 2.0]], "float16")
    f = lambda m: lambda a: m(a, a.T, preferred_element_type="bfloat16").sum()  # noqa: E731
    np.testing.assert_allclose(
        np.float32(jax.grad(f(matmul))(a)), np.float32(jax.grad(f(jnp.matmul))(a)), rtol=1e-2
    )


def residuals(multiply, policy, *shapes):
    def f(w1, w2, x):
        return jnp.tanh(multiply(jnp.tanh(multiply(x, w1)), w2)).sum()

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        ad_checkpoint.print_saved_residuals(
            jax.checkpoint(f, policy=policy), *map(jnp.ones, shapes)
        )
    return len(text.getvalue().splitlines())


SHAPES = [((4, 4), (4, 4), (3, 4)), ((4, 4), (4, 4), (2, 3, 4)), ((2, 4, 4), (1, 4, 4), (2, 3, 4))]


@pytest.mark.parametrize("shapes", SHAPES)
def test_policies_keep_as_many_residuals_as_jaxs_own(shapes):
    jaxs, ours = jax.checkpoint_policies, unigemm.jax
    offload = jaxs.offload_dot_with_no_batch_dims("device", "pinned_host")
    both = jaxs.save_from_both_policies
    names = jaxs.save_only_these_names("none")
    for policy, own in (
        (jaxs.dots_saveable, ours.dots_saveable),
        (jaxs.dots_with_no_batch_dims_saveable, ours.dots_with_no_batch_dims_saveable),
        (offload, ours.as_dots(offload)),
        (jaxs.nothing_saveable, ours.as_dots(jaxs.nothing_saveable)),
        (both(jaxs.dots_saveable, names), both(ours.dots_saveable, names)),
    ):
        expected = residuals(jnp.matmul, policy, *shapes)
        assert residuals(matmul, own, *shapes) == expected
        # Ours see JAX's own products, too.
        assert residuals(jnp.matmul, own, *shapes) == expected
    assert residuals(matmul, ours.dots_saveable, *shapes) > residuals(matmul, None, *shapes)


def test_exporting_a_product_is_refused_in_words():
    f = jax.jit(lambda x: matmul(x, x.T))
    with pytest.raises(unigemm.UnsupportedProblem, match=r"shape \(b, 16\).*jax.numpy.matmul"):
        export.export(f)(jax.ShapeDtypeStruct(export.symbolic_shape("b, 16"), jnp.float32))
    with pytest.raises(unigemm.UnsupportedProblem, match=r"jax.export .* ship the function"):
        export.export(f)(jax.ShapeDtypeStruct((2, 16), jnp.float32))
    assert f(jnp.ones((2, 16))).tolist() == [[16, 16]] * 2
