"""Fit the cost model to the launches in bench/data: ``python -m bench.fit``.

Writes `unigemm/planning/data`: the coefficients of each backend and kind of numbers, with what they
were fitted to, and the learned corrections; then those of products with groups (``groups`` instead
of a kind), which rest on these coefficients. A kind is fitted anew only if it is named, if any are.
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
from typing import Any

import numpy as np

import unigemm
from bench.command import command
from bench.fitting import Measured, fit, fit_groups, measured, models
from bench.measured import files, launches
from unigemm.backends.common.coefficients import GROUPS
from unigemm.backends.common.correction import FEATURES, Trees
from unigemm.backends.common.cost_model import Coefficients

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
        if not args.only or f"{name}/{GROUPS}" in args.only:
            _fit_groups(name, text, trees)
    write(text, trees)


def _fit_groups(name: str, text: dict[str, Any], trees: dict[str, Trees]) -> None:
    """Fit the correction of a backend's products with groups, if there are any."""
    model, to = models()[name], []
    found = [x for x in launches(files(grouped=True)) if x.backend == name]
    for kinds in KINDS:
        own = [x for x in found if model.kind(x.problem) in kinds]
        if own:
            numbers = text["coefficients"][f"{name} sm_9x {kinds[0]}"]
            to.append((measured(model, kinds, own), Coefficients(**numbers)))
    if to:
        key = f"{name} sm_9x {GROUPS}"
        trees[key] = fit_groups(to, fits=_FITS)
        text["sources"][key] = _source(*(of for of, _ in to), grouped=True)


def _source(*every: Measured, grouped: bool = False) -> dict[str, object]:
    used = files(grouped=grouped)
    return {
        "launches": sum(len(of.us) for of in every),
        "products": sum(len(of.names) for of in every),
        "cards": sorted({target.name for of in every for *_, target in of.names}),
        "date": date.today().isoformat(),
        "scipy": version("scipy"),
        "numpy": version("numpy"),
        "data": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in used},
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
