"""`Request`: all that a call requests. Its fields are the one list of that."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Hashable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from ..arrays.library import KNOWN, WRITTEN, Library
from ..arrays.operands import Operand
from ..arrays.types import EpilogueOptions
from ..errors import UnsupportedProblem
from ..planning.plan import Plan
from ..support.arguments import factor, shown

__all__ = ["NAMED", "NONE", "OF_EPILOGUE", "PREFIX", "Request", "known", "taken"]

PREFIX = "epilogue_args."  # of the names of a traced function's arguments


class Request(NamedTuple):
    """One call. What each field means, `unigemm.matmul` says, whose arguments they are.

    The others are of `unigemm.grouped_matmul`, and the operation, which is the function called.

    Operands come first: arrays, or numbers instead, and a function. An array has its field's name;
    further results are "result 1" and so on, an own function's arguments "epilogue_args.name", and
    scales that come as a pair "scale_a[0]" and "scale_a[1]". Then come options, which are in the
    key of a call as they are.
    """

    a: Any
    b: Any
    out: Any = None  # a tuple where a function returns one
    c: Any = None
    bias: Any = None
    alpha: Any = None
    beta: Any = None
    preact: Any = None
    preact_out: Any = None
    amax_out: Any = None
    bias_grad_out: Any = None
    scale_a: Any = None
    scale_b: Any = None
    offsets: Any = None  # of `unigemm.grouped_matmul`, as are rows and rest
    rows: Any = None
    scale_d: Any = None
    epilogue: Callable[..., Any] | None = None
    epilogue_args: Mapping[str, Any] | None = None
    dtype: Any = None
    precision: Any = "ieee"
    deterministic: Any = False
    batch_invariant: Any = False
    backend: Any = "auto"
    casting: Any = None
    activation: Any = None
    gate_layout: Any = None
    operation: Literal["matmul", "grouped"] = "matmul"
    rest: Any = "zeros"
    quantize_out: Any = None
    plan: Plan | None = None
    stream: Any = None
    axes: Any = None

    @classmethod
    def of(
        cls, operands: tuple[Any, ...], options: tuple[Any, ...], plan: Plan | None = None,
        stream: Any = None, axes: Any = None, way: Callable[..., Any] | None = None,
    ) -> Request:  # fmt: skip
        """Return the request of a call; operands that it does not give are None.

        If there is a `way`, it makes the operands of those that are given.
        """
        operands = operands if way is None else way(operands)
        nothing = (None,) * (_FIRST - len(operands))
        return cls._make((*operands, *nothing, *options, plan, stream, axes))

    @property
    def parts(self) -> tuple[tuple[Any, ...], tuple[Any, ...], Plan | None, Any, Any]:
        """What `of` takes: operands, options, plan, stream and axes."""
        return self[:_FIRST], self[_FIRST:_LAST], self.plan, self.stream, self.axes

    @property
    def results(self) -> tuple[Any, ...]:
        """The arrays that the caller brings for results."""
        if type(self.out) is tuple:
            return self.out
        return () if self.out is None else (self.out,)

    @property
    def multiplied(self) -> dict[str, Any]:
        """`a`, `b`, and `out` if the caller brings it, by name."""
        return dict(zip(("a", "b", "out"), (self.a, self.b, *self.results), strict=False))

    def operands(self, library: Library) -> dict[str, Operand]:
        """Return what is `multiplied` as kernels read it."""
        return {name: library.operand(x, name) for name, x in self.multiplied.items()}

    def arguments(self) -> dict[str, Any]:
        """Return what is requested of the epilogue, those of a function by longer names.

        Raises
        ------
        UnsupportedProblem
            ``epilogue_args`` are no names and values.
        """
        given = {name: x for name in OF_EPILOGUE if (x := getattr(self, name)) is not None}
        more = self.epilogue_args
        if more is not None and not isinstance(more, Mapping):
            raise UnsupportedProblem(
                f"epilogue_args is a {type(more).__name__}; pass a dict of names and arrays or "
                "numbers"
            )
        for key, each in (more or {}).items():
            if each is None:
                raise UnsupportedProblem(
                    f"epilogue_args[{shown(key)}] is None; pass an array or a number"
                )
            given[f"{PREFIX}{key}"] = each
        return given

    @property
    def has_epilogue(self) -> bool:
        """Whether anything is computed of the accumulators."""
        return bool(self.arguments()) or self.quantize_out is not None

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the fields of these names, by name."""
        return {name: getattr(self, name) for name in names}

    def scales(self, *, apart: bool = True) -> dict[str, Any]:
        """Return the scales that are given, those of a pair apart, or as the caller has them."""
        given = {"scale_a": self.scale_a, "scale_b": self.scale_b}
        found: dict[str, Any] = {}
        for name, x in given.items():
            if x is not None:
                found |= _apart(name, x) if apart else {name: x}
        return found

    def arrays(self) -> dict[str, Any]:
        """Return all that is given and no number, by name; what is to be written in any case."""
        found: dict[str, Any] = {}
        for name in NAMED:
            x = getattr(self, name)
            if name == "out":
                found |= {f"result {i}" if i else name: each for i, each in enumerate(self.results)}
            elif name in _PAIRS:
                found |= _apart(name, x)
            else:
                found[name] = x
        found |= {name: x for name, x in self.arguments().items() if name.startswith(PREFIX)}
        return {
            name: x
            for name, x in found.items()
            if name in ("a", "b", "out")
            or name.startswith("result ")
            or (x is not None and (name in WRITTEN or not isinstance(x, numbers.Number)))
        }

    def having(self, arrays: Mapping[str, Any]) -> Request:
        """Return the request with other arrays, by the names that `arrays` gives them."""
        fields: dict[str, Any] = {}
        for name, x in arrays.items():
            field, i = _field_of(name)
            before = fields.get(field, getattr(self, field))
            if field == "epilogue_args":
                fields[field] = {**before, i: x}
            elif type(before) is tuple:
                fields[field] = (*before[: int(i)], x, *before[int(i) + 1 :])
            else:
                fields[field] = x
        return self._replace(**fields)


