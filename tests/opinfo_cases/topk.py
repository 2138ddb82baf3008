"""PyTorch's samples read as operators: the largest elements."""

WITHOUT = {"topk": "PyTorch's gives a pair, of which the test takes no first: tests/test_ops_experts.py compares"}
