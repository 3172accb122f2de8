"""Small PTX kernels for the tests of the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from unigemm.emulator import KernelFault, Memory, launch

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
BYTES = {"pred": 4, "b16": 2, "b32": 4, "b64": 8, "f32": 4, "f64": 8, "f16": 2}

REGISTERS = """
    .reg .pred %p<16>;
    .reg .b16 %h<32>;
    .reg .b32 %r<64>;
    .reg .b64 %d<32>;
"""


def kernel(body, params=("u64",), shared="", top=""):
    """Return a module with one kernel `k`; parameter i is loaded into %d10+i (or %r50+i)."""
    listed = ",".join(f".param .{kind} p{i}" for i, kind in enumerate(params))
    loads = "".join(
        f"ld.param.{kind} {'%d1' if kind.endswith('64') else '%r5'}{i}, [p{i}];\n"
        for i, kind in enumerate(params)
    )
    return (
        f"{HEAD}{top}.visible .entry k({listed})\n{{{REGISTERS}{shared}\n{loads}{body}\nret;\n}}\n"
    )


def line_of(ptx, text):
    """Return the number of the only line that holds `text`."""
    (found,) = [n for n, line in enumerate(ptx.split("\n"), 1) if text in line]
    return found


def run(ptx, arrays=(), *, threads=32, ctas=1, smem=0, cluster=(1, 1, 1), more=(), **options):
    """Run `k` over arrays (addresses are its first parameters)."""
    memory = Memory()
    addresses = [memory.add(x) for x in arrays]
    grid = ctas if isinstance(ctas, tuple) else (ctas,)
    params = [*addresses, *more]
    return launch(ptx, "k", grid, (threads,), cluster, smem, params, memory, **options)


def probe_text(instruction, result, operands, count):
    """Return a kernel that runs one instruction on many operands, one a thread.

    `instruction` has {d}, {a}, {b}, {c} in it; `result` and `operands` are register types. Its
    parameters are the operands' addresses and the results'; blocks have 128 threads.
    """
    files = {2: "%h", 4: "%r", 8: "%d"}
    body = "mov.u32 %r40, %tid.x;\n mov.u32 %r41, %ctaid.x;\n mad.lo.s32 %r40, %r41, 128, %r40;\n"
    body += "setp.ge.s32 %p15, %r40, %r59;\n @%p15 ret;\n"
    names = {}
    for i, (name, kind) in enumerate(zip("abc", operands, strict=False)):
        size = BYTES[kind]
        names[name] = f"{files[size]}{i + 1}"
        body += f"mad.wide.s32 %d2{i}, %r40, {size}, %d1{i};\n"
        body += f"ld.global.b{8 * size} {names[name]}, [%d2{i}];\n"
        if kind == "pred":
            body += f"setp.ne.b32 %p{i + 1}, %r{i + 1}, 0;\n"
            names[name] = f"%p{i + 1}"
    size = BYTES[result]
    target = f"{files[size]}30"
    names["d"] = "%p14" if result == "pred" else target
    body += instruction.format(**names) + "\n"
    if result == "pred":
        body += f"selp.b32 {target}, 1, 0, %p14;\n"
    last = len(operands)
    body += f"mad.wide.s32 %d29, %r40, {size}, %d1{last};\n"
    body += f"st.global.b{8 * size} [%d29], {target};\n"
    return kernel(body, ("u64",) * (last + 1)).replace("%r59", str(count))


def probe(instruction, result, operands, values):
    """Run a probe; see `probe_text`."""
    count = len(values[0])
    ptx = probe_text(instruction, result, operands, count)
    ptx = ptx.replace("sm_90a", "sm_100a")  # which has all of them
    out = np.zeros(count, f"u{BYTES[result]}")
    raw = [np.ascontiguousarray(v) for v in values]
    run(ptx, (*raw, out), threads=128, ctas=-(-count // 128))
    return out


def edited_fault(make, edit):
    """Run a kernel whose text is edited; return the message of its fault, and the line."""
    texts = []

    def change(text):
        texts.append(edit(text))
        return texts[0]

    with pytest.raises(KernelFault) as error:
        make(change)
    return error.value.message, texts[0].split("\n")[error.value.site.line - 1]
