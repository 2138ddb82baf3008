"""Every network in plain NumPy, as its paper or the code that is known for it has it: a function of its model's name.

given      parameters and inputs by name
settings   those of the model that are more than lengths of its parameters
They return the network's outputs, and its loss in training. A model needs one, and is held to it.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from tests import plain
from tests.plain import Array, Given, attention, avg_pool, cross_entropy, flat, gelu, gelu_of_gpt, max_pool, relu

Found = tuple[list[Array], Array]


def classified(given: Given, logits: Array, target: str = "label") -> Found:
    return [logits], cross_entropy(logits, given[target])


def numbered(given: Given, pattern: str) -> range:
    """From 1 on, the numbers for which there is such a parameter."""
    return range(1, next(n for n in range(1, 1000) if pattern.format(n) not in given))


# Images.


def mlp(given: Given, *, layers: int) -> Found:
    x = given.dense([f"fc{n + 1}" for n in range(layers)], flat(given["image"]))
    return classified(given, given.linear("head", x))


def convnet(given: Given) -> Found:
    x = relu(given.conv("conv2", relu(given.conv("conv1", given["image"], padding=1)), padding=1))
    return classified(given, given.linear("fc2", given.dense(["fc1"], flat(max_pool(x, 2, 2)))))


def lenet(given: Given) -> Found:
    x = max_pool(relu(given.conv("conv1", given["image"], padding=2)), 2, 2)
    x = max_pool(relu(given.conv("conv2", x)), 2, 2)
    return classified(given, given.linear("fc3", given.dense(["fc1", "fc2"], flat(x))))


def alexnet(given: Given) -> Found:
    x = max_pool(relu(given.conv("features.0", given["image"], 4, 2)), 3, 2)
    x = max_pool(relu(given.conv("features.3", x, 1, 2)), 3, 2)
    for n in (6, 8, 10):
        x = relu(given.conv(f"features.{n}", x, 1, 1))
    x = given.dropout("classifier.0", flat(max_pool(x, 3, 2)))
    x = given.dropout("classifier.3", given.dense(["classifier.1"], x))
    return classified(given, given.linear("classifier.6", given.dense(["classifier.4"], x)))


def vgg(given: Given, *, depth: int) -> Found:
    """Table 1 of the paper; M is pooling."""
    convolutions = {11: "1M1M2M2M2M", 13: "2M2M2M2M2M", 16: "2M2M3M3M3M", 19: "2M2M4M4M4M"}[depth]
    x, n = given["image"], 0
    for word in "".join("c" * int(word) if word.isdigit() else word for word in convolutions):
        if word == "c":
            x = relu(given.conv(f"features.{n}", x, 1, 1))
            n += 1
        else:
            x = max_pool(x, 2, 2)
        n += 1
    x = given.dropout("classifier.2", given.dense(["classifier.0"], flat(x)))
    x = given.dropout("classifier.5", given.dense(["classifier.3"], x))
    return classified(given, given.linear("classifier.6", x))


def resnet(given: Given, *, groups: int = 1) -> Found:
    """The second of a bottleneck's three convolutions shrinks images, as in torchvision; else the first of two."""
    is_small = given["conv1.weight"].shape[2] == 3
    x = given.conv("conv1", given["image"], *((1, 1) if is_small else (2, 3)))
    x = relu(given.batch_norm("bn1", x))
    x = x if is_small else max_pool(x, 3, 2, 1)
    for stage in numbered(given, "layer{}.0.conv1.weight"):
        for block in range(numbered(given, f"layer{stage}.{{}}.conv1.weight").stop):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            x = _residual(given, name, x, stride, groups)
    return classified(given, given.linear("fc", x.mean(axis=(2, 3))))


def _residual(given: Given, name: str, x: Array, stride: int, groups: int) -> Array:
    def normal(n: int, y: Array, step: int = 1, padding: int = 0, groups: int = 1) -> Array:
        return given.batch_norm(f"{name}.bn{n}", given.conv(f"{name}.conv{n}", y, step, padding, groups))

    if f"{name}.conv3.weight" in given:
        y = relu(normal(2, relu(normal(1, x)), stride, 1, groups))
        y = normal(3, y)
    else:
        y = normal(2, relu(normal(1, x, stride, 1)), 1, 1)
    if f"{name}.downsample.0.weight" in given:
        x = given.batch_norm(f"{name}.downsample.1", given.conv(f"{name}.downsample.0", x, stride))
    return relu(y + x)


def resnext(given: Given, *, groups: int) -> Found:
    return resnet(given, groups=groups)


def wide_resnet(given: Given) -> Found:
    return resnet(given)


