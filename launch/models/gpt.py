"""A decoder-only transformer language model with normalisation before each block: GPT-2 (Radford et al., 2019) and
GPT-3 (Brown et al., 2020, every block with dense attention) by their sizes, or with settings the blocks of Llama
(Touvron et al., 2023), whose sizes are in `llama`.

It does not know how it is cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from castile.launch.arrays.standard_names import Piece, StandardNames
from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor
from castile.planner.ops.linear import Linear

RECIPE = Recipe(data="text", batch=8, lr=0.05, momentum=0.9, epochs=1)
SCALE = 0.02
# Of the angles of rotary embeddings, as their paper has it.
BASE = 1e4

GPT2 = StandardNames(
    pieces=(
        Piece("tok.weight", "wte.weight"),
        Piece("pos.weight", "wpe.weight"),
        *(
            Piece(f"block{{n}}.{part}.{kind}", f"h.{{n}}.attn.c_attn.{kind}", kind == "weight", n, 3)
            for n, part in enumerate("qkv")
            for kind in ("weight", "bias")
        ),
        *(
            Piece(f"block{{n}}.{ours}.{kind}", f"h.{{n}}.{theirs}.{kind}", kind == "weight" and "norm" not in ours)
            for ours, theirs in (
                ("norm1", "ln_1"),
                ("o", "attn.c_proj"),
                ("norm2", "ln_2"),
                ("up", "mlp.c_fc"),
                ("down", "mlp.c_proj"),
            )
            for kind in ("weight", "bias")
        ),
        Piece("norm.weight", "ln_f.weight"),
        Piece("norm.bias", "ln_f.bias"),
        Piece("head.weight", "lm_head.weight"),
    ),
    prefixes=("transformer.",),
    copies={"lm_head.weight": "wte.weight"},
    # causal masks, which some files keep
    idle=("h.*.attn.bias", "h.*.attn.masked_bias"),
)
LLAMA = StandardNames(
    pieces=(
        Piece("tok.weight", "embed_tokens.weight"),
        *(
            Piece(f"block{{n}}.{ours}.weight", f"layers.{{n}}.{theirs}.weight")
            for ours, theirs in (
                ("norm1", "input_layernorm"),
                ("q", "self_attn.q_proj"),
                ("k", "self_attn.k_proj"),
                ("v", "self_attn.v_proj"),
                ("o", "self_attn.o_proj"),
                ("norm2", "post_attention_layernorm"),
                ("gate", "mlp.gate_proj"),
                ("up", "mlp.up_proj"),
                ("down", "mlp.down_proj"),
            )
        ),
        Piece("norm.weight", "norm.weight"),
        Piece("head.weight", "lm_head.weight"),
    ),
    prefixes=("model.",),
    copies={"lm_head.weight": "embed_tokens.weight"},
    idle=("layers.*.self_attn.rotary_emb.inv_freq",),
)
STANDARD_NAMES = (GPT2, LLAMA)


@dataclass(frozen=True)
class Form:
    """A size: what settings are where the user leaves them open."""

    layers: int
    width: int
    heads: int
    seq: int
    vocab: int
    positions: int = 0
    tied: bool = False


def _openai(layers: int, width: int, heads: int, positions: int) -> Form:
    return Form(layers, width, heads, positions, 50257, positions, True)


FORMS = {
    "small": Form(4, 128, 4, 128, 256),
    # GPT-2, its own table: what it calls 117M to 1542M is these numbers of parameters
    "124m": _openai(12, 768, 12, 1024),
    "355m": _openai(24, 1024, 16, 1024),
    "774m": _openai(36, 1280, 20, 1024),
    "1.5b": _openai(48, 1600, 25, 1024),
    # GPT-3, its table 2.1, but where width is not heads times their features: 1.3b has 24 heads of 128 there, 13b a
    # width of 5140
    "125m": _openai(12, 768, 12, 2048),
    "350m": _openai(24, 1024, 16, 2048),
    "760m": _openai(24, 1536, 16, 2048),
    "1.3b": _openai(24, 2048, 16, 2048),
    "2.7b": _openai(32, 2560, 32, 2048),
    "6.7b": _openai(32, 4096, 32, 2048),
    "13b": _openai(40, 5120, 40, 2048),
    "175b": _openai(96, 12288, 96, 2048),
}


@dataclass(frozen=True)
class Blocks:
    """What all blocks have in common.

    layers     how many there are
    norm       "layer" or "rms"
    mlp        "gelu" or "silu", which is gated
    base       of the angles by which queries and keys are turned; 0 where a table says positions instead
    eps        what norms add to a variance or a mean square
    """

    layers: int
    heads: int
    kv_heads: int
    hidden: int
    norm: str = "layer"
    mlp: str = "gelu"
    base: float = 0.0
    bias: bool = True
    dropout: float = 0.0
    eps: float = 1e-5

    @property
    def added(self) -> float:
        """How large what is added to the residual stream begins: smaller in a deep network, so that the sum keeps its
        size."""
        return SCALE / sqrt(2 * self.layers)


@dataclass(frozen=True)
class Words:
    """What a network reads and writes: texts of `seq` words out of `vocab`.

    tied       whether the table of words is the head too
    positions  rows of the table of positions, 0 where there is none
    """

    seq: int
    vocab: int
    tied: bool = False
    positions: int = 0


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    size: str = "small",
    layers: int = 0,
    width: int = 0,
    heads: int = 0,
    seq: int = 0,
    vocab: int = 0,
    tied: bool | None = None,
    dropout: float = 0.0,
    positions: int = 0,
    rotary: bool = False,
    norm: str = "layer",
    mlp: str = "gelu",
    kv_heads: int = 0,
    hidden: int = 0,
    bias: bool = True,
    class_blocks: int = 0,
) -> Graph:
    """tokens [b, seq] -> logits [b, seq, vocab]; `tied` uses the token table for the head too.

    size           small (4 layers of width 128 with 4 heads, seq 128, vocab 256), or a size of GPT-2 (124m, 355m, 774m,
                   1.5b) or GPT-3 (125m, 350m, 760m, 1.3b, 2.7b, 6.7b, 13b, 175b), with as many positions as
                   they have; layers, width, heads, seq, vocab, positions and tied are the size's unless given
    dropout        of the embedding and of what each half of a block adds, in training only
    positions      rows of the table of positions, in a small one seq; with `rotary` queries and keys are turned instead
    norm           "layer" or "rms"
    mlp            "gelu" or "silu", which is gated
    kv_heads       heads of keys and values, by default one for each of queries
    hidden         features between the two halves of an MLP, by default four times the width
    class_blocks   how many blocks of the vocabulary the loss may be cut into, by default 96 of a large one
    """
    if size not in FORMS:
        raise ValueError(f"model gpt: size should be one of {', '.join(FORMS)}, got {size!r}")
    form = FORMS[size]
    layers, width, heads = layers or form.layers, width or form.width, heads or form.heads
    seq, tied = seq or form.seq, form.tied if tied is None else tied
    if rotary and positions:
        raise ValueError("model gpt: positions is the length of a table, and with rotary=true there is none")
    words = Words(seq, vocab or form.vocab, tied, 0 if rotary else positions or form.positions or seq)
    blocks = Blocks(layers, heads, kv_heads or heads, hidden or 4 * width, norm, mlp, BASE if rotary else 0.0, bias,
                    dropout if training else 0.0)  # fmt: skip
    return decoder(Graph("gpt", dtype), batch or RECIPE.batch, words, width, blocks, class_blocks)


def decoder(g: Graph, batch: int, words: Words, width: int, blocks: Blocks, class_blocks: int = 0) -> Graph:
    """The graph with all that lies between tokens and the loss added.

    Raises ValueError in the user's words for settings that do not go together.
    """
    check(g.name, width, words, blocks)
    x, targets = embedded(g, batch, words, width)
    x = _dropped(g, "embed", x, blocks)
    for n in range(1, blocks.layers + 1):
        x = attended(g, f"block{n}", x, blocks)
        m = fed(g, f"block{n}", normed(g, f"block{n}.norm2", x, blocks), blocks)
        x = g.add(f"block{n}.add2", x, _dropped(g, f"block{n}.down", m, blocks))
    logits = _head(g, normed(g, "norm", x, blocks), words)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, targets, blocks=class_blocks))
    return g


def check(model: str, width: int, words: Words, blocks: Blocks) -> None:
    """Raises ValueError in the user's words for settings that do not go together."""
    if width % blocks.heads:
        raise ValueError(f"model {model}: width {width} should be a multiple of heads, {blocks.heads}")
    if blocks.heads % blocks.kv_heads:
        raise ValueError(f"model {model}: heads {blocks.heads} should be a multiple of kv_heads, {blocks.kv_heads}")
    if blocks.base and width // blocks.heads % 2:
        raise ValueError(f"model {model}: rotary turns pairs, and heads of {width // blocks.heads} features are odd")
    if words.positions and words.positions < words.seq:
        raise ValueError(f"model {model}: positions {words.positions} should be at least seq, {words.seq}")
    for setting, value, known in (("norm", blocks.norm, ("layer", "rms")), ("mlp", blocks.mlp, ("gelu", "silu"))):
        if value not in known:
            raise ValueError(f"model {model}: {setting} should be {' or '.join(known)}, got {value!r}")
    if not 0 <= blocks.dropout < 1:
        raise ValueError(f"model {model}: dropout should be at least 0 and below 1, got {blocks.dropout}")
    if blocks.eps < 0:
        raise ValueError(f"model {model}: eps should be at least 0, got {blocks.eps}")


