"""Residual networks with wider blocks (Zagoruyko and Komodakis, 2016), with torchvision's shapes and names.

They do not know how they are cut or trained.
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.launch.models.resnext import bottlenecks
from castile.planner.graph import Graph

RECIPE = Recipe(data="noise", batch=64, lr=0.1, momentum=0.9, schedule="cosine")


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    depth: int = 50,
    times: int = 2,
    width: int = 64,
    blocks: int = 0,
    size: int = 224,
    channels: int = 3,
    classes: int = 1000,
) -> Graph:
    """image [b, channels, size, size] -> logits [b, classes]; 68,883,240 parameters as it is (Wide-ResNet-50-2).

    depth    50 or 101
    times    how many times as wide as those of a residual network its blocks are within
    width    channels of the first convolution; the first stage gives four times as many
    blocks   blocks of each stage, if not those of the depth
    """
    net = bottlenecks("wide_resnet", depth, blocks, width, times * width)
    return net.build(Graph("wide_resnet", dtype), training, (batch or RECIPE.batch, channels, size, size), classes)
