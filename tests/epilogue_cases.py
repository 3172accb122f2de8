"""Products with epilogues for the tests of kernels: what is tried, and how results are compared.

The reference is the NumPy backend, which tests/core/test_epilogue_calls.py holds against formulas.
"""

from __future__ import annotations

import random
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import call_path
import numpy as np
from reference import NUMPY, Lib, Strided, strided_view
from sampling import SEED, sampled

sys.path.insert(0, str(Path(__file__).parents[1]))

import unigemm
from bench.host import HostDevice
from unigemm.arrays.libraries import view
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.tuning.expected import bounds_of
from unigemm.tuning.operands import requested_of

__all__ = [
    "EPILOGUES",
    "WithEpilogue",
    "check_epilogue",
    "check_planned",
    "drawn_cases",
    "plan_of",
    "seen_by",
    "ways_of",
]

GUARD = 3  # elements around each array that is written, and a pattern in them
_PATTERN = 77


def _clamped(acc: Any, v: Any, s: Any) -> Any:
    return np.where(acc > v, np.minimum(acc, np.maximum(s, v)), v), acc - v  # without a jump


#: Arguments of `unigemm.matmul`; texts stand for arrays (see `WithEpilogue.array`).
EPILOGUES: dict[str, dict[str, Any]] = {
    "bias, gelu_tanh": {"bias": "row", "activation": "gelu_tanh"},
    "column bias, gelu": {"bias": "column", "activation": "gelu"},
    "all": {
        "alpha": 2.0, "beta": 0.5, "c": "full", "bias": "row", "activation": "silu",
        "preact_out": "written", "amax_out": "largest", "scale_d": 0.5,
    },
    "in place": {"c": "out"},
    "C by columns": {"c": "turned", "beta": "scalar", "alpha": "scalar"},
    "C not read": {"c": "poison", "beta": 0.0, "bias": "row", "activation": "relu"},
    "gradient": {"activation": "dgelu_tanh", "preact": "full"},
    "column sums": {"activation": "dsilu", "preact": "full", "bias_grad_out": "row sums"},
    "row sums": {
        "bias": "row", "activation": "relu", "scale_d": 0.5, "bias_grad_out": "column sums",
    },
    "swiglu": {"activation": "swiglu", "gate_layout": "interleaved", "bias": "row"},
    "halves": {
        "activation": "swiglu", "gate_layout": "halves", "bias": "row", "preact_out": "written",
    },
    "scalars of a gate": {
        "activation": "geglu", "gate_layout": "interleaved", "bias": "row", "alpha": "scalar",
        "scale_d": "scalar", "amax_out": "largest",
    },
    "scalars of halves": {
        "activation": "swiglu", "gate_layout": "halves", "c": "full", "beta": "scalar",
        "scale_d": "scalar",
    },
    "no product": {"alpha": 0.0, "c": "turned", "beta": 0.5, "activation": "gelu"},
    "no product in a gate": {
        "alpha": 0.0, "activation": "swiglu", "gate_layout": "interleaved", "scale_d": "scalar",
        "amax_out": "largest",
    },
    "tanh": {"activation": "tanh", "bias": "special"},
    "function": {"epilogue": _clamped, "epilogue_args": {"v": "column", "s": 3.0}},
}  # fmt: skip


