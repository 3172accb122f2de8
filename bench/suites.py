"""The shape suites, as data: (M, N, K) or (L, M, N, K) of what users multiply."""

from __future__ import annotations

import math
import random
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from itertools import islice

from bench.model_sizes import NAMES, random_shapes
from unigemm.errors import UnsupportedProblem
from unigemm.problem.dtypes import DType, dtype_named
from unigemm.problem.problem import PRECISIONS, Precision
from unigemm.tuning.measure import Workload

LAYOUTS = ("nn", "nt", "tn", "tt")

SQUARES = (256, 512, 768, 1024, 1536, 2048, 3000, 3072, 4096, 5120, 6144, 8192, 12288, 16384)
# (N, K) of the linear layers of current language models: attention and MLP projections.
LAYERS = ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192), (7168, 2048),
          (2048, 7168))  # fmt: skip
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

SUITES: dict[str, tuple[tuple[int, ...], ...]] = {
    "squares": tuple((s, s, s) for s in SQUARES),
    "layers": tuple((m, n, k) for n, k in LAYERS for m in TOKENS),
    "tall-wide": (
        (65536, 64, 64), (65536, 128, 256), (32768, 256, 1024), (16384, 512, 128),
        (64, 65536, 64), (128, 65536, 256), (256, 32768, 1024), (512, 16384, 128),
    ),
    "large-k": (
        (128, 128, 16384), (256, 256, 65536), (64, 64, 131072), (512, 512, 32768),
        (1, 1, 1048576),
    ),
    "odd": (
        (1023, 1025, 1027), (4095, 4097, 511), (1, 1, 1), (7, 13, 31), (127, 255, 1000),
        (2049, 2047, 2050), (333, 777, 555),
    ),
    "batched": (
        (16, 512, 512, 512), (64, 128, 128, 128), (256, 64, 64, 64), (1024, 32, 32, 32),
        (12, 1024, 1024, 64), (8, 2048, 2048, 128),
    ),
    # Random sides from 64 to 8192, evenly by their logarithms, in eights; up to 4e11 flops. No
    # coefficient was fitted to these and no tile made for them: most rows begin within an L2 line.
    "random": (
        (1024, 512, 1056), (176, 3312, 3480), (1528, 136, 800), (312, 216, 6512),
        (8056, 80, 4160), (1192, 408, 256), (1696, 584, 1784), (1584, 120, 2656),
        (7520, 7064, 1256), (6152, 280, 376), (5000, 296, 920), (3848, 136, 192),
        (3384, 1560, 848), (4056, 136, 1000), (3216, 6352, 520), (584, 144, 1488),
        (3440, 2784, 656), (2032, 320, 304), (424, 4352, 1680), (208, 816, 5304), (688, 600, 448),
        (496, 1096, 872), (7040, 480, 72), (7904, 672, 592),
    ),
}  # fmt: skip


#: A few of each kind, in minutes: what ``pytest bench`` measures where no suite is named.
FIRST = (
    (1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (16, 4096, 4096),
    (1023, 1025, 1027), (256, 256, 65536), (8, 2048, 2048, 128),
)  # fmt: skip


_RANDOM = 24  # shapes of a random suite
_SEEDED = " and ".join(f"{name}:SEED" for name in NAMES)


def shapes_of(suite: str) -> tuple[tuple[int, ...], ...]:
    """Return a suite's shapes; those of ``random:7`` are made from the seed 7."""
    if suite == "first":
        return FIRST
    name, _, seed = suite.partition(":")
    if name == "random" and seed.isdecimal():
        return _random_shapes(int(seed))
    if name in NAMES and seed.isdecimal():
        return tuple(islice(sizes_of_models(suite), _RANDOM))
    if suite not in SUITES:
        known = f"{', '.join(SUITES)}, random:SEED, {_SEEDED}"
        raise UnsupportedProblem(f"no suite {suite!r}; choose from {known}")
    return SUITES[suite]


def sizes_of_models(suite: str, most_flops: float = 2e12) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of ``models:SEED`` (see `bench.model_sizes.NAMES`); none is of a suite."""
    name, _, seed = suite.partition(":")
    if name not in NAMES or not seed.isdecimal():
        raise UnsupportedProblem(f"no sizes {suite!r}; name one of {_SEEDED}")
    known = frozenset(shape for shapes in SUITES.values() for shape in shapes)
    yield from random_shapes(name, int(seed), known, most_flops)


def _random_shapes(seed: int, count: int = _RANDOM) -> tuple[tuple[int, ...], ...]:
    """Return random shapes of the kind of the suite "random"."""
    rng, found = random.Random(seed), list[tuple[int, ...]]()
    while len(found) < count:
        shape = tuple(8 * round(2 ** rng.uniform(6, 13) / 8) for _ in range(3))
        if 2 * math.prod(shape) <= 4e11:
            found.append(shape)
    return tuple(found)


def kind_named(name: str) -> tuple[DType, Precision]:
    """Return what a name stands for: a dtype, or float32 in the precision of that name."""
    for precision in PRECISIONS:
        if name == precision != "ieee":
            return DType.FLOAT32, precision
    return dtype_named(name), "ieee"


def workloads(
    suite: str, kind: str, layouts: Iterable[str] = LAYOUTS, offset: int = 0
) -> list[Workload]:
    """Return a suite's problems in one kind of numbers and some layouts."""
    dtype, precision = kind_named(kind)
    found = []
    for layout in layouts:
        for shape in shapes_of(suite):
            *batch, m, n, k = shape
            depth = batch[0] if batch else 1
            found.append(Workload(m, n, k, dtype, layout, depth, offset, precision))
    return found


def add_problem_options(parser: ArgumentParser, dtype: str, backend: str) -> None:
    """Add the options of what is multiplied and by which backend, with the caller's defaults."""
    parser.add_argument("--suite", default="squares,layers,tall-wide,large-k,odd,batched")
    parser.add_argument("--dtype", default=dtype)
    parser.add_argument("--layout", default=",".join(LAYOUTS))
    parser.add_argument("--backend", default=backend)


def add_sample_options(parser: ArgumentParser) -> None:
    """Add which of the problems are measured."""
    parser.add_argument("--sample", type=int, help="problems of each suite and dtype")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=float, default=1e14, help="skip more flops than this")


def sample(items: list[Workload], count: int | None, seed: int) -> list[Workload]:
    """Return `count` of the problems, the same ones for the same seed, in their order."""
    if count is None or count >= len(items):
        return items
    picked = set(random.Random(seed).sample(range(len(items)), count))
    return [item for i, item in enumerate(items) if i in picked]
