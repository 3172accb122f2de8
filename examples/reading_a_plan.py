"""Ask which kernel would run on a GPU, for how long, and what lost to it.

A plan is made from descriptions of the arrays: neither they nor the GPU need to be there.
"""

import unigemm

a = unigemm.ArraySpec((4096, 4096), "bfloat16")
b = unigemm.ArraySpec((4096, 4096), "bfloat16", order="F")  # column-major, as weights often lie

for target in ("a100", "h100", "b200", "rtx4090"):
    plan = unigemm.plan(a, b, target=target)
    rate = plan.extents.flops / plan.predicted_us * 1e-6
    worth = "assumed" if plan.assumed else "predicted"  # the model was fitted on H100 and H200
    print(
        f"{plan.target.arch:8s} {plan.backend:13s} {plan.predicted_us:7.1f} us {rate:5.0f} TFLOP/s "
        + worth
    )

# What the estimate is made of, and what lost by how much.
plan = unigemm.plan(a, b, target="h100", keep=3)
print("limited by", plan.limiter)
for name in ("launch", "mainloop", "waves", "epilogue"):
    print(f"  {name:9s} {getattr(plan.parts, name):6.1f} us")
print(f"  times     {plan.parts.correction:7.2f}, learned from measured launches")
for other in plan.alternatives:
    tile = "x".join(map(str, other.config.tile))
    print(f"  {other.predicted_us / plan.predicted_us - 1:+.1%} {other.backend} {tile}")

# A plan can be kept: it is checked when it comes back.
assert unigemm.Plan.from_json(plan.to_json()) == plan
