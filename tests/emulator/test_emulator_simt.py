"""cute_simt's compiled kernels, host code included, multiply right on an emulated GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_products import COMPILED, configured, framed, framed_launches, scheduled, views_of
from gpu_cases import matrix
from hypothesis import given, settings
from reference import EVERYWHERE, NUMPY, Case, check_case, lay_out
from reference import cases as draw_cases

import unigemm
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.backends.cute_simt.tiles import DOT_SHAPES, SHAPES
from unigemm.backends.cute_simt.work_split import scratch_bytes
from unigemm.emulator import EmulatorError, KernelFault, device
from unigemm.planning.config import Config, Raster
from unigemm.planning.prediction import Alternative
from unigemm.problem.dtypes import DType, numpy_dtype

pytestmark = COMPILED
SIZES = [(129, 65, 33), (64, 200, 129)]
ALIGNED, ODD = (16, 0), (3, 1)
ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")


@pytest.mark.parametrize(("layout", "alignment"), [("nn", ODD), ("tt", ALIGNED)], ids=str)
@pytest.mark.parametrize("dtype", EVERYWHERE, ids=str)
def test_layouts_dtypes_and_offsets_at_awkward_sizes(dtype, layout, alignment):
    (pad, shift), number = alignment, EVERYWHERE.index(dtype)
    seed = (number + pad) % 2  # a type has one of the sizes by each of the layouts
    m, n, k = SIZES[seed]
    case = Case(
        a=matrix(m, k, layout[0] == "t", pad, shift),
        b=matrix(k, n, layout[1] == "t", pad, shift),
        d=matrix(m, n, False, pad, shift),
        shape=(m, n),
        dtype=dtype,
        out_dtype=dtype,
        exact=False,
        seed=seed,
    )
    with device(ARCHS[(number + pad) % len(ARCHS)], seed=seed):
        check_case(NUMPY, case, backend="cute_simt")


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(2)
def test_blackwells_packed_sums_are_right(layout):
    case = Case(
        matrix(129, 33, layout[0] == "t", 16, 0), matrix(33, 65, layout[1] == "t", 16, 0),
        matrix(129, 65, False, 3, 1), (129, 65), DType.FLOAT32, DType.FLOAT32, False, 7,
    )  # fmt: skip
    with device("sm_100a"):
        check_case(NUMPY, case, backend="cute_simt")


def test_drawn_products_are_right_and_touch_nothing_else():
    @settings(max_examples=5)
    @given(case=draw_cases(largest=70, dtypes=(DType.FLOAT32, DType.BFLOAT16), negative=True))
    def run(case):
        with device("sm_80"):
            check_case(NUMPY, case, backend="cute_simt")

    run()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.sample(2)
def test_rows_of_an_m_major_a_are_read_side_by_side(rows):
    """Beside a K-major B, and as columns of the transposed product; what lies between is poison."""
    rng = np.random.default_rng(rows)
    for n, k, pad in ((37, 530, 0), (9, 301, 2 if rows % 2 else 4)):
        x, y = rng.integers(-4, 5, (rows, k)), rng.integers(-4, 5, (k, n))
        a, _ = framed((rows, k), True, pad, x)
        b, _ = framed((k, n), True, pad, y)
        d, buffer = framed((rows, n), False, 1, None)
        for left, right, out, expected in ((a, b, d, x @ y), (b.T, a.T, d.T, (x @ y).T)):
            with device("sm_90a") as gpu:
                first = unigemm.plan(left, right, out, backend="cute_simt")
                every = BACKEND.candidates(first.problem, first.extents, first.target)
                dots = [c for c in every if c.config.schedule == "dot"]
                for each in dots[:: max(1, len(dots) // 2)]:
                    plan = first.taking(Alternative.of("cute_simt", each))
                    out[...] = np.nan
                    unigemm.matmul(left, right, out, plan=plan)
                    np.testing.assert_array_equal(out, expected, err_msg=str(plan.config))
                assert dots or rows == 1
                assert all(x.kernel.startswith(("simt_dot", "split")) for x, *_ in gpu.launches)
        d[...] = np.nan
        assert np.isnan(buffer).all(), "nothing else was written"


@pytest.mark.parametrize("dtype", EVERYWHERE, ids=str)
def test_few_rows_of_either_operand_give_the_product(dtype):
    for seed, (m, n, k) in enumerate([(1, 1, 5001), (3, 40, 1027), (50, 2, 300)]):
        case = Case(
            matrix(m, k, False, 16, 0), matrix(k, n, True, 16, 0), matrix(m, n, False, 16, 0),
            (m, n), dtype, dtype, False, seed,
        )  # fmt: skip
        with device("sm_90a") as gpu:
            check_case(NUMPY, case, plan=scheduled(*views_of(case), "dot"))
        assert gpu.launches[0][0].kernel.startswith("simt_dot")


@pytest.mark.parametrize("rows", [1, 3])
def test_dots_that_only_float64_has_give_the_product(rows):
    """Parts of a K that ends within a warp's load, and columns within a tile, for each shape."""
    # Three rows by eight columns are too many accumulators.
    shapes = [x for x in DOT_SHAPES[rows == 3 :: 2] if rows == 1 or x[0] < 8]
    for seed, (each, warps, slices) in enumerate(shapes):
        tile = ({1: 1, 3: 4}[rows], each * warps, 1)
        config = Config(tile, warps=(1, warps), slice_k=slices, split_k=2, schedule="dot")
        case = Case(
            matrix(rows, 1030, False, 2, 0), matrix(1030, 37, True, 4, 0),
            matrix(rows, 37, False, 1, 1), (rows, 37), DType.FLOAT64, DType.FLOAT64, False, seed,
        )  # fmt: skip
        with device("sm_90a", seed=seed) as gpu:
            check_case(NUMPY, case, plan=configured(*views_of(case), config))
        assert gpu.launches[0][0].kernel.startswith("simt_dot")


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=str)
def test_one_row_beside_the_lines_of_the_other_operand_gives_the_product(dtype):
    """All alignments; A in steps; stacks; of an M-major A, one column of B."""
    unit = 16 // dtype.itemsize
    k, n = 90, 75
    for seed, (transposed, pad, shift, stack, name) in enumerate([
        (False, 0, 0, 1, "sm_90a"),
        (True, -n % unit + unit, 0, 2, "sm_80"),  # whole vectors, but for the last of each line
        (False, -n % unit + unit // 2, unit // 2, 3, "sm_100a"),
    ]):  # fmt: skip
        b = lay_out((stack, k, n), (2, 1, 0), (pad, (n + pad) * 2, 0), 1, shift)
        a = lay_out((stack, 1, k), (1, 2, 0) if transposed else (2, 1, 0), (seed, 4, 0), 1, shift)
        d = lay_out((stack, 1, n), (2, 1, 0), (seed, 0, 3), 1, 1)
        if seed == 1:
            a, b, d = (
                replace(x, shape=(x.shape[0], *x.shape[:0:-1]),
                        strides=(x.strides[0], *x.strides[:0:-1]))
                for x in (b, a, d)
            )  # fmt: skip
        case = Case(a, b, d, d.shape, dtype, dtype, False, seed)
        with device(name, seed=seed, lockstep=seed == 0) as gpu:
            check_case(NUMPY, case, plan=scheduled(*views_of(case), "axpy"))
        assert gpu.launches[0][0].kernel.startswith("simt_axpy")


@pytest.mark.parametrize("split", [1, 3])
def test_configurations_rasters_and_orders_of_warps_give_the_product(split):
    rng = np.random.default_rng(5)
    m, n, k = 50, 45, 35
    a = rng.integers(-2, 3, (m, k)).astype(np.float32)
    b = rng.integers(-2, 3, (k, n)).astype(np.float32)
    with device("sm_90a") as gpu:
        first = unigemm.plan(a, b, backend="cute_simt")
        found = BACKEND.candidates(first.problem, first.extents, first.target)
        configs = list(dict.fromkeys(replace(c.config, split_k=1) for c in found))
        for i, base in enumerate(configs[:3]):
            gpu.seed, gpu.lockstep = i, i != 1
            raster = Raster("mn"[i % 2], (1, 2, 8)[i % 3])
            config = replace(base, split_k=split, raster=raster)
            scratch = scratch_bytes(first.problem, first.extents, config, first.target)
            plan = replace(first, config=config, workspace_bytes=scratch)
            out = np.full((m, n), np.nan, "f4")
            unigemm.matmul(a, b, out, plan=plan)
            np.testing.assert_array_equal(out, a @ b, err_msg=str(config))
        assert len(gpu.launches) == len(configs[:3]) * (1 if split == 1 else 2)


BIG = [shape for shape in SHAPES if shape.thread[0] * shape.thread[1] >= 64]


@pytest.mark.parametrize("number", range(len(BIG)))
@pytest.mark.sample(2)
def test_big_sums_of_transposed_and_moved_tiles_give_the_product(number):
    """A tile that sticks out moves back where it can; fewer rows than a tile are checked."""
    shape = BIG[number]
    layout, pad = ("nn", "tn", "nt", "tt")[number % 4], (4, 1, 3)[number % 3]
    m, n = (
        each + extra for each, extra in zip(shape.tile, ((5, 3), (-9, 6))[number % 2], strict=True)
    )
    sizes = m, n, (37, 32, 18)[number % 3]
    config = Config((*shape.tile, 16), stages=shape.stages, warps=shape.warps, thread=shape.thread)
    framed_launches(layout, sizes, pad, config, seed=number, lockstep=number % 2 == 0)


#: Columns and K; what lies between lines of B; a step of A, and of D; parts of K, and a shape.
ROWS_ADDED = [
    ((512, 256), 0, (1, 1), 1, (32, 1, 4, 8)),  # whole tiles, whole turns
    ((131, 203), 1, (1, 1), 2, (32, 1, 4, 8)),  # a vector that ends behind N, K that ends anywhere
    ((131, 203), 0, (1, 1), 3, (32, 1, 2, 16)),  # an odd pitch: single elements
    ((1030, 70), 2, (3, 1), 1, (32, 8, 1, 8)),  # more columns than threads; A strided
    ((95, 300), 1, (1, 2), 7, (8, 1, 4, 8)),  # parts that are empty, D strided
    ((97, 301), 3, (2, 1), 2, (16, 2, 3, 4)),
    ((3, 40), 1, (1, 1), 1, (8, 1, 1, 8)),  # less than a vector
    ((5, 3), 0, (1, 1), 1, (8, 1, 8, 8)),  # less than a turn
]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("number", range(len(ROWS_ADDED)))
@pytest.mark.sample(6)
def test_rows_of_b_are_added_in_every_shape(number, swap):
    (n, k), pad, (a_step, d_step), split, (lanes, warps, slices, rows) = ROWS_ADDED[number]
    rng = np.random.default_rng(number)
    x, y = rng.integers(-4, 5, (2, k)), rng.integers(-4, 5, (k, n))
    b, _ = framed((k, n), False, pad, y)
    a = np.full((2, k * a_step), np.nan, np.float32)
    a[:, ::a_step] = x
    a = a[:1, ::a_step]
    d = np.full((3, n * d_step), np.nan, np.float32)
    row = d[1:2, ::d_step]
    operands = (b.T, a.T, row.T) if swap else (a, b, row)
    with device("sm_90a", seed=number, lockstep=number % 2 == 0) as gpu:
        config = Config(
            (1, lanes * warps * 4, 1), warps=(1, warps), thread=(1, 4), slice_k=slices,
            stages=rows, split_k=split, swap_ab=unigemm.plan(*operands).extents.n == 1,
            schedule="axpy",
        )  # fmt: skip
        assert config.swap_ab == (d_step > 1), "a compact D is stated as a row"
        unigemm.matmul(*operands, plan=configured(*operands, config))
    assert gpu.launches[0][0].kernel.startswith("simt_axpy")
    np.testing.assert_array_equal(row, x[:1] @ y)
    row[...] = np.nan
    assert np.isnan(d).all(), "nothing else was written"


@pytest.mark.parametrize(
    ("layout", "sizes", "split", "pad", "sms"),
    [
        ("nn", (300, 200, 100), 2, 0, 5),  # 10 of 12 tiles are whole
        ("nt", (257, 190, 131), 3, 1, 4),  # odd rows; tiles that move back over others
        ("tn", (256, 192, 64), 4, 0, 4),  # whole tiles, whole k_tiles
        ("tt", (140, 130, 90), 5, 2, 5),  # one of 6 in parts, the last one shorter
        ("nn", (130, 70, 70), 2, 0, 9),  # fewer tiles than slots: all in parts
        ("nn", (128, 256, 70), 2, 0, 2),  # the last wave is a full one
    ],
)
@pytest.mark.sample(2)
def test_only_the_tiles_of_the_last_wave_have_parts(layout, sizes, split, pad, sms):
    config = Config(
        (128, 64, 8), stages=3, warps=(2, 2), thread=(8, 8), occupancy=1, split_k=split,
        raster=Raster("m", 2), schedule="tail",
    )  # fmt: skip
    gpu, plan = framed_launches(layout, sizes, pad, config, sms, seed=split, lockstep=split == 2)
    tiles = -(-sizes[0] // 128) * -(-sizes[1] // 64)
    left = tiles % sms or sms
    (product, *_), (addition, *_) = gpu.launches
    assert product.grid == (tiles - left + left * split, 1, 1)
    assert addition.kernel.startswith("simt_tail")
    assert plan.workspace_bytes == left * split * 128 * 64 * 4


def test_parts_of_odd_rows_are_stored_wherever_a_tile_has_moved_to():
    """The last tile begins at column 66 of 130: no vector of the workspace does."""
    config = Config((128, 64, 16), stages=3, warps=(2, 2), thread=(8, 8), split_k=2)
    framed_launches("nt", (131, 130, 70), 1, config)


def test_the_order_of_warps_does_not_change_a_bit():
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((65, 65)).astype(np.float32) for _ in range(2))
    results = []
    for seed, lockstep in ((0, True), (1, True), (2, False)):
        with device("sm_80", seed=seed, lockstep=lockstep):
            results.append(unigemm.matmul(a, b, backend="cute_simt").tobytes())
    assert len(set(results)) == 1


def test_sums_are_those_of_fused_multiply_adds_in_order():
    """One rounding a step, from the first element of K to the last, as the hardware does it."""
    from unigemm.emulator.core.rounding import fma32

    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((40, 50)).astype("f4"), rng.standard_normal((50, 40)).astype("f4")
    total = np.zeros((40, 40), np.float32)
    for k in range(50):
        total = fma32(a[:, k : k + 1], b[k], total)
    with device("sm_80"):
        plan = unigemm.plan(a, b, backend="cute_simt")
        config = replace(plan.config, split_k=1)
        got = unigemm.matmul(a, b, plan=replace(plan, config=config, workspace_bytes=0))
    np.testing.assert_array_equal(got, total)


def test_a_quarter_of_a_million_products_and_the_counts_of_instructions():
    rng = np.random.default_rng(9)
    a = rng.integers(-4, 5, (256, 256)).astype(np.float16)
    with device("sm_80") as gpu:
        got = unigemm.matmul(a, a.T, dtype="float32", backend="cute_simt")
    np.testing.assert_array_equal(got, a.astype("f8") @ a.astype("f8").T)
    counts = gpu.launches[0][1].instructions
    fused = sum(count for op, count in counts.items() if op.startswith("fma.rn.f32"))
    assert fused == 256**3 // 32


# -- the device ------------------------------------------------------------------------------------


def test_arrays_are_numpys_again_behind_the_block():
    x = np.eye(3, dtype=np.float32)
    with device("sm_80") as gpu:
        assert unigemm.plan(x, x).target.arch == "sm_80"
        assert unigemm.plan(x, x).backend == "cute_simt"
        with pytest.raises(EmulatorError, match="another emulated device"), device("sm_90a"):
            pass
        with pytest.raises(unigemm.DeviceMismatch, match="runs on the CPU"):
            unigemm.matmul(x, x, backend="numpy")
    assert unigemm.plan(x, x).target.arch == "cpu"
    unigemm.matmul(x, x)
    assert not gpu.launches
    with pytest.raises(EmulatorError, match="name an architecture"), device("cpu"):
        pass
    with pytest.raises(unigemm.DeviceMismatch, match="arrays are on the CPU"):
        unigemm.matmul(x, x, backend="cute_simt")


def test_memory_maps_lie_on_the_device_as_other_arrays_do(tmp_path):
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(8, 8))
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(8, 8))
    plain, x[...] = np.eye(8, dtype=np.float32), np.arange(64).reshape(8, 8)
    with device("sm_80") as gpu:
        assert unigemm.plan(x, x).target.arch == "sm_80"
        for a, b in ((x, plain), (plain, x), (x, x)):
            np.testing.assert_array_equal(unigemm.matmul(a, b, backend="cute_simt"), a @ b)
        assert unigemm.matmul(x, plain, out, backend="cute_simt") is out
        assert len(gpu.launches) == 4
    np.testing.assert_array_equal(out, x)
    unigemm.matmul(x, plain, out)
    assert unigemm.plan(x, x).target.arch == "cpu"
    assert len(gpu.launches) == 4


