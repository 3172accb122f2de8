"""Compile a kernel for a GPU that is not there, and look at what came out.

A kernel for an RTX 4090 is planned and compiled. Sizes are arguments of it: another size of the
same kind compiles nothing.

It needs `pip install "unigemm[cute]"`, and takes a few seconds the first time.
"""

import unigemm

a = unigemm.ArraySpec((1024, 512), "float32")
b = unigemm.ArraySpec((512, 1024), "float32")
plan = unigemm.plan(a, b, target="rtx4090", backend="cute_simt")
print("planned:", plan.backend, "for", plan.target)

kernel = unigemm.compile(plan)
print("compiled for:", kernel.entry.key["arch"])
print("registers of a thread:", kernel.entry.info.registers)
print("in the cache:", unigemm.compile(plan).cached)

# M, N and K are arguments of the kernel: another size of the same kind needs no other kernel.
taller = unigemm.plan(unigemm.ArraySpec((1030, 512), "float32"), b, target="rtx4090")
print("of 1030 rows:", taller.backend)
