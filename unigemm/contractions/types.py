"""The types of a contraction, decided once: what is read, what sums are kept in, what is given.

All operands are converted to one type before anything is summed, whatever the order of products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..arrays.array_spec import ArraySpec
from ..arrays.operands import HostArray, parse_dtype
from ..errors import UnsupportedDtype
from ..problem.dtypes import (
    COMPLEX,
    CONVERTED,
    FLOAT8,
    DType,
    accumulator,
    may_multiply,
    numpy_dtype,
    output_dtypes,
    real_part,
)
from ..runtime.numpy_matmul import numpy_product, refuse_casts
from ..runtime.options import Options, check_options
from ..runtime.request import Request
from ..runtime.result_type import described_type
from ..runtime.scale_arguments import NO_SCALES
from .terms import Term

__all__ = ["Product", "Types", "common_type", "native_type", "types_of"]

#: Options that products of some operands have, too; all others are for the last product.
_OF_SUMS = ("precision", "deterministic", "backend", "stream")
_REAL = (*CONVERTED, *FLOAT8)  # the types whose products GPUs compute as real ones
_ADDED = (DType.BFLOAT16, *FLOAT8)  # to NumPy's own types, which promote them as float32


class Product(NamedTuple):
    """One product of a contraction.

    Attributes
    ----------
    request
        What `matmul` is called with, but for the operands.
    dtype
        The type of its result.
    copied
        For each operand the type that it is copied to before; None where `matmul` reads it itself.
    """

    request: Request
    dtype: DType
    copied: tuple[DType | None, DType | None]


class Types(NamedTuple):
    """The types of a contraction.

    Attributes
    ----------
    read
        What every operand is converted to.
    sums
        What products that others follow are kept in: the type of the accumulators.
    result
        What the contraction gives.
    converted
        The types that `matmul` converts itself where they are mixed.
    """

    read: DType
    sums: DType
    result: DType
    converted: tuple[DType, ...]

    def product(self, request: Request, a: Term, b: Term, *, last: bool) -> Product:
        """Return how two terms of a contraction are multiplied.

        Parameters
        ----------
        request
            What is requested of the contraction.
        a, b
            The terms; one of them may be the number one.
        last
            Nothing follows.
        """
        if last and not (a.made or b.made):
            return Product(request, self.result, (None, None))
        copied = [self._narrowed(x) for x in (a, b)]
        kinds = [x.dtype if to is None else to for x, to in zip((a, b), copied, strict=True)]
        x, y = kinds[0] or kinds[1], kinds[1] or kinds[0]
        assert x is not None
        assert y is not None
        dtype = self.result if last else self.sums
        if not last:
            if dtype in COMPLEX and x in _REAL and y in _REAL:
                dtype = real_part(dtype)
            options = {name: getattr(request, name) for name in _OF_SUMS}
            options["casting"] = "unsafe" if request.casting == "unsafe" else None
            request = Request(None, None, dtype=dtype, **options)
        else:
            request = self._of_sums(request)
        if not self._multiplies(x, y, dtype, epilogue=bool(request.arguments())):
            whole = self.sums if last else dtype
            copied = [
                whole if kind is not None and kind is not whole else to
                for kind, to in zip(kinds, copied, strict=True)
            ]
        return Product(request, dtype, (copied[0], copied[1]))

    def _narrowed(self, x: Term) -> DType | None:
        """Return the type that an operand is rounded to first: sums are kept in a wider one."""
        import numpy as np

        if x.made or x.dtype is None or self.read is self.sums:
            return None
        fits = np.can_cast(numpy_dtype(x.dtype), numpy_dtype(self.read), "safe")
        return None if fits or x.dtype is self.read else self.read

    def _of_sums(self, request: Request) -> Request:
        """Return the request of the last product, of sums whose casts have been checked."""
        changed: dict[str, Any] = {}
        if self.converted:
            changed["casting"] = "unsafe" if request.casting == "unsafe" else None
        if request.out is None:
            changed["dtype"] = self.result
        if self.sums is DType.FLOAT32 and self.result not in output_dtypes(self.sums):
            rounded = self.result in output_dtypes(self.sums, epilogue=True)
            if rounded and not request.arguments():
                changed["alpha"] = 1.0  # an epilogue rounds the accumulators
        return request._replace(**changed)

    def _multiplies(self, x: DType, y: DType, dtype: DType, *, epilogue: bool) -> bool:
        """Whether `matmul` takes two types for such a result, and sums in the right type."""
        if may_multiply(x, y) and dtype in output_dtypes(x, epilogue=epilogue):
            return True
        return not epilogue and x in self.converted and y in self.converted


def native_type(x: Any, name: str = "dtype") -> DType:
    """Return the element type of an array, or of an `ArraySpec`, in this machine's byte order.

    Raises
    ------
    UnsupportedDtype
        It is none that anything multiplies.
    """
    dtype = x.dtype
    return parse_dtype(dtype if getattr(dtype, "isnative", True) else dtype.newbyteorder("="), name)


def common_type(kinds: Sequence[DType], *, promotes: bool) -> DType:
    """Return the common type of all operands, by NumPy's promotion; either one of two float8.

    Raises
    ------
    UnsupportedDtype
        Types are mixed, and their library does not promote them.
    """
    first, *others = dict.fromkeys(kinds)
    if not others:
        return first
    import numpy as np

    if all(kind in FLOAT8 for kind in kinds):
        return first
    if not promotes:
        i = next(i for i, kind in enumerate(kinds) if kind is not first)
        raise UnsupportedDtype(
            f"operand 0 is {first} and operand {i} is {kinds[i]}; nothing is converted silently: "
            "convert one of them"
        )
    own = (numpy_dtype(DType.FLOAT32 if kind in _ADDED else kind) for kind in kinds)
    return parse_dtype(np.result_type(*own))


def types_of(
    kinds: Sequence[DType], request: Request, *, promotes: bool, on_host: bool
) -> Types:  # fmt: skip
    """Return the types of a contraction.

    Parameters
    ----------
    kinds
        Those of its operands.
    request
        What is requested.
    promotes
        Whether the operands' library converts mixed types as NumPy does.
    on_host
        Whether they are in host memory.

    Raises
    ------
    UnsupportedDtype
        The operands do not give such a result, or `casting` forbids what is requested.
    UnsupportedProblem
        An option is one that no call can have.
    """
    check_options(Options.of(request, NO_SCALES))
    dtype = None if request.dtype is None else parse_dtype(request.dtype)
    out = native_type(request.results[0], "out") if request.results else None
    given = bool(request.arguments()), bool(request.scales())
    return _types(tuple(kinds), dtype, out, request.casting, given, promotes, on_host)


@lru_cache(maxsize=512)
def _types(
    kinds: tuple[DType, ...], dtype: DType | None, out: DType | None, casting: str | None,
    given: tuple[bool, bool], promotes: bool, on_host: bool,
) -> Types:  # fmt: skip
    """Return the types of a contraction by `matmul`'s rule for two operands of the common type."""
    common = common_type(kinds, promotes=promotes)
    like = ArraySpec((1, 1), common)
    epilogue, scaled = given
    # Casts to a requested type are those of the operands' own types, which are checked below.
    rule = "unsafe" if promotes and dtype is not None else casting
    request = Request(
        like, like, dtype=dtype, casting=rule,
        alpha=1.0 if epilogue else None, scale_a=1.0 if scaled else None,
    )  # fmt: skip
    result = described_type(request, on_host=on_host, promotes=promotes)
    read, result = common, result if out is None else out
    if result not in output_dtypes(common, epilogue=epilogue or scaled):
        x = HostArray.of(like.layout)
        z = None if out is None else HostArray.of(ArraySpec((1, 1), out).layout)
        product = numpy_product(x, x, z, dtype, rule, promotes=promotes)
        read = common if product is None else parse_dtype(product.loop[0])
    if read in FLOAT8 and len({*kinds}) > 1:
        read = DType.FLOAT32
    if promotes:
        to = numpy_dtype(dtype or read)
        refuse_casts([*map(numpy_dtype, kinds)], to, casting or "same_kind")
        if out is not None and dtype is not None:
            refuse_casts([to], numpy_dtype(out), casting or "same_kind")
    sums = accumulator(read)
    if read is DType.INT8 and result is not sums:  # rounded from floats, or its low bits
        sums = DType.INT8 if result is DType.INT8 and not epilogue else DType.FLOAT32
    converted: tuple[DType, ...] = tuple(DType) if on_host else (*CONVERTED, *COMPLEX)
    return Types(read, sums, result, converted if promotes else ())
