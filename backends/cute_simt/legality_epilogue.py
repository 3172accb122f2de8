"""Which configurations carry out the epilogue of a problem."""

from __future__ import annotations

from unigemm.planning.config import Config
from unigemm.problem.problem import Problem

from ..common.epilogue import in_place, unsupported_config_epilogue
from .schedules import FEW_ROWS, is_tail

__all__ = ["unsupported_tile_epilogue"]


def unsupported_tile_epilogue(problem: Problem, config: Config) -> str | None:
    """Say why a configuration cannot carry out the problem's epilogue; None where it can."""
    if problem.epilogue is None:
        return None
    if is_tail(config) and (in_place(problem) or problem.epilogue.largest is not None):
        return "the tiles of a tail store again what others did, added up in another order"
    if config.cluster_k > 1 and in_place(problem):
        return "the tiles of clusters along K store again what their neighbours did"
    single = config.schedule in FEW_ROWS or bool(config.remainder) or config.cluster_k > 1
    if problem.epilogue.gate and single:
        return "its threads store single elements, and gated ones are made of pairs"
    return unsupported_config_epilogue(problem, config)
