"""Estimates: what kernels would take on a chip that is not there, told from what Triton makes of them for it."""
