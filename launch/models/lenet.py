"""LeNet-5 (LeCun et al., 1998) as it is usually built today: rectifiers, maxima in place of its trained averages, and
all of the first maps joined with all of the second.

It does not know how it is cut or trained.
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.planner.graph import Graph

RECIPE = Recipe(data="idx", batch=64, lr=0.02, momentum=0.9, epochs=5, schedule="cosine")


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    size: int = 28,
    channels: int = 1,
    classes: int = 10,
) -> Graph:
    """image [b, channels, size, size] -> logits [b, classes]; 61,706 parameters as it is."""
    if size < 12:
        raise ValueError(f"model lenet: images should have a size of at least 12, got {size}")
    g = Graph("lenet", dtype)
    b = batch or RECIPE.batch
    image = g.input("image", (b, channels, size, size), "b c h w")
    label = g.input("label", (b,), "b", "int32")
    # images of 28x28 are those of 32x32 of the paper without their margins
    x = g.relu("relu1", g.conv2d("conv1", image, channels=6, kernel=5, padding=2))
    x = g.relu("relu2", g.conv2d("conv2", g.max_pool2d("pool1", x, kernel=2), channels=16, kernel=5))
    x = g.reshape("flat", g.max_pool2d("pool2", x, kernel=2), "b c h w -> b (c h w)")
    x = g.relu("relu3", g.linear("fc1", x, features=120))
    x = g.relu("relu4", g.linear("fc2", x, features=84))
    logits = g.linear("fc3", x, features=classes)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g
