"""The public functions `matmul`, `plan` and `compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

from .arrays.array_spec import ArraySpec
from .planning.plan import Plan
from .planning.planner import KEPT
from .planning.target import Target
from .planning.validation import checked, typed
from .runtime.call import compute
from .runtime.compile_many import CompiledKernel
from .runtime.loader import kernel_entry
from .runtime.plan_call import plan_request
from .runtime.request import Request
from .support.arguments import truth, whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .activations import Activation
    from .arrays.types import (
        Array,
        ArrayLike,
        ArrayT,
        Axes,
        Casting,
        DTypeLike,
        EpilogueOptions,
        GateLayout,
        NumPyArray,
        NumPyLike,
        OneResultOptions,
        QuantizeOut,
        Rest,
        Scale,
        Stream,
        Tensor,
    )
    from .cache import Cache
    from .problem.problem import Precision

__all__ = ["CompiledKernel", "compile", "matmul", "plan"]


# A tuple of one is taken as by NumPy's ufuncs, and gives its array: so two of these overlap.
@overload
def matmul(  # type: ignore[overload-overlap]
    a: NumPyArray,
    b: NumPyArray,
    /,
    out: NumPyArray | tuple[NumPyArray] | None = None,
    **options: Unpack[OneResultOptions],
) -> NumPyArray: ...
@overload
def matmul(  # type: ignore[overload-overlap]
    a: Tensor[ArrayT],
    b: Tensor[ArrayT],
    /,
    out: Tensor[ArrayT] | tuple[Tensor[ArrayT]] | None = None,
    **options: Unpack[OneResultOptions],
) -> ArrayT: ...
@overload
def matmul(  # type: ignore[overload-overlap]
    a: ArrayT,
    b: ArrayT,
    /,
    out: ArrayT | tuple[ArrayT] | None = None,
    **options: Unpack[OneResultOptions],
) -> ArrayT: ...
@overload
def matmul(  # type: ignore[overload-overlap]
    a: NumPyLike,
    b: NumPyLike,
    /,
    out: NumPyArray | tuple[NumPyArray] | None = None,
    **options: Unpack[OneResultOptions],
) -> NumPyArray: ...
@overload
def matmul(
    a: NumPyLike, b: NumPyLike, /, out: tuple[NumPyArray, ...], **options: Unpack[OneResultOptions]
) -> tuple[NumPyArray, ...]: ...
@overload
def matmul(
    a: Tensor[ArrayT],
    b: Tensor[ArrayT],
    /,
    out: tuple[Tensor[ArrayT], ...],
    **options: Unpack[OneResultOptions],
) -> tuple[ArrayT, ...]: ...
@overload
def matmul(
    a: ArrayT, b: ArrayT, /, out: tuple[ArrayT, ...], **options: Unpack[OneResultOptions]
) -> tuple[ArrayT, ...]: ...
@overload
def matmul(
    a: NumPyLike,
    b: NumPyLike,
    /,
    out: tuple[NumPyArray, NumPyArray] | None = None,
    *,
    quantize_out: QuantizeOut,
    **options: Unpack[OneResultOptions],
) -> tuple[NumPyArray, NumPyArray]: ...
@overload
def matmul(
    a: Tensor[ArrayT],
    b: Tensor[ArrayT],
    /,
    out: tuple[Tensor[ArrayT], Tensor[ArrayT]] | None = None,
    *,
    quantize_out: QuantizeOut,
    **options: Unpack[OneResultOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def matmul(
    a: ArrayT,
    b: ArrayT,
    /,
    out: tuple[ArrayT, ArrayT] | None = None,
    *,
    quantize_out: QuantizeOut,
    **options: Unpack[OneResultOptions],
) -> tuple[ArrayT, ArrayT]: ...
def matmul(
    a: Any,
    b: Any,
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
    scale_a: Scale | None = None,
    scale_b: Scale | None = None,
    casting: Casting | None = None,
    axes: Axes | None = None,
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
    """Multiply two arrays of one library, by the rules of `numpy.matmul`.

    Parameters
    ----------
    a : array, shape (..., M, K) or (K,)
        A NumPy, CuPy or PyTorch array, or one of any library with DLPack (JAX, ...). It may have
        any strides and any offset: transposes, slices, steps and broadcast views are read where
        they lie. The dtype is float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2 or
        int8. NumPy and CuPy take bfloat16 and float8 from ml_dtypes; float8 does not pass through
        DLPack. With block scales the dtype may also be PyTorch's float4_e2m1fn_x2, or uint8: each
        byte then holds two float4_e2m1fn that are neighbours along K, the first in the low half,
        and K counts bytes.

        Every other type that `numpy.matmul` multiplies works too: integers, which wrap
        around, booleans, and complex numbers. In host memory so do long doubles, and NumPy's may
        also be lists and numbers of another byte order. Arrays of NumPy and CuPy may be unaligned:
        what kernels cannot read is copied first.

        Inputs are never written, except where `out` shares their memory.
    b : array, shape (..., K, N) or (K,)
        An array of the same library, device and dtype as `a`; the two kinds of float8 also multiply
        each other. Mixed dtypes are promoted by the library's own rule, which PyTorch does not
        have. Leading dimensions broadcast.
    out : array, optional
        Where to put the result: an array of the result's shape, on the same device. It may have any
        strides that give each element an address of its own. If it shares memory with `a` or `b`,
        the result is as if these had been copied before.
    dtype : dtype or str, optional
        Type of the result. The default is that of `out`, or else that of the inputs, with float32
        for float8 and int32 for int8. float16 and bfloat16 inputs also give float32, and float8
        also gives bfloat16 and float16. int8 also gives int8, the low eight bits of each sum, as
        `numpy.matmul` does, and other types are NumPy's `dtype`, to which it may cast the inputs
        first.

        With an epilogue's argument, whatever its value (``alpha=1.0``, too), accumulators are
        rounded to this type once, and it may have fewer bits: int8 and float8 then get the nearest
        number that they have.

        Accumulators are float64 for float64, int32 for int8 (where they wrap around, as NumPy's and
        cuBLAS's do) and otherwise float32. Integers, complex numbers and long doubles are summed in
        the type itself, as NumPy sums them; on a GPU narrow integers are in int32, of which the low
        bits are the same.
    precision : {"ieee", "tf32", "3xtf32"}
        The coarsest arithmetic to accept for float32 inputs; other inputs take "ieee" only. A
        kernel may be more accurate than that. "ieee" multiplies float32 as it is. "tf32" may cut
        each input to TF32, a relative error below ``2**-10``. "3xtf32" may split each input into
        two TF32 numbers, a relative error of about ``2**-21`` for each product, which on tensor
        cores is more than twice as fast as "ieee". Accumulators are float32. The notes say what
        happens to very large and very small numbers.
    deterministic : bool
        Ask for bitwise equal results from run to run.
    batch_invariant : bool
        Ask for rows of the result that are bitwise the same however many rows and stacked products
        are computed with them. The configuration is then the best one for 128 rows, whatever M is,
        and tuning files are not used. The rows of `a` and `out` must be contiguous and aligned as
        those of a compact array. This is for GPUs only: BLAS makes no such promise.
    backend : str
        A name from `backend_info`, or "auto". "auto" takes the backend that ``UNIGEMM_BACKEND``
        names, or else the one with the shortest estimated time.
    plan : Plan, optional
        A plan from `unigemm.plan` for arrays of the same kind and size.
    stream : int or stream object, optional
        CUDA stream to queue the work on; the default is the library's current stream. New results
        and workspaces are allocated on that stream too, and the caller orders it with others.
    scale_a, scale_b : float, array, or pair of arrays or of an array and a float, optional
        For float8 and int8 inputs: numbers, or arrays of float32. The result is ``scale_a * scale_b
        * (a @ b)``, and accumulators are multiplied before anything else is done to them. An array
        has one element, or one for each row of `a` in shape (..., M, 1) or column of `b` in (...,
        1, N), with any strides. Of whole operands of float8 the product of the two scales is made
        in float64, so it may be too large or too small for a float32. int8 gives float32 where
        neither `dtype` nor `out` says otherwise. An array is of the library and on the device of
        `a`. On a GPU it is read when the work runs, so that a captured graph sees its new contents.

        Both operands of float8 may have a scale for each 128 elements along K, in float32 or
        float8_e8m0fnu: `a` for each row, (..., M, ceil(K / 128)), or for 128 rows, (..., ceil(M /
        128), ceil(K / 128)); `b` for each column, (..., ceil(K / 128), N), or for 128 columns,
        (..., ceil(K / 128), ceil(N / 128)); with any strides. The sum of each 128 products is
        multiplied by them. The CPU, Hopper's and Blackwell's tensor cores take these.

        Block scales are two arrays, and come in two formats. For MXFP8 both are float8_e8m0fnu, and
        each scale multiplies 32 elements along K. For NVFP4 both are float8_e4m3fn, and each scale
        multiplies 16 float4, which are 8 elements of the array. Either has the shape of its operand
        with ceil(K / 32) (for NVFP4 ceil(K / 8)) instead of K, with any strides, and is copied
        first; or it is flat, (..., count), in the tiles of 128 rows and 4 blocks that cuBLAS and
        ``torch._scaled_mm`` take (see `unigemm.problem.block_scales`), and is read in place. On
        GPUs only Blackwell's tensor cores multiply these (sm_100a, sm_103a, sm_110a).

        A pair holds block scales and a scale of the whole operand.
    axes : list of tuples, optional
        Which dimensions hold the matrices of `a`, `b` and the result, as in `numpy.matmul`. NumPy
        and CuPy arrays only; they are viewed this way and not copied. `c`, `preact`, `preact_out`
        and further results lie as the result does; all else broadcasts to (..., M, N), as if the
        matrices were in the last two dimensions.
    quantize_out : (1, 128) or "row", optional
        Give a result of eight bits and its scales, as `quantize` would of a float32 result: what
        the next product reads as its `a` and `scale_a`. `dtype` is float8_e4m3fn (the default),
        float8_e5m2 or int8 (the default of int8 inputs). Scales for each 128 neighbours of a row,
        (..., M, ceil(N / 128)), are written by the kernel, on Hopper's tensor cores and the CPU.
        Scales of rows, (..., M, 1), are made by a second pass, which reads the result from scratch
        memory in bfloat16 (float32 for int8 and for float16 inputs), as the plan says. That pass
        also makes all scales of products by a vector `b` and, on GPUs, of gated results, those of
        128 neighbours from float32. `out` is a pair.
    casting : {"no", "equiv", "safe", "same_kind", "unsafe"}, optional
        Which conversions of NumPy and CuPy arrays are allowed, by default "same_kind".

    Returns
    -------
    array
        `out`, or a new array of the library of `a` on its device, last index contiguous. Two
        vectors give what the library's own matmul gives: a NumPy scalar, or a 0-d array. With
        `quantize_out` a pair, the result and its scales.

    Other Parameters
    ----------------
    alpha, beta : float or array of one element, optional
        The result is ``activation(alpha * (a @ b) + beta * c + bias)``. Both are 1 by default. An
        array is read when the work runs. The number 0 leaves its term out, and what is infinite or
        NaN in it: where `beta` is 0, `c` is not read. No other value changes what is done. Of a
        complex product they may be complex; the library's own operations then add its terms.

        With integers (int8 alone, see `dtype`, is another case) and booleans these are whole
        numbers, `c` and `bias` are such arrays, and all wraps around as accumulators do. Other
        terms need accumulators that are rounded, which ``dtype="float64"`` makes of integers.
    c : array, optional
        Broadcasts to the product's shape, with any strides. It may be `out` itself (the same view
        of the same memory), which is then added to; memory shared in part is refused.
    bias : array, optional
        Broadcasts to the product's shape: (N,), (1, N), (M, 1), stacks in front.
    activation : str, optional
        "relu", "gelu" (by erf), "gelu_tanh", "silu", "sigmoid", "tanh" or "relu2". With `preact`,
        "d" before such a name, as in "dgelu": the product times the slope at `preact`. With
        `gate_layout`, "swiglu" or "geglu", whose result has N / 2 columns.
    preact_out : array, optional
        Gets what goes into the activation, in the product's shape.
    preact : array, optional
        What went into an activation whose gradient is requested.
    gate_layout : {"interleaved", "halves"}, optional
        Which columns of the product are a gate and its value: 2 j and 2 j + 1, or j and N / 2 + j.
    scale_d : float or array of one element, optional
        Multiplies the result before it is rounded.
    amax_out : array of one float32, optional
        Gets the largest magnitude of the result before `scale_d`; NaN if there is one.
    bias_grad_out : array, optional
        Gets the sum of the result, before `scale_d`, over the dimensions that it lacks.
    epilogue : callable, optional
        A function of the accumulator, ``epilogue(acc, **epilogue_args)``, instead of all of the
        above. It is called with tracers, and what it does element by element becomes part of the
        kernel. A tuple that it returns gives several results; `out` is a tuple then, too.
    epilogue_args : dict, optional
        Arrays that broadcast to the product, and numbers.

    Raises
    ------
    ShapeMismatch
        The shapes do not fit, or `out` has another shape than the product.
    UnsupportedDtype
        The dtype is not supported, the library does not promote such dtypes, `casting` forbids a
        conversion, or a scale is not one float32.
    LibraryMismatch, DeviceMismatch
        The arrays belong to different libraries or devices, or are no arrays.
    OverlapError
        `out`, or another array that is written, shares memory with what an epilogue reads, with a
        scale, or with itself.
    UnsupportedProblem
        Anything else that cannot be done. It is also the base class of all the above.
    BackendUnavailable
        The named backend does not exist or cannot be used here.
    CompilationError
        The kernel does not compile.

    Notes
    -----
    All errors come before anything is launched.

    The first call of a kind makes a plan, and may compile a kernel. Do that before capturing a CUDA
    graph. Gradients are not recorded.

    A kernel may need scratch memory (`Plan.workspace_bytes`) for partial sums, and for copies of
    operands that tensor cores cannot read in place. The library of `a` allocates it for the call.
    In a captured graph it lives as long as the graph: in a capture of CuPy arrays, or through
    DLPack, the graph allocates and frees it (``cudaMallocAsync``), and PyTorch keeps it in the
    graph's private pool. The caller keeps operands and results alive while a graph is replayed.

    Infinities, NaN and the largest and smallest numbers give what they give in float32, with these
    exceptions:

    - A sum that leaves the range of float32 on the way is infinite or NaN.
    - "tf32" turns numbers below ``2**-136`` into 0. Where operands are rounded to TF32 on their
      way, by TMA on Hopper and by cutile before it, it turns numbers above 3.4019e38 into infinity.
    - "3xtf32" has an absolute error of up to ``2**-137`` in each number, which exceeds the relative
      error below ``2**-114``. Products beyond ``2**139`` may give NaN instead of infinity.

    - PyTorch multiplies bfloat16 tensors in host memory, where the processor has instructions for
      them, and takes numbers below ``2**-126`` for 0.

    Hopper's tensor cores add the products of float8 with about 14 bits, because they cut all terms
    of one instruction at the same bit. cute_wgmma adds to float32 accumulators every 128 of K.

    Examples
    --------
    >>> import numpy as np, unigemm
    >>> unigemm.matmul(np.eye(2), np.arange(6.0).reshape(2, 3))
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    operands: tuple[Any, ...] = a, b, out  # shorter, which is quicker
    if not (
        c is None and bias is None and alpha is None and beta is None and preact is None
        and preact_out is None and amax_out is None and bias_grad_out is None and scale_a is None
        and scale_b is None and scale_d is None and epilogue is None and epilogue_args is None
    ):  # fmt: skip
        operands = (
            a, b, out, c, bias, alpha, beta, preact, preact_out, amax_out, bias_grad_out, scale_a,
            scale_b, None, None, scale_d, epilogue, epilogue_args,
        )  # fmt: skip
    options = (
        dtype, precision, deterministic, batch_invariant, backend, casting, activation,
        gate_layout, "matmul", "zeros", quantize_out,
    )  # fmt: skip
    return compute(operands, options, plan, stream, axes)


