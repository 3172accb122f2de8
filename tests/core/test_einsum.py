"""`unigemm.einsum` and its relatives against NumPy's: results, refusals, and what is copied."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigemm
from unigemm.arrays import numpy_arrays
from unigemm.arrays.library import KNOWN

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SMALL = ["float8_e4m3fn", "float8_e5m2", "bfloat16"]


def numbers(shape, dtype=np.float64, seed=0):
    """Return small integers, which sums of any order hold exactly."""
    drawn = np.random.default_rng(seed)
    x = drawn.integers(-4, 5, shape)
    y = 1j * drawn.integers(-4, 5, shape) if np.dtype(dtype).kind == "c" else 0
    return np.asarray(x + y, dtype)


@st.composite
def views(draw, shape, dtype, seed):
    """Draw an array of a shape: dense in any order, of every other element, or backwards."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
    whole = numbers([shape[i] * steps[i] for i in order], dtype, seed)
    x = whole.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    flips = [draw(st.sampled_from([1, 1, 1, -1])) for _ in shape]
    return x[tuple(slice(None, None, flip) for flip in flips)]


@st.composite
def contractions(draw, most=3):
    """Draw subscripts, operands that fit them, and a result."""
    dtype = draw(st.sampled_from([np.float64, np.float32, np.int64, np.complex128]))
    extents = {index: draw(st.sampled_from([1, 2, 3])) for index in "abcde"}
    if draw(st.integers(0, 9)) == 0:
        extents["a"] = 0
    dots = draw(st.lists(st.sampled_from([1, 2]), max_size=2))
    parts, arrays = [], []
    for seed in range(draw(st.integers(1, most))):
        indices = draw(st.lists(st.sampled_from("abcde"), max_size=4))
        shape = [extents[i] for i in indices]
        alone = draw(st.booleans()) and len({*indices}) == len(indices)
        shape = [1 if alone and draw(st.integers(0, 5)) == 0 else extent for extent in shape]
        text = "".join(indices)
        if dots and draw(st.booleans()):
            at = draw(st.integers(0, len(indices)))
            more = dots[draw(st.integers(0, len(dots))) :]
            text = f"{text[:at]}...{text[at:]}"
            shape = [*shape[:at], *more, *shape[at:]]
        parts.append(text)
        arrays.append(draw(views(shape, dtype, seed)))
    said = ",".join(parts)
    if draw(st.booleans()):
        letters = sorted({*said} - {*".,"})
        kept = draw(st.permutations(letters))[: draw(st.integers(0, len(letters)))]
        at = draw(st.integers(0, len(kept)))
        said += "->" + "".join((*kept[:at], "..." if "..." in said else "", *kept[at:]))
    return said, arrays


@settings(max_examples=150)
@given(case=contractions())
def test_any_contraction_is_numpys(case):
    text, arrays = case
    expected = np.einsum(text, *arrays)
    got = unigemm.einsum(text, *arrays)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected)


@settings(max_examples=60)
@given(case=contractions(most=2), kind=st.sampled_from(SMALL))
def test_any_contraction_of_small_types_is_that_of_their_numbers(case, kind):
    text, arrays = case
    small = [x.real.astype(getattr(ml_dtypes, kind)) for x in arrays]
    got = unigemm.einsum(text, *small)
    expected = np.einsum(text, *(x.astype(np.float64) for x in small))
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0.01)


@settings(max_examples=40)
@given(case=contractions(most=2))
def test_any_contraction_of_tensors_is_numpys(case):
    text, arrays = case
    tensors = [torch.as_tensor(np.array(x)) for x in arrays]
    tensors = [x if x.ndim < 2 else x.mT.contiguous().mT for x in tensors]
    got = unigemm.einsum(text, *tensors)
    assert type(got) is torch.Tensor
    np.testing.assert_array_equal(got.numpy(), np.einsum(text, *arrays))


@settings(max_examples=30)
@given(case=contractions(most=2), data=st.data())
def test_out_may_have_any_strides(case, data):
    text, arrays = case
    expected = np.einsum(text, *arrays)
    out = np.asarray(data.draw(views(expected.shape, expected.dtype, 9)))
    assert unigemm.einsum(text, *arrays, out=out) is out
    np.testing.assert_array_equal(out, expected)


