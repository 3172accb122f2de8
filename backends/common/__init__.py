"""What backends with compiled kernels share."""
