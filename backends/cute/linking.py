"""From the object file of a kernel's host code to a shared object, without a linker.

The objects of CuTe DSL have few kinds of relocations; others are refused. What host code calls and
does not have is a slot: the variable ``slot_NAME`` of the shared object, which whoever maps that
fills with an address (`unigemm.cache.host_code`). A launch must not wait for Python, so
``_cudaLaunchKernelEx`` is added as machine code, and functions that return 0.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

from unigemm.errors import CompilationError

__all__ = ["SLOTS", "link"]

#: What a shared object is handed: the last three are what its ``_cudaLaunchKernelEx`` reads.
SLOTS = (
    *("_cudaLibraryLoadData", "_cudaLibraryGetKernel", "_cuKernelGetAttribute"),
    *("_cudaKernelSetAttributeForDevice", "_cudaFuncSetAttribute", "_cudaDeviceGetAttribute"),
    *("_cudaGetDevice", "CuteDSLRT_TVMFFISetRaisedCudaError"),
    *("TVMFFIErrorSetRaisedFromCStr", "TVMFFIErrorSetRaisedFromCStrParts"),
    *("launch", "use", "context"),
)
_CALLED = (  # from outside
    *("__tvm_ffi_gemm", "__cute_internal_gemm_cuda_init"),
    "__cute_internal_gemm_cuda_load_to_device",
)
# Kernels are loaded before the first launch, and are never unloaded.
_NOTHING = ("cuda_dialect_init_library_once", "cuda_dialect_unload_library_once")
# No exception passes through host code; and the driver may be gone when a process ends.
_UNUSED = (".eh_frame", ".fini_array")

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_ELF = b"\x7fELF\x02\x01\x01"  # of 64 bits, little-endian
_RELOCATIONS, _ZEROS = 4, 8  # kinds of sections
_WRITTEN, _MAPPED, _CODE = 1, 2, 4  # flags of sections
_PAGE = 1 << 16  # the largest of aarch64
_SEGMENTS = 5
_FUNCTION, _VARIABLE = 0x12, 0x11  # symbols of all
_TABLE = "_GLOBAL_OFFSET_TABLE_"


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    content: bytes
    link: int
    info: int
    alignment: int


class _Symbol(NamedTuple):
    name: str
    section: int = 0  # 0: it is not in this file
    value: int = 0
    shared: bool = True  # it is known beyond its file


class _Relocation(NamedTuple):
    at: int
    kind: int
    symbol: _Symbol
    addend: int


class _Machine(NamedTuple):
    """Machine code of a processor, in pieces that end by reading the slot that is named.

    `launch` is ``_cudaLaunchKernelEx(config, kernel, parameters)``. It returns
    ``launch(config, kernel, parameters, 0)``; where that is 201, the thread has no context, and it
    calls ``use(context)`` and launches again. `jump` goes on at an address that was read, and is
    what calls of a slot by its distance lead to; "" where there are none. `reads` are the
    relocations of reading: bytes to the end, kind, addend.
    """

    launch: tuple[tuple[str, str], ...]
    zero: str
    jump: tuple[str, str]
    reads: tuple[tuple[int, int, int], ...]
    relative: int  # the kind of relocation that adds the address of the shared object


_X86_64 = _Machine(
    launch=(
        # push rdi, rsi, rdx; xor ecx, ecx; call [launch]
        ("57 56 52 31c9 ff15 00000000", "launch"),
        # pop rdx, rsi, rdi; cmp eax, 201; jne END; push rdi, rsi, rdx; mov rdi, [context]
        ("5a 5e 5f 3dc9000000 751f 57 56 52 488b3d 00000000", "context"),
        ("ff15 00000000", "use"),  # call [use]
        # pop rdx, rsi, rdi; test eax, eax; jne END; xor ecx, ecx; jmp [launch]
        ("5a 5e 5f 85c0 7508 31c9 ff25 00000000", "launch"),
        ("c3", ""),  # END: ret
    ),
    zero="31c0 c3",  # xor eax, eax; ret
    jump=("", ""),
    reads=((4, 9, -4),),
    relative=8,
)
_AARCH64 = _Machine(
    launch=(
        # stp x29, x30, [sp, #-48]!; mov x29, sp; stp x0, x1, [sp, #16]; str x2, [sp, #32];
        # mov x3, xzr; adrp x16, launch; ldr x16, launch
        ("fd7bbda9 fd030091 e00701a9 e21300f9 e3031faa 10000090 100240f9", "launch"),
        # blr x16; cmp w0, #201; b.ne END; adrp x0, context; ldr x0, context
        ("00023fd6 1f240371 a1010054 00000090 000040f9", "context"),
        ("10000090 100240f9", "use"),  # adrp x16, use; ldr x16, use
        # blr x16; cbnz w0, END; ldp x0, x1, [sp, #16]; ldr x2, [sp, #32]; mov x3, xzr;
        # adrp x16, launch; ldr x16, launch
        ("00023fd6 e0000035 e00741a9 e21340f9 e3031faa 10000090 100240f9", "launch"),
        ("00023fd6 fd7bc3a8 c0035fd6", ""),  # blr x16; END: ldp x29, x30, [sp], #48; ret
    ),
    zero="e0031f2a c0035fd6",  # mov w0, wzr; ret
    jump=("10000090 100240f9", "00021fd6"),  # adrp x16, slot; ldr x16, slot; br x16
    reads=((8, 311, 0), (4, 312, 0)),
    relative=1027,
)
_MACHINES = {62: _X86_64, 183: _AARCH64}
# Relocations of aarch64, from its ELF ABI: branches, pages, and the last bits, by how far shifted.
_BRANCHES, _PAGES, _OF_SLOTS = (282, 283), (275, 311), (311, 312)
_LOW_BITS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}


def link(data: bytes) -> bytes:
    """Return the shared object of an object file.

    Parameters
    ----------
    data
        What CuTe DSL exported.

    Raises
    ------
    CompilationError
        It is for another processor, or holds what is not known.
    """
    try:
        return _Linker(data).linked()
    except (ValueError, LookupError, struct.error, OverflowError) as error:
        raise CompilationError(
            f"the host code of a kernel cannot be linked ({type(error).__name__}: {error}); "
            "install the version of nvidia-cutlass-dsl that unigemm asks for, on x86-64 or aarch64"
        ) from error


def _read(data: bytes) -> tuple[int, list[_Section], list[_Symbol]]:
    """Return the processor of an object file, its sections and its symbols."""
    ident, _, number, _, _, _, start, *_, size, count, names = _HEADER.unpack_from(data)
    if not ident.startswith(_ELF):
        raise ValueError("it is no object file")
    rows = [_SECTION.unpack_from(data, start + i * size) for i in range(count)]

    def content(row: tuple[int, ...]) -> bytes:
        _, kind, _, _, offset, length, _, _, alignment, _ = row
        if max(length, alignment) > max(len(data), _PAGE):
            raise ValueError("a section is longer than the file")
        return bytes(length) if kind == _ZEROS else data[offset : offset + length]

    def text(table: bytes, at: int) -> str:
        return table[at : table.index(0, at)].decode()

    titles = content(rows[names])
    sections = [
        _Section(text(titles, at), kind, flags, content(row), link, info, max(1, alignment))
        for row in rows
        for at, kind, flags, _, _, _, link, info, alignment, _ in (row,)
    ]
    (table,) = (each for each in sections if each.name == ".symtab")
    strings = sections[table.link].content
    symbols = [
        _Symbol(text(strings, at), section, value, info >> 4 != 0)
        for at, info, _, section, value, _ in _SYMBOL.iter_unpack(table.content)
    ]
    return number, sections, symbols


class _Linker:
    """A shared object in the making: constants, code and variables, each on pages of its own."""

    def __init__(self, data: bytes) -> None:
        self.number, self.sections, self.symbols = _read(data)
        self.machine = _MACHINES[self.number]
        self.image = bytearray(_HEADER.size + _SEGMENTS * _SEGMENT.size)
        self.begins = [0]
        self.at: dict[int, int] = {}  # where sections are
        self.relocations: list[_Relocation] = []
        self._place(_MAPPED)
        self._begin()
        self._place(_MAPPED | _CODE)
        self.functions = dict.fromkeys(_NOTHING, self._add(bytes.fromhex(self.machine.zero)))
        self.functions["_cudaLaunchKernelEx"] = self._add_code(*self.machine.launch)
        load, jump = self.machine.jump
        ways = {name: self._add_code((load, name), (jump, "")) for name in SLOTS if jump}
        self.functions |= {
            each.name: self._address(each) for each in self.symbols if each.shared and each.section
        }
        self._begin()
        self._place(_MAPPED | _WRITTEN)
        names = dict.fromkeys((*self.functions, *SLOTS))
        self.table = self._add(bytes(8 * len(names)))
        self.slots = {name: self.table + 8 * i for i, name in enumerate(names)}
        self.targets = {**ways, **self.functions}
        lacking = {each.name for each in self.symbols if each.shared} - {*names, _TABLE}
        if lacking:
            raise ValueError(f"it calls {min(lacking)}")

    def linked(self) -> bytes:
        """Return the shared object."""
        for section in self.sections:
            if section.kind == _RELOCATIONS and section.info in self.at:
                begin = self.at[section.info]
                self.relocations += (
                    _Relocation(begin + at, info & 0xFFFFFFFF, self.symbols[info >> 32], addend)
                    for at, info, addend in _RELOCATION.iter_unpack(section.content)
                )
        relocated = self._x86_64 if self.machine is _X86_64 else self._aarch64
        for each in self.relocations:
            at = self._offset(each.at)
            width, value = relocated(each, int.from_bytes(self.image[at : at + 4], "little"))
            self.image[at : at + width] = value.to_bytes(width, "little", signed=value < 0)
        self._describe()
        return bytes(self.image)

    def _begin(self) -> None:
        """Begin the next segment: it is as far behind its place in the file as pages are long."""
        self.image += bytes(-len(self.image) % 64)
        self.begins.append(len(self.image))

    def _add(self, content: bytes, alignment: int = 16) -> int:
        """Add to the segment, and return the address."""
        self.image += bytes(-len(self.image) % alignment)
        self.image += content
        return len(self.image) - len(content) + (len(self.begins) - 1) * _PAGE

    def _offset(self, address: int) -> int:
        """Return where in the file an address is."""
        begins = [begin + i * _PAGE for i, begin in enumerate(self.begins)]
        return address - (bisect_right(begins, address) - 1) * _PAGE

    def _place(self, flags: int) -> None:
        for i, each in enumerate(self.sections):
            if each.flags & 7 == flags and each.name not in _UNUSED:
                self.at[i] = self._add(each.content, each.alignment)

    def _add_code(self, *pieces: tuple[str, str]) -> int:
        """Add a function in pieces, which end by reading slots."""
        code = b""
        reads: list[tuple[int, int, str, int]] = []
        for text, name in pieces:
            code += bytes.fromhex(text)
            if name:
                reads += ((len(code) - n, kind, name, x) for n, kind, x in self.machine.reads)
        at = self._add(code)
        self.relocations += (_Relocation(at + n, kind, _Symbol(s), x) for n, kind, s, x in reads)
        return at

    def _address(self, symbol: _Symbol) -> int:
        if symbol.section:
            return self.at[symbol.section] + symbol.value
        return self.targets[symbol.name]

    def _x86_64(self, each: _Relocation, word: int) -> tuple[int, int]:
        """Return how many bytes a relocation writes, and the number."""
        kind, symbol, addend = each.kind, each.symbol, each.addend
        if kind == 9:  # GOTPCREL
            return 4, self.slots[symbol.name] + addend - each.at
        if kind == 25:  # GOTOFF64
            return 8, self._address(symbol) + addend - self.table
        if kind == 27:  # GOT64
            return 8, self.slots[symbol.name] + addend - self.table
        if kind == 29:  # GOTPC64
            return 8, self.table + addend - each.at
        raise LookupError(f"relocation {kind} is not known")

    def _aarch64(self, each: _Relocation, word: int) -> tuple[int, int]:
        """Return how many bytes a relocation writes, and the number: an instruction's word."""
        kind, symbol = each.kind, each.symbol
        found = self.slots[symbol.name] if kind in _OF_SLOTS else self._address(symbol)
        to = found + each.addend
        if kind in _BRANCHES:
            return 4, word | (to - each.at >> 2 & 0x3FFFFFF)
        if kind in _PAGES:
            pages = (to >> 12) - (each.at >> 12)
            return 4, word | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
        if kind in _LOW_BITS:
            return 4, word | (to & 0xFFF) >> _LOW_BITS[kind] << 10
        raise LookupError(f"relocation {kind} is not known")

    def _describe(self) -> None:
        """Add what the dynamic loader reads."""
        symbols = {name: (self.functions[name], _FUNCTION) for name in _CALLED}
        symbols |= {f"slot_{name}": (self.slots[name], _VARIABLE) for name in SLOTS}
        strings, table = b"\0", _SYMBOL.pack(0, 0, 0, 0, 0, 0)
        for name, (at, kind) in symbols.items():
            table += _SYMBOL.pack(len(strings), kind, 0, 1, at, 8)
            strings += name.encode() + b"\0"
        count = len(symbols) + 1  # all in one chain
        chains = struct.pack(f"<{count + 3}I", 1, count, 1, 0, *range(2, count), 0)
        fixed = [(self.slots[name], at) for name, at in self.functions.items()]
        moved = b"".join(_RELOCATION.pack(at, self.machine.relative, to) for at, to in fixed)
        entries = (
            *((4, self._add(chains)), (5, self._add(strings)), (10, len(strings))),
            *((6, self._add(table)), (11, _SYMBOL.size)),
            *((7, self._add(moved)), (8, len(moved)), (9, _RELOCATION.size), (0, 0)),
        )
        size = len(entries) * _ENTRY.size
        dynamic = self._add(b"".join(_ENTRY.pack(*each) for each in entries))
        header = _HEADER.pack(
            _ELF, 3, self.number, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size,
            _SEGMENTS, 0, 0, 0,
        )  # fmt: skip
        ends = (*self.begins[1:], len(self.image))
        for i, (begin, end, rights) in enumerate(zip(self.begins, ends, (4, 5, 6), strict=True)):
            at = begin + i * _PAGE
            header += _SEGMENT.pack(1, rights, begin, at, at, end - begin, end - begin, _PAGE)
        at = self._offset(dynamic)
        header += _SEGMENT.pack(2, 6, at, dynamic, dynamic, size, size, 8)
        header += _SEGMENT.pack(0x6474E551, 6, 0, 0, 0, 0, 0, 16)  # no stack runs code
        self.image[: len(header)] = header
