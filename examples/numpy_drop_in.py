"""Multiply NumPy or CuPy arrays: the same call for both.

It takes CuPy's arrays where there is a GPU, and NumPy's elsewhere.
"""

import numpy as np

import unigemm

if unigemm.capabilities().devices:
    import cupy as xp
else:
    xp = np

rng = np.random.default_rng(0)
a = xp.asarray(rng.standard_normal((200, 300), np.float32))
b = xp.asarray(rng.standard_normal((400, 300), np.float32))

# Transposes and slices are read where they lie: nothing is copied here.
c = unigemm.matmul(a, b.T)
print("a product:", c.shape, c.dtype)
xp.testing.assert_allclose(c, a @ b.T, rtol=1e-4, atol=1e-4)

# The result goes where `out` says, which may be part of a larger array.
board = xp.zeros((200, 1000), np.float32)
unigemm.matmul(a, b.T, out=board[:, 100:500])
xp.testing.assert_allclose(board[:, 100:500], c, rtol=1e-4, atol=1e-4)
print("into a slice; beside it are still zeros:", not board[:, :100].any())

# Stacks broadcast as in numpy.matmul, and a vector is a row or a column.
stack = xp.asarray(rng.standard_normal((5, 1, 20, 30), np.float32))
others = xp.asarray(rng.standard_normal((4, 30, 10), np.float32))
print("stacks:", unigemm.matmul(stack, others).shape)
print("a vector:", unigemm.matmul(stack, others[0, :, 0]).shape)

# What cannot be multiplied is an error that says what would work.
try:
    unigemm.matmul(a, b)
except unigemm.ShapeMismatch as error:
    print("refused:", error)
