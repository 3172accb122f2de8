"""Host products that NumPy's own matmul computes, from addresses.

It multiplies integers, booleans, complex numbers and long doubles, converts mixed types by NumPy's
promotion, and reads memory that is unaligned or in another byte order. All errors are raised when
a call is bound, so that a launch only multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arrays.numpy_arrays import memory_viewer
from ..arrays.operands import HostArray, compact_strides, output_dtype, parse_dtype
from ..errors import ShapeMismatch, UnsupportedDtype, UnsupportedProblem
from ..problem.canonical import Layout, result_shape
from ..problem.dtypes import FLOAT8, INPUTS, may_multiply, numpy_dtype, output_dtypes
from ..problem.overlap import refuse_self_overlap

if TYPE_CHECKING:
    import numpy as np

    from ..planning.backend import Launcher

__all__ = ["CASTINGS", "HostProduct", "is_for_kernels", "numpy_product", "refuse_casts"]

_FLOAT8 = {dtype.value for dtype in FLOAT8}  # converted to the type that they are mixed with
#: The rules of `numpy.can_cast`.
CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


@dataclass(frozen=True)
class HostProduct:
    """A product that NumPy computes.

    Attributes
    ----------
    a, b, out
        The arrays; `out` may be None.
    shape
        Shape of the result.
    dtype
        Type of the result; `out` may have another one.
    loop
        The types of the two inputs after NumPy has converted them, and the type of the
        accumulators.
    """

    a: HostArray
    b: HostArray
    out: HostArray | None
    shape: tuple[int, ...]
    dtype: np.dtype
    loop: tuple[np.dtype, np.dtype, np.dtype]

    by = "numpy.matmul"  # what computes it

    @property
    def d(self) -> HostArray:
        """The array that is written: `out`, or a new one."""
        if self.out is not None:
            return self.out
        steps = tuple(step * self.dtype.itemsize for step in compact_strides(self.shape))
        return HostArray(0, self.shape, steps, self.dtype)

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        """The layouts that NumPy multiplies: those of the arrays, or compact copies."""

        def effective(x: HostArray, shape: tuple[int, ...], dtype: np.dtype) -> Layout:
            if x.layout is not None and x.dtype == dtype and x.shape == shape:
                return x.layout
            return Layout(shape, compact_strides(shape), parse_dtype(dtype))

        a, b, d = self.loop
        shape = result_shape(self.a.shape, self.b.shape)
        x, y = effective(self.a, self.a.shape, a), effective(self.b, self.b.shape, b)
        return x, y, effective(self.d, shape, d)

    def launcher(self) -> Launcher:
        """Return a function that computes the product, from the addresses of a, b and d."""
        import numpy as np

        view_a, view_b, view_d = (
            memory_viewer(x.shape, x.strides, x.dtype) for x in (self.a, self.b, self.d)
        )
        matmul = np.matmul
        loop: Any = self.loop
        conjugate_a, conjugate_b = self.a.conjugated, self.b.conjugated

        def launch(a: int, b: int, d: int, workspace: int, stream: int) -> None:
            x, y = view_a(a), view_b(b)
            x, y = x.conj() if conjugate_a else x, y.conj() if conjugate_b else y
            # The casts have been checked, and NumPy handles a d that shares memory with a or b.
            matmul(x, y, view_d(d), signature=loop, casting="unsafe")

        return launch


def is_for_kernels(a: HostArray, b: HostArray, out: HostArray | None, dtype: Any) -> bool:
    """Whether the numpy backend's kernel takes the arrays and the type of the result."""
    x, y, z = a.layout, b.layout, None if out is None else out.layout
    if x is None or y is None or (out is not None and z is None):
        return False
    if x.dtype not in INPUTS or not may_multiply(x.dtype, y.dtype):
        return False
    requested = None if dtype is None else parse_dtype(dtype)
    if z is not None:
        if requested not in (None, z.dtype) or z.shape != result_shape(x.shape, y.shape):
            return False
        requested = z.dtype
    return requested is None or requested in output_dtypes(x.dtype)


def numpy_product(
    a: HostArray,
    b: HostArray,
    out: HostArray | None,
    dtype: Any,
    casting: str | None,
    *,
    promotes: bool,
) -> HostProduct | None:
    """Return the product that NumPy computes for a call; None if it does not take the types.

    Parameters
    ----------
    a, b, out
        The arrays; `out` may be None.
    dtype, casting
        As in `unigemm.matmul`.
    promotes
        Whether to convert mixed types as NumPy does. If not, all types must be the same.

    Raises
    ------
    ShapeMismatch
        The shapes do not fit.
    UnsupportedDtype
        `casting` forbids a cast, or mixed types must not be converted.
    OverlapError
        Two elements of `out` share an address.
    """
    shape = result_shape(a.shape, b.shape)
    if out is not None:
        _refuse_shape(out.shape, shape, (len(a.shape) > 1) + (len(b.shape) > 1), promotes)
        shape = out.shape
        if out.conjugated:
            raise UnsupportedProblem(
                "out is a lazily conjugated view; pass the tensor that it is a view of"
            )
        refuse_self_overlap("out", out.shape, out.strides, out.dtype.itemsize)
    requested = _requested(a, b, out, dtype, promotes)
    loop = _loop(a, b, out, requested, casting or "same_kind")
    if loop is None:
        return None
    return HostProduct(a, b, out, shape, loop[2] if requested is None else requested, loop)


