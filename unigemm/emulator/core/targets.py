"""What each ``.target`` has: since which architecture, or which targets alone.

The source is the PTX ISA: each section of an instruction ends with "Target ISA Notes". A target has
what the architectures before it have, but for what only targets with a letter have: "a" stands for
an architecture, "f" for its family.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["RULES", "Rule", "lacking"]


def _lettered(*numbers: int, letters: str = "af") -> tuple[str, ...]:
    return tuple(f"sm_{number}{letter}" for number in numbers for letter in letters)


_TENSOR_MEMORY = _lettered(100, 101, 103, 107, 110)
_NEWEST = (*_TENSOR_MEMORY, *_lettered(120, 121))


@dataclass(frozen=True)
class Rule:
    """What instructions need.

    Attributes
    ----------
    pattern
        A regular expression at the beginning of an opcode, of its number of operands behind a
        space, or of a special register.
    needs
        The number of the first architecture that has them, or the targets that alone have them.
    section
        Of the PTX ISA.
    """

    pattern: str
    needs: int | tuple[str, ...]
    section: str

    @property
    def words(self) -> str:
        """Say what is needed, and where that is written."""
        names = (f"sm_{self.needs}", "a newer one") if isinstance(self.needs, int) else self.needs
        return f"it needs {' or '.join(names)} (PTX ISA, {self.section})"


RULES = (
    Rule(r"cp\.async\b", 80, "cp.async"),
    Rule(r"mbarrier\b", 80, "mbarrier"),
    Rule(r"redux\b", 80, "redux.sync"),
    Rule(r"mma\.sync\.aligned\.(?!m16n8k8\.row\.col\.f\d+\.f16|m8n8k16\b)", 80, "mma"),
    Rule(r"(createpolicy|discard|applypriority)\b", 80, "createpolicy, discard, applypriority"),
    Rule(r".*\.(bf16|bf16x2|tf32)\b", 80, "Alternate Floating-Point Data Formats"),
    Rule(r"(min|max)\..*\b(NaN|f16|f16x2)\b", 80, "min, max"),
    Rule(r"cvt\b.*\.f16x2\.f32\b", 80, "cvt"),
    Rule(r"(cvt|mma)\b.*\.(e4m3|e5m2)", 89, "cvt, mma"),
    Rule(r"(add|sub|mul|setp)\..*\bbf16", 90, "Half Precision Floating-Point Instructions"),
    Rule(r"cvt\.(rn|rz)\b.*\.tf32\b", 90, "cvt"),
    Rule(r"mma\.sync\.aligned\.m16.*\.f64\b", 90, "mma"),
    Rule(r"(atom|red)\b.*\.(bf16|bf16x2|v2|v4|v8|b128)\b", 90, "atom, red"),
    Rule(r"(elect|mapa|stmatrix|griddepcontrol)\b", 90, "elect, mapa, stmatrix, griddepcontrol"),
    Rule(r"cp\.(reduce\.)?async\.bulk\b", 90, "cp.async.bulk"),
    Rule(r"mbarrier\.(try_wait|expect_tx|complete_tx|arrive\w*\.expect_tx)\b", 90, "mbarrier"),
    Rule(r"mbarrier\.arrive\w*\.(?!noComplete).* 3$", 90, "mbarrier.arrive"),
    Rule(r"(fence\.proxy\.async|prefetch\.tensormap)\b", 90, "membar, fence; prefetch"),
    Rule(r".*\bcluster\b", 90, "Cluster of Cooperative Thread Arrays"),
    Rule(r"%n?cluster", 90, "Special Registers"),
    Rule(r".*\.f32x2\b", 100, "Floating-Point Instructions"),
    Rule(r"(add|sub|fma)\b.*\.f32\.b?f16\b", 100, "Mixed Precision Floating-Point Instructions"),
    Rule(r"(ld|st)\b.*\.(v8\.[bsuf]32|v4\.[bsuf]64)\b", 100, "ld, st"),
    Rule(r"clusterlaunchcontrol\b", 100, "clusterlaunchcontrol"),
    Rule(r"clusterlaunchcontrol\b.*\.multicast\b", _NEWEST, "clusterlaunchcontrol.try_cancel"),
    Rule(r"setmaxnreg\b", ("sm_90a", *_NEWEST), "setmaxnreg"),
    Rule(r"wgmma\b", ("sm_90a",), "Asynchronous Warpgroup Level Matrix Instructions"),
    Rule(r"tcgen05\b", _TENSOR_MEMORY, "TensorCore 5th Generation Family Instructions"),
    Rule(r"cp\.async\.bulk\b.*\.cta_group\b", _TENSOR_MEMORY, "cp.async.bulk.tensor"),
    Rule(r"tcgen05\.mma\b.*\.kind::i8\b", ("sm_100a", "sm_101a", "sm_110a"), "tcgen05.mma"),
    Rule(
        r"tcgen05\.mma\b.*\.scale_vec\b",
        _lettered(100, 101, 103, 107, 110, letters="a"),
        "tcgen05.mma",
    ),
)  # fmt: skip


@lru_cache(maxsize=8192)
def lacking(target: str, name: str) -> str | None:
    """Say what an instruction needs that a target has not; None where it has it.

    Parameters
    ----------
    target
        The name of the architecture, ``"sm_90a"``.
    name
        A special register, or an opcode and, behind a space, how many operands it has.
    """
    digits = re.match(r"sm_(\d+)", target)
    number = int(digits[1]) if digits is not None else 0
    for rule in RULES:
        has = number >= rule.needs if isinstance(rule.needs, int) else target in rule.needs
        if not has and re.match(rule.pattern, name):
            return rule.words
    return None
