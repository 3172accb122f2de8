"""What the GPU tests share: libraries, layouts, plans with a configuration of one's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from reference import Case, check_case, compact, cupy_lib, lay_out, torch_lib
from reference import cases as draw_cases

import unigemm
from unigemm.planning.config import Raster
from unigemm.problem.dtypes import DType, output_dtypes

LIBRARIES = ("cupy", "torch-cuda")
LAYOUTS = ("nn", "nt", "tn", "tt")


def lib_named(name):
    if name == "cupy":
        pytest.importorskip("cupy", reason="CuPy is not installed")
        return cupy_lib()
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch_lib("cuda")


def matrix(rows, columns, transposed, pad, shift):
    order = (0, 1) if transposed else (1, 0)
    return lay_out((rows, columns), order, (pad, 0), 1, shift)


def tma_matrix(rows, columns, transposed, itemsize=2, units=1):
    """Lines that start at multiples of 16 bytes, at least 16 * units bytes of poison between."""
    unit = 16 // itemsize
    line = rows if transposed else columns
    return matrix(rows, columns, transposed, -line % unit + units * unit, 0)


def check_product(
    lib, sizes, layout, dtype, d=None, out=None, lay=None, exact=False, seed=0, **options
):
    """Multiply operands of a layout ("nt" has a column-major B) into `d`, or one without gaps.

    `lay` arranges the operands: for TMA, where none is given.
    """
    m, n, k = sizes
    lay = lay or partial(tma_matrix, itemsize=dtype.itemsize)
    a, b = lay(m, k, layout[0] == "t"), lay(k, n, layout[1] == "t")
    out = out or output_dtypes(dtype)[0]
    case = Case(a, b, d or compact((m, n)), (m, n), dtype, out, exact, seed)
    check_case(lib, case, **options)


def check_drawn_products(lib, dtypes, options_of):
    """Multiply forty products of any sizes, strides and offsets, with the options of their type."""

    @settings(max_examples=40)
    @given(case=draw_cases(largest=300, dtypes=dtypes, negative=lib.negative))
    def run(case):
        check_case(lib, case, **options_of(case.dtype))

    run()


def check_stacks(shapes, backend, precisions):
    """Multiply stacks of whole numbers as bfloat16, and as float32 in the precisions."""
    torch = pytest.importorskip("torch")
    for a_shape, b_shape in shapes:
        a = torch.randint(-2, 3, a_shape, device="cuda").float()
        b = torch.randint(-2, 3, b_shape, device="cuda").float()
        expected = a.double() @ b.double()
        got = unigemm.matmul(a.bfloat16(), b.bfloat16(), backend=backend, dtype="float32")
        assert torch.equal(got.double(), expected)
        for precision in precisions:
            got = unigemm.matmul(a, b, backend=backend, precision=precision)
            assert torch.equal(got.double(), expected)


def check_configurations(dtype, sizes, layout, draw, legal_of, split_of, planned, **options):
    """Run a sample of the configurations that `legal_of` a plan gives.

    The operands are whole numbers, so that every order of additions is exact. `split_of` says in
    how many parts K is split, `planned` returns a plan with a configuration.
    """
    torch = pytest.importorskip("torch")
    m, n, k = sizes
    native = getattr(torch, dtype.value)
    a = torch.randint(-2, 3, (m, k), device="cuda")
    b = torch.randint(-2, 3, (k, n), device="cuda")
    expected = a.double() @ b.double()
    a, b = (
        x.float().to(native) if letter == "n" else x.T.contiguous().float().to(native).T
        for x, letter in zip((a, b), layout, strict=True)
    )
    for out_dtype in output_dtypes(dtype)[:2]:
        first = unigemm.plan(a, b, dtype=out_dtype.value, **options)
        legal = legal_of(first)
        assert legal
        native_out = getattr(torch, out_dtype.value)
        rounded = expected.to(native_out).double()
        for i, base in enumerate(draw.sample(legal, min(8, len(legal)))):
            raster = Raster("mn"[i % 2], (1, 2, 8)[i % 3])
            split = split_of(base) if base.split_k > 1 else 1
            plan = planned(first, replace(base, split_k=split, raster=raster))
            out = torch.full((m, n), 77, device="cuda", dtype=native_out)
            unigemm.matmul(a, b, out, plan=plan, precision=options["precision"])
            assert torch.equal(out.double(), rounded), str(plan.config)


def odd_case():
    """Return a product whose operands neither TMA nor tensor cores read where they lie."""
    m, n, k = 77, 65, 103
    a, b, d = matrix(m, k, True, 3, 1), matrix(k, n, False, 3, 1), matrix(m, n, True, 3, 1)
    return Case(a, b, d, (m, n), DType.BFLOAT16, DType.BFLOAT16, False, 3)


#: Rows of an M-major A, what lies between its columns, and elements in front of it: every
#: alignment but TMA's, groups of eight rows that end early, and several.
FEW_ROWS = ((2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 3, 4), (6, 0, 2), (7, 0, 0), (8, 8, 1), (12, 0, 0),
            (13, 0, 0), (31, 0, 0))  # fmt: skip


def few_rows_case(dtype, rows, pad, shift, layout="n", seed=0):
    """Return a product with a few rows that are turned or copied before it."""
    n, k = 72, 331  # K ends inside 16 bytes
    return Case(
        a=matrix(rows, k, True, pad, shift),
        b=tma_matrix(k, n, layout == "t", dtype.itemsize),
        d=matrix(rows, n, False, 3, 1),
        shape=(rows, n),
        dtype=dtype,
        out_dtype=output_dtypes(dtype)[0],
        exact=False,
        seed=seed,
    )


def needs(what, *architectures):
    target = unigemm.capabilities().devices[0].target
    if target is None or target.arch not in architectures:
        pytest.skip(f"{what} runs on {' and '.join(architectures)} only")


def needs_hopper():
    needs("wgmma", "sm_90a")


def needs_blackwell():
    needs("tcgen05", "sm_100a", "sm_103a", "sm_110a")
