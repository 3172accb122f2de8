"""What a type checker makes of a user's script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import python

import unigemm

ROOT = Path(__file__).parents[2]

SCRIPT = """
import numpy as np
import torch
import unigemm

a, b = np.ones((2, 3), np.float32), np.ones((3, 4))
t = torch.ones(2, 2)
weight = torch.nn.Parameter(t)

reveal_type(unigemm.matmul(a, b))  # ndarray
reveal_type(unigemm.matmul(a, b, np.zeros((2, 4))))  # ndarray
reveal_type(unigemm.matmul(a, b, dtype="float64", casting="unsafe", axes=[(0, 1)] * 3))  # ndarray
reveal_type(unigemm.matmul([[1, 2], [3, 4]], np.ones((2, 2))))  # ndarray
reveal_type(unigemm.matmul(t, t))  # Tensor
reveal_type(unigemm.matmul(t, t, out=t, dtype=torch.float32, backend="numpy"))  # Tensor
reveal_type(unigemm.matmul(t, weight, stream=0, scale_a=2.0))  # Tensor
reveal_type(unigemm.matmul(weight, weight))  # Tensor
reveal_type(unigemm.matmul(a, a, out=(a,)))  # ndarray
two = lambda acc: (acc, acc * 2)
reveal_type(unigemm.matmul(a, a, (a, a), epilogue=two))  # tuple
reveal_type(unigemm.matmul([[1.0]], a, out=(a, a), epilogue=two))  # tuple
reveal_type(unigemm.matmul(t, weight, out=(t, t), epilogue=two))  # tuple
reveal_type(unigemm.matmul(a, b, quantize_out=(1, 128)))  # tuple
reveal_type(unigemm.matmul(t, t, quantize_out="row", dtype="int8")[1])  # Tensor
reveal_type(unigemm.quantize(a, "int8", block="row"))  # tuple
reveal_type(unigemm.quantize(weight, "int8")[0])  # Tensor
reveal_type(unigemm.grouped_matmul(a, np.ones((1, 3, 4)), np.ones(1, np.int64)))  # ndarray
reveal_type(unigemm.grouped_matmul(t, weight, t, rest="untouched", bias=2.0))  # Tensor
reveal_type(unigemm.grouped_matmul(a, b, [2], out=(a, a), epilogue=two))  # tuple
reveal_type(unigemm.grouped_matmul(t, weight, t, quantize_out="row"))  # tuple
spec = unigemm.ArraySpec([4, 4], "bf16", "F")
reveal_type(spec)  # ArraySpec
plan = unigemm.plan(spec, spec, target="sm_90a")
reveal_type(plan)  # Plan
reveal_type(unigemm.compile(plan))  # CompiledKernel
reveal_type(unigemm.autotune(a, b))  # Plan
reveal_type(unigemm.backend_info()[0].name)  # str

unigemm.matmul(t, [[1.0]])  # wrong
unigemm.matmul(t, t, deterministic="yes")  # wrong
unigemm.matmul(a, b, outt=a)  # wrong
unigemm.matmul(a, b, quantize_out="rows")  # wrong
unigemm.quantize(a, "int8", block="rows")  # wrong
unigemm.grouped_matmul(a, a, a, rest="ones")  # wrong
unigemm.grouped_matmul(a, a, a, axes=[(0, 1)] * 3)  # wrong
unigemm.plan(None, a)  # wrong
unigemm.compile("plan")  # wrong
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what mypy says of each line of the script."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("mypy", reason="mypy is not installed")
    path = tmp_path_factory.mktemp("user") / "script.py"
    path.write_text(SCRIPT)
    # With the settings of this repository, whose check has read PyTorch already.
    done = python("-m", "mypy", "--no-error-summary", path, cwd=ROOT, MYPYPATH=ROOT)
    found: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        if match := re.search(r"script\.py:(\d+): (.*)", line):
            found.setdefault(int(match[1]), []).append(match[2])
    assert found, done.stdout + done.stderr
    return found


@pytest.mark.parametrize(
    ("number", "line"),
    [(i, x) for i, x in enumerate(SCRIPT.splitlines(), 1) if x[:1].islower()],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_checker_knows_what_comes_back_and_what_is_wrong(said, number, line):
    text = "\n".join(said.get(number, []))
    expected = line.rpartition("  # ")[2]
    if expected == "wrong":
        assert text.startswith("error:")
    elif expected == line:
        assert not text
    else:
        assert re.fullmatch(rf'note: Revealed type is "([a-z_]+\.)*{expected}(\[.*\])?"', text)


def test_the_package_says_that_it_is_typed():
    assert (Path(unigemm.__file__).parent / "py.typed").exists()
