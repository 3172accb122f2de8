"""`quantize_out`, gates, and epilogues beside scales in unigemm.jax."""

from __future__ import annotations

import numpy as np
import pytest
from needed import needed

jax = needed("jax")

import jax.numpy as jnp  # noqa: E402
from gpu_programs import emulated, planned, run  # noqa: E402
from quantize_cases import assert_same  # noqa: E402

import unigemm  # noqa: E402
from unigemm.jax import calls, matmul  # noqa: E402

BLOCKS = ("row", (1, 128))
KINDS = ("float32", "bfloat16", "float8_e4m3fn", "int8")


@pytest.fixture(params=["ffi", "callback"], autouse=True)
def way(request, monkeypatch):
    """Reach the host's products as programs do, with and without jax-tvm-ffi."""
    if request.param == "ffi" and not calls.has_ffi():
        pytest.skip("jax-tvm-ffi is not installed")
    if request.param == "callback":
        monkeypatch.setattr(calls, "has_ffi", lambda: False)
    jax.clear_caches()
    yield request.param
    jax.clear_caches()


def draw(*shape, dtype="float32"):
    values = np.random.default_rng(sum(shape)).standard_normal(shape) * 3
    return jnp.asarray(values, "float32").astype(dtype)


def numpy(*arrays):
    return [np.asarray(x) for x in arrays]


def same(got, expected):
    assert isinstance(got[0], jax.Array)
    assert isinstance(got[1], jax.Array)
    got = numpy(*got)
    assert got[0].dtype == expected[0].dtype
    assert_same((got[0].view("u1"), got[1]), (expected[0].view("u1"), expected[1]))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_those_of_unigemm_matmul(kind, block):
    a, b, bias = draw(2, 5, 40, dtype=kind), draw(40, 300, dtype=kind), draw(300)
    scales = {"scale_a": jnp.ones((5, 1)) * 0.25} if kind in ("float8_e4m3fn", "int8") else {}
    more = {"activation": "relu", "alpha": 0.5}
    f = jax.jit(lambda a, b, bias, s: matmul(a, b, bias=bias, quantize_out=block, **more, **s))
    expected = unigemm.matmul(
        *numpy(a, b), bias=np.asarray(bias), quantize_out=block, **more,
        **{name: np.asarray(x) for name, x in scales.items()},
    )  # fmt: skip
    same(f(a, b, bias, scales), expected)
    got = matmul(a, b, quantize_out=block, preferred_element_type="int8", **scales)
    expected = unigemm.matmul(
        *numpy(a, b), quantize_out=block, dtype="int8",
        **{name: np.asarray(x) for name, x in scales.items()},
    )  # fmt: skip
    same(got, expected)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("block", [None, *BLOCKS])
