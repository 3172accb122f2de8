"""`Bound`: what is kept of a call, so that later ones of its kind only compare and launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from ..arrays.library import Library, is_written
from ..arrays.operands import Operand
from ..errors import OverlapError
from ..planning.backend import Launcher
from ..planning.plan import Plan
from .options import Options

__all__ = [
    "MAX_BOUND",
    "Arrays",
    "Bound",
    "Combine",
    "Copy",
    "Instead",
    "called",
    "is_shared",
    "keep",
    "refuse_shared",
    "store",
    "taking",
    "zeroed",
]

#: How many bound calls each library keeps.
MAX_BOUND = 4096
_MOST_ALIKE = 4  # bound calls that are compared one by one
_ZEROED = ("amax_out", "bias_grad_out")


def nothing(addresses: Sequence[int]) -> tuple[int, ...]:
    """Take none of some addresses."""
    return ()


class Arrays(NamedTuple):
    """The arrays of a call's kind; each is known by its index among those that the caller brings.

    Attributes
    ----------
    names, called
        Theirs, a and b first, and `out` behind them if the caller brings it; and how a caller
        writes them.
    reach
        How many bytes from each address are read or written.
    apart
        What is written, what shares no memory with it, and the bounds of the distance between
        their addresses within which they may do so.
    written, zeroed
        What is written, and what is set to zero first.
    """

    names: tuple[str, ...]
    called: tuple[str, ...]
    reach: tuple[int, ...]
    apart: tuple[tuple[int, int, int, int], ...]
    written: tuple[int, ...]
    zeroed: tuple[int, ...]

    @classmethod
    def of(cls, operands: Mapping[str, Operand], *, in_place: bool = False) -> Arrays:
        """Return what is to be known of arrays; `in_place` says that `c` may be `out`."""
        names = tuple(operands)
        spans = [x.span for x in operands.values()]
        written = [i for i, name in enumerate(names) if is_written(name)]
        written.sort(key=lambda i: names[i] == "out")  # of two that are written, named last
        apart = [
            (i, j, spans[i][0] - spans[j][1], spans[i][1] - spans[j][0])
            for i in written
            for j in range(len(names))
            if i != j and not (in_place and {names[i], names[j]} == {"c", "out"})
        ]
        zeroed = tuple(i for i in written if names[i] in _ZEROED)
        reach = tuple(high for _, high in spans)
        said = tuple(map(called, names))
        return cls(names, said, reach, tuple(apart), tuple(written), zeroed)

    def with_zeroed(self, name: str) -> Arrays:
        """Return the same with an array that is set to zero first, if the caller brings it."""
        return self._replace(
            zeroed=(*self.zeroed, *(i for i in self.written if self.names[i] == name))
        )


#: See `Instead.combine`.
Combine = Callable[[Any, Any, Sequence[Any], Mapping[str, Any]], object]


class Copy(NamedTuple):
    """An array that is made for a call in place of one of the caller's.

    Attributes
    ----------
    at
        The array's index among those of the call, `out` being the third.
    make
        Makes the new array on the current device and stream.
    fill
        Takes the new array and the one that it stands for, and writes the first.
    """

    at: int
    make: Callable[[], Any]
    fill: Callable[[Any, Any], object]


class Instead(NamedTuple):
    """How a call is computed by another, of copies of some of its arrays.

    The other arrays lie where the caller's do.

    Attributes
    ----------
    copies
        In the order in which they are made.
    back
        Where the result is made apart, what takes that and the caller's `out`, and writes it.
    apart
        Makes such a result; None where there is none.
    as_read
        Whether kernels convert the operands as they read them while a graph is captured that would
        not keep the copies. Else the call is refused then.
    combine
        Makes the call's result of a plain product. It takes the array of the result, that of the
        product, which may be the same, and the call's arrays, `out` being the third, and numbers.
    """

    copies: tuple[Copy, ...] = ()
    back: Callable[[Any, Any], object] | None = None
    apart: Callable[[], Any] | None = None
    as_read: bool = False
    combine: Combine | None = None

    @property
    def makes(self) -> bool:
        """Whether each call makes arrays other than its result."""
        return bool(self.copies) or self.apart is not None or self.combine is not None


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A call that has been checked and planned, with its kernel loaded.

    Attributes
    ----------
    make
        Makes a new result array on the current device and stream.
    scalar
        Whether the result is 0-dimensional.
    launch
        Launches the kernel; takes the addresses of a, b, d and the workspace, the stream, and what
        `scales` and the rest name. None if there is nothing to multiply.
    device
        Index of the CUDA device, -1 for the host.
    options
        The options of the call. They keep the caller's plan alive, so that its id, which is in the
        key, stays its own.
    arrays
        The caller's arrays.
    fresh
        Whether `out` is made for the call.
    plan
        The plan. None if there is nothing to multiply, or NumPy's own matmul computes it.
    fill
        Whether the result is all zeros (K = 0).
    takes_more
        Whether the launcher takes more than a, b and d.
    workspace, workspace_bytes
        Makes the workspace, None if the kernel needs none; and its bytes.
    returned
        Make further results.
    scales
        Indices of arrays of scales, -1 for none; empty for a product without scales.
    factors
        Names of scales that are numbers, whose product follows those.
    brought
        Takes all addresses, those of results that are made behind the caller's, and returns those
        of the epilogue's arrays.
    numbers
        Names of the epilogue's numbers.
    whole
        Whether those have to be whole.
    ends
        Index of the ends of groups, which a launcher takes last; -1 for none.
    steps
        What it takes before those: the numbers by which scales of A and of B step.
    check
        Refuses such ends in host memory, at an address, that are wrong.
    inner, instead
        What is computed in its place, and how, if anything is; there is no launcher then.
    kept
        Whether calls with the same key are equal. If not, each call is bound anew.
    """

    make: Callable[[], Any]
    scalar: bool
    launch: Launcher | None
    device: int
    options: Options
    arrays: Arrays
    fresh: bool
    plan: Plan | None = None
    fill: bool = False
    takes_more: bool = False
    workspace: Callable[[], Any] | None = None
    workspace_bytes: int = 0
    returned: tuple[Callable[[], Any], ...] = ()
    scales: tuple[int, ...] = ()
    factors: tuple[str, ...] = ()
    brought: Callable[[Sequence[int]], tuple[int, ...]] = nothing
    numbers: tuple[str, ...] = ()
    whole: bool = False
    ends: int = -1
    steps: tuple[int, ...] = ()
    check: Callable[[int], None] | None = None
    inner: Bound | None = None
    instead: Instead | None = None
    kept: bool = True

    @property
    def allocates(self) -> bool:
        """Whether a call fills memory on its stream besides the launch."""
        if self.instead is not None:
            return True
        return bool(self.fresh or self.workspace or self.launch is None or self.arrays.zeroed)


