"""Products in words, as the command line and files have them: sizes, dtypes, layouts, epilogues."""

from __future__ import annotations

from typing import Any

from ..arrays.array_spec import ArraySpec
from ..errors import UnsupportedProblem
from ..problem.block_scales import BLOCKS, FORMATS, blocked_count, blocks_of
from ..problem.canonical import result_shape
from ..problem.dtypes import DType, dtype_named
from ..support.arguments import is_one_of, shown
from .request import Request

__all__ = [
    "LAYOUTS",
    "QUANTIZED",
    "SCALES",
    "WORDS",
    "block_scaled_specs",
    "epilogue_specs",
    "grouped_specs",
    "quantize_out_of",
    "request_of",
    "requested_specs",
    "specs",
]

_OPERANDS = ("scale_a", "scale_b")
#: What shares a scale, by its argument; behind a colon a type, such as "1x128:float8_e8m0fnu".
SCALES = {
    "scale_a": ("tensor", "row", "1x128", "128x128"),
    "scale_b": ("tensor", "column", "1x128", "128x128"),
}
#: What shares a scale of a result of eight bits.
QUANTIZED: dict[str, Any] = {"1x128": (1, 128), "row": "row"}
LAYOUTS = ("nn", "nt", "tn", "tt")
_ALONG = ("m", "n", "k", "rows")
#: Besides the names of activations.
WORDS = (
    *("alpha", "bias", "c", "preact_out", "amax_out", "bias_grad_out"),
    *("scale_a", "scale_b", "scale_d", "halves"),
)


def specs(
    m: int, n: int, k: int, dtype: str, layout: str, batch: int
) -> tuple[ArraySpec, ArraySpec]:
    """Return the operands that the options describe.

    Raises
    ------
    UnsupportedProblem
        The layout or the dtype is not known.
    """
    if layout not in LAYOUTS:
        raise UnsupportedProblem(f"layout {layout!r} is not known; use nn, nt, tn or tt")
    kind = dtype_named(dtype)
    lead = (batch,) if batch > 1 else ()
    orders = ["F" if letter == "t" else "C" for letter in layout]
    return (
        ArraySpec((*lead, m, k), kind, orders[0]),  # type: ignore[arg-type]
        ArraySpec((*lead, k, n), kind, orders[1]),  # type: ignore[arg-type]
    )


def block_scaled_specs(
    m: int, n: int, k: int, name: str, layout: str, batch: int
) -> tuple[ArraySpec, ArraySpec, dict[str, ArraySpec]]:
    """Return the operands of a format with block scales, and the scales in tiles.

    Raises
    ------
    UnsupportedProblem
        The layout is unknown, or K is odd where two elements share a byte.
    """
    elements, scale = FORMATS[name]
    if elements is DType.FLOAT4_E2M1FN_X2:
        if k % 2:
            raise UnsupportedProblem(f"K is {k}; of {name} it is even, two elements are a byte")
        k //= 2
    a, b = specs(m, n, k, str(elements), layout, batch)
    blocks = blocks_of(k, BLOCKS[scale])
    scales = {
        argument: ArraySpec((*a.shape[:-2], blocked_count(rows, blocks)), scale)
        for argument, rows in (("scale_a", m), ("scale_b", n))
    }
    return a, b, scales


def grouped_specs(
    a: ArraySpec, b: ArraySpec, groups: int, along: str
) -> tuple[ArraySpec, ArraySpec, dict[str, Any], tuple[int, ...]]:
    """Return the operands of a grouped product, its ends, and its result's shape.

    Parameters
    ----------
    a, b
        The operands of the product of all.
    groups, along
        The options.

    Raises
    ------
    UnsupportedProblem
        There is nothing of that name to divide, or the operands are stacks already.
    """
    if along not in _ALONG:
        raise UnsupportedProblem(f"along {along[:40]!r} is not known; use m, n, k or rows")
    if len(a.shape) > 2:
        raise UnsupportedProblem("batch is not for groups; use groups alone, or along rows")

    def stack(x: ArraySpec) -> ArraySpec:
        return ArraySpec((groups, *x.shape), x.dtype, x.order)

    shape: tuple[int, ...] = (a.shape[0], b.shape[1])
    if along in ("k", "rows"):
        shape = (groups, *shape)
    a = stack(a) if along in ("n", "rows") else a
    b = stack(b) if along in ("m", "rows") else b
    ends = ArraySpec((groups,), "int32")
    return a, b, {"rows" if along == "rows" else "offsets": ends}, shape


