"""Object files become shared objects without a linker, on both processors."""

from __future__ import annotations

import ctypes
import platform
import random
import re
import shutil
import struct
import subprocess
from contextlib import suppress

import pytest
from object_files import NUMBERS, ObjectFile

from unigemm.backends.cute import linking
from unigemm.backends.cute.linking import SLOTS, link
from unigemm.cache.scratch import file_of
from unigemm.errors import CompilationError

native = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the machine code of these tests is x86-64's"
)


class Shared:
    """A shared object, read as the dynamic loader does."""

    def __init__(self, data):
        self.data = data
        count = struct.unpack_from("<H", data, 56)[0]
        rows = [struct.unpack_from("<IIQQQQQQ", data, 64 + 56 * i) for i in range(count)]
        self.loads = [row for row in rows if row[0] == 1]
        (dynamic,) = (row for row in rows if row[0] == 2)
        entries = dict(struct.iter_unpack("<qQ", data[dynamic[2] : dynamic[2] + dynamic[5]]))
        self.symbols, at, names = {}, self.offset(entries[6]), self.offset(entries[5])
        for _ in range(struct.unpack_from("<I", data, self.offset(entries[4]) + 4)[0]):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            end = data.index(0, names + name)
            self.symbols[data[names + name : end].decode()] = value
            at += 24
        rela = self.offset(entries[7])
        moved = data[rela : rela + entries[8]]
        self.moved = {place: to for place, _, to in struct.iter_unpack("<QQq", moved)}

    def offset(self, address):
        for _, _, begin, at, _, size, _, _ in self.loads:
            if at <= address < at + size:
                return address - at + begin
        raise AssertionError(hex(address))

    def word(self, address):
        return struct.unpack_from("<I", self.data, self.offset(address))[0]

    def rights(self, address):
        return next(row[1] for row in self.loads if row[3] <= address < row[3] + row[5])


def page_of(word, at):
    """Return the address that an `adrp` leaves."""
    pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
    return ((at >> 12) + (pages ^ 1 << 20) - (1 << 20)) << 12


@pytest.mark.parametrize("seed", range(20))
def test_addresses_of_aarch64_are_those_of_their_symbols(seed):
    draw = random.Random(seed)
    before, behind = draw.randrange(0, 3000) * 4, draw.randrange(0, 200_000)
    shifts = {277: (0x91000000, 0), 278: (0x39400000, 0), 284: (0x79400000, 1),
              285: (0xB9400000, 2), 286: (0xF9400000, 3), 299: (0x3DC00000, 4)}  # fmt: skip
    symbol = draw.choice([".rodata", ".bss"])
    kind = draw.choice(list(shifts))
    word, shift = shifts[kind]
    addend = draw.randrange(0, max(1, behind) if symbol == ".rodata" else 64) >> 4 << 4
    slot = draw.choice(SLOTS)
    words = (0x90000000, word, 0x90000000, 0xF9400000, 0x94000000, 0x14000000)
    code = bytes.fromhex("1f2003d5") * (before // 4) + struct.pack("<6I", *words)
    at = (before, before + 4, before + 8, before + 12, before + 16, before + 20)
    relocations = (
        (at[0], 275, symbol, addend), (at[1], kind, symbol, addend),
        (at[2], 311, slot, 0), (at[3], 312, slot, 0),
        (at[4], 283, slot, 0), (at[5], 282, "_cudaLaunchKernelEx", 0),
    )  # fmt: skip
    found = Shared(link(bytes(ObjectFile("aarch64", code, bytes(behind), 64, relocations))))
    start = found.symbols["__tvm_ffi_gemm"]
    code_at = [start + each for each in at]
    low = (found.word(code_at[1]) >> 10 & 0xFFF) << shift
    address = page_of(found.word(code_at[0]), code_at[0]) + low
    assert found.rights(address) == (4 if symbol == ".rodata" else 6)
    place = found.symbols[f"slot_{slot}"]
    low = (found.word(code_at[3]) >> 10 & 0xFFF) << 3
    assert page_of(found.word(code_at[2]), code_at[2]) + low == place
    ways = []
    for i in (4, 5):
        distance = found.word(code_at[i]) & 0x3FFFFFF
        ways.append(code_at[i] + 4 * ((distance ^ 1 << 25) - (1 << 25)))
    # A call of a slot leads to code that reads it and goes on there.
    low = (found.word(ways[0] + 4) >> 10 & 0xFFF) << 3
    assert page_of(found.word(ways[0]), ways[0]) + low == place
    assert found.word(ways[0] + 8) == 0xD61F0200  # br x16
    assert found.word(ways[1]) == 0xA9BD7BFD  # the launch: stp x29, x30, [sp, #-48]!
    assert found.rights(start) == found.rights(ways[0]) == found.rights(ways[1]) == 5
    assert found.rights(place) == 6


@native
@pytest.mark.parametrize("seed", range(20))
def test_code_of_x86_64_finds_its_constants_and_calls_its_slots(seed):
    """``__tvm_ffi_gemm(x)`` adds a constant to what a slot's function makes of x."""
    draw = random.Random(seed)
    value = draw.randrange(1 << 30)
    at = draw.randrange(0, 100_000) & -4
    constants = bytes(at) + struct.pack("<I", value)
    slot = draw.choice(SLOTS[:10])
    code = bytes.fromhex(
        "53 41 54"  # push rbx, r12
        "488d1df9ffffff"  # lea rbx, [rip - 7]: itself
        "49bc 0000000000000000 4901dc"  # mov r12, GOTPC64; add r12, rbx
        "48b8 0000000000000000 4883ec08 41ff1404 4883c408"  # mov rax, GOT64; call [r12 + rax]
        "48b9 0000000000000000 4103040c"  # mov rcx, GOTOFF64; add eax, [r12 + rcx]
        "415c 5b c3"  # pop r12, rbx; ret
    )
    holes = [i for i in range(len(code) - 7) if code[i : i + 8] == bytes(8)]
    table, call, constant = holes
    relocations = (
        (table, 29, "_GLOBAL_OFFSET_TABLE_", table - 3),
        (call, 27, slot, 0),
        (constant, 25, ".rodata", at),
    )
    data = link(bytes(ObjectFile("x86_64", code, constants, 8, relocations)))
    with file_of(data) as path:
        library = ctypes.CDLL(path)
    double = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: 2 * x)
    address = ctypes.cast(double, ctypes.c_void_p).value
    ctypes.c_void_p.in_dll(library, f"slot_{slot}").value = address
    assert getattr(library, "__tvm_ffi_gemm")(21) == 42 + value


