"""Plans that somebody has changed: by a seed, any value of any backend's plans, to anything."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache

import unigemm
from unigemm.planning.config import Config
from unigemm.problem.block_scales import blocked_count

SIZES = (96, 72, 160)
#: Architecture, dtype, precision, layout, backends.
KINDS = (
    ("cpu", "float32", "ieee", "nn", ("numpy",)),
    ("cpu", "bfloat16", "ieee", "nt", ("numpy",)),
    ("cpu", "int8", "ieee", "tn", ("numpy",)),
    ("sm_80", "float32", "ieee", "nn", ("cute_simt",)),
    ("sm_80", "float16", "ieee", "tn", ("cute_simt", "cutile")),
    ("sm_90a", "float32", "ieee", "nt", ("cute_simt",)),
    ("sm_90a", "float64", "ieee", "nn", ("cute_simt", "cutile")),
    ("sm_90a", "bfloat16", "ieee", "nt", ("cute_wgmma", "cutile", "cute_simt")),
    ("sm_90a", "float32", "tf32", "tn", ("cute_wgmma", "cutile")),
    ("sm_90a", "float8_e4m3fn", "ieee", "nt", ("cute_wgmma", "cutile")),
    ("sm_100a", "float16", "ieee", "nn", ("cute_tcgen05", "cutile")),
    ("sm_100a", "int8", "ieee", "nt", ("cute_tcgen05",)),
    ("sm_120a", "bfloat16", "ieee", "nt", ("cutile", "cute_simt")),
)
#: What a value may become.
NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 31, 32, 64, 96, 128, 256, 1 << 12, 1 << 20)
WRONG = (
    *(-1, -16, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**400, -(10**30)),
    *(
        0.5,
        1.0,
        1e300,
        float("nan"),
        float("inf"),
        True,
        False,
        None,
        "",
        "64",
        "\ud800",
        "\x1b[2J",
    ),
    *([], [0], [1, 1], [64, 64, 16], [[]], {}, {"a": 1}, "numpy", "cute_wgmma", "cutile", "cpu"),
    *("sm_90a", "sm_9\xb2", "strided", "m", "k", "n"),
    *("tail", "stream", "pingpong", "dmma", "dot"),
)

#: What may be put into JSON.
BYTES = '0123456789",:{}[]-.eE \\azM\x00'
PARAMETERS = tuple(Config.__dataclass_fields__)


def specs(sizes, dtype, layout):
    """Return the operands of a product."""
    m, n, k = sizes
    orders = ["F" if letter == "t" else "C" for letter in layout]
    shapes = ((m, k), (k, n))
    return [unigemm.ArraySpec(x, dtype, order) for x, order in zip(shapes, orders, strict=True)]


@cache
def originals(sizes=SIZES):
    """Return the plans that mutations begin with: each backend's picks, and what lost to them."""
    found = []
    for target, dtype, precision, layout, backends in KINDS:
        for backend in backends:
            for shape in (sizes, (1, sizes[1], 4 * sizes[2])):
                try:
                    plan = unigemm.plan(
                        *specs(shape, dtype, layout), target=target, backend=backend,
                        precision=precision, keep=6, tuned=False,
                    )  # fmt: skip
                except unigemm.UnsupportedProblem:
                    continue  # one row is not cutile's, say
                found += [plan, *map(plan.taking, plan.alternatives[::2])]
    blocks = -(-sizes[2] // 32)
    scale = unigemm.ArraySpec((blocked_count(sizes[0], blocks),), "float8_e8m0fnu")
    a, b = specs(sizes, "float8_e4m3fn", "nt")
    for target in ("sm_100a", "cpu"):
        found.append(unigemm.plan(a, b, target=target, scale_a=scale, scale_b=scale, tuned=False))
    return tuple(found)


def paths(value, at=()):
    """Yield the way to each value of plain data."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield (*at, key)
        if isinstance(value[key], dict | list):
            yield from paths(value[key], (*at, key))


def mutate(data, rng):
    """Change plain data: a value, a name, or a byte of its JSON. Returns data, or JSON."""
    data = json.loads(json.dumps(data))
    way = rng.random()
    if way < 0.1:
        text = json.dumps(data)
        at = rng.randrange(len(text))
        byte = rng.choice(BYTES)
        return text[:at] + byte + text[at + rng.randrange(2) :]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        known = [x for x in paths(data) if x[0] not in ("alternatives", "rejected", "parts")]
        parameters = [x for x in known if x[0] in PARAMETERS]
        *before, last = rng.choice(parameters if rng.random() < 0.7 and parameters else known)
        inside = data
        for key in before:
            inside = inside[key]
        change(inside, last, rng)
    return data


def change(inside, key, rng):
    """Change one value of a list or an object."""
    value, way = inside[key], rng.random()
    number = isinstance(value, int) and not isinstance(value, bool)
    if way < 0.04 and isinstance(inside, dict):
        inside[f"{key}{rng.choice('_x2')}"] = inside.pop(key) if rng.random() < 0.5 else value
    elif way < 0.08:
        del inside[key]
    elif way < 0.3:
        inside[key] = deepcopy(rng.choice(WRONG))
    elif isinstance(value, bool):
        inside[key] = not value
    elif number and way < 0.65:
        inside[key] = rng.choice(
            (value * 2, value // 2, value + 1, value - 1, value * 3, value ^ 8)
        )
    elif number:
        inside[key] = rng.choice(NUMBERS)
    elif isinstance(value, list) and value:
        rng.shuffle(value)
    else:
        inside[key] = deepcopy(rng.choice(WRONG))
