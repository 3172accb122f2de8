"""Find a bug that hardware is silent about, in the emulator.

The kernel turns 64 numbers round in shared memory. A barrier is missing, so that one warp may read
what the other has not written yet. On a GPU that goes well nearly always.
"""

import numpy as np

from unigemm.emulator import KernelFault, Memory, launch

PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry turn(.param .u64 source, .param .u64 result)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    .shared .align 16 .b8 numbers[256];
    ld.param.u64 %d1, [source];
    ld.param.u64 %d2, [result];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d1, %d1, %d3;
    add.s64 %d2, %d2, %d3;
    ld.global.b32 %r2, [%d1];
    mov.u32 %r3, numbers;
    shl.b32 %r4, %r1, 2;
    add.s32 %r5, %r3, %r4;
    st.shared.b32 [%r5], %r2;
    BARRIER
    sub.s32 %r6, %r3, %r4;
    ld.shared.b32 %r7, [%r6+252];
    st.global.b32 [%d2], %r7;
    ret;
}
"""


def turned(ptx, seed):
    """Run the kernel on numbers from 0 to 63, its warps in an order that the seed decides."""
    source, result = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    memory = Memory()
    addresses = [memory.add(source), memory.add(result)]
    launch(ptx, "turn", (1,), (64,), params=addresses, memory=memory, seed=seed, lockstep=False)
    return result


wrong = PTX.replace("BARRIER", "")
for seed in range(8):
    try:
        turned(wrong, seed)
    except KernelFault as fault:
        print("found:", str(fault).splitlines()[0])
        break
else:
    raise AssertionError("the missing barrier was not found")

right = PTX.replace("BARRIER", "bar.sync 0;")
assert all((turned(right, seed) == np.arange(64)[::-1]).all() for seed in range(8))
print("with the barrier all orders of the warps are right")
