"""The public function `grouped_matmul`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from .planning.plan import Plan
from .runtime.call import compute

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .activations import Activation
    from .arrays.types import (
        Array,
        ArrayT,
        DTypeLike,
        GateLayout,
        NumPyArray,
        NumPyLike,
        OneResultGroupedOptions,
        QuantizeOut,
        Rest,
        Stream,
        Tensor,
    )
    from .problem.problem import Precision

__all__ = ["grouped_matmul"]


# A tuple of one is taken as by NumPy's ufuncs, and gives its array: so some of these overlap.
@overload
def grouped_matmul(  # type: ignore[overload-overlap]
    a: NumPyArray,
    b: NumPyArray,
    offsets: NumPyLike | None = None,
    /,
    out: NumPyArray | tuple[NumPyArray] | None = None,
    **options: Unpack[OneResultGroupedOptions],
) -> NumPyArray: ...
@overload
def grouped_matmul(  # type: ignore[overload-overlap]
    a: Tensor[ArrayT],
    b: Tensor[ArrayT],
    offsets: Tensor[ArrayT] | None = None,
    /,
    out: Tensor[ArrayT] | tuple[Tensor[ArrayT]] | None = None,
    **options: Unpack[OneResultGroupedOptions],
) -> ArrayT: ...
@overload
def grouped_matmul(  # type: ignore[overload-overlap]
    a: ArrayT,
    b: ArrayT,
    offsets: ArrayT | None = None,
    /,
    out: ArrayT | tuple[ArrayT] | None = None,
    **options: Unpack[OneResultGroupedOptions],
) -> ArrayT: ...
@overload
def grouped_matmul(
    a: NumPyLike,
    b: NumPyLike,
    offsets: NumPyLike | None = None,
    /,
    *,
    out: tuple[NumPyArray, ...],
    **options: Unpack[OneResultGroupedOptions],
) -> tuple[NumPyArray, ...]: ...
@overload
def grouped_matmul(
    a: ArrayT,
    b: ArrayT,
    offsets: ArrayT | None = None,
    /,
    *,
    out: tuple[ArrayT, ...],
    **options: Unpack[OneResultGroupedOptions],
) -> tuple[ArrayT, ...]: ...
@overload
def grouped_matmul(
    a: NumPyLike,
    b: NumPyLike,
    offsets: NumPyLike | None = None,
    /,
    out: tuple[NumPyArray, NumPyArray] | None = None,
    *,
    quantize_out: QuantizeOut,
    **options: Unpack[OneResultGroupedOptions],
) -> tuple[NumPyArray, NumPyArray]: ...
@overload
def grouped_matmul(
    a: Tensor[ArrayT],
    b: Tensor[ArrayT],
    offsets: Tensor[ArrayT] | None = None,
    /,
    out: tuple[Tensor[ArrayT], Tensor[ArrayT]] | None = None,
    *,
    quantize_out: QuantizeOut,
    **options: Unpack[OneResultGroupedOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def grouped_matmul(
    a: ArrayT,
    b: ArrayT,
    offsets: ArrayT | None = None,
    /,
    out: tuple[ArrayT, ArrayT] | None = None,
    *,
    quantize_out: QuantizeOut,
    **options: Unpack[OneResultGroupedOptions],
) -> tuple[ArrayT, ArrayT]: ...
def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any = None,
    /,
    out: Any = None,
    *,
    dtype: DTypeLike | None = None,
    precision: Precision = "ieee",
    deterministic: bool = False,
    batch_invariant: bool = False,
    backend: str = "auto",
    plan: Plan | None = None,
    stream: Stream | None = None,
    rows: Array | Sequence[int] | None = None,
    rest: Rest = "zeros",
    scale_a: float | Array | None = None,
    scale_b: float | Array | None = None,
    quantize_out: QuantizeOut | None = None,
    alpha: complex | Array | None = None,
    beta: complex | Array | None = None,
    c: Array | None = None,
    bias: Array | float | None = None,
    activation: Activation | None = None,
    preact_out: Array | None = None,
    preact: Array | None = None,
    gate_layout: GateLayout | None = None,
    scale_d: float | Array | None = None,
    amax_out: Array | None = None,
    bias_grad_out: Array | None = None,
    epilogue: Callable[..., Any] | None = None,
    epilogue_args: Mapping[str, Any] | None = None,
) -> Any:
    """Multiply groups of rows, of columns or of K by matrices of their own, in one launch.

    ============  =========  =========  =============  ==================================
    what divides  a          b          result         of group g, which ends at e
    ============  =========  =========  =============  ==================================
    offsets       (T, K)     (G, K, N)  (T, N)         rows up to e: ``a_g @ b[g]``
    offsets       (G, M, K)  (K, T)     (M, T)         columns up to e: ``a[g] @ b_g``
    offsets       (M, T)     (T, N)     (G, M, N)      K up to e: ``a_g @ b_g``
    rows, or      (G, M, K)  (G, K, N)  (G, M, N)      ``a[g, :rows[g]] @ b[g]``, or all
    nothing                                            rows
    ============  =========  =========  =============  ==================================

    Parameters
    ----------
    a, b : array
        Matrices, or stacks of G matrices, of one library and device, and of a dtype that kernels
        multiply (see `matmul`). They may have any strides and any offset.
    offsets : array of int32 or int64, shape (G,), optional
        Where each group ends, which begins where the one before it ends; ``numpy.cumsum`` of the
        sizes. Groups may be empty, and begin anywhere. It is on the device of `a`, where the kernel
        reads it: nothing waits for the host, and a captured graph sees its new contents. In host
        memory a number that falls, or exceeds T, is refused. On a device it cannot be; nothing
        outside of the arrays is read or written then, and the result is not specified.
    out : array, optional
        As in `matmul`.
    rows : array of int32 or int64, shape (G,), optional
        How many rows of each matrix of two stacks are valid; the others are not read.
    rest : {"zeros", "untouched"}
        What becomes of rows (or columns) of the result that belong to no group: zeros, whatever the
        epilogue is, or left as they were, which in a new array is anything. The same holds
        for `preact_out` and other results. These rows count in neither `amax_out` nor
        `bias_grad_out`. K behind the last end is not read.
    dtype, precision, deterministic, backend, plan, stream
        As in `matmul`.
    quantize_out : (1, 128) or "row", optional
        As in `matmul`: a result of eight bits and its scales, shaped as those of D's rows, (T, ...)
        or (G, M, ...). Rows of no group are zeros with finite scales. Where columns are divided
        there are scales of rows alone, and with ``rest="untouched"`` those of (1, 128).
    batch_invariant : bool
        Refused: no backend promises it yet.
    scale_a, scale_b : float or array, optional
        For float8 inputs: as in `matmul`, or arrays of G float32, one for each group. Those of 128
        elements of K are shaped as their operands, (T, ceil(K/128)) with (G, ceil(K/128),
        ceil(N/128)) say; rows and columns that groups divide have one for each of these. Where
        they divide K, (M, ceil(T/128)) with (ceil(T/128), N), groups begin at multiples of 128.

    Returns
    -------
    array
        `out`, or a new array. With `quantize_out` a pair, the result and its scales.

    Other Parameters
    ----------------
    alpha, beta, c, activation, preact_out, preact, gate_layout, scale_d, amax_out, epilogue, \
