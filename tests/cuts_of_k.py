"""Batch-invariant products in every way of cutting K that backends offer, and some rows of them.

What is asked is drawn. Of the configurations that the planner ranks for it, those that cut K are
sorted by how they do it, and of each kind one is drawn; of these cases a few have every pair of
values (see `crossings`). A case is right where some rows, computed alone or in a stack, have the
bits that they have among all rows.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from crossings import covering
from sampling import SEED

import unigemm
from unigemm.backends.cute_simt.schedules import is_tail
from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.prediction import Alternative
from unigemm.planning.registry import backend_named
from unigemm.problem.dtypes import DType, numpy_dtype

__all__ = ["CUT", "LARGE", "SMALL", "Case", "Cut", "cases", "differing"]

_BLOCK = 128  # elements of K, or columns, that share a scale
_ROWS = 32  # of a tile, at least: then rows lie in many places of it
#: Arguments that have a row for each row of the product.
_OF_ROWS = ("a", "c", "scale_a", "bias_grad_out")
#: Rows of a whole product, and how many times as long its K is as on the emulator.
SMALL, LARGE = (72, 1), (777, 3)


@dataclass(frozen=True)
class Cut:
    """A backend that cuts K: where it runs, what it multiplies, and the N and K of its products.

    The types of inputs have the precision that is asked for, and K; K ends inside a k_tile, and is
    so long that clusters of eight are offered.
    """

    arch: str
    inputs: dict[DType, tuple[str, int]]
    columns: tuple[int, ...] = (32,)


CUT = {
    "cute_wgmma": Cut(
        "sm_90a",
        {
            DType.BFLOAT16: ("ieee", 968), DType.FLOAT32: ("tf32", 484),
            DType.FLOAT8_E4M3FN: ("ieee", 1936),
        },
    ),
    "cute_simt": Cut(
        "sm_90a",
        {
            DType.FLOAT32: ("ieee", 1000), DType.FLOAT64: ("ieee", 400),
            DType.BFLOAT16: ("ieee", 1000),
        },
        (2, 32),
    ),
    "cute_tcgen05": Cut(
        "sm_100a",
        {
            DType.BFLOAT16: ("ieee", 968), DType.FLOAT32: ("tf32", 484),
            DType.FLOAT8_E4M3FN: ("ieee", 1936),
        },
    ),
    "cutile": Cut("sm_90a", {DType.BFLOAT16: ("ieee", 968), DType.FLOAT32: ("tf32", 484)}),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A product, and a configuration that cuts K.

    Attributes
    ----------
    backend, dtype, precision
        What multiplies, elements of which type, and how exactly.
    sizes
        M, N, K of the whole product.
    turned
        B is K-major.
    asked
        What is done besides: one of `_given`.
    seed
        Of the numbers.
    config, kind
        How the product is computed, and the values of its factors.
    """

    backend: str
    dtype: DType
    precision: str
    sizes: tuple[int, int, int]
    turned: bool
    asked: str
    seed: int
    config: Config | None = None
    kind: tuple[tuple[str, Hashable], ...] = ()

    @property
    def result(self) -> DType:
        """The accumulator's type: nothing is rounded away."""
        return DType.FLOAT64 if self.dtype is DType.FLOAT64 else DType.FLOAT32

    def arguments(self) -> dict[str, Any]:
        """Return the operands and what is asked, in host memory."""
        rng = np.random.default_rng(self.seed)
        m, n, k = self.sizes
        native, wide = numpy_dtype(self.dtype), numpy_dtype(self.result)
        a = rng.normal(0, 1, (m, k)).astype(np.float32).astype(native)
        b = rng.normal(0, 1, (n, k) if self.turned else (k, n)).astype(np.float32).astype(native)
        return {"a": a, "b": b.T if self.turned else b, **self._given(rng, wide)}

    def _given(self, rng: np.random.Generator, wide: Any) -> dict[str, Any]:
        """Return what is done besides the product."""
        m, n, k = self.sizes
        if self.asked == "scales":
            return {
                "scale_a": rng.uniform(0.5, 2, (m, 1)).astype(np.float32),
                "scale_b": rng.uniform(0.5, 2, (1, n)).astype(np.float32),
            }
        if self.asked == "scales of blocks":
            blocks = -(-k // _BLOCK)
            return {
                "scale_a": rng.uniform(0.5, 2, (m, blocks)).astype(np.float32),
                "scale_b": rng.uniform(0.5, 2, (blocks, -(-n // _BLOCK))).astype(np.float32),
            }
        if self.asked == "sums":
            sums = {"bias_grad_out": np.zeros((m, 1), wide)} if self.backend != "cutile" else {}
            return sums | {
                "c": rng.normal(0, 1, (m, n)).astype(wide), "beta": 0.7,
                "bias": rng.normal(0, 1, n).astype(wide), "activation": "gelu_tanh",
            }  # fmt: skip
        if self.asked == "gate":
            return {"activation": "swiglu", "gate_layout": "interleaved"}
        return {}

    def plan(self, arguments: dict[str, Any], dtype: DType | None = None, **options: Any) -> Plan:
        """Plan the product with these arguments, or one with fewer rows."""
        return unigemm.plan(
            **arguments, backend=self.backend, precision=self.precision,
            dtype=(dtype or self.result).value, batch_invariant=True, **options,
        )  # fmt: skip

    def multiply(self, arguments: dict[str, Any], put: Callable[[Any], Any]) -> list[Any]:
        """Compute with these arguments; return all that is written."""
        fresh = {name: np.zeros_like(x) for name, x in arguments.items() if name.endswith("_out")}
        on_device = {
            name: put(x) if isinstance(x, np.ndarray) else x
            for name, x in (arguments | fresh).items()
        }
        plan = self.plan(on_device)
        backend = backend_named(self.backend)
        found = backend.estimate(plan.problem, plan.extents, plan.target, self.config)
        plan = plan.taking(Alternative.of(self.backend, found))
        operands = on_device.pop("a"), on_device.pop("b")
        d = unigemm.matmul(
            *operands, dtype=self.result.value, precision=self.precision, batch_invariant=True,
            backend=self.backend, plan=plan, **on_device,
        )  # fmt: skip
        return [d, *(x for name, x in on_device.items() if name.endswith("_out"))]


def differing(case: Case, put: Callable[[Any], Any], get: Callable[[Any], np.ndarray]) -> str:
    """Tell of drawn rows, or a stack of such, whose bits are others than in the whole product.

    `put` brings an array to the device in its order, and `get` brings one back.
    """
    draw = random.Random(f"{SEED} {case}")
    arguments, m = case.arguments(), case.sizes[0]
    stack = draw.choice((1, 2))
    count = draw.randint(1, m // (2 * stack))
    # From some rows on: alone they lie elsewhere in a tile.
    firsts = [draw.randint(m // 3, m - count) for _ in range(stack)]
    rows = [slice(first, first + count) for first in firsts]
    whole = case.multiply(arguments, put)
    some = case.multiply(_of_rows(arguments, rows), put)
    told = []
    for everything, found in zip(map(get, whole), map(get, some), strict=True):
        expected = np.concatenate([everything[each] for each in rows])
        assert np.isfinite(expected).all()
        bits = found.reshape(expected.shape).view(f"u{expected.itemsize}")
        if others := int((bits != expected.view(bits.dtype)).sum()):
            told.append(f"{others} of {bits.size} values of rows {rows}")
    return ", ".join(told)


def _of_rows(arguments: dict[str, Any], rows: list[slice]) -> dict[str, Any]:
    """Return compact arguments for a range of rows, or for a stack of several."""
    found = dict(arguments)
    for name, x in arguments.items():
        if name in _OF_ROWS:
            some = [np.ascontiguousarray(x[each]) for each in rows]
            found[name] = some[0] if len(rows) == 1 else np.stack(some)
        elif name in ("b", "scale_b") and len(rows) > 1:
            turned = x.strides[0] < x.strides[1]
            found[name] = (
                np.stack([x.T] * len(rows)).swapaxes(1, 2) if turned else np.stack([x] * len(rows))
            )
    return found


def kind_of(config: Config) -> dict[str, Hashable]:
    """Return how a configuration cuts K."""
    return {
        "schedule": config.schedule,
        "swap_ab": config.swap_ab,
        "split_k": min(config.split_k, 4),
        "cluster_k": config.cluster_k,
        "slice_k": config.slice_k,
        "multicast": config.cluster != (1, 1),
        "copies": (config.producers > 0, config.repacked),
        "remainder": len(config.remainder),
    }


@cache
def cases(name: str, scale: tuple[int, int] = SMALL) -> list[Case]:
    """Return cases of a backend that have every pair of values, the fullest first."""
    of = CUT[name]
    draw = random.Random(f"{SEED} {name} {scale}")
    found: list[Case] = []
    target = unigemm.named_target(of.arch)
    for dtype, (precision, k) in of.inputs.items():
        asked = ["nothing", "sums", "gate"]
        asked += ["scales", "scales of blocks"] if dtype is DType.FLOAT8_E4M3FN else []
        for number, each in enumerate(draw.sample(asked, len(asked))):
            sizes, turned = (scale[0], draw.choice(of.columns), k * scale[1]), number % 2 == 0
            bare = Case(name, dtype, precision, sizes, turned, each, draw.randint(0, 999))
            factors = {"dtype": dtype, "turned": turned, "asked": each}
            found += [
                replace(bare, config=config, kind=tuple((factors | kind_of(config)).items()))
                for config in _configs(bare, target, draw)
            ]
    return [found[i] for i in covering([dict(each.kind) for each in found], f"{name} {scale}")]


def _configs(case: Case, target: Any, draw: random.Random) -> list[Config]:
    """Return one configuration of each kind that is offered, for results of either width."""
    backend, arguments = backend_named(case.backend), case.arguments()
    try:
        plan = case.plan(arguments, target=target, keep=1 << 20)
    except UnsupportedProblem:  # such a product is not for the backend
        return []
    plans = [plan]
    if case.dtype is DType.BFLOAT16:  # narrow results are stored transposed where wide ones are not
        plans.append(case.plan(arguments, DType.BFLOAT16, target=target, keep=1 << 20))
    kinds: dict[tuple[Hashable, ...], list[Config]] = defaultdict(list)
    for each in plans:
        for config in (each.config, *(other.config for other in each.alternatives)):
            of_k = config.split_k * config.cluster_k * config.slice_k
            if of_k > 1 or config.remainder or is_tail(config):
                kinds[tuple(kind_of(config).values())].append(config)
    found = []
    for configs in kinds.values():
        order = draw.sample(unique := sorted(set(configs), key=repr), len(unique))
        order.sort(key=lambda x: (x.tile[x.swap_ab] < _ROWS, _effort(case, x)))
        legal = (
            x
            for x in order
            if not backend.unsupported_config_reason(plan.problem, plan.extents, target, x)
        )
        found += [x for x in (next(legal, None),) if x is not None]
    return found


def _effort(case: Case, config: Config) -> int:
    """Return about how long a configuration takes in the emulator: more for many CTAs."""
    m, n, _ = case.sizes
    rows, columns, _ = config.tile[1::-1] + config.tile[2:] if config.swap_ab else config.tile
    ctas = -(-m // rows) * -(-n // columns) * config.split_k * config.cluster_k
    return ctas * (rows * columns // 1024 + 4) // 32
