"""PTX text to the dataclasses of `ptx`.

Names are resolved here: registers and labels of an inner ``{ }`` get the number of their scope, so
that all names of a kernel are different.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .faults import MALFORMED, PtxError
from .ptx import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Module,
    Operand,
    Pair,
    Parameter,
    Register,
    Symbol,
    Variable,
    Vector,
)

__all__ = ["parse"]

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<string>"[^"]*")
    |(?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})
    |(?P<number>0[xX][0-9a-fA-F]+U?|\d+\.\d+(?:[eE][-+]?\d+)?|\d+U?)
    |(?P<name>[A-Za-z_$%.][\w$.]*(?:::[\w.]+)*)
    |(?P<mark>[{}\[\]()<>,;:@!|+=-])
    """,
    re.VERBOSE | re.DOTALL,
)
_MOST_BYTES = 1 << 24  # of a variable: more than any memory of a CTA or a thread has
_MOST_PARAMETERS = 32764  # bytes (PTX ISA, "Kernel Function Parameters")
_MOST_REGISTERS = 1 << 20
_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_VALUES = {".reqntid", ".maxntid", ".minnctapersm", ".maxnreg", ".reqnctapercluster"}
_FLAGS = {".explicitcluster", ".visible", ".weak", ".noreturn"}


def _tokens(text: str) -> tuple[list[str], list[str], list[int]]:
    """Return the tokens of a text, their kinds, and the lines on which they begin."""
    found: list[str] = []
    kinds: list[str] = []
    lines: list[int] = []
    at, line = 0, 1
    for match in _TOKEN.finditer(text):
        if match.start() != at:
            break
        kind, token, at = match.lastgroup or "", match.group(), match.end()
        if kind != "skip":
            found.append(token)
            kinds.append(kind)
            lines.append(line)
        if "\n" in token:
            line += token.count("\n")
    if at < len(text):
        raise PtxError(f"cannot be read at {text[at : at + 20]!r}", line)
    return found, kinds, lines


@lru_cache(maxsize=64)
def parse(text: str) -> Module:
    """Parse a PTX module.

    Parameters
    ----------
    text
        The whole text, as `ptxas` would take it.

    Raises
    ------
    PtxError
        It cannot be read, or uses a directive that is not known here (functions, say).
    """
    parser = _Parser(text)
    try:
        return parser.module()
    except MALFORMED as error:  # the text ends within a statement, is nested too deep, ...
        raise PtxError(f"it is malformed ({type(error).__name__}: {error})", parser.line) from error


