"""Two float8 layers, with no kernel between them.

Weights are quantised once, with a scale for each 128 by 128. The first layer gives float8 and a
scale for each 128 of a row, which is what the second one reads. Hopper's tensor cores do so; on
other machines the CPU computes it.

It needs `pip install "unigemm[torch]"`.
"""

import torch

import unigemm

devices = unigemm.capabilities().devices
hopper = any(x.target and x.target.arch == "sm_90a" for x in devices)
device = "cuda" if hopper and torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x, up, down = (
    torch.randn(shape, device=device) for shape in ((300, 512), (1000, 512), (256, 1000))
)
w1, scale_1 = unigemm.quantize(up, "float8_e4m3fn", block=(128, 128))
w2, scale_2 = unigemm.quantize(down, "float8_e4m3fn", block=(128, 128))
print("weights", w1.dtype, tuple(w1.shape), "and scales", tuple(scale_1.shape))


def network(x):
    """Return relu(x @ up.T) @ down.T, about."""
    a, scale_a = unigemm.quantize(x, "float8_e4m3fn", block=(1, 128))
    h, scale_h = unigemm.matmul(
        a, w1.T, scale_a=scale_a, scale_b=scale_1.T, activation="relu", quantize_out=(1, 128)
    )
    print("between the layers", h.dtype, tuple(h.shape), "and scales", tuple(scale_h.shape))
    return unigemm.matmul(h, w2.T, scale_a=scale_h, scale_b=scale_2.T)


y = network(x)
exact = torch.relu(x @ up.T) @ down.T
error = float((y - exact).norm() / exact.norm())
print(f"{y.dtype} {tuple(y.shape)}, {100 * error:.1f} percent off")
assert error < 0.06
