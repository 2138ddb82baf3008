"""What kernels and steps take on a GPU, ours beside the libraries': `python -m benchmarks.gpu`.

Ours and theirs run one after the other in processes of their own, since castile and PyTorch do not meet in one.
"""
