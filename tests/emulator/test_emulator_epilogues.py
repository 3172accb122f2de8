"""Epilogues in compiled kernels, on emulated GPUs: whichever way a product is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sampling import ALL

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from fused_cases import Fused, check_fused, check_planned, fused_cases, ways_of
from hypothesis import HealthCheck, given, settings
from reference import NUMPY

import unigemm
from unigemm.emulator import device
from unigemm.emulator.launch.host import missing
from unigemm.errors import UnsupportedProblem
from unigemm.problem.dtypes import DType

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]
ARCHITECTURES = {"cute_simt": "sm_90a", "cute_wgmma": "sm_90a", "cute_tcgen05": "sm_100a"}
TARGETS = {
    name: replace(unigemm.named_target(arch), sm_count=6) for name, arch in ARCHITECTURES.items()
}
DTYPES = {
    "cute_simt": [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT64, DType.FLOAT16],
    "cute_wgmma": [DType.BFLOAT16, DType.FLOAT16, DType.INT8],
    "cute_tcgen05": [DType.BFLOAT16, DType.FLOAT16],
}


@pytest.fixture(autouse=True)
def poisoned_workspace(monkeypatch):
    """What no kernel has written there is not a number."""
    empty = np.empty

    def poisoned(shape, dtype=float, *more, **options):
        found = empty(shape, dtype, *more, **options)
        if dtype is np.uint8:
            found.fill(0xFF)
        return found

    monkeypatch.setattr(np, "empty", poisoned)


@pytest.mark.parametrize("backend", sorted(TARGETS))
def test_drawn_epilogues_are_those_of_the_host(backend):
    @settings(max_examples=60 if ALL else 1, suppress_health_check=list(HealthCheck))
    @given(case=fused_cases(DTYPES[backend], largest=140, deep=2500))
    def run(case):
        if case.name == "swiglu" and case.columns:
            return  # see below
        check_fused(case, NUMPY, device(target=TARGETS[backend]), backend=backend)

    run()


#: A backend, a problem, and in how many of its ways it is computed by default.
CASES = [
    ("cute_wgmma", Fused((72, 112, 192), DType.BFLOAT16, "nt", "all"), 2),
    ("cute_wgmma", Fused((72, 112, 192), DType.BFLOAT16, "nt", "swiglu"), 1),
    ("cute_wgmma", Fused((24, 136, 640), DType.BFLOAT16, "nt", "bias, gelu_tanh"), 1),
    ("cute_simt", Fused((65, 72, 300), DType.FLOAT32, "nt", "all"), 2),
    ("cute_simt", Fused((4, 136, 300), DType.BFLOAT16, "nt", "all"), 1),
    ("cute_tcgen05", Fused((136, 72, 192), DType.BFLOAT16, "nt", "all"), 1),
]


@pytest.mark.parametrize(("backend", "case", "some"), CASES, ids=lambda x: getattr(x, "name", x))
def test_every_way_of_computing_a_product_carries_out_its_epilogue(backend, case, some):
    ways = ways_of(case, backend, TARGETS[backend])
    assert len(ways) > 1
    for plan in ways if ALL else ways[:some]:
        check_planned(case, plan, NUMPY, device(target=plan.target))


@pytest.mark.parametrize("backend", sorted(TARGETS))
def test_what_kernels_do_not_carry_out_is_refused_with_its_reason(backend):
    spec = unigemm.ArraySpec
    a, b = spec((64, 64), "bfloat16"), spec((64, 64), "bfloat16")
    refused = [
        ({"activation": "swiglu", "gate_layout": "halves"}, "interleaved"),
        ({"alpha": 2.0, "bias_grad_out": spec((64,), "float32")}, "bias_grad_out"),
        ({"scale_d": 2.0, "dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ]
    for asked, said in refused:
        with pytest.raises(UnsupportedProblem, match=said):
            unigemm.plan(a, b, backend=backend, target=TARGETS[backend], **asked)


def test_a_renamed_function_finds_the_same_kernel_and_another_does_not():
    a, b = unigemm.ArraySpec((64, 64), "bfloat16"), unigemm.ArraySpec((64, 64), "bfloat16")

    def one(acc, x):
        return np.maximum(acc * 2, x)

    def same(total, x):
        return np.maximum(total * 2, x)

    def other(acc, x):
        return np.maximum(acc * 3, x)

    from unigemm.planning.registry import backend_named

    keys = []
    for function in (one, same, other):
        row = unigemm.ArraySpec((64,), "bfloat16")
        plan = unigemm.plan(
            a, b, backend="cute_wgmma", target="sm_90a", epilogue=function,
            epilogue_args={"x": row},
        )  # fmt: skip
        keys.append(backend_named("cute_wgmma").key(plan).digest)
    assert keys[0] == keys[1] != keys[2]
