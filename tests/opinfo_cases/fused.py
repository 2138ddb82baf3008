"""What rewrites make has no counterpart in PyTorch."""

WITHOUT = dict.fromkeys(("fused", "channel_bias"), "made by a rewrite: tests/test_rewrites.py compares whole models")
