"""`unigemm.autotuning`: the first call of each kind measures the model's best configurations."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ..arrays.library import WRITTEN, Library
from ..arrays.operands import HOST, Operand, one_device, stream_handle
from ..arrays.operands import Device as ArrayDevice
from ..errors import TuningWarning, UnsupportedProblem
from ..planning.plan import Plan
from ..planning.select import target_of
from ..planning.target import VIRTUAL
from ..planning.tuned_plans import check_writable
from ..problem.canonical import gated_shape, result_shape
from ..problem.dtypes import DType
from ..problem.grouped import Form
from ..problem.quantization import scales_shape, sharing_of_result
from ..runtime import bound
from ..runtime.epilogue_arguments import TracedEpilogue
from ..runtime.first_call import Measuring, measuring
from ..runtime.grouped import ENDS
from ..runtime.options import Options, with_named_backend
from ..runtime.plan_call import plan_call
from ..runtime.request import Request
from ..support.arguments import seconds, whole_number
from ..support.forks import Lock
from ..support.log import LOG
from .autotune import keep_fastest
from .call_arrays import Arrays
from .grouped import ends_of
from .measure import Device, device_through
from .operands import Operands, check_of, requested_of, result_type, returned

__all__ = ["autotuning", "tune"]

_LIBRARIES = ("torch", "cupy")
# One product is measured at a time; whoever waits for it finds the result.
_measuring = Lock()
_here = threading.local()  # whether this thread measures: what that multiplies is not measured
_tried: set[Any] = set()  # with what came of it
_ALIGNED = 16  # bytes that kernels tell addresses apart by


def autotuning(*, candidates: int = 8, budget: float = 0.05) -> AbstractContextManager[None]:
    """Measure the first call of each kind in a block, and use the fastest configuration.

    A call whose product, sizes and device nobody has tuned measures the cost model's best
    configurations on the device, with its own inputs and results of its own, before it multiplies.
    What is found is checked and kept as `autotune` does: later calls use it, in this process and in
    later ones. ``UNIGEMM_AUTOTUNE=1`` does the same for a whole process.

    Nothing is measured for arrays in host memory and of libraries other than PyTorch and CuPy; for
    `deterministic` and `batch_invariant` products, whose bits must not depend on a measurement; for
    calls with `plan=`, or with scales of 16 or 32 elements of K; and while a CUDA graph is captured
    or PyTorch traces. Such calls take the model's pick. A first call takes seconds if it has
    kernels to compile.

    Calls with an epilogue, and with scales, are measured as they are called, and grouped products
    with the offsets of the call: what is found serves others as well.
    `out`, `preact_out` and the like are written by the call alone, once, also where `c` is `out`.

    Parameters
    ----------
    candidates : int
        How many configurations to measure, best estimated times first.
    budget : float
        Device time to spend on measuring one product, in seconds.

    Returns
    -------
    context manager
        It is on for all threads of the process while its block runs. In nested blocks the innermost
        one decides.

    Raises
    ------
    UnsupportedProblem
        There is nothing to measure, or no time to measure it in.

    Examples
    --------
    >>> import unigemm
    >>> with unigemm.autotuning(budget=0.02):
    ...     pass  # the products of a first step
    """
    how = Measuring(whole_number(candidates, "candidates", 1), seconds(budget, "budget"))
    return measuring(how)


def tune(
    library: Library,
    request: Request,
    options: Options,
    traced: TracedEpilogue | None,
    how: Measuring,
) -> bool:
    """Measure for a call that is about to be bound, if it is one to measure for.

    Parameters
    ----------
    library, request, options, traced
        The call, with what was described of it; the epilogue is None for none.
    how
        How much to measure.

    Returns
    -------
    bool
        Whether a later call like it should come here again: this one came at a bad moment.
    """
    options = with_named_backend(options)
    if (
        library.name not in _LIBRARIES
        or any((options.plan, options.casting))
        or (options.blocks and options.granularity is None)
        or options.deterministic
        or options.batch_invariant
        or getattr(_here, "measures", False)
    ):
        return False
    try:
        operands = {name: library.operand(x, name) for name, x in request.arrays().items()}
        on = one_device({name: x.device for name, x in operands.items()})
        if (
            on == HOST
            or on.index in VIRTUAL
            or any(len(operands[name].shape) < 2 for name in ("a", "b", "out") if name in operands)
            or _is_refused(operands, traced)
        ):
            return False
        if _is_recorded(library, on.index, request.stream):
            return True
        with _measuring, library.context(on.index, None):
            _here.measures = True
            try:
                _tune(library, request, on, options, traced, how)
            finally:
                _here.measures = False
    except UnsupportedProblem as error:
        LOG.info("a call is not tuned: %s", error)  # the caller hears it from `bind`
    except Exception as error:  # whatever a library raises: the call itself goes on
        warnings.warn(f"a call is not tuned: {error}", TuningWarning, stacklevel=4)
    return False


def _is_refused(operands: dict[str, Operand], traced: TracedEpilogue | None) -> bool:
    """Whether a call will be refused, or may be: what it writes is read-only, or shared."""
    accumulates = traced is not None and traced.spares_out
    arrays = bound.Arrays.of(
        operands, in_place=accumulates and operands.get("c") == operands.get("out")
    )
    seen = [*operands.values()]
    return any(seen[i].readonly for i in arrays.written) or any(
        seen[i].may_share(seen[j]) for i, j, _, _ in arrays.apart
    )


def _is_recorded(library: Library, index: int, stream: Any) -> bool:
    """Whether the call would go into a CUDA graph, or somebody traces PyTorch."""
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)  # from PyTorch 2.1
    if getattr(compiler, "is_compiling", bool)():
        return True
    handle = None if stream is None else stream_handle(stream)
    if library.graph_memory is not None:
        at = library.current_stream(index) if handle is None else handle
        return library.graph_memory(1, at) is not None
    with library.context(index, handle):
        return bool(torch is not None and torch.cuda.is_current_stream_capturing())


def _tune(
    library: Library, request: Request, on: ArrayDevice, options: Options,
    traced: TracedEpilogue | None, how: Measuring,
) -> None:  # fmt: skip
    arrays, target = request.multiplied, target_of(on)
    if plan_call(arrays, options, target, keep=0, tuned=True).measured_us:
        return
    first = plan_call(arrays, options, target, keep=how.candidates - 1, tuned=False)
    product = first.problem, first.extents, first.target, options.backend
    if product in _tried:
        return
    _tried.add(product)
    check_writable()
    device = device_through(library.name, on.index)
    device.synchronize()  # the inputs may still be written, on any stream
    begin = time.monotonic()
    operands = _measured(library, request, on, first, traced, options.form, device)
    plan = keep_fastest(first, options.backend, device, how.budget, operands)
    device.synchronize()
    LOG.info(
        "tuned %s of %s in %.1f s: %s %s",
        first.extents,
        first.problem,
        time.monotonic() - begin,
        plan.backend,
        plan.config,
    )


def _measured(
    library: Library, request: Request, on: ArrayDevice, first: Plan, traced: TracedEpilogue | None,
    form: Form | None, device: Device,
) -> Operands:  # fmt: skip
    """Return the call's own inputs, with memory for results that the caller does not see."""
    a, b, out = request.a, request.b, next(iter(request.results), None)
    given, scaling = request.arguments(), request.scales(apart=False)
    ends, groups = None, dict[str, Any]()
    if form is not None and form.groups is not None:
        (of_device,) = (x for name in ENDS if (x := getattr(request, name)) is not None)
        ends = ends_of(request, form, device.values(of_device, None))
        groups = ends.options(of_device)
    if traced is not None:
        given |= {x: scaling.pop(x) for x in (*traced.names, *traced.numbers) if x in scaling}
    kind, sharing = result_type(first.problem), sharing_of_result(first.problem)
    zeroed: list[Any] = []

    def like(x: Any, name: str) -> Any:
        zeroed.append(_like(library, x, name, on))
        return zeroed[-1]

    if out is None:
        shape = result_shape(a.shape, b.shape) if form is None else form.shape
        if traced is not None and traced.epilogue.gate:
            shape = gated_shape(shape, b.shape)
        scratch = None
    else:
        scratch = like(out, "out")
    arguments = dict(given)
    for name in WRITTEN:
        if name in arguments:
            arguments[name] = like(arguments[name], name)
    more = [like(x, f"result {i}") for i, x in enumerate(request.results[1:], 1)]
    if not more and sharing is not None:
        more = [device.empty(scales_shape(shape, sharing), DType.FLOAT32)]
    elif not more:  # the library's own, of which nothing is promised
        more = [device.operand(shape, x, False, 1) for x in returned(traced)]
    in_place = traced is not None and traced.epilogue.in_place is not None
    if in_place:
        arguments["c"] = scratch

    def fresh() -> Arrays:
        for x in zeroed:
            library.zero(x)
        if in_place:
            device.put(out, scratch)
        result = device.empty(shape, kind) if scratch is None else scratch
        return Arrays(a, b, result, arguments, tuple(more), scaling, groups)

    sets = [fresh()]
    requested = requested_of(first, traced, library.operand(a, "a").dtype, given)
    inputs = replace(sets[0], arguments=given)  # `c` as the caller has it
    return Operands(sets, fresh, check_of(requested, device, inputs, ends))


def _like(library: Library, x: Any, name: str, on: ArrayDevice) -> Any:
    """Return an array like another one, with its strides and as aligned, in memory of its own."""
    seen = library.operand(x, name)
    low, high = seen.span
    memory = library.maker((high - low + 2 * _ALIGNED,), None, on)()
    shift = (seen.pointer + low - library.address(memory)) % _ALIGNED
    if library.name == "torch":
        flat = memory[shift:]
        flat = flat[: len(flat) // x.itemsize * x.itemsize].view(x.dtype)
        return flat.as_strided(x.shape, x.stride())
    return type(x)(x.shape, x.dtype, memory.data + (shift - low), x.strides)