@dataclass(frozen=True)
class WithEpilogue:
    """One product with an epilogue.

    Attributes
    ----------
    sizes
        M, N, K.
    dtype
        Of the inputs.
    layout
        "n" or "t" of A and of B.
    name
        Of `EPILOGUES`.
    stack
        Products of the stack.
    columns
        D is column-major.
    seed
        Of the numbers.
    options
        Further arguments.
    """

    sizes: tuple[int, int, int]
    dtype: DType
    layout: str
    name: str
    stack: int = 1
    columns: bool = False
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the accumulators."""
        m, n, _ = self.sizes
        return (self.stack, m, n) if self.stack > 1 else (m, n)

    @property
    def requested(self) -> dict[str, Any]:
        """Return the arguments of the epilogue."""
        return EPILOGUES[self.name]

    def guard(self, dtype: Any) -> int:
        """Return how many elements lie around a result."""
        return GUARD

    def operand(self, rng: np.random.Generator, rows: int, columns: int, turned: bool) -> Any:
        """Return numbers whose products are small, so that activations bend."""
        shape = (columns, rows) if turned else (rows, columns)
        shape = (self.stack, *shape) if self.stack > 1 else shape
        values = rng.integers(-2, 3, shape) if self.dtype is DType.INT8 else rng.normal(0, 1, shape)
        scale = 1 if self.dtype is DType.INT8 else self.sizes[2] ** -0.25
        found = (values * scale).astype(numpy_dtype(self.dtype))
        return found.swapaxes(-1, -2) if turned else found

    def array(self, rng: np.random.Generator, kind: str, out: Any) -> Any:
        """Return an array of a kind, in host memory."""
        *stack, m, n = self.shape
        dtype = np.float32 if self.dtype is DType.INT8 else numpy_dtype(self.dtype)
        wide = np.float64 if self.dtype is DType.FLOAT64 else np.float32
        if kind == "row":
            return rng.normal(0, 1, n).astype(dtype)
        if kind == "special":
            values = rng.normal(0, 1, n)
            values[: min(4, n)] = [np.nan, np.inf, -np.inf, -0.0][: min(4, n)]
            return values.astype(dtype)
        if kind == "column":
            return rng.normal(0, 1, (m, 1)).astype(wide)
        if kind == "full":
            return rng.normal(0, 1, self.shape).astype(dtype)
        if kind == "turned":
            return rng.normal(0, 1, (*stack, n, m)).astype(dtype).swapaxes(-1, -2)
        if kind == "poison":
            return np.full(self.shape, np.nan, dtype)
        if kind == "scalar":
            return np.asarray([rng.uniform(0.5, 2)], np.float32)
        if kind == "largest":
            return np.full((1,), np.nan, np.float32)
        if kind == "written":
            return _guarded(self.shape, wide, False)
        if kind in ("row sums", "column sums"):
            return _guarded((n,) if kind == "row sums" else (m, 1), wide, False)
        assert kind == "out"
        return out


def _guarded(shape: tuple[int, ...], dtype: Any, columns: bool, guard: int = GUARD) -> Any:
    """Return a view full of NaN (or the least integers) inside of a pattern."""
    order = [*range(len(shape))]
    if columns:
        order[-2:] = order[:-3:-1]
    whole = np.full([shape[i] + 2 * guard for i in order], _PATTERN, dtype)
    inner = whole.transpose(order)[tuple(slice(guard, -guard) for _ in shape)]
    inner[...] = -128 if np.dtype(dtype).kind == "i" else np.nan
    return inner


def _placed(x: np.ndarray) -> tuple[np.ndarray, Strided]:
    """Return the memory that an array is a view of, and where it lies there."""
    root = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    flat = root.ravel(order="K")
    steps = tuple(step // x.itemsize for step in x.strides)
    offset = (x.ctypes.data - root.ctypes.data) // x.itemsize
    return flat, Strided(x.shape, steps, offset, flat.size)


class Moved:
    """Arrays of the host on a device, by what each was there: views of the same memory stay so."""

    def __init__(self, lib: Lib) -> None:
        self.lib = lib
        self.known: dict[int, tuple[Any, Any, Any, Strided]] = {}

    def put(self, x: np.ndarray) -> Any:
        """Return the device's array of one of the host, in memory that lies alike."""
        if id(x) not in self.known:
            flat, where = _placed(x)
            memory = self.lib.to(flat)
            self.known[id(x)] = (self.lib.view(memory, where), memory, x, where)
        return self.known[id(x)][0]

    def get(self, x: np.ndarray) -> np.ndarray:
        """Return what the device's array of one holds now."""
        return self.lib.back(self.known[id(x)][0])

    def is_intact(self, x: np.ndarray) -> bool:
        """Whether nothing has been written around a guarded view."""
        _, memory, _, where = self.known[id(x)]
        outside = np.ones(where.length, bool)
        strided_view(outside, where)[...] = False
        left = self.lib.back(memory)[outside]
        return bool((left.astype(np.float64) == _PATTERN).all())


