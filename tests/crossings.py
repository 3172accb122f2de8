"""Products in which every two features of a backend meet: covering arrays, and their cases.

What a call asks for is drawn, and of the configurations that the backend's own legality leaves, one
of each kind is taken. Of these cases a few are chosen that have every pair of values which any of
them has: nothing here says which features go together.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from epilogue_cases import EPILOGUES, WithEpilogue, plan_of
from sampling import SEED

import unigemm
from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.registry import backend_named
from unigemm.planning.target import Target
from unigemm.problem.dtypes import FLOAT8, DType
from unigemm.problem.problem import Problem

__all__ = [
    "ASKED",
    "Backend",
    "Case",
    "Crossed",
    "covering",
    "crossings",
    "drawn",
    "is_small",
    "pairs_of",
]

_LARGEST = 1 << 14  # elements of a tile: larger ones take longer to compile, with the same code
Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]


def is_small(config: Config) -> bool:
    """Whether a configuration is compiled soon."""
    return config.tile[0] * config.tile[1] <= _LARGEST


def pairs_of(case: Mapping[str, Hashable]) -> list[Pair]:
    """Return the pairs of values that a case has."""
    return list(combinations(sorted(case.items(), key=lambda item: item[0]), 2))


def covering(cases: Sequence[Mapping[str, Hashable]], name: str, tries: int = 60) -> list[int]:
    """Return numbers of cases that have every pair of values which any has, the fullest first.

    The rarest pair that is left decides which cases are looked at; the best of some is taken.
    """
    draw = random.Random(f"{SEED} {name}")
    pairs = [pairs_of(case) for case in cases]
    holders: dict[Pair, list[int]] = defaultdict(list)
    for number, own in enumerate(pairs):
        for pair in own:
            holders[pair].append(number)
    left, found = dict.fromkeys(holders), []
    while left:
        rarest = min(left, key=lambda pair: len(holders[pair]))
        some = draw.sample(holders[rarest], min(tries, len(holders[rarest])))
        best = max(some, key=lambda number: sum(pair in left for pair in pairs[number]))
        found.append(best)
        for pair in pairs[best]:
            left.pop(pair, None)
    return _fullest_first(found, pairs)


def _fullest_first(chosen: list[int], pairs: Sequence[Sequence[Pair]]) -> list[int]:
    """Return cases in the order of how many pairs each adds to those before it."""
    found: list[int] = []
    seen: set[Pair] = set()
    while chosen:
        best = max(chosen, key=lambda number: sum(pair not in seen for pair in pairs[number]))
        chosen.remove(best)
        found.append(best)
        seen.update(pairs[best])
    return found


#: What is done to the accumulators. Each has several features, so that few kernels have them all.
ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rows": EPILOGUES["all"] | {"bias_grad_out": "row sums"},
    "columns": {
        "bias": "column", "c": "turned", "beta": "scalar", "alpha": "scalar", "scale_d": 0.5,
        "bias_grad_out": "column sums",
    },
    "in place": EPILOGUES["in place"] | {"bias": "full"},
    "neighbours": EPILOGUES["swiglu"] | {"c": "full", "amax_out": "largest"},
    "halves": EPILOGUES["halves"] | {"c": "full", "amax_out": "largest"},
}  # fmt: skip


@dataclass(frozen=True)
class Crossed(WithEpilogue):
    """A product whose arrays lie in some way.

    Attributes
    ----------
    spacing
        "wide": lines begin at multiples of 16 bytes; "narrow": where odd rows put them; "apart":
        as "wide", but the products of a stack, and its C, begin one element later each.
    """

    spacing: str = "wide"

    @property
    def requested(self) -> dict[str, Any]:
        return ASKED[self.name]

    def guard(self, dtype: Any) -> int:
        return 16 // np.dtype(dtype).itemsize if self.spacing == "wide" else super().guard(dtype)

    def operand(self, rng: np.random.Generator, rows: int, columns: int, turned: bool) -> Any:
        values = super().operand(rng, rows, columns, turned)
        return self.laid(values.swapaxes(-1, -2)).swapaxes(-1, -2) if turned else self.laid(values)

    def array(self, rng: np.random.Generator, kind: str, out: Any) -> Any:
        made = super().array(rng, kind, out)
        return self.laid(made) if kind in ("full", "row") else made

    def laid(self, x: np.ndarray) -> np.ndarray:
        """Return a copy whose lines, and matrices of a stack, lie as `spacing` says."""
        *stack, rows, columns = (1,) * (2 - x.ndim) + x.shape
        unit, count = 16 // x.itemsize, stack[0] if stack else 1
        pitch = columns + 1 if self.spacing == "narrow" else -(-columns // unit) * unit
        memory = np.zeros((count, rows * pitch + (self.spacing == "apart")), x.dtype)
        lines = memory[:, : rows * pitch].reshape(count, rows, pitch)[..., :columns]
        found = lines if stack else lines[0] if x.ndim > 1 else lines[0, 0]
        found[...] = x
        return found


@dataclass(frozen=True)
class Backend:
    """What is crossed of a backend: what is requested of it, and how its configurations differ."""

    name: str
    arch: str
    inputs: tuple[tuple[DType, str], ...]
    spacings: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    k_tile: Callable[[DType], int]
    configs: Callable[[Plan], Iterator[Config]]
    kind: Callable[[Problem, Config], dict[str, Hashable]]

    @property
    def target(self) -> Target:
        return replace(unigemm.named_target(self.arch), sm_count=6)


@dataclass(frozen=True)
class Case:
    """A product by a plan, and the values of its factors."""

    product: Crossed
    plan: Plan
    factors: dict[str, Hashable]


def drawn(of: Backend, most: int, name: str = "") -> list[Case]:
    """Draw products, and return each with one configuration of every kind that is legal."""
    draw = random.Random(f"{SEED} {of.name} {name}")
    backend, found = backend_named(of.name), []
    for _ in range(most):
        (dtype, precision), (m, n) = draw.choice(of.inputs), draw.choice(of.sizes)
        given = {
            "dtype": dtype.value,
            "layout": draw.choice(("nn", "nt", "tn", "tt")),
            "name": draw.choice(sorted(ASKED)),
            "spacing": draw.choice(of.spacings),
            "columns": draw.random() < 0.5,
            "k": draw.choice(("one", "odd", "several")),
        }
        k = {"one": 0.6, "odd": 2.3, "several": 5.2}[given["k"]] * of.k_tile(dtype)
        product = Crossed(
            (m, n, int(k)), dtype, given["layout"], given["name"],
            stack=2 if given["spacing"] == "apart" else 1, columns=given["columns"],
            seed=draw.randint(0, 1000), spacing=given["spacing"],
            options={"precision": precision}
            | ({"scale_a": 0.5, "scale_b": 2.0} if dtype in FLOAT8 else {}),
        )  # fmt: skip
        try:
            plan = plan_of(product, of.name, of.target, **planned_options(product))
        except UnsupportedProblem:  # such a product is not for the backend
            continue
        kinds: dict[tuple[Any, ...], tuple[Config, dict[str, Hashable]]] = {}
        configs = list(of.configs(plan))
        for config in draw.sample(configs, len(configs)):
            kind = of.kind(plan.problem, config) | {"swap_ab": config.swap_ab}
            if tuple(kind.values()) in kinds or backend.unsupported_config_reason(
                plan.problem, plan.extents, of.target, config
            ):
                continue
            kinds[tuple(kind.values())] = config, kind
        for config, kind in kinds.values():
            room = backend.workspace_bytes(plan.problem, plan.extents, of.target, config)
            own = replace(plan, config=config, workspace_bytes=room, alternatives=())
            found.append(Case(product, own, given | kind))
    return found


def planned_options(product: Crossed) -> dict[str, Any]:
    """Return what a plan is told of a product besides its arrays."""
    given = {"precision": product.options["precision"]}
    return given | ({"scaled": True} if "scale_a" in product.options else {})


@cache
def crossings(of: Backend, most: int = 250) -> list[Case]:
    """Return cases of a backend that have every pair of values which is legal."""
    cases = drawn(of, most)
    return [cases[i] for i in covering([each.factors for each in cases], of.name)]
