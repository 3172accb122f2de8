"""What cannot be compiled here names its kernel, and the command that makes it elsewhere."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

import unigemm
from unigemm.cli import main
from unigemm.planning import select
from unigemm.planning.registry import backend_named

DTYPES = {"float32": ("ieee", "tf32", "3xtf32"), "bfloat16": ("ieee",), "float64": ("ieee",)}
CASES = [
    (sizes, dtype, precision, layout, batch, target)
    for sizes in ((64, 64, 64), (1, 4096, 256), (100, 33, 65), (4096, 1, 96), (8, 1024, 1023))
    for dtype, precisions in DTYPES.items()
    for precision in precisions
    for layout in ("nn", "nt", "tn", "tt")
    for batch in (1, 3)
    for target in ("sm_80", "h100", "sm_100a")
]


def command_of(plan):
    text = str(select.kernel_missing(plan))
    assert backend_named(plan.backend).key(plan).digest[:16] in text
    found = re.search(r"\((unigemm [^()]*)\) and bring it", text)
    assert found, text
    return found[1]


@pytest.mark.sample(24)
@pytest.mark.parametrize(("sizes", "dtype", "precision", "layout", "batch", "target"), CASES)
def test_the_command_makes_the_very_kernel(
    sizes, dtype, precision, layout, batch, target, monkeypatch
):
    product = main.Product(*sizes, dtype, None, layout, batch, [target], precision=precision)
    (plan,) = main.plans_of(product)
    planned = []
    monkeypatch.setattr(main.show, "compile_all", lambda plans, quiet: planned.extend(plans) or [])
    words = shlex.split(command_of(plan))
    done = CliRunner().invoke(main.app, [*words[1:], "--json"])
    assert done.exit_code == 0, done.output
    (again,) = planned
    key = backend_named(plan.backend).key
    assert key(again).digest == key(plan).digest


def test_what_no_command_says_is_left_to_a_warmup():
    a = unigemm.ArraySpec((64, 64), "float32", strides=(65, 1), alignment=4)
    b = unigemm.ArraySpec((64, 64), "float32")
    for options in ({}, {"bias": unigemm.ArraySpec((64,), "float32")}):
        plan = unigemm.plan(b if options else a, b, target="h100", **options)
        assert "(unigemm warmup, " in str(select.kernel_missing(plan))