def _apart(name: str, x: Any) -> dict[str, Any]:
    """Return what a field holds by name: a pair in two."""
    if type(x) is tuple and len(x) == 2:
        return {f"{name}[{i}]": each for i, each in enumerate(x)}
    return {name: x}


def _field_of(name: str) -> tuple[str, Any]:
    """Return the field that holds an array, and its index or key there."""
    if name.startswith(PREFIX):
        return "epilogue_args", name.removeprefix(PREFIX)
    if name.startswith("result "):
        return "out", name.removeprefix("result ")
    field, _, i = name.partition("[")
    return field, i[:-1] or 0


_FIELDS = Request._fields
_AT = {name: i for i, name in enumerate(_FIELDS)}
#: The fields that hold arrays, or numbers instead.
NAMED = _FIELDS[: _AT["epilogue"]]
_FIRST, _LAST = _AT["dtype"], _AT["plan"]  # of the options, and behind them
_PAIRS = ("scale_a", "scale_b")  # the fields that may hold two arrays, besides `out`
_MOST_FORMS = 1024
#: The fields that an epilogue is made of.
OF_EPILOGUE = tuple(x for x in EpilogueOptions.__annotations__ if x != "epilogue_args")


#: No numbers.
NONE: Mapping[str, float] = {}


class _Unusual(Exception):
    """A call that is not known by a key."""


class _Form(NamedTuple):
    """What is a number and what an array, in calls whose operands have the same types."""

    names: tuple[str, ...]
    arrays: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    numbers: tuple[str, ...]
    adds: bool  # `out` may be the array that is added
    at_length: bool  # it has tuples or a function: see `_at_length`


_FORMS: dict[tuple[type, ...], _Form] = {}


def _form(kinds: tuple[type, ...], library: Library) -> _Form:
    names, numbered = [], []
    at_length = any(kind is not type(None) for kind in kinds[len(NAMED) :])
    for name, kind in zip(NAMED, kinds, strict=False):
        if KNOWN.get(kind) is library:
            names.append(name)
        elif issubclass(kind, numbers.Real):
            numbered.append(name)
        elif kind is tuple or issubclass(kind, numbers.Complex):
            at_length = True
        elif kind is not type(None):
            raise _Unusual
    adds = "c" in names and kinds[_AT["out"]] is not type(None)
    take = itemgetter(*map(_AT.get, names))
    form = _Form(tuple(names), take, tuple(numbered), adds, at_length)
    if len(_FORMS) >= _MOST_FORMS:
        _FORMS.clear()
    _FORMS[kinds] = form
    return form


