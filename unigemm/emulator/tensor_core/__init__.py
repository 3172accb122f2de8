"""Tensor cores: mma, wgmma, tcgen05 and tensor memory."""
