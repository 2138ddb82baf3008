"""Optimizers are compared step by step: PyTorch has no samples of them."""

WITHOUT = {"sgd": "an optimizer"}
