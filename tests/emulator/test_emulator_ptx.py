"""The emulator's reading of PTX, its arithmetic and its control flow, on small kernels."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from emulated import HEAD, kernel, line_of, probe, run
from hypothesis import given, settings
from hypothesis import strategies as st

from unigemm.emulator import EmulatorError, KernelFault, Memory, PtxError, launch
from unigemm.emulator.launch.launching import compiled
from unigemm.emulator.ptx.parser import parse
from unigemm.emulator.ptx.ptx import Address, Immediate, Register, Vector

RNG = np.random.default_rng(20261121)


# -- reading ---------------------------------------------------------------------------------------


def test_a_module_is_read_into_plain_data():
    text = HEAD + (
        ".extern .shared .align 1024 .b8 buffer[];\n"
        ".visible .entry k(.param .u64 a, .param .u32 b, .param .align 64 .b8 c[128])\n"
        ".reqntid 128, 1, 1\n{\n"
        ".reg .b32 %r<4>, x;\n.shared .align 16 .b8 fixed[48];\n"
        "// a comment\n/* and\n another */\n"
        "ld.shared.v2.b32 {%r1, %r2}, [%r3+-16];\n"
        "{ .reg .b32 x; mov.b32 x, 0f3F800000; }\n"
        "mov.b32 x, -7;\nret;\n}\n"
    )
    module = parse(text)
    found = module.kernels["k"]
    assert module.target == "sm_90a"
    assert [(p.offset, p.size) for p in found.parameters] == [(0, 8), (8, 4), (64, 128)]
    assert found.parameter_bytes == 192
    assert found.directives[".reqntid"] == (128, 1, 1)
    load, inner, outer, _ = found.body
    assert load.line == line_of(text, "ld.shared")
    assert load.operands == (
        Vector((Register("%r1", "b32"), Register("%r2", "b32"))),
        Address(Register("%r3", "b32"), -16),
    )
    assert inner.operands[1] == Immediate(0x3F800000, 4)
    assert outer.operands[1] == Immediate(-7)
    assert inner.operands[0] != outer.operands[0], "an inner scope has registers of its own"
    assert parse(text) is module, "read once"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("frobnicate.b32 %r1, %r2;", "frobnicate.b32 is not implemented"),
        ("add.sat.s32 %r1, %r2, %r3;", "modifier .sat"),
        ("add.s64 %r1, %r2, %r3;", "b32 register"),
        ("mov.b32 %r1, nothing;", "no variable nothing"),
        ("bra nowhere;", "no label nowhere"),
        ("add.s32 %r1, %r2", "; is expected"),
        ("cvt.rz.e4m3x2.f32 %h1, %r1, %r2;", "does not round towards zero"),
        ("ld.shared.frob.b32 %r1, [%r2];", "modifier .frob"),
        ("mov.u32 %r1, %clock;", "register %clock"),
        (".byte 3;", "directive .byte"),
    ],
)
def test_what_is_not_known_is_refused_with_its_line(body, reason):
    text = kernel("nop_line:\n" + body)
    with pytest.raises(PtxError, match="PTX line") as error:
        compiled(text, "k")
    assert reason in str(error.value)
    assert error.value.line in (line_of(text, body), line_of(text, body) + 1)


def test_sizes_and_parameters_are_checked():
    text = kernel("", ("u64", "u32"))
    with pytest.raises(EmulatorError, match="no kernel 'other'"):
        launch(text, "other", (1,), (32,))
    with pytest.raises(EmulatorError, match="2 parameters"):
        launch(text, "k", (1,), (32,), params=[1])
    with pytest.raises(EmulatorError, match="bytes of parameters"):
        launch(text, "k", (1,), (32,), params=b"1234")
    with pytest.raises(EmulatorError, match="2048 threads"):
        launch(text, "k", (1,), (2048,), params=[1, 2])
    with pytest.raises(EmulatorError, match="is not made of"):
        launch(text, "k", (3,), (32,), (2,), params=[1, 2])
    fixed = text.replace("p1)", "p1)\n.reqntid 64, 1, 1")
    with pytest.raises(EmulatorError, match="compiled for blocks of"):
        launch(fixed, "k", (1,), (32,), params=[1, 2])


# -- arithmetic: what test_emulator_probes.py does not hold to a device's -------------------------

EDGES32 = np.array([0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE], np.uint32)


def words():
    values = RNG.integers(0, 1 << 32, 300, dtype=np.uint32)
    return np.concatenate([values, np.repeat(EDGES32, 10), np.tile(EDGES32, 10)])


def pairs():
    x = words()
    y = x.copy()
    RNG.shuffle(y)
    x[-100:], y[-100:] = np.repeat(EDGES32, 10), np.tile(EDGES32, 10)
    return x, y


def signed(value, bits=32):
    return int(value) - (1 << bits) * (int(value) >> (bits - 1))


@pytest.mark.parametrize("opcode", ["div.s32", "div.u32", "div.s64", "div.u64"])
def test_a_quotient_by_zero_has_all_bits(opcode):
    """On a device it may be anything."""
    x = words().astype(f"u{int(opcode[-2:]) // 8}")
    kind = f"b{opcode[-2:]}"
    found = probe(opcode + " {d}, {a}, {b};", kind, (kind, kind), (x, np.zeros_like(x)))
    assert (found == ~x.dtype.type(0)).all()


def inserted(x, into, first, count):
    bits = [into >> n & 1 for n in range(32)]
    for n in range(min(count & 255, 32)):
        if (first & 255) + n < 32:
            bits[(first & 255) + n] = x >> n & 1
    return sum(bit << n for n, bit in enumerate(bits))


def dot2(x, y, z, kinds, first):
    total = z
    for n in range(2):
        pair = [(x >> 16 * n & 0xFFFF, 16), (y >> 8 * (first + n) & 255, 8)]
        left, right = (
            signed(v, bits) if k == "s" else v for (v, bits), k in zip(pair, kinds, strict=True)
        )
        total += left * right
    return total


THREE = {
    "bfi.b32 {d}, {a}, {b}, {c}, 9;": lambda x, y, z: inserted(x, y, z, 9),
    "bfi.b32 {d}, {a}, {b}, 17, {c};": lambda x, y, z: inserted(x, y, 17, z),
    "dp2a.lo.s32.u32 {d}, {a}, {b}, {c};": lambda x, y, z: dot2(x, y, z, "su", 0),
    "dp2a.hi.u32.s32 {d}, {a}, {b}, {c};": lambda x, y, z: dot2(x, y, z, "us", 2),
}


@pytest.mark.parametrize("text", THREE)
def test_instructions_of_three_integers_are_exact(text):
    (x, y), z = pairs(), words()
    if text.startswith("bf"):
        z[:300] = z[:300] % 40
    found = probe(text, "b32", ("b32", "b32", "b32"), (x, y, z))
    wanted = [THREE[text](int(a), int(b), int(c)) for a, b, c in zip(x, y, z, strict=True)]
    assert found.tolist() == [value % (1 << 32) for value in wanted]


ONE = {
    "{{ .reg .b16 x, y; mov.b32 {{x, y}}, {a}; mov.b32 {d}, {{y, x}}; }}": lambda x: (
        x << 16 | x >> 16
    ),
    "{{ .reg .b16 x; cvt.u16.u32 x, {a}; cvt.s32.s16 {d}, x; }}": lambda x: signed(x & 65535, 16),
    "{{ .reg .b16 x; cvt.u16.u32 x, {a}; cvt.s16.s8 x, x; mul.wide.s16 {d}, x, -3; }}": (
        lambda x: signed(x & 255, 8) * -3
    ),
    "{{ .reg .b64 x; cvt.s64.s32 x, {a}; mov.b64 {{_, {d}}}, x; }}": lambda x: signed(x) >> 31,
    "{{ .reg .b64 x; mul.wide.s32 x, {a}, {a}; mov.b64 {{_, {d}}}, x; }}": lambda x: (
        signed(x) * signed(x) >> 32
    ),
}


@pytest.mark.parametrize("text", ONE)
def test_instructions_of_one_integer_are_exact(text):
    x = words()
    found = probe(text, "b32", ("b32",), (x,))
    assert found.tolist() == [ONE[text](int(a)) % (1 << 32) for a in x]


def same(found, wanted):
    """Compare bits; any NaN equals any other."""
    return np.array_equal(found, wanted) or np.all((found == wanted) | (np.isnan(wanted)))


def exact_fma(x, y, z, dtype):
    """Return x * y + z rounded once, from the exact value."""
    if not np.isfinite([float(x), float(y), float(z)]).all():
        return dtype(float(x) * float(y) + float(z))
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return (
            dtype(np.float64(x) * np.float64(y) + np.float64(z))
            if dtype is np.float32
            else (dtype(0.0))
        )
    if dtype is np.float64:
        try:
            return np.float64(exact.numerator / exact.denominator)
        except OverflowError:
            return np.float64(np.inf if exact > 0 else -np.inf)
    near = np.float32(float(exact))  # then move to the nearest, ties to even
    candidates = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, -np.inf)]
    candidates = [np.float32(c) for c in candidates]
    if not np.isfinite(near):
        return near
    best = min(
        (c for c in candidates if np.isfinite(c)),
        key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint32)) & 1),
    )
    return best


def floats(dtype, count=400):
    """Random floats of all sizes, with half-way cases and edges."""
    scale = 2.0 ** RNG.integers(-60, 60, count)
    x = (RNG.standard_normal(count) * scale).astype(dtype)
    info = np.finfo(dtype)
    edges = np.array([0.0, -0.0, 1.0, -1.0, info.max, info.tiny, info.smallest_subnormal,
                      info.eps, 1 + info.eps, np.inf, -np.inf, np.nan], dtype)  # fmt: skip
    return np.concatenate([x, edges])


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_fma_rounds_once(kind, dtype):
    width = np.dtype(dtype).itemsize * 8
    x, y, z = (floats(dtype) for _ in range(3))
    RNG.shuffle(y)
    bits = 24 if dtype is np.float32 else 53
    # Products whose low half meets an addend far above or below it: ties that a second rounding
    # would break the wrong way.
    one = dtype(1) + dtype(2.0 ** -(bits - 1)) * RNG.integers(0, 4, 200).astype(dtype)
    other = dtype(1) + dtype(2.0 ** -(bits // 2)) * RNG.integers(0, 9, 200).astype(dtype)
    tiny = dtype(2.0) ** RNG.integers(-2 * bits - 4, 3, 200).astype(dtype)
    x = np.concatenate([x, one, one])
    y = np.concatenate([y, other, dtype(2.0 ** -(bits + 1)) * np.ones(200, dtype)])
    z = np.concatenate([z, tiny, other])
    with np.errstate(all="ignore"):
        wanted = np.array([exact_fma(*v, dtype) for v in zip(x, y, z, strict=True)], dtype)
    found = probe(
        f"fma.rn.{kind} {{d}}, {{a}}, {{b}}, {{c}};", f"b{width}", (f"b{width}",) * 3,
        [v.view(f"u{width // 8}") for v in (x, y, z)],
    ).view(dtype)  # fmt: skip
    wrong = ~((found == wanted) | (np.isnan(found) & np.isnan(wanted)))
    assert not wrong.any(), np.stack([x, y, z, found, wanted])[:, wrong][:, :3]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.floats(width=32)] * 3), min_size=1, max_size=40))
def test_fma_of_any_float32_rounds_once(rows):
    from unigemm.emulator.core.rounding import fma32

    x, y, z = (np.array(column, np.float32) for column in zip(*rows, strict=True))
    with np.errstate(all="ignore"):
        found = fma32(x, y, z)
        wanted = np.array([exact_fma(*v, np.float32) for v in zip(x, y, z, strict=True)])
    assert ((found == wanted) | (np.isnan(found) & np.isnan(wanted))).all()


def test_packed_fma_of_float32_is_two_of_them():
    x, y, z = (floats(np.float32) for _ in range(3))
    RNG.shuffle(y)
    words = [v.view(np.uint64) for v in (x, y, z)]  # neighbours share a register
    found = probe("fma.rn.f32x2 {d}, {a}, {b}, {c};", "b64", ("b64",) * 3, words)
    with np.errstate(all="ignore"):
        wanted = [exact_fma(*v, np.float32) for v in zip(x, y, z, strict=True)]
    assert same(found.view(np.float32), np.array(wanted, np.float32))


@pytest.mark.parametrize("name", ["add", "mul", "sub"])
def test_packed_sums_and_products_are_those_of_their_halves(name):
    x, y = floats(np.float32), floats(np.float32)[::-1].copy()
    words = [v.view(np.uint64) for v in (x, y)]
    function = {"add": np.add, "mul": np.multiply, "sub": np.subtract}[name]
    found = probe(f"{name}.rn.f32x2 {{d}}, {{a}}, {{b}};", "b64", ("b64",) * 2, words)
    with np.errstate(all="ignore"):
        assert same(found.view(np.float32), function(x, y))


def test_mixed_fma_multiplies_narrow_numbers():
    x, y = (RNG.standard_normal(200).astype(ml_dtypes.bfloat16) for _ in range(2))
    z = RNG.standard_normal(200).astype(np.float32)
    found = probe(
        "fma.rn.f32.bf16 {d}, {a}, {b}, {c};", "b32", ("b16", "b16", "b32"),
        (x.view(np.uint16), y.view(np.uint16), z.view(np.uint32)),
    ).view(np.float32)  # fmt: skip
    wanted = [exact_fma(*v, np.float32) for v in zip(x, y, z, strict=True)]
    assert found.tolist() == np.array(wanted).tolist()


def test_conversions_to_integers_clamp():
    values = np.array([0.5, 1.5, -1.5, 2.5, 3e9, -3e9, np.nan, np.inf], np.float32)
    found = probe("cvt.rzi.s32.f32 {d}, {a};", "b32", ("b32",), (values.view(np.uint32),))
    assert found.view(np.int32).tolist() == [0, 1, -1, 2, 2**31 - 1, -(2**31), 0, 2**31 - 1]
    found = probe("cvt.rni.s32.f32 {d}, {a};", "b32", ("b32",), (values.view(np.uint32),))
    assert found.view(np.int32).tolist()[:4] == [0, 2, -2, 2]
    nan = np.array([np.nan])
    for kind, wanted in (("s64", 1 << 63), ("u64", 1 << 63), ("s32", 1 << 31), ("u32", 1 << 31)):
        register = "b64" if kind[1:] == "64" else "b32"
        opcode = f"cvt.rzi.{kind}.f64 {{d}}, {{a}};"
        assert probe(opcode, register, ("b64",), (nan.view(np.uint64),)).tolist() == [wanted]


def test_tf32_rounds_ties_away_from_zero():
    values = np.array([1.0, 1 + 2.0**-11, -(1 + 2.0**-11), 1 + 2.0**-12, np.inf], np.float32)
    found = probe("cvt.rna.tf32.f32 {d}, {a};", "b32", ("b32",), (values.view(np.uint32),))
    assert found.view(np.float32).tolist() == [1, 1 + 2.0**-10, -(1 + 2.0**-10), 1, np.inf]


def test_tf32_rounds_to_even_and_towards_zero():
    ulp = 2.0**-10
    values = np.array([1 + ulp / 2, 1 + 1.5 * ulp, -1 - 0.75 * ulp, np.inf], np.float32)
    for mode, wanted in (("rn", [1, 1 + 2 * ulp, -1 - ulp, np.inf]),
                         ("rz", [1, 1 + ulp, -1, np.inf])):  # fmt: skip
        found = probe(f"cvt.{mode}.tf32.f32 {{d}}, {{a}};", "b32", ("b32",), (values.view("u4"),))
        assert found.view(np.float32).tolist() == wanted


def test_a_comparison_joins_and_gives_its_opposite():
    x, y = pairs()
    text = (
        "setp.lt.s32 %p5, {a}, 0;\n setp.lt.and.u32 %p6|%p7, {a}, {b}, %p5;\n"
        "selp.b32 {d}, 2, 0, %p7;\n @%p6 add.s32 {d}, {d}, 1;"
    )
    found = probe(text, "b32", ("b32", "b32"), (x, y))
    negative = x.view(np.int32) < 0
    assert (
        found.tolist()
        == ((x < y) & negative).astype(int).__add__(2 * ((x >= y) & negative)).tolist()
    )


# -- control flow ----------------------------------------------------------------------------------


def test_divergent_loops_meet_again():
    """Each thread counts its own steps of Collatz's sequence; the warps then vote together."""
    body = """
        mov.u32 %r1, %tid.x;
        add.s32 %r2, %r1, 1;
        mov.b32 %r3, 0;
    head:
        setp.eq.s32 %p1, %r2, 1;
        @%p1 bra done;
        and.b32 %r4, %r2, 1;
        setp.eq.s32 %p2, %r4, 1;
        @%p2 bra odd;
        shr.u32 %r2, %r2, 1;
        bra.uni next;
    odd:
        mad.lo.s32 %r2, %r2, 3, 1;
    next:
        add.s32 %r3, %r3, 1;
        bra.uni head;
    done:
        bar.warp.sync -1;
        mad.wide.s32 %d1, %r1, 4, %d10;
        st.global.b32 [%d1], %r3;
    """

    def steps(n):
        count = 0
        while n != 1:
            n, count = (3 * n + 1 if n % 2 else n // 2), count + 1
        return count

    for options in ({}, {"lockstep": False}, {"seed": 5}):
        out = np.zeros(100, np.uint32)
        run(kernel(body), (out,), threads=100, **options)
        assert out.tolist() == [steps(n + 1) for n in range(100)]


def test_lanes_that_leave_early_leave_the_others_alone():
    body = """
        mov.u32 %r1, %tid.x;
        mad.wide.s32 %d1, %r1, 4, %d10;
        setp.lt.s32 %p1, %r1, 20;
        @%p1 bra low;
        setp.gt.s32 %p2, %r1, 40;
        @%p2 exit;
        st.global.b32 [%d1], 2;
        ret;
    low:
        st.global.b32 [%d1], 1;
    """
    out = np.zeros(64, np.uint32)
    run(kernel(body), (out,), threads=64)
    assert out.tolist() == [1] * 20 + [2] * 21 + [0] * 23


def test_threads_know_their_coordinates():
    body = """
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
        mad.lo.s32 %r4, %r2, %r3, %r1;
        mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ctaid.y; mov.u32 %r7, %nctaid.x;
        mad.lo.s32 %r8, %r6, %r7, %r5;
        mov.u32 %r9, %laneid; mov.u32 %r11, %cluster_ctarank;
        mad.lo.s32 %r10, %r8, 48, %r4;
        mad.wide.s32 %d1, %r10, 4, %d10;
        mad.lo.s32 %r12, %r11, 100, %r9;
        st.global.b32 [%d1], %r12;
    """
    out = np.zeros(6 * 48, np.uint32)
    memory = Memory()
    address = memory.add(out)
    launch(kernel(body), "k", (2, 3), (12, 4), (2, 1), params=[address], memory=memory)
    lanes = np.arange(48) % 32
    wanted = [lanes + 100 * (cta % 2) for cta in range(6)]
    assert out.tolist() == np.concatenate(wanted).tolist()


def test_shuffles_votes_and_reductions():
    body = """
        mov.u32 %r1, %tid.x;
        mul.lo.s32 %r2, %r1, 3;
        shfl.sync.bfly.b32 %r3, %r2, 5, 31, -1;
        shfl.sync.down.b32 %r4|%p1, %r2, 7, 31, -1;
        shfl.sync.up.b32 %r5, %r2, 2, 0, -1;
        shfl.sync.idx.b32 %r6, %r2, 9, 4127, -1;
        setp.lt.u32 %p2, %r1, 5;
        vote.sync.ballot.b32 %r7, %p2, -1;
        redux.sync.add.s32 %r8, %r1, -1;
        redux.sync.max.u32 %r9, %r2, -1;
        elect.sync %r11|%p3, -1;
        selp.b32 %r12, 1, 0, %p3;
        selp.b32 %r13, 1, 0, %p1;
        mad.wide.s32 %d1, %r1, 40, %d10;
        st.global.b32 [%d1], %r3; st.global.b32 [%d1+4], %r4; st.global.b32 [%d1+8], %r5;
        st.global.b32 [%d1+12], %r6; st.global.b32 [%d1+16], %r7; st.global.b32 [%d1+20], %r8;
        st.global.b32 [%d1+24], %r9; st.global.b32 [%d1+28], %r11; st.global.b32 [%d1+32], %r12;
        st.global.b32 [%d1+36], %r13;
    """
    out = np.zeros((32, 10), np.uint32)
    run(kernel(body), (out,))
    lane = np.arange(32)
    wanted = [
        3 * (lane ^ 5), 3 * np.where(lane + 7 < 32, lane + 7, lane), 3 * np.where(lane < 2, lane,
        lane - 2), 3 * ((lane & 16) | 9), np.full(32, 31), np.full(32, 496), np.full(32, 93),
        np.zeros(32), lane == 0, lane + 7 < 32,
    ]  # fmt: skip
    for n, column in enumerate(wanted):
        assert out[:, n].tolist() == column.astype(int).tolist(), n


MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r0, %r1, %r2, %r3}, {%r4, %r5, %r6, %r7}, {%r8, %r9}, {%r0, %r1, %r2, %r3};"  # noqa: E501


