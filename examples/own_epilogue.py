"""Finish a product with a function of your own, inside the kernel.

The function is traced once. What it does element by element becomes part of the kernel, while the
accumulators are still in registers.
"""

import numpy as np

import unigemm

if unigemm.capabilities().devices:
    import cupy as xp
else:
    xp = np


def soft_cap(acc, cap, bias):
    """Add a bias, then let values saturate smoothly at `cap`, as some models do with logits."""
    return cap * np.tanh((acc + bias) / cap)


rng = np.random.default_rng(0)
a = xp.asarray(rng.standard_normal((64, 256), np.float32))
b = xp.asarray(rng.standard_normal((256, 100), np.float32))
bias = xp.asarray(rng.standard_normal(100, np.float32))

y = unigemm.matmul(a, b, epilogue=soft_cap, epilogue_args={"cap": 30.0, "bias": bias})
xp.testing.assert_allclose(y, 30 * xp.tanh((a @ b + bias) / 30), rtol=1e-4, atol=1e-4)
print(f"largest sum {float(abs(a @ b).max()):.0f}, largest result {float(abs(y).max()):.0f}")

# What an H100 would run, with the bytes that the epilogue reads and writes.
spec = unigemm.ArraySpec((4096, 4096), "bfloat16")
row = unigemm.ArraySpec((4096,), "bfloat16")
plan = unigemm.plan(
    spec, spec, epilogue=soft_cap, epilogue_args={"cap": 30.0, "bias": row}, target="h100"
)
print(plan.backend, plan.problem.epilogue.bytes_moved(4096, 4096))

# What cannot be part of a kernel is refused, with the line of the function.
try:
    unigemm.matmul(a, b, epilogue=lambda acc: acc if acc > 0 else -acc)
except unigemm.UnsupportedProblem as error:
    print("refused:", str(error).partition(": ")[2])
