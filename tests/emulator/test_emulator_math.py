"""What epilogues are made of: instructions that approximate, and those that round to whole."""

from __future__ import annotations

import random

import numpy as np
import pytest
from emulated import kernel, probe, run

from unigemm.emulator.core.rounding import fma32

X = np.array(
    [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, 100.3, -130.0, 200.0, np.inf, -np.inf, np.nan, 1e-40, 0.3],
    np.float32,
)
Y = np.array(
    [1.0, np.nan, -2.0, 0.5, 2.0**127, 7.0, -3.0, 2.0, 1e-3, 2.0**127, 3.0, 1.0, 2.0, -0.0],
    np.float32,
)


def floats(instruction, *values):
    return probe(instruction, "f32", ("f32",) * len(values), values).view(np.float32)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("rni", np.rint), ("rmi", np.floor), ("rpi", np.ceil), ("rzi", np.trunc)],
)
def test_floats_are_rounded_to_whole_floats(name, wanted):
    got = floats(f"cvt.{name}.f32.f32 {{d}}, {{a}};", X)
    np.testing.assert_array_equal(got, wanted(X))


def test_powers_of_two_are_exact_and_too_small_ones_zero():
    whole = np.arange(-130, 130).astype(np.float32)
    got = floats("ex2.approx.ftz.f32 {d}, {a};", whole)
    wanted = np.where(whole < -126, 0, np.exp2(whole.astype(np.float64)))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, wanted.astype(np.float32))


def test_the_hyperbolic_tangent_is_the_nearest_number():
    np.testing.assert_array_equal(
        floats("tanh.approx.f32 {d}, {a};", X), np.tanh(X.astype(np.float64)).astype(np.float32)
    )


def test_maxima_with_nan_are_nan_and_others_the_number():
    np.testing.assert_array_equal(floats("max.NaN.f32 {d}, {a}, {b};", X, Y), np.maximum(X, Y))
    np.testing.assert_array_equal(floats("min.NaN.f32 {d}, {a}, {b};", X, Y), np.minimum(X, Y))
    np.testing.assert_array_equal(floats("max.f32 {d}, {a}, {b};", X, Y), np.fmax(X, Y))


def test_full_division_gives_zero_by_huge_numbers():
    got = floats("div.full.f32 {d}, {a}, {b};", X, Y)
    with np.errstate(all="ignore"):
        wanted = X / Y
    wanted[4] = 0  # 2.5 / 2**127
    wanted[9] = np.nan  # infinity / 2**127
    np.testing.assert_array_equal(got, wanted)


def test_saturated_floats_lie_between_zero_and_one():
    got = floats("cvt.sat.f32.f32 {d}, {a};", X)
    np.testing.assert_array_equal(got, np.clip(np.nan_to_num(X, nan=0.0), 0, 1))


def test_signs_are_copied():
    got = floats("copysign.f32 {d}, {a}, {b};", X, Y)
    np.testing.assert_array_equal(got, np.copysign(Y, X))


def test_sums_rounded_down_are_not_above_the_exact_ones():
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(0, 1, 256).astype(np.float32) for _ in range(3))
    got = floats("fma.rm.f32 {d}, {a}, {b}, {c};", a, b, c).astype(np.longdouble)
    exact = a.astype(np.longdouble) * b + c
    above = np.nextafter(got.astype(np.float32), np.float32(np.inf)).astype(np.longdouble)
    assert ((got <= exact) & (exact < above)).all()


def test_a_narrow_number_is_added_to_a_float32():
    narrow = X.astype(np.float16)
    got = probe("add.rn.f32.f16 {d}, {a}, {b};", "f32", ("f16", "f32"), (narrow, Y))
    np.testing.assert_array_equal(got.view(np.float32), narrow.astype(np.float32) + Y)


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("wide", [False, True], ids=["f32", "f32x2"])
@pytest.mark.parametrize("active", [32, 11])
def test_products_in_a_row_are_those_of_one_after_the_other(active, wide, lockstep):
    """Those that do not depend on each other are computed at once; many do here."""
    draw, rng, count = random.Random(active), np.random.default_rng(active), 6
    kind, file, size = ("f32x2", "%d2", 8) if wide else ("f32", "%r1", 4)
    values = rng.standard_normal((count, 96, 1 + wide)).astype(np.float32)
    steps = [[draw.randrange(count) for _ in range(4)] for _ in range(40)]
    registers = [(f"{file}{i}", f"[%d1+{96 * size * i}]") for i in range(count)]
    loads = "".join(f"ld.global.b{8 * size} {a}, {b};\n" for a, b in registers)
    stores = "".join(f"st.global.b{8 * size} {b}, {a};\n" for a, b in registers)
    products = "".join(f"fma.rn.{kind} {', '.join(f'{file}{i}' for i in x)};\n" for x in steps)
    body = f"""
        mov.u32 %r40, %tid.x; mov.u32 %r41, %laneid; mad.wide.u32 %d1, %r40, {size}, %d10;
        {loads} setp.ge.u32 %p1, %r41, {active}; @%p1 bra over;
        {products} over: {stores}
    """
    got = values.copy()
    text = kernel(body).replace(".target sm_90a", ".target sm_100a")  # which has f32x2
    run(text, (got,), threads=96, lockstep=lockstep)
    with np.errstate(all="ignore"):
        for d, x, y, z in steps:
            lanes = np.arange(96) % 32 < active
            values[d, lanes] = fma32(values[x, lanes], values[y, lanes], values[z, lanes])
    np.testing.assert_array_equal(got, values)


def test_a_reciprocal_of_float64_has_the_upper_half_of_its_bits():
    """As the PTX ISA says of `rcp.approx.ftz.f64`; what is left is for an iteration."""
    x = np.array([3.0, -7.5, 1e300, 4e-308, 0.0, -0.0, np.inf, np.nan, 1e-310, 1.0])
    got = probe("rcp.approx.ftz.f64 {d}, {a};", "f64", ("f64",), [x]).view(np.float64)
    with np.errstate(all="ignore"):
        wanted = 1 / np.where(np.abs(x) < 1e-308, np.copysign(0, x), x)
    np.testing.assert_allclose(got, wanted, rtol=2.0**-19)
    np.testing.assert_array_equal(np.signbit(got[:6]), np.signbit(wanted[:6]))
    there = ~np.isnan(got)
    assert not (got.view(np.uint64)[there] & np.uint64(0xFFFFFFFF)).any()


@pytest.mark.parametrize(("name", "wanted"), [("ge", np.greater_equal), ("ltu", np.less)])
def test_bfloat16_is_compared_as_a_number(name, wanted):
    """Its bits have another order: of negative numbers, and of NaN."""
    x, y = X.view(np.uint32) >> 16, Y.view(np.uint32) >> 16
    bits = [v.astype(np.uint16) for v in (x, y)]
    got = probe(f"setp.{name}.bf16 {{d}}, {{a}}, {{b}};", "pred", ("b16", "b16"), bits)
    x, y = ((v << 16).view(np.float32) for v in (x, y))
    unordered = np.isnan(x) | np.isnan(y)
    np.testing.assert_array_equal(got != 0, wanted(x, y) | (unordered & name.endswith("u")))
