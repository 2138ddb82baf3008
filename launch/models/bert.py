"""BERT (Devlin et al., 2019) with both of its pre-training heads: what was at masked places, and whether the second
part of a text follows the first. Normalisation comes after each half of a block.

The loss of the words counts all places, not the masked ones alone; every text fills its sequence, so nothing is padded.
It does not know how it is cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from castile.launch.arrays.standard_names import Piece, StandardNames
from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor
from castile.planner.ops.linear import Linear

RECIPE = Recipe(
    data="masked", batch=32, lr=1e-4, optimizer="adamw:decay=0.01", schedule="linear:warmup=100", clip=1.0,
    undecayed="*.bias,*norm*",
)  # fmt: skip
SCALE = 0.02
EPS = 1e-12
# what a text has two of: parts, and ways in which they may belong together
PAIR = 2

# Hugging Face's BertForPreTraining
STANDARD_NAMES = StandardNames(
    pieces=(
        Piece("tok.weight", "bert.embeddings.word_embeddings.weight"),
        Piece("pos.weight", "bert.embeddings.position_embeddings.weight"),
        Piece("segment.weight", "bert.embeddings.token_type_embeddings.weight"),
        Piece("head.bias", "cls.predictions.bias"),
        *(
            Piece(f"{ours}.{kind}", f"{theirs}.{kind}")
            for ours, theirs in (
                ("embed.norm", "bert.embeddings.LayerNorm"),
                *(
                    (f"block{{n}}.{ours}", f"bert.encoder.layer.{{n}}.{theirs}")
                    for ours, theirs in (
                        ("q", "attention.self.query"),
                        ("k", "attention.self.key"),
                        ("v", "attention.self.value"),
                        ("o", "attention.output.dense"),
                        ("norm1", "attention.output.LayerNorm"),
                        ("up", "intermediate.dense"),
                        ("down", "output.dense"),
                        ("norm2", "output.LayerNorm"),
                    )
                ),
                ("pooler", "bert.pooler.dense"),
                ("words", "cls.predictions.transform.dense"),
                ("words.norm", "cls.predictions.transform.LayerNorm"),
                ("pair", "cls.seq_relationship"),
            )
            for kind in ("weight", "bias")
        ),
    ),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    idle=("bert.embeddings.position_ids",),
)


@dataclass(frozen=True)
class Form:
    """A size: what settings are where the user leaves them open."""

    layers: int
    width: int
    heads: int


FORMS = {"base": Form(12, 768, 12), "large": Form(24, 1024, 16)}


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    size: str = "large",
    layers: int = 0,
    width: int = 0,
    heads: int = 0,
    seq: int = 512,
    vocab: int = 30_522,
    positions: int = 512,
    dropout: float = 0.1,
) -> Graph:
    """tokens and segments [b, seq] -> logits [b, seq, vocab] of the words, targets [b, seq]; of follows [b], 2 classes.

    size        base or large, whose layers, width and heads it has unless they are given
    positions   rows of the table of positions
    dropout     of the embedding and of what each half of a block adds, in training only; none of attention's weights
    """
    if size not in FORMS:
        raise ValueError(f"model bert: size should be one of {', '.join(FORMS)}, got {size!r}")
    form = FORMS[size]
    layers, width, heads = layers or form.layers, width or form.width, heads or form.heads
    if width % heads:
        raise ValueError(f"model bert: width {width} should be a multiple of heads, {heads}")
    if positions < seq:
        raise ValueError(f"model bert: positions {positions} should be at least seq, {seq}")
    if not 0 <= dropout < 1:
        raise ValueError(f"model bert: dropout should be at least 0 and below 1, got {dropout}")
    g = Graph("bert", dtype)
    b = batch or RECIPE.batch
    tokens = g.input("tokens", (b, seq), "b s", "int32")
    segments = g.input("segments", (b, seq), "b s", "int32")
    targets = g.input("targets", (b, seq), "b s", "int32")
    follows = g.input("follows", (b,), "b", "int32")
    net = _Net(g, heads, dropout if training else 0.0)
    x = net.embedded(tokens, segments, vocab, width, positions)
    for n in range(1, layers + 1):
        x = net.block(f"block{n}", x)
    words, pair = net.words(x), net.pair(x)
    g.outputs = [words.name]
    losses = g.cross_entropy("loss.words", words, targets), g.cross_entropy("loss.follows", pair, follows)
    g.minimise(g.add("loss", *losses))
    return g


@dataclass(frozen=True)
class _Net:
    graph: Graph
    heads: int
    dropout: float

    def embedded(self, tokens: Tensor, segments: Tensor, vocab: int, width: int, positions: int) -> Tensor:
        """The sum of what a token, its segment and its position say, normalised."""
        g, seq = self.graph, tokens.shape[1]
        x = g.embedding("tok", tokens, rows=vocab, features=width, scale=SCALE)
        x = g.add("embed.segments", x, g.embedding("segment", segments, rows=PAIR, features=width, scale=SCALE))
        table = g.param("pos.weight", (positions, width), ("s", "d"), Init("normal", SCALE))
        places = table if positions == seq else g.slice("positions", table, 0, 0, seq)
        return self._dropped("embed", g.layer_norm("embed.norm", g.add("embed", x, places), eps=EPS))

    def block(self, name: str, x: Tensor) -> Tensor:
        """Attention to all places, then two layers for each."""
        g, width = self.graph, x.shape[-1]
        q, k, v = (self._linear(f"{name}.{part}", x, width) for part in "qkv")
        a = self._linear(f"{name}.o", g.attention(f"{name}.attention", q, k, v, heads=self.heads), width)
        x = self._joined(f"{name}.o", f"{name}.add1", f"{name}.norm1", x, a)
        m = g.gelu(f"{name}.gelu", self._linear(f"{name}.up", x, 4 * width), approximate="none")
        return self._joined(f"{name}.down", f"{name}.add2", f"{name}.norm2", x, self._linear(f"{name}.down", m, width))

    def words(self, x: Tensor) -> Tensor:
        """Logits of the word at each place, by the table of tokens and a bias."""
        g = self.graph
        y = g.gelu("words.gelu", self._linear("words", x, x.shape[-1]), approximate="none")
        table = g.tensors["tok.weight"]
        bias = g.param("head.bias", table.shape[:1], ("o",), Init("zeros"))
        return g.apply(Linear(), "head", g.layer_norm("words.norm", y, eps=EPS), table, bias)

    def pair(self, x: Tensor) -> Tensor:
        """Logits of whether the second part follows, from the first place of the text."""
        g = self.graph
        first = g.reshape("first", g.slice("first.place", x, 1, 0, 1), "b s d -> b (s d)")
        return self._linear("pair", g.tanh("pooler.tanh", self._linear("pooler", first, x.shape[-1])), PAIR)

    def _linear(self, name: str, x: Tensor, features: int) -> Tensor:
        return self.graph.linear(name, x, features=features, scale=SCALE)

    def _joined(self, part: str, add: str, norm: str, x: Tensor, more: Tensor) -> Tensor:
        return self.graph.layer_norm(norm, self.graph.add(add, x, self._dropped(part, more)), eps=EPS)

    def _dropped(self, name: str, x: Tensor) -> Tensor:
        return self.graph.dropout(f"{name}.dropout", x, self.dropout) if self.dropout else x
