"""PyTorch's samples read as operators: rotary position embeddings."""

WITHOUT = {"rotary": "PyTorch has no such operator"}
