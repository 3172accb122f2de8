"""A kernel compiled to closures, once: each instruction becomes one function of the registers.

A closure is called as ``op(V, m, g)`` for neighbouring warps that run an instruction together:

    V   arrays (warps, 32), one for each register seen as each type that is used ("slots")
    m   which lanes are active: True for all, else bool (warps, 32)
    g   the `Rows` of the machine: everything else
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..ptx.faults import MALFORMED, Fault, PtxError
from ..ptx.flow import EXIT, Segment, analyse
from ..ptx.ptx import Immediate, Instruction, Kernel, Module, Operand, Register, Symbol
from . import held, targets, unwritten
from .grid import SPECIALS
from .products import joined

__all__ = ["DTYPES", "Builder", "Op", "Program", "Step", "width_of"]

#: Instructions without operands.
_BARE = re.compile(
    r"(ret|exit|membar|griddepcontrol|barrier\.cluster|wgmma\.(fence|commit_group)|"
    r"fence\.(acq_rel|sc|mbarrier_init|proxy\.async)|tcgen05\.(fence|wait)|"
    r"cp\.async\.(bulk\.)?(commit_group|wait_all))\b"
)
MOST_LOCAL = 512 << 10  # bytes of a thread
Op = Callable[[Any, Any, Any], None]

#: PTX types to those of NumPy; bits are unsigned, bfloat16 and float8 are bits.
DTYPES: dict[str, Any] = {
    "pred": np.bool_, "b8": np.uint8, "u8": np.uint8, "s8": np.int8,
    "b16": np.uint16, "u16": np.uint16, "s16": np.int16, "f16": np.float16, "bf16": np.uint16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32, "tf32": np.uint32,
    "f16x2": np.uint32, "bf16x2": np.uint32, "b64": np.uint64, "u64": np.uint64, "s64": np.int64,
    "f64": np.float64, "e4m3x2": np.uint16, "e5m2x2": np.uint16, "f32x2": np.uint64,
}  # fmt: skip


def width_of(kind: str) -> int:
    """Bytes of a PTX type (1 for a predicate)."""
    return np.dtype(DTYPES[kind]).itemsize


@dataclass(frozen=True)
class Step:
    """A segment, compiled.

    Attributes
    ----------
    ops
        What runs, one after the other; `lines` are their lines in the text. Products that do not
        depend on each other are one operation, of the line of the first.
    stop
        Decides what its warps do next; by default they go on with `next`.
    together
        See `flow.Segment`.
    """

    ops: tuple[Op, ...]
    lines: tuple[int, ...]
    stop: Op | None
    next: int
    together: bool
    segment: Segment


@dataclass(frozen=True)
class Program:
    """A kernel ready to run.

    Attributes
    ----------
    slots
        (table, index) of each slot; tables are NumPy type characters of register views,
        ``"const"``, ``"special"`` and ``"param"``.
    registers
        How many registers there are, by bytes (0 for predicates).
    specials
        Names of the special registers that are read, and the types they are read as.
    params
        (offset, dtype) of the parameters that are read as constants.
    static_shared
        Addresses of shared variables from the start of a CTA's memory; the dynamic ones follow.
    static_bytes
        Shared memory that the kernel has of its own.
    """

    kernel: Kernel
    steps: tuple[Step, ...]
    slots: tuple[tuple[str, int], ...]
    registers: dict[int, int]
    constants: tuple[Any, ...]
    specials: tuple[tuple[str, Any], ...]
    params: tuple[tuple[int, Any], ...]
    static_shared: int
    static_bytes: int
    local_bytes: int
    module: Module = field(repr=False)


class Builder:
    """The state of compiling a kernel; instruction builders call its methods."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.module = module
        self.kernel = kernel
        self.flow = analyse(kernel)
        self.held = held.of_products(kernel)
        self.uses = unwritten.Uses()  # of the instruction being compiled
        self.line = 0
        self._slots: dict[tuple[str, int], int] = {}
        self._numbers: dict[str, int] = {}
        self._counts = {0: 0, 2: 0, 4: 0, 8: 0}
        self._constants: list[Any] = []
        self._constant: dict[tuple[Any, bytes], int] = {}
        self._specials: dict[tuple[str, str], int] = {}
        self._params: dict[tuple[int, str], int] = {}
        self.params = {p.name: p for p in kernel.parameters}
        self.shared_offsets, self.local_offsets = {}, {}
        end = local = 0
        for v in (*module.variables, *kernel.variables):
            if v.space == "local":
                local = -(-local // v.alignment) * v.alignment
                self.local_offsets[v.name] = local
                local += v.size
            elif v.size:
                end = -(-end // v.alignment) * v.alignment
                self.shared_offsets[v.name] = end
                end += v.size
        self.static_bytes = end
        dynamic = [v for v in (*module.variables, *kernel.variables) if not v.size]
        for v in dynamic:  # all of them name the same memory, behind the static one
            end = -(-end // v.alignment) * v.alignment
        self.shared_offsets |= {v.name: end for v in dynamic}
        self.static_shared, self.local_bytes = end, local
        if local > MOST_LOCAL:
            raise PtxError(
                f"{kernel.name} has {local} bytes of local memory, and a thread {MOST_LOCAL}",
                kernel.body[0].line,
            )

    def error(self, message: str) -> PtxError:
        """Return an error that names the line being compiled."""
        text = self.module.line(self.line).strip()
        return PtxError(f"`{text}`: {message}", self.line)

    def known(self, parts: Iterable[str], *known: str) -> None:
        """Refuse modifiers that are not known.

        Raises
        ------
        PtxError
            There is one.
        """
        for part in parts:
            if part not in known:
                raise self.error(f"the modifier .{part} is not implemented")

    # -- slots

    def _slot(self, table: str, index: int) -> int:
        return self._slots.setdefault((table, index), len(self._slots))

    def _register(self, name: str, width: int, dtype: Any) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._counts[width]
            self._counts[width] += 1
        return self._slot(np.dtype(dtype).char, number)

    def storage(self, register: Register) -> int:
        """Bytes of a register; 0 for a predicate."""
        if register.type == "pred":
            return 0
        width = width_of(register.type) if register.type in DTYPES else 0
        if width not in (2, 4, 8):
            raise self.error(f"registers of type {register.type} are not supported")
        return width

    def constant(self, value: int, kind: str, float_width: int = 0) -> int:
        """Return the slot of a constant of a PTX type."""
        dtype = np.dtype(DTYPES[kind])
        if kind == "pred":
            array = np.array(bool(value))
        elif float_width:
            native = np.dtype(np.uint32 if float_width == 4 else np.uint64)
            bits = np.array(value, native)
            if dtype.kind == "f":
                array = bits.view(native.str.replace("u", "f")).astype(dtype)
            else:
                array = bits.astype(dtype)
        elif dtype.kind == "f":
            array = np.array(value, dtype)
        else:
            raw = (value % (1 << 8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little")
            array = np.frombuffer(raw, dtype).reshape(())
        key = (dtype.char, array.tobytes())
        number = self._constant.get(key)
        if number is None:
            number = self._constant[key] = len(self._constants)
            self._constants.append(array)
        return self._slot("const", number)

    def source(self, operand: Operand, kind: str, where: int | None = None) -> int:
        """Return the slot of an operand that is read as a PTX type.

        Parameters
        ----------
        operand, kind
            The operand and the type.
        where
            The slot of a predicate; the operand is read only where it holds.

        Raises
        ------
        PtxError
            It is no such operand, or a register of another width.
        """
        if isinstance(operand, Immediate):
            return self.constant(operand.value, kind, operand.width)
        if isinstance(operand, Symbol):
            if operand.name in self.shared_offsets:
                return self._special(f"%shared.{self.address_of(operand)}", kind)
            return self.constant(self.address_of(operand), kind)
        if not isinstance(operand, Register) or operand.type == "sink":
            raise self.error("an operand is not of the kind that this instruction takes")
        if operand.type == "special":
            return self.special(operand.name, kind)
        self.uses.reads.setdefault(operand.name, where)
        return self.slot_of(operand, kind)

    def target(self, operand: Operand, kind: str) -> int:
        """Return the slot of a result; of a spare register where the result is dropped."""
        if not isinstance(operand, Register) or operand.type == "special":
            raise self.error("a result must go to a register")
        if operand.type == "sink":
            return self.scratch(kind)
        self.uses.writes.add(operand.name)
        return self.slot_of(operand, kind)

    def scratch(self, kind: str) -> int:
        """Return a register that nothing else uses."""
        width = 0 if kind == "pred" else max(width_of(kind), 2)
        return self._register(f"scratch of {width} bytes", width, DTYPES[kind])

    def slot_of(self, register: Register, kind: str) -> int:
        """Return the slot of a register as a PTX type."""
        storage = self.storage(register)
        needed = 0 if kind == "pred" else width_of(kind)
        if storage != needed:
            raise self.error(f"{register.name} is a {register.type} register, not of .{kind}")
        return self._register(register.name, storage, DTYPES[kind])

    def half(self, register: Register, name: str, *, target: bool) -> int:
        """Return the slot of a half of a 128-bit register, ``"low"`` or ``"high"``."""
        if target:
            self.uses.writes.add(register.name)
        return self._register(f"{name} half of {register.name}", 8, np.uint64)

    def special(self, name: str, kind: str) -> int:
        """Return the slot of a special register."""
        if name not in SPECIALS:
            raise self.error(f"the register {name} is not known")
        self._require(name, "register")
        return self._special(name, kind)

    def _special(self, name: str, kind: str) -> int:
        key = (name, np.dtype(DTYPES[kind]).char)
        number = self._specials.setdefault(key, len(self._specials))
        return self._slot("special", number)

    def parameter(self, offset: int, kind: str) -> int:
        """Return the slot of a piece of the kernel's parameters."""
        key = (offset, np.dtype(DTYPES[kind]).char)
        number = self._params.setdefault(key, len(self._params))
        return self._slot("param", number)

    def address_of(self, symbol: Symbol) -> int:
        """Return the address of a variable in its own state space.

        In shared memory it lacks the CTA's rank, which only the machine knows; see `source`.
        """
        from .memory import SharedMemory

        if symbol.name in self.shared_offsets:
            return SharedMemory.base + self.shared_offsets[symbol.name]
        if symbol.name in self.local_offsets:
            return self.local_offsets[symbol.name]
        if symbol.name in self.params:
            return self.params[symbol.name].offset
        raise self.error(f"there is no variable {symbol.name}")

    def flag(self, name: str) -> int:
        """Return the slot of a predicate that no instruction names."""
        return self._register(f"flag of {name}", 0, np.bool_)

    # -- programs

    def build(self, instructions: dict[str, Any], stops: dict[str, Any]) -> Program:
        """Compile all segments.

        Parameters
        ----------
        instructions, stops
            Names to functions (builder, instruction) that return closures, looked up by the
            longest name that begins an opcode.
        """
        made, uses = self._all(instructions, stops)
        unwritten.watch(self, made, uses)
        segments = enumerate(self.flow.segments)
        steps = tuple(self._with_products_together(self._step(i, s, made)) for i, s in segments)
        return Program(
            self.kernel, steps, tuple(self._slots), self._counts, tuple(self._constants),
            tuple((name, np.dtype(char)) for name, char in self._specials),
            tuple((offset, np.dtype(char)) for offset, char in self._params),
            self.static_shared, self.static_bytes, self.local_bytes, self.module,
        )  # fmt: skip

    def _with_products_together(self, step: Step) -> Step:
        ops, lines = joined(step.ops, step.lines, tuple(self._slots))
        return replace(step, ops=ops, lines=lines)

    def _all(self, instructions: Any, stops: Any) -> tuple[list[Op], list[unwritten.Uses]]:
        """Compile each instruction by itself; return also which registers each uses."""
        made, uses = [], []
        for number, segment in enumerate(self.flow.segments):
            follow = self._follow(number)
            for index in range(segment.first, segment.last):
                i = self.kernel.body[index]
                self.line, self.uses = i.line, unwritten.Uses()
                if segment.stop and index == segment.last - 1:
                    made.append(self._made(i, self._lookup(i, stops), self, i, segment, follow))
                else:
                    make = self._lookup(i, instructions)
                    found = held.touches(i, self.held) if i.predicate is not None else None
                    if found is not None:
                        make = held.checking(make, found)
                    made.append(self._made(i, _guarded, self, i, make))
                uses.append(self.uses)
        return made, uses

    def _step(self, number: int, segment: Segment, made: list[Op]) -> Step:
        body = self.kernel.body
        last = segment.last - 1 if segment.stop else segment.last
        ops, lines = [], []
        touched: list[held.Touches] = []  # up to the next wgmma
        for index in range(segment.first, last):
            instruction = body[index]
            found = held.touches(instruction, self.held)
            if instruction.opcode.startswith("wgmma."):
                touched = []
            elif found is not None and instruction.predicate is None:
                if not touched:
                    ops.append(held.unheld(touched := []))
                    lines.append(instruction.line)
                touched.append(found)
            ops.append(made[index])
            lines.append(instruction.line)
        stop = None
        if segment.stop:
            stop = made[last]
            lines.append(body[last].line)
        follow = self._follow(number)
        return Step(tuple(ops), tuple(lines), stop, follow, segment.together, segment)

    def _follow(self, number: int) -> int:
        """Return the segment behind one; EXIT behind the last."""
        return number + 1 if number + 1 < len(self.flow.segments) else EXIT

    def _made(self, instruction: Instruction, make: Any, *arguments: Any) -> Any:
        """Compile an instruction; operands that it does not take are an error of the text."""
        self._require(f"{instruction.opcode} {len(instruction.operands)}", "instruction")
        if instruction.operands and _BARE.match(instruction.opcode):
            raise self.error("it takes no operands")
        try:
            return make(*arguments)
        except MALFORMED as error:
            message = f"its operands are malformed ({type(error).__name__}: {error})"
            raise self.error(message) from error

    def _require(self, name: str, what: str) -> None:
        """Refuse what the target has not; see `targets`."""
        target = self.module.target
        needs = targets.lacking(target, name)
        if needs is not None:
            raise self.error(f"the target {target} has no such {what}: {needs}")

    def _lookup(self, instruction: Instruction, table: dict[str, Any]) -> Any:
        parts = instruction.parts
        for count in range(len(parts), 0, -1):
            found = table.get(".".join(parts[:count]))
            if found is not None:
                return found
        raise self.error(f"the instruction {instruction.opcode} is not implemented")


def _guarded(builder: Builder, instruction: Instruction, make: Any) -> Op:
    """Compile an instruction, run only in the lanes where its predicate holds."""
    inner: Op = make(builder, instruction)
    if instruction.predicate is None:
        return inner
    guard = builder.source(instruction.predicate, "pred")
    if instruction.negated:

        def unless(V: Any, m: Any, g: Any) -> None:
            active = ~V[guard] & m
            if active.any():
                try:
                    inner(V, active, g)
                except Fault as fault:
                    raise _among(fault, active, m, g) from None

        return unless

    def when(V: Any, m: Any, g: Any) -> None:
        active = V[guard] & m
        if active.any():
            try:
                inner(V, active, g)
            except Fault as fault:
                raise _among(fault, active, m, g) from None

    return when


def _among(fault: Fault, active: Any, m: Any, g: Any) -> Fault:
    """Count the thread of a fault among all that came, not only those whose guard held."""
    if fault.thread is None:
        return fault
    held = np.flatnonzero(np.broadcast_to(active, (g.n, 32)))
    index = held[fault.thread] if fault.thread < len(held) else held[0]
    return Fault(str(fault), int(np.broadcast_to(m, (g.n, 32)).reshape(-1)[:index].sum()))
