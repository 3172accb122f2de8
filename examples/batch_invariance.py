"""The same bits for a row, whatever the number of rows.

How K is divided among threads decides the order of additions, and so the last bits. With
`batch_invariant=True` nothing of that depends on the number of rows: a request gets the same
answer alone and in a batch of 64. Here the emulator runs the kernels; a GPU takes the same call.
"""

import numpy as np

import unigemm
import unigemm.emulator

rng = np.random.default_rng(0)
x = rng.standard_normal((64, 160)).astype("float32")
w = rng.standard_normal((160, 48)).astype("float32")

with unigemm.emulator.device("sm_90a"):
    together = unigemm.matmul(x, w, batch_invariant=True)
    for row in (0, 63):
        alone = unigemm.matmul(x[row : row + 1], w, batch_invariant=True)
        same = alone.tobytes() == together[row].tobytes()
        print(f"row {row} alone and in a batch of 64 has the same bits: {same}")
    one, many = (unigemm.plan(x[:rows], w) for rows in (1, 64))
    print("without the option, one kernel for both:", one.config == many.config)
