"""Name the backend, or let unigemm pick one.

On a GPU of each generation other backends answer. On the CPU there is one.
"""

import numpy as np

import unigemm

on_gpu = bool(unigemm.capabilities().devices)
if on_gpu:
    import cupy as xp
else:
    xp = np

a = xp.asarray(np.random.default_rng(0).integers(-3, 4, (128, 64)).astype("float16"))
expected = a.astype("float32") @ a.T.astype("float32")

for backend in unigemm.backend_info():
    try:
        result = unigemm.matmul(a, a.T, dtype="float32", backend=backend.name)
    except unigemm.UnigemmError as error:
        print(f"{backend.name:13s} {type(error).__name__}")
    else:
        # Products of small integers are exact, so that all backends agree in every bit.
        print(f"{backend.name:13s} right: {bool((result == expected).all())}")

print("auto picks", unigemm.plan(a, a.T, dtype="float32").backend)
print("and on an H100", unigemm.plan(a, a.T, dtype="float32", target="h100").backend)
