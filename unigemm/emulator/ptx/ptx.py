"""PTX as frozen dataclasses: modules, kernels, instructions and their operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = [
    "Address",
    "Immediate",
    "Instruction",
    "Kernel",
    "Module",
    "Operand",
    "Pair",
    "Parameter",
    "Register",
    "Symbol",
    "Variable",
    "Vector",
]


@dataclass(frozen=True)
class Register:
    """A virtual register; `type` is its declared type (``"b32"``, ``"pred"``, ...).

    ``"_"``, into which results are dropped, has the type ``"sink"``; special registers such as
    ``%tid.x`` have the type ``"special"``.
    """

    name: str
    type: str


@dataclass(frozen=True)
class Immediate:
    """A constant: an integer, or the bits of a float of `width` bytes (0 for an integer)."""

    value: int
    width: int = 0


@dataclass(frozen=True)
class Symbol:
    """The name of a variable, a parameter or a label."""

    name: str


@dataclass(frozen=True)
class Vector:
    """``{a, b, ...}``."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``a|b``: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Address:
    """``[base + offset]``, or ``[base, {coordinates}]`` of a tensor."""

    base: Operand
    offset: int = 0
    coordinates: Vector | None = None


Operand = Register | Immediate | Symbol | Vector | Pair | Address


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    opcode
        As written, ``"add.s32"``; `parts` are its pieces.
    operands
        Results first.
    predicate, negated
        The guard, if any: it runs where the predicate is true, or false where `negated`.
    line
        Line of the text, from 1.
    """

    opcode: str
    operands: tuple[Operand, ...]
    predicate: Register | None
    negated: bool
    line: int

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode cut at its dots; ``shared::cta`` stays whole."""
        return _parts(self.opcode)


@lru_cache(maxsize=8192)
def _parts(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.split("."))


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: its bytes, and where it lies among all of them."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Variable:
    """A variable in shared or local memory; `size` is 0 for dynamic shared memory."""

    name: str
    space: str
    alignment: int
    size: int


@dataclass(frozen=True)
class Kernel:
    """An entry point.

    Attributes
    ----------
    labels
        Name to the index of the instruction behind the label.
    variables
        Those declared in it.
    directives
        Performance directives, such as ``{".reqntid": (128, 1, 1)}``.
    """

    name: str
    parameters: tuple[Parameter, ...]
    registers: tuple[Register, ...]
    variables: tuple[Variable, ...]
    body: tuple[Instruction, ...]
    labels: Mapping[str, int]
    directives: Mapping[str, tuple[int, ...]]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        return max((p.offset + p.size for p in self.parameters), default=0)


@dataclass(frozen=True)
class Module:
    """A PTX text.

    Attributes
    ----------
    target
        The architecture, ``"sm_90a"``.
    lines
        The text, for messages.
    """

    target: str
    kernels: Mapping[str, Kernel]
    variables: tuple[Variable, ...]
    lines: tuple[str, ...] = field(repr=False)

    def line(self, number: int) -> str:
        """Return a line of the text by its number."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""
