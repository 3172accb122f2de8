"""The numbers of the cost model: `unigemm/planning/data`, read once.

`cost_model.json` has coefficients for each backend and kind of numbers, and where they come from;
`corrections.npz` the trees. A kind of which nothing was measured takes those of the likest;
architectures of which nothing was measured ("any") have coefficients but no correction.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib.resources import files
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from unigemm.planning.calibration import Calibration
from unigemm.planning.target import Target
from unigemm.problem.problem import Problem

from .correction import FEATURES, Trees
from .cost_model import Coefficients
from .offsets import Offsets, offsets_of

__all__ = ["DATA", "Model", "kind_of", "model_of", "name_of"]

DATA = "unigemm.planning.data"
#: Kinds whose numbers stand in for those that a kind lacks, the likest first.
_LIKE = {
    "float16": ("bfloat16",),
    "tf32": ("float32", "bfloat16"),
    "3xtf32": ("tf32", "float32", "bfloat16"),
    "float8_e4m3fn": ("bfloat16",),
    "float8_e5m2": ("float8_e4m3fn", "bfloat16"),
    "int8": ("float8_e4m3fn", "bfloat16"),
    "float4_e2m1fn_x2": ("float8_e4m3fn", "bfloat16"),
}


class Model(NamedTuple):
    """What the cost model has for one backend, kind of numbers and architecture."""

    coefficients: Coefficients
    correction: Trees | None
    offsets: Offsets | None = None


def kind_of(problem: Problem) -> str:
    """Return the kind of numbers: the inputs' type, or the precision of float32 ones."""
    return str(problem.a.dtype) if problem.precision == "ieee" else problem.precision


@lru_cache(maxsize=256)
def name_of(backend: str, kind: str, target: Target) -> str:
    """Return what the model is called in the data, perhaps that of the kind most like it."""
    for arch in (f"sm_{target.capability[0]}x", "any"):
        for like in (kind, *_LIKE.get(kind, ())):
            name = f"{backend} {arch} {like}"
            if name in _fitted():
                return name
    raise KeyError(f"no coefficients for {backend} and {kind}: {DATA} lacks them")


@lru_cache(maxsize=256)
def model_of(
    backend: str, kind: str, target: Target, calibration: Calibration | None = None
) -> Model:
    """Return the model of a backend for a kind of numbers, adjusted by a calibration."""
    name = name_of(backend, kind, target)
    values, correction = _fitted()[name], _correction(name)
    adjustment = None if calibration is None else calibration.models.get(name)
    if adjustment is None:
        return Model(Coefficients(**values), correction)
    factors = {each: adjustment.coefficients.get(each, 1.0) for each in values}
    adjusted = Coefficients(**{each: value * factors[each] for each, value in values.items()})
    return Model(adjusted, correction, offsets_of(adjustment))


@cache
def _fitted() -> dict[str, dict[str, float]]:
    data: dict[str, Any] = json.loads(files(DATA).joinpath("cost_model.json").read_text())
    found: dict[str, dict[str, float]] = data["coefficients"]
    return found


@cache
def _correction(name: str) -> Trees | None:
    arrays = _corrections()
    if f"{name}/feature" not in arrays:
        return None
    return Trees(*(arrays[f"{name}/{part}"] for part in Trees.__dataclass_fields__))


@cache
def _corrections() -> Any:
    arrays = np.load(BytesIO(files(DATA).joinpath("corrections.npz").read_bytes()))
    if tuple(arrays["features"].tolist()) != FEATURES:
        raise KeyError("corrections.npz was fitted to other features; run bench.fit again")
    return arrays
