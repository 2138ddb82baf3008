"""Gated recurrent units over a sequence: one product for the input of all positions, then a cell a position.

It does not know what makes the sequence or what is made of it.
"""

from __future__ import annotations

from castile.planner.families.recurrent import shares_of, together
from castile.planner.graph import Graph
from castile.planner.op import Tensor


def layer(g: Graph, name: str, x: Tensor, width: int, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Add gated recurrent units to graph `g`: x [b, s, i] -> hidden units of all steps [b, s, h], the last [b, 1, h].

    state   hidden units [b, 1, h] before the first step; zeros by default
    Parameters are `name.input` [3, h, i], `name.input_bias` [3, h], `name.weight` [3, h, h] and `name.bias` [3, h]:
    PyTorch's weight_ih, bias_ih, weight_hh and bias_hh.
    """
    shares = shares_of(g, name, x, 3, width)
    steps = []
    for position in range(x.shape[1]):
        state = g.gru_cell(f"{name}.{position + 1}", shares, position, name, state)
        steps.append(state)
    assert state is not None
    return together(g, name, steps), state
