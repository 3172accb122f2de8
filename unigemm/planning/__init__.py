"""Which kernel, and why: targets, backends, candidates, plans."""
