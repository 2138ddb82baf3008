"""Layers in plain NumPy, written down anew: what networks are held to, with no operator or kernel of castile's."""

from __future__ import annotations

from collections.abc import Mapping
from math import erf

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray
State = tuple[Array, Array]


class Given(dict[str, Array]):
    """Parameters and inputs by their names, and layers that take their parameters from these."""

    def __init__(self, arrays: Mapping[str, Array], training: bool, dropped: Mapping[str, Array]) -> None:
        super().__init__(arrays)
        self.training = training
        # what dropouts gave, by their names, and what they should have been given
        self._dropped, self.before = dropped, dict[str, Array]()

    def dropout(self, name: str, x: Array) -> Array:
        """Which elements are left out is no part of the network: what was left of them, if any were."""
        self.before[name] = x
        return self._dropped.get(name, x)

    def linear(self, name: str, x: Array) -> Array:
        return x @ self[f"{name}.weight"].T + self.get(f"{name}.bias", np.zeros(1))

    def dense(self, names: list[str], x: Array) -> Array:
        """Linear layers one after another, each rectified."""
        for name in names:
            x = relu(self.linear(name, x))
        return x

    def conv(self, name: str, x: Array, stride: int = 1, padding: int | tuple[int, int] = 0, groups: int = 1) -> Array:
        """x [b, c, H, W]; the weight [o, c / groups, rows, columns], the bias, if there is one, [o]."""
        weight = self[f"{name}.weight"]
        seen = windows(x, weight.shape[2:], stride, padding)
        each = zip(np.split(seen, groups, axis=1), np.split(weight, groups), strict=True)
        y = np.concatenate([np.einsum("bchwrs,ocrs->bohw", piece, of) for piece, of in each], axis=1)
        return y + self[f"{name}.bias"][:, None, None] if f"{name}.bias" in self else y

    def batch_norm(self, name: str, x: Array, eps: float = 1e-5) -> Array:
        mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
        if not self.training:
            mean, var = self[f"{name}.running_mean"], self[f"{name}.running_var"]
        gain, shift, mean, var = (a[:, None, None] for a in (self[f"{name}.weight"], self[f"{name}.bias"], mean, var))
        return (x - mean) / np.sqrt(var + eps) * gain + shift

    def layer_norm(self, name: str, x: Array, eps: float = 1e-5) -> Array:
        mean, var = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        return (x - mean) / np.sqrt(var + eps) * self[f"{name}.weight"] + self[f"{name}.bias"]

    def rms_norm(self, name: str, x: Array, eps: float) -> Array:
        return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps) * self[f"{name}.weight"]

    def embedding(self, name: str, ids: Array) -> Array:
        return self[f"{name}.weight"][ids]

    def lstm(self, name: str, x: Array, state: State | None = None) -> tuple[Array, State]:
        """x [b, s, i] -> hidden units of all steps [b, s, h], and these and the cell after the last; gates are input,
        forget, candidate and output."""
        into, over, bias = (self[f"{name}.{part}"] for part in ("input", "weight", "bias"))
        h, c = state or (np.zeros((len(x), bias.shape[-1])),) * 2
        steps = []
        for at in range(x.shape[1]):
            i, f, g, o = (x[:, at] @ into[n].T + h @ over[n].T + bias[n] for n in range(4))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            steps.append(h)
        return np.stack(steps, axis=1), (h, c)


def windows(x: Array, kernel: tuple[int, ...], stride: int, padding: int | tuple[int, int], fill: float = 0.0) -> Array:
    """What windows of x [b, c, H, W] see: [b, c, h, w, rows, columns]."""
    above, beside = (padding, padding) if isinstance(padding, int) else padding
    wide = np.pad(x, ((0, 0), (0, 0), (above, above), (beside, beside)), constant_values=fill)
    return sliding_window_view(wide, kernel, axis=(2, 3))[:, :, ::stride, ::stride]


def max_pool(x: Array, kernel: int, stride: int, padding: int = 0) -> Array:
    return windows(x, (kernel, kernel), stride, padding, -np.inf).max(axis=(4, 5))


def avg_pool(x: Array, kernel: int, stride: int, padding: int = 0) -> Array:
    """Means; the zeros of the padding count."""
    return windows(x, (kernel, kernel), stride, padding).mean(axis=(4, 5))


def flat(x: Array) -> Array:
    return x.reshape(len(x), -1)


def relu(x: Array) -> Array:
    return np.where(x > 0, x, 0.0)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2


def gelu_of_gpt(x: Array) -> Array:
    """As GPT-2 approximates it."""
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def softmax(x: Array) -> Array:
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def cross_entropy(logits: Array, ids: Array) -> Array:
    """The mean over all places."""
    return -np.log(np.take_along_axis(softmax(logits), ids[..., None], axis=-1)).mean()


def binary_cross_entropy(logits: Array, target: Array) -> Array:
    chance = sigmoid(logits)
    return -(target * np.log(chance) + (1 - target) * np.log(1 - chance)).mean()


def attention(q: Array, k: Array, v: Array, heads: int, kv_heads: int = 0, causal: bool = False) -> Array:
    """q [b, s, heads * d], k and v [b, t, kv_heads * d]; each head of keys serves neighbours of queries."""
    kv_heads = kv_heads or heads
    q, k, v = (np.stack(np.split(x, n, axis=-1), axis=1) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    k, v = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))
    scores = q @ np.swapaxes(k, 2, 3) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    return np.concatenate(list(np.moveaxis(softmax(scores) @ v, 1, 0)), axis=-1)


def rotated(x: Array, heads: int, base: float = 1e4) -> Array:
    """x [b, s, heads * d], each head of which is d / 2 complex numbers that turn with their place (Su et al., 2021);
    real parts are the first half, as in Llama's checkpoints of Hugging Face."""
    y = np.stack(np.split(x, heads, axis=-1), axis=2)
    half = y.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None, None] / base ** (np.arange(half) / half)
    turned = (y[..., :half] + 1j * y[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1).reshape(x.shape)
