"""`einsum` and its relatives: products of arrays whose dimensions have names."""
