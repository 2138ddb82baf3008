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
    """A network: blocks of each stage, channels of the first, bottleneck blocks or not, and the usual images."""

    blocks: tuple[int, ...]
    width: int
    bottleneck: bool
    size: int
    channels: int
    classes: int


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
    first, side = width or form.width, size or form.size
    times, kernels = (4, (1, 3, 1)) if form.bottleneck else (1, (3, 3))
    net = Residual(stages, first, first, times * first, kernels)
    image = batch or RECIPE.batch, channels or form.channels, side, side
    return net.build(Graph("resnet", dtype), training, image, classes or form.classes)


@dataclass(frozen=True)
class Residual:
    """A residual network, whose every stage has twice as many channels as the one before and halves the images.

    stages    how many blocks each stage has; a network of four begins with a 7x7 convolution and pooling, by which
              images shrink to a quarter
    stem      channels that come before the stages
    inner     channels within a block of the first stage
    channels  channels that it gives
    kernels   of a block's convolutions; those of 3x3 have `groups`
    """

    stages: tuple[int, ...]
    stem: int
    inner: int
    channels: int
    kernels: tuple[int, ...]
    groups: int = 1

    def build(self, g: Graph, training: bool, shape: tuple[int, int, int, int], classes: int) -> Graph:
        """The graph from images of a shape [b, channels, height, width] to the loss."""
        image = g.input("image", shape, "b c h w")
        label = g.input("label", shape[:1], "b", "int32")
        if len(self.stages) == 4:
            x = _rectified(g, training, "conv1", "bn1", image, self.stem, 7, stride=2)
            x = g.max_pool2d("maxpool", x, kernel=3, stride=2, padding=1)
        else:
            x = _rectified(g, training, "conv1", "bn1", image, self.stem, 3)
        for stage, count in enumerate(self.stages):
            for n in range(count):
                x = self._block(g, training, f"layer{stage + 1}.{n}", x, stage, stride=2 if stage and not n else 1)
        logits = g.linear("fc", g.global_pool("avgpool", x), features=classes)
        g.outputs = [logits.name]
        g.minimise(g.cross_entropy("loss", logits, label))
        return g

    def _block(self, g: Graph, training: bool, name: str, x: Tensor, stage: int, stride: int) -> Tensor:
        """x and what convolutions make of it, rectified."""
        inner, channels = self.inner * 2**stage, self.channels * 2**stage
        # it is the first 3x3 convolution that shrinks images
        at, y = self.kernels.index(3), x
        for n, kernel in enumerate(self.kernels):
            step, groups = stride if n == at else 1, self.groups if kernel == 3 else 1
            conv, norm, is_last = f"{name}.conv{n + 1}", f"{name}.bn{n + 1}", n == len(self.kernels) - 1
            layer = _normal if is_last else _rectified
            y = layer(g, training, conv, norm, y, channels if is_last else inner, kernel, step, groups)
        if stride > 1 or x.shape[1] != channels:
            x = _normal(g, training, f"{name}.downsample.0", f"{name}.downsample.1", x, channels, 1, stride)
        return g.relu(f"{name}.relu", g.add(f"{name}.add", y, x))


def _rectified(
    g: Graph, training: bool, conv: str, norm: str, x: Tensor, channels: int, kernel: int,
    stride: int = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    return g.relu(f"{norm}.relu", _normal(g, training, conv, norm, x, channels, kernel, stride, groups))


def _normal(
    g: Graph, training: bool, conv: str, norm: str, x: Tensor, channels: int, kernel: int,
    stride: int = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    # as large as keeps the size of gradients through rectifiers (He et al., 2015)
    scale = sqrt(2 / (channels * kernel * kernel))
    y = g.conv2d(conv, x, channels, kernel, stride, padding=kernel // 2, bias=False, groups=groups, scale=scale)
    return g.batch_norm(norm, y, training=training)
