"""The product itself: types, layouts, sizes and scales."""