def taken(
    library: Library, operands: tuple[Any, ...], options: tuple[Any, ...], plan: Plan | None,
    way: Callable[..., Any] | None,
) -> tuple[Hashable, tuple[Any, ...], Mapping[str, float]]:  # fmt: skip
    """Return what calls like a call are found by, its arrays, and its numbers by name.

    Those calls are of a few kinds, which `unigemm.arrays.library.again` tells apart. The first is
    None of calls that only `known` has a key for.

    Raises
    ------
    Exception
        As `known` does.
    """
    said: Any = None if plan is None and options[-1] is None else _told(options, plan)
    arrays, numbered = operands, NONE
    if len(operands) == 3 and type(operands[2]) is not tuple:  # soon told
        if operands[2] is None:
            arrays = operands[:2]
        names: Any = len(arrays)
    else:
        kinds = tuple(map(type, operands))
        names, take, numbers_of, adds, at_length = _FORMS.get(kinds) or _form(kinds, library)
        if at_length or adds:
            return None, (), NONE
        arrays = take(operands)
        if numbers_of:
            numbered = {name: float(operands[_AT[name]]) for name in numbers_of}
            said = said, *((name, x == 0) for name, x in numbered.items())
    return (options, way, said, names, arrays[0].shape, arrays[1].shape), arrays, numbered


def _told(options: tuple[Any, ...], plan: Plan | None) -> Hashable:
    """Return what a key holds of a plan, and of `quantize_out`, in which 1, True and 1.0 differ."""
    # Hashing a plan is slow, and what is bound keeps it alive.
    return id(plan), *map(type, options[-1] or ())


def known(
    library: Library, operands: tuple[Any, ...], options: tuple[Any, ...], plan: Plan | None
) -> tuple[Hashable, tuple[Any, ...], list[int], Mapping[str, float]]:
    """Return what a call is known by, its arrays, their addresses, and its numbers by name.

    It takes parts of a request, which are made sooner. Of arrays all that
    decides which kernel runs is in the key, of numbers whether they are 0. Arrays are read last,
    behind all that may run code of the caller's.

    Raises
    ------
    Exception
        Of any kind: something is wrong with an argument, and binding says what; or the call is not
        known by a key.
    """
    kinds = tuple(map(type, operands))
    form = _FORMS.get(kinds) or _form(kinds, library)
    names, take, numbers_of, adds, at_length = form
    said: tuple[Any, ...] = ()
    numbered = NONE
    if at_length:
        names, arrays, numbered, said = _at_length(library, Request.of(operands, options))
    else:
        arrays = take(operands)
        if numbers_of:
            numbered = {name: float(operands[_AT[name]]) for name in numbers_of}
    if numbered:
        said += tuple((name, x == 0) for name, x in numbered.items())
    told = None if plan is None and options[-1] is None else _told(options, plan)
    parts: list[Any] = [options, told, names, said]
    addresses = []
    read = library.read
    for x in arrays:
        address, own = read(x)
        addresses.append(address)
        parts.append(own)
    if adds:
        parts.append(addresses[2] == addresses[names.index("c")])  # whether `out` is added to
    return tuple(parts), arrays, addresses, numbered


def _at_length(
    library: Library, request: Request
) -> tuple[tuple[str, ...], tuple[Any, ...], dict[str, float], tuple[Any, ...]]:
    """Return names, arrays, numbers and a function's key of a request that has tuples, or one."""
    named = request.arrays()
    arrays = tuple(named.values())
    if any(KNOWN.get(type(x)) is not library for x in arrays):
        raise _Unusual
    given = {**request.scales(), **request.arguments()}
    numbered = {
        name: factor(x, name) for name, x in given.items() if isinstance(x, numbers.Complex)
    }
    own = tuple(name for name, x in numbered.items() if type(x) is complex)
    traced = None
    if request.epilogue is not None:
        from ..planning.fingerprint import known_as

        traced = known_as(request.epilogue)
    if traced is None and (request.epilogue is not None or request.epilogue_args):
        raise _Unusual
    return tuple(named), arrays, numbered, (traced, own)
