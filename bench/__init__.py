"""Benchmarks: the shape suites, how they are run, and what was learned."""
