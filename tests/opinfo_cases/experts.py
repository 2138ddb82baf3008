"""PyTorch has no mixtures of experts."""

WITHOUT = dict.fromkeys(("route", "dispatch", "combine", "balance"), "tests/test_moe.py compares a whole model")
