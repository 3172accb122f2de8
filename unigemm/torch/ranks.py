"""Whether the ranks of a process group compute equal products by equal kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch

from ..arrays.libraries import library_of
from ..errors import UnsupportedProblem
from ..runtime.bound import Bound
from ..support.version import __version__

__all__ = ["check_ranks", "compare"]

_MOST_SAID = 4


def check_ranks(group: Any = None) -> int:
    """Check that all ranks have planned alike the products that they have in common.

    Equal plans give equal bits. Ranks plan otherwise if their devices, versions, calibrations,
    tuned plans or named backends are not the same. Call it on all ranks of the group, once, behind
    the first step: it gathers a digest of each plan, and a collective that some ranks leave out
    waits for ever. All of them raise, or none does.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        The ranks to compare; all by default.

    Returns
    -------
    int
        How many products of this rank another one has planned, too.

    Raises
    ------
    UnsupportedProblem
        Some plans differ; says which, and of what ranks. Or there is no process group.
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        raise UnsupportedProblem(
            "check_ranks compares the ranks of a process group and there is none; call "
            "torch.distributed.init_process_group first"
        )
    mine = _planned()
    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, {key: said[:2] for key, said in mine.items()}, group=group)
    differing = compare(found)
    texts: list[Any] = [None] * len(found)
    if differing:  # on all ranks
        distributed.all_gather_object(
            texts, {key: mine[key][2] for key in differing if key in mine}, group=group
        )
        raise UnsupportedProblem(_said(differing, found, texts))
    others = [set(each) for i, each in enumerate(found) if i != distributed.get_rank(group)]
    return len(mine.keys() & set().union(*others))


def compare(ranks: Sequence[Mapping[str, Sequence[str]]]) -> list[str]:
    """Return the products, by their digests, that two ranks have planned in different ways."""
    chosen: dict[str, set[str]] = {}
    for each in ranks:
        for key, (_, choice) in each.items():
            chosen.setdefault(key, set()).add(choice)
    return sorted(key for key, choices in chosen.items() if len(choices) > 1)


def _planned() -> dict[str, tuple[str, str, str]]:
    """Return what this process has planned of tensors: product and choice as digests, and why.

    By a digest of the product and of its options.
    """
    found = {}
    for bound in tuple(library_of(torch.empty(0), "a").table.values()):
        plan = bound.plan if isinstance(bound, Bound) else None  # what `quantize` keeps has none
        if plan is None:
            continue
        requested = bound.options.backend, bound.options.plan is None
        data = plan.to_dict()
        key = _digest([data["problem"], data["extents"], *requested])
        choice = f"{plan.backend} {plan.config} on {plan.target}, unigemm {__version__}"
        found[key] = f"{plan.extents} of {plan.problem}", _digest(choice), choice
    return found


def _digest(x: Any) -> str:
    return sha256(json.dumps(x, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _said(
    differing: Sequence[str],
    found: Sequence[Mapping[str, Sequence[str]]],
    texts: Sequence[Mapping[str, str]],
) -> str:
    """Say which products are planned in different ways, and by which ranks."""
    parts = []
    for key in differing[:_MOST_SAID]:
        name = next(each[key][0] for each in found if key in each)
        by: dict[str, list[str]] = {}
        for rank, each in enumerate(texts):
            if key in each:
                by.setdefault(each[key], []).append(str(rank))
        parts.append(
            f"{name}: "
            + " / ".join(f"{choice} (rank {', '.join(ranks)})" for choice, ranks in by.items())
        )
    if len(differing) > _MOST_SAID:
        parts.append(f"{len(differing) - _MOST_SAID} more")
    return (
        f"the ranks plan {len(differing)} products in different ways, so that their bits may "
        f"differ: {'; '.join(parts)}; give all of them one version, calibration, tuning file and "
        "kind of device, or name a plan"
    )