epilogue_args
        As in `matmul`. Arrays broadcast to the result; where that has two dimensions, they may also
        have three, with groups first and 1 instead of T: (G, 1, N).
    bias : array, optional
        (N,), or (G, N) with a row for each group, in every form but that of groups of columns; or
        as the other arrays.
    bias_grad_out : array, optional
        Gets the sum of the result over rows: (N,) of all groups, or (G, N) of each.

    Raises
    ------
    UnigemmError
        As `matmul`. All errors come before anything is launched.

    Examples
    --------
    >>> import numpy as np, unigemm
    >>> tokens, experts = np.ones((5, 3)), np.arange(2.0).reshape(2, 1, 1) * np.ones((2, 3, 2))
    >>> unigemm.grouped_matmul(tokens, experts, np.array([1, 3]))
    array([[0., 0.],
           [3., 3.],
           [3., 3.],
           [0., 0.],
           [0., 0.]])
    """
    operands = (
        a, b, out, c, bias, alpha, beta, preact, preact_out, amax_out, bias_grad_out, scale_a,
        scale_b, offsets, rows, scale_d, epilogue, epilogue_args,
    )  # fmt: skip
    options = (
        dtype, precision, deterministic, batch_invariant, backend, None, activation, gate_layout,
        "grouped", rest, quantize_out,
    )  # fmt: skip
    return compute(operands, options, plan, stream)
