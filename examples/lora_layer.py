"""A LoRA layer: the adapter's second product adds the layer's in its epilogue.

The second product of the adapter reads what the frozen layer has computed as `c` and writes the
sum, so that no kernel of its own adds them: y = x W' + s (x A') B'.
"""

import numpy as np

import unigemm

tokens, features, out_features, rank, scale = 128, 512, 256, 8, 2.0
rng = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    """Return numbers of a size that keeps products near 1."""
    return rng.standard_normal(shape).astype("float32") / shape[-1] ** 0.5


x, weight = random(tokens, features), random(out_features, features)
down, up = random(rank, features), random(out_features, rank)

y = unigemm.matmul(x, weight.T)
inner = unigemm.matmul(x, down.T)
unigemm.matmul(inner, up.T, out=y, c=y, alpha=scale, beta=1.0)  # y += scale * inner @ up.T

expected = x @ weight.T + scale * (x @ down.T) @ up.T
print(y.shape, "largest error below 1e-5:", abs(y - expected).max() < 1e-5)

a = unigemm.ArraySpec((tokens, rank), "bfloat16")
b = unigemm.ArraySpec((rank, out_features), "bfloat16", "F")
d = unigemm.ArraySpec((tokens, out_features), "bfloat16")
plan = unigemm.plan(a, b, d, c=d, alpha=scale, beta=1.0, target="h100")
read, written = plan.problem.epilogue.bytes_moved(tokens, out_features)
print(f"on an H100: {plan.backend}, the epilogue reads {read} bytes besides the accumulators")
