"""Registers that nothing wrote: a use is a fault with its line and lane, and arithmetic is none."""

from __future__ import annotations

import random

import numpy as np
import pytest
from emulated import kernel, line_of, run
from test_emulator_hopper import MAPS, go, product, product_arrays

from unigemm.emulator import KernelFault
from unigemm.emulator.core import arithmetic, conversions, moves, unwritten

START = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 20; mad.wide.u32 %d1, %r1, 4, %d10;\n"
STORE = "\nst.global.b32 [%d1], %r2; // here\n"


def check(body, register=None, lane=0, warp=0, *, at="// here", threads=32, **options):
    """Run a kernel, which reads `register` before it is written; None: it does not."""
    out = np.full(threads, 7, np.uint32)
    text = kernel(START + body + STORE)
    if register is None:
        run(text, (out,), threads=threads, **options)
        return out
    with pytest.raises(KernelFault, match=rf"{register} is read, and nothing wrote it") as error:
        run(text, (out,), threads=threads, **options)
    site = error.value.site
    assert (site.line, site.warp, site.lane) == (line_of(text, at), warp, lane)
    return None


def test_a_register_that_nothing_wrote_is_named_with_its_line():
    check("", "%r2")
    check("ld.global.b32 %r2, [%d2]; // load\n", "%d2", at="// load")
    assert check("", strict=False).tolist() == [0] * 32
    check("{ .reg .b64 inner;\nld.global.b32 %r2, [inner]; // load\n}", "inner", at="// load")


@pytest.mark.parametrize(
    ("body", "register", "lane"),
    [
        ("@%p1 mov.u32 %r2, 5;", "%r2", 20),
        ("@!%p1 mov.u32 %r2, 5;", "%r2", 0),
        ("@%p1 mov.u32 %r2, 5;\n@!%p1 mov.u32 %r2, 6;", None, 0),
        ("@%p1 bra else;\nmov.u32 %r2, 5;\nelse:", "%r2", 0),
        ("@%p1 bra else;\nmov.u32 %r2, 5; bra end;\nelse:\nmov.u32 %r2, 6;\nend:", None, 0),
        ("@%p2 mov.u32 %r2, 5;", "%p2", 0),
        ("@%p2 bra end;\nend: mov.u32 %r2, 5;", "%p2", 0),
        ("@%p1 mov.u32 %r3, 5;\n@%p1 mov.u32 %r2, %r3;\n@!%p1 mov.u32 %r2, 1;", None, 0),
        ("ld.global.v2.b32 {%r4, %r2}, [%d10];", None, 0),
        ("ld.global.v2.b32 {%r2, %r4}, [%d2];", "%d2", 0),
        ("selp.b32 %r2, %r3, 1, %p1;", "%r2", 0),
        ("selp.b32 %r2, 1, %r3, %p1;", "%r2", 20),
        ("@%p1 mov.u32 %r3, 5;\nselp.b32 %r2, %r3, 1, %p1;", None, 0),
        ("selp.b32 %r2, 1, 2, %p2;", "%r2", 0),
        ("prmt.b32 %r2, %r1, %r3, 0x0132;", None, 0),
        ("prmt.b32 %r2, %r3, %r1, 0x4567;", None, 0),
        ("prmt.b32 %r2, %r1, %r3, 0x0532;", "%r2", 0),
        ("@%p1 mov.u32 %r3, 5;\nshfl.sync.idx.b32 %r2, %r3, 4, 31, -1;", None, 0),
        ("@%p1 mov.u32 %r3, 5;\nshfl.sync.idx.b32 %r2, %r3, 24, 31, -1;", "%r2", 0),
        ("@%p1 mov.u32 %r3, 5;\nshfl.sync.bfly.b32 %r2, %r3, 4, 31, -1;", "%r2", 16),
        ("shfl.sync.idx.b32 %r2, %r1, %r3, 31, -1;", "%r3", 0),
        ("setp.eq.u32 %p2, %r3, 0;\nmov.u32 %r2, 1;\n@%p2 mov.u32 %r2, 5;", "%p2", 0),
        ("mad.wide.u32 %d2, %r3, 4, %d10;\nld.global.b32 %r2, [%d2];", "%d2", 0),
        ("prefetch.global.L2 [%d2]; mov.u32 %r2, 0;", "%d2", 0),
        ("shfl.sync.bfly.b32 %r2|%p3, %r1, 1, 31, -1; @%p3 mov.u32 %r2, 0;", None, 0),
        ("setp.ne.u32 %p2|%p3, %r1, 3; selp.b32 %r2, 1, 2, %p3;", None, 0),
        ("atom.global.add.u32 %r2, [%d10], %r1;", None, 0),
    ],
)  # fmt: skip
def test_lanes_that_wrote_a_register_may_read_it(body, register, lane):
    at = "// here"
    if register is not None and register != "%r2":
        (at,) = [x for x in body.split("\n") if register in x][-1:]
    check(body, register, lane, at=at)


