"""cuTile's types of elements."""

# No `from __future__ import annotations`: cuTile reads the annotations of its kernels.
import cuda.tile as ct

from unigemm.problem.dtypes import DType

TYPES = {
    DType.FLOAT64: ct.float64,
    DType.FLOAT32: ct.float32,
    DType.FLOAT16: ct.float16,
    DType.BFLOAT16: ct.bfloat16,
    DType.FLOAT8_E4M3FN: ct.float8_e4m3fn,
    DType.FLOAT8_E5M2: ct.float8_e5m2,
    DType.INT8: ct.int8,
    DType.INT32: ct.int32,
    DType.INT64: ct.int64,
}
