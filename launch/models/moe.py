"""A decoder-only transformer whose every other block has experts that work on the tokens they are given, as in GShard
(Lepikhin et al., 2021) and Switch (Fedus et al., 2022), or every block, as in Mixtral (Jiang et al., 2024).

It does not know how it is cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from castile.launch.models import Recipe
from castile.launch.models.gpt import SCALE, Blocks, Words, attended, check, embedded, fed, normed
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor

RECIPE = Recipe(
    data="text", batch=8, lr=1e-3, optimizer="adamw:beta2=0.95,decay=0.1", schedule="cosine:warmup=100", clip=1.0,
    undecayed="*.bias,*norm*,tok.weight,pos.weight",
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A size: what settings are where the user leaves them open.

    base   of the angles by which queries and keys are turned, where blocks are Llama's and each has experts; 0 where
           they are GPT-2's and every other one has
    """

    layers: int
    width: int
    heads: int
    experts: int
    hidden: int
    seq: int = 1024
    vocab: int = 32_000
    kv_heads: int = 0
    base: float = 0.0


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
    # Mixtral
    "8x7b": Form(32, 4096, 32, 8, 14_336, 32_768, kv_heads=8, base=1e6),
    "8x22b": Form(56, 6144, 48, 8, 16_384, 65_536, kv_heads=8, base=1e6),
}


@dataclass(frozen=True)
class Experts:
    """What the experts of all blocks have in common; `choices` and `capacity` as in `build`."""

    number: int
    choices: int
    capacity: float


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    size: str = "small",
    layers: int = 0,
    width: int = 0,
    heads: int = 0,
    kv_heads: int = 0,
    hidden: int = 0,
    seq: int = 0,
    vocab: int = 0,
    experts: int = 0,
    choices: int = 2,
    capacity: float = 1.25,
    balance: float = 0.01,
) -> Graph:
    """tokens [b, seq] -> logits [b, seq, vocab]; blocks 2, 4, ... have experts instead of one feed-forward network.

    size       small (4 layers of width 128 with 4 heads and 4 experts, seq 128, vocab 256), one of those that Alpa
               (Zheng et al., 2022) was measured with, by its parameters: 380m, 690m, 1.3b, 2.4b, 10b, 27b, 70b, or one
               of Mixtral, 8x7b or 8x22b, whose blocks are Llama's and have experts each; layers, width, heads,
               kv_heads, seq, vocab and experts are the size's unless given
    kv_heads   heads of keys and values; if no size's, one for each of queries
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
    blocks = _blocks(layers, heads, kv_heads or form.kv_heads or heads, hidden, form.base)
    of_each = Experts(experts or form.experts, choices, capacity)
    seq, vocab = seq or form.seq, vocab or form.vocab
    words = Words(seq, vocab, positions=0 if form.base else seq)
    check("moe", width, words, blocks)
    if choices > of_each.number:
        raise ValueError(f"model moe: choices {choices} should be at most experts, {of_each.number}")
    if capacity <= 0 or balance < 0:
        raise ValueError(f"model moe: capacity {capacity} should be more than 0, balance {balance} at least 0")
    g = Graph("moe", dtype)
    x, targets = embedded(g, batch or RECIPE.batch, words, width)
    loads = []
    for n in range(1, layers + 1):
        name = f"block{n}"
        x = attended(g, name, x, blocks)
        m = normed(g, f"{name}.norm2", x, blocks)
        if n % 2 and not form.base:
            m = fed(g, name, m, blocks)
        else:
            m = _worked(g, name, m, blocks, of_each)
            loads.append(f"{name}.route")
        x = g.add(f"{name}.add2", x, m)
    logits = g.linear("head", normed(g, "norm", x, blocks), features=vocab, bias=False, scale=SCALE)
    g.outputs = [logits.name]
    g.minimise(_loss(g, logits, targets, loads if training and balance else [], balance))
    return g


def _blocks(layers: int, heads: int, kv_heads: int, hidden: int, base: float) -> Blocks:
    if base:
        return Blocks(layers, heads, kv_heads, hidden, "rms", "silu", base, bias=False)
    return Blocks(layers, heads, kv_heads, hidden)


def _worked(g: Graph, name: str, m: Tensor, blocks: Blocks, experts: Experts) -> Tensor:
    """What experts make of the tokens m [b, s, d] that each of them is given."""
    route, width = f"{name}.route", m.shape[-1]
    gate = g.linear(f"{name}.gate", m, features=experts.number, bias=False, scale=SCALE)
    g.route(route, gate, experts.choices, experts.capacity)
    # `opening` says how far each feature is let through, as `gate` chooses experts
    parts = [f"{name}.up"] if blocks.mlp == "gelu" else [f"{name}.up", f"{name}.opening"]
    shape = (experts.number, width, blocks.hidden)
    lifts = {part: g.param(f"{part}.weight", shape, ("e", "d", "f"), Init("normal", SCALE)) for part in parts}
    shape = (experts.number, blocks.hidden, width)
    down = g.param(f"{name}.down.weight", shape, ("e", "f", "d"), Init("normal", blocks.added))
    given = g.dispatch(f"{name}.dispatch", m, route)
    up, *opening = (g.contract(part, "e b c d, e d f -> e b c f", given, weight) for part, weight in lifts.items())
    made = g.mul(f"{name}.gated", g.silu(f"{name}.silu", *opening), up) if opening else g.gelu(f"{name}.gelu", up)
    return g.combine(f"{name}.combine", g.contract(f"{name}.down", "e b c f, e f d -> e b c d", made, down), route)


def _loss(g: Graph, logits: Tensor, targets: Tensor, loads: list[str], weight: float) -> Tensor:
    if not loads:
        return g.cross_entropy("loss", logits, targets)
    total = g.cross_entropy("entropy", logits, targets)
    for n, route in enumerate(loads, 1):
        part = g.scale(f"{route}.weighed", g.balance(f"{route}.balance", route), factor=weight)
        total = g.add("loss" if n == len(loads) else f"loss{n}", total, part)
    return total
