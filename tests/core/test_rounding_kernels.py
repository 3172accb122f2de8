"""Second passes by a plan alone: the kernel that a call of such a plan launches is among them."""

import call_path
import pytest
from call_path import second_passes_of

import unigemm
from unigemm.arrays.operands import compact_strides
from unigemm.problem.canonical import Layout, result_shape
from unigemm.problem.dtypes import DType
from unigemm.problem.quantization import scales_shape

STACKS = [
    ((4, "m", 32), (32, "n")),
    ((4, "m", 32), (4, 32, "n")),
    ((2, 3, "m", 32), (3, 32, "n")),
    (("n", "m", 32), (32,)),
]


@pytest.fixture
def launched(monkeypatch):
    """Return what gives the kind of kernel that the call of a new result of a shape launches."""
    rounds = call_path.rounding_kinds(monkeypatch)

    def kind_of(plan, a, shape):
        problem = plan.problem
        d = Layout(shape, compact_strides(shape), problem.quantized_rows)
        rows = scales_shape(shape, problem.quantized_by)
        scales = Layout(rows, compact_strides(rows), DType.FLOAT32)
        return rounds(plan, a, d, scales)

    return kind_of


def kinds_of(plan):
    return [each.kind for each in second_passes_of(plan)]


@pytest.mark.parametrize("n", [1, 2, 4, 12, 16])
@pytest.mark.parametrize("m", [1, 2, 12, 16])
def test_what_a_call_launches_is_compiled_by_its_plan(launched, m, n):
    for dtype in ("float16", "bfloat16"):
        for shapes in ((("m", 32), (32, "n")), *STACKS):
            a, b = (
                unigemm.ArraySpec([{"m": m, "n": n}.get(x, x) for x in shape], dtype)
                for shape in shapes
            )
            plan = unigemm.plan(a, b, target="sm_90a", backend="cute_simt", quantize_out="row")
            kind = launched(plan, a.dtype, result_shape(a.shape, b.shape))
            assert kind in kinds_of(plan), shapes


@pytest.mark.parametrize("n", [2, 12, 16])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_so_it_is_for_groups_and_gates(launched, m, n):
    more = [{"groups": 3, "along": along} for along in ("m", "n", "k", "rows")]
    more += [{"epilogue": "swiglu", "quantize_out": word} for word in ("row", "1x128")]
    for words in more:
        words = {"quantize_out": "row", **words}
        plan = call_path.plan_of_words("sm_90a", m, n, 32, "float16", **words)
        shape = (m, n // 2) if "epilogue" in words else (m, n)
        if words.get("along") in ("k", "rows"):
            shape = (3, *shape)
        assert launched(plan, DType.FLOAT16, shape) in kinds_of(plan), words


@pytest.mark.parametrize("shape", [(2, 12), (40, 4096), (3, 7)])
def test_a_matrix_of_rows_and_columns_needs_one(shape):
    a, b = (
        unigemm.ArraySpec((shape[0], 32), "float16"),
        unigemm.ArraySpec((32, shape[1]), "float16"),
    )
    plan = unigemm.plan(a, b, target="sm_90a", quantize_out="row")
    assert len(second_passes_of(plan)) == 1
    assert second_passes_of(unigemm.plan(a, b, target="sm_90a")) == ()
