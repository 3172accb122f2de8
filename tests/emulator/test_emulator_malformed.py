"""What is malformed is refused with an error of the emulator, and never crashes it."""

from __future__ import annotations

import random
import re
import struct

import numpy as np
import pytest
from emulated import HEAD, kernel, line_of, run
from test_emulator_hopper import BOX, MAPS, go, loading, product, product_arrays

from unigemm.emulator import EmulatorError, KernelFault, PtxError, launch
from unigemm.emulator.async_copy.tma import decode
from unigemm.emulator.launch import launching
from unigemm.emulator.launch.launching import compiled, pack_parameters
from unigemm.emulator.ptx.faults import Fault

SHARED = ".extern .shared .align 1024 .b8 area[];\n"
STATIC = ".shared .align 16 .b8 own[{}];\n"


# -- shared memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "most"),
    [("sm_80", 166912), ("sm_89", 101376), ("sm_90a", 232448), ("sm_100a", 232448)],
)
def test_a_cta_has_no_more_shared_memory_than_the_device(target, most):
    text = kernel("", params=(), top=SHARED, shared=STATIC.format(1000)).replace("sm_90a", target)
    run(text, smem=most - 1000)
    for smem in (most - 999, most, 1 << 40, -1):
        with pytest.raises(EmulatorError, match=f"{most} on this device; launch it with less"):
            run(text, smem=smem)
    run(text, smem=4096, shared_limit=5096)
    with pytest.raises(EmulatorError, match="5095 on this device"):
        run(text, smem=4096, shared_limit=5095)


def test_static_shared_memory_is_what_ptxas_takes():
    run(kernel("", params=(), shared=STATIC.format(49152)))
    with pytest.raises(EmulatorError, match="make it dynamic"):
        run(kernel("", params=(), shared=STATIC.format(49168)))


def test_an_emulated_device_refuses_what_its_target_has_not():
    from dataclasses import replace

    import unigemm
    from unigemm.emulator import device
    from unigemm.emulator.launch import host

    if host.missing() is not None:
        pytest.skip(host.missing())
    small = replace(unigemm.named_target("sm_90a"), smem_per_block=8192)
    text = kernel("", top=SHARED)
    with device(small) as gpu:
        gpu.run(text, host.Launch("k", (1, 1, 1), (32, 1, 1), (1, 1, 1), 8192, b"\0" * 8))
        with pytest.raises(EmulatorError, match="8192 on this device"):
            gpu.run(text, host.Launch("k", (1, 1, 1), (32, 1, 1), (1, 1, 1), 8208, b"\0" * 8))


# -- sizes and parameters --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [
        {"ctas": (1, 2, 3, 4)}, {"ctas": (0,)}, {"ctas": (-1,)}, {"ctas": (1.5,)}, {"ctas": ("1",)},
        {"ctas": (1, 65536)}, {"ctas": (2**31,)}, {"threads": 0}, {"threads": -32},
        {"threads": 1025}, {"threads": None}, {"smem": None}, {"smem": 1.5},
        {"cluster": (0, 1, 1)}, {"cluster": (17, 1, 1), "ctas": 17}, {"cluster": "abc"},
    ],
    ids=str,
)  # fmt: skip
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(EmulatorError):
        run(kernel("", params=()), **sizes)


@pytest.mark.parametrize("value", [None, "1", 1e60, b"123", [1], {}], ids=repr)
def test_parameters_that_are_none_are_refused(value):
    text = kernel("mov.u32 %r1, 0;", ("u32",))
    with pytest.raises(EmulatorError):
        pack_parameters(compiled(text).kernel, [value])
    with pytest.raises(EmulatorError, match="1 parameters"):
        pack_parameters(compiled(text).kernel, [])


def test_a_text_that_is_none_is_refused():
    for text in (None, b"", 5):
        with pytest.raises(EmulatorError, match="text of PTX"):
            launch(text, None, (1,), (1,))


# -- operands --------------------------------------------------------------------------------------

