"""A small kernel for each form of an instruction, to hold the emulator against a real GPU.

`python tests/emulator/probes.py` where there is a Hopper GPU runs them and writes the results to
`probe_results.json`, which CI replays; see test_emulator_probes.py. Kept are digests, and results
themselves where the tensor cores round in their own way. A probe that does not compile or run
there is named in the file and does not stop the others, which go on in another process if need be.
"""

from __future__ import annotations

import base64
import hashlib
import json
import multiprocessing
import zlib
from pathlib import Path

import numpy as np
from emulated import BYTES, probe, probe_text, run
from matrix_probes import MATRIX_PROBES, TYPES
from memory_probes import MAP_PROBES, MEMORY_PROBES, QUESTIONS

RESULTS = Path(__file__).parent / "probe_results.json"
COUNT = 2048
INT, INT64, HALF = "b32", "b64", "b16"

_TWO = (
    "add.s32 sub.s32 mul.lo.s32 mul.hi.s32 mul.hi.u32 min.s32 min.u32 max.s32 max.u32 div.s32 "
    "div.u32 rem.s32 rem.u32 and.b32 or.b32 xor.b32 shl.b32 shr.s32 shr.u32"
)
_TWO64 = "add.s64 sub.s64 mul.lo.s64 mul.hi.s64 mul.hi.u64 min.s64 max.u64 div.s64 div.u64"
_ONE = (
    "not.b32 neg.s32 abs.s32 popc.b32 clz.b32 cvt.s32.s8 cvt.s32.s16 cvt.u32.u8 brev.b32 "
    "bfind.u32 bfind.s32 bfind.shiftamt.u32 bfind.shiftamt.s32"
)
_THREE = (
    "mad.lo.s32 mad.hi.s32 mad.hi.u32 prmt.b32 shf.l.wrap.b32 shf.l.clamp.b32 shf.r.wrap.b32 "
    "shf.r.clamp.b32 bfe.u32 bfe.s32 dp4a.u32.u32 dp4a.s32.s32 dp4a.s32.u32"
)
_COMPARED = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan"


