"""`scaled_mm`: products of float8 by PyTorch's recipes of scales, which are given by name there.

PyTorch lays scales out as cuBLAS reads them. Of a product (M, K) @ (K, N), with blocks of 128:

==================  =======================  =======================  ============================
recipe              scales of ``mat_a``      scales of ``mat_b``      as `unigemm.matmul` takes them
==================  =======================  =======================  ============================
TensorWise          one                      one                      one
RowWise             (M, 1)                   (1, N)                   (M, 1), (1, N)
BlockWise1x128      (M, K / 128)             (N, K / 128)             (M, K / 128), (K / 128, N)
BlockWise128x128    (K / 128, M / 128)       (K / 128, N / 128)       (M / 128, K / 128), the same
==================  =======================  =======================  ============================

All quotients are rounded up, and K / 128 of the last line may be rounded up to four of them: what
is behind is not read. Where PyTorch requests strides as well, any will do here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arrays.operands import parse_dtype
from ..errors import LibraryMismatch, ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.quantization import BLOCK, check_quantized
from ..support.arguments import shown
from .arguments import LayerOptions, present, tensors
from .grouped import one_or_pair
from .grouped_products import check_grouped
from .products import FLOAT8, check_ranks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arrays.types import QuantizeOut

__all__ = ["grouped_scales", "scaled_grouped_mm", "scaled_mm", "scales_by_recipe"]

#: By PyTorch's numbers.
_RECIPES = (
    "TensorWise",
    "RowWise",
    "BlockWise1x16",
    "BlockWise1x32",
    "BlockWise1x128",
    "BlockWise128x128",
)
_TAKEN = ("TensorWise", "RowWise", "BlockWise1x128", "BlockWise128x128")
_PADDED = 4  # to a multiple of this cuBLAS wants the blocks of K rounded up


def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | Sequence[Tensor],
    scale_recipe_a: Any,
    scale_b: Tensor | Sequence[Tensor],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Tensor | None = None,
    output_dtype: torch.dtype | EllipsisType | None = ...,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
    *,
    quantize_out: QuantizeOut | None = None,
    **options: Unpack[LayerOptions],
) -> Any:
    """Multiply matrices of float8 by each other, as `torch.nn.functional.scaled_mm`.

    Sizes need be no multiples of anything, and operands and scales may have any strides. There are
    no gradients, as in PyTorch.

    Parameters
    ----------
    mat_a, mat_b : Tensor of float8, shapes (M, K) and (K, N)
        Of one kind of float8, or of both.
    scale_a, scale_b : Tensor of float32
        What the elements are to be multiplied by; those of 128 elements of K may be float8_e8m0fnu.
        A list of one does as well.
    scale_recipe_a, scale_recipe_b : torch.nn.functional.ScalingType or str
        What shares a scale: "TensorWise", "RowWise", "BlockWise1x128" or "BlockWise128x128". The
        shapes are PyTorch's: see `unigemm.torch.scaled`. Both operands have scales of blocks, or
        none has.
    swizzle_a, swizzle_b : torch.nn.functional.SwizzleType, optional
        None, or NO_SWIZZLE.
    bias : Tensor, optional
        Added to each row.
    output_dtype : torch.dtype, optional
        Of the result; None for that of `mat_a`. Where it is left out it is bfloat16, and of a
        quantised result float8_e4m3fn.
    contraction_dim : sequence of int, optional
        What is multiplied away: nothing but (1, 0).
    use_fast_accum : bool
        Read and ignored: accumulators are as exact as without it.
    quantize_out : (1, 128) or "row", optional
        As in `unigemm.matmul`: what the next product takes with recipe "BlockWise1x128", or
        "RowWise".
    **options
        `deterministic`, `batch_invariant` and `backend`, as in `unigemm.matmul`.

    Returns
    -------
    Tensor
        A new one. With `quantize_out` a pair, the result and its scales.

    Raises
    ------
    UnigemmError
        As `unigemm.matmul`; or a recipe is one of those for Blackwell, or unknown.

    Examples
    --------
    >>> import torch, unigemm.torch
    >>> a, b = torch.ones(2, 256).to(torch.float8_e4m3fn), torch.ones(256, 1).to(torch.float8_e5m2)
    >>> of_a, of_b = torch.tensor([[1.0, 0.5], [2.0, 2.0]]), torch.ones(2, 1)
    >>> unigemm.torch.scaled_mm(a, b, of_a, "BlockWise1x128", of_b, "BlockWise128x128").flatten()
    tensor([192., 512.], dtype=torch.bfloat16)
    """
    tensors(mat_a=mat_a, mat_b=mat_b, **present(bias=bias))
    if output_dtype is None:
        output_dtype = mat_a.dtype
    dtype = _output(output_dtype, quantized=quantize_out is not None)
    scales = scales_by_recipe(
        mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b, swizzle_a, swizzle_b,
        contraction_dim,
    )  # fmt: skip
    operands = mat_a, mat_b, None, bias, *scales
    return one_or_pair("matmul", *operands, quantize_out=quantize_out, options=options, dtype=dtype)


def scales_by_recipe(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Any,
    recipe_a: Any,
    scale_b: Any,
    recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    contraction_dim: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Return scales as `unigemm.matmul` takes them, of what `scaled_mm` takes.

    Raises
    ------
    UnsupportedProblem, UnsupportedDtype, ShapeMismatch, LibraryMismatch
        What does not fit.
    """
    check_ranks("scaled_mm", ("mat_a", mat_a, 2), ("mat_b", mat_b, 2))
    _check(mat_a, mat_b, swizzle_a, swizzle_b, contraction_dim)
    k = mat_a.shape[1]
    of_a = _laid_out("scale_a", *_one("a", scale_a, recipe_a), mat_a.shape[0], k)
    of_b = _laid_out("scale_b", *_one("b", scale_b, recipe_b), mat_b.shape[1], k)
    return of_a, of_b


def scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | Sequence[Tensor],
    scale_recipe_a: Any,
    scale_b: Tensor | Sequence[Tensor],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Tensor | None = None,
    offs: Tensor | None = None,
    output_dtype: torch.dtype | EllipsisType | None = ...,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
    *,
    quantize_out: QuantizeOut | None = None,
    **options: Unpack[LayerOptions],
) -> Any:
    """Multiply groups of float8 by each other, as `torch.nn.functional.scaled_grouped_mm`.

    Parameters
    ----------
    mat_a, mat_b, offs, bias
        As in `unigemm.torch.grouped_mm`, of float8.
    scale_a, scale_b : Tensor of float32
        With recipe "RowWise" one for each row of `mat_a` and column of `mat_b`: (M,) and (N,) of
        matrices, (G, M) and (G, N) of stacks, and where groups divide K (G * M,) and (G * N,). With
        "TensorWise" one.
    scale_recipe_a, scale_recipe_b : torch.nn.functional.ScalingType or str
        "TensorWise" or "RowWise".
    swizzle_a, swizzle_b, contraction_dim, use_fast_accum, quantize_out
        As in `scaled_mm`.
    output_dtype : torch.dtype, optional
        Of the result. Where it is None, or left out, it is bfloat16, and of a quantised result
        float8_e4m3fn.
    **options
        `deterministic` and `backend`, as in `unigemm.matmul`.

    Returns
    -------
    Tensor
        A new one. With `quantize_out` a pair, the result and its scales.

    Raises
    ------
    UnigemmError
        As `unigemm.grouped_matmul`; or a recipe is another one.

    Examples
    --------
    >>> import torch, unigemm.torch
    >>> tokens, experts = (torch.ones(s).to(torch.float8_e4m3fn) for s in ((3, 16), (2, 16, 1)))
    >>> given = torch.arange(3.0), "RowWise", torch.ones(2, 1), "RowWise"
    >>> offs = torch.tensor([1, 3])
    >>> unigemm.torch.scaled_grouped_mm(tokens, experts, *given, offs=offs).flatten()
    tensor([ 0., 16., 32.], dtype=torch.bfloat16)
    """
    tensors(mat_a=mat_a, mat_b=mat_b, **present(offs=offs, bias=bias))
    if output_dtype is None:
        output_dtype = ...
    dtype = _output(output_dtype, quantized=quantize_out is not None)
    scales = grouped_scales(
        mat_a, mat_b, offs, scale_a, scale_recipe_a, scale_b, scale_recipe_b, swizzle_a, swizzle_b,
        contraction_dim,
    )  # fmt: skip
    operands = mat_a, mat_b, offs, bias, *scales
    return one_or_pair(
        "grouped_mm", *operands, quantize_out=quantize_out, options=options, out_dtype=dtype
    )


