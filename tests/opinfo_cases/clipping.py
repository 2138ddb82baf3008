"""Clipping is compared whole with PyTorch's clip_grad_norm_: it has no samples of the parts."""

WITHOUT = {name: "a part of clipping" for name in ("square_sum", "clip_factor", "clip")}
