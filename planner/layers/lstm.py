"""Long short-term memory over a sequence: one product for the input of all positions, then a cell a position.

It does not know what makes the sequence or what is made of it.
"""

from __future__ import annotations

from castile.planner.families.recurrent import shares_of, together
from castile.planner.graph import Graph
from castile.planner.op import Tensor

State = tuple[Tensor, Tensor]


def layer(g: Graph, name: str, x: Tensor, width: int, state: State | None = None) -> tuple[Tensor, State]:
    """Add an LSTM of `width` hidden units to graph `g`: x [b, s, i] -> hidden units of all steps [b, s, h], last state.

    state   hidden units and cell [b, 1, h] before the first step; zeros by default
    All steps share `name.input` [4, h, i], `name.weight` [4, h, h] and `name.bias` [4, h], which are PyTorch's
    weight_ih and weight_hh as [4h, i] and [4h, h], and the sum of bias_ih and bias_hh. Steps are named `name.1`, ...
    """
    shares = shares_of(g, name, x, 4, width)
    steps = []
    for position in range(x.shape[1]):
        step = f"{name}.{position + 1}"
        hidden = g.lstm_cell(step, shares, position, name, state)
        state = hidden, g.tensors[f"{step}:cell"]
        steps.append(hidden)
    assert state is not None
    return together(g, name, steps), state
