"""A small Llama that reads a prompt and decodes: ``llama_from_bundle.py record FILE`` or ``run``.

The first notes which kernels its products need. The second needs no more than a bundle of these,
and prints how many were compiled.
"""

from __future__ import annotations

import sys

import torch

import unigemm
import unigemm.torch as ut
from bench.llama import Llama, Sizes
from unigemm import cache

SIZES = Sizes(layers=2, width=256, hidden=512, heads=4, kv_heads=2, vocabulary=512, context=64)
BATCH, PROMPT, STEPS = 2, 24, 3


def model():
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Llama(SIZES, BATCH).to(torch.bfloat16).requires_grad_(False)


def logits(llama):
    """Return what follows a prompt and some tokens."""
    tokens = torch.arange(BATCH * PROMPT, device="cuda").view(BATCH, PROMPT) % SIZES.vocabulary
    found = [llama(tokens, torch.arange(PROMPT, device="cuda"))]
    for step in range(STEPS):
        at = torch.tensor([PROMPT + step], device="cuda")
        found.append(llama(tokens[:, step : step + 1], at))
    return torch.cat(found, 1).float()


def in_eight_bits(x):
    """Return the products of a matrix's rows with one another, of and into eight bits."""
    q, of_rows = unigemm.quantize(x, "float8_e4m3fn", block="row")
    d, scales = unigemm.matmul(
        q, q.mT, scale_a=of_rows, scale_b=of_rows.mT, quantize_out="row", dtype="float8_e4m3fn"
    )
    return d.float() * scales


def main():
    ours = model()
    ut.replace_linear(ours)
    if sys.argv[1] == "record":
        with unigemm.record(sys.argv[2]):
            in_eight_bits(logits(ours)[0])
        return
    found = logits(ours)
    torch.testing.assert_close(found, logits(model()), rtol=0.05, atol=0.05)
    rows = found[0]
    products = rows @ rows.mT
    torch.testing.assert_close(
        in_eight_bits(rows), products, rtol=0.1, atol=0.1 * float(products.abs().max())
    )
    assert any(bound.plan for bound in tuple(torch_library().table.values()))
    print(cache.compile_count())


def torch_library():
    from unigemm.arrays.libraries import library_of

    return library_of(torch.ones(1), "a")


if __name__ == "__main__":
    main()