class _Parser:
    """A recursive descent over the tokens; used once."""

    def __init__(self, text: str) -> None:
        self.lines = tuple(text.split("\n"))
        self.tokens, self.kinds, self.of_line = _tokens(text)
        self.tokens += "", ""  # the end, for `peek`
        self.kinds.append("")
        self.at = 0

    # -- tokens

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead]

    @property
    def line(self) -> int:
        return self.of_line[min(self.at, len(self.of_line) - 1)] if self.of_line else 1

    def take(self, expected: str | None = None) -> str:
        found = self.peek()
        if not found or (expected is not None and found != expected):
            raise PtxError(f"{expected or 'more'} is expected, not {found or 'the end'}", self.line)
        self.at += 1
        return found

    def integer(self) -> int:
        sign = -1 if self.peek() == "-" else 1
        if sign < 0:
            self.take()
        try:
            return sign * int(self.take().rstrip("U"), 0)
        except ValueError:
            raise PtxError(f"an integer is expected, not {self.peek(-1)}", self.line) from None

    def integers(self) -> tuple[int, ...]:
        values = [self.integer()]
        while self.peek() == ",":
            self.take()
            values.append(self.integer())
        return tuple(values)

    # -- module level

    def module(self) -> Module:
        target, kernels, variables = "", {}, []
        while self.peek():
            word = self.take()
            if word == ".version":
                self.take()
            elif word == ".target":
                target = self.take()
                while self.peek() == ",":
                    self.take(), self.take()
            elif word == ".address_size":
                if self.integer() != 64:
                    raise PtxError("only 64-bit addresses are supported", self.line)
            elif word in (".visible", ".extern", ".weak"):
                continue
            elif word == ".shared":
                variables.append(self.variable("shared"))
            elif word == ".entry":
                kernel = self.kernel()
                kernels[kernel.name] = kernel
            elif word == ".file":
                self.integers(), self.take()
            else:
                raise PtxError(f"{word} is not supported at module level", self.line)
        return Module(target, kernels, tuple(variables), self.lines)

    def variable(self, space: str) -> Variable:
        """``.align n .b8 name[size];`` behind the state space."""
        alignment, width = 0, 0
        while (word := self.take()).startswith("."):
            if word == ".align":
                alignment = self.power_of_two(self.integer())
            else:
                width = self.width(word)
        count = 1
        if self.peek() == "[":
            self.take()
            count = 0 if self.peek() == "]" else self.integer()
            self.take("]")
        self.take(";")
        self.bounded(count * width, _MOST_BYTES, "bytes of a variable")
        return Variable(word, space, self.power_of_two(max(alignment, width)), count * width)

    def bounded(self, number: int, most: int, what: str) -> int:
        """Refuse numbers that are negative, or larger than PTX has them."""
        if not 0 <= number <= most:
            raise PtxError(f"{number} {what} are not from 0 to {most}", self.line)
        return number

    def power_of_two(self, number: int) -> int:
        """Check that a number is a legal alignment."""
        if number < 1 or number & (number - 1):
            raise PtxError(f"an alignment must be a power of two, not {number}", self.line)
        return number

    def width(self, word: str) -> int:
        """Bytes of a type such as ``.b32``."""
        size = _BYTES.get(word.lstrip(".")[1:])
        if size is None:
            raise PtxError(f"the type {word} is not supported", self.line)
        return size

    def kernel(self) -> Kernel:
        name = self.take()
        parameters = self.parameters()
        directives: dict[str, tuple[int, ...]] = {}
        while self.peek() != "{":
            word = self.take()
            if word in _VALUES:
                directives[word] = self.integers()
            elif word in _FLAGS:
                directives[word] = ()
            else:
                raise PtxError(f"the directive {word} is not supported", self.line)
        body = _Body(self)
        body.scope()
        if not body.found:
            raise PtxError(f"the kernel {name} has no instructions", self.line)
        return Kernel(
            name,
            parameters,
            tuple(body.registers.values()),
            tuple(body.variables),
            body.resolved(),
            {f"{label}@{scope}": at for (scope, label), at in body.labels.items()},
            directives,
        )

    def parameters(self) -> tuple[Parameter, ...]:
        found: list[Parameter] = []
        end = 0
        if self.peek() != "(":
            return ()
        self.take("(")
        while self.peek() != ")":
            self.take(".param")
            alignment, width = 0, 1
            while (word := self.take()).startswith("."):
                if word == ".align":
                    alignment = self.power_of_two(self.integer())
                elif word == ".ptr":
                    while self.peek() in (".global", ".shared", ".const", ".local"):
                        self.take()
                else:
                    width = self.width(word)
            size = width
            if self.peek() == "[":
                self.take()
                size = width * self.integer()
                self.take("]")
            step = self.power_of_two(max(alignment, width))
            offset = -(-end // step) * step
            found.append(Parameter(word, offset, size))
            self.bounded(size, _MOST_PARAMETERS, "bytes of a parameter")
            end = self.bounded(offset + size, _MOST_PARAMETERS, "bytes of parameters")
            if self.peek() == ",":
                self.take()
        self.take(")")
        return tuple(found)


class _Body:
    """The statements of one kernel."""

    def __init__(self, parser: _Parser) -> None:
        self.parser = parser
        self.registers: dict[str, Register] = {}
        self.variables: list[Variable] = []
        self.labels: dict[tuple[int, str], int] = {}
        self.found: list[tuple[Instruction, tuple[int, ...]]] = []
        self.chain: tuple[int, ...] = ()  # numbers of the scopes around, the innermost first
        self.scopes = 0

    def scope(self) -> None:
        """Read ``{ ... }``."""
        p = self.parser
        p.take("{")
        self.chain = (self.scopes, *self.chain)
        self.scopes += 1
        while p.peek() != "}":
            if p.peek() == "{":
                self.scope()
            elif p.peek(1) == ":" and p.kinds[p.at] == "name":
                label = (self.chain[0], p.take())
                if label in self.labels:
                    raise PtxError(f"the label {label[1]} is there twice", p.line)
                self.labels[label] = len(self.found)
                p.take(":")
            elif p.peek().startswith("."):
                self.directive()
            else:
                self.found.append((self.instruction(), self.chain))
        p.take("}")
        self.chain = self.chain[1:]

    def directive(self) -> None:
        p = self.parser
        word = p.take()
        if word == ".reg":
            self.declare()
        elif word in (".shared", ".local"):
            self.variables.append(p.variable(word[1:]))
        elif word == ".pragma":
            p.take(), p.take(";")
        elif word == ".loc":
            p.integer(), p.integer(), p.integer()
        else:
            raise PtxError(f"the directive {word} is not supported", p.line)

    def declare(self) -> None:
        """``.reg .b32 %r<10>, x;``."""
        p = self.parser
        kind = p.take().lstrip(".")
        while True:
            name = p.take()
            names = [name]
            if p.peek() == "<":
                p.take()
                count = p.bounded(p.integer(), _MOST_REGISTERS, "registers")
                names = [f"{name}{i}" for i in range(count)]
                p.take(">")
            for each in names:
                own = self.own(each, self.chain[0])
                self.registers[own] = Register(own, kind)
            if p.peek() != ",":
                break
            p.take()
        p.take(";")

    @staticmethod
    def own(name: str, scope: int) -> str:
        """Return a register's name in a scope; those of the outermost keep theirs."""
        return f"{name}@{scope}" if scope else name

    def instruction(self) -> Instruction:
        p = self.parser
        line, predicate, negated = p.line, None, False
        if p.peek() == "@":
            p.take()
            if p.peek() == "!":
                p.take()
                negated = True
            named = self.named(p.take())
            if not isinstance(named, Register) or named.type != "pred":
                raise PtxError("a guard must be a predicate", line)
            predicate = named
        opcode = p.take()
        operands: list[Operand] = []
        while p.peek() != ";":
            operands.append(self.operand())
            if p.peek() == ",":
                p.take()
            elif p.peek() != ";":
                raise PtxError(f"; is expected, not {p.peek()}", p.line)
        p.take(";")
        return Instruction(opcode, tuple(operands), predicate, negated, line)

    def operand(self) -> Operand:
        first = self.simple()
        if self.parser.peek() == "|":
            self.parser.take()
            return Pair(first, self.simple())
        return first

    def simple(self) -> Operand:
        p = self.parser
        if p.peek() == "[":
            return self.address()
        if p.peek() == "{":
            return self.vector()
        kind, token = p.kinds[p.at], p.peek()
        if kind == "float":
            p.take()
            return Immediate(int(token[2:], 16), len(token[2:]) // 2)
        if kind == "number" or token == "-":
            return Immediate(p.integer())
        if kind == "name":
            return self.named(p.take())
        raise PtxError(f"an operand cannot begin with {token or 'the end'}", p.line)

    def vector(self) -> Vector:
        p = self.parser
        p.take("{")
        elements = [self.simple()]
        while p.peek() == ",":
            p.take()
            elements.append(self.simple())
        p.take("}")
        return Vector(tuple(elements))

    def address(self) -> Address:
        p = self.parser
        p.take("[")
        base, offset, coordinates = self.simple(), 0, None
        if p.peek() == "+":
            p.take()
            offset = p.integer()
        elif p.peek() == "-":
            offset = p.integer()
        elif p.peek() == ",":
            p.take()
            coordinates = self.vector()
        p.take("]")
        return Address(base, offset, coordinates)

    def named(self, name: str) -> Operand:
        if name == "_":
            return Register(name, "sink")
        for scope in self.chain:
            found = self.registers.get(self.own(name, scope))
            if found is not None:
                return found
        if name.startswith("%"):
            return Register(name, "special")
        return Symbol(name)

    def resolved(self) -> tuple[Instruction, ...]:
        """Return the instructions with the labels that branches name made unique."""
        done = []
        for found, chain in self.found:
            if not found.opcode.startswith("bra"):
                done.append(found)
                continue
            if len(found.operands) != 1:
                raise PtxError("a branch takes one label", found.line)
            (target,) = found.operands
            scope = next((s for s in chain if (s, _name(target)) in self.labels), None)
            if scope is None:
                raise PtxError(f"there is no label {_name(target)}", found.line)
            unique = Symbol(f"{_name(target)}@{scope}")
            done.append(
                Instruction(found.opcode, (unique,), found.predicate, found.negated, found.line)
            )
        return tuple(done)


def _name(target: Operand) -> str:
    return target.name if isinstance(target, Symbol) else ""
