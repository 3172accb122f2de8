"""Tuning files: plans that were measured to be the fastest.

Each entry of such a file (see `entry_files`) holds a plan (with its own version), the times of the
plan and of the cost model's pick, and the versions of what was measured. It applies to the same
product on an equal device, as long as the kernel's sources are the same. Plans are checked as those
of a caller are.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..errors import TuningWarning, UnsupportedProblem
from ..problem.problem import Extents, Problem
from ..support.env import own_tuning_file, tuning_files
from .entry_files import EntryFiles, converted
from .plan import Plan
from .target import Target

__all__ = ["Tuned", "check_writable", "forget", "lookup", "read", "record"]


@dataclass(frozen=True)
class Tuned:
    """One measured decision.

    Attributes
    ----------
    plan
        The fastest plan; `Plan.measured_us` is its time.
    asked
        The backend that it was chosen from, or "auto".
    source
        Digest of the kernel's sources, see `unigemm.cache.artifact.KernelKey`.
    pick, pick_us
        The cost model's pick in words, and its measured time in microseconds.
    versions
        Versions of unigemm and of the kernel's compilers, by name.
    date
        The day of the measurement, as ``"2026-11-21"``.
    """

    plan: Plan
    asked: str
    source: str
    pick: str
    pick_us: float
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""

    @property
    def key(self) -> tuple[Problem, Extents, Target, str]:
        """The question that it answers: problem, extents, target and the backend requested."""
        return self.plan.problem, self.plan.extents, self.plan.target, self.asked


def lookup(problem: Problem, extents: Extents, target: Target, asked: str) -> Tuned | None:
    """Return what was measured for a product, from the first file that knows."""
    table = _table()  # mostly empty, and hashing the key takes time
    return table.get((problem, extents, target, asked)) if table else None


def _decoded(entry: Any) -> Tuned:
    if not isinstance(entry, dict):
        raise UnsupportedProblem("an entry is no object")
    plan = Plan.from_dict(entry.get("plan"))  # type: ignore[arg-type]
    others = {name: value for name, value in entry.items() if name != "plan"}
    return converted(others, Tuned, plan=plan)


def _plain(tuned: Tuned) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(tuned), "plan": tuned.plan.to_dict()}


@lru_cache(maxsize=1)
def _table() -> dict[tuple[Problem, Extents, Target, str], Tuned]:
    from ..cache.trust import own, own_or_root

    found: dict[tuple[Problem, Extents, Target, str], Tuned] = {}
    for path in reversed(tuning_files()):
        if not os.path.lexists(path):
            why = "UNIGEMM_TUNING names it and it is not there"
            warnings.warn(f"{path} is left out: {why}", TuningWarning, stacklevel=2)
        found |= {each.key: each for each in read(path, own_or_root())}
    users = own_tuning_file()
    mine = [] if users is None else read(users, own())
    return found | {each.key: each for each in mine}


def forget() -> None:
    """Read the files again when they are next needed; normally they are read once."""
    _table.cache_clear()


_FILES = EntryFiles("tuning", 1, _decoded, _plain, lambda each: each.key, own_tuning_file, forget)
read, record, check_writable = _FILES.read, _FILES.record, _FILES.check_writable
