"""A kernel that must use local memory: registers that are indexed at run time have no address."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32, Int64

COUNT = 256


@cute.kernel
def indexed_registers(at: Int64, index: Int32):
    pointer = cute.make_ptr(cutlass.Float32, at, cute.AddressSpace.gmem, assumed_align=4)
    out = cute.make_tensor(pointer, cute.make_layout(COUNT))
    kept = cute.make_rmem_tensor(COUNT, cutlass.Float32)
    for i in cutlass.range(COUNT, unroll=1):
        kept[i] = out[i]
    out[0] = kept[index]


@cute.jit
def run(at: Int64, index: Int32, stream: CUstream):
    indexed_registers(at, index).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


def example_arguments():
    return [Int64(0), Int32(0), cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)]