def test_the_lane_is_named_among_the_warps_that_come():
    check("setp.ne.u32 %p2, %r1, 70; @%p2 mov.u32 %r2, 1;", "%r2", lane=6, warp=2, threads=96)


def test_a_copy_of_what_nothing_wrote_is_no_fault_until_it_is_used():
    check("mov.b32 %r3, %r4; mov.u32 %r2, 1;")
    check("mov.b32 %r2, %r4;", "%r2")
    check("mov.u32 %r2, 1;\n@%p1 mov.b32 %r2, %r4;", "%r2")
    check("mov.u32 %r2, 1;\n@!%p1 mov.b32 %r2, %r4;", "%r2", lane=20)
    check("mov.b32 %r2, %r4; mov.u32 %r2, 1;")
    check("@%p1 mov.u32 %r4, 1;\nmov.b32 %r2, %r4;", "%r2", lane=20)
    check("mov.u16 %h1, 3; mov.b32 %r2, {%h1, %h2};")  # one half is known
    check("mov.b32 %r2, {%h1, %h2};", "%r2")
    check("mov.b32 {%h1, %h2}, %r4;\nmov.b32 %r2, {%h1, %h2};", "%r2")
    check("mov.b64 %d2, {%r1, %r3}; mov.b64 {%r2, %r4}, %d2;")


def test_what_is_computed_from_it_is_no_fault_until_it_is_used():
    """As in the warps of a small tile without rows, which multiply by scales and store nothing."""
    check("add.u32 %r2, %r1, %r3;", "%r2")
    check("add.u32 %r3, %r4, 1; mul.lo.u32 %r3, %r3, %r3; mov.u32 %r2, 1;")
    check("@%p1 mov.u32 %r4, 1;\nadd.u32 %r2, %r4, 1;", "%r2", lane=20)
    check("mov.u32 %r2, 1;\n@!%p1 add.u32 %r2, %r2, %r4;", "%r2", lane=20)
    store = "add.u32 %r3, %r4, 1;\n@%p1 st.global.b32 [%d1], %r3;\nmov.u32 %r2, 1;"
    check("@%p1 mov.u32 %r4, 1;\n" + store)
    check("@!%p1 mov.u32 %r4, 1;\n" + store, "%r3", at="st.global.b32 [%d1], %r3")


def test_all_arithmetic_is_such():
    modules = (arithmetic, conversions, moves)
    makers = arithmetic.INSTRUCTIONS.items()
    names = {name for name, make in makers if make.__module__ in [x.__name__ for x in modules]}
    assert names | {"shfl"} == unwritten._COMPUTING


def test_what_one_pass_of_a_loop_writes_the_next_may_read():
    loop = "mov.u32 %r5, 0;\nagain:\nsetp.eq.u32 %p2, %r5, 0;\n"
    more = "add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 3; @%p3 bra again;"
    first = "@%p2 mov.u32 %r2, 1;\n@!%p2 add.u32 %r2, %r2, 1; // add\n"
    assert check(loop + first + more).tolist() == [3] * 32
    later = "@%p2 add.u32 %r2, %r2, 1; st.global.b32 [%d1], %r2; // early\nmov.u32 %r2, 1;\n"
    check(loop + later + more, "%r2", at="// early")


def test_accumulators_are_read_only_where_the_product_adds_to_them():
    text = product()
    go(text, product_arrays(), MAPS, threads=128, smem=16384)  # the first product begins anew
    text = text.replace("mov.pred %p6, 0;", "setp.eq.u32 %p6, 0, 0;")
    with pytest.raises(KernelFault, match="%r40 is read, and nothing wrote it") as error:
        go(text, product_arrays(), MAPS, threads=128, smem=16384)
    first = next(n for n, line in enumerate(text.split("\n"), 1) if "wgmma.mma_async" in line)
    assert error.value.site.line == first


# -- drawn programs --------------------------------------------------------------------------------


