"""Llama 2 (Touvron et al., 2023) and Llama 3 (Grattafiori et al., 2024): the blocks of gpt with root mean squares in
norms, rotary embeddings, a gated MLP, keys and values that several heads share, and no biases.

It does not know how it is cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from castile.launch.models import Recipe
from castile.launch.models.gpt import BASE, LLAMA, Blocks, Words, decoder
from castile.planner.graph import Graph

RECIPE = Recipe(
    data="text", batch=8, lr=1e-3, optimizer="adamw:beta2=0.95,decay=0.1", schedule="cosine:warmup=100", clip=1.0,
    undecayed="*norm*",
)  # fmt: skip
STANDARD_NAMES = LLAMA


@dataclass(frozen=True)
class Form:
    """A size: what settings are where the user leaves them open."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    seq: int
    vocab: int
    base: float = BASE


def _second(layers: int, width: int, heads: int, kv_heads: int, hidden: int) -> Form:
    return Form(layers, width, heads, kv_heads, hidden, seq=4096, vocab=32_000)


def _third(layers: int, width: int, heads: int, hidden: int) -> Form:
    return Form(layers, width, heads, 8, hidden, seq=8192, vocab=128_256, base=5e5)


FORMS = {
    "small": Form(4, 128, 4, 2, 352, seq=128, vocab=256),
    # Llama 2
    "2-7b": _second(32, 4096, 32, 32, 11_008),
    "2-13b": _second(40, 5120, 40, 40, 13_824),
    "2-70b": _second(80, 8192, 64, 8, 28_672),
    # Llama 3, and 3.1, whose weights were trained on with angles that are scaled for 131,072 words
    "8b": _third(32, 4096, 32, 14_336),
    "70b": _third(80, 8192, 64, 28_672),
    "405b": _third(126, 16_384, 128, 53_248),
}


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    size: str = "small",
    layers: int = 0,
    width: int = 0,
    heads: int = 0,
    kv_heads: int = 0,
    hidden: int = 0,
    seq: int = 0,
    vocab: int = 0,
    tied: bool = False,
    base: float = 0.0,
    eps: float = 1e-5,
    class_blocks: int = 0,
) -> Graph:
    """tokens [b, seq] -> logits [b, seq, vocab]; `tied` uses the token table for the head too.

    size           small (4 layers of width 128 with 4 heads, seq 128, vocab 256), a size of Llama 2 (2-7b, 2-13b,
                   2-70b) with seq 4,096, or one of Llama 3 (8b, 70b, 405b) with seq 8,192; layers, width, heads,
                   kv_heads, hidden, seq, vocab and base are the size's unless given
    kv_heads       heads of keys and values
    hidden         features between the two halves of an MLP
    base           of the angles by which queries and keys are turned
    eps            what norms add to a mean square
    class_blocks   how many blocks of the vocabulary the loss may be cut into, by default 96 of a large one
    """
    if size not in FORMS:
        raise ValueError(f"model llama: size should be one of {', '.join(FORMS)}, got {size!r}")
    form = FORMS[size]
    blocks = Blocks(layers or form.layers, heads or form.heads, kv_heads or form.kv_heads, hidden or form.hidden,
                    "rms", "silu", base or form.base, bias=False, eps=eps)  # fmt: skip
    words = Words(seq or form.seq, vocab or form.vocab, tied)
    return decoder(Graph("llama", dtype), batch or RECIPE.batch, words, width or form.width, blocks, class_blocks)
