"""Checks of plans that come from outside: from JSON, a tuning file, or a caller who changed one.

All checks are here. The fields must have their types, with no others beside them. A call must be
able to have the problem. The backend must be able to run the configuration for these sizes on this
target. The size of the workspace is computed again.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import UnsupportedProblem
from ..problem.block_scales import BLOCKS, refuse_elements
from ..problem.dtypes import (
    CONVERTED,
    EXACT,
    FLOAT8,
    HOST_INPUTS,
    DType,
    may_multiply,
    output_dtypes,
)
from ..problem.epilogue import flaw
from ..problem.problem import BlockScales, Extents, MatrixType, Problem
from ..problem.scales import PER_TENSOR
from . import plan as plans
from . import strict_json as strictjson
from .backend import unsupported_by
from .config import Config
from .plan import VERSION, Plan
from .registry import backend_named
from .target import Target, check_target, named_target

__all__ = ["checked", "from_plain", "on_device", "typed"]

#: Names that version 1 had, and what they are now.
_NAMES_OF_VERSION_1 = {"strips": "remainder", "priced": "estimated_for"}
_TOLD = ("alternatives", "rejected")  # nothing is launched by these
_ADVICE = "take what unigemm.plan() returns, or Plan.to_json()"


def from_plain(data: Any) -> Plan:
    """Return the plan that `Plan.to_dict` gave, after checking it.

    Raises
    ------
    UnsupportedProblem
        The data is not that of a plan, or the plan cannot run.
    BackendUnavailable
        There is no such backend.
    """
    return checked(_built(_current(_plain(data))))


plans.reader = from_plain


def typed(plan: Any) -> Plan:
    """Return a plan after checking the types of its fields, but not their values.

    Alternatives are not checked; a plan that takes one will be. Its target has no calibration any
    more, which decides nothing of a plan that is made.

    Raises
    ------
    UnsupportedProblem
        The object is no plan, or a field has another type.
    """
    import msgspec

    if not isinstance(plan, Plan):
        raise UnsupportedProblem(f"plan= is a {type(plan).__name__}; {_ADVICE}")
    fields: dict[str, Any] = {name: getattr(plan, name, None) for name in Plan.__dataclass_fields__}
    others = {name: fields.pop(name) for name in _TOLD}
    if isinstance(plan.target, Target):
        fields["target"] = replace(plan.target, calibration=None)
    try:
        data = msgspec.to_builtins(fields, enc_hook=_number)
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError) as error:
        raise _no_plan(str(error)) from None
    config = data.pop("config")
    if not isinstance(config, dict):
        raise _no_plan("its configuration is none")
    if isinstance(data["target"], dict):
        data["target"].pop("calibration", None)
    return replace(_built(_plain({**config, **data})), **others)


def checked(plan: Plan) -> Plan:
    """Return a plan after checking that it can run, with its workspace computed again.

    Parameters
    ----------
    plan
        A plan whose fields have their types, see `typed`.

    Raises
    ------
    UnsupportedProblem
        The plan cannot run.
    BackendUnavailable
        There is no such backend.
    """
    check_target(plan.target)
    reason = _problem_flaw(plan.problem, on_host=not plan.target.is_gpu)
    for extents in (plan.extents, plan.estimated_for):
        reason = reason or (_extents_flaw(extents, plan.problem) if extents else None)
    if reason is not None:
        raise _no_plan(reason)
    product = plan.problem, plan.extents, plan.target
    backend = backend_named(plan.backend)
    reason = unsupported_by(backend, *product)
    if reason is not None:
        raise UnsupportedProblem(
            f"{plan.backend} does not take {plan.extents} on {plan.target}: {reason}"
        )
    reason = backend.unsupported_config_reason(*product, plan.config)
    if reason is not None:
        raise UnsupportedProblem(f"{plan.backend} cannot run {plan.config}: {reason}; plan again")
    return replace(plan, workspace_bytes=backend.workspace_bytes(*product, plan.config))


def on_device(plan: Plan, device: Target) -> Plan:
    """Return a plan with the device that it is to run on as its target.

    A plan for a smaller device uses no more SMs than that one has.
    """
    if not device.is_gpu:
        return replace(plan, target=device)
    count = min(device.sm_count, max(1, plan.target.sm_count))
    return replace(plan, target=replace(device, sm_count=count))


def _number(value: Any) -> float:
    """Return a number, perhaps one of NumPy, as one of Python."""
    return float(value) if isinstance(value, float) else operator.index(value)


def _no_plan(reason: str) -> UnsupportedProblem:
    return UnsupportedProblem(f"not a plan: {reason}; {_ADVICE}")


def _plain(data: Any) -> dict[str, Any]:
    """Return a mapping of plain data, refused if it holds what no plan does."""
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise _no_plan(f"an object with names is needed, not {type(data).__name__}")
    reason = strictjson.flaw(data)
    if reason is not None:
        raise _no_plan(reason)
    return data


def _current(data: dict[str, Any]) -> dict[str, Any]:
    """Return a plan's data in the names of today, and without its version."""
    version = data.get("version", 1)  # the first plans did not name theirs
    if type(version) is not int or version not in range(1, VERSION + 1):
        raise UnsupportedProblem(
            f"the plan has version {version!a:.20} and this unigemm reads 1 to {VERSION}; plan "
            "again with unigemm.plan(), or use the unigemm that wrote it"
        )
    data = {key: value for key, value in data.items() if key not in ("version", "assumed")}
    if version == 1:
        data = _renamed(data)
    return _with_scales(data) if version < VERSION else data