X = np.ones((2, 3))
WRONG = [
    ("ij,jk", X),
    ("ij", X, X),
    ("ijk,jk", X, X),
    ("i", X),
    ("ij,jk", X, X),
    ("ij,jk->ii", X, X.T),
    ("ij,jk->z", X, X.T),
    ("ii", X),
    ("ii->i", X[:1]),
    ("...i->i", X),
    ("...->", X),
    ("i..j", X),
    ("i...j...", X),
    ("i-j", X),
    ("i->->i", X[0]),
    ("1j", X),
    ("i,j->ij,", X[0], X[0]),
    (X, [0, 60]),
    (X, [0, "a"]),
    (X, 3),
    ("ij",),
    (),
    (X,),
]


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_what_numpy_refuses_is_refused_with_what_would_do(given):
    with pytest.raises((ValueError, TypeError)):
        np.einsum(*given)
    with pytest.raises(unigemm.UnsupportedProblem, match="; "):
        unigemm.einsum(*given)


def test_lists_of_integers_mean_letters():
    a, b = numbers((2, 3, 4)), numbers((4, 5))
    for rest in ([], [[..., 2]]):
        expected = np.einsum(a, [..., 1], b, [1, 2], *rest)
        np.testing.assert_array_equal(unigemm.einsum(a, [..., 1], b, [1, 2], *rest), expected)
    np.testing.assert_array_equal(unigemm.einsum([1, 2], [0], [3, 4], [0]), 11)


@pytest.fixture
def copies(monkeypatch):
    """Count what is copied, or converted, of NumPy arrays."""
    made = []
    library = numpy_arrays.numpy_library()

    def assign(to, x):
        made.append(x)
        library.views.assign(to, x)

    counting = replace(library, views=replace(library.views, assign=assign), table={})
    monkeypatch.setitem(KNOWN, np.ndarray, counting)
    return made


#: Contractions that are one stacked product, wherever their dimensions lie.
ONE_PRODUCT = [
    ("bqhd,bkhd->bhqk", (2, 5, 3, 4), (2, 6, 3, 4)),
    ("bhqk,bkhd->bqhd", (2, 3, 5, 6), (2, 6, 3, 4)),
    ("abcd,de->abce", (2, 3, 4, 5), (5, 6)),
    ("dabc,de->eabc", (5, 2, 3, 4), (5, 6)),
    ("abcd,cde->abe", (2, 3, 4, 5), (4, 5, 6)),
    ("acbd,de->abce", (2, 4, 3, 5), (5, 6)),
    ("i,j->ji", (3,), (4,)),
    ("ij,ij->i", (3, 4), (3, 4)),
    ("iij,jk->ki", (3, 3, 4), (4, 5)),
    ("ij,k->k", (3, 4), (5,)),
    ("...ij,jk->...ki", (2, 3, 4, 5), (5, 6)),
    ("ij,j->", (3, 4), (4,)),
    (",ij->ji", (), (3, 4)),
]


@pytest.mark.parametrize(("text", "a", "b"), ONE_PRODUCT)
def test_what_is_one_stacked_product_is_not_copied(copies, text, a, b):
    x, y = numbers(a), numbers(b)
    out = np.empty(np.einsum(text, x, y).shape)
    unigemm.einsum(text, x, y, out=out)
    if text == "ij,j->":  # i is summed alone first, by the number one
        assert len(copies) == 1
        return
    assert not copies
    (step,) = unigemm.plan_einsum(text, x, y, out=out).steps
    assert (step.launches, step.copies) == (1, ())
    np.testing.assert_array_equal(out, np.einsum(text, x, y))


def test_the_smaller_operand_is_copied_where_sums_do_not_join(copies):
    a, b = numbers((2, 3, 4)), numbers((4, 3, 5))
    expected = np.einsum("abc,cbd->ad", a, b)
    np.testing.assert_array_equal(unigemm.einsum("abc,cbd->ad", a, b), expected)
    (copied,) = copies
    assert copied.size == a.size < b.size
    plan = unigemm.plan_einsum("abc,cbd->ad", a, b)
    assert plan.copied_bytes == a.nbytes
    assert f"operand 0 is copied first, {a.nbytes} bytes" in str(plan)


def test_stacks_of_many_launches_are_copied_and_those_of_few_are_not(copies):
    # Three dimensions of the stack that do not join: one launch takes two of them.
    text = "abcij,cbajk->abcik"
    for extent, launches in ((2, 2), (5, 1)):
        copies.clear()
        a, b = numbers((extent, 5, 6, 2, 3)), numbers((6, 5, extent, 3, 2))
        expected = np.einsum(text, a, b)
        np.testing.assert_array_equal(unigemm.einsum(text, a, b), expected)
        (step,) = unigemm.plan_einsum(text, a, b).steps
        assert step.launches == launches
        assert len(copies) == len(step.copies) == (launches == 1)


