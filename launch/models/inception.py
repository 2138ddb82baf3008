"""Inception-v3 (Szegedy et al., 2016), with torchvision's shapes and names.

FlexFlow (Jia et al., 2019) plans it without second classifier and normalisation: `inception:norm=false,dropout=0`.
It does not know how it is cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Tensor

RECIPE = Recipe(data="noise", batch=64, lr=0.045, momentum=0.9, schedule="cosine")
FIRST = 32
LEAST = 75
# modules and the channels by which they differ: those made of the pooled image, those within
LARGE = (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64))
MIDDLE = (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192))
SMALL = ("Mixed_7b", "Mixed_7c")
# what the loss of the second classifier weighs
SECOND = 0.4


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    size: int = 299,
    channels: int = 3,
    width: int = 32,
    blocks: int = 0,
    classes: int = 1000,
    dropout: float = 0.5,
    norm: bool = True,
    aux: bool = False,
) -> Graph:
    """image [b, channels, size, size] -> logits [b, classes]; 23,834,568 parameters as it is, 27,161,264 with `aux`.

    width     channels of the first convolution; all others have as many more or fewer
    blocks    the most modules of each size of image, of 3, 4 and 2; those that shrink it are always there
    dropout   before the classifier, in training only
    norm      batch normalisation after each convolution; without it convolutions have biases
    aux       a second classifier on the images of middle size, whose loss is added to the first's
    """
    if size < LEAST:
        raise ValueError(f"model inception: images should have a size of at least {LEAST}, got {size}")
    if blocks > len(MIDDLE):
        raise ValueError(f"model inception: blocks should be at most {len(MIDDLE)}, got {blocks}")
    g = Graph("inception", dtype)
    b = batch or RECIPE.batch
    image = g.input("image", (b, channels, size, size), "b c h w")
    label = g.input("label", (b,), "b", "int32")
    net = _Net(g, training, width, dropout if training else 0.0, norm)
    x = net.stem(image)
    for name, pooled in LARGE[: blocks or None]:
        x = net.large(name, x, pooled)
    x = net.shrink_large("Mixed_6a", x)
    for name, inner in MIDDLE[: blocks or None]:
        x = net.middle(name, x, inner)
    second = net.second(x, classes) if aux else None
    x = net.shrink_middle("Mixed_7a", x)
    for name in SMALL[: blocks or None]:
        x = net.small(name, x)
    logits = g.linear("fc", net.dropped("dropout", g.global_pool("avgpool", x)), features=classes)
    g.outputs = [logits.name]
    g.minimise(_loss(g, logits, second, label))
    return g


def _loss(g: Graph, logits: Tensor, second: Tensor | None, label: Tensor) -> Tensor:
    if second is None:
        return g.cross_entropy("loss", logits, label)
    added = g.scale("AuxLogits.weighed", g.cross_entropy("AuxLogits.loss", second, label), factor=SECOND)
    return g.add("loss", g.cross_entropy("entropy", logits, label), added)


@dataclass(frozen=True)
class _Net:
    """Modules by the size of the images they work on; those of one size give equally many channels.

    Numbers of channels are the paper's: they are multiplied by `width` over the paper's first number.
    """

    graph: Graph
    training: bool
    width: int
    dropout: float
    norm: bool

    def stem(self, x: Tensor) -> Tensor:
        """What comes before the modules: images shrink to an eighth."""
        x = self._conv("Conv2d_1a_3x3", x, 32, 3, stride=2)
        x = self._conv("Conv2d_2a_3x3", x, 32, 3)
        x = self._conv("Conv2d_2b_3x3", x, 64, 3, padding=1)
        x = self.graph.max_pool2d("maxpool1", x, kernel=3, stride=2)
        x = self._conv("Conv2d_4a_3x3", self._conv("Conv2d_3b_1x1", x, 80, 1), 192, 3)
        return self.graph.max_pool2d("maxpool2", x, kernel=3, stride=2)

    def large(self, name: str, x: Tensor, pooled: int) -> Tensor:
        """35x35: 1x1, 5x5, two 3x3 and pooling beside each other."""
        five = self._conv(f"{name}.branch5x5_1", x, 48, 1)
        three = self._conv(f"{name}.branch3x3dbl_1", x, 64, 1)
        three = self._conv(f"{name}.branch3x3dbl_2", three, 96, 3, padding=1)
        return self._together(
            name,
            self._conv(f"{name}.branch1x1", x, 64, 1),
            self._conv(f"{name}.branch5x5_2", five, 64, 5, padding=2),
            self._conv(f"{name}.branch3x3dbl_3", three, 96, 3, padding=1),
            self._pooled(name, x, pooled),
        )

    def shrink_large(self, name: str, x: Tensor) -> Tensor:
        """35x35 to 17x17."""
        three = self._conv(f"{name}.branch3x3dbl_1", x, 64, 1)
        three = self._conv(f"{name}.branch3x3dbl_2", three, 96, 3, padding=1)
        return self._together(
            name,
            self._conv(f"{name}.branch3x3", x, 384, 3, stride=2),
            self._conv(f"{name}.branch3x3dbl_3", three, 96, 3, stride=2),
            self.graph.max_pool2d(f"{name}.branch_pool", x, kernel=3, stride=2),
        )

    def middle(self, name: str, x: Tensor, inner: int) -> Tensor:
        """17x17: 1x1, 7x7 and two 7x7, each of these as a row and a column, and pooling beside each other."""
        seven = self._lines(f"{name}.branch7x7", x, inner, "rc")
        double = self._lines(f"{name}.branch7x7dbl", x, inner, "crcr")
        return self._together(
            name, self._conv(f"{name}.branch1x1", x, 192, 1), seven, double, self._pooled(name, x, 192)
        )

    def shrink_middle(self, name: str, x: Tensor) -> Tensor:
        """17x17 to 8x8."""
        three = self._conv(f"{name}.branch3x3_1", x, 192, 1)
        seven = self._lines(f"{name}.branch7x7x3", x, 192, "rc")
        return self._together(
            name,
            self._conv(f"{name}.branch3x3_2", three, 320, 3, stride=2),
            self._conv(f"{name}.branch7x7x3_4", seven, 192, 3, stride=2),
            self.graph.max_pool2d(f"{name}.branch_pool", x, kernel=3, stride=2),
        )

    def small(self, name: str, x: Tensor) -> Tensor:
        """8x8: 1x1, 3x3 and two 3x3, the last of each as a row beside a column, and pooling beside each other."""
        three = self._conv(f"{name}.branch3x3_1", x, 384, 1)
        double = self._conv(f"{name}.branch3x3dbl_1", x, 448, 1)
        double = self._conv(f"{name}.branch3x3dbl_2", double, 384, 3, padding=1)
        crossed = [
            self._line(f"{name}.{branch}{part}", of, 384, 3, turn)
            for branch, of in (("branch3x3_2", three), ("branch3x3dbl_3", double))
            for part, turn in (("a", "r"), ("b", "c"))
        ]
        return self._together(name, self._conv(f"{name}.branch1x1", x, 320, 1), *crossed, self._pooled(name, x, 192))

    def second(self, x: Tensor, classes: int) -> Tensor:
        """The second classifier, in evaluation too, for its parameters. Its windows are no larger than its images."""
        x = self.graph.avg_pool2d("AuxLogits.pool", x, kernel=min(5, x.shape[-1]), stride=3)
        x = self._conv("AuxLogits.conv1", self._conv("AuxLogits.conv0", x, 128, 1), 768, min(5, x.shape[-1]))
        return self.graph.linear("AuxLogits.fc", self.graph.global_pool("AuxLogits.avgpool", x), features=classes)

    def dropped(self, name: str, x: Tensor) -> Tensor:
        return self.graph.dropout(name, x, self.dropout) if self.dropout else x

    def _together(self, name: str, *branches: Tensor) -> Tensor:
        return self.graph.concat(name, 1, *branches)

    def _pooled(self, name: str, x: Tensor, channels: int) -> Tensor:
        x = self.graph.avg_pool2d(f"{name}.pool", x, kernel=3, stride=1, padding=1)
        return self._conv(f"{name}.branch_pool", x, channels, 1)

    def _lines(self, name: str, x: Tensor, inner: int, turns: str) -> Tensor:
        """A 1x1 convolution and a row (r) or column (c) of 7 for each turn, the last of which gives 192 channels."""
        x = self._conv(f"{name}_1", x, inner, 1)
        for n, turn in enumerate(turns, 2):
            x = self._line(f"{name}_{n}", x, 192 if n == len(turns) + 1 else inner, 7, turn)
        return x

    def _line(self, name: str, x: Tensor, channels: int, kernel: int, turn: str) -> Tensor:
        long, short = (kernel, kernel // 2), (1, 0)
        (rows, above), (columns, beside) = (short, long) if turn == "r" else (long, short)
        return self._conv(name, x, channels, (rows, columns), padding=(above, beside))

    def _conv(
        self,
        name: str,
        x: Tensor,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> Tensor:
        """Convolution, normalisation if there is any, and rectifier."""
        g, count = self.graph, max(1, channels * self.width // FIRST)
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        # as large as keeps the size of gradients through rectifiers (He et al., 2015)
        scale = sqrt(2 / (count * rows * columns))
        x = g.conv2d(f"{name}.conv", x, count, kernel, stride, padding, bias=not self.norm, scale=scale)
        if self.norm:
            x = g.batch_norm(f"{name}.bn", x, eps=1e-3, training=self.training)
        return g.relu(f"{name}.relu", x)
