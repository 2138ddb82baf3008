"""Recurrent layers over a sequence, in either direction or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.products import uniform
from castile.launch.importers.onnx.values import Known, Unsupported, known
from castile.planner.op import Init, Tensor, find

# Places of castile's gates among those of ONNX: input, output, forget, candidate; update, reset, candidate.
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
DIRECTIONS = {"forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse")}


@dataclass(frozen=True)
class Layer:
    """One direction of a layer: which it is, of how many units, and the state [b, 1, h] that it begins with, if any."""

    c: Call
    number: int
    direction: str
    width: int
    label: str

    def weight(self, source: int, name: str, axes: str, init: Init) -> Tensor:
        """The weights of this direction with a dim for castile's gates [gates, h, ...], or its biases."""
        order, width, number = GATES[self.c.op], self.width, self.number
        found = self.c.value(source)
        if not isinstance(found, Known):
            raise Unsupported("with a weight that depends on samples")
        if found.follow is not None:
            return self._computed(found, 0)

        def gates(array: np.ndarray) -> np.ndarray:
            own = array[number]
            return own.reshape(len(order), width, *own.shape[1:])[list(order)]

        shape = (len(order), width, *found.shape[2:])
        return self.c.net.parameter(found.derived(f"{self.label}{name}", shape, gates), tuple(axes.split()), init)

    def biases(self) -> list[Tensor]:
        """That of the input, and that of the state; of an LSTM their sum."""
        order, width = GATES[self.c.op], self.width
        shape, count, zeros = (len(order), width), len(order) * width, known(f"{self.c.name}.bias", np.zeros(1))
        one = self.c.value(3) if self.c.has(3) else zeros
        if not isinstance(one, Known):
            raise Unsupported("with a bias that depends on samples")

        def half(start: int, array: np.ndarray) -> np.ndarray:
            return array[self.number, start : start + count].reshape(shape)[list(order)]

        found = []
        for label, start in (("input", 0), ("state", count)):
            if one.follow is not None:
                found.append(self._computed(one, start))
            elif one.is_filler:
                same = one.derived(f"{self.label}{label}", shape, lambda array: np.broadcast_to(array.flat[0], shape))
                found.append(self.c.net.constant(same, ("g", "h")))
            else:
                own = one.derived(f"{self.label}{label}", shape, partial(half, start))
                found.append(self.c.net.parameter(own, ("g", "h"), uniform(width)))
        return found if self.c.op != "LSTM" else [self.c.g.add(self.c.inner(f"{self.label}bias"), *found)]

    def _computed(self, of: Known, start: int) -> Tensor:
        """The gates [gates, h, ...] of this direction in what is computed of weights, from a row on."""
        g, width, order = self.c.g, self.width, GATES[self.c.op]
        own = shaping.sliced(g, self.c.inner("own"), self.c.net.operand(of), 0, self.number, self.number + 1)
        rows = shaping.reshaped(g, self.c.inner("rows"), own, own.shape[1:])
        ends = [(start + gate * width, start + (gate + 1) * width) for gate in order]
        gates = [shaping.sliced(g, self.c.inner("gate"), rows, 0, *both) for both in ends]
        whole = shaping.joined(g, self.c.inner("gates"), gates, 0)
        return shaping.reshaped(g, self.c.inner("weight"), whole, (len(order), width, *rows.shape[1:]))

    def state(self, source: int) -> Tensor | None:
        """What the layer begins with [b, 1, h]; None for zeros."""
        if not self.c.has(source):
            return None
        found, dim = self.c.value(source), 1 if self.c.get("layout", 0) else 0
        if found.shape[-1] != self.width:
            raise Unsupported(f"that begins with a state of {found.shape[-1]} numbers for {self.width} units")
        if isinstance(found, Known) and not self.c.net.is_trained(found):
            if found.array.any():
                raise Unsupported("that begins with a state of numbers that are no zeros")
            return None
        state = self.c.tensor(source)
        if state.shape[dim] > 1:
            state = self.c.g.slice(self.c.inner("own"), state, dim, self.number, self.number + 1)
        return state if dim else shaping.permuted(self.c.g, self.c.inner("begin"), state, (1, 0, 2))


@handles("LSTM", "GRU", "RNN")
def recurrent(c: Call) -> tuple[Tensor, ...]:
    _check(c)
    x = c.tensor(0)
    if not c.get("layout", 0):
        x = shaping.permuted(c.g, c.inner("samples"), x, (1, 0, 2))
    directions = DIRECTIONS[c.get("direction", b"forward").decode()]
    width = c.get("hidden_size") or c.shape(2)[-1]
    made = []
    for number, direction in enumerate(directions):
        label = f"{direction}." if len(directions) > 1 else ""
        made.append(_unrolled(Layer(c, number, direction, width, label), x))
    return _results(c, made)


