"""Two int8 layers: a scale for each token and for each channel (W8A8).

Weights are quantised once, by rows. Sums are in int32 and exact; the epilogue multiplies them by
both scales. What goes into the second layer has a scale for each row, too: `quantize_out="row"`
rounds it behind the product, and a plan says what that costs.

It needs `pip install "unigemm[torch]"`.
"""

import torch

import unigemm

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x, up, down = (
    torch.randn(shape, device=device) for shape in ((300, 512), (1000, 512), (256, 1000))
)
bias = torch.randn(1000, device=device)
w1, channels_1 = unigemm.quantize(up, "int8", block="row")
w2, channels_2 = unigemm.quantize(down, "int8", block="row")


def network(x):
    """Return gelu(x @ up.T + bias) @ down.T, about."""
    a, tokens = unigemm.quantize(x, "int8", block="row")
    h, tokens = unigemm.matmul(
        a, w1.T, scale_a=tokens, scale_b=channels_1.T, bias=bias, activation="gelu",
        quantize_out="row",
    )  # fmt: skip
    print("between the layers", h.dtype, tuple(h.shape), "and scales", tuple(tokens.shape))
    return unigemm.matmul(h, w2.T, scale_a=tokens, scale_b=channels_2.T)


y = network(x)
exact = torch.nn.functional.gelu(x @ up.T + bias) @ down.T
error = float((y - exact).norm() / exact.norm())
print(f"{y.dtype} {tuple(y.shape)}, {100 * error:.1f} percent off")
assert error < 0.03

a, b = unigemm.ArraySpec((8192, 4096), "int8"), unigemm.ArraySpec((4096, 16384), "int8", "F")
plan = unigemm.plan(a, b, scale_a=1.0, scale_b=1.0, quantize_out="row", target="h100")
print(next(line.strip() for line in plan.explain().splitlines() if "second pass" in line))
