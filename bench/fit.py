"""Fit the cost model to the launches in bench/data: ``python -m bench.fit``.

Writes `unigemm/planning/data`: the coefficients of each backend and kind of numbers, with what they
were fitted to, and the learned corrections. A kind is fitted anew only if it is named, if any are.
Needs no GPU, but SciPy (the `fit` extra).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np

import unigemm
from bench.command import command
from bench.fitting import Measured, fit, measured, models
from bench.measured import files, launches
from unigemm.backends.common.correction import FEATURES, Trees

__all__ = ["HERE", "KINDS", "alike"]

HERE = Path(unigemm.__file__).parent / "planning" / "data"
_FITS = 4  # of which the correction is the mean
_LEAST = 50  # launches of a kind of numbers, of which fewer say too little
#: Kinds of numbers that are fitted as one.
KINDS = (
    ("bfloat16", "float16"),
    ("float32",),
    ("tf32",),
    ("float64",),
    ("float8_e4m3fn", "float8_e5m2", "int8"),
    ("3xtf32",),
)


def alike(kind: str) -> tuple[str, ...]:
    """Return the kinds of numbers that are fitted together with one."""
    return next((kinds for kinds in KINDS if kind in kinds), (kind,))


def main() -> None:
    """Fit, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("only", nargs="*", help="such as cute_wgmma/bfloat16; else all")
    args = parser.parse_args()
    found = launches()
    text = json.loads((HERE / "cost_model.json").read_text())
    trees = _trees(HERE / "corrections.npz")
    for name, model in models().items():
        for kinds in KINDS:
            if args.only and f"{name}/{kinds[0]}" not in args.only:
                continue
            own = [x for x in found if x.backend == name and model.kind(x.problem) in kinds]
            if len(own) < _LEAST:
                continue
            begin = time.monotonic()
            of = measured(model, kinds, own)
            fitted = fit(of, fits=_FITS)
            key = f"{name} sm_9x {kinds[0]}"
            text["coefficients"][key] = asdict(fitted.coefficients)
            text["sources"][key] = _source(of)
            trees[key] = fitted.correction
            print(f"{key}: {len(of.us)} launches, {time.monotonic() - begin:.0f} s", flush=True)
    write(text, trees)


def _source(of: Measured) -> dict[str, object]:
    return {
        "launches": len(of.us),
        "products": len(of.names),
        "cards": sorted({target.name for *_, target in of.names}),
        "date": date.today().isoformat(),
        "scipy": version("scipy"),
        "numpy": version("numpy"),
        "data": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files()},
    }


def _trees(path: Path) -> dict[str, Trees]:
    if not path.exists():
        return {}
    with np.load(path) as arrays:
        if tuple(arrays["features"].tolist()) != FEATURES:
            return {}
        return {
            name: Trees(*(arrays[f"{name}/{part}"] for part in Trees.__dataclass_fields__))
            for name in arrays["names"].tolist()
        }


def write(text: dict[str, object], trees: dict[str, Trees]) -> None:
    """Write the two files."""
    (HERE / "cost_model.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    arrays = {
        f"{name}/{part}": getattr(each, part)
        for name, each in trees.items()
        for part in Trees.__dataclass_fields__
    }
    np.savez_compressed(
        HERE / "corrections.npz", names=np.array(list(trees)), features=np.array(FEATURES), **arrays
    )


if __name__ == "__main__":
    command(main)