def _check(c: Call) -> None:
    """Raises Unsupported for what castile's layers do not do."""
    count = len(DIRECTIONS[c.get("direction", b"forward").decode()])
    used = [name.decode() for name in c.get("activations", [])]
    if used and used != USUAL[c.op] * count:
        raise Unsupported(f"with other functions than {', '.join(USUAL[c.op])}")
    if c.get("clip") or c.get("input_forget", 0) or c.has(7):
        raise Unsupported("with bounds, joined gates or peepholes")
    if c.op == "GRU" and not c.get("linear_before_reset", 0):
        raise Unsupported("whose reset comes before its product")
    if c.has(4):
        lengths = c.known(4)
        if (lengths != c.shape(0)[1 if c.get("layout", 0) else 0]).any():
            raise Unsupported("of sequences of several lengths")


def _unrolled(of: Layer, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The hidden units [b, 1, h] at all positions, and the last state: hidden units, and of an LSTM its cell."""
    c = of.c
    width = uniform(of.width)
    weight = of.weight(1, "input", "g h i", width)
    shares = c.g.contract(c.inner(f"{of.label}gates"), "b s i, g h i -> b s g h", x, weight)
    own, biases = of.weight(2, "state", "g h i", width), of.biases()
    state = of.state(5)
    cell = of.state(6) if c.op == "LSTM" else None
    steps: dict[int, Tensor] = {}
    positions = range(x.shape[1]) if of.direction == "forward" else reversed(range(x.shape[1]))
    for position in positions:
        name = c.inner(f"{of.label}{position + 1}")
        state, cell = STEPS[c.op](c, name, position, shares, biases, own, state, cell)
        steps[position] = state
    assert state is not None
    return [steps[n] for n in range(x.shape[1])], [state, *([cell] if cell is not None else [])]


def _zero_state(c: Call, name: str, like: Tensor) -> Tensor:
    return c.g.scale(f"{name}.zero", like, factor=0.0)


def _lstm_step(c, name, position, shares, biases, own, state, cell):  # type: ignore[no-untyped-def]
    if (state is None) != (cell is None):
        there = state if state is not None else cell
        state, cell = (state or _zero_state(c, name, there)), (cell or _zero_state(c, name, there))
    before = [] if state is None else [state, cell, own]
    hidden = c.g.apply(find("lstm_cell")(position), name, shares, *biases, *before)
    return hidden, c.g.tensors[f"{name}:cell"]


def _gru_step(c, name, position, shares, biases, own, state, cell):  # type: ignore[no-untyped-def]
    before = [] if state is None else [state, state, own]
    return c.g.apply(find("gru_cell")(position), name, shares, *biases, *before), None


def _rnn_step(c, name, position, shares, biases, own, state, cell):  # type: ignore[no-untyped-def]
    x = c.g.slice(f"{name}.share", shares, 1, position, position + 1)
    for n, bias in enumerate(biases):
        x = c.g.add(f"{name}.bias{n}", x, bias)
    if state is not None:
        x = c.g.add(f"{name}.sum", x, c.g.contract(f"{name}.state", "b t i, g h i -> b t g h", state, own))
    hidden = c.g.tanh(name, shaping.reshaped(c.g, f"{name}.flat", x, (x.shape[0], 1, x.shape[3])))
    return hidden, None


STEPS = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}


def _results(c: Call, made: Sequence[tuple[list[Tensor], list[Tensor]]]) -> tuple[Tensor, ...]:
    """The hidden units of all positions [s, directions, b, h] and the last states [directions, b, h]."""
    g, each = c.g, []
    samples_first = bool(c.get("layout", 0))
    for n, (steps, _) in enumerate(made):
        whole = g.concat(c.inner(f"states{n}"), 1, *steps) if len(steps) > 1 else steps[0]
        b, s, h = whole.shape
        each.append(shaping.reshaped(g, c.inner(f"apart{n}"), whole, (b, s, 1, h)))
    y = g.concat(c.inner("both"), 2, *each) if len(each) > 1 else each[0]
    y = y if samples_first else shaping.permuted(g, c.name, y, (1, 2, 0, 3))
    last = []
    for which in range(len(made[0][1])):
        ends = [states[which] for _, states in made]
        end = g.concat(c.inner(f"ends{which}"), 1, *ends) if len(ends) > 1 else ends[0]
        last.append(end if samples_first else shaping.permuted(g, c.inner(f"last{which}"), end, (1, 0, 2)))
    return (y, *last)
