"""From a bound call to its result: scales, stream, `out`, workspace and launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arrays.library import Library
from ..arrays.operands import stream_handle
from ..errors import UnsupportedProblem
from .bind import Bound, bind, refuse_overlap, shared_input
from .host import launch_apart
from .options import Options
from .scale_arguments import Scales, read_scales

__all__ = [
    "addresses",
    "launch_with_workspace",
    "run",
    "run_foreign",
    "stream_for",
]


def addresses(library: Library, a: Any, b: Any, out: Any) -> tuple[int, int, int]:
    """Return the addresses of a call's arrays, 0 for an `out` that is None."""
    pointers = [library.operand(x, name).pointer for x, name in ((a, "a"), (b, "b"))]
    return (*pointers, 0 if out is None else library.operand(out, "out").pointer)  # type: ignore[return-value]


def run(
    library: Library,
    bound: Bound,
    a: Any,
    b: Any,
    out: Any,
    a_at: int,
    b_at: int,
    d_at: int,
    stream: Any,
    scales: Scales | None,
) -> Any:
    """Compute a bound call; this runs on every call, so it does no more than it must.

    Parameters
    ----------
    library
        The library of the arrays.
    bound
        From `bind`.
    a, b, out
        The arrays; `out` may be None.
    a_at, b_at, d_at
        Their addresses, 0 for an `out` that is None.
    stream
        As the caller gave it; None for the library's current stream.
    scales
        From `given_scales`; None for a call without scales.

    Returns
    -------
    array
        `out`, or a new array.

    Raises
    ------
    DeviceMismatch
        A scale lies on another device.
    OverlapError
        `out` shares memory with a scale, or on a GPU with an input.
    UnsupportedProblem
        A stream was given for arrays in host memory, or it is no stream.
    """
    device = bound.device
    handle = 0 if stream is None else stream_for(device, stream)
    if device >= 0:
        allocates = out is None or bound.workspace is not None or bound.launch is None
        if library.current_device() != device or (stream is not None and allocates):
            with library.context(device, None if stream is None else handle):
                return run(library, bound, a, b, out, a_at, b_at, d_at, None, scales)
        if stream is None:
            handle = library.current_stream(device)
    hold = library.hold
    if hold is not None:
        reach = bound.reach
        hold(a, "a", a_at, reach[0])
        hold(b, "b", b_at, reach[1])
        if out is not None:
            hold(out, "out", d_at, reach[2])
    scaling: tuple = ()
    if scales is not None:
        low, high = bound.d_span
        written = {} if out is None else {"out": (d_at + low, d_at + high)}
        scaling = read_scales(device, scales, written)
    launch = bound.launch
    if out is None:
        result = bound.make()
        d_at = library.address(result)
        if d_at & 15 and launch is not None:  # the kernel was chosen for an aligned result
            bound = bind(library, a, b, result, bound.options)
            launch = bound.launch
    else:
        result = out
        low, high = bound.d_span
        low, high = d_at + low, d_at + high
        if (low < a_at + bound.a_span[1] and a_at + bound.a_span[0] < high) or (
            low < b_at + bound.b_span[1] and b_at + bound.b_span[0] < high
        ):
            operands = {
                name: library.operand(x, name) for name, x in (("a", a), ("b", b), ("out", out))
            }
            if device >= 0:
                refuse_overlap(operands)
            elif launch is not None and shared_input(operands):
                library.claim(out)
                launch_apart(launch, a_at, b_at, operands["out"], *scaling)
                return out
        library.claim(out)
    if launch is None:
        if bound.fill:
            library.zero(result)
    elif bound.workspace is None:
        launch(a_at, b_at, d_at, 0, handle, *scaling)
    else:
        launch_with_workspace(library, bound, a_at, b_at, d_at, handle, scaling)
    return library.scalar(result) if bound.scalar and out is None else result


def launch_with_workspace(
    library: Library, bound: Bound, a_at: int, b_at: int, d_at: int, stream: int, scaling: tuple
) -> None:
    """Launch with a workspace, which in a graph capture belongs to the graph, not to a pool."""
    assert bound.launch is not None
    assert bound.workspace is not None
    assert bound.plan is not None
    inside = library.graph_memory and library.graph_memory(bound.plan.workspace_bytes, stream)
    if not inside:
        scratch = bound.workspace()
        bound.launch(a_at, b_at, d_at, library.address(scratch), stream, *scaling)
        return
    with inside as address:
        bound.launch(a_at, b_at, d_at, address, stream, *scaling)


def stream_for(device: int, stream: Any) -> int:
    """Return the address of the CUDA stream that a caller named."""
    if device < 0:
        raise UnsupportedProblem(
            "stream= is for arrays on a CUDA device and these are in host memory; leave it out"
        )
    return stream_handle(stream)


def run_foreign(
    matmul: Callable[..., Any], a: Any, b: Any, out: Any, stream: Any, options: Options
) -> Any:
    """Multiply arrays of a library that is reached through DLPack.

    Parameters
    ----------
    matmul
        `unigemm.matmul`, which then multiplies views of the arrays.
    a, b, out, stream
        As in `unigemm.matmul`.
    options
        The other options of the call.

    Raises
    ------
    UnsupportedProblem
        The call has scales or a casting rule, which such arrays do not take.
    """
    from ..arrays.dlpack_arrays import matmul_foreign

    if options.scaled:
        raise UnsupportedProblem(
            "scale_a and scale_b are for float8 arrays of NumPy, CuPy and PyTorch"
        )
    if options.casting is not None:
        raise UnsupportedProblem("casting= is for NumPy arrays in host memory; leave it out")
    asked = {
        "dtype": options.dtype,
        "precision": options.precision,
        "deterministic": options.deterministic,
        "batch_invariant": options.batch_invariant,
        "backend": options.backend,
        "plan": options.plan,
    }
    return matmul_foreign(matmul, a, b, out, stream, asked)
