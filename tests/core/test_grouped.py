"""`unigemm.grouped_matmul` in host memory: every form, epilogue and kind of bad input."""

from __future__ import annotations

import inspect
import itertools

import call_path
import numpy as np
import pytest
from grouped_cases import FORMS, LAYOUTS, SIZES, Sizes, ends, laid, operands, reference, shapes

import unigemm
from unigemm.arrays import types
from unigemm.arrays.library import KNOWN
from unigemm.problem.dtypes import DType, numpy_dtype, output_dtypes

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8")
UNEVEN = Sizes((3, 0, 5, 1), rest=2)


def multiply(form, a, b, found, *more, **options):
    if form == "rows":
        return unigemm.grouped_matmul(a, b, None, *more, rows=found, **options)
    return unigemm.grouped_matmul(a, b, found, *more, **options)


def numbers(x):
    return np.asarray(x).astype(np.float64)


@pytest.mark.sample(40)
@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
@pytest.mark.parametrize("integer", ["int32", "int64"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", range(len(SIZES)))
@pytest.mark.parametrize("form", FORMS)
def test_each_group_is_the_product_of_its_own(form, size, dtype, integer, layout_a, layout_b):
    s, kind = SIZES[size], numpy_dtype(DType(dtype))
    a, b = operands(form, s, kind, (layout_a, layout_b))
    found = multiply(form, a, b, ends(form, s).astype(integer))
    expected = reference(form, a, b, ends(form, s))
    assert found.dtype == numpy_dtype(output_dtypes(DType(dtype))[0])
    np.testing.assert_array_equal(numbers(found), expected)


@pytest.mark.parametrize("layout", [*LAYOUTS, "flipped"])
@pytest.mark.parametrize("rest", ["zeros", "untouched"])
@pytest.mark.parametrize("form", FORMS)
def test_out_gets_the_groups_and_zeros_or_nothing_behind_them(form, rest, layout):
    a, b = operands(form, UNEVEN, np.float32)
    shape = shapes(form, UNEVEN)[2]
    before = np.full(shape, 7, np.float32)
    out = laid(before, layout if layout != "flipped" else "rows")
    out = out[..., ::-1] if layout == "flipped" else out
    found = multiply(form, a, b, ends(form, UNEVEN), out, rest=rest)
    assert found is out
    kept = before if rest == "untouched" else None
    np.testing.assert_array_equal(out, reference(form, a, b, ends(form, UNEVEN), before=kept))


@pytest.mark.parametrize("rest", ["zeros", "untouched"])
def test_out_may_share_memory_with_an_operand_on_the_host(rest):
    s = Sizes((3, 2), rest=2, other=4, inner=4)
    a, b = operands("m", s, np.float32)
    a[5:] = 9
    expected = reference("m", a, b, s.offsets, before=a if rest == "untouched" else None)
    multiply("m", a, b, s.offsets, a, rest=rest)
    np.testing.assert_array_equal(a, expected)


def aux(form, rng):
    """Return bias of all groups and of each, c of D's shape and by group, as float32."""
    d, g = shapes(form, UNEVEN)[2], UNEVEN.count
    by_group = [g, 1, 1] if form in ("m", "n") else [g, d[-2], 1]
    by_group[2 if form != "n" else 1] = d[-1] if form != "n" else d[-2]
    each = (g, d[-1]) if form != "n" else (g, d[0], 1)
    kinds = {"bias": d[-1:], "bias of groups": each, "c": d, "c of groups": tuple(by_group)}
    return {name: rng.integers(-3, 4, shape).astype("f4") for name, shape in kinds.items()}


def part_of(form, x, name, g, at):
    """Return the part of an auxiliary array that a group sees."""
    x = x[:, None] if name == "bias of groups" and form != "n" else x
    whole = np.broadcast_to(x, (UNEVEN.count, *shapes(form, UNEVEN)[2][-2:]))
    return whole[g][at] if form in ("m", "n") else whole[at]


@pytest.mark.parametrize("name", ["bias", "bias of groups", "c", "c of groups"])
@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_an_epilogue_are_of_all_groups_or_of_each(form, name):
    a, b = operands(form, UNEVEN, np.float32)
    x = aux(form, np.random.default_rng(1))[name]
    given = {name.partition(" ")[0]: x}
    found = multiply(form, a, b, ends(form, UNEVEN), activation="relu", alpha=0.5, **given)
    expected = reference(
        form, a, b, ends(form, UNEVEN),
        lambda acc, g, at: np.maximum(0.5 * acc + part_of(form, x, name, g, at), 0),
    )  # fmt: skip
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("by_group", [True, False])
@pytest.mark.parametrize("form", ["m", "k", "rows"])
def test_what_is_behind_the_groups_counts_in_no_sum_and_no_maximum(form, by_group):
    a, b = operands(form, UNEVEN, np.float64)
    d = shapes(form, UNEVEN)[2]
    amax = np.full(1, np.nan, "f4")
    total = np.full((UNEVEN.count, d[-1]) if by_group else (d[-1],), np.nan)
    preact = np.full(d, np.nan)
    bias = np.full((UNEVEN.count, d[-1]), 50.0)
    bias[0] = -60
    found = multiply(
        form, a, b, ends(form, UNEVEN), bias=bias, activation="relu2",
        preact_out=preact, amax_out=amax, bias_grad_out=total,
    )  # fmt: skip
    before = reference(form, a, b, ends(form, UNEVEN), lambda acc, g, at: acc + bias[g])
    sums = np.zeros((UNEVEN.count, d[-1]))

    def epilogue(part, g, at):
        result = np.maximum(part + bias[g], 0) ** 2
        sums[g] = result.sum(0)
        return result

    expected = reference(form, a, b, ends(form, UNEVEN), epilogue)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(preact, before)
    assert amax[0] == expected.max()
    np.testing.assert_allclose(total, sums if by_group else sums.sum(0), rtol=1e-12)


@pytest.mark.parametrize("gate_layout", ["halves", "interleaved"])
@pytest.mark.parametrize("form", ["m", "k", "rows"])
def test_gated_activations_take_pairs_of_columns_of_each_group(form, gate_layout):
    s = Sizes((3, 0, 5, 1), rest=2, other=6, inner=4)
    a, b = operands(form, s, np.float32)
    options = {"activation": "swiglu", "gate_layout": gate_layout}
    found = multiply(form, a, b, ends(form, s), **options)

    def epilogue(acc, g, at):
        n = acc.shape[1] // 2
        one, two = (acc[:, :n], acc[:, n:])
        if gate_layout == "interleaved":
            one, two = acc[:, ::2], acc[:, 1::2]
        return one / (1 + np.exp(-one)) * two

    expected = reference(form, a, b, ends(form, s), epilogue)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_function_of_the_accumulator_may_give_several_results(form):
    a, b = operands(form, UNEVEN, np.float32)
    d = shapes(form, UNEVEN)[2]

    def two(acc, x):
        return acc * 2, acc + x

    more = np.arange(np.prod(d), dtype="f4").reshape(d)
    args = {"epilogue": two, "epilogue_args": {"x": more}}
    out = (np.full(d, 7.0, "f4"), laid(np.full(d, 7.0, "f4"), "columns"))
    for results in (multiply(form, a, b, ends(form, UNEVEN), **args),
                    multiply(form, a, b, ends(form, UNEVEN), out, **args)):  # fmt: skip
        expected = reference(form, a, b, ends(form, UNEVEN))
        second = reference(form, a, b, ends(form, UNEVEN), lambda s, g, at: s + more[at])
        np.testing.assert_array_equal(results[0], 2 * expected)
        np.testing.assert_array_equal(results[1], second)


@pytest.mark.parametrize("kind", ["groups", "one", "number"])
@pytest.mark.parametrize("form", FORMS)
def test_float8_has_a_scale_for_all_or_for_each_group(form, kind):
    a, b = operands(form, UNEVEN, numpy_dtype(DType.FLOAT8_E4M3FN))
    scales = np.array([0.5, 8, 2, 4], "f4")
    given = {"groups": scales, "one": np.full(1, 0.5, "f4"), "number": 0.5}[kind]
    expected = reference(
        form, a, b, ends(form, UNEVEN),
        lambda acc, g, at: acc * 2 * (scales[g] if kind == "groups" else 0.5),
    )  # fmt: skip
    for scale_a, scale_b in ((given, 2.0), (2.0, given), (given, np.full(1, 2, "f4"))):
        found = multiply(form, a, b, ends(form, UNEVEN), scale_a=scale_a, scale_b=scale_b)
        np.testing.assert_array_equal(found, expected)


def test_two_stacks_without_ends_are_multiplied_whole():
    a, b = operands("rows", Sizes((4, 4, 4)), np.float32)
    bias = np.arange(15, dtype="f4").reshape(3, 5)
    np.testing.assert_array_equal(unigemm.grouped_matmul(a, b), a @ b)
    np.testing.assert_array_equal(unigemm.grouped_matmul(a, b, bias=bias), a @ b + bias[:, None])


@pytest.mark.parametrize("epilogue", [{}, {"bias": np.arange(5.0)}])
@pytest.mark.parametrize("rest", ["zeros", "untouched"])
@pytest.mark.parametrize("form", FORMS)
def test_k_of_nothing_gives_zeros(form, rest, epilogue):
    s = Sizes((0, 0), other=3, inner=5) if form == "k" else Sizes((3, 1), rest=1, inner=0)
    a, b = operands(form, s, np.float64)
    shape = shapes(form, s)[2]
    epilogue = {"bias": np.arange(float(shape[-1]))} if epilogue else {}
    out = np.full(shape, 7.0)
    multiply(form, a, b, ends(form, s), out, rest=rest, **epilogue)

    def with_bias(acc, g, at):
        row = epilogue["bias"] if epilogue else np.zeros(shape[-1])
        return acc + (row[at[1]] if form == "n" else row)

    before = np.full(shape, 7.0) if rest == "untouched" else None
    np.testing.assert_array_equal(out, reference(form, a, b, ends(form, s), with_bias, before))


@pytest.mark.parametrize("form", FORMS)
def test_no_groups_and_empty_results_are_no_error(form):
    none = np.zeros(0, np.int32)
    a, b = {
        "m": (np.ones((4, 3)), np.ones((0, 3, 2))),
        "n": (np.ones((0, 2, 3)), np.ones((3, 4))),
        "k": (np.ones((2, 4)), np.ones((4, 3))),
        "rows": (np.ones((0, 2, 3)), np.ones((0, 3, 2))),
    }[form]
    found = multiply(form, a, b, none)
    assert not found.any()
    amax = np.full(1, np.nan, "f4")
    preact = np.full(found.shape, np.nan)
    found = multiply(
        form, a, b, none, bias=np.ones(found.shape[-1]), activation="relu",
        amax_out=amax, preact_out=preact,
    )  # fmt: skip
    assert amax[0] == 0
    assert not found.any()
    assert not preact.any()
    out = np.full(found.shape, 7.0)
    multiply(form, a, b, none, out, rest="untouched")
    assert (out == 7).all()
    s = Sizes((0, 0), other=4)
    a, b = operands(form, s, np.float64)
    assert not multiply(form, a, b, ends(form, s)).any()


BAD_ENDS = [
    ([3, 2, 9, 9], "offsets fall from 3 to 2"),
    ([1, 2, 3, 12], "offsets have 12, and there are 11 "),
    ([-1, 2, 3, 4], "offsets have -1"),
    ([0, 0, 2**40, 4], "offsets have 1099511627776"),
]


@pytest.mark.parametrize(("bad", "said"), BAD_ENDS)
@pytest.mark.parametrize("form", ["m", "n", "k"])
def test_ends_in_host_memory_are_checked_at_every_call_before_anything_is_written(form, bad, said):
    a, b = operands(form, UNEVEN, np.float32)
    offsets = ends(form, UNEVEN).astype(np.int64)
    out, amax = np.full(shapes(form, UNEVEN)[2], 7, "f4"), np.full(1, 7, "f4")
    multiply(form, a, b, offsets, out, amax_out=amax, alpha=2.0)  # is known now
    offsets[:] = bad
    out[...] = amax[...] = 7
    with pytest.raises(unigemm.UnsupportedProblem, match=said):
        multiply(form, a, b, offsets, out, amax_out=amax, alpha=2.0)
    assert (out == 7).all()
    assert amax[0] == 7


@pytest.mark.parametrize(("bad", "said"), [([6, 0, 0, 0], "have 6, "), ([0, -3, 0, 0], "have -3,")])
def test_valid_rows_are_checked_too_and_need_not_ascend(bad, said):
    a, b = operands("rows", UNEVEN, np.float32)
    assert a.shape[1] == 5
    with pytest.raises(unigemm.UnsupportedProblem, match=f"rows {said}"):
        unigemm.grouped_matmul(a, b, rows=np.array(bad))
    unigemm.grouped_matmul(a, b, rows=np.array([5, 0, 3, 1]))


X, W, Y = np.ones((9, 4), "f4"), np.ones((2, 4, 6), "f4"), np.ones((4, 9), "f4")
STACK = np.ones((2, 5, 4), "f4")
ENDS = np.array([3, 9], np.int32)
REFUSED = {
    "no offsets": ((X, W), {}, unigemm.ShapeMismatch, "nothing says where the rows of a"),
    "both ends": ((STACK, W, ENDS), {"rows": ENDS}, unigemm.UnsupportedProblem, "both given"),
    "offsets of stacks": ((STACK, W, ENDS), {}, unigemm.ShapeMismatch, "rows="),
    "rows of no stack": ((X, W), {"rows": ENDS}, unigemm.ShapeMismatch, "pass offsets"),
    "one number short": ((X, W, ENDS[:1]), {}, unigemm.ShapeMismatch, "one number for each"),
    "a matrix of ends": ((X, W, ENDS[:, None]), {}, unigemm.ShapeMismatch, "one dimension"),
    "ends of floats": ((X, W, ENDS * 1.0), {}, unigemm.UnsupportedDtype, "int32 or int64"),
    "ends of int16": ((X, W, ENDS.astype("i2")), {}, unigemm.UnsupportedDtype, "int32 or int64"),
    "ends backwards": ((X, W, ENDS[::-1]), {}, unigemm.UnsupportedProblem, "compact copy"),
    "an end": ((X, W, 9), {}, unigemm.ShapeMismatch, "one dimension"),
    "no array": ((X, W, object()), {}, unigemm.LibraryMismatch, "offsets"),
    "a vector": ((X[0], W, ENDS), {}, unigemm.ShapeMismatch, "two or three dimensions"),
    "four dimensions": ((X, W[None], ENDS), {}, unigemm.ShapeMismatch, "two or three"),
    "inner extents": ((X[:, :3], W, ENDS), {}, unigemm.ShapeMismatch, "inner extents differ"),
    "K of two lengths": ((Y, X[:8], ENDS), {}, unigemm.ShapeMismatch, "inner extents differ"),
    "stacks": ((STACK[:1], W), {}, unigemm.ShapeMismatch, "stacks of equal length"),
    "out": ((X, W, ENDS, X), {}, unigemm.ShapeMismatch, "out has shape"),
    "int16": ((X.astype("i2"), W.astype("i2"), ENDS), {}, unigemm.UnsupportedDtype, "int16"),
    "mixed": ((X.astype("f8"), W, ENDS), {}, unigemm.UnsupportedDtype, "convert one"),
    "rest": ((X, W, ENDS), {"rest": "ones"}, unigemm.UnsupportedProblem, "'zeros'"),
    "a list as rest": ((X, W, ENDS), {"rest": []}, unigemm.UnsupportedProblem, "'zeros'"),
    "invariant": ((X, W, ENDS), {"batch_invariant": True}, unigemm.UnsupportedProblem, "out"),
    "scales": ((X, W, ENDS), {"scale_a": 2.0}, unigemm.UnsupportedProblem, "float8"),
    "bias": ((X, W, ENDS), {"bias": np.ones((9, 6), "f4")}, unigemm.ShapeMismatch, "bias has"),
    "c": ((X, W, ENDS), {"c": np.ones((2, 9, 6), "f4")}, unigemm.ShapeMismatch, "must be 1"),
    "preact": ((X, W, ENDS), {"activation": "relu", "preact_out": W}, unigemm.ShapeMismatch, "has"),
    "a gate of columns": (
        (STACK, Y[:, :8], ENDS - 1),
        {"activation": "swiglu", "gate_layout": "halves"},
        unigemm.UnsupportedProblem,
        "columns are divided",
    ),
    "bias of columns": (
        (STACK, Y, ENDS), {"bias": np.ones((2, 9), "f4")}, unigemm.ShapeMismatch, r"\(G, M, 1\)"
    ),
    "a narrow bias gradient": (
        (X, W, ENDS), {"bias_grad_out": np.ones(6, "f2")}, unigemm.UnsupportedProblem, "float32"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_grouped_product_is_refused_with_what_would_work(name):
    args, options, error, said = REFUSED[name]
    with pytest.raises(error, match=said) as found:
        unigemm.grouped_matmul(*args, **options)
    assert type(found.value) is error


def test_its_arguments_are_the_fields_of_a_request():
    parameters = inspect.signature(unigemm.grouped_matmul).parameters
    own = {"operation", "axes", "casting"}
    assert {*parameters} == {*call_path.FIELDS} - own
    for name, default in call_path.DEFAULTS.items():
        assert name in own or parameters[name].default == default, name
    assert {*types.GroupedOptions.__annotations__} == {*parameters} - {"a", "b", "offsets", "out"}


def test_a_call_is_known_by_all_but_what_the_ends_say():
    table = KNOWN[np.ndarray].table
    a, b = operands("m", UNEVEN, np.float32)
    table.clear()
    for sizes in itertools.permutations((3, 0, 5, 1)):
        found = unigemm.grouped_matmul(a, b, np.cumsum(sizes), alpha=2.0)
        np.testing.assert_array_equal(found, 2 * reference("m", a, b, np.cumsum(sizes)))
    assert len(table) == 1
    unigemm.grouped_matmul(a, b, np.cumsum(sizes).astype(np.int32), alpha=2.0)
    unigemm.grouped_matmul(a, b, np.cumsum(sizes), alpha=2.0, rest="untouched")
    assert len(table) == 3


def test_ends_may_be_lists():
    np.testing.assert_array_equal(unigemm.grouped_matmul(X, W, [3, 9]), np.full((9, 6), 4))


def test_nan_in_one_group_stays_there():
    for form in FORMS:
        a, b = operands(form, UNEVEN, np.float64)
        at = {"m": (slice(0, 3),), "n": (0,), "k": (slice(None), slice(0, 3)), "rows": (0,)}[form]
        a[at] = np.nan
        found = multiply(form, a, b, ends(form, UNEVEN))
        expected = reference(form, a, b, ends(form, UNEVEN))
        np.testing.assert_array_equal(found, expected)
        assert np.isnan(expected).any()
        assert not np.isnan(expected).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_plan_of_descriptions_fits_the_call(form):
    s = Sizes((3, 0, 5, 1), rest=2)
    a, b = operands(form, s, np.float32)
    found, d = ends(form, s), shapes(form, s)[2]
    bias = np.ones((4, d[-1]) if form != "n" else (4, d[0], 1), "f4")
    name = "rows" if form == "rows" else "offsets"
    of = {"a": a, "b": b, name: found, "bias": bias}
    spec = {x: unigemm.ArraySpec(y.shape, y.dtype) for x, y in of.items()}
    plan = unigemm.plan(spec.pop("a"), spec.pop("b"), target="cpu", **spec)
    assert plan == unigemm.plan(a, b, bias=bias, **{name: found})
    assert plan == type(plan).from_json(plan.to_json())
    assert "4 groups" in str(plan) or form == "rows"
    again = multiply(form, a, b, found, bias=bias, plan=plan)
    np.testing.assert_array_equal(again, multiply(form, a, b, found, bias=bias))
    with pytest.raises(unigemm.UnsupportedProblem, match="groups is"):
        multiply(form, a, b, found.astype(np.int32), bias=bias, plan=plan)


def test_a_plan_of_another_number_of_groups_is_refused():
    plan = unigemm.plan(X, W, offsets=ENDS)
    with pytest.raises(unigemm.UnsupportedProblem, match="size is"):
        unigemm.grouped_matmul(X, np.ones((3, 4, 6), "f4"), np.array([1, 2, 9], "i4"), plan=plan)


def libraries():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    return {"torch": torch.from_numpy, "jax": jnp.asarray}


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("form", FORMS)
def test_other_libraries_get_the_same_of_their_own_arrays(form, library):
    to = libraries()[library]
    a, b = operands(form, UNEVEN, np.float32)
    found = ends(form, UNEVEN).astype(np.int32)
    row = np.arange(shapes(form, UNEVEN)[2][-1], dtype="f4")
    for _ in range(2):  # the second call is known
        result = multiply(form, to(a), to(b), to(found), bias=to(row))
        expected = multiply(form, a, b, found, bias=row)
        assert type(result) is type(to(expected))
        np.testing.assert_array_equal(np.asarray(result), expected)
    with pytest.raises(unigemm.LibraryMismatch, match="is a ndarray, of another library"):
        multiply(form, to(a), to(b), found)
    with pytest.raises(unigemm.UnsupportedProblem, match="pass numbers from 0"):
        multiply(form, to(a), to(b), to(found + 90))


def test_what_is_written_shares_memory_with_no_offsets():
    both = np.zeros(54 + 8, np.int32)
    both[-2:] = ENDS
    out = both[-54:].view("f4").reshape(9, 6)
    with pytest.raises(unigemm.OverlapError, match="out shares memory with offsets"):
        unigemm.grouped_matmul(X, W, both[-2:], out)
    with pytest.raises(unigemm.OverlapError, match="amax_out shares memory with offsets"):
        unigemm.grouped_matmul(X, W, both[-2:], amax_out=both[-1:].view("f4"), alpha=2.0)
