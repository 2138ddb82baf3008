"""Residual networks (He et al., 2016) with batch normalisation, of torchvision's shapes and names, and a small one.

They do not know how they are cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Tensor

RECIPE = Recipe(data="idx", batch=128, lr=0.1, momentum=0.9, epochs=5, schedule="cosine")


@dataclass(frozen=True)
class Form:
    """A network: blocks of each stage, channels of the first, bottleneck blocks or not, and the usual images.

    A deep network begins with a 7x7 convolution and pooling, by which images shrink to a quarter.
    """

    blocks: tuple[int, ...]
    width: int
    bottleneck: bool
    size: int
    channels: int
    classes: int

    @property
    def deep(self) -> bool:
        return len(self.blocks) == 4


FORMS = {
    "18": Form((2, 2, 2, 2), 64, False, 224, 3, 1000),
    "34": Form((3, 4, 6, 3), 64, False, 224, 3, 1000),
    "50": Form((3, 4, 6, 3), 64, True, 224, 3, 1000),
    "101": Form((3, 4, 23, 3), 64, True, 224, 3, 1000),
    "small": Form((1, 1, 1), 16, False, 28, 1, 10),
}


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    depth: str = "small",
    width: int = 0,
    blocks: int = 0,
    size: int = 0,
    channels: int = 0,
    classes: int = 0,
) -> Graph:
    """image [b, channels, size, size] -> logits [b, classes].

    depth    18, 34, 50 or 101, by default for 224x224 images of 3 channels and 1000 classes; or small: three stages, by
             default for 28x28 images of one channel and 10 classes
    width    channels of the first stage, if not 64, or 16 of the small network; later stages have twice as many each
    blocks   blocks of each stage, if not those of the depth
    """
    if depth not in FORMS:
        raise ValueError(f"model resnet: depth should be one of {', '.join(FORMS)}, got {depth!r}")
    form = FORMS[depth]
    stages = (blocks,) * len(form.blocks) if blocks else form.blocks
    g = Graph("resnet", dtype)
    b, side = batch or RECIPE.batch, size or form.size
    image = g.input("image", (b, channels or form.channels, side, side), "b c h w")
    label = g.input("label", (b,), "b", "int32")
    net = _Net(g, training, form.bottleneck)
    x = net.stem(image, width or form.width, form.deep)
    for stage, count in enumerate(stages):
        for n in range(count):
            inner = (width or form.width) * 2**stage
            x = net.block(f"layer{stage + 1}.{n}", x, inner, stride=2 if stage and not n else 1)
    logits = g.linear("fc", g.global_pool("avgpool", x), features=classes or form.classes)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g


@dataclass(frozen=True)
class _Net:
    graph: Graph
    training: bool
    bottleneck: bool

    def stem(self, image: Tensor, channels: int, deep: bool) -> Tensor:
        """What comes before the stages."""
        if not deep:
            return self._rectified("conv1", "bn1", image, channels, 3)
        x = self._rectified("conv1", "bn1", image, channels, 7, stride=2)
        return self.graph.max_pool2d("maxpool", x, kernel=3, stride=2, padding=1)

    def block(self, name: str, x: Tensor, inner: int, stride: int) -> Tensor:
        """x and what convolutions make of it, rectified; a bottleneck gives four times its inner channels."""
        channels = inner * (4 if self.bottleneck else 1)
        kernels = (1, 3, 1) if self.bottleneck else (3, 3)
        y = x
        for n, kernel in enumerate(kernels, 1):
            # where images shrink it is the first 3x3 convolution that shrinks them
            step = stride if kernel == 3 and kernels.index(3) == n - 1 else 1
            conv, norm = f"{name}.conv{n}", f"{name}.bn{n}"
            if n < len(kernels):
                y = self._rectified(conv, norm, y, inner, kernel, step)
            else:
                y = self._normal(conv, norm, y, channels, kernel, step)
        if stride > 1 or x.shape[1] != channels:
            x = self._normal(f"{name}.downsample.0", f"{name}.downsample.1", x, channels, 1, stride)
        return self.graph.relu(f"{name}.relu", self.graph.add(f"{name}.add", y, x))

    def _rectified(self, conv: str, norm: str, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
        return self.graph.relu(f"{norm}.relu", self._normal(conv, norm, x, channels, kernel, stride))

    def _normal(self, conv: str, norm: str, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
        # as large as keeps the size of gradients through rectifiers (He et al., 2015)
        scale = sqrt(2 / (channels * kernel * kernel))
        y = self.graph.conv2d(
            conv, x, channels, kernel, stride, padding=kernel // 2, bias=False, scale=scale
        )  # fmt: skip
        return self.graph.batch_norm(norm, y, training=self.training)
