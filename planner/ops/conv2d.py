"""Convolution over rows and columns: y[b, o] = sum over i of x[b, i] correlated with w[o, i]; stride, zero padding.

Split rows read the halo that their windows need, whatever the stride; it knows nothing of who holds it. In groups
(Krizhevsky et al., 2012) outputs see some of the inputs only, down to one (depthwise; Chollet, 2017); with dilation a
window leaves gaps between what it sees (Yu and Koltun, 2016).
"""

from __future__ import annotations

from castile.planner.families.convolution import Convolution, check_groups, parameters
from castile.planner.families.windows import pair
from castile.planner.op import Tensor, op


@op("b i H! W!, *o i r! s! -> b o h w", flops_per_point=2)
class Conv2d(Convolution):
    """x [b, i, H, W], w [o, i / g, r, s], optionally bias [o] -> [b, o, h, w]; settings of rows and columns."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    g: int = 1

    @staticmethod
    def layer(
        g,
        name: str,
        x: Tensor,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = True,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        scale: float | None = None,
    ) -> Tensor:
        """Add a convolution with its parameters to graph `g`.

        Weights are uniform in +-1/sqrt(inputs of a window), or normal of standard deviation `scale`.
        """
        check_groups(name, groups, inputs=x.shape[1], channels=channels)
        (r, s), inputs = pair(kernel), x.shape[1] // groups
        shape, axes = (channels, inputs, r, s), ("o", "i", "r", "s")
        params = parameters(g, name, shape, axes, channels, inputs * r * s, bias, scale)
        return g.apply(Conv2d(pair(stride), pair(padding), pair(dilation), groups), name, x, *params)
