"""Scales of blocks (MXFP8): what is taken, how it lies, and what the host makes of it."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from block_scaled import E4M3, E5M2, E8M0, NAN, PAIRS, assert_near, draw, in_tiles

import unigemm
from unigemm.planning.target import ARCHITECTURES
from unigemm.problem.block_scales import blocked_count, row_and_block_offsets
from unigemm.problem.canonical import Layout, canonical
from unigemm.problem.dtypes import DType, numpy_dtype

KIND = DType.FLOAT8_E4M3FN


def test_a_scale_lies_where_the_tiles_of_cublas_have_it():
    """Counted here from the figure: 32 lines of 16 bytes, four rows 32 apart in each."""
    rows = 300
    codes = np.arange(rows * 6).reshape(rows, 6)
    flat = np.full(blocked_count(rows, 6), -1)
    indices = [sum(row_and_block_offsets(r, j, 6)) for r in range(rows) for j in range(6)]
    flat[indices] = codes.reshape(-1)
    assert len(flat) == 3 * 2 * 512
    corners = [(0, 0), (0, 1), (32, 0), (96, 3), (1, 0)]
    assert [flat[i] for i in (0, 1, 4, 15, 16)] == [codes[corner] for corner in corners]
    assert flat[512] == codes[0, 4]
    assert flat[2 * 512] == codes[128, 0]
    small = (codes % 251).astype(np.uint8)
    np.testing.assert_array_equal(
        in_tiles(small, filling=0).view(np.uint8)[indices], small.reshape(-1)
    )


@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("types", [(E4M3, E5M2), (PAIRS, PAIRS)], ids=["mxfp8", "nvfp4"])
@pytest.mark.parametrize("orders", [("plain", "plain"), ("blocked", "plain"), ("blocked",) * 2])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (33, 130, 75), (257, 5, 2100), (1, 300, 32), (140, 129, 128)]
)
def test_elements_are_multiplied_by_the_scales_of_their_blocks(m, n, k, orders, types, out):
    rng = np.random.default_rng(m + n + k)
    a, b = draw(rng, (m, k), types[0]), draw(rng, (n, k), types[1])
    of_b = b.scales(orders[1])
    got = unigemm.matmul(
        a.elements, b.elements.T, dtype=out, scale_a=a.scales(orders[0]),
        scale_b=of_b.T if orders[1] == "plain" else of_b,
    )  # fmt: skip
    assert got.dtype == numpy_dtype(DType(out))
    assert_near(got, a, b)


@pytest.mark.parametrize("order", ["plain", "blocked"])
def test_stacks_vectors_and_transposed_results(order):
    rng = np.random.default_rng(4)
    a, b = draw(rng, (2, 3, 40, 96), E4M3), draw(rng, (3, 20, 96), E4M3)
    of_b = b.scales(order)
    scales = {
        "scale_a": a.scales(order),
        "scale_b": of_b.swapaxes(-1, -2) if order == "plain" else of_b,
    }
    right = b.elements.swapaxes(-1, -2)
    assert_near(unigemm.matmul(a.elements, right, **scales), a, b)
    turned = np.empty((2, 3, 20, 40), np.float32).swapaxes(-1, -2)
    unigemm.matmul(a.elements, right, turned, **scales)
    assert_near(turned, a, b)

    x, y = draw(rng, (96,), E4M3), draw(rng, (20, 96), E4M3)
    of_x = in_tiles(x.codes[None]) if order == "blocked" else x.codes.view(E8M0)
    of_y = y.scales(order)
    got = unigemm.matmul(
        x.elements, y.elements.T, scale_a=of_x, scale_b=of_y.T if order == "plain" else of_y
    )
    assert_near(got, x, y)


def test_scales_as_large_as_they_come_do_not_overflow_alone():
    a, b = np.full((1, 32), 448, E4M3), np.full((32, 1), 448, E4M3)
    large, small = (np.full((1, 1), code, np.uint8).view(E8M0) for code in (254, 0))
    got = unigemm.matmul(a, b, scale_a=large, scale_b=small)
    assert got[0, 0] == 32 * 448.0**2


def test_a_scale_that_is_no_number_spoils_its_row_alone():
    rng = np.random.default_rng(5)
    a, b = draw(rng, (40, 64), E4M3), draw(rng, (9, 64), E4M3)
    a.codes[7, 1] = NAN[E8M0]
    got = unigemm.matmul(a.elements, b.elements.T, scale_a=a.scales("plain"),
                         scale_b=b.scales("blocked"))  # fmt: skip
    assert np.isnan(got[7]).all()
    assert not np.isnan(np.delete(got, 7, 0)).any()


def test_pairs_of_float4_are_the_numbers_of_ml_dtypes():
    """The first of a pair is in the low half; the sign of a scale is not looked at."""
    a = np.array([[0x21, 0xFA]], np.uint8)  # 0.5, 1, -1, -6
    b = np.eye(2, dtype=np.uint8) * 0x42  # (1, 2) and zeros
    one, less = np.array([[0x38]], np.uint8), np.array([[0xB8], [0x30]], np.uint8)  # 1; -1, 0.5
    scales = {"scale_a": one.view(E4M3), "scale_b": less.view(E4M3).T}
    got = unigemm.matmul(a, b, **scales)
    np.testing.assert_array_equal(got, [[0.5 * 1 + 1 * 2, 0.5 * (-1 * 1 - 6 * 2)]])


@pytest.mark.parametrize("types", [(E4M3, E5M2), (PAIRS, PAIRS)], ids=["mxfp8", "nvfp4"])
def test_whole_operands_have_scales_beside_those_of_blocks(types):
    rng = np.random.default_rng(3)
    a, b = draw(rng, (33, 80), types[0]), draw(rng, (20, 80), types[1])
    whole = np.array([0.25], np.float32)
    got = unigemm.matmul(
        a.elements, b.elements.T, scale_a=(a.scales("plain"), 3.0),
        scale_b=(b.scales("blocked"), whole),
    )  # fmt: skip
    assert_near(got, a, b, 0.75)
    turned = np.empty((20, 33), np.float32).T
    unigemm.matmul(a.elements, b.elements.T, turned, scale_a=a.scales("blocked"),
                   scale_b=(whole, b.scales("plain").T))  # fmt: skip
    assert_near(turned, a, b, 0.25)


def test_scales_are_read_at_each_call_and_new_orders_are_new_calls():
    rng = np.random.default_rng(6)
    a, b = draw(rng, (40, 64), E4M3), draw(rng, (9, 64), E4M3)
    plain = a.scales("plain").copy()
    options = {"scale_b": b.scales("blocked")}
    first = unigemm.matmul(a.elements, b.elements.T, scale_a=plain, **options)
    plain.view(np.uint8)[...] += 1
    second = unigemm.matmul(a.elements, b.elements.T, scale_a=plain, **options)
    np.testing.assert_array_equal(second, 2 * first)
    blocked = unigemm.matmul(a.elements, b.elements.T, scale_a=a.scales("blocked"), **options)
    np.testing.assert_array_equal(blocked, first)


def test_torch_tensors_have_scales():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    a, b = draw(rng, (40, 96), E4M3), draw(rng, (20, 96), E4M3)

    def tensor(x, dtype):
        return torch.from_numpy(np.ascontiguousarray(x).view(np.uint8)).view(dtype)

    pair = draw(rng, (40, 64), PAIRS)
    x = tensor(pair.elements, torch.float4_e2m1fn_x2)
    of_x = tensor(pair.codes, torch.float8_e4m3fn)
    assert_near(unigemm.matmul(x, x.T, scale_a=of_x, scale_b=of_x.T).numpy(), pair, pair)
    got = unigemm.matmul(
        tensor(a.elements, torch.float8_e4m3fn), tensor(b.elements, torch.float8_e4m3fn).T,
        scale_a=tensor(a.codes, torch.float8_e8m0fnu),
        scale_b=tensor(in_tiles(b.codes), torch.float8_e8m0fnu),
    )  # fmt: skip
    assert_near(got.numpy(), a, b)


def scales(shape):
    return np.full(shape, 127, np.uint8).view(E8M0)


def test_what_are_no_scales_of_blocks_is_refused():
    a, b = np.ones((40, 96), E4M3), np.ones((96, 20), E4M3)
    good = {"scale_a": scales((40, 3)), "scale_b": scales((3, 20))}
    assert unigemm.matmul(a, b, **good)[0, 0] == 96

    def refused(error, words, x=a, y=b, out=None, **changes):
        with pytest.raises(error, match=words):
            unigemm.matmul(x, y, out, **{**good, **changes})

    refused(unigemm.ShapeMismatch, r"is \(40, 3\), or \(512,\) in tiles", scale_a=scales((40, 4)))
    refused(unigemm.ShapeMismatch, r"\(transposed: scale_b.T\)", scale_b=scales((20, 3)))
    refused(unigemm.ShapeMismatch, "one scale for each 32", scale_b=scales((513,)))
    refused(unigemm.UnsupportedProblem, "for both", scale_b=None)
    refused(unigemm.UnsupportedProblem, "for both", scale_b=scales((3, 20)).view(E4M3))
    nvfp4 = {name: np.zeros(x.shape, np.uint8).view(E4M3) for name, x in good.items()}
    refused(unigemm.UnsupportedDtype, "float4_e2m1fn_x2 inputs", **nvfp4)
    pairs = {"x": a.view(np.uint8), "y": b.view(np.uint8)}
    refused(unigemm.UnsupportedDtype, "inputs and these are uint8;", **pairs)
    single = a.astype(ml_dtypes.float4_e2m1fn)
    refused(unigemm.UnsupportedDtype, "pack two of K into a byte", x=single)
    refused(unigemm.UnsupportedProblem, "for both", scale_a=2.0)
    refused(unigemm.UnsupportedProblem, "is a pair", scale_a=(good["scale_a"], None))
    refused(unigemm.UnsupportedProblem, "is a pair", scale_a=(1.0, 2.0))
    refused(unigemm.UnsupportedProblem, "float8", x=a.astype("f4"), y=b.astype("f4"))
    refused(unigemm.UnsupportedDtype, "scales only", x=scales((40, 96)), y=scales((96, 20)))
    refused(unigemm.UnsupportedProblem, "compact copy", scale_a=scales(1024)[::2])
    raw = np.zeros(40 * 20 * 4, np.uint8)
    inside = raw[:120].view(E8M0).reshape(40, 3)
    refused(unigemm.OverlapError, "scale_a", out=raw.view("f4").reshape(40, 20), scale_a=inside)
    stack = np.ones((2, 3, 4, 8, 32), E4M3)[:, ::2, ::2]
    of_stack = {"scale_a": scales((2, 2, 2, 8, 1)), "scale_b": scales((2, 2, 2, 1, 8))}
    other = np.ones((2, 2, 2, 32, 8), E4M3)
    refused(unigemm.UnsupportedProblem, "fold together", x=stack, y=other, **of_stack)


def planned(**options):
    a = unigemm.ArraySpec((512, 1024), "float8_e4m3fn")
    b = unigemm.ArraySpec((1024, 256), "float8_e5m2", "F")
    flat = unigemm.ArraySpec((512 * 32,), "float8_e8m0fnu")
    plain = unigemm.ArraySpec((32, 256), "float8_e8m0fnu")
    given = {"target": "cpu", "scale_a": flat, "scale_b": plain, **options}
    return unigemm.plan(a, b, **given)


def test_a_plan_holds_the_class_of_its_scales():
    plan = planned()
    assert (plan.problem.blocks.a, plan.problem.blocks.b) == ("blocked", "plain")
    assert plan.problem.transposed.blocks.a == "plain"
    assert "float8_e8m0fnu for each 32 elements of K, blocked and plain" in plan.explain()
    assert unigemm.Plan.from_json(plan.to_json()) == plan
    plain = replace(plan.problem, blocks=None)
    more = plan.extents.bytes_moved(plan.problem) - plan.extents.bytes_moved(plain)
    assert more == (512 + 256) * 32
    assert planned(scaled=True).problem.scaled
    whole = planned(scale_a=(unigemm.ArraySpec((512 * 32,), "float8_e8m0fnu"), 2.0))
    assert whole.problem == planned(scaled=True).problem
    assert not planned().problem.scaled
    a, b = np.ones((40, 96), E4M3), np.ones((96, 20), E4M3)
    options = {"scale_a": scales((40, 3)), "scale_b": scales((3, 20))}
    plan = unigemm.plan(a, b, **options)
    assert unigemm.matmul(a, b, plan=plan, **options)[0, 0] == 96
    with pytest.raises(unigemm.UnsupportedProblem, match="scales of blocks"):
        unigemm.matmul(a, b, plan=plan)


def test_the_transpose_of_a_product_has_its_scales_the_other_way_round():
    a, b = Layout((40, 96), (96, 1), KIND), Layout((96, 20), (1, 96), KIND)
    of_a, of_b = (Layout(s, t, DType.FLOAT8_E8M0FNU) for s, t in
                  (((512,), (1,)), ((3, 20), (1, 5))))  # fmt: skip
    down = Layout((40, 20), (1, 40), DType.FLOAT32)
    gemm = canonical(a, b, down, scales=(of_a, of_b))
    assert gemm.swapped
    assert (gemm.problem.blocks.a, gemm.problem.blocks.b) == ("plain", "blocked")
    assert gemm.scale_strides == ((5, 1, 0, 0), (0, 0, 0, 0))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_other_backends_say_what_would_do(arch):
    for backend in ("cute_simt", "cute_wgmma", "cutile"):
        with pytest.raises(unigemm.UnsupportedProblem, match="as bfloat16"):
            planned(target=arch, backend=backend)
    if arch in ("sm_100a", "sm_103a", "sm_110a"):
        assert planned(target=arch).backend == "cute_tcgen05"
    else:
        with pytest.raises(unigemm.UnsupportedProblem, match="as bfloat16"):
            planned(target=arch)
