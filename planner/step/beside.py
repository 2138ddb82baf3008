"""Nodes beside a graph's own, which plans add by themselves: fetches, accumulators, updates, clipping of gradients, and
the loss scale.

Strategies may name them. It does not know programs, strategies or processors.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import inf
from typing import NamedTuple

from castile.planner.axes import Alignment
from castile.planner.families.updates import Guarded, Optimizer, Updates, filled
from castile.planner.graph import Graph, Node
from castile.planner.op import Op, Tensor, find
from castile.planner.ops.clip_factor import ClipFactor
from castile.planner.ops.loss_scale import LossScale
from castile.planner.ops.unscale import Unscale
from castile.planner.step.program import CLIPPED, GRADIENT, accumulate_name, fetch_name, update_name
from castile.planner.strategy import Names

# Of all gradients together: the sum of squares, the factor by which they are multiplied, and their norm; and the number
# of this step among those that were not skipped.
SQUARES, FACTOR, NORM, NUMBER = "gradients/squares", "gradients/factor", "gradients/norm", "gradients/number"
# The loss scale; the number of steps without overflow since it changed, and of all steps that were not skipped.
SCALE, STREAK, TAKEN = "loss/scale", "loss/streak", "loss/taken"
# Initial values of carried regions other than parameters: all others begin as zeros.
INITIAL_VALUES = {SCALE: 2.0**16}


def names(graph: Graph, updates: Updates) -> Names:
    """The names that a strategy for this graph may and must use."""
    optional = dict(state_updates(graph))
    for param in graph.params:
        optional[fetch_name(param.name)] = apart("fetch", param)
        if param.name not in graph.frozen:
            optional[accumulate_name(param.name)] = apart("accumulate", param)
        optional[update_name(param.name)] = update(graph, updates, param)
    every = {node.name: node for node in (*optional.values(), *whole(graph, updates).values())}
    return Names(graph.nodes, every, frozenset(fetch_name(param.name) for param in graph.params))


def cast(graph: Graph, updates: Updates) -> frozenset[str]:
    """The fetches that every plan has: those of parameters whose master copy has another dtype than their use."""
    return frozenset(fetch_name(p.name) for p in graph.params if updates.kept(p.dtype) != p.dtype)


def state_updates(graph: Graph) -> dict[str, Node]:
    """By state the node whose Config is its layout: its update, or a placeholder where nothing updates it."""
    return {**graph.updates, **{s: _still(graph.tensors[s]) for s in graph.states if s not in graph.updates}}


def _still(tensor: Tensor) -> Node:
    """A placeholder node, whose Config is the layout of a tensor that no step changes."""
    fetch, name = plain("fetch"), tensor.name
    return Node(update_name(name), fetch, (name,), (name,), _fitted(fetch, (_like(tensor),)))


def apart(kind: str, param: Tensor) -> Node:
    """The fetch or the accumulate of a parameter."""
    op = plain(kind)
    alignment = _fitted(op, (_like(param),))
    return Node(f"{param.name}/{kind}", op, (param.name,), (f"{param.name}/{kind}ed",), alignment)


def update(graph: Graph, updates: Updates, param: Tensor) -> Node:
    """The update of a parameter; with a loss scale it may be skipped, and counts the steps that are not.

    That of a frozen parameter is a placeholder for its layout, and no pass.
    """
    if param.name in graph.frozen:
        return _still(param)
    op, scalars, alignment = _updating(updates.of(param.name), is_scaled(graph, updates), _like(param))
    state = [f"{param.name}/{label}" for label in op.results[1:]]
    inputs = (param.name, param.name + GRADIENT, *state, *scalars)
    return Node(update_name(param.name), op, inputs, (param.name, *state), alignment)


@lru_cache(maxsize=4096)
def _updating(optimizer: Optimizer, scaled: bool, like: _Like) -> tuple[Optimizer, tuple[str, ...], Alignment]:
    """The operator that updates a parameter of this form, the scalars that it reads, and its alignment."""
    scalars = tuple([filled(name) for name in optimizer.scalars])
    if scaled:
        optimizer = Guarded(optimizer)
        scalars = (*(NUMBER if name == filled("step") else name for name in scalars), FACTOR)
    extents = dict(zip(like.axes, like.shape, strict=True))
    operands = [like, like._replace(param=False)]
    for label in optimizer.results[1:]:
        axes = optimizer.state_axes(label, like.axes)
        operands.append(_Like(tuple(extents[a] for a in axes), like.dtype, axes))
    operands += [_NUMBER] * len(scalars)
    return optimizer, scalars, _fitted(optimizer, tuple(operands))


class _Like(NamedTuple):
    """The form of a tensor: all but its name."""

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str, ...]
    param: bool = False


_NUMBER = _Like((), "", ())


def _like(tensor: Tensor) -> _Like:
    return _Like(tensor.shape, tensor.dtype, tensor.axes, tensor.param)


@cache
def plain(kind: str) -> Op:
    """An operator without settings."""
    return find(kind)()


@lru_cache(maxsize=4096)
def _fitted(op: Op, operands: tuple[_Like, ...]) -> Alignment:
    """The alignment of an operator on operands of these forms: one object for all parameters of a form."""
    tensors = tuple(Tensor(f"{op.name}.{n}", *like) for n, like in enumerate(operands))
    return op.bind(tensors, op.name)


def is_scaled(graph: Graph, updates: Updates) -> bool:
    """Whether the loss is scaled, and steps are skipped whose gradients overflow."""
    return graph.dtype == "float16" if updates.scaled is None else updates.scaled


def whole(graph: Graph, updates: Updates) -> dict[str, Node]:
    """The nodes for clipping and loss scaling: two for each parameter, one that computes the factor, and one that
    updates the scale. Empty where there is neither.
    """
    scaled = is_scaled(graph, updates)
    if updates.clip is None and not scaled:
        return {}
    nodes = {FACTOR: _factor(updates, scaled)}
    if scaled:
        renew = LossScale(updates.growth)
        name, carried = update_name(SCALE), (SCALE, STREAK, TAKEN)
        nodes[name] = Node(name, renew, (*carried, FACTOR), carried, _fitted(renew, (_NUMBER,) * 4))
    for param in graph.trained:
        gradient = _like(param)._replace(param=False)
        for kind, inputs, output, operands in (
            ("square_sum", (param.name + GRADIENT,), SQUARES, (gradient,)),
            ("clip", (param.name + GRADIENT, FACTOR), param.name + CLIPPED, (gradient, _NUMBER)),
        ):
            op, name = plain(kind), f"{param.name}/{kind}"
            nodes[name] = Node(name, op, inputs, (output,), _fitted(op, operands))
    return nodes


def _factor(updates: Updates, scaled: bool) -> Node:
    if not scaled:
        assert updates.clip is not None
        factor: Op = ClipFactor(updates.clip)
        return Node(FACTOR, factor, (SQUARES,), (FACTOR, NORM), _fitted(factor, (_NUMBER,)))
    factor, inputs = Unscale(updates.clip or inf), (SQUARES, SCALE, TAKEN)
    return Node(FACTOR, factor, inputs, (FACTOR, NORM, NUMBER), _fitted(factor, (_NUMBER,) * len(inputs)))
