"""Residual networks whose blocks work in groups (ResNeXt; Xie et al., 2017), with torchvision's shapes and names.

They do not know how they are cut or trained.
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.launch.models.resnet import Residual
from castile.planner.graph import Graph

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
    net = bottlenecks("resnext", depth, blocks, width, groups * group_width, groups)
    return net.build(Graph("resnext", dtype), training, (batch or RECIPE.batch, channels, size, size), classes)


def bottlenecks(model: str, depth: int, blocks: int, width: int, inner: int, groups: int = 1) -> Residual:
    """Bottleneck blocks with `inner` channels in the first stage. Raises ValueError, naming the model, for a depth."""
    if depth not in STAGES:
        raise ValueError(f"model {model}: depth should be one of {', '.join(map(str, STAGES))}, got {depth}")
    stages = (blocks,) * len(STAGES[depth]) if blocks else STAGES[depth]
    return Residual(stages, width, inner, 4 * width, (1, 3, 1), groups)
