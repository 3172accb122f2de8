"""Arrays of just the class and sizes that a plan is for, multiplied and held against float64."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from block_scaled import PAIRS, arranged, draw
from reference import NUMPY, Case, Strided, check_case, lay_out

import unigemm
from unigemm.planning.plan import Plan
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.problem.problem import MatrixType


def multiply(plan: Plan, seed: int) -> None:
    """Multiply by a plan and compare; the seed says what, and which of A B and B' A' is called.

    What lies between the lines of all arrays is poison, and must be the same behind it.
    """
    choose = random.Random(seed)
    turned = plan.problem.d.major == "n" and choose.random() < 0.3
    exact = choose.random() < 0.5
    if plan.problem.blocks:
        return _multiply_scaled(plan, choose, turned, exact)
    options = {"scale_a": 0.5, "scale_b": 4.0} if plan.problem.scaled else {}
    case = _case(plan, choose, turned, exact)
    return check_case(NUMPY, case, plan=plan, precision=plan.problem.precision, **options)


def _case(plan: Plan, choose: random.Random, turned: bool, exact: bool) -> Case:
    problem, (m, n, k) = plan.problem, _sizes(plan)
    a = _layout(problem.a, (m, k), "mk", choose)
    b = _layout(problem.b, (k, n), "kn", choose)
    types, seed = (problem.a.dtype, problem.b.dtype), choose.randrange(2**32)
    if turned:
        a, b, types = _transposed(b), _transposed(a), types[::-1]
    d = _layout_of_d(plan, choose, turned)
    return Case(a, b, d, d.shape, types[0], problem.d.dtype, exact, seed, types[1])


def _multiply_scaled(plan: Plan, choose: random.Random, turned: bool, exact: bool) -> None:
    problem, (m, n, k) = plan.problem, _sizes(plan)
    rng = np.random.default_rng(choose.randrange(2**32))
    a, b = (
        draw(rng, (rows, k), native(matrix.dtype), exact=exact)
        for rows, matrix in ((m, problem.a), (n, problem.b))
    )
    orders, layout = (problem.blocks.a, problem.blocks.b), problem.layout
    units = (problem.a.alignment, problem.b.alignment)
    if turned:  # B' is K-major where B is
        a, b, orders, units = b, a, orders[::-1], units[::-1]
        layout = "".join("n" if letter == "t" else "t" for letter in reversed(layout))
    given = arranged(a, b, _layout_of_d(plan, choose, turned), problem.d.dtype, orders=orders,
                     layout=layout, units=units)  # fmt: skip
    unigemm.matmul(given.left, given.right, given.d, plan=plan, **given.scales)
    given.check(exact=exact)


def _sizes(plan: Plan) -> tuple[int, int, int]:
    return plan.extents.m, plan.extents.n, plan.extents.k


def native(dtype: DType) -> np.dtype:
    return PAIRS if dtype is DType.FLOAT4_E2M1FN_X2 else numpy_dtype(dtype)


def _layout(kind: MatrixType, shape: tuple[int, int], names: str, choose: random.Random) -> Strided:
    """Return how a matrix of a class lies: at multiples of its alignment, and of no more."""
    if kind.major == "strided":
        order = choose.choice(((0, 1), (1, 0)))
        return lay_out(shape, order, (1, 0), choose.choice((2, 3)), 1)
    along = names.index(kind.major)
    unit = kind.alignment // kind.dtype.itemsize
    lines = shape[along] // unit + 1
    if kind.alignment < 16:
        lines |= 1
    pad = lines * unit - shape[along]
    return lay_out(shape, (along, 1 - along), (pad, 0), 1, unit if kind.alignment < 16 else 0)


def _layout_of_d(plan: Plan, choose: random.Random, turned: bool) -> Strided:
    """Return how D lies; with `turned` as the result of B' A', whose columns are its rows."""
    where = _layout(plan.problem.d, (plan.extents.m, plan.extents.n), "mn", choose)
    return _transposed(where) if turned else where


def _transposed(where: Strided) -> Strided:
    return replace(where, shape=where.shape[::-1], strides=where.strides[::-1])
