"""Dropout is compared with what it should do on average: PyTorch draws other numbers."""

WITHOUT = {"dropout": "PyTorch draws other numbers"}
