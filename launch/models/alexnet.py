"""AlexNet (Krizhevsky et al., 2012) in one tower (Krizhevsky, 2014), with torchvision's shapes and names.

Local response normalisation, which the first paper has, is left out as it is there. FlexFlow (Jia et al., 2019) plans
the same layers without dropout: `alexnet:dropout=0`, and in its later examples on images of 229x229.
It does not know how it is cut or trained.
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Tensor

RECIPE = Recipe(data="noise", batch=256, lr=0.01, momentum=0.9)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    size: int = 224,
    channels: int = 3,
    width: int = 64,
    hidden: int = 4096,
    classes: int = 1000,
    dropout: float = 0.5,
) -> Graph:
    """image [b, channels, size, size] -> logits [b, classes]; 61,100,840 parameters as it is.

    width     channels of the first convolution; the others have 3, 6, 4 and 4 times as many
    hidden    features of the two hidden dense layers
    dropout   before these, in training only
    Images of another size than 224 or so change the number of features that the first dense layer takes in.
    """
    if size < 63:
        raise ValueError(f"model alexnet: images should have a size of at least 63, got {size}")
    g = Graph("alexnet", dtype)
    b = batch or RECIPE.batch
    image = g.input("image", (b, channels, size, size), "b c h w")
    label = g.input("label", (b,), "b", "int32")
    x = g.reshape("flatten", _features(g, image, width), "b c h w -> b (c h w)")
    for n in (1, 4):
        # torchvision counts dropout, dense layer and rectifier as a layer each
        if training and dropout:
            x = g.dropout(f"classifier.{n - 1}", x, dropout)
        x = g.relu(f"classifier.{n + 1}", g.linear(f"classifier.{n}", x, features=hidden))
    logits = g.linear("classifier.6", x, features=classes)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g


def _features(g: Graph, image: Tensor, width: int) -> Tensor:
    x = g.relu("features.1", g.conv2d("features.0", image, channels=width, kernel=11, stride=4, padding=2))
    x = g.max_pool2d("features.2", x, kernel=3, stride=2)
    x = g.relu("features.4", g.conv2d("features.3", x, channels=3 * width, kernel=5, padding=2))
    x = g.max_pool2d("features.5", x, kernel=3, stride=2)
    for n, times in ((6, 6), (8, 4), (10, 4)):
        x = g.relu(f"features.{n + 1}", g.conv2d(f"features.{n}", x, channels=times * width, kernel=3, padding=1))
    return g.max_pool2d("features.12", x, kernel=3, stride=2)
