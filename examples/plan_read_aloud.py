"""A plan read aloud: what the kernel does, in sentences.

`Config.codes` names each code of a configuration; the rest are fields of the plan.
"""

import unigemm

a = unigemm.ArraySpec((4096, 4096), "bfloat16")
b = unigemm.ArraySpec((4096, 4096), "bfloat16", "F")
plan = unigemm.plan(a, b, target="h100")

m, n, k = plan.tile
tiles = -(-plan.extents.m // m) * -(-plan.extents.n // n)
print(f"{plan.backend} computes {plan.extents} on {plan.target.name}.")
print(f"Each CTA has {m} x {n} of the result at a time, and takes {k} of K in a step:")
print(f"{tiles} tiles for {plan.target.sm_count} SMs.")
for code, words in plan.config.codes[1:]:
    print(f"  {code:12} {words}")
rate = plan.extents.flops / plan.predicted_us / 1e6
print(f"That should take {plan.predicted_us:.0f} us, at {rate:.0f} TFLOP/s.")
print(f"It is limited by {plan.limiter}.")
second = plan.alternatives[0]
slower = second.predicted_us / plan.predicted_us - 1
print(f"The next best, {second.backend}, would take {100 * slower:.0f}% longer.")
