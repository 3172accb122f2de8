"""`unigemm.jax.ragged_dot`, against `jax.lax.ragged_dot`: types, transformations, refusals."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from needed import needed

import unigemm

jax = needed("jax")

import jax.numpy as jnp  # noqa: E402
from gpu_programs import emulated, planned, run  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import unigemm.jax as uj  # noqa: E402
from unigemm.jax import calls, grouped_calls  # noqa: E402

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
    "more rows than there are": ((A, B, ENDS + 1), {}, unigemm.UnsupportedProblem),
    "a size below 0": ((A, B, ENDS - 1), {}, unigemm.UnsupportedProblem),
    "sizes that are too large for their sum": (
        (A, B, jnp.full(3, 2**31 - 1)),
        {},
        unigemm.UnsupportedProblem,
    ),
    "scales of float32": ((A, B, ENDS), {"scale_a": 2.0}, unigemm.UnsupportedProblem),
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
    rows = jnp.ones((9, 1))
    for loss in (
        lambda a, rows: uj.ragged_dot(a, b, ENDS).sum(),
        lambda a, rows: uj.ragged_dot(a, b, ENDS, scale_a=rows).sum(),
    ):
        with pytest.raises(unigemm.UnsupportedProblem, match="eight bits have no gradients"):
            jax.grad(loss)(a, rows)
    with pytest.raises(unigemm.UnsupportedProblem, match="eight bits have no gradients"):
        jax.grad(lambda rows: uj.ragged_dot(a, b, ENDS, scale_a=rows).sum())(rows)


def test_no_products_at_all_are_a_stack_of_none():
    a, b = operands()
    found = jax.vmap(uj.ragged_dot, in_axes=(0, None, None))(a[None][:0], b, ENDS)
    assert (found.shape, found.dtype) == ((0, 9, 5), jnp.float32)


#: What shares a scale of the rows, and of the columns of each group.
SHARED = {
    "a group": lambda t, n, k: ((3,), (3,)),
    "a group and all": lambda t, n, k: ((), (3,)),
    "rows and columns": lambda t, n, k: ((t, 1), (1, n)),
    "rows and columns of each group": lambda t, n, k: ((t, 1), (3, 1, n)),
    "128 of a row": lambda t, n, k: ((t, -(-k // 128)), (3, -(-k // 128), n)),
    "128 of 128 columns": lambda t, n, k: ((t, -(-k // 128)), (3, -(-k // 128), -(-n // 128))),
}


def drawn_scales(what, t, n, k, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    of_a, of_b = SHARED[what](t, n, k)
    return {name: jnp.asarray(2.0 ** rng.integers(-2, 3, shape)).astype(dtype)
            for name, shape in (("scale_a", of_a), ("scale_b", of_b))}  # fmt: skip


def whole_scale(scale, shape, name, sizes=None):
    """Return scales as one for each element of an operand, in float64."""
    x = np.asarray(scale, np.float64)
    if name == "scale_a" and x.shape == (3,):  # of the groups whose rows these are
        x = np.repeat(np.append(x, 0), [*sizes, shape[0] - sum(sizes)])[:, None]
    elif x.shape == (3,):
        x = x[:, None, None]
    for along in (-2, -1) if x.ndim > 1 else ():
        if x.shape[along] not in (1, shape[along]):
            x = np.repeat(x, 128, along).take(np.arange(shape[along]), along)
    return np.broadcast_to(x, shape)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("what", SHARED)
def test_eight_bits_have_scales_of_groups_lines_and_blocks(way, what, dtype):
    t, n, k = 9, 150, 300
    rng = np.random.default_rng(1)
    a, b = (jnp.asarray(rng.integers(-3, 4, s)).astype(dtype) for s in ((t, k), (3, k, n)))
    if dtype == "int8" and ("group" in what.split()[1:2] or "128" in what):
        with pytest.raises(unigemm.UnsupportedProblem):
            uj.ragged_dot(a, b, ENDS, **drawn_scales(what, t, n, k))
        return

    def multiply(a, b, sizes, scales):
        return uj.ragged_dot(a, b, sizes, **scales)

    functions = jax.jit(multiply), multiply
    exponents = ["float8_e8m0fnu"] if "128" in what else []
    for kind in ("float32", *exponents):
        scales = drawn_scales(what, t, n, k, kind)
        for sizes in SIZES:
            x = np.asarray(a, np.float64) * whole_scale(
                scales["scale_a"], a.shape, "scale_a", sizes
            )
            y = np.asarray(b, np.float64) * whole_scale(scales["scale_b"], b.shape, "scale_b")
            expected, begin = np.zeros((t, n)), 0
            for group, size in enumerate(sizes):
                expected[begin : begin + size] = x[begin : begin + size] @ y[group]
                begin += size
            for f in functions:
                found = f(a, b, jnp.array(sizes), scales)
                assert found.dtype == jnp.float32
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


def test_scales_that_are_numbers_and_types_of_results(way):
    a, b = operands("int8")
    exact = 1.5 * np.asarray(uj.ragged_dot(a, b, ENDS, None, jnp.int32))
    for preferred in (None, "bfloat16"):
        found = uj.ragged_dot(a, b, ENDS, None, preferred, scale_a=0.5, scale_b=3.0)
        assert found.dtype == jnp.dtype(preferred or "float32")
        np.testing.assert_allclose(np.asarray(found, "f4"), exact, rtol=0.01)


def test_vmap_maps_scales_as_a_loop_does():
    a, b = operands("float8_e4m3fn")
    rows = jnp.stack([jnp.full((9, 1), x) for x in (1.0, 2.0)])
    f = lambda a, rows: uj.ragged_dot(a, b, ENDS, scale_a=rows, scale_b=2.0)  # noqa: E731
    found = jax.vmap(f, in_axes=(None, 0))(a, rows)
    for i in range(2):
        np.testing.assert_array_equal(found[i], f(a, rows[i]))


@pytest.mark.parametrize("k", [0, 5, 200])
def test_scales_of_another_shape_or_type_are_refused_in_words(k):
    a, b = jnp.ones((9, k), "float8_e4m3fn"), jnp.ones((3, k, 150), "float8_e4m3fn")
    blocks = -(-k // 128)
    for given, error, words in (
        ({"scale_a": jnp.ones((9, 7))}, unigemm.ShapeMismatch, "scale_a has shape"),
        ({"scale_b": jnp.ones((4,))}, unigemm.ShapeMismatch, "scale_b has shape"),
        ({"scale_a": jnp.ones((9, 1), "bfloat16")}, unigemm.UnsupportedDtype, "scale_a is bf"),
        ({"scale_a": "2"}, unigemm.LibraryMismatch, "scale_a is a str"),
        ({"scale_a": 2j}, unigemm.UnigemmError, "scale_a"),
        ({"scale_a": jnp.ones((9, blocks)), "scale_b": jnp.ones((2, blocks, 150))},
         unigemm.UnigemmError, "scale_[ab]"),
    ):  # fmt: skip
        call = functools.partial(uj.ragged_dot, a, b, ENDS, **given)
        for f in (call, jax.jit(call)):
            with pytest.raises(error, match=words):
                f()
    rows, columns = jnp.ones((9, blocks)), jnp.ones((3, blocks, 150))
    found = uj.ragged_dot(a, b, ENDS, scale_a=rows, scale_b=columns)
    np.testing.assert_array_equal(found, np.repeat([[k], [0]], [7, 2], 0) * np.ones((1, 150)))


@pytest.mark.compile
@pytest.mark.parametrize("what", [None, *SHARED])
def test_what_a_gpu_program_calls_takes_the_scales_that_it_has(monkeypatch, what):
    t, n, k, sizes = 20, 16, 144, (5, 0, 12)
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-2, 3, s).astype("f4") for s in ((t, k), (3, k, n)))
    aux = {}
    if what is not None:
        a, b = (np.asarray(x, jnp.float8_e4m3fn) for x in (a, b))
        aux = {name: np.array(x) for name, x in drawn_scales(what, t, n, k).items()}
    told = (("scale_b", 0.5),) if what == "a group and all" else ()
    for name, _ in told:
        del aux[name]
    ends, d = np.cumsum(sizes, dtype="i4"), np.full((t, n), np.nan, "f4")
    with emulated(monkeypatch) as gpu:
        options = calls.Options("float32", backend="cute_simt" if what is None else "cute_wgmma")
        form = grouped_calls.form_for(a, b, ends, (False, False))
        call = planned(options, (a, b), aux, (d,), told, form)
        run(monkeypatch, gpu, call, (a, b, ends, *aux.values()), (d,))
    expected = unigemm.grouped_matmul(a, b, ends, **aux, **dict(told))  # whole numbers
    np.testing.assert_array_equal(d, expected)
