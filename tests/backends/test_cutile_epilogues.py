"""Epilogues in cutile's kernels, block by block on the CPU, against those of NumPy."""

from __future__ import annotations

from dataclasses import replace

import call_path
import numpy as np
import pytest
from activation_values import REFERENCE, checked
from activation_values import X as FAR_OUT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from operator_table import EXACT, FUNCTIONS, VALUES, as_numpy, differing
from sampling import ALL
from test_cutile import plan_of

pytest.importorskip("cuda.tile", reason="cuda-tile is not installed")

from test_cutile_kernel import ARCHS, kernels, lay_out, run, view  # noqa: F401
from test_cutile_launch import Recorder
from tile_machine import Array

import unigemm
from unigemm.activations import ACTIVATIONS, GRADIENTS
from unigemm.backends.cutile.backend import BACKEND
from unigemm.backends.cutile.candidates import scratch_bytes
from unigemm.backends.cutile.kernels.records import TileIndex
from unigemm.backends.cutile.launch_arguments import calls
from unigemm.backends.numpy.epilogue import compute, rounded
from unigemm.epilogue import traced
from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Raster
from unigemm.planning.plan import Plan
from unigemm.planning.target import named_target
from unigemm.problem.canonical import Layout, canonical
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.problem.epilogue import Epilogue, arithmetic, evaluate


def bent(acc, v, s):
    x = np.where(acc > v, np.minimum(acc, s), np.maximum(v * 0.5, np.rint(acc / 4)))
    return x + unigemm.epilogue.erf(x / 8), np.floor(acc * 0.25) - v


#: Arguments of `matmul`; texts name arrays (see `aux`).
CASES = {
    "bias, gelu_tanh": {"bias": "row", "activation": "gelu_tanh", "preact_out": "written"},
    "all": {
        "alpha": 0.5, "beta": "one", "c": "full", "bias": "column", "activation": "silu",
        "amax_out": "largest", "scale_d": 0.5,
    },
    "C turned": {"c": "turned", "bias": "repeated"},
    "gradient": {"activation": "dgelu", "preact": "full", "alpha": 0.25},
    "swiglu": {
        "activation": "swiglu", "gate_layout": "interleaved", "bias": "row", "alpha": 0.125,
        "preact_out": "written", "amax_out": "largest",
    },
    "halves": {
        "activation": "geglu", "gate_layout": "halves", "bias": "row", "alpha": 0.125, "c": "full",
        "preact_out": "written", "amax_out": "largest", "scale_d": 0.5,
    },
    "scalars of a gate": {
        "activation": "geglu", "gate_layout": "interleaved", "alpha": "one", "scale_d": "one",
        "c": "turned", "beta": "one", "amax_out": "largest",
    },
    "scalars of halves": {
        "activation": "swiglu", "gate_layout": "halves", "bias": "row", "scale_d": "one",
    },
    "no product": {
        "alpha": 0.0, "activation": "swiglu", "gate_layout": "interleaved", "bias": "row",
        "scale_d": "one",
    },
    "function": {"epilogue": bent, "epilogue_args": {"v": "column", "s": 3.0}},
    "in place": {"c": "out", "alpha": 2.0},
}  # fmt: skip
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([1, 8, 16, 17, 32, 33, 48]))
KINDS = {
    DType.FLOAT32: (DType.FLOAT32, DType.BFLOAT16),
    DType.BFLOAT16: (DType.BFLOAT16, DType.FLOAT32, DType.INT8, DType.FLOAT8_E4M3FN),
    DType.INT8: (DType.INT32, DType.INT8, DType.FLOAT16),
    DType.FLOAT64: (DType.FLOAT64,),
    DType.FLOAT8_E4M3FN: (DType.BFLOAT16, DType.FLOAT32),  # with scales
}


def aux(kind, shape, dtype, rng, apart):
    """Return the layout and the memory of an array of an epilogue."""
    *batch, m, n = shape
    shared = (False,) * len(batch)
    if kind == "one":
        lay, memory = Layout((1,), (1,), DType.FLOAT32), np.zeros(1, np.float32)
    elif kind == "row":
        lay, memory = Layout((n,), (1,), dtype), np.zeros(n + 64, numpy_dtype(dtype))
    elif kind == "column":
        lay, memory = Layout((m, 1), (1, 1), DType.FLOAT32), np.zeros(m + 64, np.float32)
    else:
        turned, repeated = kind == "turned", kind == "repeated"
        lay, memory = lay_out((m, n), turned, batch, shared, dtype, 0, apart)
        if repeated:  # by all products of a stack
            lay, memory = lay_out((m, n), turned, (), (), dtype, 0)
    view(memory, lay)[...] = rng.integers(-4, 5, lay.shape)
    return lay, memory


