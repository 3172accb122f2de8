"""What is done to the accumulators before they are rounded: an expression, as plain data.

An `Epilogue` is a list of steps, each of which works element by element on earlier ones. The first
is the accumulator. It has no names, no arrays and no extents: two calls whose expressions are the
same share a kernel. `unigemm.epilogue` makes them of Python functions; each backend carries them
out (`evaluate`) with operations of its own, and NumPy's are the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

from ..support.forks import cached_property
from .dtypes import EXACT, DType
from .matrix import Major, MatrixType

#: Neighbours that share a scale (`unigemm.problem.quantization`).
BLOCK = 128

__all__ = [
    "BLOCK",
    "BOOLEANS",
    "MOST_ARRAYS",
    "OF_BOOLEANS",
    "OF_EXACT",
    "OPERATIONS",
    "RESULTS",
    "Auxiliary",
    "Epilogue",
    "Gate",
    "Step",
    "arithmetic",
    "evaluate",
    "excess",
    "flaw",
]

#: Operations by their number of operands. Comparisons and what combines them give booleans.
OPERATIONS: dict[str, int] = {
    **dict.fromkeys(("neg", "abs", "exp", "exp2", "log", "log2", "sqrt", "tanh", "erf"), 1),
    **dict.fromkeys(("ndtr", "floor", "ceil", "rint", "not"), 1),
    **dict.fromkeys(("add", "sub", "mul", "div", "floordiv", "max", "min"), 2),
    **dict.fromkeys(("lt", "le", "eq", "ne", "and", "or"), 2),
    "where": 3,
}
#: What is done to integers.
OF_EXACT = frozenset(("add", "mul", "eq", "where"))
BOOLEANS = frozenset(("lt", "le", "eq", "ne", "and", "or", "not"))
OF_BOOLEANS = frozenset(("and", "or", "not"))
#: Where steps begin: the accumulator ("sums"), an array or number of the call, a constant; and what
#: makes one element of two neighbours along the gated index.
_SOURCES = frozenset(("sums", "array", "number", "constant"))
_HALVES = frozenset(("even", "odd"))
#: What an epilogue may write. Eight bits hold the nearest number of theirs: nothing overflows.
RESULTS: tuple[DType, ...] = (
    DType.FLOAT64,
    DType.FLOAT32,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.FLOAT8_E4M3FN,
    DType.FLOAT8_E5M2,
    DType.INT8,
    DType.INT32,
)
_MOST_STEPS = 512
MOST_ARRAYS = 16  # that an epilogue has, and numbers

#: The index of D along which two neighbours make one element.
Gate = Literal["", "m", "n"]


@dataclass(frozen=True)
class Step:
    """One operation on earlier steps.

    Attributes
    ----------
    op
        One of `OPERATIONS`; "sums", "constant"; "array" or "number" of the call; "even" or "odd" of
        the neighbours along the gated index.
    of
        Which steps it works on; which array or number it is.
    value
        A constant, as `float.hex` writes it.
    """

    op: str
    of: tuple[int, ...] = ()
    value: str = ""


@dataclass(frozen=True)
class Auxiliary:
    """The class of an auxiliary array, which is read or written beside D, seen in D's shape.

    Attributes
    ----------
    matrix
        Its type, as that of a D.
    along
        The indices of a product that it has: "mn", "m" (a column), "n" (a row) or none.
    """

    matrix: MatrixType
    along: Literal["", "m", "n", "mn"]

    @property
    def transposed(self) -> Auxiliary:
        """The same array as the product's transpose sees it."""
        names: dict[str, Any] = {"m": "n", "n": "m"}
        return Auxiliary(self.matrix.transposed, names.get(self.along, self.along))


