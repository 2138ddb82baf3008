"""Optimizers are compared step by step: PyTorch has no samples of them."""

WITHOUT = dict.fromkeys(
    ("sgd", "adam", "adamw", "lion", "adafactor"), "an optimizer: tests/test_optimizers.py compares"
)
