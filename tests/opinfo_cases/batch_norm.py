"""PyTorch's samples read as operators: none of batch normalisation."""

_LAYER = "PyTorch has the whole layer in one operator; tests/test_ops_batch_norm.py compares ours with it"

WITHOUT = {"batch_norm": _LAYER, "batch_moments": _LAYER, "batch_factors": _LAYER, "running_moment": _LAYER}
