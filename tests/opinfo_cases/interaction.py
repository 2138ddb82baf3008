"""PyTorch has no products of pairs as an operator."""

WITHOUT = {"pair_dots": "tests/test_dlrm.py compares a whole model"}