@pytest.mark.parametrize("machine", NUMBERS)
@pytest.mark.parametrize("seed", range(150))
def test_damaged_object_files_are_typed_errors(machine, seed):
    draw = random.Random(seed)
    code, reads = (bytes(32), 27) if machine == "x86_64" else (bytes(32), 311)
    relocations = ((0, reads, SLOTS[draw.randrange(10)], 0), (8, reads, "_cudaGetDevice", 0))
    data = bytearray(bytes(ObjectFile(machine, code, b"abc", 8, relocations)))
    assert link(bytes(data))
    for _ in range(draw.randrange(1, 4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    data = data[: draw.choice([len(data), draw.randrange(len(data))])]
    with suppress(CompilationError):
        link(bytes(data))


@pytest.mark.parametrize(
    ("machine", "relocation", "said"),
    [
        ("x86_64", (0, 2, ".rodata", 0), "relocation 2 is not known"),
        ("aarch64", (0, 263, ".rodata", 0), "relocation 263 is not known"),
        ("x86_64", (0, 27, "memcpy", 0), "it calls memcpy"),
    ],
)
def test_what_is_not_known_is_refused_when_it_is_compiled(machine, relocation, said):
    with pytest.raises(CompilationError, match=said):
        link(bytes(ObjectFile(machine, bytes(16), b"", 8, (relocation,))))


def test_another_processor_is_refused():
    data = bytearray(bytes(ObjectFile("x86_64", b"\xc3")))
    data[18:20] = struct.pack("<H", 243)  # RISC-V
    with pytest.raises(CompilationError, match="on x86-64 or aarch64"):
        link(bytes(data))


ASSEMBLY = """
    push %rdi; push %rsi; push %rdx; xor %ecx, %ecx; call *launch@GOTPCREL(%rip)
    pop %rdx; pop %rsi; pop %rdi; cmp $201, %eax; jne 1f; push %rdi; push %rsi; push %rdx
    mov context@GOTPCREL(%rip), %rdi; call *use@GOTPCREL(%rip)
    pop %rdx; pop %rsi; pop %rdi; test %eax, %eax; jne 1f; xor %ecx, %ecx
    jmp *launch@GOTPCREL(%rip)
1:  ret
"""


@native
@pytest.mark.skipif(shutil.which("as") is None, reason="no assembler")
def test_the_machine_code_of_a_launch_is_what_its_comments_say(tmp_path):
    source, target = tmp_path / "launch.s", tmp_path / "launch.o"
    source.write_text(ASSEMBLY)
    subprocess.run(["as", "-o", target, source], check=True)
    code = b"".join(bytes.fromhex(text) for text, _ in linking._X86_64.launch)
    assert re.search(re.escape(code), target.read_bytes())
