"""Layers of drawn graphs: mixtures of experts."""

from castile.planner.op import Init, Tensor
from tests.layers import Canvas, layer


@layer()
def layer_route(c: Canvas) -> Tensor | None:
    """The gates themselves, whoever is chosen."""
    routed = _routed(c)
    return routed and c.graph.tensors[routed[1]]


@layer()
def layer_dispatch(c: Canvas) -> Tensor | None:
    """Tokens to experts, each with a matrix of its own, and back by the sum over all places."""
    routed = _routed(c)
    if routed is None:
        return None
    x, route = routed
    there = c.graph.dispatch(c.name("dispatch"), x, route)
    return c.graph.sum(c.name("loads"), there, dims=(0, 2))


@layer()
def layer_combine(c: Canvas) -> Tensor | None:
    """Tokens to experts, each with a matrix of its own, and back."""
    routed = _routed(c)
    if routed is None:
        return None
    x, route = routed
    g = c.graph
    y = g.dispatch(c.name("dispatch"), x, route)
    w = g.param(c.name("experts"), (y.shape[0], x.shape[2], c.integer(1, 4)), ("e", "d", "f"), Init("zeros"))
    return g.combine(c.name("combine"), g.contract(c.name("work"), "e b c d, e d f -> e b c f", y, w), route)


@layer()
def layer_balance(c: Canvas) -> Tensor | None:
    """Added to the tokens, so that the result is one to go on with."""
    routed = _routed(c)
    return routed and c.graph.add(c.name("both"), routed[0], c.graph.balance(c.name("balance"), routed[1]))


def _routed(c: Canvas) -> tuple[Tensor, str] | None:
    """Tokens and the name of their route, by a gate whose shift tells apart what would be equal but for rounding."""
    x = c.choose(lambda t: len(t.shape) == 3)
    if x is None:
        return None
    experts = c.integer(1, 4)
    logits = c.graph.linear(c.name("gate"), x, features=experts)
    route = c.name("route")
    c.graph.route(route, logits, c.integer(1, experts), 0.5 * c.integer(1, 4))
    return x, route
