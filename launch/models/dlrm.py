"""A recommendation model of categories and numbers (DLRM; Naumov et al., 2019): a table of vectors for each category, a
network that makes one of the numbers, the products of all pairs of vectors, and a network on top.

It does not know how it is cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Tensor

RECIPE = Recipe(data="clicks", batch=256, lr=2e-3, epochs=4, optimizer="adam", schedule="cosine:warmup=50")


@dataclass(frozen=True)
class Form:
    """A size: what settings are where the user leaves them open."""

    sizes: str
    numbers: int
    features: int
    bottom: str
    top: str


FORMS = {
    "small": Form("1000+200+50+12+7", 4, 16, "64", "64+32"),
    # Criteo's terabyte of clicks as MLPerf trains on it, with tables of at most 40 million rows
    "terabyte": Form(
        "39884406+39043+17289+7420+20263+3+7120+1543+63+38532951+2953546+403346+10+2208+11938+155+4+976+14+39979771"
        "+25641295+39664984+585935+12972+108+36",
        13, 128, "512+256", "1024+1024+512+256",
    ),
}  # fmt: skip


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    size: str = "small",
    sizes: str = "",
    numbers: int = 0,
    features: int = 0,
    bottom: str = "",
    top: str = "",
) -> Graph:
    """categories [b, m] (integers), numbers [b, n] -> logits [b, 1] of label [b, 1], 0 or 1.

    size          small (sizes 1000+200+50+12+7, 4 numbers, 16 features, bottom 64, top 64+32) or terabyte, MLPerf's;
                  it says what the others are unless they are given
    sizes         how many values each category has, joined by +; in training those of the data set unless given
    numbers       how many columns of numbers there are; likewise
    features      the width of the vectors
    bottom        widths of the hidden layers below the products, joined by +
    top           widths of the hidden layers above the products, joined by +
    """
    if size not in FORMS:
        raise ValueError(f"model dlrm: size should be one of {', '.join(FORMS)}, got {size!r}")
    form = FORMS[size]
    tables = widths("model dlrm: sizes", sizes or form.sizes)
    numbers, features = numbers or form.numbers, features or form.features
    g = Graph("dlrm", dtype)
    b = batch or RECIPE.batch
    categories = g.input("categories", (b, len(tables)), "b m", "int32")
    figures = g.input("numbers", (b, numbers), "b i")
    label = g.input("label", (b, 1), "b o")
    dense = _network(g, "bottom", figures, [*widths("model dlrm: bottom", bottom or form.bottom), features])
    vectors = [g.reshape("bottom.vector", dense, "b (f d) -> b f d", f=1)]
    for n, rows in enumerate(tables, 1):
        ids = g.slice(f"table{n}.ids", categories, 1, n - 1, n)
        vectors.append(g.embedding(f"table{n}", ids, rows=rows, features=features, scale=1 / sqrt(3 * rows)))
    pairs = g.pair_dots("pairs", g.concat("vectors", 1, *vectors))
    x = _network(g, "top", g.concat("together", 1, dense, pairs), widths("model dlrm: top", top or form.top))
    logits = _linear(g, "head", x, 1)
    g.outputs = [logits.name]
    g.minimise(g.bce("loss", logits, label))
    return g


def widths(who: str, text: str) -> list[int]:
    """The numbers of a text such as 64+32. Raises ValueError in the words of `who` where it is none."""
    found = [int(word) if word.isdecimal() else 0 for word in text.split("+")]
    if min(found) < 1:
        raise ValueError(f"{who} should be numbers from 1 on joined by +, such as 64+32, got {text!r}")
    return found


def _network(g: Graph, name: str, x: Tensor, sizes: list[int]) -> Tensor:
    for n, width in enumerate(sizes, 1):
        x = g.relu(f"{name}{n}.relu", _linear(g, f"{name}{n}", x, width))
    return x


def _linear(g: Graph, name: str, x: Tensor, width: int) -> Tensor:
    # as large as its inputs and its gradients both allow (Glorot and Bengio, 2010)
    return g.linear(name, x, features=width, scale=sqrt(2 / (x.shape[-1] + width)))
