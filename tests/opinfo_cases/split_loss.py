"""PyTorch's samples read as operators: a cross-entropy over blocks of classes."""

WITHOUT = {
    "block_entropy": "half of a cross-entropy: tests/test_ops_split_loss.py compares the whole",
    "split_cross_entropy": "half of a cross-entropy: tests/test_ops_split_loss.py compares the whole",
}
