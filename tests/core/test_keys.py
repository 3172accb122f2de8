"""Keys of kernels and of calls: every field is in them, or on a list of what is not, with why."""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

import unigemm
from unigemm.arrays.library import KNOWN
from unigemm.errors import UnsupportedProblem
from unigemm.planning.config import Config
from unigemm.planning.plan import Plan
from unigemm.planning.registry import backend_named, backend_names
from unigemm.planning.target import named_target
from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import Auxiliary, Epilogue, Step
from unigemm.problem.groups import Groups
from unigemm.problem.matrix import MatrixType
from unigemm.problem.problem import BlockScales, Extents, Problem
from unigemm.problem.scales import PER_TENSOR, OperandScales, Scales

# Keys of kernels.

BACKENDS = [name for name in backend_names() if backend_named(name).compiles]

#: What kernels do not differ by, under the path of the field: other values of it share one.
SHARED = {
    "extents": "sizes are arguments of a launch",
    "problem.quantized_rows": "another kernel rounds them",
    "problem.quantized_by": "another kernel rounds them",
    "problem.deterministic": "every kernel adds in one order; it decides what is offered",
    "config.raster": "the order of tiles is an argument",
    "config.split_k": "into how many parts K is cut is an argument, where it is cut at all",
    "config.remainder.raster": "the order of tiles is an argument",
    "config.remainder.split_k": "a remainder launch does not cut K",
    "config.remainder.remainder": "a remainder launch has none of its own",
    "target.name": "kernels are for an architecture, whatever the card",
    "target.sm_count": "how many CTAs run at once is an argument",
    "target.smem_per_block": "it decides what is offered",
    "target.l2_bytes": "it is shown to the user",
    "target.clock_mhz": "it decides what is picked",
    "target.dram_gbs": "it decides what is picked",
    "target.fp32_lanes": "it decides what is picked",
    "target.fp64_lanes": "it decides what is picked",
    "target.tensor_flops": "it decides what is picked",
    "workspace_bytes": "its address is an argument",
    "predicted_us": "of the estimate",
    "limiter": "of the estimate",
    "parts": "of the estimate",
    "measured_us": "of the measurement",
    "alternatives": "of the choice",
    "rejected": "of the choice",
    "estimated_for": "of the estimate",
}
#: The same, of one backend.
SHARED_BY = {
    "cute_simt": {"problem.precision": "it multiplies float32 as it is"},
    "cutile": {
        "problem.batch_invariant": "it adds up in the order of K; it decides what is offered",
        "problem.blocks": "it takes none",
        "target.smem_per_sm": "its compiler is told the architecture alone",
    },
}  # fmt: skip
#: Values that a type alone does not tell.
OTHERS: dict[str, tuple[Any, ...]] = {
    "backend": (),  # a name for each of these tests
    "target.arch": ("sm_80", "sm_100a"),
    "target.calibration": (),  # in no key, nor in what makes targets equal
    "config.remainder.remainder": ((Config((1, 1, 1)),),),
    "alternatives": ((None,),),
    "rejected": ((None,),),
}


def rich_plan(backend: str) -> Plan:
    """Return a plan that has something of everything, whether it can run or not."""
    matrix = MatrixType(DType.FLOAT32, "n", 16)
    epilogue = Epilogue(
        steps=(Step("sums"), Step("array", (0,)), Step("constant", (), (2.0).hex())),
        result=1,
        arrays=(Auxiliary(matrix, "mn"), Auxiliary(matrix, "n")),
        numbers=1,
        stores=(0,),
        stored=(Auxiliary(matrix, "mn"),),
        largest=1,
        totals=(1,),
        totalled=(Auxiliary(matrix, "n"),),
        gate="n",
        halves=True,
        in_place=0,
        quantized="n",
        scaled=(Auxiliary(MatrixType(DType.FLOAT32, "strided", 4), "mn"),),
    )
    problem = Problem(
        MatrixType(DType.FLOAT32, "k", 16),
        MatrixType(DType.FLOAT32, "k", 16),
        matrix,
        scales=PER_TENSOR,
        blocks=BlockScales(DType.FLOAT8_E8M0FNU, 32, "plain", "plain"),
        epilogue=epilogue,
        groups=Groups("m"),
    )
    config = Config(
        (64, 32, 16), split_k=2, remainder=(Config((1, 8, 1)), Config((2, 8, 1), swap_ab=True))
    )
    return Plan(backend, config, problem, Extents(5, 6, 7), named_target("sm_90a"))


def kernel_digest(plan: Plan) -> str:
    return backend_named(plan.backend).key(plan).digest