def _probes():
    """Yield (text, result, operands, which kind of operands); division by zero is unspecified."""
    for name in _TWO.split():
        kind = "shift" if name.startswith("sh") else "nonzero" if name[:3] in "divrem" else "bits"
        yield f"{name} {{d}}, {{a}}, {{b}};", INT, (INT, INT), kind
    for name in _TWO64.split():
        kind = "nonzero" if name.startswith("div") else "bits"
        yield f"{name} {{d}}, {{a}}, {{b}};", INT64, (INT64, INT64), kind
    for name in _ONE.split():
        yield f"{name} {{d}}, {{a}};", INT, (INT,), "bits"
    for name in _THREE.split():
        kind = "field" if name.startswith(("bfe", "shf")) else "bits"
        yield f"{name} {{d}}, {{a}}, {{b}}, {{c}};", INT, (INT,) * 3, kind
    for first, count in ((0, 32), (7, 9), (20, 30), (31, 1), (5, 0)):
        text = f"bfi.b32 {{d}}, {{a}}, {{b}}, {first}, {count};"
        yield text, INT, (INT, INT), "bits"
    for table in (0x96, 0xEA, 0x1B):
        yield f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};", INT, (INT,) * 3, "bits"
    for kind, register in (("f32", INT), ("f64", INT64)):
        for name in ("add", "sub", "mul", "div.rn"):
            yield f"{name}.{kind} {{d}}, {{a}}, {{b}};", register, (register,) * 2, kind
        for name in ("min", "max"):
            yield f"{name}.{kind} {{d}}, {{a}}, {{b}};", register, (register,) * 2, kind
        yield f"fma.rn.{kind} {{d}}, {{a}}, {{b}}, {{c}};", register, (register,) * 3, kind
        for name in ("sqrt.rn", "rcp.rn", "neg", "abs"):
            yield f"{name}.{kind} {{d}}, {{a}};", register, (register,), kind
        for name in _COMPARED.split():
            yield f"setp.{name}.{kind} {{d}}, {{a}}, {{b}};", "pred", (register,) * 2, kind
    for kind in ("f16", "bf16"):
        yield f"cvt.f32.{kind} {{d}}, {{a}};", INT, (HALF,), "bits"
        yield f"cvt.rn.{kind}.f32 {{d}}, {{a}};", HALF, (INT,), "f32"
        yield f"cvt.rn.{kind}x2.f32 {{d}}, {{a}}, {{b}};", INT, (INT, INT), "f32"
        yield f"fma.rn.{kind} {{d}}, {{a}}, {{b}}, {{c}};", HALF, (HALF,) * 3, "bits"
        yield f"fma.rn.{kind}x2 {{d}}, {{a}}, {{b}}, {{c}};", INT, (INT,) * 3, "bits"
    yield "add.f16 {d}, {a}, {b};", HALF, (HALF, HALF), "bits"
    yield "mul.f16 {d}, {a}, {b};", HALF, (HALF, HALF), "bits"
    yield "cvt.rn.f32.f64 {d}, {a};", INT, (INT64,), "f64"
    yield "cvt.f64.f32 {d}, {a};", INT64, (INT,), "f32"
    yield "cvt.rn.f16.f64 {d}, {a};", HALF, (INT64,), "f64"
    yield "cvt.rn.f32.s32 {d}, {a};", INT, (INT,), "bits"
    yield "cvt.rn.f32.u32 {d}, {a};", INT, (INT,), "bits"
    yield "cvt.rn.f64.s64 {d}, {a};", INT64, (INT64,), "bits"
    yield "cvt.rn.f32.s64 {d}, {a};", INT, (INT64,), "bits"
    for mode in ("rna", "rn", "rz"):
        yield f"cvt.{mode}.tf32.f32 {{d}}, {{a}};", INT, (INT,), "finite"
    for kind in ("f16", "bf16"):
        yield f"cvt.rz.{kind}.f32 {{d}}, {{a}};", HALF, (INT,), "f32"
        yield f"cvt.rz.{kind}x2.f32 {{d}}, {{a}}, {{b}};", INT, (INT, INT), "f32"
    yield "cvt.rz.f32.f64 {d}, {a};", INT, (INT64,), "f64"
    yield "cvt.rz.f16.f64 {d}, {a};", HALF, (INT64,), "f64"
    for mode in ("rni", "rzi", "rmi", "rpi"):
        yield f"cvt.{mode}.s32.f32 {{d}}, {{a}};", INT, (INT,), "f32"
        yield f"cvt.{mode}.u32.f32 {{d}}, {{a}};", INT, (INT,), "f32"
        yield f"cvt.{mode}.s64.f64 {{d}}, {{a}};", INT64, (INT64,), "f64"
    for kind in ("e4m3x2", "e5m2x2"):
        text = f"cvt.rn.satfinite.{kind}.f32 {{d}}, {{a}}, {{b}};"
        yield text, HALF, (INT, INT), "small"
        yield f"cvt.rn.f16x2.{kind} {{d}}, {{a}};", INT, (HALF,), "bits"
    # All lanes of the warps are there: the operands fill whole blocks.
    yield "shfl.sync.bfly.b32 {d}, {a}, 5, 31, -1;", INT, (INT,), "bits"
    yield "shfl.sync.idx.b32 {d}, {a}, {b}, 4127, -1;", INT, (INT, INT), "bits"
    yield "shfl.sync.up.b32 {d}, {a}, {b}, 2048, -1;", INT, (INT, INT), "bits"
    yield "shfl.sync.down.b32 {d}, {a}, {b}, 6175, -1;", INT, (INT, INT), "bits"
    for name in ("add.s32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"):
        kind = {"and": "dense", "or": "sparse"}.get(name.split(".")[0], "bits")
        yield f"redux.sync.{name} {{d}}, {{a}}, -1;", INT, (INT,), kind
    yield "movmatrix.sync.aligned.m8n8.trans.b16 {d}, {a};", INT, (INT,), "bits"
    for name in ("all", "any", "uni"):
        text = f"setp.ne.s32 %p1, {{a}}, 0; vote.sync.{name}.pred {{d}}, %p1, -1;"
        yield text, "pred", (INT,), "dense" if name == "all" else "sparse"
    yield (
        "setp.lt.s32 %p1, {a}, 0; vote.sync.ballot.b32 {d}, %p1, -1;", INT, (INT,), "bits"
    )  # fmt: skip


