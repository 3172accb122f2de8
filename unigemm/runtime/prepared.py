"""`prepare`: a product that is checked, planned and bound once, for arrays of one kind."""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..arrays.libraries import host_view
from ..arrays.library import Again, Library, again
from ..arrays.operands import HOST
from ..errors import UnsupportedProblem
from ..planning.plan import Plan
from ..support.arguments import shown
from .bind_any import bind_call
from .bound import Bound, called
from .call import call, opened, run
from .checked_call import whole
from .grouped import ENDS
from .request import NAMED, NONE, Request, known

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arrays.types import PreparedOptions, Stream

__all__ = ["Prepared", "prepare"]

_OPERANDS = ("a", "b", "out")
#: The fields that a caller gives by name; those of functions are mappings.
_BY_NAME = (*(name for name in NAMED if name not in _OPERANDS), "epilogue_args")


def prepare(a: Any, b: Any, /, out: Any = None, **options: Unpack[PreparedOptions]) -> Prepared:
    """Check, plan and load a product once, and return a function that computes it.

    Nothing is launched, and nothing of `out` is written. A call of the function costs less than one
    of `matmul`, because it looks nothing up.

    Parameters
    ----------
    a, b, out, **options
        As in `matmul`; with `offsets` or `rows` as in `grouped_matmul`, by which each call divides
        anew. The function is for arrays as these: of the same type, dtype, shape, strides and
        device, and with addresses of the same remainder by 16. It keeps none of them.

    Returns
    -------
    Prepared
        ``f(a, b, out=None, *, stream=None, **given)``, where `given` are the other arrays that it
        was prepared with, by name, and any of its numbers that change.

    Raises
    ------
    UnigemmError
        As `matmul` does.

    Examples
    --------
    >>> import numpy as np, unigemm
    >>> a, b = np.eye(2, dtype="f4"), np.ones((2, 3), "f4")
    >>> f = unigemm.prepare(a, b, bias=b[0], alpha=2.0)
    >>> f(a, b, bias=b[0])
    array([[3., 3., 3.],
           [3., 3., 3.]], dtype=float32)
    """
    grouped = any(options.get(name) is not None for name in ENDS)
    operation: Literal["matmul", "grouped"] = "grouped" if grouped else "matmul"
    return Prepared(Request(a, b, out, operation=operation, **options))