def inception(given: Given) -> Found:
    """torchvision's modules A to E; blocks that are not there are passed over."""

    def conv(name: str, x: Array, stride: int = 1, padding: int | tuple[int, int] = 0) -> Array:
        x = given.conv(f"{name}.conv", x, stride, padding)
        return relu(given.batch_norm(f"{name}.bn", x, 1e-3) if f"{name}.bn.weight" in given else x)

    def chain(name: str, x: Array, *paddings: int | tuple[int, int], first: int = 1) -> Array:
        for n, padding in enumerate(paddings, first):
            x = conv(f"{name}_{n}", x, 1, padding)
        return x

    def beside(*branches: Array) -> Array:
        return np.concatenate(branches, axis=1)

    def pooled(m: str, x: Array) -> Array:
        return conv(f"{m}.branch_pool", avg_pool(x, 3, 1, 1))

    def there(*letters: str) -> list[str]:
        return [m for m in letters if any(name.startswith(f"{m}.") for name in given)]

    x = conv("Conv2d_1a_3x3", given["image"], 2)
    x = max_pool(conv("Conv2d_2b_3x3", conv("Conv2d_2a_3x3", x), 1, 1), 3, 2)
    x = max_pool(conv("Conv2d_4a_3x3", conv("Conv2d_3b_1x1", x)), 3, 2)
    for m in there("Mixed_5b", "Mixed_5c", "Mixed_5d"):
        five, three = chain(f"{m}.branch5x5", x, 0, 2), chain(f"{m}.branch3x3dbl", x, 0, 1, 1)
        x = beside(conv(f"{m}.branch1x1", x), five, three, pooled(m, x))
    m, three = "Mixed_6a", conv("Mixed_6a.branch3x3dbl_3", chain("Mixed_6a.branch3x3dbl", x, 0, 1), 2)
    x = beside(conv(f"{m}.branch3x3", x, 2), three, max_pool(x, 3, 2))
    row, column = (0, 3), (3, 0)
    for m in there("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"):
        seven = chain(f"{m}.branch7x7", x, 0, row, column)
        double = chain(f"{m}.branch7x7dbl", x, 0, column, row, column, row)
        x = beside(conv(f"{m}.branch1x1", x), seven, double, pooled(m, x))
    middle, m = x, "Mixed_7a"
    three = conv(f"{m}.branch3x3_2", conv(f"{m}.branch3x3_1", x), 2)
    seven = conv(f"{m}.branch7x7x3_4", chain(f"{m}.branch7x7x3", x, 0, row, column), 2)
    x = beside(three, seven, max_pool(x, 3, 2))
    for m in there("Mixed_7b", "Mixed_7c"):
        three, double = conv(f"{m}.branch3x3_1", x), chain(f"{m}.branch3x3dbl", x, 0, 1)
        crossed = [
            conv(f"{m}.{name}{part}", of, 1, padding)
            for name, of in (("branch3x3_2", three), ("branch3x3dbl_3", double))
            for part, padding in (("a", (0, 1)), ("b", (1, 0)))
        ]
        x = beside(conv(f"{m}.branch1x1", x), *crossed, pooled(m, x))
    outputs, loss = classified(given, given.linear("fc", given.dropout("dropout", x.mean(axis=(2, 3)))))
    if "AuxLogits.fc.weight" in given:
        # five by five there; small images have less
        x = avg_pool(middle, min(5, middle.shape[3]), 3)
        x = conv("AuxLogits.conv1", conv("AuxLogits.conv0", x))
        loss = loss + 0.4 * cross_entropy(given.linear("AuxLogits.fc", x.mean(axis=(2, 3))), given["label"])
    return outputs, loss


def vit(given: Given, *, heads: int, patch: int) -> Found:
    x = given.conv("conv_proj", given["image"], patch)
    x = np.swapaxes(x.reshape(*x.shape[:2], -1), 1, 2)
    x = np.concatenate([np.broadcast_to(given["class_token"], (len(x), 1, x.shape[2])), x], axis=1)
    x = x + given["encoder.pos_embedding"]
    block = "encoder.layers.encoder_layer_{}"
    for n in range(numbered(given, f"{block}.ln_1.weight").stop):
        of = block.format(n)
        a = given.layer_norm(f"{of}.ln_1", x, 1e-6)
        a = attention(*(given.linear(f"{of}.self_attention.{part}", a) for part in "qkv"), heads)
        x = x + given.linear(f"{of}.self_attention.out_proj", a)
        m = gelu(given.linear(f"{of}.mlp.0", given.layer_norm(f"{of}.ln_2", x, 1e-6)))
        x = x + given.linear(f"{of}.mlp.3", m)
    return classified(given, given.linear("heads.head", given.layer_norm("encoder.ln", x, 1e-6)[:, 0]))


