"""What is multiplied: types, layouts, extents, scales."""
