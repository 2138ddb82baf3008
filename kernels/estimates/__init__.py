"""Estimates of what kernels take on a chip that is not there, from the code that Triton compiles for it."""
