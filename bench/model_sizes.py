"""Products as people run them, at random by a seed: of models mostly, and some of each other kind.

Sizes to fit to (``models:SEED``) and sizes to judge by (``heldout:SEED``, and ``families:SEED``, as
many of each family) share no shape, whatever the seeds, and neither has one of the suites: a number
made of the shape says which of the two it may be of.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from zlib import crc32

__all__ = ["FAMILIES", "NAMES", "WIDTHS", "family", "is_held_out", "random_shapes"]

Shape = tuple[int, ...]

#: Whose sizes they are: what a fit may see, and what it may not.
NAMES = ("models", "heldout", "families")
#: Families of shapes, each without those of the families that `family` tries before it.
FAMILIES = {
    "few rows": "M or N is at most 64",
    "small": "at most 2 x 1024 cubed operations",
    "ordinary": "at most 2 x 4096 cubed",
    "large": "more than those",
    "large K": "K is at least eight times M and N",
    "odd": "a side is no multiple of eight (M below eight is not odd)",
    "stacks": "several products of one size in a call",
}
#: N and K of the linear layers of models.
WIDTHS = (
    *(768, 896, 1024, 1152, 1280, 1536, 1792, 2048, 2304, 2560, 2880, 3072),
    *(3584, 4096, 4544, 4608, 4864, 5120, 5632, 6144, 6656, 7168, 8192, 8960),
    *(9216, 10240, 11008, 12288, 13824, 14336, 16384, 17920, 18432, 18944, 24576, 28672),
)
_MOST_TOKENS = 16384
_MOST_ROWS = 30000  # of large products
_HELD_OUT_OF = 4  # a quarter of all shapes


def is_held_out(shape: Shape) -> bool:
    """Return whether no fit may see a shape."""
    return crc32("x".join(map(str, shape)).encode()) % _HELD_OUT_OF == 0


def family(shape: Shape) -> str:
    """Return which of `FAMILIES` a product of shape (M, N, K) or (L, M, N, K) is of."""
    *batch, m, n, k = shape
    if batch and batch[0] > 1:
        return "stacks"
    if any(side % 8 for side in (n, k)) or (m > 8 and m % 8):
        return "odd"
    if min(m, n) <= 64:
        return "few rows"
    if k >= 8 * max(m, n):
        return "large K"
    products = m * n * k
    return "small" if products <= 1024**3 else "ordinary" if products <= 4096**3 else "large"


def random_shapes(
    name: str, seed: int, known: frozenset[Shape] = frozenset(), most_flops: float = math.inf
) -> Iterator[Shape]:
    """Yield shapes without end, (M, N, K) or (L, M, N, K), none of them twice.

    Two of three are of models; skinny, deep, odd, small and batched ones take turns for the rest.
    Those of "families" are of each family in turn.

    Parameters
    ----------
    name
        One of `NAMES`.
    seed
        The same one draws the same shapes.
    known
        Shapes not to draw.
    most_flops
        Operations of a product, 2 L M N K, at most.
    """
    rng, seen = random.Random(f"{name}:{seed}"), set(known)
    if name == "families":
        yield from _in_turn(rng, seen, most_flops)
    while True:
        for other in (_skinny, _deep, _odd, _small, _batched):
            for draw in (_model, _model, other):
                shape = _fresh(draw, rng, seen, name == "heldout")
                seen.add(shape)
                if 2 * math.prod(shape) <= most_flops:
                    yield shape


def _fresh(
    draw: Callable[[random.Random], Shape], rng: random.Random, seen: set[Shape], held_out: bool
) -> Shape:
    while True:
        shape = draw(rng)
        if shape not in seen and is_held_out(shape) == held_out:
            return shape


def _in_turn(rng: random.Random, seen: set[Shape], most_flops: float) -> Iterator[Shape]:
    while True:
        for name, draw in _DRAWS.items():
            shape = _fresh(draw, rng, seen, held_out=True)
            while family(shape) != name or 2 * math.prod(shape) > most_flops:
                shape = _fresh(draw, rng, seen, held_out=True)
            seen.add(shape)
            yield shape


def _tokens(rng: random.Random) -> int:
    """Draw M: a power of two as often as any other, and those in eights once there are eight."""
    if rng.random() < 0.5:
        return 2 ** rng.randint(0, int(math.log2(_MOST_TOKENS)))
    count = _between(rng, 1, _MOST_TOKENS)
    return count if count < 8 else _eights(count)


def _model(rng: random.Random) -> Shape:
    return _tokens(rng), rng.choice(WIDTHS), rng.choice(WIDTHS)


def _skinny(rng: random.Random) -> Shape:
    few, many = _between(rng, 1, 64), _eights(_between(rng, 4096, 131072))
    k = _eights(_between(rng, 64, 4096))
    return (few, many, k) if rng.random() < 0.5 else (many, _eights(few), k)


def _deep(rng: random.Random) -> Shape:
    m, n = (_eights(_between(rng, 16, 1024)) for _ in range(2))
    return m, n, _eights(_between(rng, 8192, 262144))


def _odd(rng: random.Random) -> Shape:
    m, n, k = (_between(rng, 32, 6000) for _ in range(3))
    return m, n, k


def _small(rng: random.Random) -> Shape:
    m, n, k = (_eights(_between(rng, 32, 768)) for _ in range(3))
    return m, n, k


def _batched(rng: random.Random) -> Shape:
    """Draw scores or values of attention, or the products of experts."""
    count, tokens = _between(rng, 4, 128), 2 ** rng.randint(6, 12)
    head = rng.choice((64, 80, 96, 128))
    scores, values = (count, tokens, tokens, head), (count, tokens, head, tokens)
    narrow = [width for width in WIDTHS if width <= 4096]
    experts = (min(count, 32), _between(rng, 8, 1024), rng.choice(narrow), rng.choice(narrow))
    return rng.choice((scores, values, experts))


def _between(rng: random.Random, least: int, most: int) -> int:
    """Draw a number evenly by its logarithm."""
    return min(most, max(least, round(math.exp(rng.uniform(math.log(least), math.log(most))))))


def _rows_of_model(least: int, most: int) -> Callable[[random.Random], Shape]:
    """Return what draws a layer of a model, and M from a range evenly by its logarithm."""

    def draw(rng: random.Random) -> Shape:
        m = _between(rng, least, most)
        return m if m < 8 else _eights(m), rng.choice(WIDTHS), rng.choice(WIDTHS)

    return draw


#: What draws a shape of each family; a draw of another family is thrown away.
_DRAWS: dict[str, Callable[[random.Random], Shape]] = {
    "few rows": _rows_of_model(1, 64),
    "small": _small,
    "ordinary": _rows_of_model(65, 4096),
    "large": _rows_of_model(1024, _MOST_ROWS),
    "large K": _deep,
    "odd": _odd,
    "stacks": _batched,
}


def _eights(value: int) -> int:
    return 8 * max(1, round(value / 8))