OPERANDS = """
add.s32 %r1;
add.s32;
add.s32 %r1, %r2, %r3, %r4;
add.s32 %r1, [%r2], %r3;
add.s32 {%r1}, %r2, %r3;
mov.b32;
mov.b64 %d1, {%r1};
mov.b64 {%r1}, %d1;
ld.global.u32 %r1;
ld.global.u32 %r1, %r2;
ld.global.v4.u32 {%r1, %r2}, [%d1];
ld.v4;
ld;
st.global.b32 [%d1];
st.shared.b32 [nothing], %r1;
ld.param.u64 %d1, [no];
setp.eq.s32 %p1;
setp %p1, %r1, %r2;
selp.b32 %r1, %r2, %r3;
cvt.rn.f32 %r1, %r2;
mad.lo.s32 %r1, %r2;
shl.b32 %r1, %p1, 1;
bra;
bra nowhere;
bra %r1;
@%r1 bra $x;
bar.sync;
bar.sync %p1;
shfl.sync.bfly.b32 %r1;
mma.sync.aligned.m16n8k16 {%r1};
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1}, {%r2}, {%r3}, {%r4};
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r2];
cp.async.cg.shared.global [%r1];
cp.async.wait_group;
cp.async.wait_group %r1;
mbarrier.init.shared.b64 [%r1];
mbarrier.try_wait.parity.shared.b64 %p1;
wgmma.mma_async.sync.aligned.m64n8k16.f32 {%r1};
wgmma.wait_group.sync.aligned;
wgmma.wait_group.sync.aligned -1;
fence.proxy.async %r1, 5;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1];
tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1;
tcgen05.alloc;
tcgen05.ld %r1;
atom.global.add.u32 %r1;
red.global.add.u32 [%d1];
vote.sync.any.pred %p1;
mapa.shared::cluster.u32 %r1;
barrier.cluster.arrive %r1;
prmt.b32 %r1, %r2;
nothing %r1;
lop3.b32 %r1, %r2, %r3, %r4;
add.f32 %r1, %r2, 1e400;
mov.u32 %r1, %nothing;
redux.sync;
elect.sync %p1;
elect.sync %r1|%p1;
bfe.u32 %r1, %r2;
fma.rn.f32 %r1, %r2;
@%p1;
""".strip().split("\n")


@pytest.mark.parametrize("line", OPERANDS)
def test_operands_that_an_instruction_does_not_take_are_named_with_their_line(line):
    text = kernel(f"\n{line} // here\n", params=())
    with pytest.raises((PtxError, KernelFault)) as raised:
        run(text)
    error = raised.value
    found = error.line if isinstance(error, PtxError) else error.site.line
    assert found - line_of(text, "// here") in (0, 1)  # what is left out is missed behind it


