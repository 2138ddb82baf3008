"""A multilayer perceptron on small grey images.

It does not know how it is cut or trained.
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.planner.graph import Graph

RECIPE = Recipe(data="digits", batch=64, lr=0.1, momentum=0.9, epochs=20)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    layers: int = 2,
    width: int = 128,
    size: int = 8,
    classes: int = 10,
) -> Graph:
    """image [b, 1, size, size] -> `layers` hidden layers of `width` with rectifiers -> logits [b, classes]."""
    g = Graph("mlp", dtype)
    b = batch or RECIPE.batch
    image = g.input("image", (b, 1, size, size), "b c h w")
    label = g.input("label", (b,), "b", "int32")
    x = g.reshape("flat", image, "b c h w -> b (c h w)")
    for n in range(layers):
        x = g.relu(f"relu{n + 1}", g.linear(f"fc{n + 1}", x, features=width))
    logits = g.linear("head", x, features=classes)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g
