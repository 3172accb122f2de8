"""The types of contractions: one for all operands, before anything is summed."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import pytest

import unigemm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

OWN = [
    *["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    *["float16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble"],
]
ADDED = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
#: Subscripts with indices that one operand alone has, and others; each index has a few extents.
TEXTS = {
    1: ["i->", "ij->j", "iji->j", "ijk->", "ij->ji", "ii->i"],
    2: [
        *["ij,i->", "ab,c->", "ij,jk->k", "ij,jk->ik", "bij,bjk->bik", "ij,kl->k", "ij,ij->"],
        *["abc,cbd->ad", "ii,j->j", "i,ij->ij", ",ij->i", "btd,bte->de"],
    ],
    3: [
        *["ij,jk,kl->il", "ij,jk,k->", "i,i,i->", "i,j,k->", "ab,c,d->d", "bij,bjk,kl->bil"],
        *["ij,ij,ij->j", "ab,bc,ca->"],
    ],
    4: ["ij,jk,kl,lm->im", "i,j,ij,k->k"],
}


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name) if name in ADDED else name)


def numbers(drawn, shape, name):
    """Return numbers of a type, most of which do not fit in it when they are multiplied."""
    dtype = dtype_of(name)
    if dtype.kind == "b":
        return drawn.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return drawn.integers(max(np.iinfo(dtype).min, -200), min(np.iinfo(dtype).max, 200) + 1,
                              shape, np.int64).astype(dtype)  # fmt: skip
    most = {"float16": 200, "bfloat16": 16, "float8_e4m3fn": 8, "float8_e5m2": 4}.get(name, 50)
    found = drawn.integers(-most, most + 1, shape)
    if dtype.kind == "c":
        return (found + 1j * drawn.integers(-most, most + 1, shape)).astype(dtype)
    return found.astype(dtype)


def drawn_case(seed, names):
    """Return subscripts, operands of some of the types in any memory order, and what draws more."""
    pick, drawn = random.Random(seed), np.random.default_rng(seed)
    text = pick.choice(TEXTS[pick.choices([1, 2, 3, 4], [1, 4, 4, 1])[0]])
    sizes = [0, 1, 1, 2, 3, 5, 16] if pick.random() < 0.3 else [1, 2, 3, 5, 16]
    extents = {i: pick.choice(sizes) for i in "abcdeijklmt"}
    arrays = []
    for part in text.partition("->")[0].split(","):
        x = numbers(drawn, tuple(extents[i] for i in part), pick.choice(names))
        arrays.append(np.asarray(x, order=pick.choice("CF")))
    return text, arrays, pick


def promoted(kinds):
    """Return the common type, and what `matmul` gives of two operands of that type."""
    if len({*kinds}) == 1 or {k.name for k in kinds} <= {"float8_e4m3fn", "float8_e5m2"}:
        common = kinds[0]
    else:
        common = np.result_type(*("f4" if k.name in ADDED else k for k in kinds))
    results = {"int8": "int32", "float8_e4m3fn": "float32", "float8_e5m2": "float32"}
    return common, np.dtype(results.get(common.name, common))


def exactly(text, arrays, common, result):
    """Return NumPy's sum of products in a type that holds it, rounded once."""
    if common.kind == "b":
        return np.einsum(text, *arrays, optimize=False)
    wide = np.clongdouble if common.kind == "c" else np.longdouble
    if common.kind in "iu":
        wide = np.uint64 if common == np.uint64 else np.int64  # which wrap around as narrow ones do
    with np.errstate(all="ignore"):
        found = np.einsum(text, *(x.astype(wide) for x in arrays), optimize=False)
        return np.asarray(found).astype(result)


