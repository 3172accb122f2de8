"""Which kernel, and why: targets, backends, candidates, plans."""

from . import validation as validation  # what `Plan.from_json` reads with
