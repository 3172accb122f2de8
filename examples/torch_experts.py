"""A layer of experts, forward and backward: grouped products, on a GPU or on the CPU.

A router sends each row to two of eight experts, and `grouped_mm` multiplies those of each in one
launch, also for the gradients.

It needs `pip install "unigemm[torch]"`.
"""

import torch
from torch.nn import functional

from unigemm.torch import grouped_mm

device = "cuda" if torch.cuda.is_available() else "cpu"


class Experts(torch.nn.Module):
    """Each row goes to the two experts that a router likes best; their sum comes back."""

    def __init__(self, experts, features, inner):
        super().__init__()
        self.router = torch.nn.Linear(features, experts, bias=False)
        self.up = torch.nn.Parameter(torch.randn(experts, 2 * inner, features) / features**0.5)
        self.down = torch.nn.Parameter(torch.randn(experts, features, inner) / inner**0.5)

    def forward(self, x):
        """Return the layer's result, and how many rows each expert had."""
        weights, expert = self.router(x).softmax(-1).topk(2)
        order = expert.flatten().argsort()  # rows of one expert lie together
        sizes = torch.bincount(expert.flatten(), minlength=len(self.up))
        offs = sizes.cumsum(0).int()  # on the device, which nobody waits for
        gate, value = grouped_mm(x[order // 2], self.up.mT, offs=offs).chunk(2, -1)
        rows = grouped_mm(functional.silu(gate) * value, self.down.mT, offs=offs)
        rows = rows * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // 2, rows), sizes


torch.manual_seed(0)
layer = Experts(experts=8, features=32, inner=64).to(device)
optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
x = torch.randn(256, 32, device=device)
y = x.abs() - 1
for step in range(41):
    result, sizes = layer(x)
    loss = functional.mse_loss(result, y)
    optimizer.zero_grad()
    loss.backward()  # of the rows by the transposed weights, of the weights grouped along K
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step:2d}  loss {loss.item():6.3f}  rows of each expert {sizes.tolist()}")