# Sequences.


def lstm(given: Given) -> Found:
    x = given.embedding("tok", given["tokens"])
    for n in numbered(given, "lstm{}.bias"):
        x, _ = given.lstm(f"lstm{n}", x)
    return classified(given, given.linear("head", x), "targets")


def rnnlm(given: Given) -> Found:
    return lstm(given)


def rnntc(given: Given) -> Found:
    x = given.embedding("tok", given["tokens"])
    for n in numbered(given, "lstm{}.bias"):
        x, _ = given.lstm(f"lstm{n}", x)
    return classified(given, given.linear("head", x.mean(axis=1)))


def seq2seq(given: Given) -> Found:
    read, written = (given.embedding(f"{side}.tok", given[name])
                     for side, name in (("encoder", "source"), ("decoder", "given")))  # fmt: skip
    for n in numbered(given, "encoder{}.bias"):
        read, state = given.lstm(f"encoder{n}", read)
        written, _ = given.lstm(f"decoder{n}", written, state)
    context = attention(given.linear("query", written), read, read, 1)
    attended = np.tanh(given.linear("attending", np.concatenate([context, written], axis=-1)))
    return classified(given, given.linear("head", attended), "targets")


def nmt(given: Given) -> Found:
    return seq2seq(given)


def gpt(
    given: Given, *, heads: int, kv_heads: int, rotary: bool, norm: str, mlp: str, base: float = 1e4, eps: float = 1e-5
) -> Found:
    """GPT-2; with rotary, rms and silu Llama's blocks."""

    def normal(name: str, x: Array) -> Array:
        return given.layer_norm(name, x) if norm == "layer" else given.rms_norm(name, x, eps)

    def turned(x: Array, heads: int) -> Array:
        return plain.rotated(x, heads, base) if rotary else x

    x = given.embedding("tok", given["tokens"])
    if not rotary:
        x = x + given["pos.weight"][: x.shape[1]]
    x = given.dropout("embed.dropout", x)
    for n in numbered(given, "block{}.q.weight"):
        b = f"block{n}"
        q, k, v = (given.linear(f"{b}.{part}", normal(f"{b}.norm1", x)) for part in "qkv")
        a = attention(turned(q, heads), turned(k, kv_heads or heads), v, heads, kv_heads, causal=True)
        x = x + given.dropout(f"{b}.o.dropout", given.linear(f"{b}.o", a))
        m = normal(f"{b}.norm2", x)
        up, gate = given.linear(f"{b}.up", m), given.linear(f"{b}.gate", m) if mlp == "silu" else None
        m = gelu_of_gpt(up) if gate is None else up * gate * plain.sigmoid(gate)
        x = x + given.dropout(f"{b}.down.dropout", given.linear(f"{b}.down", m))
    table = given["head.weight" if "head.weight" in given else "tok.weight"]
    return classified(given, normal("norm", x) @ table.T, "targets")


def llama(given: Given, *, size: str, heads: int, kv_heads: int, base: float, eps: float) -> Found:
    """Llama 3 turns queries and keys by smaller angles than Llama 2."""
    base = base or (5e5 if size in ("8b", "70b", "405b") else 1e4)
    return gpt(given, heads=heads, kv_heads=kv_heads, rotary=True, norm="rms", mlp="silu", base=base, eps=eps)


def bert(given: Given, *, heads: int) -> Found:
    tokens = given["tokens"]
    x = given.embedding("tok", tokens) + given.embedding("segment", given["segments"])
    x = given.layer_norm("embed.norm", x + given["pos.weight"][: tokens.shape[1]], 1e-12)
    x = given.dropout("embed.dropout", x)
    for n in numbered(given, "block{}.q.weight"):
        b = f"block{n}"
        a = given.linear(f"{b}.o", attention(*(given.linear(f"{b}.{part}", x) for part in "qkv"), heads))
        x = given.layer_norm(f"{b}.norm1", x + given.dropout(f"{b}.o.dropout", a), 1e-12)
        m = given.linear(f"{b}.down", gelu(given.linear(f"{b}.up", x)))
        x = given.layer_norm(f"{b}.norm2", x + given.dropout(f"{b}.down.dropout", m), 1e-12)
    words = given.layer_norm("words.norm", gelu(given.linear("words", x)), 1e-12)
    logits = words @ given["tok.weight"].T + given["head.bias"]
    pair = given.linear("pair", np.tanh(given.linear("pooler", x[:, 0])))
    return [logits], cross_entropy(logits, given["targets"]) + cross_entropy(pair, given["follows"])


