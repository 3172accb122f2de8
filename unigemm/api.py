"""The public functions: `matmul`, `plan`, `compile`, `capabilities` and `backends`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from .arrays.array_spec import ArraySpec
from .arrays.axes import along_axes
from .arrays.libraries import gather, view
from .arrays.library import KNOWN
from .errors import UnsupportedProblem
from .planning.plan import Plan
from .planning.planner import KEPT
from .planning.target import Target
from .planning.validation import checked, typed
from .runtime.bind import Bound, bind, store
from .runtime.call import addresses, run, run_foreign
from .runtime.fused import matmul_fused
from .runtime.loader import kernel_entry
from .runtime.options import Options, check_options
from .runtime.plan_call import plan_call
from .runtime.scale_arguments import planned_scales, see_scales

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .arrays.types import (
        Array,
        ArrayLike,
        ArrayT,
        Axes,
        DTypeLike,
        MatmulOptions,
        NumPyArray,
        NumPyLike,
        Scale,
        Stream,
        Tensor,
    )
    from .cache import Cache, Entry

__all__ = ["CompiledKernel", "compile", "matmul", "plan"]


@overload
def matmul(
    a: NumPyArray, b: NumPyArray, /, out: NumPyArray | None = None, **options: Unpack[MatmulOptions]
) -> NumPyArray: ...
@overload
def matmul(
    a: Tensor[ArrayT],
    b: Tensor[ArrayT],
    /,
    out: Tensor[ArrayT] | None = None,
    **options: Unpack[MatmulOptions],
) -> ArrayT: ...
@overload
def matmul(
    a: ArrayT, b: ArrayT, /, out: ArrayT | None = None, **options: Unpack[MatmulOptions]
) -> ArrayT: ...
@overload
def matmul(
    a: NumPyLike, b: NumPyLike, /, out: NumPyArray | None = None, **options: Unpack[MatmulOptions]
) -> NumPyArray: ...
def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    dtype: DTypeLike | None = None,
    precision: str = "ieee",
    deterministic: bool = False,
    batch_invariant: bool = False,
    backend: str = "auto",
    plan: Plan | None = None,
    stream: Stream | None = None,
    scale_a: Scale | None = None,
    scale_b: Scale | None = None,
    axes: Axes | None = None,
    casting: str | None = None,
    **fused: Any,
) -> Any:
    """Multiply two arrays of one library, by the rules of `numpy.matmul`.

    Parameters
    ----------
    a : array, shape (..., M, K) or (K,)
        A NumPy, CuPy or PyTorch array, or one of any library with DLPack (JAX, ...). Any strides,
        any offset: transposes, slices, steps, broadcast views. float64, float32, float16,
        bfloat16, float8_e4m3fn, float8_e5m2 (ml_dtypes in NumPy and CuPy; float8 does not pass
        through DLPack) or int8; with scales of blocks also PyTorch's float4_e2m1fn_x2, or uint8,
        which hold two float4_e2m1fn that are neighbours along K, the first in the low half of a
        byte; K then counts bytes. It is never written, but for an `out` that shares its memory.

        In host memory also all other numbers that `numpy.matmul` multiplies: booleans, integers,
        complex numbers, long doubles. For NumPy also lists, numbers of another byte order, and
        unaligned ones.
    b : array, shape (..., K, N) or (K,)
        Of the same library, device and dtype as `a`; the two kinds of float8 also multiply each
        other. In host memory mixed dtypes are promoted by the library's own rule; PyTorch has
        none. Leading dimensions broadcast.
    out : array, optional
        Where to put the result: of the result's shape, on the same device. Any strides that give
        each element an address of its own. On a GPU it shares no memory with `a` or `b`; on the
        host it may, and the result is right.
    dtype : dtype or str, optional
        Of the result, by default that of `out`, or that of the inputs. float16 and bfloat16 inputs
        also give float32. float8 gives float32 (the default), bfloat16 or float16. int8 gives
        int32, so that nothing of the sums is lost; on the host ``dtype="int8"`` gives their low
        eight bits, as `numpy.matmul` does. Sums are in float64 for float64, in int32 for int8
        (they wrap around, as NumPy's and cuBLAS's do), else in float32; of what only the host
        multiplies in the type itself, as NumPy has it.
    precision : {"ieee", "tf32", "3xtf32"}
        The coarsest arithmetic to accept for float32 inputs; other inputs take "ieee" only.
        "ieee" multiplies them as they are; "tf32" may cut each to TF32 (a relative error below
        2**-10); "3xtf32" may split each into two TF32 numbers (a relative error of about 2**-21
        for each product), which tensor cores do at more than twice the speed of "ieee". Sums are
        in float32 always, and a kernel may be better than what is accepted. Notes say what becomes
        of very large and very small numbers.
    deterministic : bool
        Ask for bitwise equal results from run to run.
    batch_invariant : bool
        Ask for rows of the result that are bitwise the same however many rows (and products of a
        stack) are computed with them. The configuration is then the best for 128 rows, whatever M
        is, and tuning files are left aside. The rows of `a` and of `out` must be contiguous, and
        aligned as those of compact arrays are. For GPUs: BLAS promises no such thing.
    backend : str
        A name from `backend_info`, or "auto" for the one that ``UNIGEMM_BACKEND`` names, else for
        the one with the least predicted time.
    plan : Plan, optional
        From `unigemm.plan`, for arrays of the same class and extents.
    stream : int or stream object, optional
        CUDA stream to queue the work on; by default the library's current one. New results and
        workspaces are then allocated on that stream too, and the caller orders it with others.
    scale_a, scale_b : float, array, or pair of an array and one of these, optional
        Numbers or arrays of one float32, for float8 inputs: the result is ``scale_a * scale_b * (a
        @ b)``, the float32 sums being multiplied before they are rounded. The product of the two
        may be too large or too small for a float32 (and is made in float64). An array is of the
        library and on the device of `a`; on a GPU it is read when the work runs, so that a captured
        graph sees its new contents.

        Two arrays of float8_e8m0fnu are the scales of blocks (MXFP8): each multiplies 32 elements
        along K. They have the shape of the operand with ceil(K / 32) in place of K, (..., M, K /
        32) and (..., K / 32, N), any strides, and are then copied first; or they are flat, (...,
        count), in the tiles of 128 rows and 4 blocks that cuBLAS and ``torch._scaled_mm`` take
        (see `unigemm.problem.block_scales`), and are read where they lie. Two of float8_e4m3fn are
        for pairs of float4 (NVFP4), and each multiplies 16 elements, 8 of such an array. On GPUs
        Blackwell's tensor cores multiply these (sm_100a, sm_103a, sm_110a).

        A pair has both: scales of blocks and one of the whole operand.
    axes : list of tuples, optional
        As in `numpy.matmul`: the dimensions of the matrices of `a`, of `b` and of the result. For
        NumPy and CuPy arrays, which are viewed so and not copied.
    casting : {"no", "equiv", "safe", "same_kind", "unsafe"}, optional
        Which conversions of NumPy arrays are allowed, by default "same_kind".

    Returns
    -------
    array
        `out`, or a new array of the library of `a` on its device, last index contiguous. Two
        vectors give what the library's own matmul gives: a NumPy scalar, or a 0-d array.

    Raises
    ------
    ShapeMismatch
        The shapes do not fit, or `out` has another shape than the product.
    UnsupportedDtype
        A dtype that is not supported, mixed ones on a GPU, or a conversion that `casting` forbids;
        a scale that is not one float32.
    LibraryMismatch, DeviceMismatch
        The arrays are not of one library, not on one device, or no arrays.
    OverlapError
        `out` shares memory with a scale or itself, or on a GPU with an input.
    UnsupportedProblem
        Anything else that cannot be done; also the base of all the above.
    BackendUnavailable
        The named backend does not exist or cannot be used here.
    CompilationError
        The kernel does not compile.

    Notes
    -----
    A kernel may need scratch memory (`Plan.workspace_bytes`), allocated by the library of `a` for
    the call: for partial sums, and for copies of operands that tensor cores cannot read in place.

    All errors come before anything is launched. The first call of a kind plans, and may compile;
    do that before capturing a CUDA graph. No gradients are recorded.

    A captured launch has its workspace as long as the graph lives: in a capture of CuPy arrays, or
    through DLPack, the graph allocates and frees it (``cudaMallocAsync``); PyTorch keeps it in the
    graph's private pool. Operands and results are the caller's to keep while a graph is replayed.

    Infinities and NaN give what they give in float32, and so do the largest and smallest numbers,
    with these exceptions. Sums that leave the range of float32 in between are infinite or NaN.
    "tf32" makes 0 of numbers below 2**-136; where operands are rounded to TF32 on their way (by TMA
    on Hopper, by cutile before it), it makes infinity of numbers above 3.4019e38. "3xtf32" has an
    absolute error of up to 2**-137 in each number, which is more than the relative one below
    2**-114; products beyond 2**139 may give NaN in place of infinity.

    Hopper's tensor cores add the products of float8 with about 14 bits, all that are summed at once
    being cut at one place; cute_wgmma moves the sums to float32 every 128 of K.

    Examples
    --------
    >>> import numpy as np, unigemm
    >>> unigemm.matmul(np.eye(2), np.arange(6.0).reshape(2, 3))
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    if fused:
        options = Options(
            dtype, precision, deterministic, backend, plan, False, batch_invariant, casting=casting
        )
        return matmul_fused(a, b, out, fused, options, stream, (scale_a, scale_b), axes)
    kind = type(a)
    library = KNOWN.get(kind)
    if library is None or type(b) is not kind or (out is not None and type(out) is not kind):
        library, a, b, out = gather(a, b, out)
    if axes is not None:
        call = partial(
            matmul, dtype=dtype, precision=precision, deterministic=deterministic,
            batch_invariant=batch_invariant, backend=backend, plan=plan, stream=stream,
            scale_a=scale_a, scale_b=scale_b, casting=casting,
        )  # fmt: skip
        return along_axes(call, library, a, b, out, axes)
    scaled = scale_a is not None or scale_b is not None
    if library.foreign:
        options = Options(
            dtype, precision, deterministic, backend, plan, scaled, batch_invariant, casting=casting
        )
        return run_foreign(matmul, a, b, out, stream, options)
    scales = blocks = None
    if scaled:
        scales = see_scales(library, scale_a, scale_b)
        scaled, blocks = scales.scaled, scales.layouts
    key: Any
    bound: Bound | None
    try:
        if library.ask is not None and library.ask():
            addresses(library, a, b, out)  # refuses what this mode of the library forbids
        a_at, a_key = library.read(a)
        b_at, b_key = library.read(b)
        plan_id = plan and id(plan)  # hashing a plan is slow, and `Bound` keeps the plan alive
        asked = (
            dtype, precision, deterministic, batch_invariant, backend, plan_id, scaled, blocks,
            casting,
        )  # fmt: skip
        if out is None:
            d_at = 0
            key = (a_key, b_key, a_at & 15, b_at & 15, asked)
        else:
            d_at, d_key = library.read(out)
            key = (a_key, b_key, a_at & 15, b_at & 15, asked, d_key, d_at & 15)
        bound = library.table.get(key)
    except Exception:
        key = bound = None  # something is wrong with an argument: `bind` says what
    if bound is None:
        options = Options(
            dtype, precision, deterministic, backend, plan, scaled, batch_invariant, blocks, casting
        )
        bound = bind(library, a, b, out, options)
        if key is None:
            a_at, b_at, d_at = addresses(library, a, b, out)
        elif bound.kept:
            store(library.table, key, bound)
    return run(library, bound, a, b, out, a_at, b_at, d_at, stream, scales)


