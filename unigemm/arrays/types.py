"""Types of the arguments and results of the public functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Union

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np

    from ..activations import Activation
    from ..planning.plan import Plan
    from ..problem.problem import Precision
    from .array_spec import ArraySpec, DTypeLike

__all__ = [
    "Array",
    "ArrayLike",
    "ArrayT",
    "Axes",
    "Casting",
    "ContractionOptions",
    "DTypeLike",
    "EinsumOptions",
    "EpilogueOptions",
    "GateLayout",
    "GroupedOptions",
    "MatmulOptions",
    "NumPyArray",
    "NumPyLike",
    "OneResultOptions",
    "PreparedOptions",
    "ProductOptions",
    "QuantizeOut",
    "Rest",
    "Scale",
    "Stream",
    "Tensor",
]


class Array(Protocol):
    """An array of any library: NumPy, CuPy, PyTorch, JAX, and all others with DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Export the array."""
        ...

    def __dlpack_device__(self) -> Any:
        """Say where it is."""
        ...


ArrayT = TypeVar("ArrayT", bound=Array)
ArrayT_co = TypeVar("ArrayT_co", bound=Array, covariant=True)


class Tensor(Array, Protocol[ArrayT_co]):
    """A PyTorch tensor, or a parameter: of both a product is what `detach` gives."""

    def detach(self) -> ArrayT_co:
        """Return the tensor without its history."""
        ...


class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...


class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...


class _CudaStream(Protocol):
    @property
    def __cuda_stream__(self) -> Any: ...


class _Handle(Protocol):
    @property
    def handle(self) -> Any: ...


if TYPE_CHECKING:
    NumPyArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    #: Everything that NumPy makes an array of.
    NumPyLike: TypeAlias = Union[  # noqa: UP007  (it names itself)
        NumPyArray, np.generic, complex, Sequence["NumPyLike"]
    ]
    ArrayLike: TypeAlias = Array | NumPyLike | ArraySpec
    #: A CUDA stream: its address, or an object that has it.
    Stream: TypeAlias = int | _TorchStream | _CupyStream | _CudaStream | _Handle
    Scale: TypeAlias = float | Array | tuple[Array, float | Array]
    Axes: TypeAlias = list[tuple[int, ...] | int] | list[tuple[int, int]] | list[int]


GateLayout = Literal["interleaved", "halves"]
#: What shares a scale of a result of eight bits.
QuantizeOut = Literal["row"] | tuple[int, int]
#: What becomes of rows of a grouped product that are in no group.
Rest = Literal["zeros", "untouched"]
#: The rules of `numpy.can_cast`.
Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]


class EpilogueOptions(TypedDict, total=False):
    """What `unigemm.matmul` takes for an epilogue."""

    alpha: complex | Array | None
    beta: complex | Array | None
    c: Array | None
    bias: Array | float | None
    activation: Activation | None
    preact_out: Array | None
    preact: Array | None
    gate_layout: GateLayout | None
    scale_d: float | Array | None
    amax_out: Array | None
    bias_grad_out: Array | None
    epilogue: Callable[..., Any] | None
    epilogue_args: Mapping[str, Any] | None


class ProductOptions(EpilogueOptions, total=False):
    """The keyword arguments that all products have."""

    dtype: DTypeLike | None
    precision: Precision
    deterministic: bool
    batch_invariant: bool
    backend: str
    plan: Plan | None
    stream: Stream | None


class OneResultGroupedOptions(ProductOptions, total=False):
    """The keyword arguments of `unigemm.grouped_matmul` but the one that makes two results."""

    rows: Array | Sequence[int] | None
    rest: Rest
    scale_a: float | Array | None
    scale_b: float | Array | None


class GroupedOptions(OneResultGroupedOptions, total=False):
    """The keyword arguments of `unigemm.grouped_matmul`."""

    quantize_out: QuantizeOut | None


class EinsumOptions(ProductOptions, total=False):
    """The keyword arguments of `unigemm.matmul` that contractions have, too."""

    scale_a: Scale | None
    scale_b: Scale | None
    casting: Casting | None


class ContractionOptions(EinsumOptions, total=False):
    """The keyword arguments of contractions."""

    quantize_out: QuantizeOut | None


class OneResultOptions(EinsumOptions, total=False):
    """The keyword arguments of `unigemm.matmul` but the one that makes two results of one."""

    axes: Axes | None


class MatmulOptions(OneResultOptions, total=False):
    """The keyword arguments of `unigemm.matmul`."""

    quantize_out: QuantizeOut | None


class PreparedOptions(MatmulOptions, total=False):
    """The keyword arguments of `unigemm.prepare`: of `matmul`, or of `grouped_matmul`."""

    offsets: Array | Sequence[int] | None
    rows: Array | Sequence[int] | None
    rest: Rest