def zeroed(library: Library, make: Callable[[], Any]) -> Any:
    """Return a new array of zeros."""
    found = make()
    library.zero(found)
    return found


def taking(indices: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """Return a function that takes the addresses at some indices."""
    if len(indices) > 1:
        return itemgetter(*indices)
    if not indices:
        return nothing
    (one,) = indices
    return lambda addresses: (addresses[one],)


def called(name: str) -> str:
    """Return an array's name as the caller writes it."""
    return f"out[{name.removeprefix('result ')}]" if name.startswith("result ") else name


def is_shared(name: str, x: Operand, other: str, y: Operand) -> bool:
    """Whether `out` has to be computed apart, because it shares memory with an operand.

    Raises
    ------
    OverlapError
        An array that is written shares memory with another one, or that cannot be ruled out. `c`
        may be `out` itself, which is then read before it is written, element by element.
    """
    if not x.may_share(y):
        return False
    if name == "out" and other in ("a", "b"):
        return True
    this, that = called(name), called(other)
    instead = "" if is_written(other) else f", or a copy of {that}"
    if {name, other} == {"out", "c"}:
        instead += " (c may be out itself)"
    raise OverlapError(
        f"{this} shares memory with {that}, and it is written while {that} is read or written; "
        f"pass another array as {this}{instead}"
    )


def refuse_shared(arrays: Arrays, operands: Mapping[str, Operand]) -> None:
    """Refuse what `is_shared` refuses, before anything is planned or compiled."""
    for i, j, _, _ in arrays.apart:
        name, other = arrays.names[i], arrays.names[j]
        is_shared(name, operands[name], other, operands[other])


def keep(library: Library, head: Hashable, bound: Bound, arrays: Sequence[Any]) -> None:
    """Keep a bound call among those that are alike, the newest first."""
    if library.again is not None and len({*map(id, arrays)}) == len(arrays):
        entry = bound, library.again(arrays, bound.arrays.reach)
        store(library.alike, head, (entry, *library.alike.get(head, ())[: _MOST_ALIKE - 1]))


def store(table: dict[Hashable, Any], key: Hashable, bound: Any) -> None:
    """Keep a bound call; a full table is emptied first."""
    if len(table) >= MAX_BOUND and key not in table:
        table.clear()
    table[key] = bound
