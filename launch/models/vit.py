"""Vision transformers (Dosovitskiy et al., 2021): patches of an image are the tokens; torchvision's shapes and names.

Queries, keys and values have a weight each (`self_attention.q.weight` and so on), of which torchvision makes one.
They do not know how they are cut or trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor

RECIPE = Recipe(
    data="noise", batch=64, lr=1e-3, optimizer="adamw:decay=0.1", schedule="cosine:warmup=100", clip=1.0,
    undecayed="*.bias,*ln*,class_token,*pos_embedding",
)  # fmt: skip
SCALE = 0.02
EPS = 1e-6


@dataclass(frozen=True)
class Form:
    """Rows and columns of a patch, blocks, features of a token, heads, features within a block's dense half."""

    patch: int
    layers: int
    width: int
    heads: int
    hidden: int


FORMS = {
    "b16": Form(16, 12, 768, 12, 3072),
    "b32": Form(32, 12, 768, 12, 3072),
    "l16": Form(16, 24, 1024, 16, 4096),
    "l32": Form(32, 24, 1024, 16, 4096),
    "h14": Form(14, 32, 1280, 16, 5120),
}


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    form: str = "b16",
    patch: int = 0,
    layers: int = 0,
    width: int = 0,
    heads: int = 0,
    hidden: int = 0,
    size: int = 224,
    channels: int = 3,
    classes: int = 1000,
) -> Graph:
    """image [b, channels, size, size] -> logits [b, classes]; 86,567,656 parameters as it is (ViT-B/16).

    form     b16, b32, l16, l32 or h14: base, large or huge, and the rows and columns of a patch
    patch, layers, width, heads, hidden   what is other than the form says
    """
    if form not in FORMS:
        raise ValueError(f"model vit: form should be one of {', '.join(FORMS)}, got {form!r}")
    f = FORMS[form]
    f = Form(patch or f.patch, layers or f.layers, width or f.width, heads or f.heads, hidden or f.hidden)
    if size % f.patch:
        raise ValueError(f"model vit: size {size} should be a multiple of patch, {f.patch}")
    if f.width % f.heads:
        raise ValueError(f"model vit: width {f.width} should be a multiple of heads, {f.heads}")
    g = Graph("vit", dtype)
    b = batch or RECIPE.batch
    image = g.input("image", (b, channels, size, size), "b c h w")
    label = g.input("label", (b,), "b", "int32")
    x = _tokens(g, image, f)
    for n in range(f.layers):
        x = _block(g, f"encoder.layers.encoder_layer_{n}", x, f)
    # the class is read off the first token alone, so the others need no normalisation
    x = g.layer_norm("encoder.ln", g.slice("encoder.class", x, 1, 0, 1), eps=EPS)
    logits = g.linear("heads.head", g.reshape("heads.flat", x, "b s d -> b (s d)"), features=classes, scale=SCALE)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g


def _tokens(g: Graph, image: Tensor, form: Form) -> Tensor:
    """The class token and the image's patches, row by row, each with its position [b, 1 + patches, width]."""
    scale = sqrt(1 / (image.shape[1] * form.patch**2))
    x = g.conv2d("conv_proj", image, channels=form.width, kernel=form.patch, stride=form.patch, scale=scale)
    x = g.transpose("patches", x, "b d h w -> b (h w) d")
    # a token of zeros for each sample, to which the one that all share is added
    zeros = g.scale("class_token.zeros", g.slice("class_token.place", x, 1, 0, 1), factor=0.0)
    first = g.add("class_token.added", zeros, g.param("class_token", (form.width,), ("d",), Init("zeros")))
    x = g.concat("tokens", 1, first, x)
    positions = g.param("encoder.pos_embedding", x.shape[1:], ("s", "d"), Init("normal", SCALE))
    return g.add("encoder.embed", x, positions)


def _block(g: Graph, name: str, x: Tensor, form: Form) -> Tensor:
    a, attention = g.layer_norm(f"{name}.ln_1", x, eps=EPS), f"{name}.self_attention"
    q, k, v = (_linear(g, f"{attention}.{part}", a, form.width) for part in "qkv")
    a = g.attention(attention, q, k, v, heads=form.heads)
    x = g.add(f"{name}.add_1", x, _linear(g, f"{attention}.out_proj", a, form.width))
    m = _linear(g, f"{name}.mlp.0", g.layer_norm(f"{name}.ln_2", x, eps=EPS), form.hidden)
    m = _linear(g, f"{name}.mlp.3", g.gelu(f"{name}.mlp.1", m, approximate="none"), form.width)
    return g.add(f"{name}.add_2", x, m)


def _linear(g: Graph, name: str, x: Tensor, features: int) -> Tensor:
    # as large as its inputs and its gradients both allow (Glorot and Bengio, 2010)
    return g.linear(name, x, features=features, scale=sqrt(2 / (x.shape[-1] + features)))
