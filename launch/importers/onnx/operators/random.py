"""What is left out at random: random numbers, compared with how many are to be left, and divided by that.

So PyTorch writes dropout of whole channels, and of whole blocks for some samples. Else no random numbers are taken: no
file says what there should be in evaluation.
"""

from __future__ import annotations

from math import isclose

import numpy as np

from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.values import Drawn, Known, Left, Unsupported, known
from castile.planner.op import Tensor


@handles("RandomUniformLike")
def uniform(c: Call) -> Drawn:
    c.get("seed"), c.get("dtype")
    return Drawn(c.shape(0), c.get("low", 0.0), c.get("high", 1.0))


def below(c: Call, drawn: Drawn, than: float) -> Left:
    """Whether random numbers are less than one."""
    return Left(drawn.shape, (than - drawn.low) / (drawn.high - drawn.low))


def shared(c: Call, left: Left) -> Tensor | Known:
    """What is left, divided by its share: dropout of ones."""
    by = c.scalar(1)
    if by is None or not 0 < left.share <= 1 or not isclose(by, left.share, rel_tol=1e-6):
        raise Unsupported(left.refusal)
    ones = known(f"{c.name}.ones", np.ones(left.shape, np.float32))
    if not c.net.training or left.share == 1:
        return ones
    return c.g.dropout(c.name, c.net.operand(ones), rate=1 - by)
