"""What backends rank before a caller's first product."""

from __future__ import annotations

import numpy as np
import pytest
from unigemm.backends.cute.backend import CuteBackend

import unigemm
from unigemm import dispatch
from unigemm.registry import BUILTIN, backend_named
from unigemm.target import named_target

CUTE = [each for name in BUILTIN if isinstance(each := backend_named(name), CuteBackend)]


@pytest.mark.parametrize("backend", CUTE, ids=lambda backend: backend.name)
def test_what_is_rehearsed_is_a_product_that_the_backend_takes(backend):
    target = named_target("sm_90a")
    for problem, extents in backend.rehearsed:
        assert backend.refuse(problem, extents, target) is None
        assert backend.ranking(problem, extents, target, 1, float("inf")).candidates


def test_backends_rehearse_once_before_the_first_plan(monkeypatch):
    asked = []
    monkeypatch.setattr(CuteBackend, "rehearse", lambda backend: asked.append(backend.name))
    dispatch._rehearse.cache_clear()
    dispatch.replan()
    for size in (96, 104):
        a = unigemm.ArraySpec((size, size), "float32")
        unigemm.plan(a, a, target=named_target("sm_90a"))
        unigemm.plan(a, a, target=named_target("sm_90a"), backend="cute_simt")
    assert sorted(asked) == sorted(backend.name for backend in CUTE)


def test_nothing_is_rehearsed_for_the_cpu(monkeypatch):
    asked = []
    monkeypatch.setattr(CuteBackend, "rehearse", lambda backend: asked.append(backend.name))
    dispatch._rehearse.cache_clear()
    dispatch.replan()
    a = np.ones((5, 7))
    unigemm.matmul(a, a.T)
    assert not asked
