"""Attention by two `einsum`s, without a transpose written down.

Subscripts say what is summed over; each call becomes one stack of products, whose strides do what
transposes would.
"""

import numpy as np

import unigemm

batch, heads, queries, keys, features = 2, 4, 10, 16, 32
rng = np.random.default_rng(0)
q = rng.standard_normal((batch, queries, heads, features)).astype("float32")
k = rng.standard_normal((batch, keys, heads, features)).astype("float32")
v = rng.standard_normal((batch, keys, heads, features)).astype("float32")

scores = unigemm.einsum("bqhf,bkhf->bhqk", q, k) / features**0.5
weights = np.exp(scores - scores.max(-1, keepdims=True))
weights /= weights.sum(-1, keepdims=True)
mixed = unigemm.einsum("bhqk,bkhf->bqhf", weights, v)

print("scores ", scores.shape, " mixed", mixed.shape)
print("weights of the first query:", np.round(weights[0, 0, 0, :4], 3))
error = abs(mixed - np.einsum("bhqk,bkhf->bqhf", weights, v)).max()
print("as NumPy's einsum:", error < 1e-5)