def embedded(g: Graph, batch: int, words: Words, width: int) -> tuple[Tensor, Tensor]:
    """Words as vectors [b, seq, width], with their positions where a table says these; and the words to come."""
    tokens, targets = (g.input(name, (batch, words.seq), "b s", "int32") for name in ("tokens", "targets"))
    x = g.embedding("tok", tokens, rows=words.vocab, features=width, scale=SCALE)
    if not words.positions:
        return x, targets
    places = g.param("pos.weight", (words.positions, width), ("s", "d"), Init("normal", SCALE))
    if words.positions > words.seq:
        places = g.slice("positions", places, 0, 0, words.seq)
    return g.add("embed", x, places), targets


def attended(g: Graph, name: str, x: Tensor, blocks: Blocks) -> Tensor:
    """The stream x [b, s, d] with what the block's attention adds to it."""
    a, width, turned = normed(g, f"{name}.norm1", x, blocks), x.shape[-1], blocks.base
    heads = {"q": blocks.heads, "k": blocks.kv_heads, "v": blocks.kv_heads}
    features = {part: width // blocks.heads * number for part, number in heads.items()}
    q, k, v = (g.linear(f"{name}.{part}", a, features=n, bias=blocks.bias, scale=SCALE) for part, n in features.items())
    if turned:
        q, k = (g.rotary(f"{name}.rotary_{n}", t, heads[n], base=turned) for n, t in (("q", q), ("k", k)))
    a = g.attention(f"{name}.attention", q, k, v, heads=blocks.heads, causal=True, kv_heads=blocks.kv_heads)
    a = g.linear(f"{name}.o", a, features=width, bias=blocks.bias, scale=blocks.added)
    return g.add(f"{name}.add1", x, _dropped(g, f"{name}.o", a, blocks))


def fed(g: Graph, name: str, m: Tensor, blocks: Blocks) -> Tensor:
    """What the block's feed-forward network makes of m [b, s, d]."""
    up = g.linear(f"{name}.up", m, features=blocks.hidden, bias=blocks.bias, scale=SCALE)
    if blocks.mlp == "gelu":
        made = g.gelu(f"{name}.gelu", up)
    else:
        gate = g.linear(f"{name}.gate", m, features=blocks.hidden, bias=blocks.bias, scale=SCALE)
        made = g.mul(f"{name}.gated", g.silu(f"{name}.silu", gate), up)
    return g.linear(f"{name}.down", made, features=m.shape[-1], bias=blocks.bias, scale=blocks.added)


def normed(g: Graph, name: str, x: Tensor, blocks: Blocks) -> Tensor:
    """x [..., d] normalised as the blocks are."""
    return g.rms_norm(name, x, blocks.eps) if blocks.norm == "rms" else g.layer_norm(name, x, blocks.eps)


def _dropped(g: Graph, name: str, x: Tensor, blocks: Blocks) -> Tensor:
    return g.dropout(f"{name}.dropout", x, blocks.dropout) if blocks.dropout else x


def _head(g: Graph, x: Tensor, words: Words) -> Tensor:
    if words.tied:
        return g.apply(Linear(), "head", x, g.tensors["tok.weight"])
    return g.linear("head", x, features=words.vocab, bias=False, scale=SCALE)