def test_out_that_shares_memory_with_an_operand_is_right_on_the_host():
    a, b = numbers((3, 3)), numbers((3, 3), seed=1)
    for text in ("ij,jk->ik", "ij,kj->ki", "ij,ij->ij"):
        board = a.copy()
        expected = np.einsum(text, board, b)
        unigemm.einsum(text, board, b, out=board)
        np.testing.assert_array_equal(board, expected)


def test_an_out_that_does_not_fit_is_refused_before_anything_is_written():
    a = numbers((2, 3))
    flat = np.zeros(3)
    for out, kind in (
        (np.zeros((2, 3)), unigemm.ShapeMismatch),
        (np.zeros((2, 2, 1)), unigemm.ShapeMismatch),
        (np.broadcast_to(np.zeros(2), (2, 2)), unigemm.UnsupportedProblem),
        (np.lib.stride_tricks.as_strided(flat, (2, 2), (8, 8)), unigemm.OverlapError),
        (np.zeros((2, 2), "int8"), unigemm.UnsupportedDtype),
        (torch.zeros(2, 2), unigemm.LibraryMismatch),
    ):
        with pytest.raises(kind, match=r"; |: pass"):
            unigemm.einsum("ij,kj->ik", a, a, out=out)
    assert not flat.any()


def test_what_matmul_takes_beside_a_product_is_in_the_results_shape():
    a, b = numbers((2, 5, 3, 4), np.float32), numbers((2, 6, 3, 4), np.float32)
    text = "bqhd,bkhd->bhqk"
    product = np.einsum(text, a, b)
    bias, c = numbers((3, 1, 6), np.float32), numbers(product.shape, np.float32, 3)
    got = unigemm.einsum(text, a, b, alpha=2.0, bias=bias, beta=0.5, c=c, activation="relu")
    np.testing.assert_array_equal(got, np.maximum(2 * product + 0.5 * c + bias, 0))
    out = c.copy()
    unigemm.einsum(text, a, b, c=out, out=out)
    np.testing.assert_array_equal(out, product + c)
    first, second = unigemm.einsum(
        text, a, b, epilogue=lambda acc, x: (acc + x, acc - x), epilogue_args={"x": bias}
    )
    np.testing.assert_array_equal(first, product + bias)
    np.testing.assert_array_equal(second, product - bias)
    total = np.zeros(6, np.float32)
    unigemm.einsum(text, a, b, bias_grad_out=total)
    np.testing.assert_array_equal(total, product.sum((0, 1, 2)))
    assert unigemm.einsum("ij,jk->ik", a[0, 0], b[0, 0].T, dtype="float16", alpha=1.0).dtype == "f2"


@pytest.mark.parametrize(
    "option",
    [
        {"axes": [(0, 1)] * 3},
        {"gate_layout": "halves", "activation": "swiglu"},
        {"activation": "geglu"},
        {"scale_a": np.ones((2, 1), np.float32)},
        {"bias": np.ones(7, np.float32)},
        {"bias": torch.ones(2)},
        {"stream": 0},
        {"precision": "fp4"},
    ],
    ids=lambda x: next(iter(x)),
)
def test_what_a_contraction_cannot_have_is_refused(option):
    a = np.ones((2, 3), np.float32)
    with pytest.raises(unigemm.UnigemmError, match=r"; |: pass"):
        unigemm.einsum("ij,kj", a, a, **option)


def test_unknown_options_are_an_error_of_python():
    with pytest.raises(TypeError, match="unexpected keyword argument 'outt'"):
        unigemm.einsum("ij->ji", np.eye(2), outt=1)


@pytest.mark.parametrize("kind", ["f8", "c8", "i1", "?", *SMALL])
def test_a_view_of_the_only_operand_is_no_copy(kind):
    x = numbers((3, 4, 3)).astype(getattr(ml_dtypes, kind, kind))
    raw = x.view(f"u{x.itemsize}") if kind in SMALL else x  # which NumPy's own einsum takes
    for text in ("ijk->kij", "iji->ji", "iji->ij", "ijk->ijk"):
        got, expected = unigemm.einsum(text, x), np.einsum(text, raw)
        assert got.base is x
        assert got.flags.writeable
        assert (got.dtype, got.shape, got.strides) == (x.dtype, expected.shape, expected.strides)
        np.testing.assert_array_equal(got.view(raw.dtype), expected)
    assert unigemm.plan_einsum("ijk->kij", x).steps == ()
    x.flags.writeable = False
    assert not unigemm.einsum("iji->ij", x).flags.writeable
    tensor = torch.ones(3, 4, 3)
    assert unigemm.einsum("iji->ji", tensor).data_ptr() == tensor.data_ptr()