ZEROS = "".join(f"mov.b32 %r{n}, 0; " for n in range(10))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("f16.f16.f32 {", "f16.f16.f16 {"), "this kind of mma"),
        (("row.col", "col.col"), "this kind of mma"),
        (("f32.f16.f16", "f32.f16.bf16"), "shape of mma is not known for these types"),
        (("m16n8k16", "m16n8k32"), "shape of mma"),
        (("row.col", "row.col.satfinite"), "the modifier .satfinite"),
        (("m16n8k16", "m16n8k8"), "2 registers are expected"),
        (("f32.f16.f16", "f32.e4m3.e5m2"), "the target sm_80 has no such instruction"),
    ],
)
def test_forms_of_mma_that_are_not_known_are_refused(change, reason):
    assert change[0] in MMA
    text = kernel(MMA.replace(*change)).replace("sm_90a", "sm_80")
    with pytest.raises(PtxError, match=reason):
        compiled(text, "k")


def test_mma_is_for_a_whole_warp():
    some = "mov.u32 %r10, %tid.x; setp.lt.u32 %p1, %r10, 16;\n@!%p1 bra out;\n"
    some += ZEROS + MMA + "\nout:"
    with pytest.raises(KernelFault, match=r"mma.sync is reached by a part of a warp only"):
        run(kernel(some), (np.zeros(1, np.uint32),))


