"""cute_tcgen05's MXFP8 and NVFP4 kernels without a GPU: arithmetic, and what they pass."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from block_scaled import E4M3, E5M2, PAIRS
from made import made
from tcgen05_plans import (
    LAYOUTS,
    PAIRS_OF_4,
    chosen,
    fitting,
    offers,
    plan_of,
    problem_of,
    spread,
    with_clusters,
    with_config,
)
from tcgen05_products import multiply, native
from test_tcgen05 import B200, EXTENTS, loop_of, plans_of

import unigemm
from unigemm.backends.cute_tcgen05.backend import BACKEND
from unigemm.backends.cute_tcgen05.candidates import scratch_bytes
from unigemm.backends.cute_tcgen05.geometry import COLUMNS, geometry
from unigemm.backends.cute_tcgen05.legality import unsupported_reason
from unigemm.cache.sass import disassemble
from unigemm.emulator import device
from unigemm.emulator.launch.host import missing
from unigemm.emulator.tensor_core import tcgen05, tensor_copies
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.problem.block_scales import block_scales
from unigemm.problem.dtypes import FLOAT8, DType, output_dtypes
from unigemm.problem.problem import Extents

TYPES = [(first, second) for first in FLOAT8 for second in FLOAT8] + [(PAIRS_OF_4, PAIRS_OF_4)] * 4
PROBLEMS = [
    replace(
        problem_of(first, layout, out, d_major),
        b=problem_of(second, layout).b,
        blocks=block_scales(
            DType.FLOAT8_E4M3FN if first is PAIRS_OF_4 else DType.FLOAT8_E8M0FNU, *orders
        ),
    )
    for first, second in TYPES
    for layout in LAYOUTS
    for out in output_dtypes(first)
    for d_major in "nm"
    for orders in (("plain", "blocked"), ("blocked", "blocked"))
]


# -- arithmetic ------------------------------------------------------------------------------------


def along_k(problem):
    """Return the tiles of scales for 128 bytes of K."""
    return 4 if problem.a.dtype is PAIRS_OF_4 else 1


def places_of_scales(tiles):
    """Return the columns of tensor memory for the scales of a stage."""
    return -(-tiles * 4 // 8) * 8


@pytest.mark.parametrize("problem", random.Random(4).sample(PROBLEMS, 4), ids=str)
def test_accumulators_and_scales_share_tensor_memory(problem):
    widths = set()
    for plan in plans_of(problem):
        seen = plan.config.oriented(problem)
        geo, n, stages = geometry(seen, plan.config), plan.config.tile[1], plan.config.stages
        assert unsupported_reason(seen, plan.config, B200) is None
        tiles = (1 + -(-n // 128)) * along_k(problem)
        used = geo.buffers * n + stages * places_of_scales(tiles)
        assert geo.tensor_columns // 2 < used <= geo.tensor_columns <= COLUMNS
        assert geo.buffers == 2 or used + n > COLUMNS
        deeper = geometry(seen, replace(plan.config, stages=stages + 1))
        assert deeper.smem_bytes - geo.smem_bytes == geo.a_bytes + geo.b_bytes + 512 * tiles
        assert deeper.smem_bytes > B200.smem_per_block or stages == 12
        widths.add(n)
    assert widths == {64, 128, 192, 256}


def test_what_cannot_run_is_refused_with_the_reason():
    config = Config((128, 96, 128), stages=4, warps=(4, 1), schedule="single")
    assert "half a tile of scales" in unsupported_reason(PROBLEMS[0], config, B200)
    many = replace(config, tile=(128, 64, 128), stages=60)
    assert "512 columns" in unsupported_reason(PROBLEMS[0], many, B200)


def test_scales_are_part_of_a_kernels_key_and_plain_ones_need_room():
    a, b = (unigemm.ArraySpec((700, 700), "float8_e4m3fn", order) for order in "CF")
    flat = unigemm.ArraySpec((6 * 6 * 512,), "float8_e8m0fnu")
    plain = unigemm.ArraySpec((700, 22), "float8_e8m0fnu")
    options = {"target": "sm_100a", "backend": "cute_tcgen05"}
    plans = [unigemm.plan(a, b, scale_a=of_a, scale_b=flat, **options) for of_a in (flat, plain)]
    plans.append(unigemm.plan(a, b, **options))
    same = [replace(plan, config=plans[0].config) for plan in plans]
    assert len({BACKEND.key(plan).digest for plan in same}) == 3
    sizes = [scratch_bytes(p.problem, p.extents, replace(p.config, split_k=1)) for p in same]
    assert sizes[1] - sizes[0] == 6 * 6 * 512
    for plan in plans:
        assert unigemm.Plan.from_json(plan.to_json()) == plan


def test_one_buffer_of_accumulators_hides_no_stores():
    problem, extents = PROBLEMS[0], Extents(8192, 8192, 512)
    by_width = {}
    for found in BACKEND.candidates(problem, extents, B200):
        n, us = found.config.tile[1], found.prediction.us
        by_width[n] = min(us, by_width.get(n, us))
    assert by_width[128] < by_width[256]


# -- machine code ----------------------------------------------------------------------------------


@pytest.mark.compile
@pytest.mark.parametrize(
    ("types", "columns", "loads", "products"),
    [
        ((E4M3, E4M3), 128, 43, 51),
        ((E4M3, E4M3), 192, 43, 53),
        ((PAIRS, PAIRS), 128, 44, 68),
        ((PAIRS, PAIRS), 192, 44, 80),
    ],
    ids=str,
)
def test_the_inner_loops_have_no_more_instructions_than_known_good_kernels(
    types, columns, loads, products
):
    """docs/lab-notes/2026-11-21-tcgen05-instruction-counts.md has those of NVIDIA's example."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    packed = types[0] == PAIRS
    first, scale = DType.FLOAT8_E4M3FN, DType.FLOAT8_E8M0FNU
    if packed:
        first, scale = PAIRS_OF_4, DType.FLOAT8_E4M3FN
    problem = replace(problem_of(first), blocks=block_scales(scale, "blocked", "blocked"))
    config = Config((128, columns, 128), (2, 1), stages=5, warps=(4, 1), schedule="pair")
    plan = Plan("cute_tcgen05", config, problem, EXTENTS, B200)
    sass = disassemble(made(plan).files["kernel.cubin"])
    assert loop_of(sass, "UTMALDG", 4) <= loads
    assert loop_of(sass, "UTCOMMA" if packed else "UTCQMMA", 4) <= products