def drawn_cases(
    dtypes: list[DType], largest: int, deep: int, most: int, name: str
) -> list[WithEpilogue]:  # fmt: skip
    """Draw products, the same each time for one name; every third has a K so long that it is split.

    They are known before the first is computed, so that their kernels can be compiled side by side.
    (For one that fails Hypothesis would compile a kernel for each smaller one that it tries.)
    """
    draw = random.Random(f"{SEED} {name}")

    def one() -> WithEpilogue:
        epilogue = draw.choice(sorted(EPILOGUES))
        return WithEpilogue(
            sizes=(
                draw.randint(1, largest),
                2 * draw.randint(1, largest // 2),
                draw.choice([draw.randint(1, largest), deep, draw.choice([64, 128])]),
            ),
            dtype=draw.choice(dtypes),
            layout=draw.choice(["nn", "nt", "tn", "tt"]),
            name=epilogue,
            stack=1 if epilogue == "in place" else draw.choice([1, 1, 1, 3]),
            columns=draw.random() < 0.5,
            seed=draw.randint(0, 1000),
        )

    found = [one() for _ in range(10 * most)]
    factors = [
        {
            "layout": x.layout, "name": (x.name, x.dtype), "stack": x.stack, "columns": x.columns,
            "deep": x.sizes[2] == deep, "few rows": x.sizes[0] < 64,
        }
        for x in found
    ]  # fmt: skip
    return [found[i] for i in sampled(factors, most, name)]


def _arrays_of(case: WithEpilogue) -> tuple[Any, Any, list[Any], dict[str, Any]]:
    """Return A, B, results and the epilogue's arguments, in host memory."""
    rng = np.random.default_rng(case.seed)
    (m, n, k), (a_order, b_order) = case.sizes, case.layout
    a = case.operand(rng, m, k, a_order == "t")
    b = case.operand(rng, k, n, b_order == "t")
    given = case.requested
    shape = (*case.shape[:-1], n // 2) if "gate_layout" in given else case.shape
    narrow = case.dtype.itemsize == 1
    dtype = np.dtype(np.float32) if narrow else numpy_dtype(case.dtype)
    out = _guarded(shape, dtype, case.columns, case.guard(dtype))
    if case.name == "in place":
        out[...] = rng.normal(0, 1, shape)
    outs = [out] if "epilogue" not in given else [out, _guarded(shape, dtype, False)]

    def made(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: made(each, key) for key, each in value.items()}
        kind = isinstance(value, str) and name not in ("activation", "gate_layout")
        return case.array(rng, value, out) if kind else value

    return a, b, outs, {name: made(value, name) for name, value in given.items()}


def plan_of(case: WithEpilogue, backend: str, target: Any = None, **options: Any) -> Any:
    """Return the plan by which `check_epilogue` computes a product: where its arrays will lie."""
    a, b, outs, given = _arrays_of(case)
    known: dict[int, Any] = {}

    def seen(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: seen(each) for name, each in x.items()}
        if not isinstance(x, np.ndarray):
            return x
        where = _placed(x)[1]
        begin = where.offset * x.itemsize
        spec = unigemm.ArraySpec(
            x.shape, x.dtype, strides=where.strides, alignment=min(16, begin & -begin or 16)
        )
        return known.setdefault(id(x), spec)

    return unigemm.plan(
        seen(a), seen(b), seen(outs[0]), backend=backend, target=target, **seen(given), **options
    )


def check_epilogue(case: WithEpilogue, lib: Lib, on: Any = None, **options: Any) -> Any:
    """Compute a product on a device and on the host, and compare all that is written.

    `on` is the context in which the library's arrays are on the device; what it gives is returned.
    """
    a, b, outs, given = _arrays_of(case)
    results = {f"out {i}": x for i, x in enumerate(outs)}
    results |= {name: x for name, x in given.items() if name.endswith("_out")}
    found = []
    here = nullcontext() if on is None else on
    for each, extra, where in ((NUMPY, {"backend": "numpy"}, nullcontext()), (lib, options, here)):
        moved = Moved(each)
        target = tuple(moved.put(x) for x in outs)
        arguments = {name: _on(moved, x) for name, x in given.items()}
        x, y = moved.put(a), moved.put(b)
        arguments |= {key: x for key, x in case.options.items() if key in ("scale_a", "scale_b")}
        with where as device:
            unigemm.matmul(x, y, out=target if len(target) > 1 else target[0], **arguments, **extra)
        found.append({name: moved.get(x) for name, x in results.items()})
        guarded = [x for x in results.values() if x.base is not None]
        assert all(moved.is_intact(x) for x in guarded), "an element outside was written"
    wanted, got = found
    for name in results:
        _compare(got[name], wanted[name], case, name)
    return device


def seen_by(name: str, m: int, n: int, dtype: Any, out: Any) -> dict[str, Any]:
    """Return the arguments of an epilogue with what stands for its arrays in a plan."""
    spec, wide = unigemm.ArraySpec, "float64" if str(dtype) == "float64" else "float32"
    full, row, column = spec((m, n), dtype), spec((n,), dtype), spec((m, 1), wide)
    kinds = {
        "row": row, "special": row, "full": full, "poison": full, "out": out, "column": column,
        "written": spec((m, n), wide), "largest": spec((1,), "float32"),
        "row sums": spec((n,), wide), "column sums": spec((m, 1), wide),
        "scalar": spec((1,), "float32"), "turned": spec((m, n), dtype, order="F"),
    }  # fmt: skip

    def seen(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: seen(each) for key, each in value.items()}
        return kinds.get(value, value) if isinstance(value, str) else value

    return {key: seen(value) for key, value in EPILOGUES[name].items()}


def ways_of(case: WithEpilogue, backend: str, target: Any, **options: Any) -> list[Any]:
    """Return a plan for each way in which a backend computes a product of compact arrays."""
    (m, n, k), spec = case.sizes, unigemm.ArraySpec
    given = seen_by(case.name, m, n, case.dtype, spec((m, n), case.dtype))
    a = spec((m, k), case.dtype)
    b = spec((k, n), case.dtype, order="F" if case.layout[1] == "t" else "C")
    plan = unigemm.plan(a, b, backend=backend, target=target, keep=400, **given, **options)
    found: dict[Any, Any] = {}
    for each in (plan.as_alternative, *plan.alternatives):
        config = each.config
        way = (
            config.schedule, config.split_k > 1, config.cluster_k > 1, config.slice_k > 1,
            config.swap_ab, bool(config.remainder), config.tile[0] < 64, config.repacked,
            config.tile[0] & (config.tile[0] - 1) == 0,
        )  # fmt: skip
        found.setdefault(way, each)
    return [
        replace(plan, config=x.config, workspace_bytes=x.workspace_bytes, alternatives=())
        for x in found.values()
    ]


def check_planned(case: WithEpilogue, plan: Any, lib: Lib, on: Any = None) -> None:
    """Compute a product of compact arrays by a plan of `ways_of`, and compare with the host's.

    The results also lie in the bounds by which tuning judges a kernel.
    """
    rng = np.random.default_rng(case.seed)
    m, n, k = case.sizes
    x, y = case.operand(rng, m, k, False), case.operand(rng, k, n, case.layout[1] == "t")
    given = {
        name: case.array(rng, value, None)
        if isinstance(value, str) and name not in ("activation", "gate_layout")
        else value
        for name, value in EPILOGUES[case.name].items()
    }
    if "epilogue_args" in given:
        args = given["epilogue_args"].items()
        given["epilogue_args"] = {
            name: case.array(rng, v, None) if isinstance(v, str) else v for name, v in args
        }
    given |= {
        name: np.full(v.shape, np.nan, v.dtype) for name, v in given.items() if "_out" in name
    }
    found = []
    here = nullcontext() if on is None else on
    dtype = plan.problem.d.dtype.value
    for each, extra, where in (
        (NUMPY, {"backend": "numpy", "dtype": dtype}, nullcontext()),
        (lib, {"plan": plan, "precision": plan.problem.precision}, here),
    ):
        moved = Moved(each)
        arguments = {name: _on(moved, v) for name, v in given.items()}
        with where:
            results = unigemm.matmul(moved.put(x), moved.put(y), **arguments, **extra)
        results = results if isinstance(results, tuple) else (results,)
        written = [moved.get(v) for name, v in given.items() if "_out" in name]
        found.append([*map(each.back, results), *written])
    for i, (got, wanted) in enumerate(zip(found[1], found[0], strict=True)):
        _compare(got, wanted, case, f"{plan.config}, result {i}")
    ratio = _of_its_bounds(plan, x, y, given, found[1])
    assert ratio <= 1, f"{plan.config}: {ratio:.3g} times its bounds"


def _of_its_bounds(plan: Any, x: Any, y: Any, given: dict[str, Any], got: list[Any]) -> float:
    arguments = call_path.epilogue_arguments(**given)

    def see(value: Any, name: str) -> Any:
        return view(value, name).layout

    a, dtype = see(x, "a"), plan.problem.d.dtype
    traced = call_path.trace(arguments, a, see(y, "b"), see, dtype, on_host=True)
    requested = requested_of(plan, traced, a.dtype, arguments)
    written = [name for name in given if "_out" in name]
    names = ["out", *(f"result {i + 1}" for i in range(traced.returned)), *written]
    device = HostDevice()
    bounds = bounds_of(requested, device, x, y, arguments, [])
    return bounds.ratio(device, dict(zip(names, got, strict=True)))


def _on(moved: Moved, x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _on(moved, each) for name, each in x.items()}
    return moved.put(x) if isinstance(x, np.ndarray) else x


def _compare(got: Any, wanted: Any, case: WithEpilogue, name: str) -> None:
    """Hold results against the host's, which adds up in another order."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted), err_msg=name)
    units = {DType.BFLOAT16: 2.0**-7, DType.FLOAT16: 2.0**-10, DType.FLOAT64: 1e-12}
    slack = units.get(case.dtype, 2e-5 if case.dtype is DType.FLOAT32 else 2.0**-6)
    if case.options.get("precision") == "tf32":
        slack = 2.0**-7
    atol = 4 * slack * case.sizes[2] ** 0.25
    np.testing.assert_allclose(got, wanted, rtol=2 * slack, atol=atol, err_msg=name)