@dataclass(frozen=True)
class Epilogue:
    """What is done to accumulators before they are rounded and stored.

    Attributes
    ----------
    steps
        In their order; the first is the accumulator.
    result
        The step that D is.
    arrays
        What is read, in the order of a launch.
    numbers
        How many numbers a launch brings.
    stores
        The step that each further array of results is, in the order of a launch.
    stored
        The classes of these arrays.
    largest
        The step whose largest magnitude is written as one float32; None for none.
    totals
        The step that each bias gradient adds up, in the order of a launch.
    totalled
        The classes of bias gradients: an index that one does not have is added up.
    gate
        The index along which two neighbours make one element of D: it has half the extent there.
    halves
        The two elements are not neighbours but one in either half of that index.
    in_place
        The array that is D itself; None for none.
    quantized
        The index of D along which 128 neighbours share a scale, so that D is about what it would be
        divided by that (`unigemm.problem.quantization`); "" for none.
    scaled
        The class of the array of these scales, which has an element for each 128 of that index.
    """

    steps: tuple[Step, ...]
    result: int
    arrays: tuple[Auxiliary, ...] = ()
    numbers: int = 0
    stores: tuple[int, ...] = ()
    stored: tuple[Auxiliary, ...] = ()
    largest: int | None = None
    totals: tuple[int, ...] = ()
    totalled: tuple[Auxiliary, ...] = ()
    gate: Gate = ""
    halves: bool = False
    in_place: int | None = None
    quantized: Gate = ""
    scaled: tuple[Auxiliary, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property  # it is part of the key of each call
    def _hash(self) -> int:
        return hash(tuple(self.__getstate__().values()))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: dtypes hash to something else in another process."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def transposed(self) -> Epilogue:
        """The same as the product's transpose sees it: M and N change places."""
        names: dict[str, Any] = {"m": "n", "n": "m", "": ""}
        return replace(
            self,
            arrays=tuple(x.transposed for x in self.arrays),
            stored=tuple(x.transposed for x in self.stored),
            totalled=tuple(x.transposed for x in self.totalled),
            gate=names[self.gate],
            quantized=names[self.quantized],
            scaled=tuple(x.transposed for x in self.scaled),
        )

    @property
    def aux(self) -> tuple[Auxiliary, ...]:
        """All auxiliary arrays: those read, those written, bias gradients, the scales of D."""
        return self.arrays + self.stored + self.totalled + self.scaled

    def seen(self, aux: Sequence[Auxiliary]) -> Epilogue:
        """Return the same with the classes of all of these arrays, in their order."""
        first, second = len(self.arrays), len(self.arrays) + len(self.stored)
        third = second + len(self.totalled)
        arrays, stored, totalled = aux[:first], aux[first:second], aux[second:third]
        return replace(
            self, arrays=tuple(arrays), stored=tuple(stored), totalled=tuple(totalled),
            scaled=tuple(aux[third:]),
        )  # fmt: skip

    @cached_property
    def reads_acc(self) -> bool:
        """Whether anything that it computes depends on the accumulators."""
        ends = (self.result, *self.stores, *self.totals, self.largest)
        of = (i for step in self.steps if step.op not in _SOURCES for i in step.of)
        return 0 in ends or 0 in of

    def bytes_moved(self, m: int, n: int) -> tuple[int, int]:
        """Return the bytes of auxiliary arrays read and written for each product of a stack."""
        read, written = (
            sum(
                (m if "m" in x.along else 1)
                * (n if "n" in x.along else 1)
                * x.matrix.dtype.itemsize
                for x in some
            )
            for some in (self.arrays, self.stored + self.totalled)
        )
        lines, line = (n, m) if self.quantized == "m" else (m, n // (2 if self.gate else 1))
        scales = 4 * lines * -(-line // BLOCK) if self.quantized else 0
        return read, written + scales + (4 if self.largest is not None else 0)

    def __str__(self) -> str:
        names = [_written(step, i) for i, step in enumerate(self.steps)]
        said = [f"D = {_formula(self, self.result, names)}"]
        said += [f"and {_formula(self, step, names)}" for step in self.stores]
        said += [f"sums of {_formula(self, step, names)}" for step in self.totals]
        said += ["its largest magnitude"] if self.largest is not None else []
        said += ["pairs from both halves"] if self.halves else []
        said += [f"with a scale for each {BLOCK} along {self.quantized}"] if self.quantized else []
        return ", ".join(said)


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "lt": "<", "le": "<=",
    "eq": "==", "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip
_LONGEST_FORMULA = 200


def _written(step: Step, index: int) -> str:
    if step.op == "constant":
        return f"{float.fromhex(step.value):g}"
    return {"sums": "AB", "array": f"X{step.of[:1]}", "number": f"s{step.of[:1]}"}.get(step.op, "")


def _formula(epilogue: Epilogue, index: int, names: list[str]) -> str:
    """Return what a step computes, on one line."""

    def of(i: int, room: int) -> str:
        step = epilogue.steps[i]
        if step.op in _SOURCES:
            number = str(step.of[0]) if step.of else ""
            return {"array": f"X{number}", "number": f"s{number}"}.get(step.op, names[i])
        if room <= 0:
            return "..."
        parts = [of(j, room - 1) for j in step.of]
        if step.op in _SIGNS:
            return f"({parts[0]} {_SIGNS[step.op]} {parts[1]})"
        return f"{step.op}({', '.join(parts)})"

    text = of(index, 8)
    return text if len(text) <= _LONGEST_FORMULA else f"{text[: _LONGEST_FORMULA - 3]}..."


def arithmetic(accumulator: DType, result: DType) -> DType:
    """Return the type that steps compute in.

    float32; but float64 where accumulators are, and for integers that stay such: it holds them.
    """
    wide = accumulator is DType.FLOAT64 or accumulator is result is DType.INT32
    return DType.FLOAT64 if wide else DType.FLOAT32


def evaluate(
    epilogue: Epilogue,
    operations: Mapping[str, Callable[..., Any]],
    acc: Any,
    array: Callable[[int], Any],
    number: Callable[[int], Any],
    constant: Callable[[float], Any],
    wanted: Sequence[int] | None = None,
) -> list[Any]:
    """Carry out the steps with a backend's own operations, and return their values.

    Parameters
    ----------
    epilogue
        What to compute.
    operations
        Each of `OPERATIONS`, "even" and "odd", by name.
    acc
        The value of the first step.
    array, number, constant
        Return what a step that begins with one of these is.
    wanted
        Steps whose values are needed; all if left out. Others are None.
    """
    needed = _needed(epilogue, wanted)
    values: list[Any] = []
    for i, step in enumerate(epilogue.steps):
        value = None
        if i in needed:
            if step.op == "sums":
                value = acc
            elif step.op == "array":
                value = array(step.of[0])
            elif step.op == "number":
                value = number(step.of[0])
            elif step.op == "constant":
                value = constant(float.fromhex(step.value))
            else:
                value = operations[step.op](*(values[j] for j in step.of))
        values.append(value)
    return values


def _needed(epilogue: Epilogue, wanted: Sequence[int] | None) -> set[int]:
    if wanted is None:
        return set(range(len(epilogue.steps)))
    needed, left = set(), list(wanted)
    while left:
        i = left.pop()
        if i not in needed:
            needed.add(i)
            if epilogue.steps[i].op not in _SOURCES:
                left.extend(epilogue.steps[i].of)
    return needed


def excess(epilogue: Epilogue) -> str | None:
    """Say what an epilogue has too much of, for a call or a plan; None where it may be one."""
    counts = (
        (len(epilogue.steps), _MOST_STEPS, "steps"),
        (len(epilogue.aux), MOST_ARRAYS, "arrays that it reads or writes"),
        (epilogue.numbers, MOST_ARRAYS, "numbers"),
    )
    for count, most, what in counts:
        if count > most:
            return f"an epilogue has at most {most} {what}, and this one has {count}"
    return None


def flaw(epilogue: Epilogue, *, exact: bool = False) -> str | None:
    """Say why an epilogue that comes from outside is none; None where it may be one.

    Its fields have their types. `exact` is for integers.
    """
    steps = epilogue.steps
    if not steps or steps[0] != Step("sums") or epilogue.numbers < 0:
        return "the first step of an epilogue is the accumulator"
    too_much = excess(epilogue)
    if too_much is not None:
        return too_much
    sides: list[str] = []  # of each step: "whole", "half" (behind the gate) or "any"
    for i, step in enumerate(steps):
        reason, side = _step_flaw(epilogue, i, sides)
        if reason is not None:
            return f"step {i} of the epilogue, {step.op[:20]!r}, {reason}"
        sides.append(side)
    return _exact_flaw(epilogue, exact) or _outcome_flaw(epilogue, sides)


def _step_flaw(epilogue: Epilogue, i: int, sides: list[str]) -> tuple[str | None, str]:
    step, steps = epilogue.steps[i], epilogue.steps
    if step.op in _SOURCES:
        counts = {"array": len(epilogue.arrays), "number": epilogue.numbers}
        of = counts.get(step.op, 0)
        there = len(step.of) == 1 and 0 <= step.of[0] < of if of else not step.of
        there = there and (step.op not in counts or bool(of)) and (i == 0) == (step.op == "sums")
        if (step.op == "constant") != bool(step.value) or not there:
            return "is none that a call has", ""
        return _constant_flaw(step), _side(epilogue, step)
    count = 1 if step.op in _HALVES else OPERATIONS.get(step.op)
    if count is None or step.value or len(step.of) != count:
        return "is not known", ""
    if not all(0 <= j < i for j in step.of):
        return "is of steps that are not before it", ""
    booleans = [steps[j].op in BOOLEANS for j in step.of]
    requested = [step.op in OF_BOOLEANS or (step.op == "where" and k == 0) for k in range(count)]
    if booleans != requested:
        return "mixes numbers and truth values", ""
    found = {sides[j] for j in step.of} - {"any"}
    if step.op in _HALVES:
        wrong = not epilogue.gate or "half" in found
        return ("has no gate" if wrong else None), "half"
    if len(found) > 1:
        return "mixes what is behind the gate with what is before it", ""
    return None, found.pop() if found else "any"


def _side(epilogue: Epilogue, step: Step) -> str:
    """Return where a step that begins something belongs; what is one element goes everywhere."""
    one = step.op == "array" and not epilogue.arrays[step.of[0]].along
    return "any" if one or step.op in ("constant", "number") else "whole"


def _constant_flaw(step: Step) -> str | None:
    if step.op != "constant":
        return None
    try:
        value = float.fromhex(step.value)
    except (ValueError, OverflowError):
        return "is no number"
    return (
        None if value.hex() == step.value or not isfinite(value) else "is not as Python writes it"
    )


def _exact_flaw(epilogue: Epilogue, exact: bool) -> str | None:
    """Say what of an epilogue is for other accumulators."""
    kinds = EXACT if exact else RESULTS
    for x in epilogue.aux:
        if x.matrix.dtype not in kinds:
            return f"{x.matrix} is no array of an epilogue of such accumulators"
    if not exact:
        return None
    for step in epilogue.steps:
        if step.op not in _SOURCES | OF_EXACT:
            return f"{step.op} is no operation on integers"
        if step.op == "constant" and not float.fromhex(step.value).is_integer():
            return "a constant beside integers is whole"
    if epilogue.stored or epilogue.totalled or epilogue.gate or epilogue.largest is not None:
        return "beside integers D alone is written"
    return None


def _outcome_flaw(epilogue: Epilogue, sides: list[str]) -> str | None:
    ends = [epilogue.result, *epilogue.stores, *epilogue.totals]
    ends += [epilogue.largest] if epilogue.largest is not None else []
    if not all(0 <= end < len(sides) for end in ends):
        return "a result of the epilogue is none of its steps"
    if any(epilogue.steps[end].op in BOOLEANS for end in ends):
        return "a result of the epilogue is a truth value"
    if (len(epilogue.stores), len(epilogue.totals)) != (
        len(epilogue.stored),
        len(epilogue.totalled),
    ):
        return "each further result of the epilogue has an array"
    if epilogue.gate and sides[epilogue.result] == "whole":
        return "D of a gated epilogue is behind the gate"
    if any(sides[end] == "half" for end in (*epilogue.stores, *epilogue.totals)):
        return "what is stored with a gated D is before the gate"
    if epilogue.halves and not epilogue.gate:
        return "halves are of a gated epilogue"
    if len(epilogue.scaled) != bool(epilogue.quantized):
        return "scales of a quantised D are one array"
    if epilogue.in_place is not None and not 0 <= epilogue.in_place < len(epilogue.arrays):
        return "the array that is D itself is none of the epilogue's"
    for x in epilogue.aux:
        majors: dict[str, tuple[Major, ...]] = {"m": ("m", "strided"), "n": ("n", "strided")}
        allowed = majors.get(x.along, ("m", "n", "strided"))
        if x.matrix.major not in allowed:
            return f"{x.matrix} is no array of an epilogue"
    return None
