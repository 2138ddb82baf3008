"""The click model XDL of Unity's evaluation (Unger et al., 2022; XDL itself is Jiang et al., 2019): a table of vectors
for each category, side by side into a network without biases.

Sizes are those of FlexFlow's code, where the last layer has two outputs; here it has one, the logit of a click. It does
not know how it is cut or trained.
"""

from __future__ import annotations

from math import sqrt

from castile.launch.models import Recipe
from castile.launch.models.dlrm import widths
from castile.planner.graph import Graph

RECIPE = Recipe(data="clicks", batch=1024, lr=2e-3, epochs=4, optimizer="adam", schedule="cosine:warmup=50")


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    sizes: str = "1000000+1000000+1000000+1000000",
    features: int = 64,
    top: str = "256+256",
) -> Graph:
    """categories [b, m] (integers) -> logits [b, 1] of label [b, 1], 0 or 1.

    sizes      how many values each category has, joined by +; in training those of the data set unless given
    features   the width of the vectors
    top        widths of the hidden layers, joined by +
    """
    tables = widths("model xdl: sizes", sizes)
    if len(tables) < 2:
        raise ValueError(f"model xdl: sizes should name two categories or more, got {sizes!r}")
    g = Graph("xdl", dtype)
    b = batch or RECIPE.batch
    categories = g.input("categories", (b, len(tables)), "b m", "int32")
    label = g.input("label", (b, 1), "b o")
    vectors = []
    for n, rows in enumerate(tables, 1):
        ids = g.slice(f"table{n}.ids", categories, 1, n - 1, n)
        vectors.append(g.embedding_bag(f"table{n}", ids, rows=rows, features=features, scale=1 / sqrt(3 * rows)))
    x = g.concat("vectors", 1, *vectors)
    for n, width in enumerate(widths("model xdl: top", top), 1):
        # as large as its inputs and its gradients both allow (Glorot and Bengio, 2010)
        x = g.linear(f"top{n}", x, features=width, bias=False, scale=sqrt(2 / (x.shape[-1] + width)))
        x = g.relu(f"top{n}.relu", x)
    logits = g.linear("head", x, features=1, bias=False, scale=sqrt(2 / (x.shape[-1] + 1)))
    g.outputs = [logits.name]
    g.minimise(g.bce("loss", logits, label))
    return g
