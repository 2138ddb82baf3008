"""Measuring: plans, kinds of tasks and links run for their time, and the ways in which kernels may be called."""
