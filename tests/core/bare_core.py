"""Run by test_packaging.py and .ci/clean-install: the core where nothing else is installed.

Prints "ok" where importing, multiplying, planning, refusing and the command line all work with the
packages of the core alone. With ``--hide`` the others (and what Windows lacks) do not import.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile

HIDDEN = {
    "cuda",
    "cutlass",
    "cupy",
    "tvm_ffi",
    "matplotlib",
    "torch",
    "jax",
    "pytest",
    "pwd",
    "grp",
}
HIDDEN |= {"resource"}  # fcntl is filelock's to do without: it has a lock for Windows


class _Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)


def hide():
    found = importlib.metadata.Distribution.from_name

    def from_name(name):
        if name.startswith(("nvidia-", "cuda-", "apache-tvm-ffi", "cupy")):
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    importlib.metadata.Distribution.from_name = from_name
    for name in [name for name in sys.modules if name.partition(".")[0] in HIDDEN]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Hide())


class Exporter:
    """An array of a library of its own, reached through DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        import numpy

        return numpy


def check():
    import numpy as np

    import unigemm

    a = np.random.default_rng(7).standard_normal((37, 41))
    np.testing.assert_allclose(unigemm.matmul(a, a.T), a @ a.T)
    np.testing.assert_allclose(unigemm.matmul(Exporter(a), Exporter(a.T)), a @ a.T)
    out = np.full((37, 37), np.nan)
    unigemm.matmul(Exporter(a), Exporter(a.T), out=Exporter(out))
    np.testing.assert_allclose(out, a @ a.T)
    half = a.astype("float16")
    assert unigemm.matmul(half, half.T).dtype == "float16"
    spec = unigemm.ArraySpec((512, 512), "bfloat16")
    for target in ("sm_80", "sm_90a", "sm_100a", "sm_120a"):
        assert unigemm.plan(spec, spec, target=target).backend != "numpy"
    reason = None
    try:
        unigemm.compile(unigemm.plan(spec, spec, target="sm_90a", backend="cute_wgmma"))
    except unigemm.BackendUnavailable as error:
        reason = str(error)
    assert reason is not None, "a kernel was compiled with no compiler"
    assert 'pip install "unigemm[cute]"' in reason, reason
    lacking = {each.name: each.missing or each.compiler_missing for each in unigemm.backend_info()}
    assert lacking.pop("numpy") is None
    for name, reason in lacking.items():
        extra = "cutile" if name == "cutile" else "cute"
        assert f'pip install "unigemm[{extra}]"' in reason, (name, reason)


def main():
    if "--hide" in sys.argv:
        hide()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNIGEMM_CACHE_DIR"] = folder
        check()
        if "--hide" not in sys.argv:
            for words in (("info",), ("plan", "512", "512", "512", "--target", "sm_90a")):
                subprocess.run([sys.executable, "-m", "unigemm", *words], check=True)
    print("ok")


if __name__ == "__main__":
    main()