def test_the_base_of_a_result_is_none_or_an_array():
    a, b = numbers((3, 4)), numbers((4, 5))
    for text in ("ij,jk->ik", "ij,jk->ki", "ij,jk->k"):
        for more in ({}, {"epilogue": lambda acc: acc}):
            got = unigemm.einsum(text, a, b, **more)
            np.testing.assert_array_equal(got, np.einsum(text, a, b))
            assert got.base is None or type(got.base) is np.ndarray


#: Sums over two indices or more, in any order.
EMPTY = ["btd,bte->de", "btd,tbe->de", "abc,cba->", "ij,jk->ik", "ij,kl->k", "abc,cbd->ad", "ij->"]


@pytest.mark.parametrize("text", EMPTY)
@pytest.mark.parametrize("seed", range(4))
def test_sums_of_nothing_are_zeros(text, seed):
    drawn = np.random.default_rng(seed)
    extents = dict(zip("abcdeijklt", drawn.choice([0, 0, 1, 2, 3], 10), strict=True))
    parts = text.partition("->")[0].split(",")
    arrays = [np.ones([extents[i] for i in part], np.float32) for part in parts]
    expected = np.einsum(text, *arrays)
    tensors = [*map(torch.from_numpy, arrays)]
    for operands in (arrays, tensors, [torch.ones(x.shape) for x in arrays]):
        np.testing.assert_array_equal(unigemm.einsum(text, *operands), expected)
        more = np.full(expected.shape, 2, np.float32)
        for name in ("c", "bias"):
            x = more if operands is arrays else torch.from_numpy(more)
            got = unigemm.einsum(text, *operands, **{name: x})
            np.testing.assert_array_equal(got, expected + 2)
        steps = unigemm.plan_einsum(text, *operands).steps
        assert all((step.plan is None) == (0 in arrays[0].shape + arrays[-1].shape)
                   for step in steps[:1])  # fmt: skip


def test_eight_bits_are_summed_in_a_wider_type():
    x = np.full((20, 20), 100, np.int8)
    exact = np.einsum("ij,jk,kl->il", *[x.astype(np.int32)] * 3)
    for one in (x, torch.as_tensor(x)):
        for optimize in ("greedy", "optimal", False):
            got = unigemm.einsum("ij,jk,kl->il", one, one, one, optimize=optimize)
            np.testing.assert_array_equal(np.asarray(got), exact)
        got = unigemm.einsum("ij,kl->k", one, one)
        np.testing.assert_array_equal(np.asarray(got), np.full(20, (100 * 400 * 2000) % 2**32))


def test_arrays_of_jax_are_contracted_and_stay_theirs():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    a, b = (numbers(shape, np.float32) for shape in ((2, 5, 3, 4), (2, 6, 3, 4)))
    x, y = map(jax.numpy.asarray, (a, b))
    for text in ("bqhd,bkhd->bhqk", "bqhd,bkhd->qkbh", "abcd,aecd->be"):
        got = unigemm.einsum(text, x, y)
        assert isinstance(got, jax.Array)
        np.testing.assert_array_equal(got, np.einsum(text, a, b))
    np.testing.assert_array_equal(unigemm.einsum("abcd->dcba", x), a.T)
    mixed = unigemm.einsum("abcd,a->bd", x, jax.numpy.arange(2))
    np.testing.assert_array_equal(mixed, np.einsum("abcd,a->bd", a, np.arange(2)))
    with pytest.raises(unigemm.UnsupportedProblem, match="never changes"):
        unigemm.einsum("abcd->dcba", x, out=y)


