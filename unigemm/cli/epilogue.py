"""The option ``--epilogue``: words for what `unigemm.matmul` takes by name, scales included."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..arrays.array_spec import ArraySpec
from ..errors import UnsupportedProblem
from ..problem.canonical import result_shape
from ..problem.dtypes import DType

__all__ = ["EpilogueWords", "fused_specs"]

#: Beside the names of activations.
WORDS = (
    *("alpha", "bias", "c", "preact_out", "amax_out", "bias_grad_out"),
    *("scale_a", "scale_b", "scale_d", "halves"),
)
EpilogueWords = Annotated[
    str | None,
    typer.Option(
        "--epilogue",
        help="What is done to the sums, such as bias,gelu_tanh: words for what matmul takes by "
        f"name ({', '.join(WORDS)} of a gate, and activations).",
    ),
]


def fused_specs(
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
    asked: dict[str, Any] = {}
    for word in (text or "").split(","):
        name = word.strip()
        if name in kinds:
            asked[name] = kinds[name]
        elif name == "halves":
            asked["gate_layout"] = name
        elif name in (*ACTIVATIONS, *GATED, *GRADIENTS) and "activation" not in asked:
            asked["activation"] = name
            if name in GATED:
                asked.setdefault("gate_layout", "interleaved")
            asked |= {"preact": ArraySpec(shape, kind)} if name in GRADIENTS else {}
        elif name:
            known = ", ".join((*WORDS, *ACTIVATIONS, *GATED, *GRADIENTS))
            raise UnsupportedProblem(
                f"--epilogue {name[:40]!r} is not known, or a second activation; use words of "
                f"{known}, with commas between them"
            )
    return asked
