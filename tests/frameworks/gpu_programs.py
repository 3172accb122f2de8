"""What programs of unigemm.jax call on a GPU, called on an emulated one."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from unigemm import emulator
from unigemm.jax import calls

KEY = 7  # of the call


class Buffer:
    """What a program hands in for an array."""

    def __init__(self, x, index):
        self.x, self.device = x, SimpleNamespace(index=index)

    def data_ptr(self):
        return self.x.ctypes.data


@contextlib.contextmanager
def emulated(monkeypatch):
    """Give an emulated GPU that programs are planned for."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    monkeypatch.setattr(tvm_ffi, "get_raw_stream", lambda device: 0)
    monkeypatch.setattr(calls, "_current", lambda index: contextlib.nullcontext())
    with emulator.device("sm_90a") as gpu:
        monkeypatch.setattr(calls, "_gpus", lambda: [gpu.index])
        yield gpu


def planned(options, read, aux, written, told=(), form=None):
    """Return what a program for GPUs calls, of arrays that lie as those it has."""
    layouts = tuple(map(calls.layout_of, (*read, *written)))
    lies = tuple((name, calls.layout_of(x)) for name, x in aux.items())
    return calls._planned_call(layouts, options, lies, told, KEY, form)


def run(monkeypatch, gpu, call, read, written):
    """Call what a program has the key of, with the arrays that it reads and writes."""
    written = [*written, *[np.zeros(call.workspace, "u1")] * bool(call.workspace)]
    for arrays, write in ((read, False), (written, True)):
        for x in arrays:
            gpu.see(x, write=write)
    monkeypatch.setitem(calls._CALLS, KEY, call)
    calls._run(KEY, *(Buffer(x, gpu.index) for x in (*read, *written)))
    assert gpu.launches