# -- descriptors -----------------------------------------------------------------------------------


def instruction(types, m, n, first):
    """PTX ISA, tcgen05 instruction descriptor of kinds with scales, both operands K-major."""
    of_b, of_a = first << 4, first << 29
    numbers = [{E4M3: 0, E5M2: 1, PAIRS: 1}[dtype] for dtype in types]
    e8m0 = 0 if types[0] == PAIRS else 1 << 23
    return of_b | numbers[0] << 7 | numbers[1] << 10 | n // 8 << 17 | e8m0 | m // 16 << 24 | of_a


def of_two_units(offer):
    """Return a plan of two tiles along N, of K in stages and a bit: 20 bytes of the last k_tile."""
    plan, config = plan_of(offer), offer.config
    m, n = config.cluster[0] * 128, 2 * config.tile[1]
    if config.swap_ab:
        m, n = n, m
    extents = Extents(m, fitting(n, plan.problem.d), 128 * config.stages + 20)
    target = with_clusters(plan.target, config, 1)
    return with_config(replace(plan, extents=extents, target=target), config)


TILED = [o for o in offers() if o.kind.name.endswith("-blocked") and o.alone]


@pytest.mark.compile
@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.parametrize("offer", chosen([o for o in TILED if o.config.split_k == 1], 2), ids=str)
def test_descriptors_are_those_of_the_ptx_isa(monkeypatch, offer):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    spread(monkeypatch, offer)
    words, copied, scales = [], [], []
    decode, locate, region = tcgen05.instruction_of, tensor_copies.matrix_of, tcgen05.scale_region

    def instruction_of(*given):
        words.append(given)
        return decode(*given)

    def matrix_of(word):
        copied.append(word)
        return locate(word)

    def scale_region(machine, cta, address, rows, byte):
        scales.append((address & 0xFFFF, rows, byte))
        return region(machine, cta, address, rows, byte)

    monkeypatch.setattr(tcgen05, "instruction_of", instruction_of)
    monkeypatch.setattr(tensor_copies, "matrix_of", matrix_of)
    monkeypatch.setattr(tcgen05, "scale_region", scale_region)
    plan, config = of_two_units(offer), offer.config
    with device(plan.target):
        multiply(plan, offer.number)

    problem, stages, columns = config.oriented(plan.problem), config.stages, config.tile[1]
    types, ctas = [native(x.dtype) for x in (problem.a, problem.b)], config.cluster[0]
    blocks = [0, 1, 2, 3] * stages + [0]
    packed = types[0] == PAIRS
    kind = ("mxf4nvf4", ctas, 16) if packed else ("mxf8f6f4", ctas, 32)
    firsts = [0 if packed else block for block in blocks]  # of four scales of a row
    turned = 0 if packed else (problem.a.major == "m") << 15 | (problem.b.major == "n") << 16
    expected = [instruction(types, 128 * ctas, columns, first) | turned for first in firsts]
    assert words == [(word, *kind) for word in expected] * 2
    # Behind what the system reserves, barriers, operands and boxes: a tile of A, then those of B.
    of_b, deep = -(-columns // 128), 4 if packed else 1
    each = (1 + of_b) * deep
    geo = geometry(problem, config)
    start = 1024 + 1024 + stages * (128 * 128 + columns // ctas * 128) + geo.box_bytes
    plain, lines = 1 << 46, 128 >> 4 << 32 | 16 >> 4 << 16
    k_tiles = [k_tile % stages for k_tile in range(2 * (stages + 1))]  # of two units: their stages
    tiles = [512 * (stage * each + tile) for stage in k_tiles for tile in range(each)]
    assert start % 128 == 0
    assert copied == [(start + tile) >> 4 | lines | plain for tile in tiles]
    # The second tile's columns begin in the middle of a tile of scales where 128 do not divide.
    first = geo.buffers * columns
    expected = []
    for unit, of_unit in enumerate((k_tiles[: stages + 1], k_tiles[stages + 1 :])):
        inside = unit * columns % 128 // 32
        for k_tile, stage in enumerate(of_unit):
            at = first + stage * places_of_scales(each)
            for block in range(4 if k_tile < stages else 1):
                along, byte = (block, 0) if packed else (0, block)
                column = at + 4 * deep + 4 * of_b * along + inside
                expected += [(at + 4 * along, 128, byte), (column, columns, byte)] * ctas
    assert scales == expected
