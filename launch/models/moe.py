"""A decoder-only transformer whose every other block has experts that work on the tokens they are given, as in GShard
(Lepikhin et al., 2021) and Switch (Fedus et al., 2022).

It does not know how it is cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor

RECIPE = Recipe(
    data="text", batch=8, lr=1e-3, optimizer="adamw:beta2=0.95,decay=0.1", schedule="cosine:warmup=100", clip=1.0,
    undecayed="*.bias,*norm*,tok.weight,pos.weight",
)  # fmt: skip
SCALE = 0.02


@dataclass(frozen=True)
class Form:
    """A size: what settings are where the user leaves them open."""

    layers: int
    width: int
    heads: int
    experts: int
    hidden: int
    seq: int = 1024
    vocab: int = 32_000


def _alpa(layers: int, width: int, experts: int) -> Form:
    return Form(layers, width, 16, experts, 8 * width)


FORMS = {
    "small": Form(4, 128, 4, 4, 4 * 128, seq=128, vocab=256),
    # those of GShard's kind that Alpa was measured with
    "380m": _alpa(8, 768, 8),
    "690m": _alpa(8, 768, 16),
    "1.3b": _alpa(16, 768, 16),
    "2.4b": _alpa(16, 1024, 16),
    "10b": _alpa(16, 1536, 32),
    "27b": _alpa(16, 2048, 48),
    "70b": _alpa(32, 2048, 64),
}


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    size: str = "small",
    layers: int = 0,
    width: int = 0,
    heads: int = 0,
    hidden: int = 0,
    seq: int = 0,
    vocab: int = 0,
    experts: int = 0,
    choices: int = 2,
    capacity: float = 1.25,
    balance: float = 0.01,
) -> Graph:
    """tokens [b, seq] -> logits [b, seq, vocab]; blocks 2, 4, ... have experts instead of one feed-forward network.

    size       small (4 layers of width 128 with 4 heads and 4 experts, seq 128, vocab 256), or one of those that Alpa
               (Zheng et al., 2022) was measured with, by its parameters: 380m, 690m, 1.3b, 2.4b, 10b, 27b, 70b;
               layers, width, heads, seq, vocab and experts are the size's unless given
    hidden     features between the two halves of a feed-forward network; if no size's, 4 times a width that is given
    choices    how many experts work on a token
    capacity   how many tokens of a sample an expert takes in, over those it would if all had the same load
    balance    what the loss that evens out the loads weighs, in training alone
    """
    if size not in FORMS:
        raise ValueError(f"model moe: size should be one of {', '.join(FORMS)}, got {size!r}")
    form = FORMS[size]
    hidden = hidden or (4 * width if width else form.hidden)
    layers, width, heads = layers or form.layers, width or form.width, heads or form.heads
    seq, vocab, experts = seq or form.seq, vocab or form.vocab, experts or form.experts
    if width % heads:
        raise ValueError(f"model moe: width {width} should be a multiple of heads, {heads}")
    if choices > experts:
        raise ValueError(f"model moe: choices {choices} should be at most experts, {experts}")
    if capacity <= 0 or balance < 0:
        raise ValueError(f"model moe: capacity {capacity} should be more than 0, balance {balance} at least 0")
    g = Graph("moe", dtype)
    b = batch or RECIPE.batch
    tokens = g.input("tokens", (b, seq), "b s", "int32")
    targets = g.input("targets", (b, seq), "b s", "int32")
    x = g.embedding("tok", tokens, rows=vocab, features=width, scale=SCALE)
    x = g.add("embed", x, g.param("pos.weight", (seq, width), ("s", "d"), Init("normal", SCALE)))
    loads = []
    for n in range(1, layers + 1):
        name = f"block{n}"
        x = _attention(g, name, x, heads, layers)
        m = g.layer_norm(f"{name}.norm2", x)
        if n % 2:
            m = _feed_forward(g, name, m, layers, hidden)
        else:
            m = _experts(g, name, m, layers, hidden, experts, choices, capacity)
            loads.append(f"{name}.route")
        x = g.add(f"{name}.add2", x, m)
    logits = g.linear("head", g.layer_norm("norm", x), features=vocab, bias=False, scale=SCALE)
    g.outputs = [logits.name]
    g.minimise(_loss(g, logits, targets, loads if training and balance else [], balance))
    return g


def _attention(g: Graph, name: str, x: Tensor, heads: int, layers: int) -> Tensor:
    width = x.shape[-1]
    a = g.layer_norm(f"{name}.norm1", x)
    q, k, v = (g.linear(f"{name}.{part}", a, features=width, scale=SCALE) for part in "qkv")
    a = g.attention(f"{name}.attention", q, k, v, heads=heads, causal=True)
    return g.add(f"{name}.add1", x, g.linear(f"{name}.o", a, features=width, scale=_added(layers)))


def _feed_forward(g: Graph, name: str, m: Tensor, layers: int, hidden: int) -> Tensor:
    width = m.shape[-1]
    m = g.gelu(f"{name}.gelu", g.linear(f"{name}.up", m, features=hidden, scale=SCALE))
    return g.linear(f"{name}.down", m, features=width, scale=_added(layers))


def _experts(
    g: Graph, name: str, m: Tensor, layers: int, hidden: int, experts: int, choices: int, capacity: float
) -> Tensor:
    width, route = m.shape[-1], f"{name}.route"
    g.route(route, g.linear(f"{name}.gate", m, features=experts, bias=False, scale=SCALE), choices, capacity)
    up = g.param(f"{name}.up.weight", (experts, width, hidden), ("e", "d", "f"), Init("normal", SCALE))
    down = g.param(f"{name}.down.weight", (experts, hidden, width), ("e", "f", "d"), Init("normal", _added(layers)))
    m = g.contract(f"{name}.up", "e b c d, e d f -> e b c f", g.dispatch(f"{name}.dispatch", m, route), up)
    m = g.contract(f"{name}.down", "e b c f, e f d -> e b c d", g.gelu(f"{name}.gelu", m), down)
    return g.combine(f"{name}.combine", m, route)


def _added(layers: int) -> float:
    """What is added to the residual stream begins smaller in a deep network, so that the sum keeps its size."""
    return SCALE / sqrt(2 * layers)


def _loss(g: Graph, logits: Tensor, targets: Tensor, loads: list[str], weight: float) -> Tensor:
    if not loads:
        return g.cross_entropy("loss", logits, targets)
    total = g.cross_entropy("entropy", logits, targets)
    for n, route in enumerate(loads, 1):
        part = g.scale(f"{route}.weighed", g.balance(f"{route}.balance", route), factor=weight)
        total = g.add("loss" if n == len(loads) else f"loss{n}", total, part)
    return total