#: Orders that NumPy has no operands for, or that are none.
WRONG_ORDERS = [
    *[[(0, 1)], [], (), 5, "auto", "fastest", "einsum_path", np.array([1, 2]), {}, ("greedy", "x")],
    *[["einsum_path", 3], ["einsum_path", ("a",)], ["einsum_path", (0.5, 1)], ["einsum_path", ()]],
    *[["einsum_path", (-1, 0)], ["einsum_path", (0, 9)], ["einsum_path", (0, 0)], 0.5, b"greedy"],
    ["einsum_path", *[(0, 1)] * 9],
]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_what_is_no_order_is_one_error_for_any_number_of_operands(count):
    text = ",".join(["ij", "jk", "kl", "lm"][:count])
    short = ["einsum_path", *[(0, 1)] * (count - 2)]
    arrays = [numbers((2, 2), seed=i) for i in range(count)]
    for optimize in (*WRONG_ORDERS, *([short] if count > 1 else [])):
        for function in (unigemm.einsum, unigemm.plan_einsum):
            with pytest.raises(
                unigemm.UnsupportedProblem, match=r"is no order of \d operands; use"
            ):
                function(text, *arrays, optimize=optimize)


@pytest.mark.parametrize("seed", range(6))
def test_any_path_gives_what_numpy_does(seed):
    drawn = np.random.default_rng(seed)
    for count in (1, 2, 3, 4, 5):
        text = ",".join(["ij", "jk", "kl", "lm", "mn"][:count])
        arrays = [numbers((2, 2), seed=i) for i in range(count)]
        path, left = ["einsum_path"], count
        while left > 1:
            some = int(drawn.integers(1, min(left, 3) + 1))
            path.append(tuple(map(int, drawn.permutation(left)[:some])))
            left -= some - 1
        expected = np.einsum(text, *arrays)
        for optimize in (path, True, False, None, "greedy", "optimal", ("greedy", 4)):
            got = unigemm.einsum(text, *arrays, optimize=optimize)
            np.testing.assert_array_equal(got, expected)


def test_an_order_in_memory_is_refused_with_what_gives_it():
    with pytest.raises(unigemm.UnsupportedProblem, match="pass out="):
        unigemm.einsum("ij,jk", np.eye(2), np.eye(2), order="F")


AXES = [0, 1, 2, ((1,), (0,)), ((2, 1), (1, 0)), (-1, 1), ([0, 2], [2, 1])]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_tensordot_is_numpys(axes):
    x, y = numbers((2, 3, 4)), numbers((3, 4, 2))
    try:
        expected = np.tensordot(x, y, axes)
    except ValueError:
        with pytest.raises(unigemm.ShapeMismatch):
            unigemm.tensordot(x, y, axes)
        return
    got = unigemm.tensordot(x, y, axes)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


def test_results_without_dimensions_are_scalars_where_numpys_are():
    x, y = numbers(4), numbers(4, seed=1)
    for name, arguments in (
        ("tensordot", (x, y, 1)),
        ("tensordot", (2.0, 3.0, 0)),
        ("inner", (x, y)),
        ("inner", (2.0, 3.0)),
        ("vecdot", (x, y)),
        ("einsum", ("i,i", x, y)),
        ("einsum", ("i->", x)),
        ("einsum", (",", 2.0, 3.0)),
    ):
        if hasattr(np, name):
            got, expected = getattr(unigemm, name)(*arguments), getattr(np, name)(*arguments)
            assert (type(got), got.dtype) == (type(expected), expected.dtype), name
            assert got == expected


def same_class(function, *given, **options):
    """Check that a call is refused by an error that is also of NumPy's class."""
    with pytest.raises((TypeError, ValueError, IndexError)) as numpys:
        getattr(np, function)(*given, **options)
    kinds = [kind for kind in (TypeError, ValueError, IndexError) if numpys.errisinstance(kind)]
    for kind in kinds:
        with pytest.raises(kind, match="; ") as ours:
            getattr(unigemm, function)(*given, **options)
        assert ours.errisinstance(unigemm.UnigemmError)


WRONG_AXES = [3.5, None, "ab", ((0,), (0, 1)), (0,), 4, ((5,), (0,)), ((0, 0), (0, 1)),
              ((-4,), (0,)), ((0.5,), (0,)), (0, 1, 2)]  # fmt: skip


@pytest.mark.parametrize("axes", WRONG_AXES, ids=str)
def test_tensordot_refuses_axes_as_numpy_does(axes):
    same_class("tensordot", np.ones((2, 2, 2)), np.ones((2, 2, 2)), axes)


@pytest.mark.parametrize("count", [-1, 2, 10**12])
def test_tensordot_refuses_counts_of_dimensions_that_there_are_not(count):
    with pytest.raises(unigemm.AxisError, match="; "):
        unigemm.tensordot(np.ones(2), np.ones(2), count)


