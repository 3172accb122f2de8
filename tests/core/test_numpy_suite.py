"""NumPy's own tests of matmul, from the installed NumPy, with `unigemm.matmul` instead."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import numpy as np
import pytest

import unigemm

CORE = "numpy._core" if hasattr(np, "_core") else "numpy.core"


def of_numpy(name):
    """Return a module of NumPy's tests."""
    try:
        return import_module(f"{CORE}.tests.{name}")
    except ImportError as error:
        pytest.skip(f"this NumPy comes without its tests ({error})", allow_module_level=True)


multiarray, ufunc = of_numpy("test_multiarray"), of_numpy("test_ufunc")

#: What `unigemm.matmul` does not do as NumPy does, by NumPy's names of types.
OTHERWISE = {
    "b": "int8 gives int32, so that nothing of the accumulators is lost",
    "O": "arrays of objects are refused",
}
#: Tests that multiply objects, among other things.
OF_OBJECTS = (
    "test_matmul_object",
    "test_matmul_object_type_scalar",
    "test_matmul_empty",
    "test_complex_products",
)


class InPlaceOf:
    """A module of NumPy, but for its matmul."""

    matmul = staticmethod(unigemm.matmul)

    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        return getattr(self.module, name)


@pytest.fixture(autouse=True)
def in_place_of_numpys(monkeypatch, request):
    for module in (multiarray, ufunc):
        monkeypatch.setattr(module, "np", InPlaceOf(np))
    monkeypatch.setattr(ufunc, "umt", InPlaceOf(ufunc.umt))
    if request.node.originalname in OF_OBJECTS:
        reason = OTHERWISE["O"]
        mark = pytest.mark.xfail(reason=reason, raises=unigemm.UnsupportedDtype, strict=True)
        request.applymarker(mark)


class TestMatmulOfNumpy(multiarray.TestMatmul):
    matmul = staticmethod(unigemm.matmul)
    types = "".join(t for t in multiarray.MatmulCommon.types if t not in OTHERWISE)


def methods(module, name):
    """Return the tests of a class that may have another name in another NumPy."""
    found = getattr(module, name, None)
    return found() if found else pytest.skip(f"this NumPy has no {name}")


def test_products_of_many_layouts():
    methods(multiarray, "TestMethods").test_arr_mult(unigemm.matmul)


@pytest.mark.parametrize("dtype", "ifdFD")
def test_vectors_that_are_unaligned_or_repeat(dtype):
    methods(multiarray, "TestMethods").test_no_dgemv(unigemm.matmul, dtype)


def test_out_that_shares_memory():
    methods(multiarray, "TestMethods").test_matmul_out()


def test_axes():
    multiarray.test_matmul_axes()
    methods(ufunc, "TestUfunc").test_axes_argument()


def test_vectors_and_out_with_more_dimensions():
    methods(ufunc, "TestUfunc").test_can_ignore_signature()


def test_complex_products():
    test = getattr(methods(ufunc, "TestUfunc"), "test_vecdot_matvec_vecmat_complex", None)
    if test is None:
        pytest.skip("this NumPy has no such test")
    test(unigemm.matmul, (1, 3), (3, 1), False)


@pytest.mark.parametrize("name", ["test_ufunc_types", "test_ufunc_noncontiguous"])
def test_every_type(name):
    matmul = partial(unigemm.matmul)
    matmul.types = [x for x in np.matmul.types if x[0] not in OTHERWISE]
    getattr(ufunc, name)(matmul)
