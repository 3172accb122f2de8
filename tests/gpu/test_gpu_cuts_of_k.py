"""Rows of a batch-invariant product have the same bits wherever they lie, however K is cut."""

from __future__ import annotations

import numpy as np
import pytest
from cuts_of_k import CUT, LARGE, SMALL, cases, differing
from gpu_cases import needs

pytestmark = pytest.mark.gpu


def on_gpu(x):
    """Return a tensor on the GPU whose order is that of an array."""
    import torch

    if x.ndim > 1 and x.strides[-2] < x.strides[-1]:
        return on_gpu(x.swapaxes(-1, -2)).mT
    if hasattr(torch, x.dtype.name) and x.dtype.kind == "f":
        return torch.from_numpy(x).cuda()
    return torch.from_numpy(x.view(f"i{x.itemsize}")).cuda().view(getattr(torch, x.dtype.name))


def on_host(x):
    """Return the numbers of a tensor."""
    return np.ascontiguousarray(x.cpu().numpy())


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("scale", [SMALL, LARGE], ids=str)
@pytest.mark.parametrize("name", sorted(CUT))
def test_rows_have_the_same_bits_in_every_batch(name, scale, part):
    """The cases of the emulator, and such of more rows and a longer K."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if name == "cutile":
        pytest.importorskip("cuda.tile", reason="cuda-tile is not installed")
    needs(name, CUT[name].arch)
    failed = []
    for case in cases(name, scale)[part::4]:
        wrong = differing(case, on_gpu, on_host)
        failed += [f"{case}\n{wrong}"] if wrong else []
    assert not failed, "\n\n".join(failed)
