"""unigemm."""