def check(got, text, arrays, about):
    """Compare a result with NumPy's, and its type with the rule."""
    common, result = promoted([x.dtype for x in arrays])
    before, _, after = text.partition("->")
    if len(arrays) == 1 and {*before} == {*after}:
        result = common  # a view
    expected = exactly(text, arrays, common, result)
    assert (got.dtype, got.shape) == (result, expected.shape), about
    if result.kind in "biu":
        np.testing.assert_array_equal(got, expected, err_msg=about)
        return
    eps = float(np.finfo(np.float32).eps)
    sizes = [abs(x.astype(np.clongdouble)) for x in arrays]
    largest = float(np.max(np.einsum(text, *sizes, optimize=False), initial=0))
    half = {"float16": 2**-11, "bfloat16": 2**-8}.get(result.name, 0)
    wide = np.clongdouble
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            got.astype(wide), expected.astype(wide), rtol=2 * half, atol=16 * eps * largest,
            err_msg=about,
        )  # fmt: skip


NARROW = ["bool", "int8", "uint8", "float16"]


@pytest.mark.parametrize("seed", range(8))
def test_operands_of_any_types_are_promoted_before_anything_is_summed(seed):
    for i in range(24):
        names = (OWN, [*OWN, *ADDED], random.Random(100 * seed + i).choices(NARROW, k=2))[i % 3]
        text, arrays, pick = drawn_case(100 * seed + i, names)
        optimize = pick.choice(["greedy", "optimal", False])
        about = f"{text} {[(str(x.dtype), x.shape) for x in arrays]} {optimize}"
        with np.errstate(all="ignore"):
            got = unigemm.einsum(text, *arrays, optimize=optimize)
        check(np.asarray(got), text, arrays, about)


#: Types that NumPy and PyTorch both have.
SHARED = ["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"]


@pytest.mark.parametrize("seed", range(4))
def test_tensors_of_one_type_give_what_arrays_do(seed):
    for i in range(16):
        names = [["int8", "float16", SHARED[(seed + 2 * i) % len(SHARED)]][i % 3]]
        text, arrays, pick = drawn_case(100 * seed + i, names)
        optimize = pick.choice(["greedy", "optimal", False])
        with np.errstate(all="ignore"):
            got = unigemm.einsum(text, *map(torch.from_numpy, arrays), optimize=optimize)
        assert type(got) is torch.Tensor
        check(got.numpy(), text, arrays, f"{text} {arrays[0].dtype} {[x.shape for x in arrays]}")


def test_tensors_of_several_types_are_refused_whatever_the_path():
    a, b = torch.ones(2, 3, dtype=torch.int8), torch.ones(3, 4)
    for text, given in (
        ("ij,jk->ik", (a, b)),
        ("ij,jk->k", (a, b)),
        ("ij,ij,jk->k", (a, a, b)),
        ("ij,jk,ij->k", (a, b, a)),
    ):
        for function in (unigemm.einsum, unigemm.plan_einsum):
            for optimize in ("greedy", False):
                with pytest.raises(unigemm.UnsupportedDtype, match="; nothing is converted"):
                    function(text, *given, optimize=optimize)


REQUESTED = ["int16", "int32", "int64", "uint8", "float16", "float32", "float64", "complex128"]


@pytest.mark.parametrize("seed", range(4))
def test_a_requested_type_is_what_operands_are_converted_to(seed):
    for i in range(24):
        text, arrays, pick = drawn_case(100 * seed + i, NARROW if i % 2 else OWN)
        if "," not in text:
            continue
        dtype = pick.choice(REQUESTED)
        casting = pick.choice(["safe", "same_kind", "same_kind", "unsafe"])
        about = f"{text} {[(str(x.dtype), x.shape) for x in arrays]} {dtype} {casting}"
        options = {"dtype": dtype, "casting": casting}
        if any(x.dtype.kind in "fc" for x in arrays) and dtype in ("float16", "uint8"):
            arrays = [x.clip(0, 2) if x.dtype.kind != "c" else x for x in arrays]
        with np.errstate(all="ignore"):
            try:
                expected = np.einsum(text, *arrays, optimize=False, **options)
            except TypeError:
                with pytest.raises(unigemm.UnsupportedDtype, match="; "):
                    unigemm.einsum(text, *arrays, **options)
                continue
            got = unigemm.einsum(text, *arrays, **options)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), about
        if dtype in ("float16", "float32"):  # NumPy rounds each partial sum
            largest = max(1, np.max(np.abs(got[np.isfinite(got)]), initial=0))
            close = np.isclose(got, expected, rtol=0.01, atol=0.01 * largest)
            assert np.all(close | ~np.isfinite(expected)), about
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-9, err_msg=about)


