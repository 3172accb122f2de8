"""Arrays of every library, seen as addresses, extents and strides; one module a library."""
