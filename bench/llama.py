"""A small Llama with random weights: what a decoder asks of matrix products.

``python -m bench.llama`` measures it on a GPU, as PyTorch computes it and as unigemm does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .command import command, require_device

__all__ = ["Llama", "Sizes", "captured"]


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
        """Add what the layer makes of tokens whose keys and values go to positions `at`."""
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
    """Turn pairs of numbers by the angles of their positions."""
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
        positions = torch.arange(sizes.context)
        self.register_buffer("positions", positions)
        self.register_buffer("angles", positions[:, None] * frequencies)
        shape = (sizes.layers, 2, batch, sizes.kv_heads, sizes.context, head)
        self.register_buffer("cache", torch.zeros(shape))

    def forward(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Return the logits of the next tokens.

        Parameters
        ----------
        tokens
            (batch, length) of them.
        at
            (length,) positions in their sequences.
        """
        seen = self.positions <= at[:, None]
        angles = self.angles[at].float()
        x = self.embedding(tokens)
        for block, cache in zip(self.blocks, self.cache, strict=True):
            x = block(x, angles, seen, cache, at)
        return self.head(self.norm(x))


def captured(call: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Return the replay of a CUDA graph of a call, and the tensor that it writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph.replay, result


def microseconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the time of one of many calls in a row, the device's work included."""
    for _ in range(max(3, repeats // 10)):
        call()
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / repeats


def host_times() -> None:
    """Print the time of calls of so small a product that the host alone matters."""
    import unigemm
    import unigemm.torch as ut

    a, w = (torch.randn(16, 64, device="cuda").bfloat16() for _ in range(2))
    b, bias = w.t(), torch.zeros(16, device="cuda").bfloat16()
    op = torch.ops.unigemm.mm.default
    print("microseconds a call, 16x16x64 bf16, in torch.no_grad():")
    calls: dict[str, Callable[[], Any]] = {
        "torch.mm": lambda: torch.mm(a, b),
        "unigemm.matmul": lambda: unigemm.matmul(a, b),
        "unigemm.torch.matmul": lambda: ut.matmul(a, b),
        "torch.ops.unigemm.mm": lambda: op(a, b),
        "F.linear": lambda: functional.linear(a, w),
        "unigemm.torch.linear": lambda: ut.linear(a, w),
        "F.linear, bias": lambda: functional.linear(a, w, bias),
        "unigemm.torch.linear, bias": lambda: ut.linear(a, w, bias),
    }
    with torch.no_grad():
        for name, call in calls.items():
            print(f"  {name:28s} {microseconds(call, 2000):7.2f}")
        with ut.use():
            print(f"  {'torch.mm under use()':28s} {microseconds(calls['torch.mm'], 2000):7.2f}")


def decode_times(sizes: Sizes, batch: int, compiled: bool) -> None:
    """Print the time of one decoding step: PyTorch's, under `use`, and with layers replaced."""
    import unigemm.torch as ut

    def model() -> Llama:
        torch.manual_seed(0)
        with torch.device("cuda"):  # where random weights are made at once
            return Llama(sizes, batch).to(torch.bfloat16).requires_grad_(False)

    tokens = torch.ones(batch, 1, dtype=torch.int64, device="cuda")
    at = torch.tensor([sizes.context // 2], device="cuda")
    plain, replaced = model(), model()
    ut.replace_linear(replaced)
    with torch.no_grad():
        rows: dict[str, list[float]] = {}
        ways: list[tuple[str, nn.Module, bool]] = [
            ("torch", plain, False),
            ("use()", plain, True),
            ("replace_linear", replaced, False),
        ]
        for name, each, inside in ways:
            step = each
            with ut.use() if inside else nullcontext() as used:
                call = lambda step=step: step(tokens, at)  # noqa: E731
                times = [microseconds(call, 50), microseconds(captured(call)[0], 100)]
                if compiled and not inside:
                    step = torch.compile(each, fullgraph=True)
                    call = lambda step=step: step(tokens, at)  # noqa: E731
                    times += [microseconds(call, 50), microseconds(captured(call)[0], 100)]
            if inside and used.fallbacks:
                print(f"  {used.fallbacks} products by PyTorch: {dict(used.reasons)}")
            rows[name] = times
    heads = ("eager", "captured", "compiled", "compiled, captured")
    print(f"microseconds a step, batch {batch}, {sizes}:")
    for name, times in rows.items():
        pairs = zip(heads, times, rows["torch"], strict=False)
        said = "  ".join(f"{head} {us:8.1f} ({base / us:4.2f}x)" for head, us, base in pairs)
        print(f"  {name:16s} {said}")


def main() -> None:
    """Measure host times, and decoding at one and at eight sequences."""
    require_device()
    parser = argparse.ArgumentParser(prog="python -m bench.llama", description=__doc__)
    parser.add_argument("--layers", type=int, default=Sizes.layers)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="sequences")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    requested = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    host_times()
    for batch in requested.batches:
        decode_times(Sizes(layers=requested.layers), batch, not requested.no_compile)


if __name__ == "__main__":
    command(main)