def _with_scales(data: dict[str, Any]) -> dict[str, Any]:
    """Return data of version 2 with the scales of version 3 for "scaled", which was true or not."""
    import msgspec

    problem = data.get("problem")
    for part in (problem, data.get("extents"), data.get("estimated_for")):
        for name in ("scales", "groups"):
            if isinstance(part, dict) and name in part:
                raise _no_plan(f"{name} is not known in version 2")
    if not isinstance(problem, dict) or "scaled" not in problem:
        return data
    scaled = problem["scaled"]
    if not isinstance(scaled, bool):
        raise _no_plan("scaled is neither true nor false")
    others = {name: value for name, value in problem.items() if name != "scaled"}
    scales = msgspec.to_builtins(PER_TENSOR) if scaled else None
    return {**data, "problem": {**others, "scales": scales}}


def _renamed(data: Any) -> Any:
    """Return data of version 1 with the names of version 2."""
    if isinstance(data, list | tuple):
        return [_renamed(each) for each in data]
    if not isinstance(data, dict):
        return data
    for name in _NAMES_OF_VERSION_1.values():
        if name in data:
            raise _no_plan(f"{name} is not known in version 1")
    return {_NAMES_OF_VERSION_1.get(key, key): _renamed(value) for key, value in data.items()}


def _built(data: dict[str, Any]) -> Plan:
    """Return a plan of plain data whose fields have their types, with no others beside them."""
    import msgspec

    parameters = Config.__dataclass_fields__
    nested = {key: value for key, value in data.items() if key not in parameters}
    if "config" in nested:
        raise _no_plan("the parameters of its configuration stand at the top")
    nested["config"] = {key: value for key, value in data.items() if key in parameters}
    target = nested.get("target")
    if isinstance(target, str):  # as the command line prints it
        nested["target"] = msgspec.to_builtins(named_target(target))
    elif isinstance(target, dict) and "calibration" in target:
        raise _no_plan("'target.calibration' is not known")
    try:
        plan = msgspec.convert(nested, Plan)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _no_plan(str(error)) from None
    extra = strictjson.unknown(nested, msgspec.to_builtins(plan))
    if extra is not None:
        raise _no_plan(f"{extra} is not known")
    return plan


