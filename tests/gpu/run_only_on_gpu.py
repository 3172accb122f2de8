"""A script that multiplies with kernels of a bundle, where nothing is there that compiles.

``run_only_on_gpu.py BACKEND...``: the compilers are hidden, as well as they can be where they are
installed. Prints "ok".
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import threading
from pathlib import Path

HIDDEN = ("cutlass", "nvidia_cutlass_dsl", "cuda.tile")
PACKAGES = ("nvidia-cutlass-dsl", "cuda-tile", "nvidia-cuda-tileiras", "nvidia-cuda-nvcc")
SIZES = (256, 512, 384)


class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(HIDDEN):
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)


def hide():
    found = importlib.metadata.Distribution.from_name

    def from_name(name):
        if name.startswith(PACKAGES):
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    importlib.metadata.Distribution.from_name = from_name
    sys.meta_path.insert(0, Hide())


def check(torch, unigemm, backend, a, b):
    expected = a.double() @ b.double()

    def right(d):
        torch.testing.assert_close(d.double(), expected, rtol=2e-3, atol=2e-2)

    out = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=a.dtype)
    prepared = unigemm.prepare(a, b, out, backend=backend)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):  # the first launch of all
        prepared(a, b, out)
    graph.replay()
    right(out)
    right(unigemm.matmul(a, b, backend=backend))
    wrong = []

    def alone():  # a thread that has used no CUDA
        try:
            mine = out
            for _ in range(10):
                prepared(a, b, mine)
                unigemm.matmul(a, b, mine, backend=backend)
        except Exception as error:
            wrong.append(error)

    out.fill_(float("nan"))
    thread = threading.Thread(target=alone)
    thread.start()
    thread.join()
    assert not wrong, wrong
    right(out)


def main():
    hide()
    import torch

    import unigemm
    from unigemm import cache

    assert not any(map(shutil.which, ("cc", "gcc", "clang", "tileiras", "ptxas")))
    m, n, k = SIZES
    for backend in sys.argv[1:]:
        dtype = torch.float32 if backend == "cute_simt" else torch.float16
        a, b = (torch.randn(shape, device="cuda").to(dtype) for shape in ((m, k), (k, n)))
        check(torch, unigemm, backend, a, b)
        refusal = ""
        try:
            unigemm.matmul(a.bfloat16(), b.bfloat16(), backend=backend)
        except unigemm.BackendUnavailable as error:
            refusal = str(error)
        assert f"of {backend} for" in refusal, refusal
        assert "Compile it elsewhere (unigemm " in refusal, refusal
    assert cache.compile_count() == 0
    mapped = Path("/proc/self/maps").read_text()
    assert "cute_dsl" not in mapped
    assert "_cutlass_ir" not in mapped
    print("ok")


if __name__ == "__main__":
    main()
