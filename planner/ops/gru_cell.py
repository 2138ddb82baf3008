"""One step of a gated recurrent unit (Cho et al., 2014), its gates in one node.

As in the LSTM's cell the input's share of the gates is made for all positions before, a step reads its own, and hidden
units may be cut. It does not know what comes before or after the step.
"""

from __future__ import annotations

from castile.planner.families.recurrent import Cell, cell_operands
from castile.planner.op import Tensor, op


@op(
    "b s! g! h, *g! h, *g! h, b t i!, b t h, *g! h i! -> b t h, b t q! h",
    flops_per_point=2,
    results=("", "gates"),
)
class GruCell(Cell):
    """x [b, s, 3, h], two biases [3, h], state [b, 1, i], again [b, 1, h], w [3, h, i] -> state, gates [b, 1, 4, h].

    x, its part of the gates at all positions, is read at `position`; i is h, in whole, so the state is given twice: for
    the product and for its own units. The gates are PyTorch's: reset, update, candidate; its weight_hh is w as
    [3h, i], and its bias_ih and bias_hh are the biases as [3h]. Without state and w the state begins as zeros.
    """

    first = "b s! g! h, *g! h, *g! h -> b t h, b t q! h"
    position: int = 0

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        return {"t": 1, "q": 4}

    def forward(self, k, x, bias_x, bias_r, whole=None, h=None, w=None):
        r = k.zero(shape=x.shape, dtype=x.dtype) if whole is None else k.contract("bti,ghi->btgh", whole, w)
        return k.gru_cell(x, bias_x, r, bias_r, _before(k, x, h))

    def grad_inputs(self, k, dy, x, bias_x, bias_r, whole=None, h=None, w=None, *, y):
        dx, dr, dh = k.gru_cell_grad(dy, y[1], _before(k, x, h))
        return (dx,) if h is None else (dx, k.contract("btgh,ghi->bti", dr, w), dh)

    def grad_params(self, k, dy, x, bias_x, bias_r, whole=None, h=None, w=None, *, y):
        dx, dr, _ = k.gru_cell_grad(dy, y[1], _before(k, x, h))
        biases = tuple(k.sum_over(one, dims=(0, 1)) for one in (dx, dr))
        return biases if h is None else (*biases, k.contract("btgh,bti->ghi", dr, whole))

    @staticmethod
    def layer(g, name: str, x: Tensor, position: int, weights: str, state: Tensor | None = None) -> Tensor:
        """Add a step to graph `g` that shares `weights`, the name of its parameters, with other steps.

        x [b, s, 3, h]; state [b, 1, h] of the step before, zeros for none.
        """
        biases = ("input_bias", "bias")
        states = None if state is None else (state, state)
        return g.apply(GruCell(position), name, x, *cell_operands(g, weights, x, biases, states))


def _before(k, x, h):
    return k.zero(shape=(x.shape[0], 1, x.shape[3]), dtype=x.dtype) if h is None else h
