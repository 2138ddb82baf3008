"""VGG networks (Simonyan and Zisserman, 2015) without normalisation, with torchvision's shapes and names.

They do not know how they are cut or trained.
"""

from __future__ import annotations

from math import sqrt

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Tensor

RECIPE = Recipe(data="noise", batch=64, lr=0.01, momentum=0.9)

# convolutions of each stage; channels of each over the first's
STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
TIMES = (1, 2, 4, 8, 8)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    depth: int = 16,
    size: int = 224,
    channels: int = 3,
    width: int = 64,
    hidden: int = 4096,
    classes: int = 1000,
    dropout: float = 0.5,
) -> Graph:
    """image [b, channels, size, size] -> logits [b, classes]; 138,357,544 parameters as it is.

    depth     layers with weights: 11, 13, 16 or 19
    width     channels of the first stage; the others have 2, 4, 8 and 8 times as many
    hidden    features of the two hidden dense layers
    dropout   after these, in training only
    Images of another size than 224 or so change the number of features that the first dense layer takes in.
    """
    if depth not in STAGES:
        raise ValueError(f"model vgg: depth should be one of {', '.join(map(str, STAGES))}, got {depth}")
    if size < 32:
        raise ValueError(f"model vgg: images should have a size of at least 32, got {size}")
    g = Graph("vgg", dtype)
    b = batch or RECIPE.batch
    image = g.input("image", (b, channels, size, size), "b c h w")
    label = g.input("label", (b,), "b", "int32")
    x = g.reshape("flatten", _features(g, image, STAGES[depth], width), "b c h w -> b (c h w)")
    for n in (0, 3):
        # torchvision counts dense layer, rectifier and dropout as a layer each
        x = g.relu(f"classifier.{n + 1}", g.linear(f"classifier.{n}", x, features=hidden))
        if training and dropout:
            x = g.dropout(f"classifier.{n + 2}", x, dropout)
    logits = g.linear("classifier.6", x, features=classes)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g


def _features(g: Graph, x: Tensor, stages: tuple[int, ...], width: int) -> Tensor:
    layer = 0
    for count, times in zip(stages, TIMES, strict=True):
        for _ in range(count):
            # as large as keeps the size of gradients through rectifiers (He et al., 2015)
            scale = sqrt(2 / (times * width * 9))
            x = g.conv2d(f"features.{layer}", x, times * width, kernel=3, padding=1, scale=scale)
            x = g.relu(f"features.{layer + 1}", x)
            layer += 2
        x = g.max_pool2d(f"features.{layer}", x, kernel=2)
        layer += 1
    return x