def test_kernels_see_the_arrays_that_are_alive_and_write_only_results():
    a, b = np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)
    with device("sm_80") as gpu:
        d = unigemm.matmul(a, b, backend="cute_simt")
        memory = gpu.memory()
        for x in (a, b, d):
            found = memory.find(x.ctypes.data, x.ctypes.data + x.nbytes)
            assert found.size == x.nbytes
            assert found.writable == (x is d)
        address = b.ctypes.data
        del b
        assert gpu.memory().find(address, address + 1) is None
        whole = np.arange(100, dtype=np.float32)
        parts = gpu.see(whole[:60]), gpu.see(whole[30:], write=True)
        found = gpu.memory().find(whole.ctypes.data, whole.ctypes.data + 400)
        assert found.size == 400
        assert found.writable
        del parts
    assert d.tolist() == [[8.0] * 8] * 8


def test_a_kernel_that_reads_too_far_is_caught_in_the_host_call():
    """The host function is called as the backend does, with one row too many."""
    from unigemm.backends.cute_simt.backend import BACKEND

    a, b = np.ones((16, 16), np.float32), np.ones((16, 16), np.float32)
    out = np.zeros((16, 16), np.float32)
    with device("sm_80") as gpu:
        plan = unigemm.plan(a, b, out, backend="cute_simt")
        run = gpu.load(unigemm.compile(plan).entry.read(), plan)
        for x in (a, b, out):
            gpu.see(x, write=x is out)

        def call(rows):
            addresses = (a.ctypes.data, b.ctypes.data, out.ctypes.data, 0)
            strides = (16, 1, 0, 0) * 3
            run(*addresses, rows, 16, 16, 1, 1, *strides, 1, 0, 8, plan.target.sm_count, 0)

        call(16)
        assert out.tolist() == [[16.0] * 16] * 16
        with pytest.raises(KernelFault, match=r"cp\.async.*not registered") as error:
            call(17)
        assert error.value.site.warp is not None
        assert plan.config.tile[0] == 8
        assert error.value.site.cta == (2, 0, 0)  # row 16 is of the third tile
        assert BACKEND.name in plan.backend
    assert numpy_dtype(DType.FLOAT32) == out.dtype
