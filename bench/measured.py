"""The measured launches of bench/data, as the cost model is fitted to them and judged by them."""

from __future__ import annotations

import lzma
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from unigemm.backends.common.measured import MeasuredLaunch
from unigemm.planning.config import Config
from unigemm.planning.target import DEVICES, Target, named_target
from unigemm.problem.problem import Extents, Problem

__all__ = ["DATA", "Launch", "by_product", "files", "launches"]

DATA = Path(__file__).with_name("data")
STEADY_US = 20.0  # of shorter launches the clocks do not depend on the run


@dataclass(frozen=True)
class Launch(MeasuredLaunch):
    """A measured launch.

    Its time is the median of its times, as if cuBLAS had taken in each run what it takes in the
    median of the problem's runs: a GPU near its power limit changes its clocks from run to run.

    Attributes
    ----------
    cublas_us
        That time of cuBLAS; None if it was not measured.
    """

    cublas_us: float | None = None


def files(held_out: bool = False, data: Path = DATA) -> list[Path]:
    """Return the files of launches that a fit may see, or those that it may not."""
    return sorted(x for x in data.glob("*.jsonl.xz") if ("heldout" in x.name) == held_out)


def launches(paths: Iterable[Path] | None = None) -> list[Launch]:
    """Read the launches that have a time; of repeated ones the median.

    Without paths they are those that a fit may see.
    """
    runs: dict[Any, list[tuple[float, float | None]]] = defaultdict(list)
    cublas_us: dict[Any, list[float]] = defaultdict(list)
    sampled: set[Any] = set()
    for path in files() if paths is None else paths:
        for line in _lines(path):
            if not line.us:
                continue
            plan = line.plan
            product = _problem(plan.problem), _extents(plan.extents), _target(plan.target)
            key = (line.backend, *product, _config(plan))
            runs[key].append((line.us, line.cublas_us))
            if line.drawn:
                sampled.add(key)
            if line.cublas_us:
                cublas_us[product].append(line.cublas_us)
    usual = {product: median(us) for product, us in cublas_us.items()}
    found = []
    for key, timed in runs.items():
        cublas = usual.get(key[1:4])
        us = median(_as_usual(*each, cublas) for each in timed)
        found.append(Launch(*key, us, key in sampled, cublas))
    return found


def by_product(found: Iterable[Launch]) -> list[list[Launch]]:
    """Return the launches of each product."""
    products: dict[Any, list[Launch]] = defaultdict(list)
    for each in found:
        products[each.problem, each.extents, each.target].append(each)
    return list(products.values())


@dataclass(frozen=True, kw_only=True)
class _Plan(Config):
    """What of a plan says what was launched; parts that many have alike are left as text."""

    problem: msgspec.Raw
    extents: msgspec.Raw
    target: msgspec.Raw
    strips: tuple[Config, ...] = ()  # what plans called remainder launches before


class _Line(msgspec.Struct):
    backend: str
    plan: _Plan
    us: float | None = None
    cublas_us: float | None = None
    drawn: str = ""  # how the launch was chosen


def _lines(path: Path) -> Iterator[_Line]:
    """Yield the lines of a sweep's file, packed by xz or not."""
    decoder = msgspec.json.Decoder(_Line)
    with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as lines:
        for line in lines:
            yield decoder.decode(line)


def _config(plan: _Plan) -> Config:
    found = Config(*(getattr(plan, name) for name in Config.__dataclass_fields__))
    return replace(found, remainder=plan.remainder or plan.strips)


_decoded: dict[tuple[type, bytes], Any] = {}


def _once(text: msgspec.Raw, kind: type) -> Any:
    key = kind, bytes(text)
    found = _decoded.get(key)
    if found is None:
        found = _decoded[key] = msgspec.json.decode(text, type=kind)
    return found


def _problem(text: msgspec.Raw) -> Problem:
    found: Problem = _once(text, Problem)
    return found


def _extents(text: msgspec.Raw) -> Extents:
    found: Extents = _once(text, Extents)
    return found


def _target(text: msgspec.Raw) -> Target:
    return _as_known(_once(text, Target))


@cache
def _as_known(target: Target) -> Target:
    """Return the device as it is known by its name: old plans have its architecture's bandwidth."""
    return named_target(target.name) if target.name in DEVICES else target


def _as_usual(us: float, cublas_us: float | None, usual_us: float | None) -> float:
    """Return a time as if cuBLAS had taken in its run what it usually does."""
    if not cublas_us or not usual_us or cublas_us <= STEADY_US:
        return us
    return us * usual_us / cublas_us