class Prepared:
    """What `unigemm.prepare` returns: a function that computes one product.

    Several threads may call it. Pickled, it comes back as one that plans and binds again at its
    first call, on the machine that it has come to.

    Attributes
    ----------
    plan
        The plan; None if there is nothing to multiply, or NumPy's own matmul computes it.
    """

    plan: Plan | None

    def __init__(self, request: Request) -> None:
        request = whole(request)
        self._required = tuple(n for n in _BY_NAME if _has_array(getattr(request, n)))
        nothing: dict[str, Any] = dict.fromkeys(("a", "b", *self._required))
        more = request.epilogue_args
        if isinstance(more, Mapping) and "epilogue_args" in self._required:  # keep its numbers
            nothing["epilogue_args"] = {n: x for n, x in more.items() if not _has_array(x)}
        self._has_out = request.out is not None
        self._template = request._replace(**nothing, out=None, stream=None)
        self._views: Prepared | None = None
        self._texts: dict[str, str] = {}
        self._bound: dict[Hashable, Bound] = {}  # by its key, which tracing has not, though equal
        self._quick: _Quick | None = None
        self._is_new = False  # it has come from another process, and is bound at the first call
        with opened(request) as (library, views, _):
            if views is not request:
                self._views = Prepared(views)
                self.plan = self._views.plan
                return
            self._bind(library, request)
            self._texts = _texts(library, request)

    def _bind(self, library: Library, request: Request) -> None:
        try:
            key, arrays, _, numbers = known(library, *request.parts[:3])
            hash(key)
        except Exception:  # a function that nothing tells from others
            key, arrays, numbers = None, (), NONE
        bound, _ = bind_call(library, request)
        self.plan = bound.plan
        # Otherwise each call is bound anew, as `matmul` does.
        if bound.kept and key is not None:
            pairs = any(type(x) is tuple for x in request)
            if (
                not pairs
                and request.epilogue is None
                and not (self._has_out and request.c is not None)
            ):
                names = bound.arrays.names[3 if self._has_out else 2 :]
                addresses_of = again(library, arrays, bound.arrays.reach)
                self._quick = _Quick(library, bound, addresses_of, names, numbers, request.parts[1])
            self._bound = {key: bound}

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of each call, which the library of `a` allocates."""
        return 0 if self.plan is None else self.plan.workspace_bytes

    def __call__(
        self, a: Any, b: Any, /, out: Any = None, *, stream: Stream | None = None, **given: Any
    ) -> Any:
        """Compute the product.

        Parameters
        ----------
        a, b, out
            Arrays like those that it was prepared for, and `out` only if there was one.
        stream
            As in `matmul`.
        **given
            The other arrays, all of them, and numbers in place of those that it was prepared with,
            in `epilogue_args` too.

        Returns
        -------
        array
            As `matmul`.

        Raises
        ------
        UnsupportedProblem
            An array is not like the one that it was prepared for, or a number is 0 and that one was
            not; or one of them is left out, or was not there. Also what `matmul` raises.
        """
        quick = self._quick
        if quick is not None and (out is None) is quick.bound.fresh:
            library, bound, addresses_of, names, numbers, options = quick
            arrays: tuple[Any, ...] = (a, b) if out is None else (a, b, out)
            if names:
                arrays = (*arrays, *map(given.get, names))
            addresses = None
            if len(given) == len(names):
                try:
                    addresses = addresses_of(arrays)
                except Exception:
                    addresses = None  # something is wrong with an array: it will be said
            if addresses is not None:
                parts: tuple[Any, ...] = ()
                if bound.fresh:  # for a result that is not aligned
                    parts = (arrays, options, self._template.plan)
                    if names:
                        parts = self._template._replace(a=a, b=b, **given).parts
                return run(library, bound, arrays, addresses, numbers, stream, parts, held=True)
        return self._compute(self._request(a, b, out, stream, given))

    def _request(self, a: Any, b: Any, out: Any, stream: Any, given: Mapping[str, Any]) -> Request:
        """Return the request of a call."""
        if (out is not None) is not self._has_out:
            raise UnsupportedProblem(
                f"this was prepared with{'' if self._has_out else 'out'} out=; call it so, or "
                "prepare another"
            )
        for name in self._required:
            if given.get(name) is None:
                raise UnsupportedProblem(f"this was prepared with an array as {name}; pass {name}=")
        for name, x in given.items():
            if name not in _BY_NAME or (
                name not in self._required and getattr(self._template, name) is None
            ):
                raise UnsupportedProblem(
                    f"this was prepared without {shown(name)}; prepare another with it, or leave "
                    "it out"
                )
            if x is None:
                raise UnsupportedProblem(
                    f"{name} is None, and this was prepared with a number as {name}; pass another, "
                    "or leave it out"
                )
        kept = self._template.epilogue_args
        if kept and isinstance(given.get("epilogue_args"), Mapping):
            given = {**given, "epilogue_args": {**kept, **given["epilogue_args"]}}
        return whole(self._template._replace(a=a, b=b, out=out, stream=stream, **given))

    def _compute(self, request: Request) -> Any:
        with opened(request) as (library, views, back):
            if self._views is not None:
                return back(self._views._compute(views))
            bound = None
            if self._bound:
                with suppress(Exception):  # something is wrong: it is said below
                    key, arrays, addresses, numbers = known(library, *request.parts[:3])
                    bound = self._bound.get(key)
                if library.ask is not None and library.ask():
                    for name, x in request.arrays().items():
                        library.seen(x, called(name))
                if bound is not None:
                    return run(
                        library, bound, arrays, addresses, numbers, request.stream, request.parts
                    )
            self._refuse_others(library, request)
            if self._is_new:
                self._bind(library, request)
                self._is_new = False
            return call(request)

    def _refuse_others(self, library: Library, request: Request) -> None:
        """Refuse what is not like what it was prepared for."""
        for name, text in _texts(library, request).items():
            before = self._texts.get(name)
            if text != before:
                raise UnsupportedProblem(
                    f"{name} is {text}, and this was prepared for {before}; pass such a one, or "
                    "prepare another"
                )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what holds for this process."""
        gone: dict[str, Any] = {"_bound": {}, "_quick": None}
        return {**self.__dict__, **gone, "_is_new": self._views is None}


class _Quick(NamedTuple):
    """What a call needs whose arrays all have names of their own."""

    library: Library
    bound: Bound
    addresses_of: Again
    names: tuple[str, ...]
    numbers: Mapping[str, float]
    options: tuple[Any, ...]


def _has_array(x: Any) -> bool:
    """Whether what a field holds is an array, or has one."""
    if isinstance(x, Mapping):
        x = tuple(x.values())
    if type(x) is tuple:
        return any(map(_has_array, x))
    return x is not None and not isinstance(x, numbers.Number)


def _texts(library: Library, request: Request) -> dict[str, str]:
    """Return what is said of the arrays and numbers of a request, by name."""
    found = {}
    for name, x in request.arrays().items():
        seen: Any = host_view(library, x, called(name)) or library.seen(x, called(name))
        step = seen.pointer & -seen.pointer & 15 or 16
        found[called(name)] = (
            f"{library.noun} of {seen.dtype}, shape {tuple(seen.shape)}, strides "
            f"{tuple(seen.strides)}, on {getattr(seen, 'device', HOST)}, at a multiple of {step}"
        )
    for name, x in {**request.scales(), **request.arguments()}.items():
        if isinstance(x, numbers.Complex):
            kind = "a number" if isinstance(x, numbers.Real) else "a complex number"
            found[name] = "0" if x == 0 else f"{kind} other than 0"
    return found