PROBES = list(_probes())


def operands_of(text, operands, kind):
    """Return the operands of a probe: the same each time."""
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    values = []
    for i, register in enumerate(operands):
        width = 8 * BYTES[register]
        bits = rng.integers(0, 1 << 64, COUNT, dtype=np.uint64)
        # Half of them are edges: few bits set, or few bits not set.
        edge = np.uint64(1) << rng.integers(0, width, COUNT).astype(np.uint64)
        edge = edge - rng.integers(0, 3, COUNT).astype(np.uint64)
        edge = np.where(rng.random(COUNT) < 0.5, edge, ~edge)
        x = np.where(rng.random(COUNT) < 0.5, bits, edge).astype(f"u{width // 8}")
        if kind in ("dense", "sparse"):
            x = np.where(rng.random(COUNT) < 0.9, 0, edge).astype(x.dtype)
            x = ~x if kind == "dense" else x
        if kind in ("f32", "f64", "finite", "small"):
            x = _floats(rng, x, kind)
        elif kind == "nonzero" and i == 1:
            x = np.maximum(x, x.dtype.type(1))
        elif (kind == "shift" and i == 1) or (kind == "field" and i):
            x = np.where(rng.random(COUNT) < 0.9, x % x.dtype.type(40), x)
        if i and kind in ("f32", "f64", "bits") and x.dtype == values[0].dtype:
            x = np.where(rng.random(COUNT) < 0.1, values[0], x)  # equal ones
        values.append(x)
    return values


def _floats(rng, bits, kind):
    """Return floats of near sizes, a part of them of any bits."""
    native = np.dtype(f"f{bits.itemsize}")
    scale = 2.0 ** rng.integers(-12, 12, COUNT)
    near = (rng.standard_normal(COUNT) * scale).astype(native)
    if kind == "small":
        return near.view(bits.dtype)
    mixed = np.where(rng.random(COUNT) < 0.6, near.view(bits.dtype), bits)
    if kind == "finite":
        mixed = np.where(np.isfinite(mixed.view(native)), mixed, 0)
    return mixed.astype(bits.dtype)


_RESULT_FLOATS = {"f16": "f2", "f32": "f4", "f64": "f8"}


def canonical(text, found):
    """Return results with all NaNs alike: which NaN comes out is not compared."""
    opcode = text.split(" ", 1)[0].split(".")
    kinds = [part for part in opcode if part in (*_RESULT_FLOATS, "bf16", "f16x2", "bf16x2")]
    if opcode[0] in ("setp", "neg", "abs") or not kinds:
        return found
    kind = kinds[0]
    if opcode[0] == "cvt" and not any(part.startswith(kind) for part in opcode[1:3]):
        return found  # to an integer
    halves = found.view(np.uint16) if kind.endswith("x2") else found
    if kind.startswith("bf16"):
        nan = (halves & 0x7FFF) > 0x7F80
    elif kind == "f16x2":
        nan = np.isnan(halves.view(np.float16))
    else:
        nan = np.isnan(halves.view(_RESULT_FLOATS[kind]))
    return np.where(nan, halves.dtype.type(0x7FFF), halves)


def digest(text, found):
    """Return what is kept of a probe's results."""
    return hashlib.sha256(canonical(text, found).tobytes()).hexdigest()[:16]


def emulated(text, result, operands, kind):
    """Run a probe in the emulator."""
    return probe(text, result, operands, operands_of(text, operands, kind))


