"""Run by test_run_only.py: a node that has kernels from a bundle, and nothing that compiles.

``run_only.py FOLDER ROOT``: imports come from FOLDER, which has the packages of ``unigemm[run]``
alone, and from ROOT, the tree. Prints "ok" where every kernel of the bundle is found, loaded, and
as far as there is no GPU, run.
"""

from __future__ import annotations

import re
import shutil
import sys

sys.path[:0] = sys.argv[1:3]

PRODUCTS = {
    "cute_simt": ("sm_80", "float32"),
    "cute_wgmma": ("sm_90a", "float16"),
    "cute_tcgen05": ("sm_100a", "float16"),
    "cutile": ("sm_90a", "float16"),
}

#: A kernel of `unigemm.quantize`, as a list of what a program needs has it.
ROUNDING = {
    "quantize": {
        "source": "float32", "result": "int8", "sharing": "row",
        "wide_reads": True, "wide_writes": True, "stacked": False,
    },
    "target": "sm_80",
}  # fmt: skip


def plan_of(backend, m=48):
    import unigemm

    target, dtype = PRODUCTS[backend]
    a, b = unigemm.ArraySpec((m, 64), dtype), unigemm.ArraySpec((64, 64), dtype)
    return unigemm.plan(a, b, backend=backend, target=target)


def refused(name):
    try:
        __import__(name)
    except ImportError:
        return True
    return False


def check_emulated(backend):
    import numpy as np

    import unigemm
    import unigemm.emulator

    target, dtype = PRODUCTS[backend]
    a = (np.arange(48 * 64).reshape(48, 64) % 5).astype(dtype)
    b = (np.arange(64 * 64).reshape(64, 64) % 7 - 3).astype(dtype)
    with unigemm.emulator.device(target) as gpu:
        d = unigemm.matmul(a, b, backend=backend)
    assert gpu.launches, backend
    np.testing.assert_array_equal(d, (a.astype("f4") @ b.astype("f4")).astype(dtype))


def check_quantized():
    import numpy as np

    import unigemm
    import unigemm.emulator

    x = (np.arange(48 * 64).reshape(48, 64) % 255 - 127).astype("float32")
    with unigemm.emulator.device(ROUNDING["target"]) as gpu:
        found = unigemm.quantize(x, "int8", block="row")
    assert gpu.launches
    for got, wanted in zip(found, unigemm.quantize(x, "int8", block="row"), strict=True):
        np.testing.assert_array_equal(got, wanted)


def check_cutile():
    """Find its kernel and lay out a launch; where there is no driver, nothing loads it."""
    import unigemm
    from unigemm.backends.cutile import launch
    from unigemm.backends.cutile.launch_arguments import calls
    from unigemm.problem.canonical import canonical

    plan = plan_of("cutile")
    entry = unigemm.compile(plan).entry
    assert entry.cached
    a, b, d = (unigemm.ArraySpec(s, "float16").layout for s in ((48, 64), (64, 64), (48, 64)))
    gemm = canonical(a, b, d)
    launches = calls(plan, gemm)
    assert {f"{call.symbol}.cubin" for call in launches} <= set(entry.files)
    from cuda.bindings import driver

    launched = []
    driver.cuLaunchKernelEx = lambda config, *rest: launched.append(config.gridDimX) or (0,)
    kernels = {call.symbol: 1 for call in launches}
    launch.launcher(launches, kernels, swapped=False, overlap=True)(16, 32, 48, 64, 0)
    assert launched == [call.blocks for call in launches]


def check_missing():
    import unigemm

    a, bias = unigemm.ArraySpec((64, 64), "bfloat16"), unigemm.ArraySpec((64,), "bfloat16")
    for backend, (target, _) in PRODUCTS.items():
        command = f"unigemm compile 64 64 64 --dtype bfloat16 --target {target} --backend {backend}"
        for more, said in (({}, command), ({"bias": bias}, "unigemm warmup")):
            plan = unigemm.plan(a, a, backend=backend, target=target, **more)
            text = f"{backend} compiled"
            try:
                unigemm.compile(plan)
            except unigemm.BackendUnavailable as error:
                text = str(error)
            assert re.search(f"kernel [0-9a-f]{{16}} of {backend} .*{said}", text), text


def main():
    import unigemm
    from unigemm import cache

    for name in ("cutlass", "nvidia_cutlass_dsl", "cuda.tile", "torch", "cupy"):
        assert refused(name), name
    assert not any(map(shutil.which, ("cc", "gcc", "clang", "ld", "tileiras", "ptxas")))
    for each in unigemm.backend_info():
        assert each.missing is None, each
        assert each.name == "numpy" or each.compiler_missing is not None, each
    for backend in PRODUCTS:
        if backend == "cutile":
            check_cutile()
        else:
            check_emulated(backend)
    check_quantized()
    check_missing()
    assert cache.compile_count() == 0
    print("ok")


if __name__ == "__main__":
    main()