# torch.compile leaves the call as it is, between two graphs; fullgraph=True says this.
matmul._torchdynamo_disable = True  # type: ignore[attr-defined]
matmul._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
    "unigemm.matmul works on the addresses of tensors, which a graph does not have: use "
    "unigemm.torch.matmul, leave fullgraph=True out, or call it outside of the compiled function"
)


def plan(
    a: ArrayLike,
    b: ArrayLike,
    out: Array | ArraySpec | None = None,
    *,
    dtype: DTypeLike | None = None,
    precision: str = "ieee",
    deterministic: bool = False,
    batch_invariant: bool = False,
    backend: str = "auto",
    target: str | Target | None = None,
    scaled: bool = False,
    scale_a: Scale | ArraySpec | None = None,
    scale_b: Scale | ArraySpec | None = None,
    keep: int = KEPT,
    tuned: bool = True,
    **fused: Any,
) -> Plan:
    """Decide which kernel computes ``a @ b``, and why, without running it.

    Parameters
    ----------
    a, b, out : array or ArraySpec
        As in `matmul`; an `ArraySpec` stands for an array that is not there.
    dtype, precision, deterministic, batch_invariant, backend
        As in `matmul`.
    target : str or Target, optional
        An architecture such as ``"sm_90a"``, ``"cpu"``, or a `Target`. By default the arrays'
        device; for an `ArraySpec` the current GPU, or the host where there is none.
    scaled : bool
        `matmul` will be given `scale_a` or `scale_b` of whole operands.
    scale_a, scale_b : optional
        As in `matmul`, where blocks have scales; an `ArraySpec` stands for an array.
    **fused
        What `matmul` takes for an epilogue (alpha, bias, activation, ...); an `ArraySpec` stands
        for an array, and any number for a number.
    keep : int
        How many of the candidates that lost `Plan.alternatives` holds.
    tuned : bool
        Take what `autotune` has found for this product, where it has (never where
        `batch_invariant`).

    Returns
    -------
    Plan
        Prints as an explanation. For a named target no GPU and no compiler is needed.

    Raises
    ------
    UnsupportedProblem
        The product cannot be planned, or it is empty and needs no kernel.
    BackendUnavailable
        The named backend does not exist, or is to run here and cannot.
    """
    scales = planned_scales(scale_a, scale_b, view)
    options = Options(
        dtype,
        precision,
        bool(deterministic),
        backend,
        scaled=bool(scaled) or scales.scaled,
        batch_invariant=bool(batch_invariant),
        blocks=scales.layouts,
    )
    check_options(options)
    if keep < 0:
        raise UnsupportedProblem(f"keep counts candidates and is {keep}; pass 0 or more")
    return plan_call(a, b, out, options, target, fused, keep=keep, tuned=tuned)


@dataclass(frozen=True)
class CompiledKernel:
    """What `compile` made or found: the plan, and its entry in the cache (None on the host)."""

    plan: Plan
    entry: Entry | None

    @property
    def cached(self) -> bool:
        """Whether nothing had to be compiled."""
        return self.entry is None or self.entry.cached


def compile(plan: Plan, cache: Cache | None = None) -> CompiledKernel:
    """Compile the kernel of a plan into the cache, for a GPU that need not be there.

    Parameters
    ----------
    plan
        From `unigemm.plan`.
    cache
        Where to keep it; the process's default cache if None.

    Raises
    ------
    UnsupportedProblem
        The plan cannot run: it did not come from the planner as it is.
    BackendUnavailable
        The plan's backend has no compiler here.
    CompilationError
        The kernel does not compile.
    """
    plan = checked(typed(plan))
    return CompiledKernel(plan, kernel_entry(plan, cache))