def grouped_scales(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None,
    scale_a: Any,
    recipe_a: Any,
    scale_b: Any,
    recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    contraction_dim: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Return scales as `unigemm.grouped_matmul` takes them, of what `scaled_grouped_mm` takes.

    Raises
    ------
    UnsupportedProblem, UnsupportedDtype, ShapeMismatch, LibraryMismatch
        What does not fit.
    """
    _check(mat_a, mat_b, swizzle_a, swizzle_b, contraction_dim)
    check_grouped(mat_a, mat_b, offs, None)
    found = []
    for which, x, scale, recipe in (
        ("a", mat_a, scale_a, recipe_a),
        ("b", mat_b, scale_b, recipe_b),
    ):
        scale, word = _one(which, scale, recipe)
        name, lines = f"scale_{which}", x.shape[-2 if which == "a" else -1]
        if word == "TensorWise":
            found.append(_laid_out(name, scale, word, lines, 1))
            continue
        if word != "RowWise":
            raise UnsupportedProblem(
                f"scale_recipe_{which} is {word}, and groups have scales of the whole or of rows; "
                "use TensorWise or RowWise, or loop over the groups with scaled_mm"
            )
        if scale.dtype is not torch.float32:
            raise UnsupportedDtype(f"{name} is {scale.dtype}; pass float32")
        stack: tuple[Any, ...] = ()
        whole: tuple[Any, ...] = (lines,)
        if x.dim() == 3:
            stack, whole = (x.shape[0],), (x.shape[0], lines)
        elif mat_a.dim() == mat_b.dim() and offs is not None:  # groups divide K
            stack, whole = (offs.shape[0],), (offs.shape[0] * lines,)
        if tuple(scale.shape) != whole:
            raise _other(name, tuple(scale.shape), word, str(whole))
        of_each = (lines, 1) if which == "a" else (1, lines)
        found.append(scale.reshape(*stack, *of_each))
    return found[0], found[1]


def _output(requested: torch.dtype | EllipsisType, *, quantized: bool) -> torch.dtype | None:
    """Return the type of a result, or None for that of quantised ones.

    Raises
    ------
    UnsupportedDtype
        There is no such type, or nothing is quantised to it.
    """
    if requested is ...:
        return None if quantized else torch.bfloat16
    if not isinstance(requested, torch.dtype):
        raise UnsupportedDtype(
            f"output_dtype is {shown(requested)}; pass a torch.dtype, such as torch.bfloat16"
        )
    if quantized:
        check_quantized(parse_dtype(requested), "output_dtype")
    return requested


def _check(
    mat_a: Tensor, mat_b: Tensor, swizzle_a: Any, swizzle_b: Any, contraction_dim: Sequence[int]
) -> None:
    """Refuse operands and options that have no product by a recipe.

    Raises
    ------
    UnsupportedProblem, UnsupportedDtype
        An operand or an option has no product by a recipe.
    """
    if mat_a.dtype not in FLOAT8 or mat_b.dtype not in FLOAT8:
        raise UnsupportedDtype(
            f"scaled products are of float8_e4m3fn and float8_e5m2, and these are {mat_a.dtype} "
            f"and {mat_b.dtype}; unigemm.torch.matmul takes scales of int8, too"
        )
    dims = contraction_dim
    named = isinstance(dims, list | tuple) and all(isinstance(x, int) for x in dims)
    if not named or tuple(dims) not in ((), (1, 0), (-1, -2), (-1, 0), (1, -2)):
        raise UnsupportedProblem(
            f"contraction_dim is {shown(contraction_dim)}; pass the transpose (mat.t()) of what "
            "is to be multiplied along its other dimension, and leave it out"
        )
    for name, swizzle in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        for each in swizzle if isinstance(swizzle, list | tuple) else (swizzle,):
            number, word = isinstance(each, int), getattr(each, "name", each)
            no_swizzle = each == 0 if number else isinstance(word, str) and word == "NO_SWIZZLE"
            if each is not None and not no_swizzle:
                raise UnsupportedProblem(
                    f"{name} is {shown(each)}, which scales of Blackwell's formats have; leave it "
                    "out, or multiply these with unigemm.matmul"
                )


def _one(which: str, scale: Any, recipe: Any) -> tuple[Tensor, str]:
    """Return the scale of an operand and its recipe's name, which may come in lists."""
    given = []
    for name, x in ((f"scale_{which}", scale), (f"scale_recipe_{which}", recipe)):
        if isinstance(x, list | tuple):
            if len(x) != 1:
                raise UnsupportedProblem(
                    f"{name} has {len(x)} entries, as Blackwell's formats have; pass one, or "
                    "multiply these with unigemm.matmul"
                )
            x = x[0]
        given.append(x)
    scale, recipe = given
    if isinstance(recipe, int) and 0 <= recipe < len(_RECIPES):
        recipe = _RECIPES[recipe]
    word = getattr(recipe, "name", recipe)
    if isinstance(word, str) and word in ("BlockWise1x16", "BlockWise1x32"):
        raise UnsupportedProblem(
            f"scale_recipe_{which} is {word}, of Blackwell's formats; unigemm.matmul takes their "
            "scales as float8_e4m3fn and float8_e8m0fnu, without a recipe"
        )
    if not isinstance(word, str) or word not in _TAKEN:
        raise UnsupportedProblem(
            f"scale_recipe_{which} is {shown(recipe)}; use one of {', '.join(_TAKEN)}"
        )
    if not isinstance(scale, Tensor):
        raise LibraryMismatch(
            f"scale_{which} is a {type(scale).__name__}; pass a torch.Tensor of float32"
        )
    tensors(**{f"scale_{which}": scale})
    return scale, word


def _laid_out(name: str, scale: Tensor, recipe: str, lines: Any, k: Any) -> Tensor:
    """Return a view of an operand's scales as `unigemm.matmul` takes them.

    Parameters
    ----------
    name, scale, recipe
        Of the operand.
    lines, k
        Rows of A or columns of B, and their length; they may be symbols.
    """
    of_a = name == "scale_a"
    shape = tuple(scale.shape)
    exponents = recipe.startswith("Block") and scale.dtype is torch.float8_e8m0fnu
    if scale.dtype is not torch.float32 and not exponents:
        raise UnsupportedDtype(f"{name} is {scale.dtype}; pass float32")
    if recipe == "TensorWise":
        if scale.numel() != 1:
            raise _other(name, shape, recipe, "one element")
        return scale.reshape(())
    if recipe == "RowWise":
        whole = (lines, 1) if of_a else (1, lines)
        if shape not in (whole, whole[::-1], (lines,)):
            raise _other(name, shape, recipe, str(whole))
        return scale.reshape(whole)
    blocks = -(-k // BLOCK)
    if recipe == "BlockWise1x128":
        if shape != (lines, blocks):
            raise _other(name, shape, recipe, str((lines, blocks)))
        return scale if of_a else scale.t()
    of_lines, padded = -(-lines // BLOCK), -(-blocks // _PADDED) * _PADDED
    if shape not in ((blocks, of_lines), (padded, of_lines)):
        raise _other(name, shape, recipe, f"{(blocks, of_lines)} or {(padded, of_lines)}")
    scale = scale[:blocks]
    return scale.t() if of_a else scale


def _other(name: str, shape: tuple[Any, ...], recipe: str, expected: str) -> ShapeMismatch:
    return ShapeMismatch(f"{name} has shape {shape}; with recipe {recipe} it is {expected}")
