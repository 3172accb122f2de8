"""No product is refused for its epilogue: some backend of a device takes what the device can do."""

from __future__ import annotations

import pytest
from epilogue_cases import EPILOGUES, seen_by
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import ALL

import unigemm
from unigemm.errors import UnsupportedProblem

DTYPES = ("bfloat16", "float16", "float32", "float64")
SIZES = (1, 2, 3, 4, 7, 8, 9, 16, 17, 33, 64, 100, 128, 1000, 4096)


@settings(max_examples=600 if ALL else 60, suppress_health_check=list(HealthCheck))
@given(
    m=st.sampled_from(SIZES),
    half=st.sampled_from(SIZES),
    k=st.sampled_from((*SIZES, 9000)),
    dtype=st.sampled_from(DTYPES),
    narrow=st.sampled_from([None, None, "int8", "float8_e4m3fn", "float8_e5m2"]),
    name=st.sampled_from(sorted(EPILOGUES)),
    orders=st.tuples(*[st.sampled_from("CF")] * 3),
    arch=st.sampled_from(["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]),
)
def test_every_drawn_epilogue_has_a_plan(m, half, k, dtype, narrow, name, orders, arch):
    n, spec = 2 * half, unigemm.ArraySpec
    if narrow is not None and dtype == "float64":
        narrow = None
    gated = "gate_layout" in EPILOGUES[name]
    out = spec((m, half if gated else n), narrow or dtype, order=orders[2])
    a, b = spec((m, k), dtype, order=orders[0]), spec((k, n), dtype, order=orders[1])
    requested = seen_by(name, m, n, dtype, out)
    # A function may give several results, which one `out` does not hold.
    requested |= {"dtype": out.dtype} if "epilogue" in requested else {"out": out}
    if arch == "sm_80" and "float8" in str(narrow):
        with pytest.raises(UnsupportedProblem, match="no instructions that convert"):
            unigemm.plan(a, b, target=arch, **requested)
        return
    plan = unigemm.plan(a, b, target=arch, **requested)
    assert plan.problem.epilogue is not None or name == "C not read"


def test_cutile_refuses_bias_gradients_and_another_backend_adds_them_up():
    spec = unigemm.ArraySpec
    a, b, bias_grad = spec((64, 64), "bfloat16"), spec((64, 64), "bfloat16"), spec((64,), "float32")
    with pytest.raises(UnsupportedProblem, match="do not add up bias gradients"):
        unigemm.plan(a, b, backend="cutile", target="sm_90a", alpha=2.0, bias_grad_out=bias_grad)
    for arch in ("sm_80", "sm_90a", "sm_100a"):
        plan = unigemm.plan(a, b, target=arch, alpha=2.0, bias_grad_out=bias_grad)
        assert plan.backend.startswith("cute_")
        assert plan.workspace_bytes >= 64 * 64 * 4  # what is added up is not rounded
