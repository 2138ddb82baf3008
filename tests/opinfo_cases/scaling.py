"""A loss is scaled by training, not by a layer."""

WITHOUT = dict.fromkeys(("loss_scale", "unscale"), "part of training in 16 bits: tests/test_mixed.py compares")