class Program:
    """A drawn program, and the first read of it that comes before a write."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.bounds = [self.draw.randrange(33) for _ in range(4)]
        self.lines = []
        self.labels = 0
        self.tree = self.block(0)
        self.known = np.zeros((6, 32), bool)  # by register and lane
        self.found = None
        self.run(self.tree, np.ones(32, bool))

    def guard(self):
        number = self.draw.randrange(4)
        sign = self.draw.choice((True, False))
        lanes = (np.arange(32) < self.bounds[number]) == sign
        return f"@{'' if sign else '!'}%p{number + 1}", lanes

    def block(self, depth):
        """Draw some statements, and write their text."""
        done = []
        for _ in range(self.draw.randrange(2, 7)):
            kind = self.draw.random()
            words, lanes = self.guard() if self.draw.random() < 0.5 else ("", np.ones(32, bool))
            d, x, y = (self.draw.randrange(6) for _ in range(3))
            if kind < 0.4:
                self.lines.append(f"{words} mov.u32 %r1{d}, {self.draw.randrange(9)};")
                done.append(("write", len(self.lines), lanes, d, ()))
            elif kind < 0.55:
                self.lines.append(f"{words} mov.b32 %r1{d}, %r1{x};")
                done.append(("copy", len(self.lines), lanes, d, (x,)))
            elif kind < 0.65:
                self.lines.append(f"{words} add.u32 %r1{d}, %r1{x}, %r1{y};")
                done.append(("copy", len(self.lines), lanes, d, (x, y)))
            elif kind < 0.75:
                self.lines.append(f"{words} st.global.v2.b32 [%d1], {{%r1{x}, %r1{y}}};")
                done.append(("use", len(self.lines), lanes, d, (x, y)))
            elif depth < 3:
                self.labels += 1
                label, is_loop = f"label{self.labels}", self.draw.random() < 0.4
                if is_loop:
                    count, p = f"%r{20 + self.labels}", f"%p{5 + depth}"
                    self.lines.append(f"mov.u32 {count}, 0;\n{label}:")
                    inner = self.block(depth + 1)
                    self.lines.append(f"add.u32 {count}, {count}, 1; setp.lt.u32 {p}, {count}, 2;")
                    self.lines[-1] += f" @{p} bra {label};"
                    done.append(("loop", 0, None, 0, inner))
                else:
                    words, lanes = self.guard()
                    self.lines.append(f"{words} bra {label};")
                    inner = self.block(depth + 1)
                    self.lines.append(f"{label}:")
                    done.append(("if", 0, ~lanes, 0, inner))
        return done

    def run(self, statements, active):
        """Run what was drawn lane by lane, up to the first read before a write."""
        for kind, line, lanes, d, rest in statements:
            if self.found is not None or not active.any():
                return
            if kind == "loop":
                self.run(rest, active)
                self.run(rest, active)
            elif kind == "if":
                self.run(rest, active & lanes)
            else:
                here = active & lanes
                wrong = {x: np.flatnonzero(here & ~self.known[x]) for x in rest}
                if kind == "use":
                    if any(map(len, wrong.values())):
                        self.found = line, {(x, at[0]) for x, at in wrong.items() if len(at)}
                        return
                    continue
                known = self.known[list(rest)].all(0)  # of a number: True
                self.known[d] = np.where(here, known, self.known[d])

    def text(self):
        setps = "".join(f"setp.lt.u32 %p{n}, %r1, {x};" for n, x in enumerate(self.bounds, 1))
        numbered = (f"{line} // {n}" for n, line in enumerate(self.lines, 1))
        first = f"mov.u32 %r1, %tid.x; mad.wide.u32 %d1, %r1, 8, %d10; {setps}\n"
        return kernel(first + "\n".join(numbered) + "\n")


@pytest.mark.parametrize("seed", range(6))
def test_drawn_programs_fail_at_the_first_read_before_a_write(seed):
    faults, out = 0, np.zeros(64, np.uint32)
    for number in range(40):
        program = Program(f"{seed} {number}")
        text = program.text()
        if program.found is None:
            run(text, (out,))
            continue
        faults += 1
        line, reads = program.found
        with pytest.raises(KernelFault, match="and nothing wrote it") as error:
            run(text, (out,))
        site = error.value.site
        assert text.split("\n")[site.line - 1].endswith(f"// {line}"), text
        register = int(error.value.message.partition(" ")[0].removeprefix("%r1"))
        assert (register, site.lane) in reads, text
    assert 5 < faults < 40