def test_gates_and_biases_stand_beside_scales(block, layout):
    a, b, bias = draw(7, 300, dtype="float8_e4m3fn"), draw(300, 40, dtype="float8_e4m3fn"), draw(40)
    of_a, of_b = jnp.full((7, 3), 0.5), jnp.full((3, 40), 0.25)
    given = {"activation": "swiglu", "gate_layout": layout}
    told = {} if block is None else {"quantize_out": block}
    got = jax.jit(
        lambda *x: matmul(*x[:2], scale_a=x[2], scale_b=x[3], bias=x[4], **given, **told)
    )(a, b, of_a, of_b, bias)
    x, y, s, t, z = numpy(a, b, of_a, of_b, bias)
    more = {"scale_a": s, "scale_b": t, "bias": z, **given}
    expected = unigemm.matmul(x, y, **more, **told)
    if block is None:
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert got.shape == (7, 20)
    else:
        same(got, expected)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_gates_have_derivatives_where_numbers_are_wide(layout):
    a, b, bias = draw(5, 7), draw(7, 12), draw(12)

    def mine(a, b, bias):
        return matmul(a, b, bias=bias, activation="geglu", gate_layout=layout)

    def theirs(a, b, bias):
        x = jnp.matmul(a, b, precision="highest") + bias
        gate, other = (
            (x[..., ::2], x[..., 1::2]) if layout == "interleaved" else jnp.split(x, 2, -1)
        )
        return jax.nn.gelu(gate, approximate=False) * other

    np.testing.assert_allclose(mine(a, b, bias), theirs(a, b, bias), rtol=1e-4, atol=1e-5)
    grads = (
        jax.grad(lambda *x, f=f: jnp.sin(f(*x)).sum(), (0, 1, 2))(a, b, bias)
        for f in (mine, theirs)
    )
    for one, two in zip(*grads, strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("block", [None, *BLOCKS])
def test_mapped_products_are_those_of_each(block):
    a, b, bias = draw(3, 5, 40, dtype="int8"), draw(40, 300, dtype="int8"), draw(3, 300)
    told = {"scale_a": 0.5, "activation": "silu"}
    told |= {} if block is None else {"quantize_out": block}
    for axes in ((0, None, 0), (0, None, None), (None, None, 0)):
        args = [x if axis is not None else x[0] if x.ndim > 2 or x is bias else x
                for x, axis in zip((a, b, bias), axes, strict=True)]  # fmt: skip
        f = lambda a, b, bias: matmul(a, b, bias=bias, **told)  # noqa: E731
        got = jax.vmap(f, in_axes=axes)(*args)
        for i in range(3):
            each = f(*(x if axis is None else x[i] for x, axis in zip(args, axes, strict=True)))
            if block is None:
                np.testing.assert_array_equal(got[i], each)
            else:
                same((got[0][i], got[1][i]), numpy(*each))


@pytest.mark.parametrize("block", BLOCKS)
def test_products_of_nothing_have_scales_of_zeros(block):
    for m, n, k in ((3, 200, 0), (0, 200, 5), (3, 0, 5)):
        a, b = jnp.ones((m, k), jnp.int8), jnp.ones((k, n), jnp.int8)
        got = matmul(a, b, scale_a=2.0, quantize_out=block)
        same(got, unigemm.matmul(*numpy(a, b), scale_a=2.0, quantize_out=block))


@pytest.mark.compile
@pytest.mark.parametrize("block", BLOCKS)
def test_what_a_gpu_program_calls_writes_both_results(monkeypatch, block):
    a, b = (np.asarray(draw(*s, dtype="float8_e4m3fn")).round() for s in ((5, 64), (64, 264)))
    rows, bias = np.full((5, 1), 0.25, "f4"), np.arange(264, dtype="f4")
    d, scales = np.zeros((5, 264), a.dtype), np.zeros((5, 1 if block == "row" else 3), "f4")
    told = (("scale_b", 2.0), ("activation", "relu"))
    with emulated(monkeypatch) as gpu:
        options = calls.Options("float8_e4m3fn", backend="cute_wgmma", quantize_out=block)
        aux = {"scale_a": rows, "bias": bias}
        call = planned(options, (a, b), aux, (d, scales), told)
        run(monkeypatch, gpu, call, (a, b, *aux.values()), (d, scales))
    expected = unigemm.matmul(a, b, quantize_out=block, **aux, **dict(told))
    assert_same((d.view("u1"), scales), (expected[0].view("u1"), expected[1]))


A, B = jnp.ones((4, 6)), jnp.ones((6, 8))


@pytest.mark.parametrize(
    ("a", "told", "error", "said"),
    [
        (A, {"quantize_out": "rows"}, unigemm.UnsupportedProblem, r'\(1, 128\) or "row"'),
        (A, {"preferred_element_type": "bfloat16"}, unigemm.UnsupportedDtype, "quantised to"),
        (A[0], {}, unigemm.ShapeMismatch, "pass matrices"),
        (A, {"gate_layout": "halves"}, unigemm.UnsupportedProblem, "no meaning here"),
        (A, {"activation": "swiglu"}, unigemm.UnsupportedProblem, "pass gate_layout="),
        (A, {"activation": "nope"}, unigemm.UnsupportedProblem, "'nope' is not known"),
        (A, {"bias": jnp.ones(8, "int32")}, unigemm.UnsupportedDtype, "bias is int32"),
        (A, {"scale_a": 2.0}, unigemm.UnsupportedProblem, "for float8 and int8"),
        (A.astype(jnp.complex64), {}, unigemm.UnsupportedDtype, "complex"),
    ],
)
def test_what_is_not_quantised_is_refused_while_it_is_traced(a, told, error, said):
    with pytest.raises(error, match=said):
        jax.jit(lambda a, b: matmul(a, b, **{"quantize_out": "row", **told}))(a, B)


def test_derivatives_are_refused_in_words():
    for f in (
        lambda a: matmul(a, B, quantize_out="row")[1].sum(),
        lambda a: matmul(a, B, quantize_out=(1, 128), bias=jnp.ones(8))[1].sum(),
    ):
        with pytest.raises(unigemm.UnsupportedProblem, match="quantised results have no gradients"):
            jax.grad(f)(A)
