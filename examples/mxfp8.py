"""Quantise to MXFP8, and multiply with one scale for each 32 elements along K.

On the CPU NumPy computes it. A Blackwell GPU (sm_100a, sm_103a, sm_110a) has instructions for it.
"""

import ml_dtypes
import numpy as np

import unigemm

BLOCK = 32
LARGEST = 8  # exponent of the largest float8_e4m3fn, 448


def quantised(x):
    """Return rows of float8 and a power of two for each 32 of a row."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    exponents = np.floor(np.log2(np.abs(blocks).max(-1))) - LARGEST
    # The spec's rule: the largest may pass 448 by less than a factor of 8 / 7, and is cut.
    elements = (blocks / 2.0 ** exponents[..., None]).clip(-448, 448).reshape(x.shape)
    scales = (2.0**exponents).astype(ml_dtypes.float8_e8m0fnu)
    return elements.astype(ml_dtypes.float8_e4m3fn), scales


devices = unigemm.capabilities().devices
blackwell = any(x.target and x.target.arch in ("sm_100a", "sm_103a", "sm_110a") for x in devices)
if blackwell:
    import cupy as xp
else:
    xp = np

rng = np.random.default_rng(0)
x = rng.standard_normal((64, 512), np.float32) * np.exp2(rng.integers(-6, 7, (64, 1)))
weight = rng.standard_normal((128, 512), np.float32)

(a, scale_a), (b, scale_b) = (map(xp.asarray, quantised(each)) for each in (x, weight))
y = unigemm.matmul(a, b.T, scale_a=scale_a, scale_b=scale_b.T)
print("float8 and scales gave", y.dtype, y.shape)

exact = x @ weight.T
error = np.abs(np.asarray(y.get() if blackwell else y) - exact) / np.abs(x).max(1, keepdims=True)
print(f"the largest error is {error.max() / np.sqrt(512):.3f} of a row's largest, per root of K")
assert error.max() / np.sqrt(512) < 0.2