def test_partial_results_keep_the_type_of_the_accumulators():
    x = np.full((4, 300), 100, np.float16)
    y, z = np.full(300, 100, np.float16), np.full(4, 2.0**-12, np.float16)
    for optimize in (["einsum_path", (0, 1), (0, 1)], False, "greedy"):
        got = unigemm.einsum("ij,j,i->i", x, y, z, optimize=optimize)  # 3,000,000 between
        assert got.dtype == np.float16
        np.testing.assert_array_equal(got, np.full(4, 3e6 * 2.0**-12, np.float16))
    got = unigemm.einsum("ij,kl->k", x, x, dtype="float32")
    np.testing.assert_array_equal(got, np.full(4, 120000.0 * 30000.0, np.float32))
    steps = unigemm.plan_einsum("ij,j,i->i", x, y, z).steps
    assert [str(step.plan.problem.d.dtype) for step in steps] == ["float32", "float16"]


@pytest.mark.parametrize("kind", ["int8", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("dtype", [None, "float32", "float8_e4m3fn"])
def test_an_epilogue_gives_one_type_whatever_the_path(kind, dtype):
    types = set()
    for text, shapes in (
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("ij,jk->k", ((2, 3), (3, 4))),
        ("ij,jk->k", ((1, 3), (3, 4))),
        ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 2))),
    ):
        arrays = [np.ones(shape, dtype_of(kind)) for shape in shapes]
        got = unigemm.einsum(text, *arrays, alpha=2.0, dtype=dtype)
        np.testing.assert_array_equal(got.astype("f8"), 2 * np.einsum(text, *map(np.ones, shapes)))
        types.add(got.dtype.name)
    assert len(types) == 1


@pytest.mark.parametrize("seed", range(3))
def test_products_of_vectors_have_numpys_types(seed):
    if not hasattr(np, "matvec"):
        pytest.skip("this NumPy has no matvec")
    pick, drawn = random.Random(seed), np.random.default_rng(seed)
    for _ in range(24):
        kinds = pick.choice(OWN), pick.choice([*OWN, "bool"])
        name, shapes = pick.choice(
            [("vecdot", ((2, 4), (4,))), ("vecmat", ((4,), (4, 3))), ("matvec", ((3, 4), (4,))),
             ("inner", ((2, 4), (3, 4))), ("tensordot", ((2, 3, 4), (3, 4)))]
        )  # fmt: skip
        x, y = (numbers(drawn, s, kind) for s, kind in zip(shapes, kinds, strict=True))
        with np.errstate(all="ignore"):
            got, expected = getattr(unigemm, name)(x, y), getattr(np, name)(x, y)
        wide = {*kinds} <= {"int8", "bool"} and "int8" in kinds
        assert got.dtype == ("int32" if wide else expected.dtype), (name, kinds)
        np.testing.assert_allclose(got.astype(expected.dtype), expected, rtol=2e-3)


@pytest.mark.parametrize(
    "wrong", [np.array(["a", "b"]), np.array([{}, 1]), np.array([1, 2], "M8[s]")]
)
def test_what_is_no_number_is_a_typed_error_everywhere(wrong):
    for call in (
        lambda: unigemm.einsum("i->i", wrong),
        lambda: unigemm.einsum("i,i", wrong, wrong),
        lambda: unigemm.vecdot(wrong, wrong),
        lambda: unigemm.vecmat(wrong, np.ones((2, 2))),
        lambda: unigemm.tensordot(np.ones(2), wrong, 1),
        lambda: unigemm.plan_einsum("i,i", wrong, np.ones(2)),
    ):
        with pytest.raises(unigemm.UnsupportedDtype, match="; "):
            call()