def refuse_casts(given: Sequence[np.dtype], dtype: np.dtype, casting: str) -> None:
    """Refuse inputs that would need a cast to the result's type that `casting` forbids.

    Raises
    ------
    UnsupportedDtype
        One would.
    """
    import numpy as np

    for own in given:
        if not np.can_cast(own, dtype, casting):  # type: ignore[arg-type]
            raise UnsupportedDtype(
                f"{own} inputs give {dtype}, which casting={casting!r} does not allow; leave "
                "casting out, or pass dtype="
            )


def _refuse_shape(
    out: tuple[int, ...], shape: tuple[int, ...], core: int, broadcasts: bool
) -> None:
    """Refuse an `out` that has neither the product's shape nor one that it broadcasts to."""
    import numpy as np

    fits = out == shape
    if (
        broadcasts
        and len(out) >= len(shape)
        and out[len(out) - core :] == shape[len(shape) - core :]
    ):
        batch, stack = shape[: len(shape) - core], out[: len(out) - core]
        try:
            fits = np.broadcast_shapes(batch, stack) == stack
        except ValueError:
            fits = False
    if not fits:
        raise ShapeMismatch(
            f"out has shape {out}; the product has shape {shape} and is non-broadcastable to it: "
            f"pass an out of shape {shape}"
        )


def _requested(
    a: HostArray, b: HostArray, out: HostArray | None, dtype: Any, promotes: bool
) -> np.dtype | None:
    """Return the type of the result where NumPy does not decide it, else None."""
    import numpy as np

    requested = None if dtype is None else numpy_dtype(parse_dtype(dtype))
    if not promotes:
        return _one_type(a, b, out, requested)
    if requested is not None:
        return requested
    kinds = {a.dtype, b.dtype}
    if np.dtype(np.int8) in kinds and kinds <= {np.dtype(np.int8), np.dtype(np.bool_)}:
        requested = np.dtype(np.int32)  # as kernels do, so that nothing of an accumulator is lost
        if out is not None and out.dtype.kind == "i":
            # As dtype= requests it: the low bits of the accumulators.
            requested = out.dtype.newbyteorder("=")
        elif out is not None and not np.can_cast(requested, out.dtype, "safe"):
            raise UnsupportedDtype(
                f"int8 inputs do not give a {out.dtype} result; use int32, or int8 or int16 for "
                "the low bits of the accumulators, as numpy.matmul keeps them"
            )
    elif {kind.name for kind in kinds} == {"bfloat16"} and out is None:
        requested = a.dtype  # NumPy itself gives float32
    return requested


def _loop(
    a: HostArray, b: HostArray, out: HostArray | None, requested: np.dtype | None, casting: str
) -> tuple[np.dtype, np.dtype, np.dtype] | None:
    """Return the types that NumPy multiplies and adds up; None if it does not take them."""
    import numpy as np

    arrays = (a, b) if out is None else (a, b, out)
    if not all(_is_number(x.dtype) or x.dtype.name in _FLOAT8 for x in arrays):
        return None
    given = (a.dtype, b.dtype, None if out is None else out.dtype)
    options: dict[str, Any] = {"casting": casting}
    if requested is not None:
        # Accumulators of bfloat16 are float32, and rounded once.
        acc = np.dtype(np.float32) if requested.name == "bfloat16" else requested
        options["signature"] = (None, None, acc)
    try:
        first, second, result = np.matmul.resolve_dtypes(given, **options)
    except TypeError as error:
        raise UnsupportedDtype(
            f"{error}; convert the arrays, pass dtype=, or a wider casting="
        ) from None
    return (first, second, result) if _is_number(result) else None


def _is_number(dtype: np.dtype) -> bool:
    """Whether a type is one of NumPy's own, or bfloat16, which NumPy adds up in float32."""
    import numpy as np

    own = issubclass(dtype.type, np.number | np.bool_) and dtype.type.__module__ == "numpy"
    return own or dtype.name == "bfloat16"


def _one_type(
    a: HostArray, b: HostArray, out: HostArray | None, requested: np.dtype | None
) -> np.dtype:
    """Return the type of a product of a library that does not convert types."""
    x, y = (Layout(each.shape, each.strides, parse_dtype(each.dtype)) for each in (a, b))
    given = requested if out is None or requested is not None else out.dtype
    found = output_dtype(None if given is None else parse_dtype(given), x, y, on_host=True)
    if out is not None and parse_dtype(out.dtype) is not found:
        raise UnsupportedDtype(f"out is {out.dtype} and dtype= asks for {found}; make them agree")
    return numpy_dtype(found)
