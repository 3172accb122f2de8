"""unigemm.jax.matmul is jax.numpy.matmul under JAX's transformations."""

from __future__ import annotations

import re

import numpy as np
import pytest
from block_factors import drawn
from needed import needed
from odd_values import HUGE, ODD, Unreadable, refused

jax = needed("jax")

import jax.numpy as jnp  # noqa: E402
from gpu_programs import emulated, planned, run  # noqa: E402

import unigemm  # noqa: E402
import unigemm.emulator  # noqa: E402
import unigemm.jax  # noqa: E402
from unigemm.jax import calls, products  # noqa: E402
from unigemm.problem.dtypes import DType, numpy_dtype  # noqa: E402

matmul = unigemm.jax.matmul


@pytest.fixture(autouse=True)
def _float64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


WAYS = ["callback", pytest.param("ffi", marks=pytest.mark.skipif(
    not calls.has_ffi(), reason="jax-tvm-ffi is not installed"))]  # fmt: skip


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Compiled programs call either way; what is compiled already is forgotten."""
    monkeypatch.setattr(calls, "has_ffi", lambda: request.param == "ffi")
    jax.clear_caches()
    yield request.param
    jax.clear_caches()


def draw(*shape, dtype="float64", seed=0):
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(rng.standard_normal(shape).astype(jnp.dtype(dtype)))


SHAPES = [((3,), (3,)), ((4, 3), (3,)), ((3,), (2, 3, 5)), ((4, 3), (3, 5)), ((2, 4, 3), (3, 5))]
SHAPES += [((2, 1, 4, 3), (6, 3, 5)), ((4, 0), (0, 2))]


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_products_of_every_rank_are_jaxs_and_their_gradients(first, second):
    a, b = draw(*first), draw(*second, seed=1)
    weights = draw(*np.matmul(a, b).shape, seed=2)
    value = lambda f: lambda a, b: (jnp.sin(f(a, b)) * weights).sum()  # noqa: E731
    ours, theirs = (
        jax.jit(jax.value_and_grad(value(f), (0, 1)))(a, b) for f in (matmul, jnp.matmul)
    )
    np.testing.assert_allclose(ours[0], theirs[0], atol=1e-12)
    for one, two in zip(ours[1], theirs[1], strict=True):
        assert one.shape == two.shape
        np.testing.assert_allclose(one, two, atol=1e-12)


def test_either_way_of_calling_computes_the_same(way):
    a, b = draw(300, 200), draw(200, 150)
    got = jax.jit(lambda a, b: matmul(a, b) + 1)(a, b)
    np.testing.assert_allclose(got, jnp.matmul(a, b) + 1)
    x, y = draw(3, 16, dtype="float8_e4m3fn"), draw(16, 5, dtype="float8_e4m3fn")
    scaled = jax.jit(lambda s: matmul(x, y, scale_a=s, scale_b=2.0))(jnp.float32(0.5))
    np.testing.assert_allclose(scaled, np.float32(x) @ np.float32(y), rtol=1e-6)
    assert matmul(draw(4, 0), draw(0, 2)).tolist() == [[0, 0]] * 4
    assert matmul(draw(0, 4), draw(4, 2)).shape == (0, 2)


def test_products_are_computed_where_jit_is_disabled():
    a, b = draw(3, 4), draw(4, 2)
    with jax.disable_jit():
        np.testing.assert_allclose(matmul(a, b), a @ b)
        np.testing.assert_allclose(
            jax.grad(lambda a: matmul(a, b).sum())(a), jnp.ones((3, 2)) @ b.T
        )


def test_derivatives_of_every_kind_and_order_are_jaxs():
    a, b = draw(3, 4), draw(4, 2)
    f = lambda m: lambda a, b: jnp.tanh(m(a, b)).sum()  # noqa: E731
    ours, theirs = f(matmul), f(jnp.matmul)

    def all_of_them(f):
        second = jax.hessian(f)(a, b)
        tangent = jax.jvp(f, (a, b), (2 * a, 3 * b))[1]
        per_sample = jax.vmap(jax.grad(lambda b, row: f(row, b)), (None, 0))(b, a)
        return second, tangent, per_sample

    got, expected = (jax.jit(lambda f=f: all_of_them(f))() for f in (ours, theirs))
    for one, two in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-12)


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (1, 0), (2, 2)])
def test_vmap_maps_either_operand_along_any_axis(axes):
    a, b = draw(3, 2, 4, 5), draw(5, 6)
    stack = lambda x, axis: x if axis is None else jnp.stack([x, 2 * x, x + 1], axis)  # noqa: E731
    args = stack(a, axes[0]), stack(b, axes[1])
    got = jax.vmap(matmul, axes)(*args)
    np.testing.assert_allclose(got, jax.vmap(jnp.matmul, axes)(*args), atol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8", "int32", "complex128"])
def test_results_have_the_dtype_that_jax_gives(dtype):
    a, b = (8 * draw(6, 7)).astype(dtype), (8 * draw(7, 5)).astype(dtype)
    got, expected = matmul(a, b), jnp.matmul(a, b)
    assert got.dtype == expected.dtype
    wide = np.asarray(a, "complex128") @ np.asarray(b, "complex128")
    if dtype == "int8":
        np.testing.assert_array_equal(got, expected)
    else:
        eps = 0 if dtype == "int32" else jnp.finfo(dtype).eps
        np.testing.assert_allclose(np.asarray(got, "complex128"), wide, atol=300 * eps)


def test_operands_are_promoted_and_results_widened_as_requested():
    a, b = draw(2, 3, dtype="bfloat16"), draw(3, 2, dtype="float32")
    assert matmul(a, b).dtype == jnp.matmul(a, b).dtype
    got = matmul(a, a.T, preferred_element_type=jnp.float32)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, np.float32(a) @ np.float32(a).T, rtol=1e-6)
    f = lambda x: matmul(x, a.T, preferred_element_type=jnp.float32).sum()  # noqa: E731
    assert jax.grad(f)(a).dtype == jnp.bfloat16


def test_all_of_jaxs_words_for_precisions_are_known():
    presets = jax.lax.DotAlgorithmPreset
    for requested, taken in (
        ("highest", "ieee"), ("float32", "ieee"), (jax.lax.Precision.HIGH, "3xtf32"),
        ("tensorfloat32", "tf32"), ("bfloat16", "tf32"), ("BF16_BF16_F32_X3", "3xtf32"),
        (presets.TF32_TF32_F32, "tf32"), (presets.F32_F32_F32, "ieee"),
        (presets.BF16_BF16_F32_X9, "ieee"), (("default", "high"), "3xtf32"),
    ):  # fmt: skip
        assert products._precision(requested) == taken
    for preset in sorted(set(presets) - {presets.DEFAULT}, key=str):
        with jax.default_matmul_precision(preset.name):
            assert products._precision(None) in ("ieee", "3xtf32", "tf32")
    for wrong in ("tf16", 3, ("high",), ("high", "low")):
        with pytest.raises(unigemm.UnsupportedProblem, match="use one of"):
            products._precision(wrong)


@pytest.mark.parametrize("precision", [None, "highest", jax.lax.Precision.HIGH, "default", "tf32"])
def test_precisions_in_jaxs_words_and_in_unigemms(precision):
    a = draw(4, 4, dtype="float32")
    np.testing.assert_allclose(matmul(a, a, precision=precision), a @ a, rtol=1e-2, atol=1e-3)
    matmul(a.astype("bfloat16"), a.astype("bfloat16"), precision=precision)  # means nothing there


class NeedsDetach:
    """Refuses as tensors of PyTorch do that require gradients."""

    def __array__(self, *args, **options):
        raise RuntimeError("call detach() first")


def test_what_is_wrong_is_said_while_it_is_traced():
    a = draw(4, 3)
    with pytest.raises(unigemm.ShapeMismatch):
        jax.jit(matmul)(a, a)
    with pytest.raises(unigemm.ShapeMismatch):
        matmul(a, jnp.float64(2.0))
    with pytest.raises(unigemm.UnsupportedProblem, match="use one of"):
        matmul(a, a.T, precision="tf16")
    with pytest.raises(unigemm.UnsupportedProblem, match="float8"):
        matmul(a, a.T, scale_a=2.0)
    f8 = a.astype("float8_e4m3fn")
    with pytest.raises(unigemm.ShapeMismatch, match="each row of a"):
        matmul(f8, f8.T, scale_a=jnp.ones(3, "float32"))
    with pytest.raises(unigemm.UnsupportedDtype, match="pass float32"):
        matmul(f8, f8.T, scale_a=jnp.ones(1, "int32"))
    for wrong, error, words in (
        (lambda: matmul("word", a), unigemm.LibraryMismatch, "a is a str"),
        (lambda: matmul(a, None), unigemm.LibraryMismatch, "b is a NoneType"),
        (lambda: matmul(a, NeedsDetach()), unigemm.LibraryMismatch, "b is a NeedsDetach"),
        (lambda: matmul(jax.random.key(0), a), unigemm.UnsupportedProblem, "key"),
        (lambda: matmul(f8, f8.T, scale_a="word"), unigemm.LibraryMismatch, "scale_a is a str"),
        (lambda: matmul(f8, a.T), unigemm.UnsupportedDtype, "convert one"),
        (lambda: matmul(a, a.T, preferred_element_type="x"), unigemm.UnsupportedDtype, "no dtype"),
        (lambda: jax.grad(lambda x: matmul(x, f8.T).sum())(f8), unigemm.UnsupportedProblem, "grad"),
        # What only unigemm knows, and once said when the program ran.
        (lambda: matmul(a, a.T, backend="x"), unigemm.BackendUnavailable, "use auto"),
        (lambda: matmul(a, a.T, batch_invariant=True), unigemm.UnsupportedProblem, "BLAS"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            wrong()
    with pytest.raises(unigemm.UnsupportedProblem, match="gradients"):
        jax.grad(lambda s: matmul(f8, f8.T, scale_a=s).sum())(jnp.float32(1.0))


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize("way", ["ffi", "callback"])
def test_rows_and_columns_have_scales_of_their_own(kind, way, monkeypatch):
    if way == "callback":
        monkeypatch.setattr(calls, "has_ffi", lambda: False)
    elif not calls.has_ffi():
        pytest.skip("jax-tvm-ffi is not installed")
    a, b = ((3 * draw(*shape)).astype(kind) for shape in ((5, 24), (24, 7)))
    rows, columns = (jnp.abs(draw(*shape)).astype("float32") + 1 for shape in ((5, 1), (1, 7)))
    for x, y in ((rows, columns), (rows, 0.5), (None, columns), (jnp.float32(3), 1.0)):
        scaled = jax.jit(lambda a, b, x=x, y=y: matmul(a, b, scale_a=x, scale_b=y))(a, b)
        exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
        for each in (x, y):
            exact = exact * (1.0 if each is None else np.asarray(each, np.float64))
        assert scaled.dtype == jnp.float32
        np.testing.assert_allclose(scaled, exact, rtol=1e-5, atol=1e-3)
    half = matmul(a, b, scale_a=rows, preferred_element_type=jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    stack = jax.vmap(lambda x: matmul(x, b, scale_a=rows))(jnp.stack([a, -a]))
    np.testing.assert_array_equal(stack[0], -stack[1])


@pytest.mark.parametrize(
    "name", ["preferred_element_type", "deterministic", "batch_invariant", "backend", "precision"]
)
def test_an_option_of_a_wrong_kind_is_refused_in_words(name):
    a = jnp.ones((2, 2))
    for value in ODD:
        refused(lambda **options: matmul(a, a, **options), name, value)


@pytest.mark.parametrize("name", ["scale_a", "scale_b"])
def test_a_scale_of_a_wrong_kind_is_refused_in_words(name):
    f8 = jnp.ones((2, 2), "float8_e4m3fn")
    for value in ODD:
        # JAX itself shows what it cannot read.
        shows = not isinstance(value, Unreadable)
        if value is HUGE or (shows and not isinstance(value, int | float)):
            refused(lambda **options: matmul(f8, f8, **options), name, value)


def test_a_gpu_without_jax_tvm_ffi_is_a_typed_error(monkeypatch):
    monkeypatch.setattr(calls, "has_ffi", lambda: False)
    lowered = jax.jit(matmul).trace(draw(4, 3), draw(3, 4))
    with pytest.raises(unigemm.BackendUnavailable, match="pip install"):
        lowered.lower(lowering_platforms=("cuda",))


def test_a_program_from_another_process_is_refused_with_a_sentence():
    with pytest.raises(unigemm.BackendUnavailable, match="trace the function here"):
        calls._run(1)


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("lines", [(1, 128), (1, 1), (128, 1)])
def test_scales_of_blocks_are_multiplied_by(lines, way):
    for how in ({}, {"exponents": True}, {"stack": (2,)}):
        x = drawn((33, 140, 300), lines, **how)
        given = tuple(jnp.asarray(np.ascontiguousarray(each)) for each in
                      (x.a, x.b, x.scale_a, x.scale_b))  # fmt: skip
        multiply = jax.jit(lambda a, b, s, t: matmul(a, b, scale_a=s, scale_b=t))
        assert x.error(multiply(*given)) < 1e-6
        if how.get("stack"):
            assert x.error(jax.jit(jax.vmap(multiply))(*given)) < 1e-6
    half = multiply(*given).dtype, matmul(*given[:2], preferred_element_type=jnp.bfloat16).dtype
    assert half == (jnp.float32, jnp.bfloat16)
    text = str(jax.make_jaxpr(multiply)(*given))
    assert text.count("unigemm_scaled_matmul") == 1


@pytest.mark.parametrize("mask", range(1, 16))
@pytest.mark.parametrize("kind", ["blocks", "lines", "whole", "int8"])
def test_vmap_maps_operands_and_scales(kind, mask):
    m, k, n = 5, 200, 9
    dtype = "int8" if kind == "int8" else "float8_e4m3fn"
    shapes = {"blocks": ((m, 2), (2, 1)), "whole": ((), (1,))}.get(kind, ((m, 1), (1, n)))
    plain = [(3 * draw(*s)).astype(dtype) for s in ((m, k), (k, n))]
    plain += [jnp.abs(draw(*s)).astype("float32") + 1 for s in shapes]
    dims = tuple((x.ndim and i % 2) if mask >> i & 1 else None for i, x in enumerate(plain))
    args = [
        x if d is None else jnp.stack([x.astype("f4"), x.astype("f4") / 4], d).astype(x.dtype)
        for x, d in zip(plain, dims, strict=True)
    ]

    def multiply(a, b, scale_a, scale_b):
        return matmul(a, b, scale_a=scale_a, scale_b=scale_b)

    mapped = jax.vmap(multiply, dims)(*args)
    for i in range(2):
        one = [np.asarray(x if d is None else jnp.take(x, i, d))
               for x, d in zip(args, dims, strict=True)]  # fmt: skip
        expected = unigemm.matmul(*one[:2], scale_a=one[2], scale_b=one[3])
        np.testing.assert_allclose(mapped[i], expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("scales", "error", "words"),
    [
        ({"scale_a": (3, 2)}, unigemm.UnsupportedProblem, "both operands"),
        ({"scale_a": (3, 3)}, unigemm.ShapeMismatch, "scale_a has shape"),
        ({"scale_a": (4, 1)}, unigemm.ShapeMismatch, "does not broadcast"),
        ({"scale_b": (3, 1, 5)}, unigemm.ShapeMismatch, "does not broadcast"),
        ({"scale_a": (3, 2), "scale_b": (2, 2)}, unigemm.ShapeMismatch, "scale_b has shape"),
    ],
)
def test_scales_that_do_not_fit_are_refused_while_they_are_traced(scales, error, words):
    a, b = jnp.ones((3, 200), "float8_e4m3fn"), jnp.ones((200, 5), "float8_e5m2")
    given = {name: jnp.ones(shape, "float32") for name, shape in scales.items()}
    with pytest.raises(error, match=words):
        jax.make_jaxpr(lambda x: matmul(x, b, **given))(a)


CASES = {
    "short": (16, 32, {}),
    "split K": (16, 4096, {}),
    "epilogue": (16, 32, {"c": (16,), "bias": (16, 1), "alpha": 0.5, "activation": "relu"}),
    "lines": (16, 48, {"scale_a": (16, 1), "scale_b": 0.5}),
    "blocks": (16, 256, {"scale_a": (16, 2), "scale_b": (2, 1)}),
}


@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_what_a_gpu_program_calls_launches_the_planned_kernel(monkeypatch, case):
    m, k, more = CASES[case]
    rng = np.random.default_rng(3)
    scaled = "scale_a" in more
    kind = numpy_dtype(DType.FLOAT8_E4M3FN) if scaled else "f4"
    a, b = (rng.integers(-2, 3, s).astype("f4").astype(kind) for s in ((m, k), (k, 16)))
    d = np.full((m, 16), np.nan, "f4")
    aux = {name: rng.integers(1, 4, s).astype("f4") for name, s in more.items()
              if isinstance(s, tuple)}  # fmt: skip
    told = tuple((name, x) for name, x in more.items() if name not in aux)
    with emulated(monkeypatch) as gpu:
        options = calls.Options("float32", backend="cute_wgmma" if scaled else "cute_simt")
        call = planned(options, (a, b), aux, (d,), told)
        assert scaled or bool(call.workspace) == (k > 4000)
        run(monkeypatch, gpu, call, (a, b, *aux.values()), (d,))
    expected = unigemm.matmul(a, b, **aux, **dict(told))  # whole numbers
    np.testing.assert_array_equal(d, expected)


@pytest.mark.compile
def test_a_program_for_gpus_holds_the_key_and_a_workspace(monkeypatch):
    monkeypatch.setattr(calls, "has_ffi", lambda: True)
    monkeypatch.setattr(calls, "_register", lambda platform: None)
    a, b = draw(16, 4096, dtype="float32"), draw(4096, 16, dtype="float32")
    traced = jax.jit(lambda a, b: matmul(a, b, backend="cute_simt")).trace(a, b)
    with emulated(monkeypatch):
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    (line,) = [line for line in text.splitlines() if "@unigemm_matmul(" in line]
    (key,) = map(int, re.findall(r"key = (\d+) : i64", line))
    assert f"tensor<{calls._CALLS[key].workspace}xui8>" in line
    monkeypatch.delitem(calls._CALLS, key)  # the device is gone
