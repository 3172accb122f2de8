"""cutile's kernels, block by block on the CPU: every index, tail, part and scale against NumPy."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib import import_module
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cutile import dense, plan_of
from test_special_values import SCALES
from tile_machine import Array, Machine, take_array

from unigemm.backends.common.workspace import packed_row_bytes
from unigemm.backends.cutile.backend import BACKEND
from unigemm.backends.cutile.candidates import scratch_bytes
from unigemm.backends.cutile.geometry import (
    PIECE_ROWS,
    REDUCE_TILE,
    TRANSPOSE_TILE,
    columns_of,
    effective_problem,
    parts_of,
)
from unigemm.backends.cutile.launch_arguments import CallArgument, Divisor, calls, order_of
from unigemm.backends.cutile.legality import unsupported_copies
from unigemm.planning.config import Raster
from unigemm.planning.plan import Plan
from unigemm.planning.target import named_target
from unigemm.problem.canonical import Layout, canonical
from unigemm.problem.dtypes import DType, numpy_dtype, output_dtypes

pytest.importorskip("cuda.tile", reason="cuda-tile is not installed")

from unigemm.backends.cutile.kernels.epilogue_signature import program_of
from unigemm.backends.cutile.kernels.records import Options, Order, Scales, Tile, TileEpilogue

ARCHS = ("sm_80", "sm_90a")


@pytest.fixture
def kernels(monkeypatch):
    """Return the functions of all device code, which run on a `Machine`."""
    found = {}
    modules = (
        "tile_coords",
        "mainloop",
        "operations",
        "epilogue_steps",
        "epilogue",
        "gemm",
        "reduction",
    )
    for name in (*modules, "transpose"):
        module = import_module(f"unigemm.backends.cutile.kernels.{name}")
        monkeypatch.setattr(module, "ct", Machine)
        found |= vars(module)
    return SimpleNamespace(**found)


def padded(extent, unit):
    return -(-extent // unit) * unit


def lay_out(shape, turned, batch, shared, dtype, pad, apart=0):
    """Lay out a stack of matrices, lines at multiples of 16 bytes; batch steps of 0 where shared.

    `apart` counts the elements between one matrix of a stack and the next.
    """
    unit = 16 // dtype.itemsize
    rows, columns = shape
    line = padded(rows if turned else columns, unit) + pad * unit
    pair = (1, line) if turned else (line, 1)
    size = line * (columns if turned else rows) + apart
    steps = []
    for extent, repeated in zip(reversed(batch), reversed(shared), strict=True):
        steps.insert(0, 0 if repeated else size)
        size *= 1 if repeated else extent
    layout = Layout((*batch, *shape), (*steps, *pair), dtype)
    poison = 77 if dtype in (DType.INT8, DType.INT32) else np.nan
    return layout, np.full(size + 64, poison, np.float32).astype(numpy_dtype(dtype))


def view(memory, layout):
    return np.lib.stride_tricks.as_strided(
        memory, layout.shape, tuple(s * memory.itemsize for s in layout.strides)
    )


def packed(order):
    """Return the order of tiles as the kernel gets it."""
    return Order(*(x.packed if isinstance(x, Divisor) else x for x in order))


def run(kernels, plan, gemm, memories, scales_at=(), aux=(), numbers=(), largest=0):
    """Execute a product's launches; addresses are 2**32 times the number of a memory.

    Auxiliary arrays are at addresses `aux`.
    """
    config, problem = plan.config, plan.config.oriented(plan.problem)
    a, b = (1, 2) if gemm.swapped == config.swap_ab else (2, 1)
    brought = {"a": a << 32, "b": b << 32, "d": 3 << 32, "workspace": 4 << 32}
    if scales_at:
        at_a, at_b, factor = scales_at
        brought |= {"scale_a": at_a, "scale_b": at_b, "factor": factor}
        brought |= {"scales_a": int(at_a != 0), "scales_b": int(at_b != 0)}
    brought |= {f"array {i}": at for i, at in enumerate(aux)} | {"largest": largest}
    epilogue = problem.epilogue
    dtypes = {"a": problem.a.dtype, "b": problem.b.dtype, "d": problem.d.dtype}
    dtypes["workspace"] = problem.accumulator

    def array(left, dimensions=4, dtype=None, promised=16, single=False):
        dtype = dtype or dtypes[left[0].name]
        first = left[0]
        promised = min(problem.d.alignment, 16) if first.name == "d" else promised
        left[0] = brought[first.name] + first.offset
        if isinstance(left[1], CallArgument):  # of the arrays of at most one number
            left[1] = brought[left[1].name]
        promised = promised if dimensions == 4 else None
        return take_array(left, memories, dtype.itemsize, dtype, dimensions, promised, single)

    def read_scales(left):
        if not problem.scaled or not isinstance(left[0], CallArgument):
            return None
        pair = [array(left, 1, DType.FLOAT32) for _ in range(2)]
        left.pop(0)
        return Scales(*pair, np.float64(brought["factor"]))

    def read_epilogue(left, by_lines=False):
        if epilogue is None:
            return None
        arrays = []
        for i, _ in parts_of(epilogue):
            x = epilogue.aux[i]
            single = x.matrix.major == "strided"
            arrays.append(
                array(left, 4, x.matrix.dtype, None if single else x.matrix.alignment, single)
            )
        assert [left.pop(0).name for _ in numbers] == [f"number {i}" for i in range(len(numbers))]
        largest = () if epilogue.largest is None else (array(left, 1, DType.INT32),)
        second = (array(left),) if epilogue.halves else ()
        program = program_of(problem, by_lines=by_lines)
        return TileEpilogue(tuple(arrays), numbers, largest, second, program)

    product = effective_problem(problem, config)
    tile = (config.tile[0], columns_of(problem, config.tile[1]), config.tile[2])
    gate = "" if epilogue is None else epilogue.gate
    for call in calls(plan, gemm):
        left = list(call.arguments)
        if call.symbol == "transpose":
            source, copy = array(left), array(left)
            for block in range(call.blocks):
                kernels.transpose_tile(block, source, copy, *TRANSPOSE_TILE)
            continue
        if call.symbol == "reduce":
            parts, d = array(left), array(left)
            scales, own = read_scales(left), read_epilogue(left, by_lines=True)
            for block in range(call.blocks):
                kernels.add_parts(block, parts, d, scales, own, *REDUCE_TILE)
            continue
        if call.symbol == "join":
            pieces, d = array(left), array(left)
            *_, m, n = pieces.shape
            scales, own = read_scales(left), read_epilogue(left)
            parts, begin, *order = left
            for block in range(call.blocks):
                kernels.add_pieces(
                    block, pieces, d, scales, own, parts, begin, packed(order), m, n, PIECE_ROWS,
                    problem.d.major == "m",
                )  # fmt: skip
            continue
        x, y, d = array(left), array(left), array(left)
        options = Options(
            a_transposed=product.a.major == "m",
            b_transposed=product.b.major == "k",
            d_transposed=problem.d.major == "m",
            rounded=False,
            direct=False,
            latency=config.stages,
            persistent=config.schedule != "plain",
            overlap=False,
            split=config.split_k > 1,
        )
        if call.symbol == "tail":
            pieces, (parts, begin, *order) = array(left), left
            m, n, _ = config.tile
            of_d = m // 2 if gate == "m" else m, n // 2 if gate == "n" else n
            for block in range(call.blocks):
                kernels.multiply_part(
                    block, x, y, d, pieces, parts, begin, packed(order), Tile(*config.tile),
                    *of_d, options,
                )  # fmt: skip
            continue
        scales = read_scales(left)
        own = read_epilogue(left) if config.split_k == 1 else None
        inner, units, *order = left
        step = call.blocks if config.schedule != "plain" else units
        assert config.schedule != "plain" or call.blocks == units
        for block in range(call.blocks):
            for unit in range(block, units, step):
                kernels.multiply(
                    unit, x, y, d, scales, own, inner, packed(order), Tile(*tile), options,
                )  # fmt: skip


SIZES = st.one_of(st.integers(1, 40), st.sampled_from([1, 8, 16, 17, 32, 33, 48]))
KINDS = (DType.FLOAT32, DType.BFLOAT16, DType.INT8, DType.FLOAT64)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    m=SIZES,
    n=SIZES,
    k=st.integers(1, 70),
    batch=st.sampled_from([(), (1,), (3,), (2, 3), (3, 1), (2, 2, 2)]),
    shared=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    b_shared=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    d_turned=st.booleans(),
    odd=st.booleans(),
    pads=st.tuples(*[st.integers(0, 2)] * 3),
    dtype=st.sampled_from(KINDS),
    tile=st.sampled_from(
        [
            (8, 8, 16),
            (16, 8, 16),
            (8, 16, 32),
            (16, 32, 8),
            (24, 16, 16),
            (56, 16, 8),
            (8, 24, 16),
            (24, 56, 16),
        ]
    ),
    swap_ab=st.booleans(),
    split=st.sampled_from([1, 1, 2, 3]),
    stages=st.sampled_from([1, 6]),
    raster=st.sampled_from([Raster("m", 1), Raster("n", 2), Raster("m", 3), Raster("n", 8)]),
    looped=st.sampled_from(["plain", "persistent", "tail"]),
    repacked=st.booleans(),
    arch=st.sampled_from(ARCHS),
)
def test_blocks_compute_the_product_and_write_nothing_else(
    kernels, m, n, k, batch, shared, b_shared, layout, d_turned, odd, pads, dtype, tile, swap_ab,
    split, stages, raster, looped, repacked, arch,
):  # fmt: skip
    rng = np.random.default_rng(m * 1000 + n)
    out = output_dtypes(dtype)[-1]
    a_lay, a_mem = lay_out((m, k), layout[0] == "t", batch, shared[: len(batch)], dtype, pads[0])
    b_lay, b_mem = lay_out((k, n), layout[1] == "t", batch, b_shared[: len(batch)], dtype, pads[1])
    d_lay, d_mem = lay_out((m, n), d_turned, batch, (False,) * len(batch), out, pads[2])
    if odd:
        d_lay, d_mem = (
            Layout(d_lay.shape, dense(d_lay.shape), out),
            d_mem[: prod(d_lay.shape) + 64],
        )
    d_mem[...] = 99
    for memory, lay in ((a_mem, a_lay), (b_mem, b_lay)):
        view(memory, lay)[...] = rng.integers(-3, 4, lay.shape)
    whole = canonical(a_lay, b_lay, d_lay, precision="tf32")
    gemm = replace(whole, offsets=((0, 0, 0),))
    if BACKEND.unsupported_reason(gemm.problem, gemm.extents, named_target("sm_90a")) is not None:
        return
    schedule = looped if split == 1 else "plain"
    config = plan_of(
        tile=tile, stages=stages, swap_ab=swap_ab, split_k=split, raster=raster, schedule=schedule
    ).config
    target = replace(named_target(arch), sm_count=5)
    if unsupported_copies(config.oriented(gemm.problem), target) is None:
        config = replace(config, repacked=repacked)
    plan = Plan("cutile", config, gemm.problem, gemm.extents, target)
    native = numpy_dtype(gemm.problem.accumulator)
    room = scratch_bytes(gemm.problem, gemm.extents, target, config) // native.itemsize
    workspace = np.full(room + 64, 55 if native.kind == "i" else np.nan, native)
    behind = workspace[room:].copy()
    expected = view(a_mem, a_lay).astype(np.float64) @ view(b_mem, b_lay).astype(np.float64)
    for to_a, to_b, to_d in whole.offsets:
        if gemm.swapped:
            to_a, to_b = to_b, to_a
        run(kernels, plan, gemm, {1: a_mem[to_a:], 2: b_mem[to_b:], 3: d_mem[to_d:], 4: workspace})
    np.testing.assert_array_equal(view(d_mem, d_lay).astype(np.float64), expected)
    view(d_mem, d_lay)[...] = 99
    assert (d_mem == 99).all()
    np.testing.assert_array_equal(workspace[room:], behind)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 200),
    k=st.integers(1, 200),
    outer=st.integers(1, 2),
    inner=st.integers(1, 3),
    pad=st.integers(0, 2),
)
def test_a_copy_is_the_transpose_and_its_lines_end_in_zeros(kernels, rows, k, outer, inner, pad):
    pitch, line = packed_row_bytes(4 * k) // 4, padded(rows, 4) + 4 * pad
    memory = np.full((outer, inner, k, line), np.nan, np.float32)
    memory[..., :rows] = np.random.default_rng(rows).standard_normal((outer, inner, k, rows))
    copy = np.full((outer, inner, rows, pitch), np.nan, np.float32)
    source, target = (
        Array(x.reshape(-1), 0, shape, tuple(step // 4 for step in x.strides))
        for x, shape in ((memory, (outer, inner, k, rows)), (copy, copy.shape))
    )
    lines, elements = TRANSPOSE_TILE
    for block in range(-(-rows // lines) * -(-pitch // elements) * inner * outer):
        kernels.transpose_tile(block, source, target, *TRANSPOSE_TILE)
    np.testing.assert_array_equal(copy[..., :k], memory[..., :rows].swapaxes(-1, -2))
    assert (copy[..., k:] == 0).all()


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("memory", [(0, 0), (5, 0), (0, 6), (5, 6)])
def test_scales_multiply_the_accumulators_once(kernels, split, memory):
    dtype = DType.FLOAT8_E4M3FN
    rng = np.random.default_rng(3)
    lays, memories = {}, {}
    for number, (name, shape) in enumerate({"a": (16, 96), "b": (96, 16)}.items(), 1):
        lays[name], memories[number] = lay_out(shape, name == "b", (), (), dtype, 0)
        view(memories[number], lays[name])[...] = rng.integers(-2, 3, shape)
    lays["d"], memories[3] = lay_out((16, 16), False, (), (), DType.FLOAT32, 0)
    memories |= {5: np.full(1, 0.5, np.float32), 6: np.full(1, -4.0, np.float32)}
    memories |= {0: np.full(1, np.nan, np.float32), 4: np.zeros(3 * 256, np.float32)}
    gemm = canonical(lays["a"], lays["b"], lays["d"], scaled=True)
    config = plan_of(tile=(16, 16, 16), split_k=split).config
    plan = Plan("cutile", config, gemm.problem, gemm.extents, named_target("sm_90a"))
    scales = (memory[0] << 32, memory[1] << 32, 0.25)
    run(kernels, plan, gemm, memories, scales)
    factor = 0.25 * (0.5 if memory[0] else 1) * (-4.0 if memory[1] else 1)
    x, y = (view(memories[i], lays[c]).astype(np.float64) for i, c in ((1, "a"), (2, "b")))
    np.testing.assert_array_equal(view(memories[3], lays["d"]), factor * (x @ y))


@pytest.mark.parametrize("pair", SCALES, ids=str)
def test_the_product_of_scales_is_not_rounded_before_they_multiply(kernels, pair):
    """Accumulators of float8 are 0, or in size from 2**-32 to 2**63."""
    acc = np.array([[0.0, 1.0, -1.5, 2.0**-32, 2.0**63]], np.float32)
    with np.errstate(all="ignore"):
        first, second = (np.full(1, x, np.float32) for x in pair)
        exact = (acc * np.float64(first) * np.float64(second)).astype(np.float32)
        arrays = [Array(x, 0, (1,), (1,)) for x in (first, second)]
        got = [kernels.scaled(acc, Scales(*arrays, np.float64(1)))]
        empty = [Array(x, 0, (0,), (1,)) for x in (first, second)]
        factor = np.float64(first[0]) * np.float64(second[0])
        got.append(kernels.scaled(acc, Scales(*empty, factor)))
    for each in got:
        np.testing.assert_allclose(each, exact, rtol=2.0**-22, atol=2.0**-148)


@pytest.mark.parametrize("seed", range(20))
def test_every_tile_is_visited_once(kernels, seed):
    draw = random.Random(seed)
    m, n, group = draw.randint(1, 20), draw.randint(1, 20), draw.randint(1, 9)
    for along_n in (0, 1):
        config = replace(plan_of().config, raster=Raster("mn"[along_n], group))
        order = packed(order_of(config, m, n, 1))
        undivided = Order(order.along_n, order.group)
        seen = [kernels.tile_coordinates(i, m, n, order) for i in range(m * n)]
        assert sorted(seen) == [(i, j) for i in range(m) for j in range(n)]
        assert seen == [kernels.tile_coordinates(i, m, n, undivided) for i in range(m * n)]


def exactly(number, divisor):
    """Divide as `quotient` does; the product must fit in 63 bits."""
    wide = number * (divisor.packed & 0xFFFFFFFF)
    assert wide < 2**63
    return wide >> (divisor.packed >> 32)


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_a_divisor_divides_exactly(by, number):
    divisor = Divisor(by)
    assert 0 < divisor.packed < 2**63
    whole = number // by * by
    for near in (number, whole, max(0, whole - 1), 2**31 - 1):
        assert exactly(near, divisor) == near // by


@pytest.mark.parametrize("by", [1, 2, 3, 2**16 + 1, 2**30 + 1, 2**31 - 1])
def test_a_divisor_divides_the_ends_of_its_range_exactly(kernels, by):
    for number in (0, by - 1, by, 2**31 - by, 2**31 - 2, 2**31 - 1):
        assert kernels.quotient(number, Divisor(by).packed) == number // by


def test_the_machine_is_strict():
    memory = np.zeros(64, np.float32)
    left = [0, 1, 1, 4, 8, 1, 1, 8, 1]
    array = take_array(left, {0: memory}, 4, DType.FLOAT32)
    with pytest.raises(AssertionError, match="outside"):
        Machine.load(array, (0, 0, 1, 0), (1, 1, 4, 8), padding_mode="zero")
    assert CallArgument("a") == CallArgument("a", 0)
