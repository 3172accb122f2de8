"""Object files as CuTe DSL exports them, small and made of given code, for both processors."""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["NUMBERS", "ObjectFile"]

NUMBERS = {"x86_64": 62, "aarch64": 183}
_CALLED = ("__tvm_ffi_gemm", "__cute_internal_gemm_cuda_init",
           "__cute_internal_gemm_cuda_load_to_device")  # fmt: skip


@dataclass
class ObjectFile:
    """An object file: code, which all exported functions begin with, constants and variables.

    `relocations` are (place in the code, kind, symbol, addend). ".rodata" and ".bss" are symbols,
    and any other name is that of a function.
    """

    machine: str
    code: bytes
    constants: bytes = b""
    variables: int = 8
    relocations: tuple[tuple[int, int, str, int], ...] = ()

    def __bytes__(self) -> bytes:
        names = [".rodata", ".bss", *_CALLED]
        names += [name for _, _, name, _ in self.relocations if name not in names]
        symbols, strings = bytes(24), b"\0"
        for name in names:
            section = {".rodata": 2, ".bss": 3}.get(name, 1 if name in _CALLED else 0)
            binding = 0x03 if name.startswith(".") else 0x12
            symbols += struct.pack("<IBBHQQ", len(strings), binding, 0, section, 0, 0)
            strings += name.encode() + b"\0"
        rows = [
            struct.pack("<QQq", at, (1 + names.index(name)) << 32 | kind, addend)
            for at, kind, name, addend in self.relocations
        ]
        sections = (  # name, kind, flags, content, link, info, alignment
            (b"", 0, 0, b"", 0, 0, 0),
            (b".text", 1, 6, self.code, 0, 0, 16),
            (b".rodata", 1, 2, self.constants, 0, 0, 16),
            (b".bss", 8, 3, bytes(self.variables), 0, 0, 8),
            (b".rela.text", 4, 0, b"".join(rows), 5, 1, 8),
            (b".symtab", 2, 0, symbols, 6, 3, 8),
            (b".strtab", 3, 0, strings, 0, 0, 1),
        )
        titles, content, headers = b"", b"", b""
        for name, kind, flags, data, link, info, alignment in sections:
            at = 64 + len(content)
            size = len(data)
            headers += struct.pack(
                "<IIQQQQIIQQ", len(titles), kind, flags, 0, at, size, link, info, alignment, 0
            )
            titles += name + b"\0"
            content += b"" if kind == 8 else data
        at = 64 + len(content)
        headers += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, at, len(titles), 0, 0, 1, 0)
        start = at + len(titles)
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        number, count = NUMBERS[self.machine], len(sections) + 1
        header = struct.pack(
            "<16sHHIQQQIHHHHHH", ident, 1, number, 1, 0, 0, start, 0, 64, 0, 0, 64, count, count - 1
        )
        return header + content + titles + headers