def _problem_flaw(problem: Problem, *, on_host: bool) -> str | None:
    """Say why no call can have a problem; None if one can."""
    a, b, d = problem.a, problem.b, problem.d
    outputs = partial(output_dtypes, epilogue=problem.epilogue is not None)
    offered = () if a.dtype is DType.FLOAT8_E8M0FNU else outputs(a.dtype)
    kind, other = a.dtype, b.dtype
    if problem.converted is not None:
        reason = _conversion_flaw(problem, on_host=on_host)
        if reason is not None:
            return reason
        kind = other = problem.converted
        rounded = problem.epilogue is not None and kind not in EXACT
        offered = outputs(kind) if rounded else CONVERTED
    elif kind in HOST_INPUTS and not on_host:
        return f"{kind} is multiplied on the host only"
    if kind is DType.INT8 and on_host:
        offered = (*offered, DType.INT8)
    if not may_multiply(kind, other) or d.dtype not in offered:
        return f"{a.dtype} by {b.dtype} is not multiplied into {d.dtype}"
    for name, matrix, majors in (("A", a, "km"), ("B", b, "kn"), ("D", d, "n")):
        reason = _matrix_flaw(matrix, majors)
        if reason is not None:
            return f"{name} is {matrix}: {reason}"
    if problem.precision != "ieee" and kind is not DType.FLOAT32:
        return f"precision {problem.precision} is for float32, not for {a.dtype}"
    if problem.scaled and problem.blocks is None and a.dtype not in FLOAT8:
        return f"{a.dtype} has no scales"
    reason = _scales_flaw(problem) or (problem.groups.flaw if problem.groups else None)
    if reason is not None:
        return reason
    if problem.epilogue is not None:
        if kind in HOST_INPUTS and problem.converted is None:
            return f"products of {kind} have no epilogue"
        reason = flaw(problem.epilogue, exact=problem.converted in EXACT)
        if reason is not None:
            return reason
    return _blocks_flaw(problem.blocks, a.dtype, b.dtype)


def _conversion_flaw(problem: Problem, *, on_host: bool) -> str | None:
    """Say why operands are not converted so; None where they may be."""
    kinds = problem.a.dtype, problem.b.dtype, problem.converted
    if (on_host and problem.epilogue is None) or any(kind not in CONVERTED for kind in kinds):
        return f"{kinds[0]} and {kinds[1]} are not read as {kinds[2]}"
    if problem.scaled or problem.blocks is not None or problem.groups is not None:
        return "operands that are converted have neither scales nor groups"
    return None


def _matrix_flaw(matrix: MatrixType, majors: str) -> str | None:
    size = matrix.dtype.itemsize
    if matrix.major != "strided" and matrix.major not in majors:
        return f"what is contiguous is one of {', '.join(majors)}"
    if matrix.alignment not in (1, 2, 4, 8, 16, size) or matrix.alignment < size:
        return f"alignments are powers of two from {size} to 16"
    if matrix.major == "strided" and matrix.alignment != size:
        return f"strided elements are aligned to their {size} bytes"
    return None


def _scales_flaw(problem: Problem) -> str | None:
    scales = problem.scales or PER_TENSOR
    if problem.blocks is not None and scales != PER_TENSOR:
        return f"beside {problem.blocks} there is no other scale than one per tensor"
    return scales.flaw


def _blocks_flaw(blocks: BlockScales | None, *elements: DType) -> str | None:
    if blocks is not None and BLOCKS.get(blocks.dtype) != blocks.block:
        return f"scales of {blocks.dtype} are not for {blocks.block} elements each"
    for dtype in elements:
        try:
            refuse_elements(dtype, None if blocks is None else blocks.dtype)
        except UnsupportedProblem as error:
            return str(error)
    return None


def _extents_flaw(extents: Extents, problem: Problem) -> str | None:
    if min(extents.m, extents.n, extents.k, extents.batch, extents.groups) < 1:
        return f"{extents} multiplies nothing"
    if extents.groups != 1 and (problem.groups is None or problem.groups.stacked):
        return f"{extents} are groups, and it has {problem.groups or 'none'}"
    gate = problem.epilogue.gate if problem.epilogue else ""
    if (gate == "n" and extents.n % 2) or (gate == "m" and extents.m % 2):
        return f"{extents} has no pairs along {gate}"
    if extents.bytes_moved(problem) >= 2**63:
        return f"{extents} does not fit into 64 bits"
    return None