def test_atomic_operations_lose_no_update():
    body = """
        mov.u32 %r1, %tid.x;
        and.b32 %r2, %r1, 3;
        mad.wide.s32 %d1, %r2, 4, %d10;
        red.global.add.u32 [%d1], %r1;
        atom.global.inc_is_not_here
    """.replace("atom.global.inc_is_not_here", "atom.global.max.u32 %r3, [%d10+16], %r1;")
    out = np.zeros(5, np.uint32)
    run(kernel(body), (out,), threads=96)
    assert out.tolist() == [sum(range(n, 96, 4)) for n in range(4)] + [95]


@pytest.mark.parametrize(
    ("opcode", "dtype"),
    [("add.noftz.f16", np.float16), ("add.noftz.bf16", ml_dtypes.bfloat16), ("add.f32", "f4"),
     ("add.noftz.f16x2", np.float16), ("add.noftz.bf16x2", ml_dtypes.bfloat16),
     ("add.f64", "f8")],
)  # fmt: skip
@pytest.mark.parametrize("returns", [False, True])
def test_atomic_operations_on_floats(opcode, dtype, returns):
    """Each of 64 threads adds its own numbers to one of four elements: small and whole."""
    kind = opcode.split(".")[-1]
    count = 2 if kind.endswith("x2") else 1
    width = np.dtype(dtype).itemsize * count
    register = {2: "%h1", 4: "%r5", 8: "%d5"}[width]
    form = f"atom.global.{opcode} {register}," if returns else f"red.global.{opcode}"
    body = f"""
        mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3;
        mad.wide.s32 %d1, %r1, {width}, %d10; ld.global.b{8 * width} {register}, [%d1];
        mad.wide.s32 %d2, %r2, {width}, %d11;
        {form} [%d2], {register};
    """
    values = RNG.integers(-3, 4, (64, count)).astype(dtype)
    out = np.zeros((4, count), dtype)
    run(kernel(body, ("u64", "u64")), (values, out), threads=64)
    wanted = values.astype(np.float64).reshape(16, 4, count).sum(0)
    assert out.astype(np.float64).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("form", "dtype", "count"),
    [
        ("add.v4.f32", np.float32, 4),
        ("add.v2.f32", np.float32, 2),
        ("add.noftz.v4.bf16x2", ml_dtypes.bfloat16, 8),
        ("min.noftz.v2.f16x2", np.float16, 4),
    ],
)
def test_vectors_in_memory_are_updated(form, dtype, count):
    words = count * np.dtype(dtype).itemsize // 4
    listed = ", ".join(f"%r{4 + n}" for n in range(words))
    body = f"""
        mov.u32 %r1, %tid.x;
        mad.wide.s32 %d1, %r1, {4 * words}, %d10; ld.global.v{words}.b32 {{{listed}}}, [%d1];
        red.global.{form} [%d11], {{{listed}}};
    """
    values = RNG.integers(-3, 4, (32, count)).astype(dtype)
    out = np.zeros(count, dtype)
    run(kernel(body, ("u64", "u64")), (values, out))
    numbers = values.astype(np.float64)
    wanted = numbers.sum(0) if form.startswith("add") else np.minimum(numbers.min(0), 0)
    assert out.tolist() == wanted.tolist()