@settings(
    max_examples=400 if ALL else 50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    m=SIZES,
    n=st.integers(1, 24).map(lambda n: 2 * n),
    k=st.integers(1, 70),
    batch=st.sampled_from([(), (), (3,), (2, 3)]),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    d_turned=st.booleans(),
    kinds=st.sampled_from([(x, y) for x, outs in KINDS.items() for y in outs]),
    tile=st.sampled_from(
        [(8, 8, 16), (16, 8, 16), (8, 16, 32), (16, 32, 8), (24, 16, 16), (8, 24, 16), (24, 56, 16)]
    ),
    swap_ab=st.booleans(),
    split=st.sampled_from([1, 1, 2, 3]),
    raster=st.sampled_from([Raster("m", 1), Raster("n", 2), Raster("m", 3)]),
    looped=st.sampled_from(["plain", "persistent", "tail"]),
    name=st.sampled_from(sorted(CASES)),
    arch=st.sampled_from(ARCHS),
    apart=st.sampled_from([0, 1]),
)
@example(
    m=33, n=34, k=40, batch=(3,), layout="nt", d_turned=False,
    kinds=(DType.FLOAT8_E4M3FN, DType.BFLOAT16), tile=(16, 32, 8), swap_ab=False, split=1,
    raster=Raster("m", 1), looped="plain", name="halves", arch="sm_90a", apart=1,
)  # fmt: skip
@example(
    m=17, n=24, k=70, batch=(2, 3), layout="nt", d_turned=True,
    kinds=(DType.FLOAT8_E4M3FN, DType.FLOAT32), tile=(8, 16, 32), swap_ab=True, split=2,
    raster=Raster("n", 2), looped="plain", name="all", arch="sm_90a", apart=1,
)  # fmt: skip
def test_blocks_carry_out_the_epilogue_of_numpy_and_write_nothing_else(
    kernels, m, n, k, batch, layout, d_turned, kinds, tile, swap_ab, split, raster, looped, name,  # noqa: F811
    arch, apart,
):  # fmt: skip
    rng = np.random.default_rng(m * 1000 + n)
    (dtype, out), shape = kinds, (*batch, m, n)
    shared = (False,) * len(batch)
    options = call_path.epilogue_arguments(**CASES[name])
    gated, scaled = "gate_layout" in options, dtype is DType.FLOAT8_E4M3FN
    layout = "nt" if dtype.itemsize == 1 else layout  # others are refused
    if "halves" in name:  # others are refused
        split, looped, swap_ab = 1, "plain", False
    a_lay, a_mem = lay_out((m, k), layout[0] == "t", batch, shared, dtype, 0)
    b_lay, b_mem = lay_out((k, n), layout[1] == "t", batch, shared, dtype, 1)
    d_lay, d_mem = lay_out((m, n // 2 if gated else n), d_turned, batch, shared, out, 0, apart)
    d_mem[...] = 99
    for memory, lay in ((a_mem, a_lay), (b_mem, b_lay)):
        view(memory, lay)[...] = rng.integers(-3, 4, lay.shape)
    if name == "in place":
        view(d_mem, d_lay)[...] = rng.integers(-4, 5, d_lay.shape)
    memories, layouts = {1: a_mem, 2: b_mem, 3: d_mem}, {}
    aux_type = DType.FLOAT16 if dtype.itemsize == 1 else dtype
    given = {}
    for at, (key, value) in enumerate(options.items(), 5):
        if value == "out":
            layouts[key], memories[at] = d_lay, d_mem
        elif value == "largest":
            layouts[key], memories[at] = Layout((1,), (1,), DType.FLOAT32), np.zeros(1, np.int32)
        elif isinstance(value, str) and key not in ("activation", "gate_layout"):
            kind = DType.FLOAT32 if value == "written" else aux_type
            layouts[key], memories[at] = aux(value, shape, kind, rng, apart)
        given[key] = (at, value)
    found = call_path.trace(
        options, a_lay, b_lay, lambda _, key: layouts[key], out,
        on_host=False, in_place=name == "in place",
    )  # fmt: skip
    arrays = list(found.names)
    lays = list(found.layouts)
    for i, key in enumerate(arrays):  # a function's further results
        if key.startswith("result"):
            lays[i], memories[30 + i] = lay_out((m, n), not d_turned, batch, shared, out, 0)
            given[key], layouts[key] = (30 + i, "written"), lays[i]
    where = {key: (3 if options.get(key) == "out" else given[key][0]) for key in arrays}
    before = [np.array(view(memories[where[key]], layouts[key]), copy=True) for key in arrays]
    whole = canonical(
        a_lay,
        b_lay,
        d_lay,
        precision="tf32",
        scaled=scaled,
        epilogue=found.epilogue,
        aux=tuple(lays),
    )
    target = replace(named_target(arch), sm_count=5)
    if BACKEND.unsupported_reason(whole.problem, whole.extents, named_target("sm_90a")) is not None:
        return
    schedule = looped if split == 1 else "plain"
    config = plan_of(
        tile=tile, swap_ab=swap_ab, split_k=split, raster=raster, schedule=schedule
    ).config
    if name == "in place" and (schedule == "tail" or 24 in tile or 56 in tile):
        return  # refused: see legality
    plan = Plan("cutile", config, whole.problem, whole.extents, target)
    native = numpy_dtype(whole.problem.accumulator)
    room = scratch_bytes(whole.problem, whole.extents, target, config) // native.itemsize
    memories[4] = np.full(room + 64, 55 if native.kind == "i" else np.nan, native)
    numbers = tuple(np.float64(options[key]) for key in found.numbers)
    largest = given["amax_out"][0] if found.largest else 0
    scales = (50 << 32, 0, 0.25) if scaled else ()
    memories |= {0: np.full(1, np.nan, np.float32), 50: np.full(1, 0.5, np.float32)}
    acc = (0.125 if scaled else 1) * np.matmul(
        *(view(x, y).astype(np.float64) for x, y in ((a_mem, a_lay), (b_mem, b_lay)))
    )
    with np.errstate(all="ignore"):
        run(
            kernels, plan, whole, memories, scales, aux=[where[key] << 32 for key in arrays],
            numbers=numbers, largest=largest << 32,
        )  # fmt: skip
    kind = arithmetic(whole.problem.accumulator, out)
    values = compute(found.epilogue, kind, acc.astype(native), before, numbers)
    ends = {"D": (found.epilogue.result, out, view(d_mem, d_lay))}
    for i, step in enumerate(found.epilogue.stores):
        key = arrays[len(found.epilogue.arrays) + i]
        stored = view(memories[where[key]], layouts[key])
        ends[key] = step, layouts[key].dtype, stored
    for key, (step, type_, got) in ends.items():
        wanted = rounded(np.broadcast_to(values[step], got.shape), type_).astype(np.float64)
        tolerance = (
            0.13 if type_ is DType.FLOAT8_E4M3FN else 2.0**-7 if type_.itemsize < 4 else 1e-5
        )
        # Terms as large as the accumulators may cancel: each was rounded in float32.
        atol = 1 if type_ is DType.INT8 else 1e-5 + 2.0**-23 * np.abs(acc).max(initial=0)
        np.testing.assert_allclose(
            got.astype(np.float64), wanted, rtol=tolerance, atol=atol, err_msg=key
        )
    if found.largest:
        most = np.max(np.abs(values[found.epilogue.largest]))
        np.testing.assert_allclose(memories[largest].view(np.float32)[0], most, rtol=1e-2)
    outside = np.ones(d_mem.shape, bool)
    view(outside, d_lay)[...] = False
    assert (d_mem[outside].astype(np.float64) == np.array(99).astype(d_mem.dtype)).all()


@pytest.mark.parametrize("scaled", [False, True])
def test_a_launch_passes_arrays_numbers_and_the_largest_magnitude_in_order(monkeypatch, scaled):
    """`runtime` brings scales, arrays, the address of the largest magnitude, and numbers."""
    dtype = DType.FLOAT8_E4M3FN if scaled else DType.BFLOAT16
    lay = Layout((64, 64), (64, 1), dtype, 16)
    layouts = {
        "c": Layout((64, 64), (64, 1), DType.BFLOAT16, 16),
        "bias": Layout((64,), (1,), DType.BFLOAT16, 16),
        "amax_out": Layout((1,), (1,), DType.FLOAT32),
    }
    options = {"alpha": 2.0, "c": "full", "bias": "row", "beta": 0.5, "amax_out": "largest"}
    found = call_path.trace(options, lay, lay, lambda _, key: layouts[key], on_host=False)
    gemm = canonical(
        lay,
        Layout((64, 64), (1, 64), dtype, 16),
        Layout((64, 64), (64, 1), DType.BFLOAT16, 16),
        scaled=scaled,
        epilogue=found.epilogue,
        aux=found.layouts,
    )
    target = named_target("sm_90a")
    plan = Plan("cutile", plan_of(tile=(64, 64, 64)).config, gemm.problem, gemm.extents, target)
    driver = Recorder(monkeypatch)
    (call,) = calls(plan, gemm)
    driver.count = len(call.arguments)
    launch = BACKEND.bind(plan, gemm, {"gemm": "function"})
    scales = (7, 0, 3.0) if scaled else ()
    launch(1, 2, 3, 0, 0, *scales, 100, 200, 300, 2.0, 0.5)
    ((_, _, _, _, values, _),) = driver.launches
    at = 27 + (7 if scaled else 0)  # behind three matrices, two arrays of scales and a factor
    if scaled:
        two = [7, 1, 1, 0, 0, 1]
        assert values[27:34] == [*two, int.from_bytes(np.float64(3).tobytes(), "little")]
    assert values[at : at + 9] == [100, 1, 1, 64, 64, 8, 8, 64, 1]
    assert values[at + 9 : at + 18] == [200, 1, 1, 1, 64, 8, 8, 8, 1]
    numbers = [int.from_bytes(np.float64(x).tobytes(), "little") for x in (2.0, 0.5)]
    assert values[at + 18 : at + 23] == [*numbers, 300, 1, 1]


def on_tiles(kernels, function, *arrays):  # noqa: F811
    """Evaluate a function with the operations of tiles, in float32."""
    names = ("x", "y")[: len(arrays)]
    steps, ends = traced(
        lambda acc, **taken: function(*taken.values()),
        {name: ("array", i) for i, name in enumerate(names)},
    )
    table = {name: kernels.operation(code) for name, code in kernels.CODES.items()}
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    with np.errstate(all="ignore"):
        found = evaluate(
            Epilogue(steps, ends[0]), table, None, lambda i: np.broadcast_to(arrays[i], shape),
            lambda i: None, lambda value: np.full((1, 1), value, np.float32),
        )  # fmt: skip
    return np.broadcast_to(found[ends[0]], shape)


@pytest.mark.parametrize("name", [*EXACT, *FUNCTIONS])
def test_operators_are_those_of_numpy(kernels, name):  # noqa: F811
    function = (EXACT | FUNCTIONS)[name]
    x = np.array(VALUES, np.float32)
    got = on_tiles(kernels, function, x[:, None], x[None, :])
    wrong = differing(got, as_numpy(function, np.float32), 16 if name.startswith("power") else 1)
    assert not wrong, wrong[:5]


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_activations_are_right_in_their_tails_and_at_their_limits(kernels, name):  # noqa: F811
    function = {**ACTIVATIONS, **GRADIENTS}[name]
    got = on_tiles(kernels, function, FAR_OUT[:, None]).ravel()
    assert got.dtype == np.float32
    checked(name, got, FAR_OUT, 2e-5)


@pytest.mark.parametrize("ends", [(11, 14), (12, 13), (9, 16), (16, 9)])
def test_the_largest_magnitude_is_that_of_what_lies_in_d(kernels, ends):  # noqa: F811
    """Of the last tile of 8x8: what lies outside of D is larger."""
    rows, columns = (end - 8 for end in ends)
    values = np.full((8, 8), -9.0, np.float32)
    values[:rows, :columns] = 0.5
    values[rows - 1, columns - 1] = -3.0
    noted = np.zeros(1, np.int32)
    largest, at = Array(noted, 0, (1,), (1,)), TileIndex(0, 0, 1, 1)
    kernels.note_largest(values, largest, at, (8, 8), ends)
    assert noted.view(np.float32)[0] == 3.0


@pytest.mark.parametrize("dtype", [np.int8, np.int32], ids=["int8", "int32"])
def test_what_is_no_number_is_zero_in_integers_before_it_is_converted(kernels, dtype):  # noqa: F811
    values = np.array([[np.nan, 2.5, -3.5, 100.25]], np.float32)
    with np.errstate(invalid="raise"):  # what a conversion makes of NaN is its own business
        got = kernels.rounded(values, np.dtype(dtype))
    np.testing.assert_array_equal(got, [[0, 2, -4, 100]])


def test_what_tiles_compute_in_float32_alone_is_left_to_other_backends():
    spec = unigemm.ArraySpec((64, 64), "float64")
    for options in ({"activation": "gelu"}, {"epilogue": lambda acc: acc // 2.0}):
        with pytest.raises(UnsupportedProblem, match="float32 alone"):
            unigemm.plan(spec, spec, backend="cutile", target="sm_90a", **options)
        assert unigemm.plan(spec, spec, target="sm_90a", **options).backend == "cute_simt"
