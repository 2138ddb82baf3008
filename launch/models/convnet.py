"""A small convolutional network: two 3x3 convolutions, one pooling, two dense layers.

It does not know how it is cut or trained.
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.planner.graph import Graph

RECIPE = Recipe(data="digits", batch=64, lr=0.05, momentum=0.9, epochs=15)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    size: int = 8,
    channels: int = 16,
    width: int = 64,
    classes: int = 10,
) -> Graph:
    """image [b, 1, size, size] -> logits [b, classes]; the second convolution has twice `channels`."""
    g = Graph("convnet", dtype)
    b = batch or RECIPE.batch
    image = g.input("image", (b, 1, size, size), "b c h w")
    label = g.input("label", (b,), "b", "int32")
    x = g.relu("relu1", g.conv2d("conv1", image, channels=channels, kernel=3, padding=1))
    x = g.relu("relu2", g.conv2d("conv2", x, channels=2 * channels, kernel=3, padding=1))
    x = g.max_pool2d("pool", x, kernel=2)
    x = g.reshape("flat", x, "b c h w -> b (c h w)")
    x = g.relu("relu3", g.linear("fc1", x, features=width))
    logits = g.linear("fc2", x, features=classes)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g
