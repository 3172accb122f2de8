"""A small Llama with random weights: what a decoder asks of matrix products.

``python -m bench.llama`` measures it on a GPU, as PyTorch computes it and as unigemm does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Llama", "Sizes"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model; the default is a Llama 3.2 of 1B parameters with fewer layers."""

    layers: int = 4
    width: int = 2048
    hidden: int = 8192
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 32000
    context: int = 256


class Block(nn.Module):
    """One layer: attention with grouped heads and rotary positions, then a gated network."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.head = sizes.width // sizes.heads
        narrow = self.head * sizes.kv_heads
        self.before_attention = nn.RMSNorm(sizes.width)
        self.q = nn.Linear(sizes.width, sizes.width, bias=False)
        self.k = nn.Linear(sizes.width, narrow, bias=False)
        self.v = nn.Linear(sizes.width, narrow, bias=False)
        self.o = nn.Linear(sizes.width, sizes.width, bias=False)
        self.before_network = nn.RMSNorm(sizes.width)
        self.gate = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, x: Tensor, angles: Tensor, seen: Tensor, cache: Any, at: Tensor) -> Tensor:
        """Add what the layer makes of tokens whose keys and values go to places `at`."""
        batch, length, _ = x.shape
        y = self.before_attention(x)
        heads = lambda z: z.view(batch, length, -1, self.head).transpose(1, 2)  # noqa: E731
        q, k, v = heads(self.q(y)), heads(self.k(y)), heads(self.v(y))
        keys, values = cache
        keys.index_copy_(2, at, rotated(k, angles))
        values.index_copy_(2, at, v)
        y = functional.scaled_dot_product_attention(
            rotated(q, angles), keys, values, attn_mask=seen, enable_gqa=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        y = self.before_network(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of numbers by the angles of their places."""
    one, two = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((one * cos - two * sin, one * sin + two * cos), -1).to(x.dtype)


class Llama(nn.Module):
    """The model, with a cache of keys and values for each sequence of a batch."""

    def __init__(self, sizes: Sizes, batch: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        head = sizes.width // sizes.heads
        frequencies = 1e4 ** (-torch.arange(0, head, 2) / head)
        places = torch.arange(sizes.context)
        self.register_buffer("places", places)
        self.register_buffer("angles", places[:, None] * frequencies)
        shape = (sizes.layers, 2, batch, sizes.kv_heads, sizes.context, head)
        self.register_buffer("cache", torch.zeros(shape))

    def forward(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Return the logits of the next tokens.

        Parameters
        ----------
        tokens
            (batch, length) of them.
        at
            (length,) places in their sequences.
        """
        seen = self.places <= at[:, None]
        angles = self.angles[at].float()
        x = self.embedding(tokens)
        for block, cache in zip(self.blocks, self.cache, strict=True):
            x = block(x, angles, seen, cache, at)
        return self.head(self.norm(x))
