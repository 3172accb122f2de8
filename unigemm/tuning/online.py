"""`unigemm.autotuning`: the first call of each kind measures the model's best configurations."""

from __future__ import annotations

import sys
import time
import warnings
from contextlib import AbstractContextManager
from typing import Any

from .. import api
from ..arguments import seconds, whole_number
from ..arrays.library import Library
from ..arrays.operands import HOST, one_device, stream_handle
from ..arrays.operands import Device as Place
from ..errors import TuningWarning, UnsupportedProblem
from ..forks import Lock
from ..log import LOG
from ..planning.target import VIRTUAL
from ..planning.tuned_plans import check_writable
from ..problem.canonical import result_shape
from ..runtime.first_call import Measuring, measuring
from ..runtime.options import Options, with_named_backend
from .autotune import Operands, keep_fastest
from .measure import Device, Workload

__all__ = ["autotuning", "tune"]

_LIBRARIES = ("torch", "cupy")
# One product is measured at a time; whoever waits for it finds the result.
_measuring = Lock()
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
    calls with `plan=`, scales or an epilogue; and while a CUDA graph is captured or PyTorch traces.
    Such calls take the model's pick. A first call takes seconds if it has kernels to compile.

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
    library: Library, a: Any, b: Any, out: Any, options: Options, stream: Any, how: Measuring
) -> bool:
    """Measure for a call that is about to be bound, if it is one to measure for.

    Parameters
    ----------
    library, a, b, out, options, stream
        The call.
    how
        How much to measure.

    Returns
    -------
    bool
        Whether a later call like it should be asked again: this one came at a bad moment.
    """
    options = with_named_backend(options)
    if (
        library.name not in _LIBRARIES
        or any((options.plan, options.scaled, options.blocks))
        or options.deterministic
        or options.batch_invariant
    ):
        return False
    try:
        named = {"a": a, "b": b} if out is None else {"a": a, "b": b, "out": out}
        operands = {name: library.operand(x, name) for name, x in named.items()}
        place = one_device({name: x.device for name, x in operands.items()})
        if (
            place == HOST
            or place.index in VIRTUAL
            or any(len(x.shape) < 2 for x in operands.values())
        ):
            return False
        if _is_recorded(library, place.index, stream):
            return True
        with _measuring, library.context(place.index, None):
            _tune(library, (a, b, out), place, options, how)
    except UnsupportedProblem as error:
        LOG.info("a call is not tuned: %s", error)  # the caller hears it from `bind`
    except Exception as error:  # whatever a library raises: the call itself goes on
        warnings.warn(f"a call is not tuned: {error}", TuningWarning, stacklevel=4)
    return False


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
    library: Library, arrays: tuple[Any, Any, Any], place: Place, options: Options, how: Measuring
) -> None:
    a, b, out = arrays
    asked: dict[str, Any] = {"dtype": options.dtype, "precision": options.precision}
    asked["backend"] = options.backend
    if api.plan(a, b, out, keep=0, **asked).measured_us:
        return
    first = api.plan(a, b, out, keep=how.candidates - 1, tuned=False, **asked)
    product = first.problem, first.extents, first.target, options.backend
    if product in _tried:
        return
    _tried.add(product)
    check_writable()
    problem, e = first.problem, first.extents
    work = Workload(
        e.m,
        e.n,
        e.k,
        problem.a.dtype,
        batch=e.batch,
        precision=problem.precision,
        into=problem.d.dtype,
    )
    device = _device(library, place.index)
    device.synchronize()  # the inputs may still be written, on any stream
    if out is None:
        shape = result_shape(a.shape, b.shape)

        def poison() -> Any:
            return device.empty(shape, work.out_dtype)
    else:
        like = _like(library, out, place)

        def poison() -> Any:
            library.zero(like)
            return like

    begin = time.monotonic()
    plan = keep_fastest(
        first,
        options.backend,
        work,
        device,
        how.budget,
        operands=Operands([(a, b, poison())], poison),
    )
    device.synchronize()
    LOG.info(
        "tuned %s of %s in %.1f s: %s %s",
        e,
        problem,
        time.monotonic() - begin,
        plan.backend,
        plan.config,
    )


def _like(library: Library, out: Any, place: Place) -> Any:
    """Return an array like another one, with its strides and as aligned, in memory of its own."""
    seen = library.operand(out, "out")
    low, high = seen.span
    memory = library.maker((high - low + 2 * _ALIGNED,), None, place)()
    shift = (seen.pointer + low - library.address(memory)) % _ALIGNED
    if library.name == "torch":
        flat = memory[shift:]
        flat = flat[: len(flat) // out.itemsize * out.itemsize].view(out.dtype)
        return flat.as_strided(out.shape, out.stride())
    return type(out)(out.shape, out.dtype, memory.data + (shift - low), out.strides)


def _device(library: Library, index: int) -> Device:
    if library.name == "torch":
        from .measure_torch import TorchDevice

        return TorchDevice(index)
    from .measure_cupy import CupyDevice

    return CupyDevice(index)