def moe(
    given: Given, *, size: str, heads: int, kv_heads: int, choices: int, capacity: float, balance: float
) -> Found:
    """GShard's every other block has experts; every one of Mixtral's, which are Llama's otherwise."""
    is_mixtral = size.startswith("8x")

    def normal(name: str, x: Array) -> Array:
        return given.rms_norm(name, x, 1e-5) if is_mixtral else given.layer_norm(name, x)

    def turned(x: Array, heads: int) -> Array:
        return plain.rotated(x, heads, 1e6) if is_mixtral else x

    x, loss = given.embedding("tok", given["tokens"]), np.zeros(())
    x = x if is_mixtral else x + given["pos.weight"]
    for n in numbered(given, "block{}.q.weight"):
        b = f"block{n}"
        q, k, v = (given.linear(f"{b}.{part}", normal(f"{b}.norm1", x)) for part in "qkv")
        a = attention(turned(q, heads), turned(k, kv_heads or heads), v, heads, kv_heads, causal=True)
        x = x + given.linear(f"{b}.o", a)
        m = normal(f"{b}.norm2", x)
        if n % 2 and not is_mixtral:
            x = x + given.linear(f"{b}.down", gelu_of_gpt(given.linear(f"{b}.up", m)))
            continue
        worked = [_worked(given, b, tokens, choices, capacity) for tokens in m]
        x = x + np.stack([tokens for tokens, _ in worked])
        loss = loss + balance * given.training * np.mean([uneven for _, uneven in worked])
    logits = given.linear("head", normal("norm", x))
    return [logits], loss + cross_entropy(logits, given["targets"])


def _worked(given: Given, name: str, tokens: Array, choices: int, capacity: float) -> tuple[Array, float]:
    """What experts make of the tokens [s, d] of a sample, and GShard's loss: how uneven their loads are."""
    down = given[f"{name}.down.weight"]
    chances = plain.softmax(given.linear(f"{name}.gate", tokens))
    order = np.argsort(-chances, axis=1)[:, :choices]
    room = np.full(len(down), min(len(tokens), ceil(capacity * choices * len(tokens) / len(down))))
    made = np.zeros_like(tokens)
    for choice in range(choices):
        for token, expert in enumerate(order[:, choice]):
            gate = chances[token, expert] / (chances[token, order[token]].sum() if choices > 1 else 1)
            if room[expert]:
                room[expert] -= 1
                made[token] += gate * (_lifted(given, name, tokens[token], expert) @ down[expert])
    loads = np.bincount(order[:, 0], minlength=len(down)) / len(tokens)
    return made, float(len(down) * (loads * chances.mean(axis=0)).sum())


def _lifted(given: Given, name: str, token: Array, expert: int) -> Array:
    """What lies between the halves of an expert's network; Mixtral's is gated."""
    up = token @ given[f"{name}.up.weight"][expert]
    if f"{name}.opening.weight" not in given:
        return gelu_of_gpt(up)
    opening = token @ given[f"{name}.opening.weight"][expert]
    return up * opening * plain.sigmoid(opening)


# Recommendation and regression.


def dlrm(given: Given) -> Found:
    dense = given.dense([f"bottom{n}" for n in numbered(given, "bottom{}.weight")], given["numbers"])
    tables = numbered(given, "table{}.weight")
    vectors = np.stack([dense, *(given.embedding(f"table{n}", given["categories"][:, n - 1]) for n in tables)], axis=1)
    which = [(one, other) for one in range(len(tables) + 1) for other in range(one)]
    pairs = [(vectors[:, one] * vectors[:, other]).sum(axis=1) for one, other in which]
    x = np.concatenate([dense, np.stack(pairs, axis=1)], axis=1)
    logits = given.linear("head", given.dense([f"top{n}" for n in numbered(given, "top{}.weight")], x))
    return [logits], plain.binary_cross_entropy(logits, given["label"])


def xdl(given: Given) -> Found:
    tables = numbered(given, "table{}.weight")
    x = np.concatenate([given.embedding(f"table{n}", given["categories"][:, n - 1]) for n in tables], axis=1)
    logits = given.linear("head", given.dense([f"top{n}" for n in numbered(given, "top{}.weight")], x))
    return [logits], plain.binary_cross_entropy(logits, given["label"])


def candle_uno(given: Given, *, encoders: int, layers: int) -> Found:
    names = ["cell.rnaseq", *(f"drug{n}.{kind}" for n in (1, 2) for kind in ("descriptors", "fingerprints"))]
    encoded = [given.dense([f"{name}.encoder{n + 1}" for n in range(encoders)], given[name]) for name in names]
    x = np.concatenate([given["dose1"], given["dose2"], *encoded], axis=1)
    found = given.linear("head", given.dense([f"layer{n + 1}" for n in range(layers)], x))
    return [found], np.square(found - given["growth"]).mean()
