"""Kernels for tests that read them: each is compiled once in a run, whoever asks first."""

from __future__ import annotations

import call_path

from unigemm.cache.artifact import Artifact
from unigemm.planning.plan import Plan

__all__ = ["made"]


def made(plan: Plan) -> Artifact:
    """Return a plan's kernel from the cache of this run, compiled if it is not there."""
    entry = call_path.kernel_entry(plan)
    assert entry is not None, "the host has no kernels"
    return Artifact(files=entry.read(), info=entry.info)
