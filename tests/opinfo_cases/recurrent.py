"""Cells are compared step by step elsewhere: PyTorch has no samples of them."""

WITHOUT = {"lstm_cell": "PyTorch has no samples of cells", "gru_cell": "PyTorch has no samples of cells"}
