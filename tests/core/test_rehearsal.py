"""What backends rank before a caller's first product."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

import unigemm
from unigemm.backends.cute.backend import CuteBackend
from unigemm.planning import select
from unigemm.planning.protocol import RehearsingBackend
from unigemm.planning.registry import BUILTIN, backend_named
from unigemm.planning.target import named_target
from unigemm.runtime import bind as dispatch

BACKENDS = [backend_named(name) for name in BUILTIN]
CUTE = [each for each in BACKENDS if isinstance(each, CuteBackend)]
REHEARSING = [each for each in BACKENDS if isinstance(each, RehearsingBackend)]


def test_all_backends_of_gpus_rehearse():
    assert [each.name for each in REHEARSING] == [name for name in BUILTIN if name != "numpy"]


@pytest.mark.parametrize("backend", CUTE, ids=lambda backend: backend.name)
def test_what_is_rehearsed_is_a_product_that_the_backend_takes(backend):
    assert backend.rehearsed
    target = named_target(backend.rehearsed_for)
    for problem, extents in backend.rehearsed:
        assert backend.refuse(problem, extents, target) is None
        assert backend.ranking(problem, extents, target, 1, float("inf")).candidates


@pytest.mark.parametrize("backend", REHEARSING, ids=lambda backend: backend.name)
def test_a_rehearsal_ranks_and_forgets(backend, monkeypatch):
    module = sys.modules[f"unigemm.backends.{backend.name}.candidates"]
    asked = []
    real = module.Shortlist
    monkeypatch.setattr(module, "Shortlist", lambda *args: asked.append(args) or real(*args))
    assert backend.rehearse() is None
    assert asked


def test_backends_rehearse_once_before_the_first_plan(monkeypatch):
    asked = []
    for kind in {type(each) for each in REHEARSING}:
        monkeypatch.setattr(kind, "rehearse", lambda backend: asked.append(backend.name))
    select._rehearse.cache_clear()
    dispatch.replan()
    for size in (96, 104):
        a = unigemm.ArraySpec((size, size), "float32")
        unigemm.plan(a, a, target=named_target("sm_90a"))
        unigemm.plan(a, a, target=named_target("sm_90a"), backend="cute_simt")
    assert sorted(asked) == sorted(backend.name for backend in REHEARSING)


FAULTS = """
import resource
import numpy as np
from unigemm.planning import select as dispatch

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(2048) for _ in range(96)]  # of 16 KiB, one behind the other
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = [faults() for _ in range(5)]
dispatch._keep_memory()
print(min(before), min(faults() for _ in range(5)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others give memory back otherwise")
def test_the_memory_of_a_plan_is_kept_for_the_next_one():
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    output = subprocess.check_output([sys.executable, "-c", FAULTS], env=env, text=True)
    before, kept = map(int, output.split())
    assert kept == 0 or kept < before / 4


def test_nothing_is_rehearsed_for_the_cpu(monkeypatch):
    asked = []
    for kind in {type(each) for each in REHEARSING}:
        monkeypatch.setattr(kind, "rehearse", lambda backend: asked.append(backend.name))
    select._rehearse.cache_clear()
    dispatch.replan()
    a = np.ones((5, 7))
    unigemm.matmul(a, a.T)
    assert not asked
