"""docs/recipes.md: patches on the page, applied to a copy of unigemm, do what the page says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from processes import output_of

import unigemm

ROOT = Path(unigemm.__file__).parents[1]
PAGE = ROOT / "docs" / "recipes.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is not where unigemm is")


def patches(heading):
    """Return (path, text before, text after) of each patch below a heading of the page."""
    (section,) = re.findall(
        rf"^## {heading}$\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    found = []
    for block in re.findall(r"^```diff\n--- (.*?)^```$", section, re.MULTILINE | re.DOTALL):
        path, *lines = block.splitlines()
        before, after = (
            "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("", " ", sign))
            for sign in "-+"
        )
        found.append((path, before, after))
    return found


def apply(heading, root):
    """Apply the patches of a heading below a folder."""
    found = patches(heading)
    assert found, heading
    for path, before, after in found:
        text = (root / path).read_text()
        assert text.count(before) == 1, f"{path} does not have these lines once:\n{before}"
        (root / path).write_text(text.replace(before, after))


@pytest.fixture
def process(tmp_path):
    """Return a function that patches a copy of unigemm and runs code with it."""
    ignored = shutil.ignore_patterns("__pycache__")
    for room in ("unigemm", "backends"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=ignored, symlinks=True)

    def run(heading, code):
        apply(heading, tmp_path)
        code = f"import numpy as np, unigemm, unigemm.emulator\n{code}"
        return output_of("-c", code, cwd=tmp_path, PYTHONPATH=tmp_path)

    return run


HARDSWISH = """
from math import inf

x = np.array([[-inf, -4, -2, 0, 2, 4, inf]], "float32")
value = [-0.0, 0, -1 / 3, 0, 5 / 3, 4, inf]
slope = [0, 0, -1 / 6, 1 / 2, 7 / 6, 1, 1]
one = np.ones((1, 1), "float32")
"""


def test_an_activation_is_one_file_for_matmul(process):
    process(
        "An activation",
        HARDSWISH
        + """
a = np.ones((1, 1), "float32")
found = unigemm.matmul(a, x, activation="hardswish")
np.testing.assert_allclose(found[0], value, rtol=1e-6)
found = unigemm.matmul(a, np.ones_like(x), activation="dhardswish", preact=x)
np.testing.assert_allclose(found[0], slope, rtol=1e-6)
""",
    )


def test_an_activation_is_one_file_for_torch(process):
    pytest.importorskip("torch")
    process(
        "An activation",
        HARDSWISH
        + """
import torch, unigemm.torch

w = torch.from_numpy(x[:, 1:-1].T.copy()).requires_grad_()
y = unigemm.torch.linear(torch.ones(1, 1), w, activation="hardswish")
np.testing.assert_allclose(y.detach().numpy()[0], value[1:-1], rtol=1e-6)
y.sum().backward()
np.testing.assert_allclose(w.grad.numpy()[:, 0], slope[1:-1], rtol=1e-6)
""",
    )


def test_an_activation_is_one_file_for_jax(process):
    pytest.importorskip("jax")
    process(
        "An activation",
        HARDSWISH
        + """
import jax, jax.numpy as jnp, unigemm.jax

def finished(x):
    return unigemm.jax.matmul(jnp.ones((1, 1)), x, activation="hardswish")

given = jnp.asarray(x[:, 1:-1])
np.testing.assert_allclose(finished(given)[0], value[1:-1], rtol=1e-6)
grad = jax.grad(lambda x: finished(x).sum())(given)
np.testing.assert_allclose(grad[0], slope[1:-1], rtol=1e-6)
""",
    )


@pytest.mark.compile
def test_an_activation_is_one_file_for_kernels(process):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    process(
        "An activation",
        HARDSWISH
        + """
with unigemm.emulator.device("sm_80"):
    a = np.ones((1, 1), "float32")
    found = unigemm.matmul(a, x, backend="cute_simt", activation="hardswish")
np.testing.assert_allclose(found[0], value, rtol=1e-6)
""",
    )


@pytest.mark.compile
def test_a_tile_is_one_line(process):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    process(
        "A tile",
        """
rng = np.random.default_rng(0)
a, b = (rng.integers(-4, 5, shape).astype("float32") for shape in ((300, 40), (40, 70)))
with unigemm.emulator.device("sm_80"):
    plan = unigemm.plan(a, b, backend="cute_simt", keep=10**6)
    (own, *_) = [
        made for made in (plan, *map(plan.taking, plan.alternatives))
        if made.config.tile[:2] == (256, 64) and made.config.split_k == 1
    ]
    assert np.array_equal(unigemm.matmul(a, b, plan=own), a @ b)
""",
    )


def test_a_device_is_one_line(process):
    process(
        "A device",
        """
spec = unigemm.ArraySpec((4096, 4096), "float32")
assert unigemm.plan(spec, spec, target="RTX 4000 Ada").target.sm_count == 48
""",
    )


def test_an_architecture_is_a_line_and_a_device(process):
    process(
        "An architecture",
        """
spec = unigemm.ArraySpec((4096, 4096), "float16")
made = unigemm.plan(spec, spec, target="sm_88")
assert (made.target.name, made.target.arch) == ("Example 88", "sm_88")
""",
    )