def on_device(text, result, operands, kind):
    """Run a probe on the current CUDA device, its PTX compiled by the driver."""
    ptx = probe_text(text, result, operands, COUNT)
    values = operands_of(text, operands, kind)
    return _launched(ptx, values, np.zeros(COUNT, f"u{BYTES[result]}"), COUNT // 128, 128, 0)


def _launched(ptx, arrays, out, ctas, threads, smem):
    import cupy

    module = cupy.cuda.function.Module()
    module.load(ptx.encode())
    there = [cupy.asarray(x) for x in (*arrays, out)]
    addresses = [np.uint64(x.data.ptr) for x in there]
    module.get_function("k")((ctas,), (threads,), addresses, shared_mem=smem)
    return cupy.asnumpy(there[-1])


def matrix_emulated(found):
    """Run a probe of a tensor core's instruction in the emulator; return D."""
    out = np.zeros(found.out_shape, TYPES[found.acc])
    run(found.text, (*found.arrays, out), threads=found.threads, smem=found.smem)
    return found.matrix(out)


def matrix_on_device(found):
    """Run it on the current CUDA device."""
    out = np.zeros(found.out_shape, TYPES[found.acc])
    return found.matrix(_launched(found.text, found.arrays, out, 1, found.threads, found.smem))


def matrix_digest(d):
    """Return what is kept of exact results."""
    return memory_digest(d.tobytes())


def memory_digest(raw):
    """Return what is kept of bytes."""
    return hashlib.sha256(raw).hexdigest()[:16]


def packed(d):
    """Return what is kept of results that are rounded in the hardware's own way."""
    return base64.b64encode(zlib.compress(d.tobytes(), 9)).decode()


def unpacked(text, found):
    """Return them as they were: the inverse of `packed`."""
    raw = zlib.decompress(base64.b64decode(text))
    return np.frombuffer(raw, TYPES[found.acc]).reshape(found.c.shape)


# -- on a device -----------------------------------------------------------------------------------

TOGETHER = {text: rest for text, *rest in PROBES}
NAMES = (*TOGETHER, *MATRIX_PROBES, *MEMORY_PROBES, *MAP_PROBES, *QUESTIONS)
MAP_ADDRESS = 0x7F00_0000_0000
PATIENCE = 60  # seconds


def measured(name):
    """Run one probe on the device; return where its result belongs, and the result."""
    if name in TOGETHER:
        return "digests", digest(name, on_device(name, *TOGETHER[name]))
    if name in MEMORY_PROBES:
        return "digests", memory_digest(MEMORY_PROBES[name].on_device())
    if name in MAP_PROBES:
        return "maps", MAP_PROBES[name].encoded(MAP_ADDRESS).tobytes().hex()
    if name in QUESTIONS:
        return "answers", QUESTIONS[name].on_device().hex()
    found = MATRIX_PROBES[name]
    d = matrix_on_device(found)
    return ("digests", matrix_digest(d)) if found.exact else ("values", packed(d))


def usable():
    """Whether the device still works after a failure."""
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
    except Exception:
        return False
    return True


def _work(connection, first):
    """Run probes in their order, until one leaves the device useless; None is the end."""
    for name in NAMES[first:]:
        try:
            connection.send((name, *measured(name)))
        except Exception as error:
            connection.send((name, "failed", f"{type(error).__name__}: {error}"[:500]))
            if not usable():
                break
    connection.send(None)


def all_measured(work=_work):
    """Run all probes on the device, and go on behind those that fail."""
    kept = {"digests": {}, "values": {}, "maps": {}, "answers": {}, "failed": {}}
    context = multiprocessing.get_context("spawn")
    done = 0
    while done < len(NAMES):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(theirs, done), daemon=True)
        process.start()
        theirs.close()
        answer = ("",)
        while answer is not None and done < len(NAMES):
            try:
                answer = mine.recv() if mine.poll(PATIENCE) else (NAMES[done], "", "no answer")
            except EOFError:
                answer = NAMES[done], "", "the process ended"
            if answer is not None:
                name, kind, value = answer
                kept[kind or "failed"][name] = value
                done += 1
                answer = answer if kind else None
        process.kill()
        process.join()
    return kept


def main():
    import cupy

    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    kept = all_measured()
    RESULTS.write_text(json.dumps({"device": device, **kept}, indent=1) + "\n")
    for name, why in kept["failed"].items():
        print(f"failed: {name}: {why}")
    print(f"{len(NAMES) - len(kept['failed'])} of {len(NAMES)} probes written to {RESULTS}")


if __name__ == "__main__":
    main()
