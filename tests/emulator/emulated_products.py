"""What tests of compiled kernels on emulated GPUs share: marks, operands, plans."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from gpu_cases import matrix
from reference import Case, flat_poison, strided_view

import unigemm
from unigemm.arrays.library import KNOWN
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.emulator import device
from unigemm.emulator.launch.host import missing
from unigemm.planning.prediction import Alternative
from unigemm.problem.dtypes import DType, numpy_dtype

#: Marks of modules whose tests run compiled kernels in the emulator.
COMPILED = [
    pytest.mark.compile,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]
POISONED = [*COMPILED, pytest.mark.usefixtures("poisoned_workspace")]


def kernels(gpu):
    """Return the names of the kernels that were launched."""
    return [launch.kernel.rpartition("_")[0] for launch, _ in gpu.launches]


@contextmanager
def dirty_workspaces():
    """Within it the workspaces of an emulated GPU begin with raised flags and not-a-numbers."""
    library = KNOWN[np.ndarray]

    def maker(*where):
        make = library.maker(*where)

        def made():
            array = make()
            array.view(np.uint8)[...] = 0xFF
            return array

        return made

    KNOWN[np.ndarray] = replace(library, maker=maker)
    try:
        yield
    finally:  # before the GPU is gone
        KNOWN[np.ndarray] = library


# -- operands --------------------------------------------------------------------------------------


def random_case(layout, sizes, pad, shift, seed):
    """Return a case of random numbers at odd addresses."""
    m, n, k = sizes
    return Case(
        matrix(m, k, layout[0] == "t", pad, shift), matrix(k, n, layout[1] == "t", pad, shift),
        matrix(m, n, False, 1, 1), (m, n), DType.FLOAT32, DType.FLOAT32, False, seed,
    )  # fmt: skip


def views_of(case):
    """Return arrays of a case's layouts, to plan with."""
    return [strided_view(flat_poison(x.length, case.dtype), x) for x in (case.a, case.b, case.d)]


def small_operands(dtype, layout, m, n, k, seed):
    """Return operands of small whole numbers."""
    rng = np.random.default_rng(seed)

    def one(rows, columns, turned):
        shape = (columns, rows) if turned else (rows, columns)
        values = rng.integers(-3, 4, shape).astype(numpy_dtype(dtype))
        return values.T if turned else values

    return one(m, k, layout[0] == "t"), one(k, n, layout[1] == "t")


def framed(shape, transposed, pad, values):
    """Return a matrix among not-a-numbers, K-major or not, and all of its buffer."""
    rows, columns = reversed(shape) if transposed else shape
    buffer = np.full((rows + 2, columns + pad), np.nan, np.float32)
    inner = buffer[1 : rows + 1, :columns]
    view = inner.T if transposed else inner
    if values is not None:
        view[...] = values
    return view, buffer


def framed_product(layout, sizes, pad):
    """Return operands and a result among not-a-numbers, and all of the result's buffer."""
    m, n, k = sizes
    rng = np.random.default_rng(k)
    a, _ = framed((m, k), layout[0] == "t", pad, rng.integers(-4, 5, (m, k)))
    b, _ = framed((k, n), layout[1] == "t", pad, rng.integers(-4, 5, (k, n)))
    return (a, b, *framed((m, n), False, pad, None))


# -- plans of cute_simt ----------------------------------------------------------------------------


def configured(a, b, d, config):
    """Plan a product in a configuration."""
    first = unigemm.plan(a, b, d, backend="cute_simt")
    candidate = BACKEND.estimate(first.problem, first.extents, first.target, config)
    return first.taking(Alternative.of("cute_simt", candidate))


def scheduled(a, b, d, schedule):
    """Plan a product in the configuration of a schedule that is estimated lowest."""
    first = unigemm.plan(a, b, d, backend="cute_simt")
    every = BACKEND.candidates(first.problem, first.extents, first.target)
    own = [each for each in every if each.config.schedule == schedule]
    best = min(own, key=lambda each: each.prediction.us)
    return first.taking(Alternative.of("cute_simt", best))


def on_fewer_sms(plan, count):
    """Return a plan for a device with this many SMs."""
    target = replace(plan.target, sm_count=count)
    candidate = BACKEND.estimate(plan.problem, plan.extents, target, plan.config)
    return replace(plan.taking(Alternative.of(plan.backend, candidate)), target=target)


def framed_launches(layout, sizes, pad, config, sms=None, **options):
    """Multiply among not-a-numbers in a configuration; return the GPU and the plan.

    D is right, nothing else is written, and workspaces are dirty before.
    """
    a, b, d, buffer = framed_product(layout, sizes, pad)
    with device("sm_90a", **options) as gpu, dirty_workspaces():
        plan = configured(a, b, d, config)
        plan = plan if sms is None else on_fewer_sms(plan, sms)
        unigemm.matmul(a, b, d, plan=plan)
    np.testing.assert_array_equal(d, a @ b)
    d[...] = np.nan
    assert np.isnan(buffer).all(), "nothing else was written"
    return gpu, plan
