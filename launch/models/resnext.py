"""Residual networks whose blocks work in groups (ResNeXt; Xie et al., 2017), with torchvision's shapes and names.

They do not know how they are cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Tensor

RECIPE = Recipe(data="noise", batch=64, lr=0.1, momentum=0.9, schedule="cosine")

# blocks of each stage
STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    depth: int = 50,
    groups: int = 32,
    group_width: int = 4,
    width: int = 64,
    blocks: int = 0,
    size: int = 224,
    channels: int = 3,
    classes: int = 1000,
) -> Graph:
    """image [b, channels, size, size] -> logits [b, classes]; 25,028,904 parameters as it is (50, 32x4d).

    depth         50 or 101
    groups        of the convolution within each block
    group_width   channels of a group in the first stage; later stages have twice as many each
    width         channels of the first convolution; the first stage gives four times as many
    blocks        blocks of each stage, if not those of the depth
    """
    stages = of_depth("resnext", depth, blocks)
    net = Bottlenecks(Graph("resnext", dtype), training, groups * group_width, groups)
    return net.build(batch or RECIPE.batch, (channels, size), width, stages, classes)


def of_depth(model: str, depth: int, blocks: int) -> tuple[int, ...]:
    """The blocks of each stage. Raises ValueError in the words of the model for an unknown depth."""
    if depth not in STAGES:
        raise ValueError(f"model {model}: depth should be one of {', '.join(map(str, STAGES))}, got {depth}")
    return (blocks,) * len(STAGES[depth]) if blocks else STAGES[depth]


@dataclass(frozen=True)
class Bottlenecks:
    """A residual network of bottleneck blocks.

    training   whether batches are normalised by their own statistics
    inner      channels within a block of the first stage; later stages have twice as many each
    groups     of the convolution within a block
    """

    graph: Graph
    training: bool
    inner: int
    groups: int

    def build(self, batch: int, image: tuple[int, int], width: int, stages: tuple[int, ...], classes: int) -> Graph:
        """The graph from images of that many channels and that size to the loss; `width` channels to begin with."""
        g, (channels, size) = self.graph, image
        x = g.input("image", (batch, channels, size, size), "b c h w")
        label = g.input("label", (batch,), "b", "int32")
        x = g.relu("relu", self._normal("conv1", "bn1", x, width, 7, stride=2))
        x = g.max_pool2d("maxpool", x, kernel=3, stride=2, padding=1)
        for stage, count in enumerate(stages):
            for n in range(count):
                x = self._block(f"layer{stage + 1}.{n}", x, stage, 4 * width * 2**stage, 2 if stage and not n else 1)
        logits = g.linear("fc", g.global_pool("avgpool", x), features=classes)
        g.outputs = [logits.name]
        g.minimise(g.cross_entropy("loss", logits, label))
        return g

    def _block(self, name: str, x: Tensor, stage: int, channels: int, stride: int) -> Tensor:
        """x and what a narrow, a grouped and a wide convolution make of it, rectified."""
        g, inner = self.graph, self.inner * 2**stage
        y = g.relu(f"{name}.relu1", self._normal(f"{name}.conv1", f"{name}.bn1", x, inner, 1))
        y = self._normal(f"{name}.conv2", f"{name}.bn2", y, inner, 3, stride, self.groups)
        y = self._normal(f"{name}.conv3", f"{name}.bn3", g.relu(f"{name}.relu2", y), channels, 1)
        if stride > 1 or x.shape[1] != channels:
            x = self._normal(f"{name}.downsample.0", f"{name}.downsample.1", x, channels, 1, stride)
        return g.relu(f"{name}.relu", g.add(f"{name}.add", y, x))

    def _normal(
        self, conv: str, norm: str, x: Tensor, channels: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> Tensor:
        # as large as keeps the size of gradients through rectifiers (He et al., 2015)
        scale = sqrt(2 / (channels * kernel * kernel))
        y = self.graph.conv2d(
            conv, x, channels, kernel, stride, padding=kernel // 2, bias=False, groups=groups, scale=scale
        )
        return self.graph.batch_norm(norm, y, training=self.training)
