"""One step of long short-term memory (Hochreiter and Schmidhuber, 1997; Gers et al., 2000), its gates in one node.

The input's share of the gates is one product over all positions, made before; a step reads the position that is its
own. The gates are an axis apart from the units, so hidden units may be cut: a part reads the whole state before and its
own units of all else. It does not know what comes before or after the step.
"""

from __future__ import annotations

from castile.planner.families.recurrent import Cell, cell_operands
from castile.planner.op import Tensor, op


@op(
    "b s! g! h, *g! h, b t i!, b t h, *g! h i! -> b t h, b t h, b t g h",
    flops_per_point=2,
    results=("", "cell", "gates"),
    flows=2,
)
class LstmCell(Cell):
    """x [b, s, 4, h], bias [4, h], state [b, 1, i], cell [b, 1, h], w [4, h, i] -> state, cell, gates [b, 1, 4, h].

    x, its part of the gates at all positions, is read at `position`; i is h, in whole. The gates are PyTorch's: input,
    forget, candidate, output; its weight_hh is w as [4h, i] and its two biases add up to one. Without state, cell and
    w both begin as zeros.
    """

    first = "b s! g! h, *g! h -> b t h, b t h, b t g h"
    position: int = 0

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        return {"t": 1}

    def forward(self, k, x, bias, h=None, c=None, w=None):
        if h is None:
            c = k.zero(shape=(x.shape[0], 1, x.shape[3]), dtype=x.dtype)
            return k.lstm_cell(x, bias, k.zero(shape=x.shape, dtype=x.dtype), c)
        return k.lstm_cell(x, bias, k.contract("bti,ghi->btgh", h, w), c)

    def grad_inputs(self, k, dy, x, bias, h=None, c=None, w=None, *, y):
        dx, dc = self._pulled(k, dy, y, c)
        return (dx,) if h is None else (dx, k.contract("btgh,ghi->bti", dx, w), dc)

    def grad_params(self, k, dy, x, bias, h=None, c=None, w=None, *, y):
        dx, _ = self._pulled(k, dy, y, c)
        shift = k.sum_over(dx, dims=(0, 1))
        return (shift,) if h is None else (shift, k.contract("btgh,bti->ghi", dx, h))

    def _pulled(self, k, dy, y, c):
        before = k.zero(shape=y[1].shape, dtype=y[1].dtype) if c is None else c
        return k.lstm_cell_grad(*dy, y[2], before, y[1])

    @staticmethod
    def layer(
        g, name: str, x: Tensor, position: int, weights: str, state: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Add a step to graph `g` that shares `weights`, the name of its parameters, with other steps.

        x [b, s, 4, h]; state: the hidden units and the cell [b, 1, h] of the step before, zeros for none. The new cell
        is the tensor `name:cell`.
        """
        return g.apply(LstmCell(position), name, x, *cell_operands(g, weights, x, ("bias",), state))