@pytest.mark.parametrize("seed", range(3))
def test_axes_of_ufuncs_are_refused_as_numpy_does(seed):
    if not hasattr(np, "matvec"):
        pytest.skip("this NumPy has no matvec")
    drawn = np.random.default_rng(seed)
    x = np.ones((2, 2))
    same_class("vecdot", x, x, axis=0, axes=[0, 0, ()])
    for axis in (2, -3, "a", 0.5):
        same_class("vecdot", x, x, axis=axis)
    entries = [0, (0,), (5,), (-3,), (0, 1), (0, 0), (1, 7), (), "a", (0.5,), 2]
    for name in ("vecdot", "matvec", "vecmat", "matmul"):
        for _ in range(12):
            axes = [entries[i] for i in drawn.integers(0, len(entries), 3)]
            try:
                expected = getattr(np, name)(x, x, axes=axes)
            except (TypeError, ValueError):
                same_class(name, x, x, axes=axes)
            else:
                np.testing.assert_array_equal(getattr(unigemm, name)(x, x, axes=axes), expected)
    same_class("matvec", x, x, axes=((0, 1), 0, 0))


@settings(max_examples=60)
@given(data=st.data())
def test_products_of_vectors_are_numpys(data):
    name = data.draw(st.sampled_from(["vecdot", "matvec", "vecmat", "inner"]))
    if not hasattr(np, name):
        pytest.skip(f"this NumPy has no {name}")
    dtype = data.draw(st.sampled_from([np.float64, np.complex128, np.int32]))
    stacks = data.draw(st.sampled_from([((), ()), ((2,), ()), ((3, 1), (2,)), ((2,), (3,))]))
    cores = {"vecdot": ((4,), (4,)), "matvec": ((5, 4), (4,)), "vecmat": ((4,), (4, 5))}
    core = cores.get(name, ((4,), (4,)))
    if data.draw(st.integers(0, 5)) == 0:
        core = (core[0], (*core[1][:-1], 1)) if name != "vecmat" else ((1,), core[1])
    x, y = (
        data.draw(views((*stack, *own), dtype, i))
        for i, (stack, own) in enumerate(zip(stacks, core, strict=True))
    )
    try:
        expected = getattr(np, name)(x, y)
    except ValueError:
        with pytest.raises(unigemm.ShapeMismatch):
            getattr(unigemm, name)(x, y)
        return
    got = getattr(unigemm, name)(x, y)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_dimensions_of_vectors_may_be_named():
    if not hasattr(np, "matvec"):
        pytest.skip("this NumPy has no matvec")
    z = numbers((2, 3, 4), np.complex64)
    for options in ({"axis": 0}, {"axis": 1, "keepdims": True}, {"keepdims": True},
                    {"axes": [0, 0, ()]}):  # fmt: skip
        expected = np.vecdot(z, z, **options)
        np.testing.assert_array_equal(unigemm.vecdot(z, z, **options), expected)
    axes = [(0, 2), (1,), (0,)]
    v = numbers((5, 4), np.complex64)[:3]
    np.testing.assert_array_equal(unigemm.matvec(z, v, axes=axes), np.matvec(z, v, axes=axes))
    with pytest.raises(unigemm.UnsupportedProblem, match="; "):
        unigemm.vecdot(z, z, axis=0, axes=[0, 0, ()])


def test_plans_of_descriptions_say_what_is_copied():
    spec = unigemm.ArraySpec((16, 32, 64), "bfloat16")
    plan = unigemm.plan_einsum("abc,dcb->ad", spec, unigemm.ArraySpec((8, 64, 32), "bf16"),
                               target="h100")  # fmt: skip
    (step,) = plan.steps
    assert plan.copied_bytes == 8 * 64 * 32 * 2
    assert step.plan.backend != "numpy"
    assert plan.explain() == str(plan)
    chain = unigemm.plan_einsum("ij,jk,kl->il", *[unigemm.ArraySpec((64, 64), "f32")] * 3,
                                target="sm_90a")  # fmt: skip
    assert [x.operands for x in chain.steps] == [
        ("operand 0", "operand 1"), ("operand 2", "a product")
    ]  # fmt: skip
    empty = unigemm.plan_einsum("ij,jk->ik", np.ones((0, 2)), np.ones((2, 3)))
    assert empty.steps[0].plan is None