def request_of(
    m: int,
    n: int,
    k: int,
    dtype: str,
    out_dtype: str | None = None,
    layout: str = "nn",
    batch: int = 1,
    epilogue: str | None = None,
    groups: int | None = None,
    along: str = "m",
    scale_a: str | None = None,
    scale_b: str | None = None,
    quantize_out: Any = None,
    **options: Any,
) -> Request:
    """Return the request of a product in words; options as in `unigemm.plan`.

    `scale_a` and `scale_b` are words of `SCALES`, and `quantize_out` is one of `QUANTIZED`.

    Raises
    ------
    UnsupportedProblem
        A word is not known.
    """
    given: dict[str, Any] = {}
    if dtype in FORMATS:
        a, b, given = block_scaled_specs(m, n, k, dtype, layout, batch)
    else:
        a, b = specs(m, n, k, dtype, layout, batch)
    shape = None
    if groups is not None:
        a, b, ends, shape = grouped_specs(a, b, groups, along)
        given |= {**ends, "operation": "grouped"}
    requested = requested_specs(epilogue, scale_a, scale_b, a, b, shape)
    # A scale of an operand that has block scales goes with them, as a pair.
    given |= {name: (given[name], x) if name in given else x for name, x in requested.items()}
    given["quantize_out"] = quantize_out_of(quantize_out)
    return Request(a, b, dtype=out_dtype, **given, **options)


def quantize_out_of(word: Any) -> Any:
    """Return the option that a word of `QUANTIZED` names; None names none.

    Raises
    ------
    UnsupportedProblem
        The word is not known.
    """
    if word is None:
        return None
    if not is_one_of(word, tuple(QUANTIZED)):
        raise UnsupportedProblem(
            f"quantize_out {shown(word)} is not known; use one of {', '.join(QUANTIZED)}"
        )
    return QUANTIZED[word]


def requested_specs(
    epilogue: str | None,
    scale_a: str | None,
    scale_b: str | None,
    a: ArraySpec,
    b: ArraySpec,
    shape: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Return what words of an epilogue and of scales name; the shape is as in `epilogue_specs`.

    Raises
    ------
    UnsupportedProblem, UnsupportedDtype
        A word is not known, or both name the same scale.
    """
    scales = _scale_specs(scale_a, scale_b, a, b)
    found = epilogue_specs(epilogue, a, b, shape)
    for name in scales.keys() & found.keys():
        raise UnsupportedProblem(
            f"{name} is a word of the epilogue and an option of its own; leave out one of them"
        )
    return {**scales, **found}


def _scale_specs(
    scale_a: str | None, scale_b: str | None, a: ArraySpec, b: ArraySpec
) -> dict[str, Any]:
    """Return the scales that words of `SCALES` name; None names none.

    Raises
    ------
    UnsupportedProblem
        A word is not known.
    UnsupportedDtype
        A type is not known.
    """
    found: dict[str, Any] = {}
    for name, text, x in zip(_OPERANDS, (scale_a, scale_b), (a, b), strict=True):
        if text is None:
            continue
        word, _, kind = text.partition(":") if isinstance(text, str) else (text, "", "")
        if not is_one_of(word, SCALES[name]):
            raise UnsupportedProblem(
                f"{name} {shown(text)} is not known; use one of {', '.join(SCALES[name])}, blocks "
                "perhaps with :float8_e8m0fnu"
            )
        if word == "tensor":
            found[name] = ArraySpec((), dtype_named(kind)) if kind else 2.0
            continue
        along = -1 if name == "scale_a" else -2
        of_lines, of_k = {"1x128": (1, 128), "128x128": (128, 128)}.get(word, (1, x.shape[along]))
        shape = [-(-extent // of_lines) for extent in x.shape[-2:]]
        shape[along] = -(-x.shape[along] // of_k)
        found[name] = ArraySpec((*x.shape[:-2], *shape), dtype_named(kind or "float32"))
    return found


def epilogue_specs(
    text: str | None, a: ArraySpec, b: ArraySpec, shape: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """Return the arguments of an epilogue that words such as "bias,gelu_tanh" name.

    The shape is that of the result, if that is no product of `a` and `b`.

    Raises
    ------
    UnsupportedProblem
        A word is not known.
    """
    from ..activations import ACTIVATIONS, GATED, GRADIENTS

    shape = result_shape(a.shape, b.shape) if shape is None else shape
    kind = DType.FLOAT32 if a.dtype.itemsize == 1 else a.dtype
    kinds: dict[str, Any] = {
        "alpha": 2.0,
        **dict.fromkeys(("scale_a", "scale_b", "scale_d"), 2.0),
        "bias": ArraySpec(shape[-1:], kind),
        "c": ArraySpec(shape, kind),
        "preact_out": ArraySpec(shape, DType.FLOAT32),
        "amax_out": ArraySpec((1,), DType.FLOAT32),
        "bias_grad_out": ArraySpec(shape[-1:], DType.FLOAT32),
    }
    requested: dict[str, Any] = {}
    for word in (text or "").split(","):
        name = word.strip()
        if name in kinds:
            requested[name] = kinds[name]
        elif name == "halves":
            requested["gate_layout"] = name
        elif name in (*ACTIVATIONS, *GATED, *GRADIENTS) and "activation" not in requested:
            requested["activation"] = name
            if name in GATED:
                requested.setdefault("gate_layout", "interleaved")
            requested |= {"preact": ArraySpec(shape, kind)} if name in GRADIENTS else {}
        elif name:
            known = ", ".join((*WORDS, *ACTIVATIONS, *GATED, *GRADIENTS))
            raise UnsupportedProblem(
                f"epilogue {name[:40]!r} is not known, or a second activation; use words of "
                f"{known}, with commas between them"
            )
    return requested
