"""Plans of cute_tcgen05: with a configuration that a test names or draws, and all that are offered.

`offers` lists every configuration for each kind of numbers and each layout, and `plan_of` gives one
a product to try it with. Tests run a sample of the list, by a seed; UNIGEMM_TEST_ALL=1 runs
it whole, and UNIGEMM_TEST_ALL=2/5 the second of five parts.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from unigemm import cache as kernel_cache
from unigemm.backends.common.device_limits import clusters_at_once
from unigemm.backends.cute_tcgen05.candidates import offered, scratch_bytes
from unigemm.backends.cute_tcgen05.geometry import ROWS
from unigemm.planning.config import Config, Raster
from unigemm.planning.plan import Plan
from unigemm.planning.target import Target, named_target
from unigemm.problem.block_scales import block_scales
from unigemm.problem.dtypes import FLOAT8, INPUTS, DType, output_dtypes
from unigemm.problem.problem import Extents, MatrixType, Problem, ScaleOrder
from unigemm.problem.scales import PER_TENSOR
from unigemm.support.env import cache_dir

LAYOUTS = ("nn", "nt", "tn", "tt")
TYPES = [dtype for dtype in INPUTS if dtype is not DType.FLOAT64]
PAIRS_OF_4 = DType.FLOAT4_E2M1FN_X2
ARCHITECTURES = ("sm_100a", "sm_103a", "sm_110a")
ALL = os.environ.get("UNIGEMM_TEST_ALL", "")


def problem_of(
    dtype, layout="nt", out=None, d_major="n", alignment=16, scaled=False, d_alignment=16
):
    a = MatrixType(dtype, {"n": "k", "t": "m", "s": "strided"}[layout[0]], alignment)
    b = MatrixType(dtype, {"n": "n", "t": "k", "s": "strided"}[layout[1]], alignment)
    out = out or output_dtypes(dtype)[0]
    precision = "tf32" if dtype is DType.FLOAT32 else "ieee"
    scales = PER_TENSOR if scaled else None
    return Problem(a, b, MatrixType(out, d_major, d_alignment), precision, scales=scales)


def with_config(plan, config):
    """Return a plan that runs a configuration, with the workspace that it needs."""
    seen, sizes = config.oriented(plan.problem), config.oriented(plan.extents)
    return replace(plan, config=config, workspace_bytes=scratch_bytes(seen, sizes, config))


def sampled_plan(plan, wanted, seed):
    """Return a plan with a configuration of a kind, of those that are offered; by the seed."""
    found = [
        config
        for config in offered(plan.problem, plan.target)
        if all(getattr(config, name) == value for name, value in wanted.items())
    ]
    return with_config(plan, random.Random(seed).choice(found))


# -- all that are offered --------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What is multiplied: types of A and B, and the orders of their scales, to choose from."""

    name: str
    types: tuple[tuple[DType, DType], ...]
    orders: tuple[tuple[ScaleOrder, ScaleOrder], ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        """Where it is multiplied: sm_103a has no tcgen05 of int8."""
        absent = "sm_103a" if self.types[0][0] is DType.INT8 else ""
        return tuple(arch for arch in ARCHITECTURES if arch != absent)


def _with_scales(name: str, types: tuple[tuple[DType, DType], ...]) -> list[Kind]:
    plain: tuple[tuple[ScaleOrder, ScaleOrder], ...]
    plain = (("plain", "plain"), ("plain", "blocked"), ("blocked", "plain"))
    return [
        Kind(f"{name}-blocked", types, (("blocked", "blocked"),)),
        Kind(f"{name}-plain", types, plain),
    ]


_EIGHT_BITS = tuple((first, second) for first in FLOAT8 for second in FLOAT8)
KINDS = (
    *(
        Kind(dtype.value, tuple(t for t in _EIGHT_BITS if t[0] is dtype) or ((dtype, dtype),))
        for dtype in TYPES
    ),
    *_with_scales("mxfp8", _EIGHT_BITS),
    *_with_scales("nvfp4", ((PAIRS_OF_4, PAIRS_OF_4),)),
)


@dataclass(frozen=True)
class Offer:
    """A configuration that is offered for a kind in a layout, and an architecture to try it on.

    `results` are the types of D that it is offered for, each with how D is stored.
    """

    number: int
    kind: Kind
    layout: str
    arch: str
    config: Config
    results: tuple[tuple[DType, str], ...]

    def __str__(self) -> str:
        c, (cm, cn) = self.config, self.config.cluster
        swap = "-swap" if c.swap_ab else ""
        ring = f"{c.tile[1]}x{c.stages}-{c.schedule}-{cm}x{cn}-split{c.split_k}{swap}"
        return f"{self.number}-{self.arch}-{self.kind.name}-{self.layout}-{ring}"

    @property
    def alone(self) -> bool:
        """Whether one CTA or pair runs at a time."""
        pair = self.config.schedule == "pair"
        return self.config.schedule in ("single", "pair") and self.config.cluster == (1 + pair, 1)


@cache
def offers() -> tuple[Offer, ...]:
    """Return every configuration, kind and layout; each kind's on each architecture."""
    found: list[Offer] = []
    for kind in KINDS:
        for at, (config, of_layouts) in enumerate(_configurations(kind).items()):
            layouts, archs = list(of_layouts), kind.architectures
            for turn in range(max(len(layouts), len(archs))):
                layout, arch = layouts[turn % len(layouts)], archs[(at + turn) % len(archs)]
                results = tuple(of_layouts[layout])
                found.append(Offer(len(found), kind, layout, arch, config, results))
    return tuple(found)


def _configurations(kind: Kind) -> dict[Config, dict[str, list[tuple[DType, str]]]]:
    """Return what is offered, in which layouts, and for which D in each."""
    found: dict[Config, dict[str, list[tuple[DType, str]]]] = {}
    types, orders = kind.types[0], kind.orders[0] if kind.orders else None
    for layout in LAYOUTS:
        for out in output_dtypes(types[0]):
            for store in ("tma", "rows", "direct"):
                problem = _problem(types, layout, orders, _result(out, store))
                for config in offered(problem, named_target("sm_100a")):
                    found.setdefault(config, {}).setdefault(layout, []).append((out, store))
    return found


def _problem(types, layout, orders, d, scaled=False, alignments=(16, 16), strided=""):
    """Return a class of products; what is in `strided`, of "a" and "b", has no unit stride."""
    a, b = (
        MatrixType(dtype, major, alignment)
        if name not in strided
        else MatrixType(dtype, "strided", dtype.itemsize)
        for name, dtype, major, alignment in zip(
            "ab", types, _majors(layout), alignments, strict=True
        )
    )
    precision = "tf32" if types[0] is DType.FLOAT32 else "ieee"
    of_scales = DType.FLOAT8_E4M3FN if types[0] is PAIRS_OF_4 else DType.FLOAT8_E8M0FNU
    blocks = block_scales(of_scales, *orders) if orders else None
    scales = PER_TENSOR if scaled else None
    return Problem(a, b, d, precision, scales=scales, blocks=blocks)


def _majors(layout):
    return ("k" if layout[0] == "n" else "m"), ("n" if layout[1] == "n" else "k")


def _result(out: DType, store: str, alignment: int = 0) -> MatrixType:
    """Return a D that is stored in a way; of rows, by their alignment."""
    if store == "rows":
        return MatrixType(out, "n", alignment or out.itemsize)
    return MatrixType(out, "n", 16) if store == "tma" else MatrixType(out, "strided", out.itemsize)


# -- products to try them with ---------------------------------------------------------------------


def plan_of(offer: Offer) -> Plan:
    """Return a plan with a configuration, for a small product; by the offer's number."""
    draw = random.Random(offer.number)
    types, orders = draw.choice(offer.kind.types), None
    if offer.kind.orders:
        orders = draw.choice(offer.kind.orders)
    out, store = draw.choice(offer.results)
    d = _result(out, store, draw.choice([2**i for i in range(4) if 2**i >= out.itemsize]))
    # One operand in eight lies where TMA cannot read it.
    alignments = tuple(16 if draw.random() < 0.88 else dtype.itemsize for dtype in types)
    along = [name for name, major in zip("ab", _majors(offer.layout), strict=True) if major == "k"]
    strided = draw.choice(along) if along and not orders and draw.random() < 0.05 else ""
    scaled = types[0] in FLOAT8 and not orders and draw.random() < 0.3
    problem = _problem(types, offer.layout, orders, d, scaled, alignments, strided)
    config = replace(
        offer.config,
        split_k=draw.choice((2, 3)) if offer.config.split_k > 1 else 1,
        raster=Raster(draw.choice("mn"), draw.choice((1, 2, 8))),
    )
    clusters = draw.choice((1, 2))
    target = with_clusters(named_target(offer.arch), config, clusters)
    extents = _extents(draw, problem, config, clusters)
    return with_config(Plan("cute_tcgen05", config, problem, extents, target), config)


def with_clusters(target: Target, config: Config, clusters: int) -> Target:
    """Return a GPU of so few SMs that no more clusters run at once."""
    ctas = math.prod(config.cluster)
    count = clusters * ctas
    while clusters_at_once(few := replace(target, sm_count=count), ctas) < clusters:
        count += 1
    return few


def _extents(draw: random.Random, problem: Problem, config: Config, clusters: int) -> Extents:
    """Return sizes of a few tiles for each cluster and a remainder; K ends inside a k_tile.

    The k_tiles of a cluster's tiles are more than the stages, which begin again.
    """
    high, wide = draw.choice([(2, 2), (1, 3), (3, 1)])
    m = _odd(draw, (high - 1) * ROWS * config.cluster[0], ROWS * config.cluster[0])
    columns = config.tile[1] * config.cluster[1]
    n = _odd(draw, (wide - 1) * columns, columns)
    if config.swap_ab:
        m, n = n, m
    k_tile = config.tile[2]
    k_tiles = max(draw.choice((2, 3)), config.stages * clusters // (high * wide))
    return Extents(m, fitting(n, problem.d), k_tiles * k_tile + draw.randrange(1, k_tile))


def _odd(draw: random.Random, whole: int, most: int) -> int:
    """Return a whole number and an odd rest, three or more: one row has classes of its own."""
    return whole + draw.randrange(3, most, 2)


def fitting(n: int, d: MatrixType) -> int:
    """Return the columns nearest below, with which rows of D have its alignment and no more."""
    if d.major == "strided":
        return n
    unit = d.alignment // d.dtype.itemsize
    count = max(n // unit, 1)
    if d.alignment < 16 and count % 2 == 0:
        count -= 1
    return count * unit


# -- samples of them -------------------------------------------------------------------------------


def chosen(found: Sequence[Offer], each: int) -> list[Offer]:
    """Return all, or a part of them, or a number of each kind, as UNIGEMM_TEST_ALL says.

    All are in no order, so that what a run has done when it is stopped is a fair sample.
    """
    draw = random.Random(20261121)
    if ALL:
        part, parts = (int(word) for word in (ALL if "/" in ALL else "1/1").split("/"))
        return draw.sample(found, len(found))[part - 1 :: parts]
    by_kind = [[offer for offer in found if offer.kind is kind] for kind in KINDS]
    return [offer for of_kind in by_kind for offer in draw.sample(of_kind, min(each, len(of_kind)))]


def spread(monkeypatch, offer: Offer) -> None:
    """Keep the kernels of a whole run in many folders, those of one offer in the same.

    Whoever publishes a kernel reads the sizes of all in its folder: of seven thousand that takes as
    long as compiling.
    """
    if ALL:
        found = _cache(offer.number % 64)
        monkeypatch.setattr(kernel_cache, "default_cache", lambda: found)


@cache
def _cache(number: int) -> kernel_cache.Cache:
    return kernel_cache.Cache(cache_dir() / "offered" / str(number))
