"""Epilogues on a device: the cases of the emulator's tests, and more of them.

Each case has a kernel of its own. Those of a test are compiled ahead, on all cores.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from activation_values import X as FAR_OUT
from activation_values import checked
from call_path import compile_many
from epilogue_cases import (
    EPILOGUES,
    WithEpilogue,
    check_epilogue,
    check_planned,
    drawn_cases,
    plan_of,
    ways_of,
)
from gpu_cases import LIBRARIES, lib_named, needs_hopper
from operator_table import EXACT, FUNCTIONS, VALUES, as_numpy, differing

import unigemm
from unigemm.activations import ACTIVATIONS, GRADIENTS
from unigemm.errors import UnigemmError
from unigemm.planning.plan import Plan
from unigemm.planning.registry import backend_named
from unigemm.problem.dtypes import DType

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def hopper():
    needs_hopper()


DTYPES = {
    "cute_simt": [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT64, DType.FLOAT16],
    "cute_wgmma": [DType.BFLOAT16, DType.FLOAT16, DType.INT8],
    "auto": [DType.BFLOAT16, DType.FLOAT32],
}


DRAWN = 24  # of each backend


def compile_ahead(plans: Iterable[Plan]) -> None:
    """Fill the cache; whoever needs a kernel that does not compile meets the error."""
    for _ in compile_many(list(plans)):
        pass


def planned(cases: Iterable[tuple[WithEpilogue, str]]) -> Iterable[Plan]:
    """Return plans of cases; whoever computes one that has no plan meets the error."""
    for case, backend in cases:
        with suppress(UnigemmError):
            yield plan_of(case, backend)


@cache
def drawn_for(backend: str) -> list[WithEpilogue]:
    """Return the random cases of a backend, whose kernels are in the cache."""
    cases = drawn_cases(DTYPES[backend], 300, 9000, DRAWN, backend)
    compile_ahead(planned((case, backend) for case in cases))
    return cases


@pytest.mark.parametrize("number", range(DRAWN))
@pytest.mark.parametrize("backend", sorted(DTYPES))
@pytest.mark.parametrize("name", LIBRARIES)
def test_drawn_epilogues_are_those_of_the_host(name, backend, number):
    check_epilogue(drawn_for(backend)[number], lib_named(name), backend=backend)


@cache
def of_a_layer() -> dict[tuple[str, str], WithEpilogue]:
    """Return cases by their backend and epilogue, whose kernels are in the cache."""
    wgmma = WithEpilogue((200, 512, 1024), DType.BFLOAT16, "nt", "")
    simt = WithEpilogue((130, 136, 200), DType.FLOAT32, "nt", "")
    found = {
        (backend, epilogue): replace(case, name=epilogue)
        for backend, case in (("cute_wgmma", wgmma), ("cute_simt", simt))
        for epilogue in EPILOGUES
    }
    compile_ahead(planned((case, backend) for (backend, _), case in found.items()))
    return found


@pytest.mark.parametrize("epilogue", sorted(EPILOGUES))
@pytest.mark.parametrize("backend", ["cute_wgmma", "cute_simt"])
def test_every_epilogue_at_the_sizes_of_a_layer(backend, epilogue):
    check_epilogue(of_a_layer()[backend, epilogue], lib_named("torch-cuda"), backend=backend)


@pytest.mark.parametrize("epilogue", ["all", "swiglu", "in place"])
@pytest.mark.parametrize("backend", ["cute_simt", "cute_wgmma", "cutile"])
def test_small_epilogues_for_the_sanitizer(backend, epilogue):
    """A small set that `compute-sanitizer` runs in reasonable time (see bench/README.md)."""
    if backend == "cutile":
        cutile()
    dtype = DType.FLOAT32 if backend == "cute_simt" else DType.BFLOAT16
    case = WithEpilogue((72, 48, 96), dtype, "nt", epilogue)
    check_epilogue(case, lib_named("torch-cuda"), backend=backend)


def cutile():
    reason = backend_named("cutile").missing() or backend_named("cutile").compiler_missing()
    if reason is not None:
        pytest.skip(reason)


#: A type, a layout, options, sizes, products of a stack, and whether D is column-major.
ALIGNED = [
    (DType.BFLOAT16, "nt", {}, (200, 512, 1024), 1, False),
    (DType.BFLOAT16, "nt", {}, (40, 144, 8192), 1, True),
    (DType.FLOAT16, "nn", {}, (72, 80, 96), 3, False),
    (DType.INT8, "nt", {}, (40, 144, 8192), 1, True),
    (DType.FLOAT32, "nt", {"precision": "tf32"}, (200, 144, 256), 1, False),
    (DType.FLOAT64, "nn", {}, (72, 80, 96), 3, True),
]


@pytest.mark.parametrize("epilogue", sorted(x for x in EPILOGUES if " sums" not in x))
@pytest.mark.parametrize("aligned", ALIGNED, ids=lambda x: str(x[0]))
def test_cutile_carries_out_every_epilogue(epilogue, aligned):
    """Rows of A and B are aligned, as cutile takes them; D and auxiliary arrays are not."""
    cutile()
    dtype, layout, options, sizes, stack, columns = aligned
    if dtype is DType.FLOAT64 and EPILOGUES[epilogue].get("activation") in ("gelu", "geglu"):
        pytest.skip("cutile has no ndtr of float64")
    gated = "gate_layout" in EPILOGUES[epilogue]  # whose D is row-major
    stack = 1 if epilogue == "in place" else stack
    case = WithEpilogue(sizes, dtype, layout, epilogue, stack, columns and not gated, 0, options)
    check_epilogue(case, lib_named("torch-cuda"), backend="cutile", **options)


PLANNED = [
    ("cutile", WithEpilogue((136, 144, 8192), DType.BFLOAT16, "nt", "all"), {}),
    ("cutile", WithEpilogue((136, 144, 8192), DType.BFLOAT16, "nt", "swiglu"), {}),
    ("cutile", WithEpilogue((16, 1024, 4096), DType.BFLOAT16, "nt", "swiglu"), {}),
    ("cutile", WithEpilogue((2304, 2304, 512), DType.BFLOAT16, "nn", "all"), {}),
    ("cutile", WithEpilogue((2304, 2304, 512), DType.BFLOAT16, "nn", "swiglu"), {}),
    ("cutile", WithEpilogue((2304, 2304, 512), DType.BFLOAT16, "nn", "halves"), {}),
    ("cutile", WithEpilogue((256, 512, 1024), DType.FLOAT32, "nn", "all"), {"precision": "tf32"}),
    ("cute_wgmma", WithEpilogue((136, 144, 640), DType.BFLOAT16, "nt", "all"), {}),
    ("cute_wgmma", WithEpilogue((24, 136, 1280), DType.BFLOAT16, "nt", "bias, gelu_tanh"), {}),
    ("cute_wgmma", WithEpilogue((2304, 2304, 512), DType.BFLOAT16, "nt", "swiglu"), {}),
    ("cute_simt", WithEpilogue((129, 136, 600), DType.FLOAT32, "nt", "all"), {}),
    ("cute_simt", WithEpilogue((4, 136, 600), DType.BFLOAT16, "nt", "all"), {}),
]


@pytest.mark.parametrize(("backend", "case", "options"), PLANNED, ids=str)
def test_every_way_of_computing_a_product_carries_out_its_epilogue(backend, case, options):
    if backend == "cutile":
        cutile()
    lib = lib_named("torch-cuda")
    case = replace(case, options=options)
    ways = ways_of(case, backend, None, **options)
    compile_ahead(ways)
    for plan in ways:
        check_planned(case, plan, lib)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("backend", ["cutile", "cute_wgmma", "cute_simt"])
def test_eight_bits_are_those_of_the_host(backend, dtype):
    if backend == "cutile":
        cutile()
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(3)
    a, b = (rng.normal(0, 4, (128, 128)).astype(np.float32) for _ in range(2))
    x, y = (torch.from_numpy(v).to(torch.bfloat16) for v in (a, b))
    largest, mine = torch.zeros(1), torch.zeros(1, device="cuda")
    given = {"dtype": dtype, "scale_d": 3.0}
    wanted = unigemm.matmul(x, y, backend="numpy", amax_out=largest, **given)
    got = unigemm.matmul(x.cuda(), y.cuda(), backend=backend, amax_out=mine, **given)
    torch.testing.assert_close(mine.cpu(), largest, rtol=1e-5, atol=0)
    difference = (got.cpu().float() - wanted.float()).abs()
    allowed = torch.ones(()) if dtype == "int8" else 0.25 * wanted.float().abs() + 0.01
    assert (difference <= allowed).all()
    assert (difference == 0).float().mean() > 0.98  # additions are in another order


def test_a_captured_call_reads_new_arrays_of_one_element():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    a, b = (torch.randn(128, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    alpha, out = torch.ones(1, device="cuda"), torch.empty_like(a)
    unigemm.matmul(a, b, out=out, alpha=alpha)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        unigemm.matmul(a, b, out=out, alpha=alpha)
    alpha.fill_(3.0)
    graph.replay()
    torch.testing.assert_close(out.float(), 3 * (a.float() @ b.float()), rtol=2e-2, atol=1e-1)


def in_a_function(backend, dtype, functions, x, y):
    """Return what an epilogue of float32 arithmetic makes of a column and a row."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if backend == "cutile":
        cutile()
    ones = torch.ones((max(len(x), len(y)), 16), device="cuda", dtype=dtype)
    found = []
    for first in range(0, len(functions), 12):
        some = functions[first : first + 12]
        found += unigemm.matmul(
            ones[: len(x)], ones[: len(y)].t(), dtype="float32", backend=backend,
            epilogue=lambda acc, x, y, some=some: (0 * acc, *(f(x, y) for f in some)),
            epilogue_args={"x": torch.tensor(x[:, None]).cuda(), "y": torch.tensor(y).cuda()},
        )[1:]  # fmt: skip
    return [each.cpu().numpy() for each in found]


@pytest.mark.parametrize("backend", ["cute_simt", "cute_wgmma", "cutile"])
def test_operators_are_those_of_numpy(backend):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    values = np.array(VALUES, np.float32)
    table = EXACT | FUNCTIONS
    results = in_a_function(backend, torch.bfloat16, [*table.values()], values, values)
    for name, got in zip(table, results, strict=True):
        units = 4 if name in FUNCTIONS or "/" in name else 0
        units = 16 if name.startswith("power") else units
        units = max(units, 1) if backend == "cutile" else units
        wrong = differing(got, as_numpy(table[name], np.float32), units)
        assert not wrong, (name, wrong[:5])


@pytest.mark.parametrize("backend", ["cute_simt", "cute_wgmma", "cutile"])
def test_activations_are_right_in_their_tails_and_at_their_limits(backend):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    table = {**ACTIVATIONS, **GRADIENTS}
    functions = [lambda x, y, f=f: f(x) for f in table.values()]
    results = in_a_function(backend, torch.bfloat16, functions, FAR_OUT, FAR_OUT[:16])
    for name, got in zip(table, results, strict=True):
        checked(name, got[:, 0], FAR_OUT, 2e-5)
