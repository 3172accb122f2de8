"""Device code."""