BROKEN = [
    "", "{", ".entry", ".visible .entry k(", ".file", ".target", ".version", ".address_size x",
    "\0", '"', ".entry k(.param .align 0 .b8 p[0]) { ret; }", ".entry k() {", ".entry k() {}",
    ".entry k(.param .align 3 .b8 p[4]) { ret; }", ".entry k(.param .b8 p[99999999]) { ret; }",
    ".entry k(.param .b8 p[-4]) { ret; }", ".entry k() { " + "{" * 5000,
    *(
        f".entry k() {{ {body}"
        for body in (
            "ret", "bra", "@ ret; }", ".reg .b32 %r<9999999999>; ret; }", "mov.b32 %r1, {{{",
            ".reg .b32 %r<-1>; ret; }", ".shared .align 0 .b8; ret; }", "add.s32 a, [",
            ".shared .b8 x[-5]; ret; }", ".local .b8 x[99999999999]; ret; }",
            ".local .b8 x[600000]; ret; }", ".shared .b8 x[99999999999999]; ret; }",
            "mov.b32 x, " + "{" * 5000, "mov.u32 x, " + "9" * 5000 + "; ret; }",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: repr(text[-30:]))
def test_texts_that_break_off_or_ask_for_too_much_are_refused(text):
    with pytest.raises(EmulatorError):
        launch(HEAD + text, None, (1,), (32,))


@pytest.mark.parametrize("seed", range(4))
def test_any_128_bytes_are_a_tensor_map_or_a_fault(seed):
    draw = random.Random(seed)
    for _ in range(500):
        raw = bytearray(draw.randbytes(128) if draw.random() < 0.3 else bytes(128))
        raw[8:12] = struct.pack("<I", draw.getrandbits(14) & ~15 | 2 * draw.randrange(2))
        for _ in range(draw.randrange(12)):
            raw[draw.randrange(64)] = draw.randrange(256)
        try:
            found = decode(bytes(raw))
        except Fault:
            continue
        assert 0 < found.box_bytes <= 1 << 18


# -- mutations -------------------------------------------------------------------------------------

CHANGES = 120  # of each text
TOKEN = re.compile(r"[\w.%$]+(?:::[\w.]+)*|[^\s\w]")
STRANGE = ("", "%r1", "%d1", "%p1", "0", "-1", "4294967295", "[", "]", "{", "}", ",", ";", "ret;",
           "0f7FC00000", ".b32", ".v4", "%tid.x", "_", "|", "@")  # fmt: skip


def texts():
    """Return texts that run, with what they are launched with."""
    numbers = np.zeros(64, np.float32)
    plain = kernel(
        """mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d10, %d2;
        ld.global.f32 %r2, [%d3]; fma.rn.f32 %r3, %r2, 0f40000000, %r2; mov.u32 %r4, area;
        mad.lo.u32 %r5, %r1, 4, %r4; st.shared.f32 [%r5], %r3; bar.sync 0;
        setp.lt.u32 %p1, %r1, 16; @%p1 bra $low; cvt.rn.f16x2.f32 %r6, %r2, %r3;
        mov.b32 {%h1, %h2}, %r6; mov.b32 %r3, {%h1, %h2}; bra $end;
        $low: ld.shared.v2.f32 {%r3, %r7}, [%r4+8]; shfl.sync.bfly.b32 %r8, %r3, 1, 31, 65535;
        $end: st.global.f32 [%d3], %r3;""",
        top=SHARED,
    )
    yield lambda text: run(text, (numbers.copy(),), smem=4096), plain
    arrays, text = loading()
    yield lambda text: go(text, arrays, BOX), text
    yield lambda text: go(text, product_arrays(), MAPS, threads=128, smem=16384), product()


def kind_of(token):
    """Return what tokens of a kind have in common: the file of registers, say."""
    return re.sub(r"\d+", "0", token) if token[0] in "%-0123456789" else token[0].isalpha()


def changed(text, draw):
    """Drop, replace or double tokens behind the declarations, or parts of opcodes.

    Half of them are replaced by others of their kind, that more than the parser has to see them.
    """
    first = text.index("{")
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        tokens = list(TOKEN.finditer(text, first))
        found, other = draw.choice(tokens), draw.choice(tokens).group()
        token = found.group()
        put = draw.choice(("", "", draw.choice(STRANGE), other, f"{token} {token}"))
        parts = token.split(".")
        if draw.random() < 0.6 and len(parts) > 1 and token[0].isalpha():
            given = [draw.choice((*other.split("."), "s32", "v2", "f16")), ""][draw.randrange(2)]
            parts[draw.randrange(len(parts))] = given
            put = ".".join(part for part in parts if part)
        elif draw.random() < 0.7:
            alike = [x.group() for x in tokens if kind_of(x.group()) == kind_of(token)]
            put = draw.choice((*alike, "4294967295")) if token.isdigit() else draw.choice(alike)
        text = text[: found.start()] + put + text[found.end() :]
    return text


@pytest.mark.parametrize("kind", range(3))
def test_changed_texts_run_or_give_an_error_of_the_emulator(kind, monkeypatch):
    monkeypatch.setattr(launching, "MAX_INSTRUCTIONS", 3000)
    attempt, text = list(texts())[kind]
    attempt(text)
    refused = 0
    for seed in range(CHANGES):
        draw = random.Random(f"{kind} {seed}")
        given = changed(text, draw)
        try:
            attempt(given)
        except EmulatorError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed} gave {error!r} for\n{given}") from error
    assert CHANGES // 4 < refused < CHANGES
