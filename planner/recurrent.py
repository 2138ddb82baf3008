"""Recurrent layers unrolled over a sequence: one product for the input of all positions, then a cell a position.

They do not know what makes the sequence or what is made of it.
"""

from __future__ import annotations

from math import sqrt

from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor

State = tuple[Tensor, Tensor]


def lstm(g: Graph, name: str, x: Tensor, width: int, state: State | None = None) -> tuple[Tensor, State]:
    """Add an LSTM of `width` hidden units to graph `g`: x [b, s, i] -> hidden units of all steps [b, s, h], last state.

    state   hidden units and cell [b, 1, h] before the first step; zeros by default
    All steps share `name.input` [4, h, i], `name.weight` [4, h, h] and `name.bias` [4, h], which are PyTorch's
    weight_ih and weight_hh as [4h, i] and [4h, h], and the sum of bias_ih and bias_hh. Steps are named `name.1`, ...
    """
    shares = _shares(g, name, x, 4, width)
    steps = []
    for position in range(x.shape[1]):
        step = f"{name}.{position + 1}"
        hidden = g.lstm_cell(step, shares, position, name, state)
        state = hidden, g.tensors[f"{step}:cell"]
        steps.append(hidden)
    assert state is not None
    return _together(g, name, steps), state


def gru(g: Graph, name: str, x: Tensor, width: int, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `lstm`, of gated recurrent units, whose state is their hidden units [b, 1, h].

    Parameters are `name.input` [3, h, i], `name.input_bias` [3, h], `name.weight` [3, h, h] and `name.bias` [3, h]:
    PyTorch's weight_ih, bias_ih, weight_hh and bias_hh.
    """
    shares = _shares(g, name, x, 3, width)
    steps = []
    for position in range(x.shape[1]):
        state = g.gru_cell(f"{name}.{position + 1}", shares, position, name, state)
        steps.append(state)
    assert state is not None
    return _together(g, name, steps), state


def _shares(g: Graph, name: str, x: Tensor, gates: int, width: int) -> Tensor:
    """The input's share of the gates at all positions, [b, s, gates, h]."""
    init = Init("uniform", 1 / sqrt(width))
    weight = g.param(f"{name}.input", (gates, width, x.shape[2]), ("g", "h", "i"), init)
    return g.contract(f"{name}.gates", "b s i, g h i -> b s g h", x, weight)


def _together(g: Graph, name: str, steps: list[Tensor]) -> Tensor:
    """The hidden units of steps as one sequence [b, s, h]."""
    return g.concat(f"{name}.states", 1, *steps) if len(steps) > 1 else steps[0]