def test_counters_wrap_around():
    out = np.array([0, 5], np.uint32)
    body = "atom.global.inc.u32 %r1, [%d10], 9; atom.global.dec.u32 %r2, [%d10+4], 9;"
    run(kernel(body), (out,), threads=32)
    assert out.tolist() == [32 % 10, (5 - 32) % 10]


MATRICES = """
    mov.u32 %r1, %tid.x; mov.b32 %r2, buffer;
    mad.lo.s32 %r3, %r1, 16, %r2; mad.wide.s32 %d1, %r1, 16, %d10;
    ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%d1];
    st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7};
    mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0;
    bar.warp.sync -1;
    LOAD
    mad.wide.s32 %d1, %r1, 16, %d11;
    st.global.v4.b32 [%d1], {%r4, %r5, %r6, %r7};
"""


@pytest.mark.parametrize("turned", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_are_loaded_and_transposed(count, turned):
    """Row r of matrix j is at the address of lane 8 j + r; a lane gets two neighbours of a row."""
    registers = ", ".join(f"%r{4 + n}" for n in range(count))
    load = f"ldmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 {{{registers}}}, [%r3];"
    data = RNG.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((32, 4, 2), np.uint16)
    text = kernel(MATRICES.replace("LOAD", load), ("u64", "u64"),
                  shared=".shared .align 16 .b8 buffer[512];")  # fmt: skip
    run(text, (data, out))
    wanted = data.swapaxes(1, 2) if turned else data
    for lane in range(32):
        row, column = lane // 4, 2 * (lane % 4)
        for j in range(4):
            pair = wanted[j, row, column : column + 2].tolist() if j < count else [0, 0]
            assert out[lane, j].tolist() == pair


def test_a_matrix_is_transposed_in_registers():
    data = RNG.integers(0, 1 << 16, (8, 8)).astype(np.uint16)
    found = probe("movmatrix.sync.aligned.m8n8.trans.b16 {d}, {a};", "b32", ("b32",),
                  (data.view(np.uint32).ravel(),))  # fmt: skip
    assert found.view(np.uint16).reshape(8, 8).tolist() == data.T.tolist()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("setp.lt.u32 %p1, %r1, 96; @!%p1 bra out;\nsetmaxnreg.dec.sync.aligned.u32 40;\nout:",
         "the other warps of the warpgroup did not run"),
        ("setmaxnreg.dec.sync.aligned.u32 40;\nsetmaxnreg.inc.sync.aligned.u32 32;",
         "40 registers, and 32 are no increase"),
        ("setp.lt.u32 %p1, %r1, 3; @!%p1 bra out;\nsetmaxnreg.dec.sync.aligned.u32 40;\nout:",
         "reached by a part of a warp"),
    ],
)  # fmt: skip
def test_register_counts_that_are_changed_wrongly(body, reason):
    text = kernel("mov.u32 %r1, %tid.x;\n" + body)
    with pytest.raises(KernelFault, match=reason) as error:
        run(text, (np.zeros(1),), threads=128)
    assert "setmaxnreg" in str(error.value)
    good = "setmaxnreg.dec.sync.aligned.u32 40;\nsetmaxnreg.inc.sync.aligned.u32 232;"
    run(kernel(good + "\ngriddepcontrol.wait;\ngriddepcontrol.launch_dependents;"),
        (np.zeros(1),), threads=256)  # fmt: skip