def changed(value: Any, hint: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the paths of all fields behind a value, each with the value changed there alone."""
    if path in OTHERS:
        yield from ((path, other) for other in OTHERS[path])
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = next(each for each in typing.get_args(hint) if each is not type(None))
        if value is None:
            value = {int: 0, Extents: Extents(1, 2, 3), DType: DType.FLOAT64}[inner]
            yield path, value
        else:
            yield path, None
        yield from changed(value, inner, path)
    elif typing.get_origin(hint) is typing.Literal:
        yield from ((path, other) for other in typing.get_args(hint) if other != value)
    elif typing.get_origin(hint) is tuple:
        inner, *rest = typing.get_args(hint)
        for i, each in enumerate(value):
            of = inner if ... in rest else (inner, *rest)[i]
            for where, other in changed(each, of, path):
                yield where, (*value[:i], other, *value[i + 1 :])
        if ... in rest:
            yield from ((path, other) for other in (value[:-1], value + value[-1:]) if value)
    elif is_dataclass(value):
        hints = typing.get_type_hints(type(value))
        for field in fields(value):
            under = f"{path}.{field.name}".lstrip(".")
            for where, other in changed(getattr(value, field.name), hints[field.name], under):
                yield where, replace(value, **{field.name: other})
    elif isinstance(value, enum.Enum):
        yield from ((path, other) for other in (DType.FLOAT16, DType.INT8) if other is not value)
    else:
        yield path, (not value) if isinstance(value, bool) else value + type(value)(1)


def cases(backend: str) -> list[tuple[str, Plan]]:
    return list(changed(rich_plan(backend), Plan, ""))


def shared_because(backend: str, path: str) -> str | None:
    reasons = SHARED | SHARED_BY.get(backend, {})
    return next((reasons[x] for x in reasons if f"{path}.".startswith(f"{x}.")), None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_field_of_a_plan_decides_its_kernel_or_is_known_not_to(backend):
    digest = kernel_digest(rich_plan(backend))
    same = {path for path, plan in cases(backend) if kernel_digest(plan) == digest}
    other = {path for path, plan in cases(backend) if kernel_digest(plan) != digest}
    assert [path for path in sorted(same) if shared_because(backend, path) is None] == []
    assert [path for path in sorted(other) if shared_because(backend, path) is not None] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_json_leaves_to_its_default_is_in_the_key_like_what_it_names(backend):
    import msgspec

    plan = rich_plan(backend)
    for name, value, short in (
        ("groups", Groups("m"), {"along": "m"}),
        ("scales", Scales(OperandScales("1x128")), {"a": {"granularity": "1x128"}}),
        ("epilogue", Epilogue((Step("sums"),), 0), {"steps": [{"op": "sums"}], "result": 0}),
    ):
        told = replace(plan, problem=replace(plan.problem, **{name: value}))
        left = replace(told.problem, **{name: msgspec.convert(short, type(value))})
        assert told.problem == left
        assert kernel_digest(replace(told, problem=left)) == kernel_digest(told)


def test_the_fields_are_all_there_are():
    """What the loop walks holds every field of every class that a kernel is specialised on."""
    walked = {path for path, _ in cases(BACKENDS[0])}
    for kind, path in {
        Config: "config", Problem: "problem", Epilogue: "problem.epilogue",
        Step: "problem.epilogue.steps", Auxiliary: "problem.epilogue.arrays",
        MatrixType: "problem.a", BlockScales: "problem.blocks", Scales: "problem.scales",
        OperandScales: "problem.scales.a", Groups: "problem.groups",
    }.items():  # fmt: skip
        for field in fields(kind):
            at = f"{path}.{field.name}"
            assert any(each == at or each.startswith(f"{at}.") for each in walked), at
    for listed in (*SHARED, *(path for some in SHARED_BY.values() for path in some)):
        assert any(f"{each}.".startswith(f"{listed}.") for each in walked), listed


# Keys of calls.

A = np.arange(48, dtype="f4").reshape(6, 8) % 5
B = np.arange(48, dtype="f4").reshape(8, 6) % 7
C = np.ones((6, 6), "f4")
ROW = np.ones(6, "f4")
GATED = {"activation": "swiglu", "gate_layout": "interleaved"}


def call_key(**arguments: Any) -> object:
    """Return what a call is known by, which it has left in the table of its library."""
    table = KNOWN[np.ndarray].table
    table.clear()
    given = {"a": A, "b": B, **arguments}
    unigemm.matmul(given.pop("a"), given.pop("b"), **given)
    (key,) = table
    return key


def moved(x: np.ndarray, by: int = 4) -> np.ndarray:
    """Return a copy whose address has another remainder by 16."""
    held = np.empty(x.nbytes + 64, np.uint8)
    at = -held.ctypes.data % 64 + by
    made = held[at : at + x.nbytes].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def strided(x: np.ndarray) -> np.ndarray:
    """Return a copy with other strides."""
    made = moved(np.empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype), 0)[..., ::2]
    made[...] = x
    return made


def same(x: np.ndarray) -> np.ndarray:
    return moved(x, 0)


#: By each argument of `matmul`: calls no two of which are of one kind.
KINDS: dict[str, list[Mapping[str, Any]]] = {
    "a": [{"a": x} for x in (same(A), moved(A), strided(A), same(A[:5]))],
    "b": [{"b": x} for x in (same(B), moved(B), strided(B), same(B[:, :5]))],
    "out": [{}, *({"out": x} for x in (same(C), moved(C), strided(C)))],
    "dtype": [{}, {"dtype": "float32"}, {"dtype": "float16"}],
    "precision": [{}, {"precision": "tf32"}, {"precision": "3xtf32"}],
    "deterministic": [{}, {"deterministic": True}],
    "backend": [{}, {"backend": "numpy"}],
    "plan": [{}, *({"plan": replace(unigemm.plan(A, B))} for _ in range(2))],
    "casting": [{}, {"casting": "safe"}, {"casting": "unsafe"}],
    "alpha": [{"bias": ROW}, *({"bias": ROW, "alpha": x} for x in (0, 2.0, same(ROW[:1])))],
    "beta": [{"c": C}, *({"c": C, "beta": x} for x in (0, 2.0, same(ROW[:1])))],
    "c": [{}, *({"c": x} for x in (same(C), moved(C), strided(C), same(ROW), C.astype("f8")))],
    "bias": [{}, *({"bias": x} for x in (same(ROW), moved(ROW), strided(ROW), same(C)))],
    "activation": [{}, {"activation": "relu"}, {"activation": "gelu"}],
    "preact_out": [
        {"activation": "relu"},
        *({"activation": "relu", "preact_out": x} for x in (same(C), moved(C), strided(C))),
    ],
    "preact": [{"activation": "drelu", "preact": x} for x in (same(C), moved(C), strided(C))],
    "gate_layout": [GATED, GATED | {"gate_layout": "halves"}, GATED | {"activation": "geglu"}],
    "scale_d": [{}, *({"scale_d": x} for x in (0, 2.0, same(ROW[:1])))],
    "amax_out": [{}, {"amax_out": same(ROW[:1])}],
    "bias_grad_out": [{}, *({"bias_grad_out": x} for x in (same(ROW), moved(ROW), ROW[:1]))],
    "quantize_out": [{}, {"quantize_out": "row"}, {"quantize_out": (1, 128)}],
    "epilogue": [{}, {"epilogue": lambda acc: acc * 2}, {"epilogue": lambda acc: acc * 3}],
    "epilogue_args": [
        {"epilogue": lambda acc, x: acc * x, "epilogue_args": {"x": x}}
        for x in (same(ROW), moved(ROW), strided(ROW), 2.0)
    ],
}  # fmt: skip
#: Arguments that are not in a key, or are elsewhere.
UNKEYED = {
    "batch_invariant": "the host refuses it: see the test below",
    "stream": "it is an argument of a launch",
    "axes": "such a call is made again of views",
    "scale_a": "see the test of float8",
    "scale_b": "see the test of float8",
}
#: What a call with an epilogue is known by as a plain one is.
WITH_EPILOGUE = ("a", "b", "out", "dtype", "precision", "deterministic", "backend", "casting")


def test_every_argument_of_a_call_is_in_its_key_or_known_not_to_be():
    assert {*KINDS, *UNKEYED} == {*inspect.signature(unigemm.matmul).parameters}
    assert KINDS.keys() & UNKEYED.keys() == set()


@pytest.mark.parametrize("name", KINDS)
def test_calls_that_differ_in_one_argument_are_of_two_kinds(name):
    keys = [call_key(**call) for call in KINDS[name]]
    assert len(set(keys)) == len(keys)
    assert keys == [call_key(**call) for call in KINDS[name]]


@pytest.mark.parametrize("name", WITH_EPILOGUE)
def test_calls_with_an_epilogue_that_differ_in_one_argument_are_of_two_kinds(name):
    keys = [call_key(activation="relu", **call) for call in KINDS[name]]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("more", [{}, {"activation": "relu"}], ids=["plain", "epilogue"])
def test_what_the_host_refuses_is_refused_of_a_known_call(more):
    call_key(**more)
    with pytest.raises(UnsupportedProblem, match="BLAS adds up in an order"):
        unigemm.matmul(A, B, batch_invariant=True, **more)


def test_calls_at_other_addresses_and_with_other_numbers_are_of_one_kind():
    for first, second in (
        ({}, {"a": same(A), "b": same(B)}),
        ({"out": same(C)}, {"out": same(C)}),
        ({"alpha": 2.0, "bias": same(ROW)}, {"alpha": 3.0, "bias": same(ROW)}),
        ({"c": same(C), "beta": 2.0, "out": same(C)}, {"c": same(C), "beta": 3.0, "out": same(C)}),
    ):
        given = {"a": same(A), "b": same(B)}
        assert call_key(**given | first) == call_key(**given | second)


def test_a_c_that_is_out_is_of_a_kind_of_its_own():
    c, out = same(C), same(C)
    assert call_key(c=c, out=out) != call_key(c=c, out=c)


def test_whether_float8_is_scaled_is_in_the_key():
    import ml_dtypes

    a, b = (same(x.astype(ml_dtypes.float8_e4m3fn)) for x in (A, B))
    for more in ({}, {"activation": "relu"}):
        plain = call_key(a=a, b=b, **more)
        one, other = (call_key(a=a, b=b, scale_a=x, **more) for x in (2.0, 3.0))
        assert plain != one == other