def plan(
    a: ArrayLike,
    b: ArrayLike,
    out: Array | ArraySpec | None = None,
    *,
    dtype: DTypeLike | None = None,
    precision: Precision = "ieee",
    deterministic: bool = False,
    batch_invariant: bool = False,
    backend: str = "auto",
    target: str | Target | None = None,
    scaled: bool = False,
    scale_a: Scale | ArraySpec | None = None,
    scale_b: Scale | ArraySpec | None = None,
    quantize_out: QuantizeOut | None = None,
    offsets: Array | ArraySpec | None = None,
    rows: Array | ArraySpec | None = None,
    rest: Rest = "zeros",
    keep: int = KEPT,
    tuned: bool = True,
    **epilogue_options: Unpack[EpilogueOptions],
) -> Plan:
    """Decide which kernel computes ``a @ b``, or a grouped product, without running it.

    Parameters
    ----------
    a, b, out : array or ArraySpec
        As in `matmul`; an `ArraySpec` describes an array that does not exist.
    dtype, precision, deterministic, batch_invariant, backend
        As in `matmul`.
    target : str or Target, optional
        An architecture such as ``"sm_90a"``, a device such as ``"h100"``, ``"cpu"``, or a `Target`.
        The default is the arrays' own device; for an `ArraySpec` it is the current GPU, or the host
        where there is none.
    scaled : bool
        Whether `matmul` will be given `scale_a` or `scale_b` of whole operands.
    scale_a, scale_b : optional
        Block scales, as in `matmul`; an `ArraySpec` describes an array.
    quantize_out
        As in `matmul`.
    offsets, rows, rest : optional
        As in `grouped_matmul`, for whose products these are. Only the shapes and types of
        arrays count, not what they hold: groups are taken to be uneven, as experts get rows.
    **epilogue_options
        What `matmul` takes for an epilogue (alpha, bias, activation, ...). An `ArraySpec` describes
        an array, and any number stands for a number; but the number 0 as `alpha` or `beta` leaves
        its term out of the plan, too.
    keep : int
        How many of the candidates that lost to keep in `Plan.alternatives`.
    tuned : bool
        Whether to take what `autotune` has found for this product. Products with `batch_invariant`
        never do.

    Returns
    -------
    Plan
        The choice, which prints as an explanation. A named target needs no GPU and no compiler.

    Raises
    ------
    UnsupportedProblem
        The product cannot be planned, or it is empty and needs no kernel.
    BackendUnavailable
        The named backend does not exist, or it cannot be used on the device that is here.

    Examples
    --------
    >>> import unigemm
    >>> x = unigemm.ArraySpec((4096, 4096), "bfloat16")
    >>> unigemm.plan(x, x, target="h100").backend
    'cute_wgmma'
    """
    request = Request(
        a, b, out, dtype=dtype, precision=precision, deterministic=deterministic,
        batch_invariant=batch_invariant, backend=backend, scale_a=scale_a, scale_b=scale_b,
        offsets=offsets, rows=rows, rest=rest, quantize_out=quantize_out,
        operation="matmul" if offsets is None and rows is None else "grouped", **epilogue_options,
    )  # fmt: skip
    keep, tuned = whole_number(keep, "keep", 0), truth(tuned, "tuned")
    return plan_request(request, target, scaled=truth(scaled, "scaled"), keep=keep, tuned=tuned)


def compile(plan: Plan, cache: Cache | None = None) -> CompiledKernel:
    """Compile the kernel of a plan into the cache. The GPU that it is for need not be here.

    Parameters
    ----------
    plan : Plan
        From `unigemm.plan`.
    cache : Cache, optional
        Where to keep the kernel; by default the process's own cache.

    Returns
    -------
    CompiledKernel
        The plan and its entry in the cache.

    Raises
    ------
    UnsupportedProblem
        The plan cannot run: something has changed it since it was made.
    BackendUnavailable
        The plan's backend has no compiler here.
    CompilationError
        The kernel does not compile.
    """
    plan = checked(typed(plan))
    return CompiledKernel(plan, kernel_entry(plan, cache))
