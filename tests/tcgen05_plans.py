"""Plans of cute_tcgen05 with a configuration that a test names or draws."""

from __future__ import annotations

import random
from dataclasses import replace

from unigemm.backends.cute_tcgen05.configs import offered, scratch_bytes


def with_config(plan, config):
    """Return a plan that runs a configuration, with the workspace that it needs."""
    seen, sizes = config.oriented(plan.problem), config.oriented(plan.extents)
    return replace(plan, config=config, workspace_bytes=scratch_bytes(seen, sizes, config))


def drawn(plan, wanted, seed):
    """Return a plan with a configuration of a kind, of those that are offered; by the seed."""
    found = [
        config
        for config in offered(plan.problem, plan.target)
        if all(getattr(config, name) == value for name, value in wanted.items())
    ]
    return with_config(plan, random.Random(seed).choice(found))