def test_local_memory_is_each_threads_own():
    body = """
        mov.u32 %r1, %tid.x;
        mov.b64 %d1, mine;
        st.local.b32 [%d1+4], %r1;
        st.local.b32 [%d1], 7;
        ld.local.v2.b32 {%r2, %r3}, [%d1];
        add.s32 %r4, %r2, %r3;
        mad.wide.s32 %d2, %r1, 4, %d10;
        st.global.b32 [%d2], %r4;
    """
    out = np.zeros(64, np.uint32)
    run(kernel(body, shared=".local .align 8 .b8 mine[16];"), (out,), threads=64)
    assert out.tolist() == [7 + n for n in range(64)]
    wrong = kernel(body.replace("[%d1+4]", "[%d1+16]"), shared=".local .align 8 .b8 mine[16];")
    with pytest.raises(KernelFault, match="local memory is out of bounds"):
        run(wrong, (out,), threads=64)


def test_memory_keeps_arrays_apart_and_can_forget_them():
    memory = Memory()
    x = np.zeros(10, np.float32)
    address = memory.add(x)
    assert address % 256 == x.ctypes.data % 256
    with pytest.raises(EmulatorError, match="is memory at"):
        memory.add(x, address)
    other = memory.add(x[::-2])  # from the ninth element down to the second
    found = memory.buffer(other, other + 36)
    assert (found.address, found.size) == (other, 36)
    memory.remove(address)
    assert memory.find(address, address + 1) is None
    with pytest.raises(EmulatorError, match="no memory"):
        memory.remove(address)
