"""The tumour response model CANDLE-Uno (Xia et al., 2018; CANDLE, Wozniak et al., 2018): how a cell line grows under a
pair of drugs, from the doses, the cell's gene expression and two descriptions of each drug.

Sizes are those of FlexFlow's code, which Unity's evaluation (Unger et al., 2022) runs: each description has an encoder
of its own, without biases. It does not know how it is cut or trained.
"""

from __future__ import annotations

from math import sqrt

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Tensor

RECIPE = Recipe(data="growth", batch=256, lr=1e-4, epochs=4, optimizer="adam", schedule="cosine:warmup=50")


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    width: int = 4192,
    encoders: int = 8,
    layers: int = 4,
    cell: int = 942,
    descriptors: int = 5270,
    fingerprints: int = 2048,
) -> Graph:
    """doses [b, 1] and descriptions of cell and drugs [b, their features] -> growth [b, 1], a number.

    width          features of every hidden layer
    encoders       how many layers encode each description
    layers         how many layers follow on all together
    cell           features of a cell
    descriptors    features of a drug's description by numbers of its molecule
    fingerprints   features of a drug's description by parts of its molecule
    """
    g = Graph("candle_uno", dtype)
    b = batch or RECIPE.batch
    drug = {"descriptors": descriptors, "fingerprints": fingerprints}
    features = {"cell.rnaseq": cell, **{f"drug{n}.{kind}": size for n in (1, 2) for kind, size in drug.items()}}
    doses = [g.input(f"dose{n}", (b, 1), "b i") for n in (1, 2)]
    given = {name: g.input(name, (b, size), "b i") for name, size in features.items()}
    growth = g.input("growth", (b, 1), "b o")
    encoded = [_network(g, f"{name}.encoder", x, encoders, width) for name, x in given.items()]
    x = _network(g, "layer", g.concat("together", 1, *doses, *encoded), layers, width)
    # begins near zero, in the middle of what it may say
    found = g.linear("head", x, features=1, bias=False, scale=0.1 / sqrt(x.shape[-1]))
    g.outputs = [found.name]
    g.minimise(g.mse("loss", found, growth))
    return g


def _network(g: Graph, name: str, x: Tensor, layers: int, width: int) -> Tensor:
    for n in range(1, layers + 1):
        # as large as keeps the size of what passes through rectifiers (He et al., 2015)
        x = g.linear(f"{name}{n}", x, features=width, bias=False, scale=sqrt(2 / x.shape[-1]))
        x = g.relu(f"{name}{n}.relu", x)
    return x
